"""How messages travel: the carrier's post, on the SDK's links. And the task that carries rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar
from uuid import UUID

import pyarrow as pa
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from twinbus.auth.credentials import Secret
from twinbus.classifier import Verdict, classify
from twinbus.errors import first_line
from twinbus.homeward.carrier import BusyError, Carrier, RefusedError, Row, UnavailableError
from twinbus.homeward.rounds import Orders, Outcome, Tally
from twinbus.ledger import Operation
from twinbus.sdk.links import Links, links
from twinbus.sdk.raw import RawReceiver, RawSender
from twinbus.syphon.books import Books

T = TypeVar("T")

# A settlement that gets no answer is tried again: what it settles is home already.
SETTLING_ATTEMPTS: Final = 4
SETTLING_PAUSE_S: Final = 0.5
# Service Bus takes 4,096 characters for a description.
MOST_WORDS: Final = 1000

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


class SdkPost:
    """Sends on the primary, settles on the secondary, with the plain SDK: a message that goes home
    must not be diverted again."""

    def __init__(
        self,
        primary: Secret,
        secondary: Secret,
        kept: Links | None = None,
        books: Books | None = None,
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._links = kept or links()
        self._books = books

    def limit(self, destination: str) -> int:
        def ready(sender: RawSender) -> int:
            sender.ready()
            return sender.limit

        return self._asked(destination, ready)

    def send(self, destination: str, messages: Sequence[bytes]) -> None:
        self._asked(destination, lambda sender: sender.send(messages))
        if self._books is not None:
            self._books.sent(destination, messages)

    def _asked(self, destination: str, act: Callable[[RawSender], T]) -> T:
        try:
            return act(self._links.sender(self._primary, destination))
        except ServiceBusError as error:
            raise _translation(error) from error
        except ValueError as error:  # the SDK can make no address of such a name
            raise RefusedError(first_line(error)) from error

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
        """Those that could not be settled: their lock was lost, or the secondary is."""
        for attempt in range(SETTLING_ATTEMPTS):
            try:
                lost = settle(tokens)
                if self._books is not None:
                    self._books.settled(operation, queue, tokens, lost)
                return lost
            except ServiceBusError:
                if attempt + 1 < SETTLING_ATTEMPTS:
                    self.sleep(SETTLING_PAUSE_S * 2**attempt)
        return list(tokens)

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def _translation(error: ServiceBusError) -> Exception:
    text = first_line(error)
    verdict = classify(error)
    if verdict is Verdict.WAIT:
        return BusyError(text)
    if isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError):
        return UnavailableError(text)  # a key can be put right; a message need not suffer for it
    if verdict is Verdict.RAISE or isinstance(error, MessageSizeExceededError):
        return RefusedError(text)
    return UnavailableError(text)


def carry(
    batches: Iterable[pa.RecordBatch],
    primary: Secret,
    secondary: Secret,
    orders: Orders,
    ledger: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """A Spark task of a round: homeward rows in, tallies out."""
    books = Books(ledger, primary, secondary)
    carrier = Carrier(SdkPost(primary, secondary, books=books), orders)
    for batch in batches:
        rows = list(rows_of(batch))
        books.received(rows)
        carrier.carry(rows)
    tallies = carrier.finish()
    books.close()
    yield tallies_batch(tallies)


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    for each in batch.to_pylist():
        ends = each["locked_until_ms"]
        yield Row(
            queue=each["queue"],
            number=each["sequence_number"] or 0,
            token=UUID(each["lock_token"]),
            # Where the end of its lock cannot be read, it is renewed before anything is sent.
            locked_until_ms=each["received_ms"] if ends is None else ends,
            received_ms=each["received_ms"],
            waited_ms=each["waited_ms"],
            destination=each["destination"],
            part_of=each["part_of"],
            time_to_live_ms=each["time_to_live_ms"],
            message=each["message"],
        )


def tallies_batch(tallies: Sequence[Tally]) -> pa.RecordBatch:
    names = _TALLY_SCHEMA.names
    arrays = [pa.array([getattr(tally, name) for tally in tallies]) for name in names]
    cast = [array.cast(field.type) for array, field in zip(arrays, _TALLY_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=_TALLY_SCHEMA)


def tallies_of(rows: Iterable[dict[str, object]]) -> list[Tally]:
    """What came back from the tasks, as values."""
    return [Tally(**{**row, "outcome": Outcome(row["outcome"])}) for row in rows]  # type: ignore[arg-type]
