"""One client of a namespace: Service Bus's dialect of AMQP.

AMQP's events come in, and mean something here: a link to ``orders`` is a sender or a receiver of
that queue, a link to ``$cbs`` takes tokens, one to ``orders/$management`` takes requests. Pure like
everything below it: the server gives it bytes and the time, and takes the bytes it has to send.

Errors of the client's own making are answered to the client, as the rejection of a message, the
refusal of a link or the status of a request; the text says what to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from twinbus.amqp.batches import BATCH_FORMAT, messages_of
from twinbus.amqp.connection import Connection
from twinbus.amqp.incoming import (
    ConnectionClosed,
    Delivery,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    Opened,
    SessionEnded,
    Settlement,
)
from twinbus.amqp.lifecycle import LinkState, Phase
from twinbus.amqp.link_endpoint import RECEIVER, SENDER, Link
from twinbus.amqp.message import Message, Properties, typed_properties
from twinbus.amqp.performatives import (
    ACCEPTED,
    Accepted,
    Error,
    Modified,
    Rejected,
    Released,
    Source,
)
from twinbus.amqp.sections import body_value
from twinbus.amqp.types import CodecError, Described, Symbol, encode
from twinbus.auth.access_rules import Claim
from twinbus.broker.burial import Burial
from twinbus.broker.cbs import CBS, Cbs
from twinbus.broker.client_links import (
    NO_FILTER,
    SESSION_FILTER,
    Context,
    Producer,
    Receiver,
    RequestLink,
    error_of,
    path_of,
    session_filter,
)
from twinbus.broker.delivery import ticks
from twinbus.broker.entry import Entry
from twinbus.broker.management import MANAGEMENT, serve
from twinbus.broker.namespace import MAX_MESSAGE_BYTES, Namespace
from twinbus.broker.queue import Done
from twinbus.broker.refusals import (
    EntityDisabledError,
    IdleLinkError,
    MessageError,
    NotAllowedError,
    RefusalError,
    RequestError,
    TimedOutError,
    TooLargeError,
)
from twinbus.broker.replies import Replies
from twinbus.broker.sessions import SessionLock, SessionQueue, Waiter
from twinbus.budget import MAX_ATTACHED, Budget
from twinbus.ledger import Operation

log = logging.getLogger("twinbus.broker")

IDLE_TIMEOUT_S = 240.0
SEND_CREDIT = 1_000
REQUEST_CREDIT = 100
LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
ATTACH_TIMEOUT = Symbol("com.microsoft:timeout")
DEAD_LETTER = "com.microsoft:dead-letter"
DEFAULT_ATTACH_TIMEOUT_MS = 60_000
MAX_LINKS = 5_000

_ACCEPTED = encode(ACCEPTED)
_REJECTED = encode(Rejected())


class Client:
    """One connection's conversation with a namespace."""

    def __init__(
        self,
        namespace: Namespace,
        clock: Callable[[], int],
        on_output: Callable[[], None],
        budget: Budget,
    ) -> None:
        self.namespace = namespace
        self.writable = True
        self.starved = False
        self.amqp = Connection(
            server=True,
            container_id=namespace.name,
            idle_timeout_s=IDLE_TIMEOUT_S,
            budget=budget,
        )
        self._clock = clock
        self._on_output = on_output
        self._now_ms = clock()
        self._cbs = Cbs(namespace.directory, clock, budget)
        self._links: dict[Link, Context] = {}
        self._replies = Replies(self.amqp, self._links, budget)
        self._attached = 0

    # -- what the server calls

    @property
    def is_open(self) -> bool:
        return self.amqp.phase is not Phase.CLOSED

    @property
    def is_opened(self) -> bool:
        return self.amqp.phase is Phase.OPEN

    @property
    def link_count(self) -> int:
        return len(self._links)

    def context(self, link: Link) -> Context | None:
        """What a link of this client is for."""
        return self._links.get(link)

    def pass_over(self, event: Delivery) -> None:
        """A fault drops this delivery: grant its credit anew, or the link would run out of it."""
        most = SEND_CREDIT if isinstance(self._links.get(event.link), Producer) else REQUEST_CREDIT
        if event.link.credit < most // 2:
            event.link.grant(most)

    @property
    def links(self) -> list[tuple[Link, Context]]:
        return list(self._links.items())

    def receive(self, data: bytes) -> None:
        self._now_ms = self._clock()  # once for all that these bytes bring
        events, trouble = self.amqp.receive(data), self.namespace.trouble
        if trouble is not None:
            events = trouble.intercept(self, events)
        for event in events:
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event)
        self.namespace.pump(self._now_ms)
        self.touch()

    def touch(self) -> None:
        """There is something to write."""
        self._on_output()

    def data_to_send(self) -> bytes:
        return self.amqp.data_to_send()

    def resume(self) -> None:
        """There is room to write again."""
        self.writable, self.starved = True, False
        for context in list(self._links.values()):
            if isinstance(context, Receiver):
                self.namespace.pump_queue(context.queue, self._clock())
        self.touch()

    def tick(self, now_s: float) -> None:
        closed = self.amqp.tick(now_s)
        if closed is not None:
            self._on_closed(closed)
        self._end_expired(self._clock())
        self.touch()

    def close(self) -> None:
        self.amqp.close()

    def fail(self) -> None:
        self.amqp.close(Error("amqp:internal-error", "The broker failed; see its log."))

    def disconnect(self) -> None:
        """The socket is gone."""
        now_ms = self._clock()
        contexts = list(self._links.values())
        self._links.clear()
        for context in contexts:
            if isinstance(context, Receiver):
                # One that fails must not keep the others from closing: a receiver that is not
                # closed would be delivered to for ever.
                self.namespace.health.attempt("goodbye", context.path, context.close, now_ms)
        self.namespace.pump(now_ms)

    def _end_expired(self, now_ms: int) -> None:
        """Links whose token has expired end, and so do waits for a session that took too long."""
        if not self._links:
            return
        for link, context in list(self._links.items()):
            try:
                self._check_still_good(context, now_ms)
            except RequestError as error:
                self.drop(link, error)

    def _check_still_good(self, context: Context, now_ms: int) -> None:
        if isinstance(context, Producer):
            self._cbs.require(context.path, Claim.SEND)
            self._check_used(context, now_ms)
        elif isinstance(context, Receiver):
            self._cbs.require(context.path, Claim.LISTEN)
            if context.link.credit == 0 and context.waiter is None:
                self._check_used(context, now_ms)
            if context.waiter is not None and now_ms >= context.deadline_ms:
                raise TimedOutError(
                    f"No session of '{context.path}' came free within the time asked for."
                )
        elif context.path != CBS:
            self._cbs.require_any(context.path + MANAGEMENT)

    def _check_used(self, context: Producer | Receiver, now_ms: int) -> None:
        """A link that carries nothing is closed after a while, as Service Bus closes it."""
        idle_ms = self.namespace.idle_link_ms
        if idle_ms and now_ms - context.used_ms > idle_ms:
            raise IdleLinkError(
                f"The link to '{context.path}' is force detached: idle for {idle_ms / 1000:g} s."
            )

    def drop(self, link: Link, error: RequestError) -> None:
        """End a link from this side, with the reason."""
        self._forget(link)
        if link.state is LinkState.ATTACHING:
            link.refuse(error_of(error))
        else:
            link.detach(error_of(error))

    # -- links

    def _on_attached(self, event: LinkAttached) -> None:
        link = event.link
        self._attached += 1
        crowded = self._attached % 100 == 0 and self.amqp.link_count > MAX_LINKS
        if crowded or self.amqp.budget.attached > MAX_ATTACHED:
            text = f"a connection has at most {MAX_LINKS} links, of {MAX_ATTACHED} bytes together"
            self.amqp.close(Error("amqp:resource-limit-exceeded", text))
            return
        path = path_of(event)
        try:
            self._attach(link, path)
        except RefusalError as error:
            log.info("link to '%s/%s' refused: %s", self.namespace.name, path, error)
            self._links.pop(link, None)
            link.refuse(error_of(error))

    def _attach(self, link: Link, path: str) -> None:
        lowered = path.lower()
        if lowered == CBS:
            self._attach_node(link, CBS)
        elif lowered.endswith(MANAGEMENT):
            node = path[: -len(MANAGEMENT)]
            self._cbs.require_any(path)
            self.namespace.directory.resolve(node)
            self._attach_node(link, node)
        elif link.role == RECEIVER:
            self._attach_producer(link, path)
        else:
            self._attach_receiver(link, path)

    def _attach_node(self, link: Link, path: str) -> None:
        self._links[link] = RequestLink(path)
        link.accept(max_message_size=MAX_MESSAGE_BYTES)
        if link.role == RECEIVER:
            link.grant(REQUEST_CREDIT)

    def _attach_producer(self, link: Link, path: str) -> None:
        self._cbs.require(path, Claim.SEND)
        entity = self.namespace.directory.entity(path)
        if not entity.sized.status.may_send:
            raise EntityDisabledError(f"'{path}' is currently disabled for sending.")
        self._links[link] = Producer(entity, path, self._now_ms)
        link.accept(max_message_size=MAX_MESSAGE_BYTES)
        link.grant(SEND_CREDIT)

    def _attach_receiver(self, link: Link, path: str) -> None:
        self._cbs.require(path, Claim.LISTEN)
        entity, queue = self.namespace.directory.resolve(path)
        if not entity.received.status.may_receive:
            raise EntityDisabledError(f"'{path}' is currently disabled for receiving.")
        if entity.received.forward_to is not None and queue is entity.queue:
            raise NotAllowedError(
                f"'{path}' forwards to '{entity.received.forward_to}'; receive from there."
            )
        wanted = session_filter(link)
        if isinstance(queue, SessionQueue) != (wanted is not NO_FILTER):
            hint = "accept a session" if wanted is NO_FILTER else "receive without a session"
            raise NotAllowedError(
                f"It is not possible for '{path}' to be received from this way: {hint}."
            )
        entity.accessed_ms = self._clock()
        receiver = Receiver(self, link, entity, queue, path, self.namespace.books)
        self._links[link] = receiver
        if isinstance(queue, SessionQueue):
            self._accept_session(receiver, queue, wanted)
        else:
            link.accept(max_message_size=MAX_MESSAGE_BYTES)
            queue.add_consumer(receiver)

    def _accept_session(self, receiver: Receiver, queue: SessionQueue, wanted: Any) -> None:
        now_ms = self._clock()
        if isinstance(wanted, str):
            self._start_session(receiver, queue.accept(wanted, receiver, now_ms))
            return
        session = queue.accept_next(receiver, now_ms)
        if session is not None:
            self._start_session(receiver, session)
            return
        assert receiver.link.remote is not None
        asked = (receiver.link.remote.properties or {}).get(ATTACH_TIMEOUT)
        receiver.deadline_ms = now_ms + (
            int(asked) if isinstance(asked, int) else DEFAULT_ATTACH_TIMEOUT_MS
        )
        receiver.waiter = Waiter(receiver, partial(self._start_session, receiver))
        queue.wait(receiver.waiter)

    def _start_session(self, receiver: Receiver, session: SessionLock) -> None:
        link = receiver.link
        receiver.session, receiver.waiter = session, None
        assert link.remote is not None
        assert isinstance(link.remote.source, Source)
        filters = dict(link.remote.source.filter or {})
        asked = filters.get(SESSION_FILTER)
        answer: Any = session.id
        if isinstance(asked, Described):
            answer = Described(asked.descriptor, session.id)
        filters[SESSION_FILTER] = answer
        link.accept(
            source=replace(link.remote.source, filter=filters),
            max_message_size=MAX_MESSAGE_BYTES,
            properties={LOCKED_UNTIL: ticks(session.until_ms)},
        )
        self.touch()

    def _on_detached(self, event: LinkDetached) -> None:
        self._forget(event.link)

    def _forget(self, link: Link) -> None:
        context = self._links.pop(link, None)
        if isinstance(context, Receiver):
            context.close(self._clock())
        elif isinstance(context, RequestLink):
            self._replies.forget(context)

    def _on_session_ended(self, event: SessionEnded) -> None:
        for link in event.session.links:
            self._forget(link)
        if event.error is not None:
            log.info("session of a client of '%s' ended: %s", self.namespace.name, event.error)

    def _on_closed(self, event: ConnectionClosed) -> None:
        if event.error is not None:
            log.info(
                "connection to '%s' closed: %s: %s",
                *(self.namespace.name, event.error.condition, event.error.description),
            )

    def _on_opened(self, event: Opened) -> None:
        log.debug("'%s' opened by %s", self.namespace.name, event.open.container_id)

    def _on_flow(self, event: LinkFlow) -> None:
        context = self._links.get(event.link)
        if isinstance(context, Receiver):
            context.used_ms = self._now_ms
            if event.named:
                context.count_request()
            self.namespace.pump_queue(context.queue, self._clock())
            context.finish_drain()
        elif isinstance(context, RequestLink):
            self._replies.flush(event.link, context)

    # -- messages in

    def _on_delivery(self, event: Delivery) -> None:
        link = event.link
        context = self._links.get(link)
        if isinstance(context, Producer) and link.credit < SEND_CREDIT // 2:
            link.grant(SEND_CREDIT)
        try:
            if isinstance(context, Producer):
                self._on_message(context, event)
            elif isinstance(context, RequestLink):
                self._on_request(context, event)
                # Seldom, and then much: a client may read one frame in each turn of a slow loop.
                if link.credit < REQUEST_CREDIT // 2:
                    link.grant(REQUEST_CREDIT)
        except RefusalError as error:
            self.settle_incoming(event, error)

    def _on_message(self, producer: Producer, event: Delivery) -> None:
        payloads = payloads_of(producer, event)
        event.payload = None  # or the answer would keep it until the disk has the message
        producer.used_ms = self._now_ms
        done = partial(self.settle_incoming, event)
        self.namespace.send(producer.entity, payloads, self._now_ms, done)

    def settle_incoming(self, event: Delivery, error: Exception | None) -> None:
        """The message is stored, or it is not: tell its sender."""
        link = event.link
        if link.state is not LinkState.ATTACHED:
            return
        if event.settled:
            # The sender waits for no answer, so the only way to tell it is to end the link.
            if error is not None:
                link.detach(error_of(error))
        else:
            state = _ACCEPTED if error is None else encode(Rejected(error_of(error)))
            link.session.settle(RECEIVER, event.delivery_id, state)
        self.touch()

    # -- settlements

    def _on_settlement(self, event: Settlement) -> None:
        receiver = self._links.get(event.link)
        if not isinstance(receiver, Receiver):
            return
        receiver.used_ms = self._now_ms
        state = event.state
        try:
            if type(state) is Accepted:
                done: Done = partial(self._confirm, event, _ACCEPTED)
                receiver.queue.complete(event.tag, done)
                self.namespace.books.settled(Operation.COMPLETE, receiver.queue, [event.tag])
            else:
                self._settle(receiver, event)
        except RefusalError as error:
            self._confirm(event, b"", error)

    def _settle(self, receiver: Receiver, event: Settlement) -> None:
        queue, token, state = receiver.queue, event.tag, event.state
        settled = self.namespace.books.settled
        if isinstance(state, Rejected):
            done: Done = partial(self._confirm, event, _REJECTED)
            queue.dead_letter(token, partial(_burial, state.error), done)
            settled(Operation.DEAD_LETTER, queue, [token])
            return
        done = partial(self._confirm, event, b"" if state is None else encode(state))
        if isinstance(state, Modified):
            changes = {str(key): value for key, value in (state.message_annotations or {}).items()}
            if state.undeliverable_here:
                queue.defer(token, done, changes)
                settled(Operation.DEFER, queue, [token])
            else:
                queue.abandon(token, self._clock(), done, changes)
                settled(Operation.ABANDON, queue, [token])
        elif state is None or isinstance(state, Released):
            # Settled without an outcome is not a success: the message goes back.
            queue.release(token, self._clock(), done)

    def _confirm(self, event: Settlement, state: bytes, error: Exception | None) -> None:
        """The settlement is on disk, or it is not: tell the receiver, unless it does not wait."""
        if event.settled or event.link.state is not LinkState.ATTACHED:
            return
        if error is not None:
            state = encode(Rejected(error_of(error)))
        event.link.session.settle(SENDER, event.delivery_id, state)
        self.touch()

    # -- requests

    def _on_request(self, node: RequestLink, event: Delivery) -> None:
        if event.payload is None:
            raise TooLargeError(f"The request to '{node.path}' is too large.")
        try:
            message = Message.parse(event.payload)
            properties = typed_properties(message.bare)
            values = message.application_properties()
            body = body_value(message.bare)
        except CodecError as error:
            raise MessageError(f"The request to '{node.path}' cannot be read: {error}") from error
        reply = partial(self._reply, node.path, properties)
        if node.path == CBS:
            reply(self._cbs.put_token(values, body), None)
        else:
            serve(self.namespace, self._cbs, node.path, values, body, self._clock, reply)
        self.settle_incoming(event, None)

    def _reply(self, path: str, request: Properties, values: dict[str, Any], body: Any) -> None:
        self._replies.send(path, request, values, body)
        self.touch()


_HANDLERS: dict[type[Any], Callable[[Client, Any], None]] = {
    LinkAttached: Client._on_attached,
    LinkDetached: Client._on_detached,
    LinkFlow: Client._on_flow,
    Delivery: Client._on_delivery,
    Settlement: Client._on_settlement,
    SessionEnded: Client._on_session_ended,
    ConnectionClosed: Client._on_closed,
    Opened: Client._on_opened,
}


def payloads_of(producer: Producer, event: Delivery) -> list[bytes]:
    """The messages of a delivery: one, or a batch of them."""
    if event.payload is None:
        raise TooLargeError(
            f"The message for '{producer.path}' is over the limit of {MAX_MESSAGE_BYTES} bytes."
        )
    if event.message_format == BATCH_FORMAT:
        try:
            return messages_of(event.payload)
        except CodecError as error:
            raise MessageError(f"The batch cannot be read: {error}") from error
    return [event.payload]


def _burial(error: Error | None, entry: Entry) -> Burial:
    info = dict(error.info or {}) if error is not None else {}
    reason = info.pop("DeadLetterReason", None)
    text = info.pop("DeadLetterErrorDescription", None)
    if error is not None and error.condition != DEAD_LETTER and reason is None:
        reason, text = error.condition, error.description
    changes = {str(key): value for key, value in info.items()}
    return Burial(entry, reason, text, changes, is_asked=True)
