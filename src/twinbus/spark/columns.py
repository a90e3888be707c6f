"""A Service Bus message as a row: the columns there are, and how each is read off the bytes.

Reading a column costs time, so a reader makes only those that were asked for. ``message`` is the
whole message as it came, byte for byte; the others are for looking at, filtering by and joining on,
and some of them lose an AMQP type on the way (an application property becomes text). What cannot be
read is null (see ``received``), so that no message keeps another from being read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from twinbus.amqp.sections import ENQUEUED, LOCKED_UNTIL, PARTITION_KEY, SCHEDULED
from twinbus.amqp.types import Symbol
from twinbus.homeward.received import ReceivedMessage

_TIME = pa.timestamp("us", tz="UTC")
_TEXTS = pa.map_(pa.string(), pa.string())
Reader = Callable[[ReceivedMessage], Any]


def _of(name: str) -> Reader:
    return lambda row: getattr(row, name)


def _property(field: int) -> Reader:
    return lambda row: row.text(field)


def _stamp(name: Symbol) -> Reader:
    return lambda row: row.time(name)


# name: (SQL type, Arrow type, how it is read)
COLUMNS: Final[dict[str, tuple[str, pa.DataType, Reader]]] = {
    "entity": ("string", pa.string(), _of("entity")),
    "sequence_number": ("bigint", pa.int64(), _of("sequence_number")),
    "lock_token": ("string", pa.string(), _of("lock_token")),
    "locked_until": ("timestamp", _TIME, _stamp(LOCKED_UNTIL)),
    "enqueued_time": ("timestamp", _TIME, _stamp(ENQUEUED)),
    "received_time": ("timestamp", _TIME, _of("received_time")),
    "delivery_count": ("bigint", pa.int64(), _of("delivery_count")),
    "message_id": ("string", pa.string(), _property(0)),
    "session_id": ("string", pa.string(), _property(10)),
    "correlation_id": ("string", pa.string(), _property(5)),
    "content_type": ("string", pa.string(), _property(6)),
    "subject": ("string", pa.string(), _property(3)),
    "to": ("string", pa.string(), _property(2)),
    "reply_to": ("string", pa.string(), _property(4)),
    "partition_key": ("string", pa.string(), lambda row: row.annotation(PARTITION_KEY)),
    "time_to_live_ms": ("bigint", pa.int64(), _of("time_to_live_ms")),
    "scheduled_enqueue_time": ("timestamp", _TIME, _stamp(SCHEDULED)),
    "application_properties": ("map<string,string>", _TEXTS, _of("texts")),
    "body": ("binary", pa.binary(), _of("body")),
    "message": ("binary", pa.binary(), _of("message")),
}


def ddl(names: Iterable[str] = COLUMNS) -> str:
    """These columns as Spark's schema text."""
    return ", ".join(f"`{name}` {COLUMNS[name][0]}" for name in names)


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    return pa.schema([(name, COLUMNS[name][1]) for name in names])


def record_batch(rows: Sequence[ReceivedMessage], schema: pa.Schema) -> pa.RecordBatch:
    """The rows with the columns of ``schema``, which are among ``COLUMNS``."""
    arrays = []
    for field in schema:
        _, kind, read = COLUMNS[field.name]
        arrays.append(pa.array([read(row) for row in rows], kind))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
