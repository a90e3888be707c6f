"""Every AMQP type there and back, and nothing but CodecError for bytes that are none."""

import struct
import time
import tracemalloc
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from twinbus.amqp.decoding import MAX_DEPTH, decode, decode_all, decode_plain, skip
from twinbus.amqp.performatives import Accepted, Composite
from twinbus.amqp.types import (
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
    encode,
    encode_ulong,
)

RUNS = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)

CHARACTERS = st.characters(codec="utf-8")
TEXT = st.text(CHARACTERS, max_size=40) | st.text("aé€😀", min_size=256, max_size=300)
ASCII = st.text(st.characters(max_codepoint=127), max_size=40) | st.text(
    "az", min_size=256, max_size=300
)
BINARY = st.binary(max_size=40) | st.binary(min_size=254, max_size=300)
SINGLES = st.floats(width=32)
DOUBLES = st.floats()


def _ints(kind: type[int], low: int, high: int) -> st.SearchStrategy[int]:
    edges = st.sampled_from([low, high, max(low, -128), min(high, 127), min(high, 255), 0])
    return (st.integers(low, high) | edges).map(kind)


UBYTES, USHORTS = _ints(UByte, 0, 255), _ints(UShort, 0, 65535)
UINTS, ULONGS = _ints(UInt, 0, 2**32 - 1), _ints(ULong, 0, 2**64 - 1)
BYTES, SHORTS = _ints(Byte, -128, 127), _ints(Short, -(2**15), 2**15 - 1)
INTS, LONGS = _ints(Int, -(2**31), 2**31 - 1), _ints(int, -(2**63), 2**63 - 1)
TIMESTAMPS = _ints(Timestamp, -(2**63), 2**63 - 1)
UUIDS = st.uuids()

PRIMITIVES = st.one_of(
    st.none(),
    st.booleans(),
    *(UBYTES, USHORTS, UINTS, ULONGS, BYTES, SHORTS, INTS, LONGS, TIMESTAMPS),
    *(SINGLES.map(Float), DOUBLES, CHARACTERS.map(Char), UUIDS),
    st.binary(min_size=4, max_size=4).map(Decimal32),
    st.binary(min_size=8, max_size=8).map(Decimal64),
    st.binary(min_size=16, max_size=16).map(Decimal128),
    *(BINARY, TEXT, ASCII.map(Symbol)),
)
KEYS = st.one_of(TEXT, ASCII.map(Symbol), LONGS, UUIDS, BINARY)
# Numbers that no composite of ours is registered under.
DESCRIPTORS = st.integers(0x1000, 2**64 - 1).map(ULong) | st.just(Symbol("example:thing:list"))

ELEMENTS: dict[int, st.SearchStrategy[Any]] = {
    0x40: st.none(), 0x41: st.just(True), 0x42: st.just(False),
    0x43: st.just(UInt(0)), 0x44: st.just(ULong(0)), 0x45: st.builds(list),
    0x50: UBYTES, 0x51: BYTES, 0x52: _ints(UInt, 0, 255), 0x53: _ints(ULong, 0, 255),
    0x54: _ints(Int, -128, 127), 0x55: _ints(int, -128, 127), 0x56: st.booleans(),
    0x60: USHORTS, 0x61: SHORTS, 0x70: UINTS, 0x71: INTS, 0x72: SINGLES.map(Float),
    0x73: CHARACTERS.map(Char), 0x74: st.binary(min_size=4, max_size=4).map(Decimal32),
    0x80: ULONGS, 0x81: LONGS, 0x82: DOUBLES, 0x83: TIMESTAMPS,
    0x84: st.binary(min_size=8, max_size=8).map(Decimal64),
    0x94: st.binary(min_size=16, max_size=16).map(Decimal128), 0x98: UUIDS,
    0xA0: st.binary(max_size=255), 0xB0: BINARY,
    0xA1: st.text(CHARACTERS, max_size=60), 0xB1: TEXT,
    0xA3: st.text("az", max_size=255).map(Symbol), 0xB3: ASCII.map(Symbol),
    0xC0: st.lists(UINTS | st.none(), max_size=9), 0xD0: st.lists(PRIMITIVES, max_size=9),
    0xC1: st.dictionaries(LONGS, UINTS, max_size=5),
    0xD1: st.dictionaries(KEYS, PRIMITIVES, max_size=5),
    0xE0: st.lists(UINTS, max_size=9).map(lambda items: Array(items, 0x70)),
    0xF0: st.lists(TEXT, max_size=4).map(lambda items: Array(items, 0xB1)),
}  # fmt: skip


@st.composite
def arrays(draw: st.DrawFn, codes: tuple[int, ...] = tuple(ELEMENTS)) -> Array:
    code = draw(st.sampled_from(codes))
    items = draw(st.lists(ELEMENTS[code], max_size=6))
    return Array(items, code, draw(st.none() | DESCRIPTORS))


VALUES = st.recursive(
    PRIMITIVES | arrays(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(KEYS, inner, max_size=5),
        st.builds(Described, DESCRIPTORS, inner),
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal in value and in type, all the way down. NaN is itself, and -0.0 is not 0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack(">d", one) == struct.pack(">d", other) or (one != one and other != other)
    if isinstance(one, Array):
        return (
            one.code == other.code
            and same(one.descriptor, other.descriptor)
            and same(list(one), list(other))
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one), list(other)) and same(list(one.values()), list(other.values()))
    if isinstance(one, Described):
        return same(one.descriptor, other.descriptor) and same(one.value, other.value)
    return bool(one == other)


PLAIN = {
    **dict.fromkeys((UByte, UShort, UInt, ULong, Byte, Short, Int, Timestamp), int),
    Float: float,
    Char: str,
    Symbol: str,
}


def plain(value: Any) -> Any:
    """The value as ``decode_plain`` should give it: no integer or text keeps its AMQP type."""
    if isinstance(value, Array):
        return Array([plain(item) for item in value], value.code, plain(value.descriptor))
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, Described):
        return Described(plain(value.descriptor), plain(value.value))
    kind: Any = PLAIN.get(type(value))
    return kind(value) if kind else value


@given(VALUES)
@RUNS
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    assert same(decode_all(encode(value)), value)


@pytest.mark.parametrize("code", ELEMENTS, ids=hex)
@given(data=st.data())
@settings(RUNS, max_examples=25)
def test_an_array_of_every_element_type_comes_back(code: int, data: st.DataObject) -> None:
    array = data.draw(arrays((code,)))
    assert same(decode_all(encode(array)), array)


@pytest.mark.parametrize("code", ELEMENTS, ids=hex)
def test_an_empty_array_keeps_its_element_type(code: int) -> None:
    assert decode_all(encode(Array([], code))).code == code


@given(VALUES)
@RUNS
def test_plain_decoding_gives_equal_values_without_amqp_types(value: Any) -> None:
    found, end = decode_plain(encode(value), 0)
    assert same(found, plain(value))
    assert end == len(encode(value))


@given(VALUES, st.binary(max_size=9))
@RUNS
def test_skip_ends_where_decode_ends(value: Any, behind: bytes) -> None:
    raw = encode(value)
    assert skip(b"\x00" * 3 + raw + behind, 3) == 3 + len(raw)
    assert decode(b"\x00" * 3 + raw + behind, 3)[1] == 3 + len(raw)


@given(VALUES)
@settings(RUNS, max_examples=150)
def test_every_truncation_is_a_codec_error(value: Any) -> None:
    raw = encode(value)
    for size in range(len(raw)):
        for read in (decode_all, lambda part: decode_plain(part, 0), lambda part: skip(part, 0)):
            with pytest.raises(CodecError):
                read(raw[:size])


def reads_or_refuses(raw: bytes) -> None:
    for read in (decode, decode_plain, skip):
        try:
            read(raw, 0)
        except CodecError:
            continue


@given(st.binary(max_size=80))
@settings(RUNS, max_examples=2_000)
def test_any_bytes_decode_or_are_a_codec_error(raw: bytes) -> None:
    reads_or_refuses(raw)


# Noise seldom gets past its first constructor; this noise is made of constructors.
CONSTRUCTORS = bytes.fromhex(
    "00 40 43 45 50 53 56 70 73 80 a0 a1 a3 b1 c0 c1 d0 d1 e0 f0 01 02 03 04 05 10 24 28"
)


@given(st.lists(st.sampled_from(CONSTRUCTORS), max_size=60).map(bytes))
@settings(RUNS, max_examples=2_000)
@example(bytes.fromhex("00 00 40 45 40"))  # a descriptor that holds a list
@example(bytes.fromhex("00 00 53 24 45 40"))  # a descriptor that is a composite
@example(bytes.fromhex("c1 07 02 00 40 c0 01 00 40"))  # a map's key that holds a list
@example(bytes.fromhex("e0 05 01 00 43 00 40"))  # an array whose element type is described twice
def test_bytes_made_of_constructors_decode_or_are_a_codec_error(raw: bytes) -> None:
    reads_or_refuses(raw)


@given(VALUES, st.data())
@settings(RUNS, max_examples=600)
def test_a_damaged_encoding_decodes_or_is_a_codec_error(value: Any, data: st.DataObject) -> None:
    raw = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    reads_or_refuses(bytes(raw))


@given(st.lists(st.sampled_from(CONSTRUCTORS), max_size=40).map(bytes))
@settings(RUNS, max_examples=2_000)
@example(bytes.fromhex("e0 02 00 3f"))  # an empty array of a type that does not exist
@example(bytes.fromhex("e0 05 00 00 43 00"))  # an empty array of a type described twice
@example(bytes.fromhex("e0 04 00 00 43 00"))
def test_what_decodes_encodes_again_to_the_same_value(raw: bytes) -> None:
    try:
        value, _ = decode(raw, 0)
    except CodecError:
        return
    assert same_or_composite(decode_all(encode(value)), value)


def same_or_composite(one: Any, other: Any) -> bool:
    if isinstance(one, Composite):
        return bool(one == other)
    if isinstance(one, list | dict | Described):
        return repr(one) == repr(other)  # composites may be anywhere inside
    return same(one, other)


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (None, "40"), (True, "41"), (False, "42"),
        (UInt(0), "43"), (UInt(255), "52ff"), (UInt(256), "7000000100"),
        (ULong(0), "44"), (ULong(1), "5301"), (ULong(2**64 - 1), "80ffffffffffffffff"),
        (UByte(7), "5007"), (Byte(-1), "51ff"), (UShort(258), "600102"), (Short(-2), "61fffe"),
        (Int(-128), "5480"), (Int(128), "7100000080"), (5, "5505"), (-129, "81ffffffffffffff7f"),
        (Float(1.5), "723fc00000"), (1.5, "823ff8000000000000"), (Char("€"), "73000020ac"),
        (Timestamp(1), "830000000000000001"), (UUID(int=1), "98" + "00" * 15 + "01"),
        (b"ab", "a0026162"), ("é", "a102c3a9"), (Symbol("ab"), "a3026162"),
        ([], "45"), ([UInt(1), None], "c00402520140"), ({}, "c10100"),
        ({Symbol("a"): True}, "c10502a3016141"),
        (Array([Symbol("a"), Symbol("b")], 0xA3), "e00602a301610162"),
        (Described(ULong(0x1234), []), "00800000000000001234" + "45"),
        (Array([[], [UInt(0)]], 0xC0), "e00702c00100020143"),
    ],
)  # fmt: skip
def test_the_bytes_are_those_of_the_specification(value: Any, raw: str) -> None:
    assert encode(value).hex() == raw
    assert same(decode_all(bytes.fromhex(raw)), value)


@pytest.mark.parametrize(
    "raw",
    ["5600", "5601", "70 00000000", "80 0000000000000000", "71 00000000", "81 0000000000000000",
     "b0 00000001 61", "b1 00000001 61", "b3 00000001 61", "d0 00000004 00000000",
     "d1 00000004 00000000", "c0 01 00", "f0 00000005 00000000 40"],
)  # fmt: skip
def test_forms_longer_than_need_be_are_read_too(raw: str) -> None:
    value = decode_all(bytes.fromhex(raw))
    assert len(encode(value)) < len(bytes.fromhex(raw))
    assert same(decode_all(encode(value)), value)


@pytest.mark.parametrize(
    "value", ["x" * 256, Symbol("x" * 256), b"x" * 256, [None] * 256, {n: n for n in range(128)}]
)
def test_values_beyond_255_take_the_wide_form(value: Any) -> None:
    raw = encode(value)
    assert raw[0] & 0x10
    assert same(decode_all(raw), value)


@pytest.mark.parametrize("size", range(250, 262))
def test_compound_values_at_the_edge_of_the_wide_form_come_back(size: int) -> None:
    for value in ([UByte(1)] * size, ["x" * (size - 4)], {"k": b"x" * (size - 6)}):
        assert same(decode_all(encode(value)), value)
    for code in (0xD0, 0xD1, 0xF0):
        item: Any = {0xD0: ["x" * size], 0xD1: {"k": "x" * size}}.get(
            code, Array([b"x" * size], 0xB0)
        )
        assert same(decode_all(encode(Array([item, item], code))), Array([item, item], code))


@pytest.mark.parametrize(
    "value",
    [
        UByte(256), UByte(-1), UShort(65536), UInt(2**32), UInt(-1), ULong(2**64), ULong(-1),
        Byte(128), Byte(-129), Short(2**15), Int(2**31), Int(-(2**31) - 1), 2**63, -(2**63) - 1,
        Timestamp(2**63), Float(1e39), Symbol("é"), "\ud800", Char("\ud800"),
        Char("ab"), Char(""), Decimal32(b"123"), Decimal64(b"1234"), Decimal128(b""),
        object(), {1, 2}, 1j, [object()], {"a": object()}, Described(ULong(1), object()),
    ],
    ids=lambda value: repr(value).split(" at ")[0],
)  # fmt: skip
def test_a_value_without_an_encoding_is_refused(value: Any) -> None:
    with pytest.raises(CodecError):
        encode(value)


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ([256], 0x50), ([-1], 0x52), ([2**32], 0x70), ([128], 0x51), ([2**63], 0x81), (["x"], 0x70),
        ([1e39], 0x72), ([b"x" * 256], 0xA0), (["x" * 256], 0xA1), (["é"], 0xA3), ([1], 0xA1),
        ([["x" * 256]], 0xC0), ([{1: "x" * 256}], 0xC1), ([Array(["x" * 256], 0xB1)], 0xE0),
        ([b"123"], 0x74), ([4], 0x74), ([b"123"], 0x84), ([b"123"], 0x94), (["ab"], 0x73),
        ([1], 0x40), ([False], 0x41), ([True], 0x42), ([1], 0x43), ([1], 0x44), ([[1]], 0x45),
        ([1], 0x00), ([1], 0x3F),
    ],
)  # fmt: skip
def test_an_array_refuses_an_element_that_does_not_fit_its_type(
    items: list[Any], code: int
) -> None:
    with pytest.raises(CodecError):
        encode(Array(items, code))


@pytest.mark.parametrize(
    "raw",
    ["5602", "a101ff", "a30180", "73 0000d800", "73 00110000", "c101 01", "c10201 40",
     "c1 04 02 45 40 40", "c0 02 02 40", "c0 03 01 40 40", "c0 00", "e0 01 00", "e0 03 02 56 00",
     "d0 00000003 00000000", "3f", "46", "f0 00000004 00000000", "00 45 40", "00 c10100 40",
     "00 5324 40", "00 40 40", "00 98 00000000000000000000000000000000 40"],
)  # fmt: skip
def test_malformed_bytes_are_refused(raw: str) -> None:
    with pytest.raises(CodecError):
        decode_all(bytes.fromhex(raw))


def test_bytes_behind_the_one_value_are_refused() -> None:
    with pytest.raises(CodecError, match="2 bytes are left over"):
        decode_all(b"\x40\x40\x40")


def nested(level: bytes, times: int) -> bytes:
    """``times`` values around a null; ``level`` is a constructor with an empty size."""
    raw = NULLED
    for _ in range(times):
        if level == b"\x00":
            raw = b"\x00\x80" + bytes(6) + b"\xff\xff" + raw
        elif level == b"\xd0":
            raw = b"\xd0" + struct.pack(">II", len(raw) + 4, 1) + raw
        elif level == b"\xd1":
            raw = b"\xd1" + struct.pack(">II", len(raw) + 5, 2) + b"\x40" + raw
        else:
            raw = b"\xf0" + struct.pack(">II", len(raw) + 4, 1) + raw
    return raw


NULLED = b"\x40"


@pytest.mark.parametrize("level", [b"\x00", b"\xd0", b"\xd1", b"\xf0"])
def test_nesting_is_read_to_its_limit_and_refused_beyond(level: bytes) -> None:
    decode_all(nested(level, MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, 5_000):
        for read in (decode, decode_plain):
            with pytest.raises(CodecError, match="nested"):
                read(nested(level, depth), 0)


def test_a_descriptor_of_descriptors_is_refused_without_recursion() -> None:
    for read in (decode, decode_plain, skip):
        with pytest.raises(CodecError, match="nested"):
            read(b"\x00" * 100_000, 0)


HUGE = 2**32 - 1


@pytest.mark.parametrize(
    "raw",
    [
        b"\xd0" + struct.pack(">II", HUGE, HUGE),
        b"\xd0" + struct.pack(">II", 5, HUGE) + b"\x40",
        b"\xd1" + struct.pack(">II", 5, HUGE - 1) + b"\x40",
        b"\xf0" + struct.pack(">II", 5, HUGE) + b"\x40",
        b"\xf0" + struct.pack(">II", 5, HUGE) + b"\x45",
        b"\xf0" + struct.pack(">II", 6, HUGE) + b"\x50\x00",
        b"\xf0" + struct.pack(">II", 9, HUGE) + b"\x00\xa3\x01a\x40",
        b"\xb0" + struct.pack(">I", HUGE),
        b"\xb1" + struct.pack(">I", HUGE) + b"x" * 100,
    ],
)
def test_a_huge_count_or_size_is_refused_at_once(raw: bytes) -> None:
    tracemalloc.start()
    began = time.perf_counter()
    for read in (decode, decode_plain):
        with pytest.raises(CodecError):
            read(raw, 0)
    took, (_, peak) = time.perf_counter() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took < 0.1
    assert peak < 100_000


def test_arrays_of_nothing_in_an_array_do_not_multiply_memory() -> None:
    """An element without bytes is free to send: neither its count nor a sum of counts may be."""
    inner = struct.pack(">II", 5, 65_536) + b"\x40"
    raw = b"\xf0" + struct.pack(">II", 5 + 500 * len(inner), 500) + b"\xf0" + inner * 500
    narrow = b"\x02\xff\x40"
    other = b"\xf0" + struct.pack(">II", 5 + 2_000 * 3, 2_000) + b"\xe0" + narrow * 2_000
    for bomb in (raw, other):
        tracemalloc.start()
        with pytest.raises(CodecError):
            decode(bomb, 0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 200 * len(bomb)


def test_arrays_of_one_content_and_two_types_differ() -> None:
    one, other = Array([1], 0x70), Array([1], 0x71)
    assert not one == other  # noqa: SIM201  both operators are the subject
    assert one != other
    assert one == Array([1], 0x70)
    assert not one != Array([1], 0x70)  # noqa: SIM202


def test_a_composite_is_built_wherever_it_stands() -> None:
    assert decode_all(bytes.fromhex("c0 05 01 00 53 24 45")) == [Accepted()]


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_a_number_that_no_ulong_can_say_is_refused_as_one(value: int) -> None:
    with pytest.raises(CodecError):
        encode_ulong(value)
