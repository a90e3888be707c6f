"""How messages travel: the carrier's post, on the SDK's links. And the task that carries rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar
from uuid import UUID

import pyarrow as pa

from twinbus.auth.credentials import Secret
from twinbus.homeward.answers import asked, settled
from twinbus.homeward.carrier import Carrier, Parcel
from twinbus.homeward.received import ReceivedMessage
from twinbus.homeward.rounds import Orders, Outcome, Tally
from twinbus.homeward.row import Row
from twinbus.ledger import Operation
from twinbus.sdk.links import Links, links
from twinbus.sdk.raw import RawReceiver, RawSender
from twinbus.spark.machine import MachineTimes
from twinbus.syphon.books import NO_BOOKS, Books, NoBooks

T = TypeVar("T")

# Service Bus takes 4,096 characters for a description.
MOST_WORDS: Final = 1000

# What the carrier needs of the source. All else it reads off the bytes, once.
BACKLOG_COLUMNS: Final = ("entity", "lock_token", "received_time", "message")
TALLY_DDL: Final = (
    "queue string, destination string, outcome string, messages bigint, lowest bigint, "
    "highest bigint, until_ms bigint, error string, part_of string"
)
_TALLY_SCHEMA = pa.schema(
    [
        *(("queue", pa.string()), ("destination", pa.string()), ("outcome", pa.string())),
        *(("messages", pa.int64()), ("lowest", pa.int64()), ("highest", pa.int64())),
        *(("until_ms", pa.int64()), ("error", pa.string()), ("part_of", pa.string())),
    ]
)


class SdkPost(MachineTimes):
    """Sends on the primary, settles on the secondary, with the plain SDK: a message that goes home
    must not be diverted again."""

    def __init__(
        self, primary: Secret, secondary: Secret, kept: Links, books: NoBooks = NO_BOOKS
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._links = kept
        self._books = books

    def limit(self, destination: str) -> int:
        def ready(sender: RawSender) -> int:
            sender.ready()
            return sender.limit

        return self._asked(destination, ready)

    def send(self, destination: str, parcels: Sequence[Parcel]) -> None:
        messages = [parcel.message for parcel in parcels]
        self._asked(destination, lambda sender: sender.send(messages))
        self._books.sent(destination, parcels)

    def _asked(self, destination: str, act: Callable[[RawSender], T]) -> T:
        return asked(lambda: act(self._links.sender(self._primary, destination)))

    def complete(self, queue: str, tokens: Sequence[UUID]) -> list[UUID]:
        return self._settled(Operation.COMPLETE, queue, tokens, self._line(queue).complete)

    def abandon(self, queue: str, tokens: Sequence[UUID]) -> list[UUID]:
        return self._settled(Operation.ABANDON, queue, tokens, self._line(queue).abandon)

    def renew(self, queue: str, tokens: Sequence[UUID]) -> list[UUID]:
        return self._settled(Operation.RENEW, queue, tokens, self._line(queue).renew)

    def dead_letter(
        self, queue: str, tokens: Sequence[UUID], reason: str, description: str
    ) -> list[UUID]:
        words = description[:MOST_WORDS]
        return self._settled(
            Operation.DEAD_LETTER,
            queue,
            tokens,
            lambda some: self._line(queue).dead_letter(some, reason, words),
        )

    def _line(self, queue: str) -> RawReceiver:
        return self._links.receiver(self._secondary, queue)

    def _settled(
        self,
        operation: Operation,
        queue: str,
        tokens: Sequence[UUID],
        settle: Callable[[Sequence[UUID]], list[UUID]],
    ) -> list[UUID]:
        lost = settled(tokens, settle, self)
        self._books.settled(operation, queue, tokens, lost)
        return lost


class SdkWorld(SdkPost):
    """What the driver asks: of Spark, which carries, and over links of its own."""

    def __init__(
        self,
        primary: Secret,
        secondary: Secret,
        kept: Links,
        stopping: threading.Event,
        carried: Callable[[Orders], list[Tally]],
    ) -> None:
        super().__init__(primary, secondary, kept)
        self._stopping = stopping
        self._carried = carried

    def sleep(self, seconds: float) -> None:
        """Or until the syphon is stopped."""
        self._stopping.wait(seconds)

    def carry(self, orders: Orders) -> list[Tally]:
        return self._carried(orders)

    def has_after(self, queue: str, number: int) -> bool:
        return bool(self._line(queue).peek(1, number + 1))


def carry(
    batches: Iterable[pa.RecordBatch],
    primary: Secret,
    secondary: Secret,
    orders: Orders,
    ledger: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """A Spark task of a round: rows of the backlog in, tallies out."""
    books = NO_BOOKS if ledger is None else Books(ledger, primary, secondary)
    carrier = Carrier(SdkPost(primary, secondary, links(), books), orders)
    for batch in batches:
        rows = list(rows_of(batch))
        books.received(rows)
        carrier.carry(rows)
    tallies = carrier.finish()
    books.close()
    yield tallies_batch(tallies)


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of the source, with ``BACKLOG_COLUMNS``."""
    times = batch.column("received_time").cast(pa.int64()).to_pylist()
    columns = [batch.column(name).to_pylist() for name in ("entity", "lock_token", "message")]
    for queue, token, message, at_us in zip(*columns, times, strict=True):
        yield Row.of(ReceivedMessage(queue, UUID(token), message, at_us // 1000))


def tallies_batch(tallies: Sequence[Tally]) -> pa.RecordBatch:
    names = _TALLY_SCHEMA.names
    arrays = [pa.array([getattr(tally, name) for tally in tallies]) for name in names]
    cast = [array.cast(field.type) for array, field in zip(arrays, _TALLY_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=_TALLY_SCHEMA)


def tallies_of(rows: Iterable[dict[str, object]]) -> list[Tally]:
    """What came back from the tasks, as values."""
    return [Tally(**{**row, "outcome": Outcome(row["outcome"])}) for row in rows]  # type: ignore[arg-type]
