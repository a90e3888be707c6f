# Generated from ../aio/link.py by tools/unasync.py; change that file, not this one.
"""An SDK sender that many may share, and that is warm when it is needed.

The SDK's own sender is for one task at a time, notices a link that was closed while it was quiet
only when a send fails, and then sleeps before it tries again. Here sends take turns, a link that
has died is replaced before the send, and who was cancelled in mid-frame leaves no half-read
connection to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from azure.servicebus import ServiceBusClient, ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.classifier import Classifier, Judge, Verdict, classify
from twinbus.paired.blocking.busy_blocking import patient
from twinbus.paired.blocking.world_blocking import Lock, World
from twinbus.paired.outgoing import IdentifyingTransport, Outgoing, OutgoingBatch, is_encodable
from twinbus.sdk import upkeep
from twinbus.sdk.privates import SPAN_NAME_SEND, send_trace_context_manager
from twinbus.sdk.upkeep import become

# Between sends closer than this a link is taken to be alive: asking costs more than it saves.
QUIET_S = 1.0
# Whoever closes a sender waits this long for the send that is under way.
CLOSE_S = 5.0
# What replacing a link in the background may take.
WARM_S = 20.0
_UNTRACED = nullcontext()


class CongestedError(OperationTimeoutError):
    """The caller's time went by while others sent on the same sender, successfully."""


class EntityLink(Protocol):
    """What sends bytes to one entity: an SDK sender here, the simulator's own there."""

    last_used: float  # when it was last heard that something got through

    @property
    def entity_name(self) -> str: ...

    @property
    def limit(self) -> int:
        """Of one transfer, in bytes; 0 if the link was never open."""

    def transfer(self, outgoing: Outgoing | OutgoingBatch, timeout: float | None, /) -> None:
        """Raises what the SDK raises."""

    def warm(self, timeout: float | None = None) -> None:
        """Open it."""

    def keep_warm(self) -> None:
        """Open it again if it was open and has died."""

    def close(self) -> None: ...

    def drop_link(self) -> None:
        """Close it in the background."""

    def break_off(self) -> None:
        """Whoever waits for an answer need not any longer."""


class Side(NamedTuple):
    """One of the two namespaces: its host, and how a link of one's own to an entity is had."""

    host: str
    link: Callable[[str], EntityLink]


class SharedSender(ServiceBusSender):
    """Made by ``adopt``."""

    _turn: Lock
    _world: World
    _judge: Judge
    _backoff = patient(ServiceBusSender._backoff)
    last_used: float
    _last_failure: tuple[float, Exception] | None
    _open_within: float | None

    def transfer(self, outgoing: Outgoing | OutgoingBatch, timeout: float | None) -> None:
        """Send, in turn. Raises what the SDK raises."""
        began = self._world.now()
        if not self._turn.acquire(timeout):
            raise self._waited_too_long(began)
        try:
            self._share_fate(began)
            left = None if timeout is None else max(0.001, timeout - (self._world.now() - began))
            self._transfer(outgoing, left)
        finally:
            self._turn.release()

    def _transfer(self, outgoing: Outgoing | OutgoingBatch, timeout: float | None) -> None:
        try:
            now = self._world.now()
            if self._running and now - self.last_used > QUIET_S:
                self._freshen()
            if isinstance(outgoing, OutgoingBatch):
                if not self._max_batch_size_on_link:
                    self._open_with_retry()
                outgoing.check_fits(self._max_batch_size_on_link)
            with self._traced(outgoing.links):
                self._do_retryable_operation(
                    self._send,
                    message=outgoing,
                    timeout=timeout,
                    operation_requires_timeout=True,
                    apply_try_timeout=True,
                    require_last_exception=True,
                )
            self.last_used = self._world.now()
        except Exception as error:
            if is_encodable(outgoing):
                self._note_failure(error)
            raise
        except BaseException:
            # Cancelled or interrupted: the answer to this send may still come, or half a frame may
            # have been read. Nobody else should find out which.
            self.drop_link()
            raise

    def _open(self, timeout: float | None = None) -> None:
        if not self._running:
            self._open_within = timeout
            super()._open(timeout)

    def _create_handler(self, auth: Any) -> None:
        super()._create_handler(auth)
        upkeep.bound_open(self._handler, self._open_within)

    def _note_failure(self, error: Exception) -> None:
        """For whoever holds the turn: others may be on a newer link by the time they hear of it."""
        self._last_failure = (self._world.now(), error)
        if self._is_lost(error):
            self.drop_link()

    def _is_lost(self, error: Exception) -> bool:
        """Whether the link is not to be sent on again. The answer to what timed out may still come,
        whoever is to blame."""
        return isinstance(error, OperationTimeoutError) or self._judge.of(error) is Verdict.COUNT

    def _traced(
        self, links: list[Any] | None, span_name: str = SPAN_NAME_SEND
    ) -> AbstractContextManager[None]:
        """The SDK's span around a send, if the application traces at all."""
        if links is None:
            return _UNTRACED
        return send_trace_context_manager(self, span_name=span_name, links=links)

    def _share_fate(self, began: float) -> None:
        """Whoever waited while the link failed has failed with it.

        Otherwise a hundred threads that wait behind a dead link would each try it in turn.
        """
        if self._last_failure is not None and self._last_failure[0] > began:
            error = self._last_failure[1]
            if self._is_lost(error):  # and not what was wrong with one message
                raise error

    def _waited_too_long(self, began: float) -> OperationTimeoutError:
        """A link on which nothing got through all the while is out; one that is merely busy with
        the sends of others is not."""
        kind = OperationTimeoutError if self.last_used < began else CongestedError
        return kind(message=f"Timed out waiting for the other sends to '{self.entity_name}'.")

    @property
    def limit(self) -> int:
        return min(self._max_batch_size_on_link, self._max_message_size_on_link)

    def warm(self, timeout: float | None = None) -> None:
        """Open the link, so that a send finds it open."""
        began = self._world.now()
        if not self._turn.acquire(timeout):
            raise self._waited_too_long(began)
        try:
            if self._running:
                self._freshen()
            if not self._running:
                with self._world.breakable(self.break_off):
                    self._do_retryable_operation(
                        self._open,
                        timeout=timeout,
                        operation_requires_timeout=True,
                        apply_try_timeout=True,
                    )
        except BaseException:
            # The SDK may not have had the time to close what it opened.
            self.drop_link()
            raise
        finally:
            self._turn.release()

    def close(self) -> None:
        """Let the send that is under way end first."""
        turn = self._turn.acquire(CLOSE_S)
        try:
            super().close()
        finally:
            if turn:
                self._turn.release()

    def keep_warm(self) -> None:
        """Replace a link that was open and has died, if nobody is sending."""
        if self.last_used and self._world.now() - self.last_used > QUIET_S:
            with suppress(Exception):  # the next send will find out, and say so
                self.warm(WARM_S)

    def _freshen(self) -> None:
        """Read what came in while all was quiet; if that was a farewell, let go of the link."""
        if not self._is_alive():
            self.drop_link()

    def _is_alive(self) -> bool:
        return upkeep.is_alive(self._handler)

    def break_off(self) -> None:
        """Who waits for the peer need not any longer."""
        upkeep.break_off(self._handler)

    def drop_link(self) -> None:
        """Forget the link at once and close it in the background."""
        handler: Any = self._handler
        self._handler = None
        self._running = False
        if handler is not None and not self._world.start("link close", upkeep.close, handler):
            upkeep.break_off(handler)

    def _close_handler(self) -> None:
        handler: Any = self._handler
        self._handler = None
        self._running = False
        if handler is not None:
            upkeep.close(handler)


S = TypeVar("S", bound=SharedSender)


def adopt(
    sender: ServiceBusSender,
    kind: type[S],
    world: World,
    classifier: Classifier = classify,
) -> S:
    """Turn a sender that the SDK made into one of ours."""
    made = become(sender, kind)
    made._amqp_transport = IdentifyingTransport  # type: ignore[assignment]  # it is of this kind
    made._turn = Lock()
    made._world = world
    made._judge = Judge(classifier)
    made.last_used = 0.0
    made._last_failure = None
    made._open_within = None
    return made


def plain_sender(
    client: ServiceBusClient, path: str, world: World, classifier: Classifier = classify
) -> SharedSender:
    """A shared sender that knows of no pairing and does not retry: its user has a better idea."""
    made = ServiceBusClient.get_queue_sender(client, path)
    sender = adopt(made, SharedSender, world, classifier)
    sender._config.retry_total = 0
    return sender


def side_of(client: ServiceBusClient, world: World, classifier: Classifier = classify) -> Side:
    return Side(
        client.fully_qualified_namespace,
        lambda path: plain_sender(client, path, world, classifier),
    )
