"""A client and a server connection joined in memory, as h11 joins its ConnectionPair.

Nothing moves until ``pump`` is called, so a test can look at what either side is about to say.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from twinbus.amqp.connection import AMQP_HEADER, SASL_HEADER, Connection
from twinbus.amqp.decoding import decode
from twinbus.amqp.incoming import Event, LinkAttached, SessionBegun
from twinbus.amqp.link_endpoint import SENDER, Link
from twinbus.amqp.performatives import Source, Target
from twinbus.amqp.session import Session

E = TypeVar("E")


@dataclass
class Frame:
    """One frame as it crossed the wire. ``body`` is None for a heartbeat or a protocol header."""

    channel: int
    kind: int
    body: Any
    payload: bytes
    size: int


def frames(data: bytes) -> list[Frame]:
    """What is in these bytes, protocol headers left out."""
    found = []
    pos = 0
    while pos < len(data):
        if data[pos : pos + 8] in (AMQP_HEADER, SASL_HEADER):
            pos += 8
            continue
        size, offset, kind, channel = struct.unpack_from(">IBBH", data, pos)
        raw = data[pos + offset * 4 : pos + size]
        body, end = decode(raw, 0) if raw else (None, 0)
        found.append(Frame(channel, kind, body, raw[end:], size))
        pos += size
    assert pos == len(data), "the last frame is not whole"
    return found


def bodies(data: bytes) -> list[Any]:
    return [frame.body for frame in frames(data)]


def raw_frame(body: bytes, channel: int = 0, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), 2, kind, channel) + body


def of_kind(events: Iterable[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


class Pair:
    """Both ends. Events gather in ``client_events`` and ``server_events`` in their order."""

    def __init__(
        self,
        *,
        client: dict[str, Any] | None = None,
        server: dict[str, Any] | None = None,
    ) -> None:
        self.client = Connection(
            server=False, container_id="client", hostname="localhost", **(client or {})
        )
        self.server = Connection(server=True, container_id="server", **(server or {}))
        self.client_events: list[Event] = []
        self.server_events: list[Event] = []
        self.client_sent = b""
        self.server_sent = b""

    def opened(self) -> Pair:
        self.client.start()
        self.pump()
        return self

    def pump(self) -> None:
        """Carry bytes both ways until both sides are silent."""
        while self.to_server() or self.to_client():
            pass

    def to_server(self) -> bytes:
        data = self.client.data_to_send()
        self.client_sent += data
        if data:
            self.server_events += self.server.receive(data)
        return data

    def to_client(self) -> bytes:
        data = self.server.data_to_send()
        self.server_sent += data
        if data:
            self.client_events += self.client.receive(data)
        return data

    def inject(self, data: bytes) -> list[Event]:
        """Bytes to the server that the client would never write."""
        events = list(self.server.receive(data))
        self.server_events += events
        return events

    def session(self) -> tuple[Session, Session]:
        ours = self.client.begin()
        self.pump()
        return ours, of_kind(self.server_events, SessionBegun)[-1].session

    def link(
        self,
        session: Session,
        role: bool,
        *,
        name: str = "link",
        max_message_size: int | None = None,
    ) -> tuple[Link, Link]:
        """A link the client asked for in ``role`` and the server accepted."""
        ours = session.attach(name, role, source=Source("queue"), target=Target("queue"))
        self.pump()
        theirs = of_kind(self.server_events, LinkAttached)[-1].link
        theirs.accept(max_message_size=max_message_size)
        self.pump()
        return ours, theirs

    def sender(self, **options: Any) -> tuple[Link, Link]:
        """The client sends; the server has granted plenty."""
        ours, theirs = self.link(self.session()[0], SENDER, **options)
        theirs.grant(100_000)
        self.pump()
        return ours, theirs

    def receiver(self, *, credit: int = 100_000, **options: Any) -> tuple[Link, Link]:
        """The server sends; the client has granted plenty."""
        ours, theirs = self.link(self.session()[0], not SENDER, **options)
        ours.grant(credit)
        self.pump()
        return ours, theirs

    def take(self, kind: type[E]) -> list[E]:
        """The server's events of one kind so far; all of them are forgotten."""
        found = of_kind(self.server_events, kind)
        self.server_events.clear()
        return found

    def take_client(self, kind: type[E]) -> list[E]:
        found = of_kind(self.client_events, kind)
        self.client_events.clear()
        return found
