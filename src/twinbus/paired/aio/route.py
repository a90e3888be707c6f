"""From a sender to its entity: the primary while all is well, the backlog while it is not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.classifier import Judge, Verdict
from twinbus.failover.states import State
from twinbus.paired.aio.busy import BUSY_S
from twinbus.paired.aio.link import CongestedError, EntityLink
from twinbus.paired.aio.pairing import Pairing
from twinbus.paired.outgoing import Outgoing, OutgoingBatch, is_encodable

# A send that is cancelled counts as a time-out does if it had waited this long: a healthy namespace
# has opened a link and answered by then, and who cancels sooner has other reasons, as when closing.
UNANSWERED_S = 1.0
# Of a send's time, at most this much is kept back for the backlog.
DIVERT_RESERVE_S = 5.0


class Route:
    """Of one sender, from when it is paired."""

    __slots__ = ("_link", "_world", "entity", "judge", "pairing", "sticky")

    def __init__(self, pairing: Pairing, link: EntityLink) -> None:
        self._link = link
        self._world = pairing.world
        self.pairing = pairing
        self.judge = Judge(pairing.options.classifier)
        self.sticky = pairing.diverter.rotation.pick(self._world.now())
        self.entity = pairing.join(link)

    async def deliver(
        self,
        send: Callable[[Outgoing | OutgoingBatch, float], Awaitable[None]],
        ready: Outgoing | OutgoingBatch,
        timeout: float | None,
    ) -> None:
        """To the primary if it is healthy, else to the backlog."""
        total = timeout or self.pairing.options.operation_timeout.total_seconds()
        deadline = self._world.now() + total
        done, _ = await self.at_home(lambda left: send(ready, left), ready, deadline, total)
        if done:
            return
        self.entity.admission.check(self.entity.path, ready)
        self.sticky = await self.pairing.diverter.divert(
            self.entity.path, ready.encoded(), self.sticky, deadline, ready.ids()
        )

    async def at_home(
        self,
        act: Callable[[float], Awaitable[Any]],
        ready: Outgoing | OutgoingBatch,
        deadline: float,
        total: float,
    ) -> tuple[bool, Any]:
        """Do it on the primary. (False, None) if the entity is diverted, or is by this failure."""
        pairing, entity = self.pairing, self.entity
        # A link to the backlog that must be opened first takes more of the time there is.
        share = total / 2 if pairing.diverter.is_cold(self.sticky) else total / 4
        home_by = deadline - min(DIVERT_RESERVE_S, share)
        while not pairing.is_diverted(entity):
            began = self._world.now()
            try:
                outcome = await act(max(0.001, home_by - began))
            except self._world.cancelled:
                self.broken_off(began)
                raise
            except Exception as error:
                if not is_encodable(ready):  # which says nothing about the entity
                    raise
                entity.admission.refused(ready, error)
                again = await self._after(error, began, home_by)
                if not again and entity.failover.state is not State.DIVERTED:
                    raise
            else:
                if entity.failover.state is not State.HEALTHY:
                    pairing.succeeded(entity)
                entity.admission.took(ready)
                return True, outcome
        return False, None

    async def _after(self, error: Exception, began: float, home_by: float) -> bool:
        """What a failed send leads to; true if it is worth trying the primary again."""
        verdict = self.judge.of(error)
        if verdict is Verdict.RAISE or isinstance(error, CongestedError):
            raise error
        if verdict is Verdict.WAIT:
            if self._world.now() + BUSY_S >= home_by:
                raise error
            await self._world.sleep(BUSY_S)
            return True
        self.pairing.failed(self.entity, began, error, self.sticky)
        return self.entity.failover.is_stale(began) and self._world.now() < home_by

    async def try_link(self) -> None:
        """Open the link, if the entity is there: that it is not is noted, and the first send says
        more."""
        if self.pairing.is_diverted(self.entity):
            return
        began = self._world.now()
        try:
            await self._link.warm(self.pairing.options.operation_timeout.total_seconds())
        except self._world.cancelled:
            self.broken_off(began)
            raise
        except Exception as error:
            if self.judge.of(error) is not Verdict.COUNT:
                raise
            self.pairing.failed(self.entity, began, error, self.sticky)

    def broken_off(self, began: float) -> None:
        """A wait for the primary was cancelled. If nothing was heard of it all the while, and that
        was long enough to mean something, it counts as the time-out that it was to its caller."""
        waited = self._world.now() - began
        if waited >= UNANSWERED_S and self._link.last_used < began:
            error = OperationTimeoutError(
                message=f"'{self.entity.path}' had not answered when the send was cancelled after "
                f"{waited:.1f} seconds."
            )
            self.pairing.failed(self.entity, began, error, self.sticky)
