"""A Service Bus message as a row: the columns there are, and how each is read off the bytes.

Reading a column costs time, so a reader makes only those that were asked for. ``message`` is the
whole message as it came, byte for byte; the others are for looking at, filtering by and joining on,
and some of them lose an AMQP type on the way (an application property becomes text).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from twinbus.amqp.message import Message, application_properties, batch_items, body_value
from twinbus.amqp.types import CodecError, Symbol, Timestamp, decode

_SEQUENCE_NUMBER = Symbol("x-opt-sequence-number")
_ENQUEUED = Symbol("x-opt-enqueued-time")
_LOCKED_UNTIL = Symbol("x-opt-locked-until")
_SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
_PARTITION_KEY = Symbol("x-opt-partition-key")
_DELIVERY_COUNT = 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Received:
    """A message that came from an entity, decoded as far as somebody asks."""

    def __init__(self, entity: str, lock_token: UUID | None, message: bytes, at_ms: int) -> None:
        self.entity = entity
        self.lock_token = None if lock_token is None else str(lock_token)
        self.message = message
        self.received_time = _time(at_ms)

    @cached_property
    def _parsed(self) -> Message:
        return Message.parse(self.message)

    @cached_property
    def _annotations(self) -> dict[Any, Any]:
        return self._parsed.annotation_map()

    @cached_property
    def application_properties(self) -> dict[str, Any]:
        return application_properties(self._parsed.bare)

    @property
    def sequence_number(self) -> int:
        return int(self._annotations.get(_SEQUENCE_NUMBER, 0))

    @property
    def enqueued_time(self) -> datetime | None:
        return _time(self._annotations.get(_ENQUEUED))

    @property
    def locked_until(self) -> datetime | None:
        return _time(self._annotations.get(_LOCKED_UNTIL))

    @property
    def scheduled_enqueue_time(self) -> datetime | None:
        return _time(self._annotations.get(_SCHEDULED))

    @property
    def delivery_count(self) -> int:
        """How often it was handed out before."""
        if not self.message.startswith(b"\x00\x53\x70"):
            return 0
        header, _ = decode(self.message, 3)
        return int(header[_DELIVERY_COUNT] or 0) if len(header) > _DELIVERY_COUNT else 0

    def text_of(self, name: str) -> str | None:
        return _text(getattr(self._parsed.properties, name))

    def annotation(self, name: Symbol) -> str | None:
        return _text(self._annotations.get(name))

    @property
    def time_to_live_ms(self) -> int | None:
        return self._parsed.ttl_ms

    @property
    def texts(self) -> list[tuple[str, str | None]]:
        return [(str(key), _text(value)) for key, value in self.application_properties.items()]

    @property
    def body(self) -> bytes:
        """The data sections joined; a value of text or bytes as bytes; of another kind, encoded."""
        bare = self._parsed.bare
        items = batch_items(bare)
        if items:
            return items[0] if len(items) == 1 else b"".join(items)
        try:
            value = body_value(bare)
        except CodecError:
            return b""
        if isinstance(value, bytes):
            return value
        return _text(value).encode() if value is not None else b""  # type: ignore[union-attr]


def _time(milliseconds: Any) -> datetime | None:
    """None too for a time that Python has no date for: AMQP's go further."""
    try:
        return None if milliseconds is None else _EPOCH + timedelta(milliseconds=int(milliseconds))
    except OverflowError:
        return None


def _text(value: Any) -> str | None:
    """A value for looking at. Times are ISO 8601, bytes are hexadecimal."""
    if value is None or isinstance(value, str):
        return value if value is None else str(value)
    if isinstance(value, Timestamp):
        time = _time(value)
        return str(int(value)) if time is None else time.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


_TIME = pa.timestamp("us", tz="UTC")
_TEXTS = pa.map_(pa.string(), pa.string())
Reader = Callable[[Received], Any]


def _of(name: str) -> Reader:
    return lambda row: getattr(row, name)


def _property(name: str) -> Reader:
    return lambda row: row.text_of(name)


# name: (SQL type, Arrow type, how it is read)
COLUMNS: Final[dict[str, tuple[str, pa.DataType, Reader]]] = {
    "entity": ("string", pa.string(), _of("entity")),
    "sequence_number": ("bigint", pa.int64(), _of("sequence_number")),
    "lock_token": ("string", pa.string(), _of("lock_token")),
    "locked_until": ("timestamp", _TIME, _of("locked_until")),
    "enqueued_time": ("timestamp", _TIME, _of("enqueued_time")),
    "received_time": ("timestamp", _TIME, _of("received_time")),
    "delivery_count": ("bigint", pa.int64(), _of("delivery_count")),
    "message_id": ("string", pa.string(), _property("message_id")),
    "session_id": ("string", pa.string(), _property("group_id")),
    "correlation_id": ("string", pa.string(), _property("correlation_id")),
    "content_type": ("string", pa.string(), _property("content_type")),
    "subject": ("string", pa.string(), _property("subject")),
    "to": ("string", pa.string(), _property("to")),
    "reply_to": ("string", pa.string(), _property("reply_to")),
    "partition_key": ("string", pa.string(), lambda row: row.annotation(_PARTITION_KEY)),
    "time_to_live_ms": ("bigint", pa.int64(), _of("time_to_live_ms")),
    "scheduled_enqueue_time": ("timestamp", _TIME, _of("scheduled_enqueue_time")),
    "application_properties": ("map<string,string>", _TEXTS, _of("texts")),
    "body": ("binary", pa.binary(), _of("body")),
    "message": ("binary", pa.binary(), _of("message")),
}


def ddl(names: Iterable[str] = COLUMNS) -> str:
    """These columns as Spark's schema text."""
    return ", ".join(f"`{name}` {COLUMNS[name][0]}" for name in names)


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    return pa.schema([(name, COLUMNS[name][1]) for name in names])


def record_batch(rows: Sequence[Received], schema: pa.Schema) -> pa.RecordBatch:
    """The rows with the columns of ``schema``, which are among ``COLUMNS``."""
    arrays = []
    for field in schema:
        _, kind, read = COLUMNS[field.name]
        arrays.append(pa.array([read(row) for row in rows], kind))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
