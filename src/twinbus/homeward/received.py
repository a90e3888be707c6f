"""A message that came from an entity, decoded as far as somebody asks.

Nothing here raises, whatever the bytes are. Anybody may put anything into a queue, and a row that
raised would keep a whole batch, and with it the queue, from being read. What cannot be read, is not
of its type or is out of the range of what holds it, is None.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from twinbus import envelope
from twinbus.amqp.message import batch_items, body_value, sections
from twinbus.amqp.types import CodecError, Symbol, Timestamp, decode
from twinbus.client_errors import EnvelopeError

SEQUENCE_NUMBER = Symbol("x-opt-sequence-number")
ENQUEUED = Symbol("x-opt-enqueued-time")
LOCKED_UNTIL = Symbol("x-opt-locked-until")
SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
PARTITION_KEY = Symbol("x-opt-partition-key")
_TIME_TO_LIVE, _DELIVERY_COUNT = 2, 4
_VALUE = 0x77
# The milliseconds that have a date, from the year 1 to the year 9999; AMQP's times go further.
_FIRST_DATE, _LAST_DATE = -62_135_596_800_000, 253_402_300_799_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT64 = 2**63

K = TypeVar("K", list[Any], dict[Any, Any])


class Received:
    """Times are in microseconds, which is what Arrow takes."""

    __slots__ = (
        *("_annotations", "_application", "_fields", "_sections"),
        *("entity", "lock_token", "message", "received_time"),
    )

    def __init__(self, entity: str, lock_token: UUID | None, message: bytes, at_ms: int) -> None:
        self.entity = entity
        self.lock_token = None if lock_token is None else str(lock_token)
        self.message = message
        self.received_time = at_ms * 1000
        try:
            self._sections = envelope.split(message)
        except EnvelopeError:
            self._sections = {}
        self._annotations = self._decoded(envelope.ANNOTATIONS, dict) or {}
        # These two are asked for again and again, or not at all.
        self._application: tuple[dict[Any, Any] | None] | None = None
        self._fields: list[Any] | None = None

    def _decoded(self, section: int, kind: type[K]) -> K | None:
        """Empty if the message has no such section; None if it cannot be read."""
        raw = self._sections.get(section)
        if not raw:
            return kind() if self._sections else None
        try:
            value = decode(raw, 0)[0]
        except CodecError:
            return None
        return value if type(value) is kind else None

    @property
    def application_properties(self) -> dict[Any, Any] | None:
        if self._application is None:
            self._application = (self._decoded(envelope.APPLICATION, dict),)
        return self._application[0]

    @property
    def sequence_number(self) -> int | None:
        return _whole(self._annotations.get(SEQUENCE_NUMBER))

    @property
    def delivery_count(self) -> int | None:
        """How often it was handed out before."""
        return _whole(self._header(_DELIVERY_COUNT, 0))

    @property
    def time_to_live_ms(self) -> int | None:
        return _whole(self._header(_TIME_TO_LIVE, None))

    def _header(self, field: int, default: int | None) -> Any:
        fields = self._decoded(envelope.HEADER, list)
        if fields is None:
            return None
        found = fields[field] if len(fields) > field else None
        return default if found is None else found

    def field(self, number: int) -> Any:
        """One of the message's properties, as it is."""
        if self._fields is None:
            self._fields = self._decoded(envelope.PROPERTIES, list) or []
        return self._fields[number] if len(self._fields) > number else None

    def text(self, number: int) -> str | None:
        return _text(self.field(number))

    def annotation(self, name: Symbol) -> str | None:
        return _text(self._annotations.get(name))

    def time(self, name: Symbol) -> int | None:
        found = _whole(self._annotations.get(name))
        return found * 1000 if found is not None and _has_date(found) else None

    @property
    def texts(self) -> list[tuple[str, str | None]] | None:
        """The application's properties as text; no key twice, which Spark would not have."""
        found = self.application_properties
        if found is None:
            return None
        return list({str(_text(key)): _text(value) for key, value in found.items()}.items())

    @property
    def body(self) -> bytes | None:
        """The data sections joined; a value of text or bytes as bytes; of another kind, as text."""
        bare = self._sections.get(envelope.BODY)
        if bare is None:
            return None
        try:
            items = batch_items(bare)
            if items:
                return items[0] if len(items) == 1 else b"".join(items)
            value = body_value(bare) if _has_value(bare) else b""
        except CodecError:
            return None
        return value if isinstance(value, bytes) else (_text(value) or "").encode()


def enqueued_us(message: bytes) -> int | None:
    """When the broker took it in, in microseconds since 1970."""
    return Received("", None, message, 0).time(ENQUEUED)


def _has_value(bare: bytes) -> bool:
    return any(code == _VALUE for code, _, _, _ in sections(bare))


def _whole(value: Any) -> int | None:
    """The number, if it is one that 64 bits hold."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if is_whole and -_INT64 <= value < _INT64 else None


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
