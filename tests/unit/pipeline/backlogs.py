"""A backlog under lock and destinations that answer as they are told: a ``Post`` in memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from twinbus import envelope
from twinbus.amqp.types import Symbol, UInt, encode, encode_list, encode_map
from twinbus.client_errors import EnvelopeError
from twinbus.envelope import id_of
from twinbus.homeward.bites import BITE, ROWS_A_QUEUE
from twinbus.homeward.carrier import Carrier, Parcel
from twinbus.homeward.driver import Driver
from twinbus.homeward.received import ReceivedMessage
from twinbus.homeward.rounds import Destinations, Orders, Tally
from twinbus.homeward.row import Row

LOCK_MS = 60_000
LIMIT = 262_144


def plain(message_id: str, body: bytes = b"x", ttl_ms: int | None = None) -> bytes:
    """An encoded message with an id."""
    header = b"" if ttl_ms is None else b"\x00\x53\x70" + encode_list([None, None, UInt(ttl_ms)])
    properties = b"\x00\x53\x73" + encode_list([message_id])
    return header + properties + b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body


@dataclass
class Waiting:
    """One message in a backlog queue."""

    number: int
    message: bytes
    enqueued_ms: int
    token: UUID | None = None
    locked_until_ms: int = 0


@dataclass
class Backlog:
    """Queues of peek-lock messages, a clock, and what the destinations took."""

    now: int = 1_000_000
    queues: dict[str, list[Waiting]] = field(default_factory=dict)
    home: dict[str, list[str]] = field(default_factory=dict)
    dead: list[tuple[str, str, str]] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    transfers: list[int] = field(default_factory=list)
    renewed: int = 0
    limits: int = LIMIT
    share: int = ROWS_A_QUEUE
    last: int = 0
    # What may go wrong; each raises, or says what was lost.
    on_limit: Callable[[str], None] = lambda destination: None
    on_send: Callable[[str, Sequence[str]], None] = lambda destination, ids: None
    on_settle: Callable[[str, Sequence[UUID]], list[UUID]] = lambda act, tokens: []

    # ------------------------------------------------------------ the queues

    def divert(self, queue: str, destination: str, message: bytes, limit: int = LIMIT) -> list[int]:
        return [self.put(queue, part) for part in envelope.pack(message, destination, limit)]

    def put(self, queue: str, message: bytes) -> int:
        self.last += 1
        waiting = Waiting(self.last, message, self.now)
        self.queues.setdefault(queue, []).append(waiting)
        return self.last

    def take(self, queue: str, most: int) -> list[Row]:
        rows: list[Row] = []
        for each in self.queues.get(queue, []):
            if each.locked_until_ms <= self.now and len(rows) < most:
                each.token, each.locked_until_ms = uuid4(), self.now + LOCK_MS
                rows.append(self._row(queue, each))
        return rows

    def _row(self, queue: str, each: Waiting) -> Row:
        assert each.token is not None
        properties = dict(ReceivedMessage(queue, None, each.message, 0).texts or ())
        waited = self.now - each.enqueued_ms
        return Row(
            queue=queue,
            number=each.number,
            token=each.token,
            locked_until_ms=each.locked_until_ms,
            received_ms=self.now,
            waited_ms=waited,
            destination=properties.get(envelope.PATH),
            part_of=properties.get(envelope.PART_OF),
            message=each.message,
        )

    def is_empty(self) -> bool:
        return not any(self.queues.values())

    def next_ready_ms(self) -> int | None:
        """When a message can be received."""
        ends = [max(self.now, e.locked_until_ms) for q in self.queues.values() for e in q]
        return min(ends, default=None)

    def _held(self, queue: str, token: UUID) -> Waiting | None:
        for each in self.queues.get(queue, []):
            if each.token == token and each.locked_until_ms > self.now:
                return each
        return None

    # ------------------------------------------------------------ the post

    def limit(self, destination: str) -> int:
        self.on_limit(destination)
        return self.limits

    def send(self, destination: str, parcels: Sequence[Parcel]) -> None:
        ids = [str(parcel.message_id) for parcel in parcels]
        self.on_send(destination, ids)
        self.transfers.append(len(ids))
        self.home.setdefault(destination, []).extend(ids)

    def complete(self, queue: str, tokens: Sequence[UUID]) -> list[UUID]:
        return self._settled("complete", queue, tokens, self._completed)

    def _completed(self, queue: str, each: Waiting) -> None:
        self.completed.append(_id(each.message))
        self.queues[queue].remove(each)

    def dead_letter(
        self, queue: str, tokens: Sequence[UUID], reason: str, description: str
    ) -> list[UUID]:
        def bury(queue: str, each: Waiting) -> None:
            name = ReceivedMessage(queue, None, each.message, 0).text(0)
            self.dead.append((str(name), reason, description))
            self.queues[queue].remove(each)

        return self._settled("dead-letter", queue, tokens, bury)

    def abandon(self, queue: str, tokens: Sequence[UUID]) -> list[UUID]:
        def give_back(queue: str, each: Waiting) -> None:
            each.locked_until_ms = 0

        return self._settled("abandon", queue, tokens, give_back)

    def renew(self, queue: str, tokens: Sequence[UUID]) -> list[UUID]:
        def prolong(queue: str, each: Waiting) -> None:
            each.locked_until_ms = self.now + LOCK_MS
            self.renewed += 1

        return self._settled("renew", queue, tokens, prolong)

    def _settled(
        self,
        act: str,
        queue: str,
        tokens: Sequence[UUID],
        settle: Callable[[str, Waiting], None],
    ) -> list[UUID]:
        lost = self.on_settle(act, tokens)
        for token in tokens:
            each = self._held(queue, token)
            if each is None:
                lost.append(token)
            elif token not in lost:
                settle(queue, each)
        return lost

    def now_ms(self) -> int:
        return self.now

    def elapsed_s(self) -> float:
        return self.now / 1000

    def sleep(self, seconds: float) -> None:
        self.now += int(seconds * 1000)

    # ------------------------------------------------------------ the driver's world

    def carry(self, orders: Orders) -> list[Tally]:
        """One worker's part of a round, and there is one."""
        carrier = Carrier(self, orders)
        for queue in list(self.queues):
            left = self.share
            while left > 0:
                rows = self.take(queue, min(BITE, left))
                left -= len(rows)
                carrier.carry(rows)
                if len(rows) < BITE:
                    break
        return carrier.finish()

    def has_after(self, queue: str, number: int) -> bool:
        return any(each.number > number for each in self.queues.get(queue, []))


def _id(message: bytes) -> str:
    try:
        return str(id_of(envelope.unwrap(message)[1]))
    except EnvelopeError:
        return str(id_of(message))


def run_round(
    backlog: Backlog, destinations: Destinations, *, most: int = ROWS_A_QUEUE
) -> list[Tally]:
    backlog.share = most
    return Driver(destinations, backlog.queues).round(backlog).tallies


def carried(backlog: Backlog, carrier: Carrier, queues: Iterable[str], most: int = 5000) -> None:
    for queue in queues:
        carrier.carry(backlog.take(queue, most))


def annotated(name: str, value: object) -> bytes:
    """A message for "good" with one annotation."""
    named = b"\x00\x53\x72" + encode_map({Symbol(name): value})
    return named + properties_of(**{"x-ms-path": "good"}) + b"\x00\x53\x75\xa0\x01x"


def sealed(inside: bytes, **seal: object) -> bytes:
    """A sealed message for "good", or a part of one, as somebody might have written it."""
    aliases = {"x-ms-path": "good", "x-ms-encoding": "identity"}
    aliases["x-ms-checksum"] = UInt(zlib.crc32(inside))  # type: ignore[assignment]
    return properties_of(**{**aliases, **seal}) + b"\x00\x53\x75" + encode(inside)


def properties_of(**values: object) -> bytes:
    """An application-properties section."""
    return b"\x00\x53\x74" + encode_map({k.replace("_", "-"): v for k, v in values.items()})


def _living(ttl: object) -> bytes:
    return b"\x00\x53\x70" + encode_list([None, None, ttl]) + b"\x00\x53\x75\xa0\x01x"


DATA = b"\x00\x53\x75\xa0\x01x"
# Properties that nobody can read. Whether a broker lets them in is its own affair; once they are
# in a queue they must keep nobody from being read, nor from going home.
UNREADABLE: dict[str, bytes] = {
    "a string for properties": b"\x00\x53\x74\xa1\x01x" + DATA,
    "a list for properties": b"\x00\x53\x74" + encode_list([1]) + DATA,
    "0xff in the properties": b"\x00\x53\x74\xc1\x06\x02\xa1\x01\xff\xa1\x00" + DATA,
    "properties full of 0xff": b"\x00\x53\x74\xc1\x14\x02" + b"\xff" * 19 + DATA,
}
# Legal AMQP that makes no sense on the way home.
ODD: dict[str, bytes] = {
    "a part of too many": sealed(b"x", **{"x-ms-parts": 2**40, "x-ms-part": 0, "x-ms-partof": "b"}),
    "a part of none": sealed(b"x", **{"x-ms-parts": 0, "x-ms-part": 0, "x-ms-partof": "b"}),
    "a sealed noise": sealed(b"noise"),
    "a sealed message that lives too long": sealed(_living(2**40)),
    "a sealed message that lives nonsense": sealed(_living("an hour")),
    "an alias out of range": (
        properties_of(**{"x-ms-path": "good", "x-ms-timetolive": 2**40}) + DATA
    ),
    "nothing of ours": DATA,
}
# These are well, but for what a read makes of them.
STRANGE: dict[str, bytes] = {
    "a string for a schedule": annotated("x-opt-scheduled-enqueue-time", "soon"),
    "a list for a schedule": annotated("x-opt-scheduled-enqueue-time", [1]),
    "a text for data": properties_of(**{"x-ms-path": "good"}) + b"\x00\x53\x75\xa1\x02hi",
}


def otherwise(message: bytes, named: bool) -> bytes:
    """The same, its descriptors in another legal encoding: eight bytes, or the section's name."""
    names = {
        0x73: b"amqp:properties:list",
        0x74: b"amqp:application-properties:map",
        0x75: b"amqp:data:binary",
    }
    for code, name in names.items():
        wide = b"\x00\x80" + code.to_bytes(8, "big")
        symbol = b"\x00\xa3" + bytes((len(name),)) + name
        short = b"\x00\x53" + bytes((code,))
        message = message.replace(short, symbol if named else wide, 1)
    return message
