"""One end of a link: traffic in one direction between two named ends, paced by credit.

What it has to say goes out through its session, which numbers the frames and the deliveries of all
its links. A delivery that comes in frame by frame is put together here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.amqp.incoming import Delivery
from twinbus.amqp.lifecycle import LinkLife, LinkState, LinkStep
from twinbus.amqp.performatives import Attach, Detach, Error, Source, Target
from twinbus.amqp.types import CodecError

if TYPE_CHECKING:
    from twinbus.amqp.session import Session

SENDER, RECEIVER = False, True
MASK = 0xFFFFFFFF  # of counters, which go round


class SessionError(Exception):
    """The peer broke a rule of the session; the session ends with this error."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.error = Error(condition, description)


class Link(LinkLife):
    """One direction of traffic. ``role`` is ours: SENDER sends deliveries, RECEIVER gets them."""

    __slots__ = (
        "_held",
        "_parts",
        "_size",
        "_transfer",
        "attach_size",
        "credit",
        "delivery_count",
        "drain",
        "handle",
        "max_message_size",
        "name",
        "remote",
        "role",
        "session",
    )

    def __init__(self, session: Session, name: str, handle: int, role: bool) -> None:
        super().__init__()
        self.session = session
        self.name = name
        self.handle = handle
        self.role = role
        self.remote: Attach | None = None
        self.attach_size = 0  # what the peer's attach takes
        self.credit = 0
        self.delivery_count = 0
        self.drain = False
        self.max_message_size: int | None = None
        self._transfer: tuple[int, bytes, int, bool] | None = None
        self._parts: list[bytes] | None = []
        self._size = 0
        self._held = 0

    # -- attach and detach

    def accept(
        self,
        *,
        source: Source | None = None,
        target: Target | None = None,
        max_message_size: int | None = None,
        properties: dict[Any, Any] | None = None,
    ) -> None:
        """Answer the peer's attach, echoing its ends where no others are given.

        Nothing happens where the peer, tired of waiting, has left.
        """
        if self.state is not LinkState.ATTACHING:
            return
        assert self.remote is not None
        self.max_message_size = max_message_size
        self.answer(source or self.remote.source, target or self.remote.target, properties)
        self.follow(LinkStep.ATTACH_SENT)

    def refuse(self, error: Error) -> None:
        """Answer the peer's attach with null ends and a detach, which is how AMQP says no."""
        if self.state is LinkState.ATTACHING:
            self.answer(None, None, None)
            self.detach(error)

    def answer(self, source: Any, target: Any, properties: dict[Any, Any] | None) -> None:
        assert self.remote is not None
        attach = Attach(
            name=self.name,
            handle=self.handle,
            role=self.role,
            snd_settle_mode=self.remote.snd_settle_mode,
            rcv_settle_mode=self.remote.rcv_settle_mode,
            source=source,
            target=target,
            initial_delivery_count=0 if self.role == SENDER else None,
            max_message_size=self.max_message_size,
            properties=properties,
        )
        self.session.write(attach)

    def detach(self, error: Error | None = None) -> None:
        """Close the link from this side. Whatever still arrives on it is dropped."""
        if self.state in (LinkState.DETACHING, LinkState.DETACHED):
            return
        self.session.write(Detach(self.handle, closed=True, error=error))
        self.follow(LinkStep.DETACH_SENT)
        self.session.forget_deliveries(self)

    # -- sending

    @property
    def can_send(self) -> bool:
        return self.credit > 0 and self.session.has_room and self.state is LinkState.ATTACHED

    def send(self, payload: bytes, tag: bytes, settled: bool, message_format: int = 0) -> int:
        """Send one message, in as many frames as it takes, and answer its delivery-id."""
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) & MASK
        return self.session.send(self, payload, tag, settled, message_format)

    def finish_drain(self) -> None:
        """Use up the credit that there was nothing to send for, and say so."""
        self.delivery_count = (self.delivery_count + self.credit) & MASK
        self.credit = 0
        self.session.flow(self, drain=True)
        self.drain = False

    # -- receiving

    def grant(self, credit: int, *, drain: bool = False) -> None:
        """Allow the peer this many deliveries from now on."""
        self.credit = credit
        self.session.flow(self, drain=drain)

    def assemble(self, values: list[Any], payload: bytes) -> Delivery | None:
        """Add one frame's payload; the delivery comes out with the last of its frames."""
        count = len(values)
        more = count > 5 and values[5]
        aborted = count > 9 and values[9]
        transfer = self._transfer
        if transfer is None:
            transfer = self._first_frame(values)
            if not more and not aborted:
                return self._whole(transfer, payload)
            self._transfer = transfer
            self._hold(len(transfer[1]))
        elif count > 1 and values[1] is not None and values[1] != transfer[0]:
            raise SessionError("amqp:not-allowed", "a delivery starts within another on its link")
        self._add(transfer, payload, more=more)
        if more and not aborted:
            return None
        parts = self._parts
        self.drop_unfinished()
        if aborted:
            return None
        if count > 4 and values[4]:
            transfer = (*transfer[:3], True)
        return self._whole(transfer, None if parts is None else b"".join(parts))

    def _whole(self, transfer: tuple[int, bytes, int, bool], payload: bytes | None) -> Delivery:
        limit = self.max_message_size
        if limit and payload is not None and len(payload) > limit:
            payload = None
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) & MASK
        delivery_id, tag, message_format, settled = transfer
        return Delivery(self, delivery_id, tag, message_format, payload, settled)

    def _first_frame(self, values: list[Any]) -> tuple[int, bytes, int, bool]:
        count = len(values)
        delivery_id = values[1] if count > 1 else None
        tag = values[2] if count > 2 else None
        if delivery_id is None or tag is None:
            raise SessionError("amqp:invalid-field", "a delivery starts without an id and a tag")
        message_format = (values[3] or 0) if count > 3 else 0
        if type(tag) is not bytes or not are_uints(delivery_id, message_format):
            raise CodecError("a delivery's id, tag or format is not of its type")
        return delivery_id, tag, message_format, bool(values[4] if count > 4 else False)

    def _add(self, transfer: tuple[int, bytes, int, bool], payload: bytes, *, more: bool) -> None:
        self._size += len(payload)
        if self.max_message_size and self._size > self.max_message_size:
            self._parts = None  # too large: what is still to come of it is read and not kept
            self._hold(len(transfer[1]) - self._held)
        if payload and self._parts is not None:
            self._parts.append(payload)
            if more:
                self._hold(len(payload))

    def _hold(self, count: int) -> None:
        self._held += count
        self.session.hold(count)

    def drop_unfinished(self) -> None:
        """Forget the delivery under way, if there is one."""
        self._transfer, self._parts, self._size = None, [], 0
        if self._held:
            self._hold(-self._held)


def are_uints(one: Any, other: Any) -> bool:
    return type(one) is int and type(other) is int and 0 <= one <= MASK and 0 <= other <= MASK
