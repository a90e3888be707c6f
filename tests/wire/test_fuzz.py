"""Hostile bytes against a connection, without sockets.

A valid stream is recorded and damaged in the ways below, INPUTS times a run; noise comes besides.
Whatever comes in, nothing may escape, the connection either goes on working or closes in good
order, and what it holds stays within its limits.

    TWINBUS_FUZZ_SEED=7 pytest tests/wire/test_fuzz.py      other inputs
    TWINBUS_FUZZ_SEED=7 TWINBUS_FUZZ_INPUT=123 pytest ...   that one input again
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from tests.unit.amqp.pair import Pair, frames, of_kind, raw_frame

from twinbus.amqp.connection import AMQP_HEADER, SASL_HEADER, Connection
from twinbus.amqp.decoding import decode
from twinbus.amqp.incoming import (
    Confirmation,
    ConnectionClosed,
    Delivery,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    Opened,
    SessionBegun,
    SessionEnded,
    Settlement,
)
from twinbus.amqp.lifecycle import Phase
from twinbus.amqp.link_endpoint import RECEIVER, SENDER, Link
from twinbus.amqp.message import Message
from twinbus.amqp.performatives import (
    ACCEPTED,
    Attach,
    Begin,
    Close,
    End,
    Error,
    Open,
    Rejected,
    SaslInit,
    Source,
    Target,
)
from twinbus.amqp.types import Array, CodecError, Described, Symbol, UInt, ULong, encode

DAMAGED_INPUTS = 16_000  # a client's stream, damaged
ANSWER_INPUTS = 4_000  # a server's stream, damaged, against a client
NOISE_INPUTS = 4_000  # bytes that never were a stream

SEED = int(os.environ.get("TWINBUS_FUZZ_SEED", "20260727"))
ONLY = os.environ.get("TWINBUS_FUZZ_INPUT")

MAX_FRAME, MAX_MESSAGE = 1_024, 3_000
ACCEPT = ACCEPTED.encoded()
REJECT = Rejected(Error("amqp:decode-error", "no message")).encoded()
INIT = raw_frame(SaslInit("ANONYMOUS").encoded(), kind=1)


# ---------------------------------------------------------------- the two ends


def serving() -> Connection:
    return Connection(server=True, container_id="s", max_frame_size=MAX_FRAME, idle_timeout_s=60.0)


def ask(client: Connection) -> tuple[Link, Link, Link]:
    """All that a client says before it hears a word: two sessions, three links, some credit."""
    client.start()
    session, second = client.begin(), client.begin()
    source, target = Source("q"), Target("q")
    incoming = session.attach("in", SENDER, source=source, target=target)
    outgoing = session.attach(
        "out", RECEIVER, source=source, target=target, max_message_size=MAX_MESSAGE
    )
    refused = second.attach("refused", RECEIVER, source=source, target=target)
    outgoing.grant(4)
    return incoming, outgoing, refused


def asking() -> Connection:
    client = Connection(server=False, container_id="c", max_frame_size=MAX_FRAME)
    ask(client)
    client.data_to_send()
    return client


def serve(event: Event) -> None:
    """Do with an event what a broker does, so that the answers are written too."""
    if isinstance(event, LinkAttached):
        if event.link.name == "refused":
            event.link.refuse(Error("amqp:not-found", "no such queue"))
            return
        event.link.accept(max_message_size=MAX_MESSAGE)
        if event.link.role == RECEIVER:
            event.link.grant(10)
    elif isinstance(event, Delivery):
        try:
            Message.parse(event.payload or b"").annotation_map()
            answer = ACCEPT
        except CodecError:
            answer = REJECT
        if not event.settled:
            event.link.session.settle(RECEIVER, event.delivery_id, answer)
    elif isinstance(event, LinkFlow):
        for _ in range(5):
            if event.link.role == SENDER and event.link.can_send:
                event.link.send(b"\x00\x53\x75\xa0\x02hi" * 100, b"tag", False)
        if event.link.drain:
            event.link.finish_drain()
    elif isinstance(event, Settlement) and not event.settled:
        event.link.session.settle(SENDER, event.delivery_id, ACCEPT)


def recorded() -> tuple[bytes, bytes]:
    """What a client and a server say to each other when all is well."""
    pair = Pair(client={"max_frame_size": MAX_FRAME}, server={"max_frame_size": MAX_FRAME})

    def turn() -> None:
        while pair.to_server() or pair.to_client():
            for event in pair.server_events:
                serve(event)
            pair.server_events.clear()

    incoming, outgoing, refused = ask(pair.client)
    session, second = incoming.session, refused.session
    turn()
    body = b"\x00\x53\x70\xc0\x02\x01\x41" + b"\x00\x53\x72" + encode({Symbol("x-opt"): 5})
    body += b"\x00\x53\x73" + encode(["id", None, "to"]) + b"\x00\x53\x74" + encode({"a": UInt(1)})
    incoming.send(body + b"\x00\x53\x75" + encode(b"small"), b"t1", False)
    incoming.send(body + b"\x00\x53\x75" + encode(b"large" * 400), b"t2", False)
    incoming.send(body + b"\x00\x53\x75" + encode(b"too large" * 400), b"t3", True)
    turn()
    session.dispose(0, 1, ACCEPTED, settled=False)
    session.settle(RECEIVER, 2, ACCEPT)
    outgoing.grant(2, drain=True)
    turn()
    refused.detach()
    outgoing.detach(Error("amqp:link:detach-forced", "bye"))
    turn()
    second.end()
    turn()
    pair.client.close()
    turn()
    return pair.client_sent, pair.server_sent


# ---------------------------------------------------------------- damage


def pieces(stream: bytes) -> list[bytes]:
    """Headers and frames, each on its own."""
    found, pos = [], 0
    while pos < len(stream):
        header = stream[pos : pos + 4] == b"AMQP"
        size = 8 if header else struct.unpack_from(">I", stream, pos)[0]
        found.append(stream[pos : pos + size])
        pos += size
    return found


def flip_bits(random: Random, parts: list[bytes]) -> bytes:
    data = bytearray(b"".join(parts))
    for _ in range(random.choice((1, 1, 2, 5, 20))):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def overwrite(random: Random, parts: list[bytes]) -> bytes:
    data = bytearray(b"".join(parts))
    at, size = random.randrange(len(data)), random.randint(1, 12)
    data[at : at + size] = random.randbytes(size)
    return bytes(data)


def truncate(random: Random, parts: list[bytes]) -> bytes:
    data = b"".join(parts)
    return data[: random.randrange(len(data))]


def cut_out(random: Random, parts: list[bytes]) -> bytes:
    data = b"".join(parts)
    at = random.randrange(len(data))
    return data[:at] + data[at + random.randint(1, 40) :]


def duplicate(random: Random, parts: list[bytes]) -> bytes:
    at = random.randrange(len(parts))
    return b"".join([*parts[:at], *[parts[at]] * random.randint(2, 30), *parts[at + 1 :]])


def leave_out(random: Random, parts: list[bytes]) -> bytes:
    at = random.randrange(len(parts))
    return b"".join(parts[:at] + parts[at + random.randint(1, 3) :])


def splice(random: Random, parts: list[bytes]) -> bytes:
    mixed = list(parts)
    for _ in range(random.randint(1, 4)):
        mixed.insert(random.randrange(len(mixed) + 1), random.choice(parts))
    return b"".join(mixed)


def shuffle(random: Random, parts: list[bytes]) -> bytes:
    head, tail = parts[:5], parts[5:]
    random.shuffle(tail)
    return b"".join(head + tail)


def resize(random: Random, parts: list[bytes]) -> bytes:
    """Another length, offset, type or channel in a frame's head."""
    mixed = list(parts)
    at = random.randrange(len(mixed))
    frame = bytearray(mixed[at])
    where, fmt = random.choice(((0, ">I"), (0, ">I"), (4, ">B"), (5, ">B"), (6, ">H")))
    top = {">I": 2**32 - 1, ">B": 255, ">H": 65_535}[fmt]
    near = len(frame) + random.randint(-9, 9) if fmt == ">I" else random.randint(0, 4)
    struct.pack_into(
        fmt, frame, where, random.choice((0, top, max(0, near), random.randint(0, top)))
    )
    mixed[at] = bytes(frame)
    return b"".join(mixed)


ODD: list[Any] = [
    *(None, True, False, UInt(0), UInt(7), UInt(2**32 - 1), -1, 2**63 - 1, 1.5, float("nan")),
    *("text", "", b"", b"x" * 300, [], {}, [UInt(1)] * 20, {"k": {}}, Array([], 0x40)),
    *(Array([UInt(1)], 0x70), Symbol("s"), Described(ULong(0x9999), []), Error("e"), ACCEPTED),
    *(Rejected(), Source("q"), Open("c"), ULong(2**64 - 1)),
]


def mistype(random: Random, parts: list[bytes]) -> bytes:
    """Fields of other types, other numbers of fields, other descriptors, lengths kept right."""
    mixed = list(parts)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(mixed))
        frame = mixed[at]
        if frame[:4] == b"AMQP" or len(frame) < 12 or frame[8:10] != b"\x00\x53":
            continue
        values, end = decode(frame, 11)
        if not isinstance(values, list):
            continue
        for _ in range(random.randint(1, 2)):
            if values and random.random() < 0.8:
                values[random.randrange(len(values))] = random.choice(ODD)
            elif random.random() < 0.5:
                values.append(random.choice(ODD))
            else:
                del values[random.randrange(len(values) + 1) :]
        code = random.choice((frame[10], frame[10], frame[10], random.randint(0x10, 0x30)))
        body = bytes((0, 0x53, code)) + encode(values) + frame[end:]
        mixed[at] = struct.pack(">I", 8 + len(body)) + frame[4:8] + body
    return b"".join(mixed)


DAMAGES: tuple[Callable[[Random, list[bytes]], bytes], ...] = (
    *(flip_bits, overwrite, truncate, cut_out, duplicate, leave_out, splice, shuffle, resize),
    *(mistype, mistype, mistype),
)


def damaged(random: Random, parts: list[bytes]) -> bytes:
    data = random.choice(DAMAGES)(random, parts)
    return flip_bits(random, [data]) if data and random.random() < 0.1 else data


HELLO = AMQP_HEADER + raw_frame(Open("c").encoded())
NOISE_FRONTS = (
    *(b"", SASL_HEADER, SASL_HEADER + INIT, AMQP_HEADER, HELLO),
    HELLO + raw_frame(Begin(None, 0, 99, 99).encoded()),
    HELLO
    + raw_frame(Begin(None, 0, 99, 99).encoded())
    + raw_frame(Attach("in", 0, SENDER, initial_delivery_count=0).encoded()),
)


def noise(random: Random) -> bytes:
    """Random bytes behind a good beginning; some of them inside good frames."""
    data = random.choice(NOISE_FRONTS)
    for _ in range(random.randint(1, 6)):
        raw = random.randbytes(random.randint(0, 200))
        code = bytes((0x00, 0x53, random.randint(0x10, 0x18)))
        listed = code + b"\xc0" + bytes((len(raw) + 1, random.randint(0, 14))) + raw
        data += random.choice((raw, raw_frame(raw), raw_frame(listed), raw_frame(code + raw)))
    return data


# ---------------------------------------------------------------- what must hold


class Trial:
    """One connection and one input, taken in in pieces of any size."""

    def __init__(self, connection: Connection, random: Random) -> None:
        self.connection = connection
        self.random = random
        self.events: list[Event] = []
        self.written = b""
        self.links: dict[int, Any] = {}

    def feed(self, data: bytes) -> list[Event]:
        news = []
        for event in self.connection.receive(data):
            news.append(event)
            serve(event)
            if isinstance(event, LinkAttached):
                self.links[id(event.link)] = event.link
            elif isinstance(event, LinkDetached):
                self.links.pop(id(event.link), None)
        self.events += news
        self.written += self.connection.data_to_send()
        self.check_memory()
        return news

    def check_memory(self) -> None:
        assert len(self.connection._tail) <= MAX_FRAME
        for link in self.links.values():
            assert sum(map(len, link._parts or [])) <= MAX_MESSAGE
            assert len(link._parts or []) <= MAX_MESSAGE

    def run(self, data: bytes) -> None:
        pos = 0
        while pos < len(data):
            size = self.random.choice((1, 7, 50, 512, 5_000))
            self.feed(data[pos : pos + size])
            pos += size
        closed = of_kind(self.events, ConnectionClosed)
        if not closed:
            self.finish_frame()
            closed = of_kind(self.events, ConnectionClosed)
        if closed:
            self.check_closed(closed)
        else:
            self.check_alive()

    def finish_frame(self) -> None:
        """Complete the frame that the input left in the middle, with zeros."""
        while self.connection._tail and self.connection.phase is not Phase.CLOSED:
            tail = self.connection._tail
            whole = 8
            if len(tail) >= 8 and self.connection.phase is not Phase.HEADER:
                whole = struct.unpack_from(">I", tail)[0]
            assert len(tail) < whole <= MAX_FRAME
            self.feed(bytes(whole - len(tail)))

    def check_closed(self, closed: list[ConnectionClosed]) -> None:
        assert closed == self.events[-1:]
        assert self.connection.phase is Phase.CLOSED
        if self.connection.server:
            assert AMQP_HEADER in self.written
        last = frames(self.written)[-1].body
        assert isinstance(last, Close)
        if last.error is not None:
            assert last.error == closed[0].error
            assert last.error.condition.startswith("amqp:")
        else:
            assert self.peer_closed
        assert self.feed(HELLO) == []
        self.connection.tick(0.0)
        self.connection.tick(1e9)
        assert self.connection.data_to_send() == b""

    peer_closed = False

    def check_alive(self) -> None:
        """Whatever phase the input left off in, the rest of a good life is still possible."""
        steps: dict[Phase, Iterator[bytes]] = {
            Phase.SASL: iter([INIT]),
            Phase.HEADER: iter([AMQP_HEADER]),
            Phase.OPENING: iter([raw_frame(Open("c").encoded())]),
        }
        if not self.connection.server:
            assert self.connection.phase is not Phase.CLOSED
            return
        while self.connection.phase is not Phase.OPEN:
            self.feed(next(steps[self.connection.phase]))
        assert of_kind(self.events, Opened)
        channel = next(n for n in range(99) if n not in self.connection._by_remote)
        begin = raw_frame(Begin(None, 0, 9, 9).encoded(), channel)
        news = self.feed(begin + raw_frame(End().encoded(), channel))
        assert [type(event) for event in news] == [SessionBegun, SessionEnded]
        frames(self.written)


CLOSE_MARKS = (b"\x53\x18", b"\x80\x00\x00\x00\x00\x00\x00\x00\x18", b"amqp:close:list")


class Tally:
    """How far the inputs got: a fuzz test whose inputs all fail the first check tests nothing."""

    def __init__(self) -> None:
        self.inputs = self.attached = self.delivered = self.closed = 0
        self.conditions: set[str] = set()

    def add(self, events: list[Event]) -> None:
        self.inputs += 1
        self.attached += bool(of_kind(events, LinkAttached))
        self.delivered += bool(of_kind(events, Delivery))
        self.closed += bool(of_kind(events, ConnectionClosed))
        for event in events:
            if isinstance(event, ConnectionClosed | SessionEnded) and event.error is not None:
                self.conditions.add(event.error.condition)


def try_all(
    count: int,
    name: str,
    make: Callable[[Random], bytes],
    connect: Callable[[], Connection],
) -> Tally:
    tally = Tally()
    for number in range(count) if ONLY is None else [int(ONLY)]:
        random = Random(f"{SEED} {name} {number}")
        data = make(random)
        trial = Trial(connect(), random)
        trial.peer_closed = any(mark in data for mark in CLOSE_MARKS)
        try:
            trial.run(data)
        except Exception as error:
            error.add_note(
                f"TWINBUS_FUZZ_SEED={SEED} TWINBUS_FUZZ_INPUT={number} replays this {name}:\n"
                f"{data.hex()}"
            )
            raise
        tally.add(trial.events)
    return tally


def assert_deep(tally: Tally) -> None:
    if ONLY is None:
        assert tally.attached > tally.inputs / 2, vars(tally)
        assert tally.delivered > tally.inputs / 4, vars(tally)
        assert tally.closed > tally.inputs / 4, vars(tally)
        assert len(tally.conditions) >= 6, vars(tally)


@pytest.mark.timeout(400)  # a minute, if nobody else wants the cores
def test_a_damaged_stream_of_a_client_never_breaks_a_server() -> None:
    parts = pieces(recorded()[0])
    assert_deep(try_all(DAMAGED_INPUTS, "client", lambda random: damaged(random, parts), serving))


def test_a_damaged_stream_of_a_server_never_breaks_a_client() -> None:
    parts = pieces(recorded()[1])
    assert_deep(try_all(ANSWER_INPUTS, "server", lambda random: damaged(random, parts), asking))


def test_noise_never_breaks_a_server() -> None:
    tally = try_all(NOISE_INPUTS, "noise", noise, serving)
    assert ONLY is not None or tally.closed > tally.inputs / 2


def test_the_recorded_streams_are_valid_and_bring_about_every_event() -> None:
    both = {Opened, SessionBegun, LinkAttached, LinkFlow, Delivery, Settlement, LinkDetached}
    both |= {SessionEnded, ConnectionClosed}
    for connection, stream, told in (
        (serving(), recorded()[0], both),
        (asking(), recorded()[1], both | {Confirmation}),
    ):
        trial = Trial(connection, Random(1))
        trial.feed(stream)
        assert {type(event) for event in trial.events} == told
        assert all(event.error is None for event in of_kind(trial.events, ConnectionClosed))
        assert len(of_kind(trial.events, Delivery)) >= 3
