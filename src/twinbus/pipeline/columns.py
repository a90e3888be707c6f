"""A Service Bus message as a row: the columns there are, and how each is read off the bytes.

Reading a column costs time, so a reader makes only those that were asked for. ``message`` is the
whole message as it came, byte for byte; the others are for looking at, filtering by and joining on,
and some of them lose an AMQP type on the way (an application property becomes text).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from twinbus import envelope
from twinbus.amqp.message import batch_items, body_value
from twinbus.amqp.types import CodecError, Symbol, Timestamp, decode

_SEQUENCE_NUMBER = Symbol("x-opt-sequence-number")
_ENQUEUED = Symbol("x-opt-enqueued-time")
_LOCKED_UNTIL = Symbol("x-opt-locked-until")
_SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
_PARTITION_KEY = Symbol("x-opt-partition-key")
_TIME_TO_LIVE, _DELIVERY_COUNT = 2, 4
# The milliseconds that have a date, from the year 1 to the year 9999; AMQP's times go further.
_FIRST_DATE, _LAST_DATE = -62_135_596_800_000, 253_402_300_799_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Received:
    """A message that came from an entity, decoded as far as somebody asks. Times are in
    microseconds, which is what Arrow takes."""

    __slots__ = (
        *("_annotations", "_application", "_fields", "_sections"),
        *("entity", "lock_token", "message", "received_time"),
    )

    def __init__(self, entity: str, lock_token: UUID | None, message: bytes, at_ms: int) -> None:
        self.entity = entity
        self.lock_token = None if lock_token is None else str(lock_token)
        self.message = message
        self.received_time = at_ms * 1000
        self._sections = envelope.split(message)
        self._annotations: dict[Any, Any] = self._decoded(envelope.ANNOTATIONS) or {}
        self._application: dict[Any, Any] | None = None
        self._fields: list[Any] | None = None

    def _decoded(self, section: int) -> Any:
        raw = self._sections.get(section)
        return decode(raw, 0)[0] if raw else None

    @property
    def application_properties(self) -> dict[str, Any]:
        if self._application is None:
            self._application = self._decoded(envelope.APPLICATION) or {}
        return self._application

    @property
    def sequence_number(self) -> int:
        return int(self._annotations.get(_SEQUENCE_NUMBER, 0))

    @property
    def delivery_count(self) -> int:
        """How often it was handed out before."""
        return int(self._header(_DELIVERY_COUNT) or 0)

    @property
    def time_to_live_ms(self) -> int | None:
        found: int | None = self._header(_TIME_TO_LIVE)
        return found

    def _header(self, field: int) -> Any:
        fields = self._decoded(envelope.HEADER) or []
        return fields[field] if len(fields) > field else None

    def text(self, field: int) -> str | None:
        if self._fields is None:
            self._fields = self._decoded(envelope.PROPERTIES) or []
        return _text(self._fields[field]) if len(self._fields) > field else None

    def annotation(self, name: Symbol) -> str | None:
        return _text(self._annotations.get(name))

    def time(self, name: Symbol) -> int | None:
        found: int | None = self._annotations.get(name)
        return found * 1000 if found is not None and _has_date(found) else None

    @property
    def texts(self) -> list[tuple[str, str | None]]:
        return [(str(key), _text(value)) for key, value in self.application_properties.items()]

    @property
    def body(self) -> bytes:
        """The data sections joined; a value of text or bytes as bytes; of another kind, as text."""
        bare = self._sections[envelope.BODY]
        items = batch_items(bare)
        if items:
            return items[0] if len(items) == 1 else b"".join(items)
        try:
            value = body_value(bare)
        except CodecError:
            return b""
        return value if isinstance(value, bytes) else (_text(value) or "").encode()


def enqueued_us(message: bytes) -> int | None:
    """When the broker took it in, in microseconds since 1970."""
    return Received("", None, message, 0).time(_ENQUEUED)


def _text(value: Any) -> str | None:
    """A value for looking at. Times are ISO 8601, bytes are hexadecimal."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Timestamp):
        return _date(value) if _has_date(value) else str(int(value))
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _has_date(milliseconds: int) -> bool:
    return _FIRST_DATE <= milliseconds <= _LAST_DATE


def _date(milliseconds: int) -> str:
    return (_EPOCH + timedelta(milliseconds=milliseconds)).isoformat()


_TIME = pa.timestamp("us", tz="UTC")
_TEXTS = pa.map_(pa.string(), pa.string())
Reader = Callable[[Received], Any]


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
    "locked_until": ("timestamp", _TIME, _stamp(_LOCKED_UNTIL)),
    "enqueued_time": ("timestamp", _TIME, _stamp(_ENQUEUED)),
    "received_time": ("timestamp", _TIME, _of("received_time")),
    "delivery_count": ("bigint", pa.int64(), _of("delivery_count")),
    "message_id": ("string", pa.string(), _property(0)),
    "session_id": ("string", pa.string(), _property(10)),
    "correlation_id": ("string", pa.string(), _property(5)),
    "content_type": ("string", pa.string(), _property(6)),
    "subject": ("string", pa.string(), _property(3)),
    "to": ("string", pa.string(), _property(2)),
    "reply_to": ("string", pa.string(), _property(4)),
    "partition_key": ("string", pa.string(), lambda row: row.annotation(_PARTITION_KEY)),
    "time_to_live_ms": ("bigint", pa.int64(), _of("time_to_live_ms")),
    "scheduled_enqueue_time": ("timestamp", _TIME, _stamp(_SCHEDULED)),
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
