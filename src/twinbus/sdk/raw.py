"""The SDK's own connections, carrying encoded messages instead of message objects.

The SDK does what it is good at: TLS, WebSockets, tokens, links, translating errors. What it decodes
it decodes with a loss (its decoder forgets AMQP types) and slowly; so a receiver here hands out the
bytes of a message as they came, and a sender takes bytes.

A receiver asks for what is there *now*: credit and drain in one flow, which the broker answers with
what it has and no waiting. No credit is left behind, so no message is ever locked into the buffer
of somebody who is not looking. Only ``watch`` leaves credit of one, and waits.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from azure.servicebus import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from twinbus.amqp.batches import BATCH_FORMAT, batch_of
from twinbus.sdk import upkeep
from twinbus.sdk.privates import (
    TYPE,
    VALUE,
    AMQPTypes,
    BaseHandler,
    ConnectionState,
    LinkState,
    SenderLink,
    SessionTransferState,
    create_authentication,
    mgmt_handlers,
)

# What opening a link, or one request, may take.
OPEN_S: Final = 10.0
REQUEST_S: Final = 20.0
SEND_S: Final = 30.0
# A broker that has nothing answers a drain at once; this is for one that has hung.
DRAIN_S: Final = 10.0
# The broker is asked to send something at least this often. If it does not, the connection is lost
# and nobody told us: a machine that lost its power, a firewall that forgot us.
IDLE_S: Final = 40.0
# Tokens in one settlement. A token takes 16 bytes of a frame.
SETTLED_AT_ONCE: Final = 1000

T = TypeVar("T")
_TOO_LONG: Final = "Opening the link took too long."
_TOKEN_SIZE: Final = 16


class RawDelivery(NamedTuple):
    """A message under lock."""

    number: int  # on its link, for settling there
    tag: bytes
    message: bytes

    @property
    def lock_token(self) -> UUID:
        """Of a tag that is no token, one by which nothing can be settled."""
        return UUID(bytes_le=self.tag.ljust(_TOKEN_SIZE, b"\0")[:_TOKEN_SIZE])


class _Raw(NamedTuple):
    """What the SDK takes for a message: bytes that are sent as they are."""

    encoded: bytes
    format: int


def _adopt(handler: BaseHandler, kind: type[T]) -> T:
    handler._config.retry_total = 0  # whoever calls has a better idea
    return upkeep.become(handler, kind)


class _Unremembered(set[bytes]):
    """The tags that a link of the SDK's has received, so that it settles no other. It forgets one
    when it is settled there; what is settled by token it would keep for as long as it lives."""

    def add(self, tag: bytes) -> None:
        """Nothing is kept."""

    def remove(self, tag: bytes) -> None:
        """There is nothing to forget."""

    def __contains__(self, tag: object) -> bool:
        return True


class _RawHandler(BaseHandler):
    """What receivers and senders share: opening without the SDK's pauses, and health."""

    _create_handler: Callable[[Any], None]  # the SDK's, of a receiver or a sender
    _handler: Any
    _opening: Future[None] | None = None

    def _open(self, timeout: float | None = None) -> None:
        if self._running:
            return
        ends = time.monotonic() + (timeout or OPEN_S)
        if self._handler is not None:
            self._close_handler()
        self._create_handler(create_authentication(self))
        handler = self._handler
        # The SDK's thread that reads now and then would take messages from under our hands.
        handler._keep_alive_interval = 0
        handler._idle_timeout = IDLE_S
        try:
            self._connect(handler, ends)
            while not handler.client_ready():
                if time.monotonic() > ends:
                    raise OperationTimeoutError(message=_TOO_LONG)
            # The broker knows now how often to send something. The SDK would not count that: an
            # empty frame is none to it, and it would close a connection that is merely quiet.
            handler._connection._idle_timeout = None
            self._opened()
            self._running = True
        except BaseException:
            self._close_handler()
            raise

    def _connect(self, handler: Any, ends: float) -> None:
        """The SDK waits for ever for the first words of a peer that took the connection. So that is
        done in a thread, on which we give up in time; a link has no more than one such thread."""
        if self._opening is None or self._opening.done():
            self._opening = upkeep.opening(handler.open, handler.close)
            try:
                self._opening.result(max(0.0, ends - time.monotonic()))
            except FutureTimeoutError:
                upkeep.break_off(handler)
            else:
                return
        raise OperationTimeoutError(message=_TOO_LONG)

    def _opened(self) -> None:
        """The link is there."""

    def ready(self) -> None:
        """Open, or open again if the link has died since it was last used."""
        if self._running and not upkeep.is_alive(self._handler):
            self._close_handler()
        if not self._running:
            self._do_retryable_operation(
                self._open, timeout=OPEN_S, operation_requires_timeout=True
            )

    def fileno(self) -> int:
        """The socket, for select."""
        number: int = upkeep.socket_of(self._handler).fileno()
        return number

    def _close_handler(self) -> None:
        handler = self._handler
        self._handler = None
        self._running = False
        if handler is not None:
            upkeep.close(handler)

    def _guarded(self, act: Callable[..., Any], *args: Any) -> Any:
        """Do it; what goes wrong is raised as the SDK's own error, and the link is let go of."""
        try:
            return act(*args)
        except ServiceBusError:
            self._close_handler()
            raise
        except Exception as error:
            self._close_handler()
            raise self._handle_exception(error) from error


class RawReceiver(_RawHandler, ServiceBusReceiver):  # type: ignore[misc]  # the SDK's own mix
    """Receives encoded messages under lock, and settles by lock token. Made by ``receiver``."""

    _deliveries: list[RawDelivery]
    _parts: bytearray
    _drained: bool
    _heard_at: float

    def _opened(self) -> None:
        link = self._handler._link
        self._deliveries, self._parts, self._drained = [], bytearray(), False
        link._incoming_transfer = self._transferred
        link._incoming_flow = self._flowed
        link._received_delivery_tags = _Unremembered()

    def _transferred(self, frame: Any) -> None:
        """A transfer frame: (handle, delivery-id, tag, format, settled, more, ... payload)."""
        link = self._handler._link
        if frame[1] is not None:
            self._first = frame
        payload = frame[11]
        if frame[5] or self._parts:
            self._parts += payload
        if frame[5]:
            return
        link.current_link_credit -= 1
        link.delivery_count += 1
        message = bytes(self._parts) if self._parts else bytes(payload)
        self._parts = bytearray()
        self._deliveries.append(RawDelivery(self._first[1], bytes(self._first[2]), message))

    def _flowed(self, frame: Any) -> None:
        """A flow frame: (..., handle 4, delivery-count 5, credit 6, available 7, drain 8)."""
        if frame[4] is None or frame[6]:
            return  # of the session, or not an answer to a drain
        self._drained = True
        if frame[5] is not None:
            self._handler._link.delivery_count = frame[5]
            self._handler._link.current_link_credit = 0

    # ------------------------------------------------------------ receiving

    def take(self, count: int) -> list[RawDelivery]:
        """Up to ``count`` messages of those that are ready now. Does not wait for any."""
        self.ready()
        return list(self._guarded(self._take, count))

    def _take(self, count: int) -> list[RawDelivery]:
        self._ask(count, drain=True)
        self._read_until(lambda: self._drained or len(self._deliveries) >= count)
        taken, self._deliveries = self._deliveries, []
        return taken

    def ask(self, count: int) -> None:
        """The first half of ``take``, for those who ask several queues at once."""
        self.ready()
        self._guarded(self._ask, count)

    def answer(self, count: int) -> list[RawDelivery]:
        """The second half of ``take``."""
        self._guarded(self._read_until, lambda: self._drained or len(self._deliveries) >= count)
        taken, self._deliveries = self._deliveries, []
        return taken

    def _ask(self, count: int, *, drain: bool = True) -> None:
        self._handler.auth_complete()  # renews the token when it is due
        self._drained = False
        # A drain of no credit need not be answered, unless an echo is asked for.
        self._handler._link.flow(link_credit=count, drain=drain, echo=drain and not count)

    def _read_until(self, done: Callable[[], bool], within_s: float = DRAIN_S) -> None:
        ends = time.monotonic() + within_s
        while not done():
            self._read()
            if time.monotonic() > ends:
                raise OperationTimeoutError(message="The broker did not answer a receive in time.")

    def _read(self) -> None:
        """One frame, or the fifth of a second in which none came."""
        self._handler._connection.listen(wait=False)
        if self._handler._connection.state != ConnectionState.OPENED:
            raise ServiceBusConnectionError(message="The connection was closed.")
        if self._handler._link.get_state() != LinkState.ATTACHED:
            raise ServiceBusConnectionError(message="The link was detached.")

    # ------------------------------------------------------------ waiting

    def watch(self) -> None:
        """Leave credit for one message: the long poll."""
        self.ready()
        self._heard_at = time.monotonic()
        self._guarded(lambda: self._ask(1, drain=False))

    def heard(self) -> bool:
        """Whether a message has come since ``watch``. Reads what is there, without waiting."""
        return bool(self._guarded(self._heard))

    def _heard(self) -> bool:
        while upkeep.has_news(self._handler):
            self._read()
            self._heard_at = time.monotonic()
        if time.monotonic() - self._heard_at > IDLE_S:
            raise ServiceBusConnectionError(message=f"Nothing was heard for {IDLE_S:g} seconds.")
        self._handler.auth_complete()
        # Not for a frame, but for the SDK to say that we are still there, if it is time to.
        self._handler._connection._get_remote_timeout(time.time())
        return bool(self._deliveries)

    def let_go(self) -> int:
        """End the watch: credit taken back, and what came given back to its place in the queue.

        When this returns, the broker has done so: it answers the drain after it has seen the
        release, and whoever receives next finds the queue in order.
        """
        if not self._running:
            return 0
        return int(self._guarded(self._let_go))

    def _let_go(self) -> int:
        self._ask(0)
        self._read_until(lambda: self._drained)
        released = 0
        while self._deliveries:
            for each in self._deliveries:
                self._handler.settle_messages(each.number, each.tag, "released")
                released += 1
            self._deliveries = []
            self._ask(0)
            self._read_until(lambda: self._drained)
        return released

    # ------------------------------------------------------------ settling, by token

    def complete(self, tokens: Sequence[UUID]) -> list[UUID]:
        """Settle, wherever these were received. Answers those whose lock was lost."""
        return self._settle(tokens, {"disposition-status": _text("completed")})

    def abandon(self, tokens: Sequence[UUID]) -> list[UUID]:
        """Give back to the queue. Answers those whose lock was lost."""
        return self._settle(tokens, {"disposition-status": _text("abandoned")})

    def dead_letter(self, tokens: Sequence[UUID], reason: str, description: str) -> list[UUID]:
        """Set aside, with a reason. Answers those whose lock was lost."""
        request = {
            "disposition-status": _text("suspended"),
            "deadletter-reason": _text(reason),
            "deadletter-description": _text(description),
        }
        return self._settle(tokens, request)

    def renew(self, tokens: Sequence[UUID]) -> list[UUID]:
        """Start the locks anew. Answers those that were lost."""
        return self._by_token(b"com.microsoft:renew-lock", tokens, {})

    def _settle(self, tokens: Sequence[UUID], request: dict[str, Any]) -> list[UUID]:
        return self._by_token(b"com.microsoft:update-disposition", tokens, request)

    def _by_token(
        self, operation: bytes, tokens: Sequence[UUID], request: dict[str, Any]
    ) -> list[UUID]:
        lost: list[UUID] = []
        for start in range(0, len(tokens), SETTLED_AT_ONCE):
            lost += self._at_once(operation, tokens[start : start + SETTLED_AT_ONCE], request)
        return lost

    def _at_once(
        self, operation: bytes, tokens: Sequence[UUID], request: dict[str, Any]
    ) -> list[UUID]:
        """The broker does all or none, so one lost lock among many is looked for by halving."""
        array = {TYPE: AMQPTypes.array, VALUE: [{TYPE: AMQPTypes.uuid, VALUE: t} for t in tokens]}
        try:
            self._request(operation, {**request, "lock-tokens": array})
        except (MessageLockLostError, MessageNotFoundError):
            if len(tokens) == 1:
                return list(tokens)
            half = len(tokens) // 2
            first = self._at_once(operation, tokens[:half], request)
            return first + self._at_once(operation, tokens[half:], request)
        return []

    # ------------------------------------------------------------ looking

    def peek(self, count: int, from_number: int = 1) -> list[bytes]:
        """Messages in sequence order, locked or not; nothing is locked."""
        answer = self._request(
            b"com.microsoft:peek-message",
            {
                "from-sequence-number": {TYPE: AMQPTypes.long, VALUE: from_number},
                "message-count": count,
            },
        )
        if answer is None:
            return []
        return [bytes(each[b"message"]) for each in answer[b"messages"]]

    def _request(self, operation: bytes, body: dict[str, Any]) -> Any:
        self.ready()
        try:
            return self._mgmt_request_response_with_retry(
                operation, body, _answer_of, timeout=REQUEST_S
            )
        finally:
            self._forget_answers()

    def _forget_answers(self) -> None:
        for each in () if self._handler is None else self._handler._mgmt_links.values():
            each._mgmt_link._response_link._received_delivery_tags.clear()


def _answer_of(status: int, message: Any, description: Any, amqp_transport: Any) -> Any:
    """The body of an answer; None for "there is nothing"."""
    if status == 204:
        return None
    return mgmt_handlers.default(status, message, description, amqp_transport)


def _text(value: str) -> dict[str, Any]:
    return {TYPE: AMQPTypes.string, VALUE: value}


class _RawLink(SenderLink):
    """The SDK's sending link; it does not encode what is encoded."""

    def _outgoing_transfer(self, delivery: Any) -> bool:
        count = self.delivery_count + 1
        delivery.frame = {
            "handle": self.handle,
            "delivery_tag": struct.pack(">I", count & 0xFFFFFFFF),
            "message_format": delivery.message.format,
            "settled": False,
            "more": False,
            "rcv_settle_mode": None,
            "state": None,
            "resume": None,
            "aborted": None,
            "batchable": None,
            "payload": delivery.message.encoded,
        }
        self._session._outgoing_transfer(delivery, None)
        if delivery.transfer_state == SessionTransferState.OKAY:
            self.delivery_count = count
            self.current_link_credit -= 1
            delivery.sent = True
        return False


class RawSender(_RawHandler, ServiceBusSender):  # type: ignore[misc]  # the SDK's own mix
    """Sends encoded messages. Made by ``sender``."""

    def _opened(self) -> None:
        self._handler._link.__class__ = _RawLink

    @property
    def limit(self) -> int:
        """The size of the largest transfer that the entity takes."""
        return int(self._handler._link.remote_max_message_size)

    def send(self, messages: Sequence[bytes]) -> None:
        """Send all in one transfer, which the broker takes whole or not at all."""
        if len(messages) == 1:
            self._send_raw(_Raw(messages[0], 0))
        else:
            self._send_raw(_Raw(batch_of(messages), BATCH_FORMAT))

    def _send_raw(self, message: _Raw) -> None:
        self.ready()
        self._guarded(lambda: self._handler._send_message_impl(message, timeout=SEND_S))


def receiver(client: ServiceBusClient, queue: str, **kwargs: Any) -> RawReceiver:
    """A receiver of the queue (or ``topic/Subscriptions/name``, or a dead-letter queue)."""
    return _adopt(client.get_queue_receiver(queue, **kwargs), RawReceiver)


def sender(client: ServiceBusClient, path: str) -> RawSender:
    """A sender to the queue or topic."""
    return _adopt(client.get_queue_sender(path), RawSender)
