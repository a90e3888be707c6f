"""AMQP 1.0 types as Python values, and the bytes that are written for them.

Python's own types stand for the AMQP type that is closest to them (``int`` is *long*, ``float`` is
*double*, ``str`` is *string*, ``bytes`` is *binary*); every other AMQP type has a small subclass
here, so that a value that was decoded encodes to the same type again. What has no encoding raises
``CodecError``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID


class CodecError(ValueError):
    """The bytes are not AMQP, or the value has no AMQP encoding."""


class UByte(int):
    """0 to 255."""


class UShort(int):
    """0 to 65,535."""


class UInt(int):
    """0 to 2**32 - 1."""


class ULong(int):
    """0 to 2**64 - 1."""


class Byte(int):
    """-128 to 127."""


class Short(int):
    """-32,768 to 32,767."""


class Int(int):
    """-2**31 to 2**31 - 1; a bare ``int`` is a *long*."""


class Timestamp(int):
    """Milliseconds since 1970 in UTC, kept as a number: datetimes do not reach far enough."""


class Float(float):
    """32 bits; a bare ``float`` is a *double*."""


class Char(str):
    """One Unicode character."""


class Symbol(str):
    """An ASCII name from a constrained domain."""


class Decimal32(bytes):
    """IEEE 754 decimal, its 4 bytes as they came."""


class Decimal64(bytes):
    """IEEE 754 decimal, its 8 bytes as they came."""


class Decimal128(bytes):
    """IEEE 754 decimal, its 16 bytes as they came."""


class Array(list[Any]):
    """Elements of one type. ``code`` is their constructor, ``descriptor`` set if they have one."""

    def __init__(self, items: list[Any], code: int, descriptor: Any = None) -> None:
        super().__init__(items)
        self.code = code
        self.descriptor = descriptor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        same_type = (other.code, other.descriptor) == (self.code, self.descriptor)
        return same_type and list.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor that nobody registered a class for."""

    descriptor: Any
    value: Any


Encoder = Callable[[Any], bytes]

_pack_u16 = struct.Struct(">H").pack
_pack_u32 = struct.Struct(">I").pack
_pack_u64 = struct.Struct(">Q").pack
_pack_i64 = struct.Struct(">q").pack

NULL = b"\x40"


def _ranged(name: str, low: int, high: int, write: Encoder) -> Encoder:
    def encode_ranged(value: Any) -> bytes:
        if not low <= value <= high:
            raise CodecError(f"{value} is out of range for {name}")
        return write(value)

    return encode_ranged


def encode_boolean(value: bool) -> bytes:
    return b"\x41" if value else b"\x42"


def encode_uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    if 0 < value < 256:
        return bytes((0x52, value))
    if not 0 <= value < 1 << 32:
        raise CodecError(f"{value} is out of range for uint")
    return b"\x70" + _pack_u32(value)


def encode_ulong(value: int) -> bytes:
    if value == 0:
        return b"\x44"
    if 0 < value < 256:
        return bytes((0x53, value))
    if not 0 <= value < 1 << 64:
        raise CodecError(f"{value} is out of range for ulong")
    return b"\x80" + _pack_u64(value)


def encode_int(value: int) -> bytes:
    if -128 <= value < 128:
        return b"\x54" + struct.pack(">b", value)
    if not -(1 << 31) <= value < 1 << 31:
        raise CodecError(f"{value} is out of range for int")
    return b"\x71" + struct.pack(">i", value)


def encode_long(value: int) -> bytes:
    if -128 <= value < 128:
        return b"\x55" + struct.pack(">b", value)
    if not -(1 << 63) <= value < 1 << 63:
        raise CodecError(f"{value} is out of range for long")
    return b"\x81" + _pack_i64(value)


def encode_timestamp(value: int) -> bytes:
    return b"\x83" + _pack_i64(value)


def encode_string(value: str) -> bytes:
    return _sized(0xA1, value.encode("utf-8"))


def encode_symbol(value: str) -> bytes:
    return _sized(0xA3, value.encode("ascii"))


def encode_binary(value: bytes) -> bytes:
    return _sized(0xA0, value)


def _sized(small_code: int, raw: bytes) -> bytes:
    size = len(raw)
    if size < 256:
        return bytes((small_code, size)) + raw
    return bytes((small_code + 0x10,)) + _pack_u32(size) + raw


def compound(small_code: int, count: int, body: bytes) -> bytes:
    """A list, a map or an array around elements that are already encoded."""
    size = len(body)
    if size < 255 and count < 256:
        return bytes((small_code, size + 1, count)) + body
    return bytes((small_code + 0x10,)) + _pack_u32(size + 4) + _pack_u32(count) + body


def encode_list(items: list[Any] | tuple[Any, ...]) -> bytes:
    if not items:
        return b"\x45"
    return compound(0xC0, len(items), b"".join([encode(item) for item in items]))


def encode_map(items: dict[Any, Any]) -> bytes:
    parts: list[bytes] = []
    for key, value in items.items():
        parts += (encode(key), encode(value))
    return compound(0xC1, len(parts), b"".join(parts))


def encode_array(array: Array) -> bytes:
    write = ELEMENTS.get(array.code)
    if write is None:
        raise CodecError(f"no array has elements of type 0x{array.code:02x}")
    try:
        body = b"".join([write(item) for item in array])
    except (struct.error, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CodecError(f"an element does not fit an array of 0x{array.code:02x}") from error
    constructor = bytes((array.code,))
    if array.descriptor is not None:
        constructor = b"\x00" + encode(array.descriptor) + constructor
    return compound(0xE0, len(array), constructor + body)


def _packed(fmt: str) -> Encoder:
    return struct.Struct(">" + fmt).pack


def _narrow(raw: bytes) -> bytes:
    return bytes((len(raw),)) + raw


def _wide(raw: bytes) -> bytes:
    return _pack_u32(len(raw)) + raw


def _compound_element(encode_whole: Encoder, wide: bool) -> Encoder:
    """A compound element of an array has the one size that the array's constructor promised."""

    def write(value: Any) -> bytes:
        whole = encode_whole(value)
        if whole == b"\x45":
            whole = b"\xc0\x01\x00"
        is_wide = whole[0] & 0x10
        if is_wide and not wide:
            raise CodecError("an element is too large for its array's type")
        if wide and not is_wide:
            return _pack_u32(whole[1] + 3) + _pack_u32(whole[2]) + whole[3:]
        return whole[1:]

    return write


def _nothing(expected: Any) -> Encoder:
    """An element without bytes: its array's type has said all that there is to it."""

    def write(value: Any) -> bytes:
        if value != expected:
            raise CodecError(f"an array that holds only {expected!r} cannot hold {value!r}")
        return b""

    return write


def _exact(width: int) -> Encoder:
    def write(value: bytes) -> bytes:
        if not isinstance(value, bytes) or len(value) != width:
            raise CodecError(f"{value!r} is not {width} bytes long")
        return value

    return write


def _one_char(value: str) -> bytes:
    if len(value) != 1:
        raise CodecError(f"{value!r} is not one character")
    return value.encode("utf-32-be")


ELEMENTS: dict[int, Encoder] = {
    0x40: _nothing(None), 0x41: _nothing(True), 0x42: _nothing(False), 0x43: _nothing(0),
    0x44: _nothing(0), 0x45: _nothing([]),
    0x50: _packed("B"), 0x51: _packed("b"), 0x52: _packed("B"), 0x53: _packed("B"),
    0x54: _packed("b"), 0x55: _packed("b"), 0x56: _packed("?"), 0x60: _packed("H"),
    0x61: _packed("h"), 0x70: _packed("I"), 0x71: _packed("i"), 0x72: _packed("f"),
    0x73: _one_char, 0x74: _exact(4), 0x80: _packed("Q"),
    0x81: _packed("q"), 0x82: _packed("d"), 0x83: _packed("q"), 0x84: _exact(8), 0x94: _exact(16),
    0x98: lambda value: value.bytes, 0xA0: _narrow, 0xB0: _wide,
    0xA1: lambda value: _narrow(value.encode()), 0xB1: lambda value: _wide(value.encode()),
    0xA3: lambda value: _narrow(value.encode("ascii")),
    0xB3: lambda value: _wide(value.encode("ascii")),
    0xC0: _compound_element(encode_list, False), 0xD0: _compound_element(encode_list, True),
    0xC1: _compound_element(encode_map, False), 0xD1: _compound_element(encode_map, True),
    0xE0: _compound_element(encode_array, False), 0xF0: _compound_element(encode_array, True),
}  # fmt: skip


def _encode_described(value: Described) -> bytes:
    return b"\x00" + encode(value.descriptor) + encode(value.value)


_ENCODERS: dict[type, Encoder] = {
    type(None): lambda value: NULL,
    bool: encode_boolean,
    UByte: _ranged("ubyte", 0, 255, lambda value: bytes((0x50, value))),
    UShort: _ranged("ushort", 0, 65535, lambda value: b"\x60" + _pack_u16(value)),
    UInt: encode_uint,
    ULong: encode_ulong,
    Byte: _ranged("byte", -128, 127, lambda value: b"\x51" + struct.pack(">b", value)),
    Short: _ranged("short", -32768, 32767, lambda value: b"\x61" + struct.pack(">h", value)),
    Int: encode_int,
    int: encode_long,
    Timestamp: encode_timestamp,
    Float: lambda value: b"\x72" + struct.pack(">f", value),
    float: lambda value: b"\x82" + struct.pack(">d", value),
    Char: lambda value: b"\x73" + _one_char(value),
    Decimal32: lambda value: b"\x74" + ELEMENTS[0x74](value),
    Decimal64: lambda value: b"\x84" + ELEMENTS[0x84](value),
    Decimal128: lambda value: b"\x94" + ELEMENTS[0x94](value),
    UUID: lambda value: b"\x98" + value.bytes,
    bytes: encode_binary,
    str: encode_string,
    Symbol: encode_symbol,
    list: encode_list,
    tuple: encode_list,
    dict: encode_map,
    Array: encode_array,
    Described: _encode_described,
}


def register_encoder(kind: type, write: Encoder) -> None:
    """Teach ``encode`` a composite class."""
    _ENCODERS[kind] = write


def encode(value: Any) -> bytes:
    """The AMQP encoding of a value, in the shortest form of its type."""
    try:
        write = _ENCODERS[type(value)]
    except KeyError:
        raise CodecError(f"{type(value).__name__} has no AMQP encoding") from None
    try:
        return write(value)
    except (struct.error, UnicodeEncodeError, OverflowError) as error:
        raise CodecError(f"{value!r} cannot be encoded: {error}") from error
