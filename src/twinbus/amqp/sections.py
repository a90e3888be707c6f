"""A message's sections: where they are, what is in them, and how they are put together again.

    header | delivery-annotations | message-annotations | properties | application-properties
           | data, or sequence, or value | footer

Nothing here looks further into a section than it is asked to. ``Sections`` is a message taken apart
once, for all that ask something of it afterwards; ``message`` is what a broker makes of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from twinbus.amqp.decoding import decode, decode_foreign, skip
from twinbus.amqp.types import CodecError, Symbol, encode

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION, DATA, SEQUENCE, VALUE, FOOTER = 0x73, 0x74, 0x75, 0x76, 0x77, 0x78
# ``Sections`` keeps all that follows the head in one piece, under the lowest code it can have.
BODY = DATA

# The fields of a header and of the properties that somebody asks for by their number.
TIME_TO_LIVE, FIRST_ACQUIRER, DELIVERY_COUNT = 2, 3, 4
MESSAGE_ID, CONTENT_TYPE, EXPIRY, GROUP_ID, FIELDS = 0, 6, 8, 10, 13

# What senders and brokers write into the message annotations.
SEQUENCE_NUMBER = Symbol("x-opt-sequence-number")
ENQUEUED = Symbol("x-opt-enqueued-time")
LOCKED_UNTIL = Symbol("x-opt-locked-until")
ORIGIN = Symbol("x-opt-enqueue-sequence-number")
STATE = Symbol("x-opt-message-state")
DEAD_SOURCE = Symbol("x-opt-deadletter-source")
SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
PARTITION_KEY = Symbol("x-opt-partition-key")

_NAMES = {
    b"amqp:header:list": HEADER,
    b"amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    b"amqp:message-annotations:map": ANNOTATIONS,
    b"amqp:properties:list": PROPERTIES,
    b"amqp:application-properties:map": APPLICATION,
    b"amqp:data:binary": DATA,
    b"amqp:amqp-sequence:list": SEQUENCE,
    b"amqp:amqp-value:*": VALUE,
    b"amqp:footer:map": FOOTER,
}

_HEAD, _BEHIND = range(HEADER, BODY), range(BODY, FOOTER + 1)
_HEADS = [b"\x00\x53" + bytes((code,)) for code in range(256)]

_AS_IT_IS: dict[int, Any] = {}

K = TypeVar("K", list[Any], dict[Any, Any])


def descriptor(buf: bytes, pos: int) -> tuple[int, int]:
    """The section's code at ``pos``, and where its value starts."""
    try:
        if buf[pos] == 0 and buf[pos + 1] == 0x53:
            return buf[pos + 2], pos + 3
        if buf[pos] == 0 and buf[pos + 1] == 0x80:
            return int.from_bytes(buf[pos + 2 : pos + 10]), pos + 10
        if buf[pos] == 0 and buf[pos + 1] == 0xA3:
            end = pos + 3 + buf[pos + 2]
            return _NAMES.get(buf[pos + 3 : end], -1), end
        if buf[pos] == 0 and buf[pos + 1] == 0xB3:
            end = pos + 6 + int.from_bytes(buf[pos + 2 : pos + 6])
            return _NAMES.get(buf[pos + 6 : end], -1), end
    except IndexError as error:
        raise CodecError("the message ends in the middle of a section") from error
    raise CodecError("a message's section has no descriptor")


def walk(payload: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Of each section, as they come, its code and where it, its value and its end are. Raises
    CodecError where there is none. What is in them is not looked at."""
    pos, size = 0, len(payload)
    while pos < size:
        code, start = descriptor(payload, pos)
        end = skip(payload, start)
        yield code, pos, start, end
        pos = end


def section(code: int, value: bytes) -> bytes:
    """A section whose value is encoded already."""
    return _HEADS[code] + value


def span(bare: bytes, wanted: int) -> tuple[int, int, int]:
    """Where a section starts, where its value starts and where it ends. If the message has no such
    section, all three are the place where it would be."""
    pos, size = 0, len(bare)
    while pos < size:
        code, start = descriptor(bare, pos)
        if code == wanted:
            return pos, start, skip(bare, start)
        if code > wanted:
            break
        pos = skip(bare, start)
    return pos, pos, pos


def data_items(bare: bytes) -> list[bytes]:
    """What is in the data sections."""
    return [binary(bare, start, end) for code, _, start, end in walk(bare) if code == DATA]


def binary(buf: bytes, start: int, end: int) -> bytes:
    """The bytes in the value of a data section."""
    if buf[start] == 0xA0:
        return buf[start + 2 : end]
    if buf[start] == 0xB0:
        return buf[start + 5 : end]
    raise CodecError("a data section is not binary")


def body_value(bare: bytes) -> Any:
    """The one value of an amqp-value body, typed; what requests and replies are made of."""
    for code, _, start, _ in walk(bare):
        if code == VALUE:
            return decode(bare, start)[0]
    raise CodecError("the message has no value for its body")


class Sections:
    """A message taken apart, its head by section and its body whole. Raises CodecError where the
    bytes are no sections, or one of the head is there twice.

    The SDK writes delivery annotations last; they are put where AMQP wants them.
    """

    __slots__ = ("_raw", "_read")

    def __init__(self, message: bytes) -> None:
        raw = self._raw = dict[int, bytes]()
        self._read: dict[int, Any] = {}
        bodies: list[bytes] = []
        try:
            for code, pos, start, end in walk(message):
                if code in _BEHIND:
                    bodies.append(message[pos:end])
                elif code in _HEAD and code not in raw:
                    raw[code] = message[start:end]
                else:
                    raise CodecError(f"the section {code:#x} does not belong there, or comes twice")
        except CodecError as error:
            raise CodecError(f"the bytes are not an encoded message: {error}") from error
        raw[BODY] = bodies[0] if len(bodies) == 1 else b"".join(bodies)

    @property
    def body(self) -> bytes:
        return self._raw[BODY]

    def raw(self, code: int) -> bytes:
        """A section's value, encoded; nothing if there is no such section."""
        return self._raw.get(code, b"")

    def header(self) -> list[Any]:
        return self._decoded(HEADER, list).copy()

    def annotations(self) -> dict[Any, Any]:
        return self._decoded(ANNOTATIONS, dict).copy()

    def application(self) -> dict[Any, Any]:
        return self._decoded(APPLICATION, dict).copy()

    def fields(self) -> list[Any]:
        """The properties, all thirteen of them."""
        fields = self._decoded(PROPERTIES, list)
        return fields + [None] * (FIELDS - len(fields))

    def _decoded(self, code: int, kind: type[K]) -> K:
        found: K | None = self._read.get(code)
        if found is None:
            raw = self._raw.get(code)
            found = self._read[code] = _value(raw, kind) if raw else kind()
        return found

    def joined(self, changes: Mapping[int, list[Any] | dict[Any, Any]] = _AS_IT_IS) -> bytes:
        """The message, with other sections in its head; an empty one is left out."""
        raw = self._raw
        if changes:
            raw = {**raw, **{code: _written(value) for code, value in changes.items()}}
        head = [_HEADS[code] + raw[code] for code in _HEAD if raw.get(code)]
        return b"".join((*head, raw[BODY]))


def _value(raw: bytes, kind: type[K]) -> K:
    try:
        value = decode_foreign(raw, 0)[0]
    except CodecError as error:
        raise CodecError(f"a section of the message is damaged: {error}") from error
    if type(value) is kind:
        return value
    if value is None:
        return kind()
    raise CodecError(f"a section of the message is {type(value).__name__}, of all things")


def _written(value: list[Any] | dict[Any, Any]) -> bytes:
    try:
        return encode(value) if value else b""
    except CodecError as error:
        raise CodecError(f"a section cannot be written again: {error}") from error
