"""A message that came from an entity, decoded as far as somebody asks.

Nothing here raises, whatever the bytes are. Anybody may put anything into a queue, and a row that
raised would keep a whole batch, and with it the queue, from being read. What cannot be read, is not
of its type or is out of the range of what holds it, is None.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from twinbus.amqp.sections import (
    DELIVERY_COUNT,
    ENQUEUED,
    SEQUENCE_NUMBER,
    TIME_TO_LIVE,
    VALUE,
    Sections,
    body_value,
    data_items,
    walk,
)
from twinbus.amqp.types import CodecError, Symbol, Timestamp

# The milliseconds that have a date, from the year 1 to the year 9999; AMQP's times go further.
_FIRST_DATE, _LAST_DATE = -62_135_596_800_000, 253_402_300_799_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT64 = 2**63

R = TypeVar("R")


class ReceivedMessage:
    """Times are in microseconds, which is what Arrow takes. What is read is kept: it is asked for
    again and again, or not at all."""

    __slots__ = (
        *("_annotations", "_application", "_fields", "_sections"),
        *("entity", "message", "received_time", "token"),
    )

    def __init__(self, entity: str, token: UUID | None, message: bytes, at_ms: int) -> None:
        self.entity = entity
        self.token = token
        self.message = message
        self.received_time = at_ms * 1000
        self._sections: tuple[Sections | None] | None = None
        self._annotations: dict[Any, Any] | None = None
        self._application: tuple[dict[Any, Any] | None] | None = None
        self._fields: list[Any] | None = None

    @property
    def lock_token(self) -> str | None:
        return None if self.token is None else str(self.token)

    @property
    def sections(self) -> Sections | None:
        """None if the bytes are no message."""
        if self._sections is None:
            self._sections = (_read(lambda: Sections(self.message)),)
        return self._sections[0]

    def _decoded(self, section: Callable[[Sections], R]) -> R | None:
        """Empty if the message has no such section; None if it cannot be read."""
        apart = self.sections
        return None if apart is None else _read(lambda: section(apart))

    @property
    def application_properties(self) -> dict[Any, Any] | None:
        if self._application is None:
            self._application = (self._decoded(Sections.application),)
        return self._application[0]

    def alias(self, name: str) -> str | None:
        """One of the application's properties, as text."""
        return _text((self.application_properties or {}).get(name))

    @property
    def annotations(self) -> dict[Any, Any]:
        if self._annotations is None:
            self._annotations = self._decoded(Sections.annotations) or {}
        return self._annotations

    @property
    def sequence_number(self) -> int | None:
        return _whole(self.annotations.get(SEQUENCE_NUMBER))

    @property
    def delivery_count(self) -> int | None:
        """How often it was handed out before."""
        return _whole(self._header(DELIVERY_COUNT, 0))

    @property
    def time_to_live_ms(self) -> int | None:
        return _whole(self._header(TIME_TO_LIVE, None))

    def _header(self, field: int, default: int | None) -> Any:
        fields = self._decoded(Sections.header)
        if fields is None:
            return None
        found = fields[field] if len(fields) > field else None
        return default if found is None else found

    def field(self, number: int) -> Any:
        """One of the message's properties, as it is."""
        if self._fields is None:
            self._fields = self._decoded(Sections.fields) or []
        return self._fields[number] if len(self._fields) > number else None

    def text(self, number: int) -> str | None:
        return _text(self.field(number))

    def annotation(self, name: Symbol) -> str | None:
        return _text(self.annotations.get(name))

    def time(self, name: Symbol) -> int | None:
        found = _whole(self.annotations.get(name))
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
        return self._decoded(_body)


def enqueued_us(message: bytes) -> int | None:
    """When the broker took it in, in microseconds since 1970."""
    return ReceivedMessage("", None, message, 0).time(ENQUEUED)


def _read(read: Callable[[], R]) -> R | None:
    try:
        return read()
    except CodecError:
        return None


def _body(apart: Sections) -> bytes:
    items = data_items(apart.body)
    if items:
        return items[0] if len(items) == 1 else b"".join(items)
    has_value = any(code == VALUE for code, _, _, _ in walk(apart.body))
    value = body_value(apart.body) if has_value else b""
    return value if isinstance(value, bytes) else (_text(value) or "").encode()


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
