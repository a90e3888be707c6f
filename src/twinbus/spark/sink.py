"""Writing to Service Bus from Spark: the sink of the format ``servicebus``.

    df.writeStream.format("servicebus").option("connection", ...).option("entity", "orders").start()

A row is a message: either ``message``, encoded already, or ``body`` and what columns there are
besides (see ``columns`` for their names). ``entity`` is an option, or a column where rows go to
different places. Rows of one partition and entity are sent in their order. A batch that Spark runs
again is sent again: give a ``message_id`` and let the entity detect duplicates.

With the option ``settleConnection`` (or ``settleConnectionEnv``, ``settleConnectionProvider``) rows
that came from a ``servicebus`` source, with their columns ``entity`` and ``lock_token``, are
completed there once they have been sent. The option ``entity`` then says where they go. A row that
can be no message is dead-lettered there with a reason; without a place to settle, it is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from twinbus.amqp.batches import in_transfers
from twinbus.amqp.sections import (
    ANNOTATIONS,
    APPLICATION,
    CONTENT_TYPE,
    DATA,
    GROUP_ID,
    HEADER,
    MESSAGE_ID,
    PARTITION_KEY,
    PROPERTIES,
    SCHEDULED,
    section,
)
from twinbus.amqp.types import (
    CodecError,
    Symbol,
    Timestamp,
    UInt,
    encode_binary,
    encode_list,
    encode_map,
)
from twinbus.auth.credentials import CONNECTION, ENVIRONMENT, PROVIDER, Secret, secret_from
from twinbus.client_errors import EnvelopeError
from twinbus.envelope import checked, unstamped
from twinbus.errors import TwinbusError
from twinbus.sdk.links import links

SETTLE: Final = "settle"
_PROPERTIES = {
    "message_id": MESSAGE_ID,
    "to": 2,
    "subject": 3,
    "reply_to": 4,
    "correlation_id": 5,
    "content_type": CONTENT_TYPE,
    "session_id": GROUP_ID,
}
_SCHEDULED: Final = "scheduled_enqueue_time"
_COLUMNS = frozenset(
    (
        *("message", "body", "entity", "lock_token", "time_to_live_ms", "partition_key"),
        *(_SCHEDULED, "application_properties", *_PROPERTIES),
    )
)
# Why a row of a source is among its dead letters. Service Bus takes 4,096 characters for the rest.
UNREADABLE: Final = "TwinbusUnreadable"
MOST_WORDS: Final = 1000


class SinkError(TwinbusError):
    """Rows that are no messages, or have nowhere to go."""


@dataclass(frozen=True)
class SinkOptions:
    """The options of a sink, checked."""

    secret: Secret
    entity: str | None
    settle: Secret | None = None

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> SinkOptions:
        given = {name.lower(): value for name, value in options.items()}
        names = {field.name for field in schema.fields}
        settles = any(given.get(SETTLE + name) for name in (CONNECTION, ENVIRONMENT, PROVIDER))
        entity = given.get("entity")
        if not entity and "entity" not in names:
            raise SinkError('where to? Give .option("entity", "orders"), or a column `entity`')
        if "message" not in names and "body" not in names:
            raise SinkError("a row needs a column `message` (encoded) or `body`")
        if settles and not {"entity", "lock_token"} <= names:
            raise SinkError("to settle, rows need the source's columns `entity` and `lock_token`")
        if settles and not entity:
            raise SinkError(
                "to settle, give the option `entity`: the column is where rows are from"
            )
        settle = secret_from(options, SETTLE) if settles else None
        return cls(secret_from(options), entity, settle)


@dataclass
class Sent(WriterCommitMessage):
    """What one task sent."""

    messages: int


class _Writing:
    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return Sent(sum(_send(self.options, rows_of(batch)) for batch in iterator))

    def commit(self, messages: Any, *batch_id: int) -> None:
        """Nothing to do: what was sent is sent."""

    def abort(self, messages: Any, *batch_id: int) -> None:
        """Nothing to do: what was sent cannot be taken back."""


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """``df.writeStream``"""


class BatchWriter(_Writing, DataSourceArrowWriter):
    """``df.write``"""


def stream_writer(options: Mapping[str, str], schema: StructType) -> StreamWriter:
    return StreamWriter(SinkOptions.of(options, schema))


def batch_writer(options: Mapping[str, str], schema: StructType) -> BatchWriter:
    return BatchWriter(SinkOptions.of(options, schema))


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The columns that a message is made of. A time is in microseconds: Spark's go further than
    Python's."""
    names = [name for name in batch.schema.names if name in _COLUMNS]
    chosen = batch.select(names)
    if _SCHEDULED in names:
        index = names.index(_SCHEDULED)
        times = chosen.column(index)
        if pa.types.is_timestamp(times.type):
            as_us = times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64())
            chosen = chosen.set_column(index, _SCHEDULED, as_us)
    rows: list[dict[str, Any]] = chosen.to_pylist()
    return rows


def _send(options: SinkOptions, rows: list[dict[str, Any]]) -> int:
    """What can be no message is set aside where it came from; it is an error if that is nowhere."""
    by_entity: dict[str, list[bytes]] = {}
    good: list[dict[str, Any]] = []
    for row in rows:
        entity = options.entity or row["entity"]
        if not entity:
            raise SinkError("a row has no `entity`, and there is no option for it")
        try:
            by_entity.setdefault(entity, []).append(encoded(row))
        except SinkError as error:
            if options.settle is None:
                raise
            source = links().receiver(options.settle, row["entity"])
            source.dead_letter([UUID(row["lock_token"])], UNREADABLE, str(error)[:MOST_WORDS])
        else:
            good.append(row)
    for entity, messages in by_entity.items():
        sender = links().sender(options.secret, entity)
        sender.ready()
        for part in in_transfers([len(message) for message in messages], sender.limit):
            sender.send(messages[part])
    if options.settle is not None:
        _settle(options.settle, good)
    return len(good)


def _settle(secret: Secret, rows: Iterable[dict[str, Any]]) -> None:
    """What lost its lock meanwhile comes again; its duplicate id is the destination's to drop."""
    tokens: dict[str, list[UUID]] = {}
    for row in rows:
        tokens.setdefault(row["entity"], []).append(UUID(row["lock_token"]))
    for entity, settled in tokens.items():
        links().receiver(secret, entity).complete(settled)


def encoded(row: Mapping[str, Any]) -> bytes:
    """The row as an encoded message. Raises SinkError if it can be none."""
    try:
        if row.get("message") is not None:
            return checked(unstamped(row["message"]))
        return _made(row)
    except (CodecError, EnvelopeError) as error:
        raise SinkError(f"a row cannot be a message: {error}") from error


def _made(row: Mapping[str, Any]) -> bytes:
    body = row.get("body")
    if isinstance(body, str):
        body = body.encode()
    if not isinstance(body, bytes):
        raise SinkError(f"`body` is {type(body).__name__}; it must be binary or a string")
    return b"".join((*_head(row), section(DATA, encode_binary(body))))


def _head(row: Mapping[str, Any]) -> Iterator[bytes]:
    if row.get("time_to_live_ms") is not None:
        yield section(HEADER, encode_list([None, None, UInt(row["time_to_live_ms"])]))
    annotations: dict[Any, Any] = {}
    if row.get("partition_key") is not None:
        annotations[PARTITION_KEY] = str(row["partition_key"])
    scheduled_us = row.get(_SCHEDULED)
    if scheduled_us is not None:
        annotations[SCHEDULED] = Timestamp(scheduled_us // 1000)
    if annotations:
        yield section(ANNOTATIONS, encode_map(annotations))
    fields: list[Any] = [None] * (GROUP_ID + 1)
    for name, index in _PROPERTIES.items():
        fields[index] = row.get(name)
    if fields[CONTENT_TYPE] is not None:
        fields[CONTENT_TYPE] = Symbol(fields[CONTENT_TYPE])
    if any(value is not None for value in fields):
        yield section(PROPERTIES, encode_list(fields))
    properties = dict(row.get("application_properties") or ())
    if properties:
        yield section(APPLICATION, encode_map(properties))
