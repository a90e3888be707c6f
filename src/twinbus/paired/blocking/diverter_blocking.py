# Generated from ../aio/diverter.py by tools/unasync.py; change that file, not this one.
"""The way into the backlog: one link to each backlog queue that is used, shared by all senders."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from twinbus.client_errors import BacklogError, EnvelopeError
from twinbus.failover.rotation import Rotation
from twinbus.paired.blocking.link_blocking import CongestedError, EntityLink, Side
from twinbus.paired.blocking.world_blocking import World
from twinbus.paired.bookkeeper import KEEPS_NOTHING, Bookkeeper
from twinbus.paired.events import BacklogQueueIn, BacklogQueueOut, MessagesDiverted
from twinbus.paired.outgoing import OutgoingBatch
from twinbus.paired.telemetry import Announcer, Traced
from twinbus.paired.transfers import Transfers

# One queue that does not answer must not use up the time that another could have answered in.
QUEUE_S = 10.0
# Even a caller whose time is over is worth one attempt: its message has nowhere else to go.
LEAST_S = 0.25


class Diverter:
    def __init__(
        self,
        secondary: Side,
        rotation: Rotation,
        announcer: Announcer,
        world: World,
        books: Bookkeeper = KEEPS_NOTHING,
    ) -> None:
        self.rotation = rotation
        self._secondary = secondary
        self._announcer = announcer
        self._world = world
        self._books = books
        self._links: dict[str, EntityLink] = {}

    def divert(
        self,
        path: str,
        messages: list[bytes],
        sticky: str,
        deadline: float,
        ids: Sequence[Any] = (),
    ) -> str:
        """Put the messages into the backlog; returns the queue to stay with.

        Raises BacklogError when no queue takes them. Some of a list may then be in the backlog.
        """
        pending = Transfers(path, messages)
        names = deque(ids)
        errors: dict[str, BaseException] = {}
        order = self.rotation.order(sticky, self._world.now())
        for tried, queue in enumerate(order):
            left = deadline - self._world.now()
            if left <= 0 and errors:
                break
            # Half of what is left: the best candidate gets most, and the others get some.
            timeout = max(LEAST_S, min(QUEUE_S, left / 2 if tried + 1 < len(order) else left))
            try:
                with Traced("twinbus divert", path, queue):
                    self._put(queue, path, pending, names, timeout)
            except EnvelopeError:  # the message's own, of which no queue is guilty
                raise
            except Exception as error:  # noqa: BLE001  each queue's own words go into BacklogError
                errors[queue] = error
                if not isinstance(error, CongestedError):
                    self._failed(queue, error)
            else:
                self._succeeded(queue)
                return queue
        raise BacklogError(
            f"'{path}' is out, and none of {len(errors)} backlog queues on "
            f"{self._secondary.host} took its messages; send again when one "
            "of the two namespaces is back.",
            errors,
        ) from next(reversed(errors.values()), None)

    def is_cold(self, queue: str) -> bool:
        """Whether nobody has yet opened a link to it."""
        return queue not in self._links

    def warm(self, queue: str) -> None:
        """Open the link to a queue that will be needed soon."""
        try:
            self._link(queue).warm(QUEUE_S)
        except CongestedError:
            pass  # somebody is at it
        except Exception as error:  # noqa: BLE001  the send will find out, and say so
            self._failed(queue, error)

    def close(self) -> None:
        links, self._links = self._links, {}
        for queue, link in links.items():
            self._world.attempt("closing", queue, link.close)

    def _put(
        self,
        queue: str,
        path: str,
        pending: Transfers,
        names: deque[Any],
        timeout: float,
    ) -> None:
        """Take messages off ``pending``, and their ids off ``names``, as the queue accepts them."""
        link = self._link(queue)
        end = self._world.now() + timeout
        if not link.limit:
            link.warm(timeout)
        while pending:
            items, whole = pending.next(link.limit)
            for batch in items:
                link.transfer(OutgoingBatch(batch), max(LEAST_S, end - self._world.now()))
            pending.accepted(whole)
            self._announce_diverted(queue, path, items, whole)
            ids = [names.popleft() for _ in range(min(whole, len(names)))]
            self._books.diverted(self._secondary.host, queue, path, items, ids)

    def _link(self, queue: str) -> EntityLink:
        link = self._links.get(queue)
        if link is None:
            link = self._links.setdefault(queue, self._secondary.link(queue))
        return link

    def _failed(self, queue: str, error: BaseException) -> None:
        if self.rotation.failed(queue, self._world.now()):
            self._announcer.announce(
                BacklogQueueOut(**self._where(), queue=queue, error=str(error))
            )

    def _succeeded(self, queue: str) -> None:
        if self.rotation.succeeded(queue):
            self._announcer.announce(BacklogQueueIn(**self._where(), queue=queue))

    def _announce_diverted(
        self, queue: str, path: str, items: list[list[bytes]], messages: int
    ) -> None:
        size = sum(len(item) for batch in items for item in batch)
        self._announcer.announce(
            MessagesDiverted(
                **self._where(), entity=path, queue=queue, messages=messages, bytes=size
            )
        )

    def _where(self) -> dict[str, Any]:
        return {"at": self._world.date(), "namespace": self._secondary.host}
