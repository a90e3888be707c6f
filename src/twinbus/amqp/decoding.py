"""AMQP 1.0 bytes as Python values, with nothing lost on the way.

There are several decoders over the same bytes. ``decode`` gives the typed values of ``types``.
``decode_plain`` gives bare ``int`` and ``str`` and is what reads the frames that come by the
thousand: nobody asks of a delivery-id whether it was a *uint*. ``decode_foreign`` reads what is an
application's own; whatever it reads ``encode`` can write.

Input is hostile until it is decoded: every size is checked against the bytes there are before
anything is allocated, and nesting is bounded. Whatever is wrong raises ``CodecError``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from twinbus.amqp.types import (
    ELEMENTS,
    NULL,
    Array,
    Byte,
    Char,
    CodecError,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

MAX_DEPTH = 32
# An array of nulls costs no bytes an element, so its count cannot be checked against its size. Few
# are allowed: such arrays, three bytes each, may themselves be an array's elements.
MAX_EMPTY_ELEMENTS = 32

Decoder = Callable[[bytes, int, int], tuple[Any, int]]

_read_u32 = struct.Struct(">I").unpack_from
_NULL_TRUE_FALSE = (None, True, False)


def _constant(value: Any) -> Decoder:
    def read(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        return value, pos

    return read


def _number(fmt: str, cast: Callable[[Any], Any] | None) -> Decoder:
    layout = struct.Struct(">" + fmt)
    unpack, width = layout.unpack_from, layout.size

    def read(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        return unpack(buf, pos)[0], pos + width

    def read_cast(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        assert cast is not None
        return cast(unpack(buf, pos)[0]), pos + width

    return read_cast if cast else read


def _octet(cast: Callable[[Any], Any] | None) -> Decoder:
    def read(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        return buf[pos], pos + 1

    def read_cast(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        assert cast is not None
        return cast(buf[pos]), pos + 1

    return read_cast if cast else read


def _fixed(width: int, cast: Callable[[bytes], Any]) -> Decoder:
    def read(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        end = pos + width
        if end > len(buf):
            raise CodecError(f"a value of {width} bytes runs past the end")
        return cast(buf[pos:end]), end

    return read


def _variable(wide: bool, cast: Callable[[bytes], Any]) -> Decoder:
    def read_small(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        start = pos + 1
        end = start + buf[pos]
        if end > len(buf):
            raise CodecError(f"a value of {buf[pos]} bytes runs past the end")
        return cast(buf[start:end]), end

    def read_wide(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        start = pos + 4
        end = start + _read_u32(buf, pos)[0]
        if end > len(buf):
            raise CodecError(f"a value of {end - start} bytes runs past the end")
        return cast(buf[start:end]), end

    return read_wide if wide else read_small


def _extent(buf: bytes, pos: int, wide: bool) -> tuple[int, int, int]:
    """Where a compound value's elements start and end, and how many there are."""
    if wide:
        size, count = _read_u32(buf, pos)[0], _read_u32(buf, pos + 4)[0]
        start, end = pos + 8, pos + 4 + size
    else:
        size, count = buf[pos], buf[pos + 1]
        start, end = pos + 2, pos + 1 + size
    if end > len(buf) or start > end:
        raise CodecError(f"a compound value of {size} bytes does not fit where it stands")
    return start, end, count


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise CodecError(f"values are nested more than {MAX_DEPTH} deep")


def _list(table: list[Decoder], wide: bool) -> Decoder:
    def read(buf: bytes, pos: int, depth: int) -> tuple[list[Any], int]:
        if wide:
            pos, end, count = _extent(buf, pos, wide)
        else:  # what `_extent` does, without the call: nearly every list is one of these
            end, count = pos + 1 + buf[pos], buf[pos + 1]
            pos += 2
            if end > len(buf):
                raise CodecError("a list runs past the end")
        if count > end - pos:
            raise CodecError(f"a list of {count} elements cannot fit in {end - pos} bytes")
        if depth >= MAX_DEPTH:
            _check_depth(depth)
        items: list[Any] = []
        append = items.append
        depth += 1
        for left in range(count, 0, -1):
            code = buf[pos]
            pos += 1
            if 0x40 <= code <= 0x42:  # null, true and false, as most fields are, without a call
                if code == 0x40 and end - pos == left - 1 and not buf[pos:end].strip(NULL):
                    items += [None] * left  # all that follow are null, too
                    pos = end
                    break
                append(_NULL_TRUE_FALSE[code - 0x40])
            else:
                value, pos = table[code](buf, pos, depth)
                append(value)
        if pos != end:
            raise CodecError("a list's elements do not end where its size says")
        return items, end

    return read


def _map(table: list[Decoder], wide: bool) -> Decoder:
    read_list = _list(table, wide)

    def read(buf: bytes, pos: int, depth: int) -> tuple[dict[Any, Any], int]:
        items, end = read_list(buf, pos, depth)
        if len(items) % 2:
            raise CodecError("a map has a key without a value")
        try:
            return dict(zip(items[::2], items[1::2], strict=True)), end
        except TypeError as error:
            raise CodecError("a map's key is itself a list, a map or an array") from error

    return read


def _array(table: list[Decoder], wide: bool) -> Decoder:
    def read(buf: bytes, pos: int, depth: int) -> tuple[Array, int]:
        start, end, count = _extent(buf, pos, wide)
        _check_depth(depth)
        depth += 1
        descriptor, pos, code = None, start + 1, buf[start]
        if code == 0:
            descriptor, pos = table[buf[pos]](buf, pos + 1, depth)
            code = buf[pos]
            pos += 1
        if code not in ELEMENTS:
            raise CodecError(f"no array has elements of type 0x{code:02x}")
        room = end - pos if code not in _ZERO_WIDTH else MAX_EMPTY_ELEMENTS
        if count > room:
            raise CodecError(f"an array of {count} elements cannot fit in {end - start} bytes")
        element, items = table[code], []
        for _ in range(count):
            value, pos = element(buf, pos, depth)
            items.append(value)
        if pos != end:
            raise CodecError("an array's elements do not end where its size says")
        return Array(items, code, descriptor), end

    return read


def _described(table: list[Decoder], composites: dict[Any, Callable[[list[Any]], Any]]) -> Decoder:
    def read(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        _check_depth(depth)
        descriptor, pos = table[buf[pos]](buf, pos + 1, depth + 1)
        value, pos = table[buf[pos]](buf, pos + 1, depth + 1)
        if not isinstance(descriptor, int | str):
            raise CodecError("a descriptor is a number or a symbol")
        build = composites.get(descriptor)
        if build is None:
            return Described(descriptor, value), pos
        if not isinstance(value, list):
            raise CodecError(f"the composite {descriptor!r} is not a list of fields")
        return build(value), pos

    return read


def _unknown(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    raise CodecError(f"0x{buf[pos - 1]:02x} is not an AMQP type")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8")


def _ascii(raw: bytes) -> str:
    return raw.decode("ascii")


def _symbol(raw: bytes) -> Symbol:
    return Symbol(raw.decode("ascii"))


def _char(raw: bytes) -> str:
    return raw.decode("utf-32-be")


def _typed_char(raw: bytes) -> Char:
    return Char(raw.decode("utf-32-be"))


def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)


def _boolean(raw: int) -> bool:
    if raw > 1:
        raise CodecError(f"0x{raw:02x} is not a boolean")
    return raw == 1


_ZERO_WIDTH = frozenset((0x40, 0x41, 0x42, 0x43, 0x44, 0x45))


def _build_table(typed: bool, composites: dict[Any, Callable[[list[Any]], Any]]) -> list[Decoder]:
    def cast(kind: Callable[[Any], Any]) -> Callable[[Any], Any] | None:
        return kind if typed else None

    table: list[Decoder] = [_unknown] * 256
    table[0x00] = _described(table, composites)
    table[0x40], table[0x41], table[0x42] = _constant(None), _constant(True), _constant(False)
    table[0x43] = _constant(UInt(0) if typed else 0)
    table[0x44] = _constant(ULong(0) if typed else 0)
    table[0x45] = lambda buf, pos, depth: ([], pos)
    table[0x50], table[0x51] = _octet(cast(UByte)), _number("b", cast(Byte))
    table[0x52], table[0x53] = _octet(cast(UInt)), _octet(cast(ULong))
    table[0x54], table[0x55] = _number("b", cast(Int)), _number("b", None)
    table[0x56] = _octet(_boolean)
    table[0x60], table[0x61] = _number("H", cast(UShort)), _number("h", cast(Short))
    table[0x70], table[0x71] = _number("I", cast(UInt)), _number("i", cast(Int))
    table[0x72] = _number("f", cast(Float))
    table[0x73] = _fixed(4, _typed_char if typed else _char)
    table[0x74] = _fixed(4, Decimal32)
    table[0x80], table[0x81] = _number("Q", cast(ULong)), _number("q", None)
    table[0x82], table[0x83] = _number("d", None), _number("q", cast(Timestamp))
    table[0x84] = _fixed(8, Decimal64)
    table[0x94], table[0x98] = _fixed(16, Decimal128), _fixed(16, _uuid)
    for base, wide in ((0xA0, False), (0xB0, True)):
        table[base] = _variable(wide, bytes)
        table[base + 1] = _variable(wide, _text)
        table[base + 3] = _variable(wide, _symbol if typed else _ascii)
    for base, wide in ((0xC0, False), (0xD0, True)):
        table[base] = _list(table, wide)
        table[base + 1] = _map(table, wide)
    table[0xE0], table[0xF0] = _array(table, False), _array(table, True)
    return table


_COMPOSITES: dict[Any, Callable[[list[Any]], Any]] = {}
_TYPED = _build_table(True, _COMPOSITES)
_PLAIN = _build_table(False, _COMPOSITES)
_FOREIGN = _build_table(True, {})


def register_composite(code: int, name: str, build: Callable[[list[Any]], Any]) -> None:
    """Make the decoders answer ``build(fields)`` for this descriptor, by number and by name."""
    _COMPOSITES[code] = build
    _COMPOSITES[name] = build


def _decoder(table: list[Decoder]) -> Callable[[bytes, int], tuple[Any, int]]:
    def read(buf: bytes, pos: int = 0) -> tuple[Any, int]:
        try:
            return table[buf[pos]](buf, pos + 1, 0)
        except CodecError:
            raise
        except (IndexError, struct.error) as error:
            raise CodecError("the bytes end in the middle of a value") from error
        except UnicodeDecodeError as error:
            raise CodecError(f"text is not valid: {error}") from error

    return read


decode = _decoder(_TYPED)
decode_plain = _decoder(_PLAIN)
# As `decode`, for what an application put into a message: a value may have a descriptor that a
# frame's part has too, and stays what it is, so that it can be written again as it came.
decode_foreign = _decoder(_FOREIGN)


def decode_all(buf: bytes) -> Any:
    """The one typed value that these bytes are."""
    value, end = decode(buf, 0)
    if end != len(buf):
        raise CodecError(f"{len(buf) - end} bytes are left over behind the value")
    return value


def skip(buf: bytes, pos: int, depth: int = 0) -> int:
    """Where the value at ``pos`` ends, without decoding what is in it."""
    try:
        code = buf[pos]
        width = code >> 4
        if code == 0:
            _check_depth(depth)
            return skip(buf, skip(buf, pos + 1, depth + 1), depth + 1)
        if width in (0xA, 0xC, 0xE):
            end = pos + 2 + buf[pos + 1]
        elif width in (0xB, 0xD, 0xF):
            end = pos + 5 + int(_read_u32(buf, pos + 1)[0])
        elif width in _FIXED_WIDTHS:
            end = pos + 1 + _FIXED_WIDTHS[width]
        else:
            raise CodecError(f"0x{code:02x} is not an AMQP type")
    except (IndexError, struct.error) as error:
        raise CodecError("the bytes end in the middle of a value") from error
    if end > len(buf):
        raise CodecError("a value runs past the end")
    return end


# How many bytes follow the constructor of a value that any bytes will do for.
_ANY_BYTES = {
    **dict.fromkeys((0x40, 0x41, 0x42, 0x43, 0x44, 0x45), 0),
    **dict.fromkeys((0x50, 0x51, 0x52, 0x53, 0x54, 0x55), 1),
    **dict.fromkeys((0x60, 0x61), 2),
    **dict.fromkeys((0x70, 0x71, 0x72, 0x74), 4),
    **dict.fromkeys((0x80, 0x81, 0x82, 0x83, 0x84), 8),
    **dict.fromkeys((0x94, 0x98), 16),
}


def ends_simple_map(buf: bytes, pos: int) -> int | None:
    """Where the map at ``pos`` ends, if all its keys are short ASCII and its values simple.

    Nearly every map that comes in a message is one of these, and looking at it takes a third of
    the time of decoding it. None says nothing against it: the decoders tell.
    """
    size = len(buf)
    if size < pos + 3 or buf[pos] != 0xC1:
        return None
    end, count = pos + 2 + buf[pos + 1], buf[pos + 2]
    if end > size or count % 2:
        return None
    pos += 3
    try:
        while pos < end:
            code, start = buf[pos], pos + 2
            if code not in (0xA1, 0xA3):
                return None
            pos = start + buf[pos + 1]
            if not buf[start:pos].isascii():
                return None
            code = buf[pos]
            if code == 0xA1:
                start = pos + 2
                pos = start + buf[pos + 1]
                buf[start:pos].decode()
            elif code in _ANY_BYTES:
                pos += 1 + _ANY_BYTES[code]
            elif code == 0xA0 or (code == 0xA3 and buf[pos + 2 : pos + 2 + buf[pos + 1]].isascii()):
                pos += 2 + buf[pos + 1]
            elif code == 0x56 and buf[pos + 1] < 2:
                pos += 2
            else:
                return None
            count -= 2
    except (IndexError, UnicodeDecodeError):
        return None
    return end if pos == end and count == 0 else None


_FIXED_WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
