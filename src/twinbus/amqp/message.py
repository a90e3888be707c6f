"""A message as a broker has it: what must be known of it, with the rest kept as the bytes it was.

``Message.parse`` walks the sections, keeps the few that matter to a broker and reads all of them
but the body, so that nothing which is asked of a message later can fail: its maps can be decoded,
changed and written again. ``bare`` is everything from the properties on, byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any
from uuid import UUID

from twinbus.amqp.decoding import decode_foreign, decode_plain, ends_simple_map, skip
from twinbus.amqp.sections import (
    ANNOTATIONS,
    APPLICATION,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    PROPERTIES,
    SEQUENCE,
    descriptor,
    section,
    span,
)
from twinbus.amqp.types import (
    NULL,
    Byte,
    Char,
    CodecError,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    compound,
    encode,
    encode_binary,
    encode_boolean,
    encode_map,
    encode_uint,
)

_REPEATED = frozenset((DATA, SEQUENCE))
_MAPS = {
    DELIVERY_ANNOTATIONS: "delivery annotations",
    ANNOTATIONS: "message annotations",
    APPLICATION: "application properties",
    FOOTER: "footer",
}
_HEADER_HEAD = section(HEADER, b"")
# A header that says "durable" and nothing else, known at a glance.
_JUST_DURABLE = b"\x00\x53\x70\xc0\x02\x01\x41"


@dataclass(slots=True)
class Properties:
    """The message's properties, in the order of the wire."""

    message_id: Any = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: Any = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    creation_time: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None

    def encoded(self) -> bytes:
        values = [getattr(self, item.name) for item in fields(self)]
        for index, kind in _PROPERTY_TYPES.items():
            if values[index] is not None:
                values[index] = kind(values[index])  # the wire has but one type for these
        body = b"".join([NULL if value is None else encode(value) for value in values])
        return section(PROPERTIES, compound(0xC0, len(values), body))


def _symbol(text: str) -> str:
    """Some clients write a text where a symbol belongs: it stays one if no symbol can say it."""
    return Symbol(text) if text.isascii() else text


_PROPERTY_TYPES: dict[int, Any] = {6: _symbol, 7: _symbol, 8: Timestamp, 9: Timestamp, 11: UInt}
_NO_PROPERTIES = Properties()
# What each property may be, plain or typed: nothing behind the decoder is ready for a session whose
# id is a list.
_TEXT = frozenset((str, Symbol, Char))
_BINARY = frozenset((bytes,))
_NUMBER = frozenset((int, UByte, UShort, UInt, ULong, Byte, Short, Int, Timestamp))
_ID = _TEXT | _BINARY | _NUMBER | {UUID}
_PROPERTY_KINDS = (
    *(_ID, _BINARY, _TEXT, _TEXT, _TEXT, _ID, _TEXT, _TEXT, _NUMBER, _NUMBER),
    *(_TEXT, _NUMBER, _TEXT),
)


def _read_properties(values: Any) -> Properties:
    if not isinstance(values, list) or len(values) > 13:
        raise CodecError("a message's properties are not a list of 13 fields")
    if values and type(values[0]) is str and values.count(None) == len(values) - 1:
        return Properties(values[0])  # an id and nothing else: most messages
    for value, kinds in zip(values, _PROPERTY_KINDS):  # noqa: B905  the hot path, and 13 at most
        if value is not None and type(value) not in kinds:
            raise CodecError("a message's properties have a field that is not of its type")
    if len(values) > 11 and not 0 <= (values[11] or 0) <= 0xFFFFFFFF:
        raise CodecError("a message's group-sequence is out of range")
    for moment in values[8:10]:
        if moment is not None and moment >= 1 << 63:
            raise CodecError("a message's expiry or creation time is out of range")
    return Properties(*values)


def _lone_id(payload: bytes, start: int) -> tuple[Properties, int] | None:
    """Properties that are a short text for an id and nothing else, and where they end.

    Most messages have no others, and reading just these takes a quarter of the time.
    """
    if len(payload) < start + 5 or payload[start] != 0xC0 or payload[start + 3] != 0xA1:
        return None
    end = start + 2 + payload[start + 1]
    count = payload[start + 2]
    id_end = start + 5 + payload[start + 4]
    rest = payload[id_end:end]
    if end > len(payload) or len(rest) != count - 1 or rest.strip(NULL) or count > 13:
        return None
    try:
        return Properties(payload[start + 5 : id_end].decode()), end
    except UnicodeDecodeError:
        return None  # it is read as any other properties are, which says what is wrong with it


@dataclass(slots=True)
class Message:
    """A parsed message. ``annotations`` and ``delivery_annotations`` are raw maps, or None."""

    durable: bool = False
    priority: int | None = None
    ttl_ms: int | None = None
    delivery_annotations: bytes | None = None
    annotations: bytes | None = None
    properties: Properties = field(default_factory=Properties)
    bare: bytes = b""
    # Where `parse` found the application's properties: in which bytes, from where, to where.
    found: tuple[bytes, int, int] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def parse(cls, payload: bytes) -> Message:
        """Raises CodecError where the bytes are not a message."""
        message = cls(properties=_NO_PROPERTIES)
        pos, size = 0, len(payload)
        if payload.startswith(_JUST_DURABLE):
            message.durable, pos = True, len(_JUST_DURABLE)
        while pos < size:
            code, start = descriptor(payload, pos)
            if code >= PROPERTIES:
                break
            end = skip(payload, start)
            if code == HEADER:
                message._read_header(payload, start)
            elif code == ANNOTATIONS:
                _check_map(payload, start, code)
                message.annotations = payload[start:end]
            elif code == DELIVERY_ANNOTATIONS:
                _check_map(payload, start, code)
                message.delivery_annotations = payload[start:end]
            else:
                raise CodecError(f"0x{code:02x} is not a section of a message")
            pos = end
        message.bare = payload[pos:] if pos else payload
        message._check_body()
        return message

    def _take_late_annotations(self, pos: int, start: int) -> None:
        """Some clients write the delivery annotations last; they are put where they belong."""
        end = _check_map(self.bare, start, DELIVERY_ANNOTATIONS)
        if self.delivery_annotations is not None:
            raise CodecError("a message has delivery annotations twice")
        self.delivery_annotations = self.bare[start:end]
        self.bare = self.bare[:pos] + self.bare[end:]

    def _read_header(self, payload: bytes, start: int) -> None:
        values, _ = decode_plain(payload, start)
        if not isinstance(values, list):
            raise CodecError("a message's header is not a list")
        count = len(values)
        self.durable = bool(count > 0 and values[0])
        self.priority = _uint_or_none(values[1], 0xFF) if count > 1 else None
        self.ttl_ms = _uint_or_none(values[2], 0xFFFFFFFF) if count > 2 else None

    def _check_body(self) -> None:
        """Read the properties and maps, and make sure that sections make up the rest, not noise."""
        bare = self.bare
        last, pos, size = 0, 0, len(bare)
        starts = ends = 0
        while pos < size:
            code, start = descriptor(bare, pos)
            if code == DELIVERY_ANNOTATIONS:
                self._take_late_annotations(pos, start)
                bare = self.bare
                size = len(bare)
                continue
            if not PROPERTIES <= code <= FOOTER:
                raise CodecError(f"0x{code:02x} is not a section of a message's body")
            if code < last or (code == last and code not in _REPEATED):
                raise CodecError(f"the section 0x{code:02x} of a message is out of order")
            last = code
            if code == PROPERTIES:
                lone = _lone_id(bare, start)
                if lone is not None:
                    self.properties, pos = lone
                    continue
                values, pos = decode_plain(bare, start)
                self.properties = _read_properties(values)
            elif code in _MAPS:
                pos = _check_map(bare, start, code)
                if code == APPLICATION:
                    starts, ends = start, pos
            else:
                pos = skip(bare, start)
        self.found = (bare, starts, ends)

    def check_annotations(self) -> None:
        """Raise unless both kinds can be read; `parse` has made sure of those that it found."""
        if self.delivery_annotations is not None:
            _check_map(self.delivery_annotations, 0, DELIVERY_ANNOTATIONS)
        if self.annotations is not None:
            _check_map(self.annotations, 0, ANNOTATIONS)

    def annotation_map(self) -> dict[Any, Any]:
        return _map_or_empty(self.annotations, ANNOTATIONS)

    def application_properties(self) -> dict[str, Any]:
        """As the function of that name; but where they are, `parse` has already found out."""
        if self.found is None or self.found[0] is not self.bare:
            return application_properties(self.bare)
        bare, start, end = self.found
        return _map_or_empty(bare[start:end] or None, APPLICATION)


def _uint_or_none(value: Any, limit: int) -> int | None:
    if value is None or (type(value) is int and 0 <= value <= limit):
        return value
    raise CodecError("a message's header has a field that is not of its type")


def _map_or_empty(raw: bytes | None, code: int) -> dict[Any, Any]:
    return _read_map(raw, 0, code)[0] if raw is not None else {}


def _read_map(buf: bytes, pos: int, code: int) -> tuple[dict[Any, Any], int]:
    """A section's map, typed; a null is an empty one."""
    try:
        value, end = decode_foreign(buf, pos)
    except CodecError as error:
        raise CodecError(f"its {_MAPS[code]} are no map: {error}") from error
    if value is None:
        return {}, end
    if not isinstance(value, dict):
        raise CodecError(f"its {_MAPS[code]} are not a map")
    if code == APPLICATION and not all(isinstance(key, str) for key in value):
        raise CodecError("an application property's name is not a text")
    return value, end


def _check_map(buf: bytes, pos: int, code: int) -> int:
    """Where a section's map ends. Raises where `_read_map` does, and mostly without decoding."""
    end = ends_simple_map(buf, pos)
    return end if end is not None else _read_map(buf, pos, code)[1]


def encode_header(
    durable: bool, priority: int | None, ttl_ms: int | None, delivery_count: int
) -> bytes:
    body = (
        encode_boolean(durable)
        + (NULL if priority is None else encode(UByte(priority)))
        + (NULL if ttl_ms is None else encode_uint(ttl_ms))
        + b"\x42"
        + encode_uint(delivery_count)
    )
    return _HEADER_HEAD + compound(0xC0, 5, body)


def encode_annotations(items: dict[Any, Any]) -> bytes:
    return section(ANNOTATIONS, encode_map(items))


def application_properties(bare: bytes) -> dict[str, Any]:
    """The application's properties with their AMQP types."""
    _, start, end = span(bare, APPLICATION)
    return _map_or_empty(bare[start:end] or None, APPLICATION)


def with_application_properties(bare: bytes, items: dict[str, Any]) -> bytes:
    """The same message with other application properties; the body's bytes are untouched."""
    start, _, end = span(bare, APPLICATION)
    written = section(APPLICATION, encode_map(items)) if items else b""
    return bare[:start] + written + bare[end:]


def legible(bare: bytes) -> tuple[bytes, bytes]:
    """A message that can be read, made of one that cannot, and the section that it lost.

    If it is not the application's properties that cannot be read, all the bytes become its body.
    """
    try:
        start, _, end = span(bare, APPLICATION)
        rest = bare[:start] + bare[end:]
        Message.parse(rest)
    except CodecError:
        return section(DATA, encode_binary(bare)), b""
    return rest, bare[start:end]


def typed_properties(bare: bytes) -> Properties:
    """The properties with their AMQP types, for those who write them again or echo an id."""
    if not bare:
        return Properties()
    code, start = descriptor(bare, 0)
    if code != PROPERTIES:
        return Properties()
    return _read_properties(decode_foreign(bare, start)[0])


def with_properties(bare: bytes, properties: Properties) -> bytes:
    """The same message with other properties; the body's bytes are untouched."""
    end = 0
    if bare:
        code, start = descriptor(bare, 0)
        end = skip(bare, start) if code == PROPERTIES else 0
    return properties.encoded() + bare[end:]
