"""Sessions: who may send how much, and which delivery is which.

A session numbers the frames in each direction and the deliveries that its links carry. It touches
no socket: frames go out through the connection, events come back from ``handle``.

Lenient on purpose: a peer may exceed its credit or miscount its frames (Service Bus's Python SDK
does both). What a peer can make us hold is bounded elsewhere, by message size and by the reader
that stops reading.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, Protocol

from twinbus.amqp.incoming import (
    Confirmation,
    Delivery,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    Settlement,
)
from twinbus.amqp.lifecycle import LinkState, LinkStep
from twinbus.amqp.link_endpoint import MASK, RECEIVER, SENDER, Link, SessionError, are_uints
from twinbus.amqp.performatives import (
    Attach,
    Begin,
    Composite,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Source,
    Target,
    encode_disposition,
    encode_transfer,
)
from twinbus.amqp.types import CodecError
from twinbus.budget import MAX_UNFINISHED, Budget

WINDOW = 65_536
HANDLE_MAX = 1_023
# What a transfer takes of a frame besides its payload: the frame's header, and the performative
# with the longest tag there may be.
TRANSFER_OVERHEAD = 8 + 64


class FrameWriter(Protocol):
    """What a session needs of its connection."""

    peer_max_frame: int
    budget: Budget

    def write_frame(self, channel: int, body: bytes) -> None: ...


class _Silence:
    """The writer of a session that is over: what it still has to say, nobody waits for."""

    peer_max_frame = 512

    def __init__(self) -> None:
        self.budget = Budget()

    def write_frame(self, channel: int, body: bytes) -> None:
        pass


class Session:
    """One session of a connection, in either role."""

    def __init__(self, writer: FrameWriter, channel: int) -> None:
        self._writer: FrameWriter = writer
        self.channel = channel
        self.remote_channel: int | None = None
        self.begun = False
        self.ended = False
        self._next_outgoing_id = 0
        self._next_delivery_id = 0
        self._next_incoming_id = 0
        self._remote_window = WINDOW
        self._unannounced = 0
        self._unfinished = 0
        self.attached = 0  # bytes of the attaches of links that are there
        self._waiting: deque[bytes] = deque()
        self._links: dict[int, Link] = {}
        self._by_remote: dict[int, Link] = {}
        self._unsettled: dict[int, tuple[Link, bytes]] = {}
        self._pending: tuple[bool, int, int, bytes] | None = None

    # -- life

    def begin(self, remote_channel: int | None = None) -> None:
        self.write(
            Begin(
                remote_channel=remote_channel,
                next_outgoing_id=0,
                incoming_window=WINDOW,
                outgoing_window=WINDOW,
                handle_max=HANDLE_MAX,
            )
        )
        self.begun = True

    def on_begin(self, begin: Begin, remote_channel: int) -> None:
        self.remote_channel = remote_channel
        self._next_incoming_id = begin.next_outgoing_id
        self._remote_window = max(0, begin.incoming_window - self._next_outgoing_id)

    def end(self, error: Error | None = None) -> None:
        if not self.ended:
            self.write(End(error))
            self.ended = True
            self.silence()

    def silence(self) -> None:
        """Write nothing from now on: what goes out after an end or a close breaks the protocol."""
        self._writer.budget.unfinished -= self._unfinished
        self._unfinished = 0
        self._take_waiting()
        self._writer = _Silence()
        self._remote_window = 0

    @property
    def links(self) -> list[Link]:
        return list(self._links.values())

    @property
    def has_room(self) -> bool:
        """Whether the peer's window takes another frame now."""
        return self._remote_window > 0 and not self._waiting

    # -- attach, both ways

    def attach(
        self,
        name: str,
        role: bool,
        *,
        source: Source,
        target: Target,
        snd_settle_mode: int = 0,
        rcv_settle_mode: int = 0,
        max_message_size: int | None = None,
        properties: dict[Any, Any] | None = None,
    ) -> Link:
        """Ask the peer for a link. LinkAttached tells its answer."""
        link = self._new_link(name, role)
        link.max_message_size = max_message_size
        self.write(
            Attach(
                name=name,
                handle=link.handle,
                role=role,
                snd_settle_mode=snd_settle_mode,
                rcv_settle_mode=rcv_settle_mode,
                source=source,
                target=target,
                initial_delivery_count=0 if role == SENDER else None,
                max_message_size=max_message_size,
                properties=properties,
            )
        )
        return link

    def _new_link(self, name: str, role: bool) -> Link:
        for handle in range(HANDLE_MAX + 1):
            if handle not in self._links:
                link = self._links[handle] = Link(self, name, handle, role)
                return link
        raise SessionError(
            "amqp:resource-limit-exceeded", f"a session has at most {HANDLE_MAX + 1} links"
        )

    def _on_attach(self, attach: Attach, size: int) -> list[Event]:
        if attach.handle in self._by_remote:
            raise SessionError("amqp:session:handle-in-use", f"handle {attach.handle} is in use")
        if attach.handle > HANDLE_MAX:
            raise SessionError("amqp:not-allowed", f"handle {attach.handle} is over {HANDLE_MAX}")
        link = self._find_asked(attach)
        if link is None:
            link = self._new_link(attach.name, not attach.role)
        else:
            link.follow(LinkStep.ATTACH_CAME)
        link.remote = attach
        link.attach_size = size
        self._count_attached(size)
        link.delivery_count = attach.initial_delivery_count or 0 if link.role == RECEIVER else 0
        self._by_remote[attach.handle] = link
        return [] if link.state is LinkState.DETACHING else [LinkAttached(link, attach)]

    def _find_asked(self, attach: Attach) -> Link | None:
        """The link of ours that this attach answers, if we were the one to ask.

        We may have detached it meanwhile: the answer is its own all the same.
        """
        for link in self._links.values():
            if link.remote is None and link.name == attach.name and link.role != attach.role:
                return link
        return None

    def _on_detach(self, detach: Detach) -> list[Event]:
        link = self._by_remote.pop(detach.handle, None)
        if link is None:
            raise SessionError("amqp:session:unattached-handle", f"handle {detach.handle} is free")
        known = link.state is not LinkState.DETACHING
        if link.state is LinkState.ATTACHING:
            link.answer(None, None, None)  # a detach of ours needs an attach of ours before it
        if known:
            self.write(Detach(link.handle, closed=True))
        link.follow(LinkStep.DETACH_CAME)
        link.drop_unfinished()
        self._links.pop(link.handle, None)
        self._count_attached(-link.attach_size)
        self.forget_deliveries(link)
        return [LinkDetached(link, detach.error)] if known or detach.error else []

    def _count_attached(self, size: int) -> None:
        self.attached += size
        self._writer.budget.attached += size

    def forget_deliveries(self, link: Link) -> None:
        gone = [key for key, (owner, _) in self._unsettled.items() if owner is link]
        for key in gone:
            del self._unsettled[key]

    # -- flow

    def flow(self, link: Link | None = None, *, drain: bool = False) -> None:
        """Tell the peer our windows and, for a link, its credit."""
        self._unannounced = 0
        flow = Flow(
            next_incoming_id=self._next_incoming_id,
            incoming_window=WINDOW,
            next_outgoing_id=self._next_outgoing_id,
            outgoing_window=WINDOW,
        )
        if link is not None:
            flow = replace(
                flow,
                handle=link.handle,
                delivery_count=link.delivery_count,
                link_credit=link.credit,
                available=0 if link.role == SENDER else None,
                drain=drain,
            )
        self.write(flow)

    def on_flow(self, values: list[Any]) -> list[Event]:
        flow = Flow.from_fields(values)
        assert isinstance(flow, Flow)
        seen = flow.next_incoming_id or 0
        in_flight = (self._next_outgoing_id - seen) & MASK
        self._remote_window = max(0, flow.incoming_window - in_flight)
        self._flush_waiting()
        if flow.handle is None:
            if flow.echo:
                self.flow()
            return [
                LinkFlow(link, named=False) for link in self._links.values() if link.role == SENDER
            ]
        link = self._by_remote.get(flow.handle)
        if link is None:
            raise SessionError("amqp:session:unattached-handle", f"handle {flow.handle} is free")
        self._apply_link_flow(link, flow)
        if flow.echo and link.state is LinkState.ATTACHED:
            self.flow(link)
        return [LinkFlow(link)]

    @staticmethod
    def _apply_link_flow(link: Link, flow: Flow) -> None:
        if link.role == RECEIVER:
            if flow.delivery_count is not None:
                used = (flow.delivery_count - link.delivery_count) & MASK
                link.delivery_count = flow.delivery_count
                link.credit = max(0, link.credit - used) if used < 1 << 31 else link.credit
            return
        limit = ((flow.delivery_count or 0) + (flow.link_credit or 0)) & MASK
        credit = (limit - link.delivery_count) & MASK
        link.credit = credit if credit < 1 << 31 else 0
        link.drain = flow.drain

    # -- transfers

    def send(
        self, link: Link, payload: bytes, tag: bytes, settled: bool, message_format: int
    ) -> int:
        delivery_id = self._next_delivery_id
        self._next_delivery_id = (delivery_id + 1) & MASK
        if not settled:
            self._unsettled[delivery_id] = (link, tag)
        room = self._writer.peer_max_frame - TRANSFER_OVERHEAD
        if len(payload) <= room:
            head = encode_transfer(link.handle, delivery_id, tag, message_format, settled, False)
            self._transmit(head + payload)
            return delivery_id
        for start in range(0, len(payload), room):
            more = start + room < len(payload)
            first_id = delivery_id if start == 0 else None
            head = encode_transfer(link.handle, first_id, tag, message_format, settled, more)
            self._transmit(head + payload[start : start + room])
        return delivery_id

    def _transmit(self, body: bytes) -> None:
        if self._remote_window <= 0 or self._waiting:
            self._waiting.append(body)
            self._writer.budget.windowed += len(body)
            return
        self._remote_window -= 1
        self._next_outgoing_id = (self._next_outgoing_id + 1) & MASK
        self._writer.write_frame(self.channel, body)

    def _flush_waiting(self) -> None:
        for body in self._take_waiting():
            self._transmit(body)

    def _take_waiting(self) -> deque[bytes]:
        waiting, self._waiting = self._waiting, deque()
        self._writer.budget.windowed -= sum(map(len, waiting))
        return waiting

    def hold(self, count: int) -> None:
        """Account for what a peer makes us keep with deliveries that it does not finish."""
        self._unfinished += count
        self._writer.budget.unfinished += count
        if count > 0 and self._writer.budget.unfinished > MAX_UNFINISHED:
            raise SessionError(
                "amqp:resource-limit-exceeded",
                f"the unfinished deliveries of a connection may have {MAX_UNFINISHED} bytes",
            )

    def on_transfer(self, values: list[Any], payload: bytes) -> Delivery | None:
        self._next_incoming_id = (self._next_incoming_id + 1) & MASK
        self._unannounced += 1
        if self._unannounced >= WINDOW // 2:
            self.flow()
        try:
            link = self._by_remote.get(values[0])
        except TypeError as error:
            raise CodecError("a transfer's handle is not a number") from error
        if link is None:
            raise SessionError("amqp:session:unattached-handle", f"handle {values[0]} is free")
        if link.role == SENDER:
            raise SessionError("amqp:not-allowed", "a transfer came in on a link that sends")
        if link.state is not LinkState.ATTACHED:
            return None
        return link.assemble(values, payload)

    # -- dispositions

    def settle(self, role: bool, delivery_id: int, state: bytes) -> None:
        """Settle one delivery. Neighbours with the same outcome go out as one frame.

        ``role`` is ours: RECEIVER for a delivery that came in, SENDER for one that went out.
        """
        if role == SENDER:
            self._unsettled.pop(delivery_id, None)
        pending = self._pending
        if pending is not None:
            known_role, first, last, known_state = pending
            if last + 1 == delivery_id and known_role == role and known_state == state:
                self._pending = (role, first, delivery_id, state)
                return
            self.flush()
        self._pending = (role, delivery_id, delivery_id, state)

    def dispose(self, first: int, last: int, state: Any, *, settled: bool) -> None:
        """As a receiver, tell the outcome of deliveries that came in."""
        self.write(Disposition(RECEIVER, first, last, settled, state))

    def flush(self) -> None:
        """Write the settlements that were gathered."""
        if self._pending is not None:
            role, first, last, state = self._pending
            self._pending = None
            frame = encode_disposition(role, first, last, True, state)
            self._writer.write_frame(self.channel, frame)

    def on_disposition(self, values: list[Any]) -> list[Event]:
        count = len(values)
        if count < 2 or type(values[0]) is not bool:
            raise CodecError("a disposition names no role or no delivery")
        first = values[1]
        last = values[2] if count > 2 and values[2] is not None else first
        if not are_uints(first, last):
            raise CodecError("a disposition's first or last delivery is not of its type")
        settled = bool(count > 3 and values[3])
        state = values[4] if count > 4 else None
        if values[0] == SENDER:
            return [Confirmation(self, first, last, state, settled)]
        events: list[Event] = []
        for delivery_id in self._named(first, last):
            link, tag = self._unsettled[delivery_id]
            if settled:
                del self._unsettled[delivery_id]
            events.append(Settlement(link, delivery_id, tag, state, settled))
        return events

    def _named(self, first: int, last: int) -> list[int]:
        """The deliveries of ours in a range that the peer chose, however wide it is."""
        if first == last:
            return [first] if first in self._unsettled else []
        span = (last - first) & MASK
        if span <= len(self._unsettled):
            wanted = ((first + step) & MASK for step in range(span + 1))
            return [key for key in wanted if key in self._unsettled]
        return [key for key in self._unsettled if (key - first) & MASK <= span]

    # -- frames

    def write(self, performative: Composite) -> None:
        """Write a frame behind the settlements that came before it."""
        self.flush()
        self._writer.write_frame(self.channel, performative.encoded())

    def handle(self, performative: Any, size: int) -> list[Event]:
        """Take in a frame of this size that is neither transfer nor disposition nor flow."""
        if isinstance(performative, Attach):
            return self._on_attach(performative, size)
        if isinstance(performative, Detach):
            return self._on_detach(performative)
        raise SessionError("amqp:not-allowed", f"{type(performative).__name__} is out of place")
