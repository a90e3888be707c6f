"""What a connection has to tell whoever owns it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinbus.amqp.performatives import Attach, Error, Open

if TYPE_CHECKING:
    from twinbus.amqp.link_endpoint import Link
    from twinbus.amqp.session import Session


@dataclass(slots=True)
class Opened:
    """The peer's open has arrived."""

    open: Open


@dataclass(slots=True)
class SessionBegun:
    session: Session


@dataclass(slots=True)
class SessionEnded:
    session: Session
    error: Error | None


@dataclass(slots=True)
class LinkAttached:
    """The peer attached: accept or refuse the link if it is the one who asked."""

    link: Link
    attach: Attach


@dataclass(slots=True)
class LinkDetached:
    link: Link
    error: Error | None


@dataclass(slots=True)
class LinkFlow:
    """A sending link has credit, or is asked to drain; a receiving one learns of the peer.

    ``named`` tells whether the frame was about this link, or about its session's windows only.
    """

    link: Link
    named: bool = True


@dataclass(slots=True)
class Delivery:
    """A whole message has arrived. ``payload`` is None where it was larger than allowed."""

    link: Link
    delivery_id: int
    tag: bytes
    message_format: int
    payload: bytes | None
    settled: bool


@dataclass(slots=True)
class Settlement:
    """The receiver says what becomes of a delivery of ours; it waits unless ``settled``."""

    link: Link
    delivery_id: int
    tag: bytes
    state: Any
    settled: bool


@dataclass(slots=True)
class Confirmation:
    """The sender confirms the settlement of deliveries that we received."""

    session: Session
    first: int
    last: int
    state: Any
    settled: bool


@dataclass(slots=True)
class ConnectionClosed:
    """The connection is over. ``error`` is what went wrong, by whoever noticed it."""

    error: Error | None


Event = (
    Opened
    | SessionBegun
    | SessionEnded
    | LinkAttached
    | LinkDetached
    | LinkFlow
    | Delivery
    | Settlement
    | Confirmation
    | ConnectionClosed
)
