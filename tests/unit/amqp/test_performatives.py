"""Every composite there and back, at full length, and what is refused of one."""

import struct
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.amqp.decoding import decode_all, decode_plain
from twinbus.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Accepted,
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Received,
    Rejected,
    Released,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
    encode_disposition,
    encode_transfer,
)
from twinbus.amqp.types import Array, CodecError, Described, Symbol, UInt, ULong, compound, encode

SYMBOLS = Array([Symbol("one"), Symbol("two")], 0xA3)
MAP = {Symbol("key"): "value"}
ERROR = Error("amqp:not-found", "it is not there", {Symbol("where"): "here"})

# Each composite with every field set, and how many fields the wire carries.
FULL: list[tuple[Composite, int]] = [
    (ERROR, 3),
    (Received(3, 2**40), 2),
    (Accepted(), 0),
    (Rejected(ERROR), 1),
    (Released(), 0),
    (Modified(True, False, MAP), 3),
    (
        Source("a", 1, "never", 5, True, MAP, "move", MAP, Released(), SYMBOLS, SYMBOLS),
        11,
    ),
    (Target("a", 2, "never", 5, True, MAP, SYMBOLS), 7),
    (Open("c", "h", 512, 9, 60_000, SYMBOLS, SYMBOLS, SYMBOLS, SYMBOLS, MAP), 10),
    (Begin(1, 2, 3, 4, 5, SYMBOLS, SYMBOLS, MAP), 8),
    (
        Attach(
            *("n", 7, True, 1, 1, Source("s"), Target("t"), {b"tag": Accepted()}, True),
            *(2**32 - 1, 2**63, SYMBOLS, SYMBOLS, MAP),
        ),
        14,
    ),
    (Flow(1, 2, 3, 4, 5, 6, 7, 8, True, True, MAP), 11),
    (Transfer(1, 2, b"tag", 0x80013700, True, True, 1, Accepted(), True, True, True), 11),
    (Disposition(True, 1, 2**32 - 1, True, Modified(True, True, MAP), True), 6),
    (Detach(1, True, ERROR), 3),
    (End(ERROR), 1),
    (Close(ERROR), 1),
    (SaslMechanisms(SYMBOLS), 1),
    (SaslInit("PLAIN", b"\0me\0you", "host"), 3),
    (SaslOutcome(0, b"more"), 2),
]
# Each with only what is mandatory.
LEAST: list[Composite] = [
    *(Error("amqp:not-found"), Received(0, 0), Rejected(), Modified(), Source(), Target()),
    *(Open("c"), Begin(), Attach("n", 0, False), Flow(), Transfer(0), Disposition(False, 0)),
    *(Detach(0), End(), Close(), SaslMechanisms(Symbol("ANONYMOUS")), SaslInit("ANONYMOUS")),
    SaslOutcome(0),
]


def names(value: Any) -> str:
    return type(value).__name__ if isinstance(value, Composite) else ""


def fields_of(raw: bytes) -> list[Any]:
    """The composite's list as it stands, behind its three bytes of descriptor."""
    values = decode_all(raw[3:])
    assert isinstance(values, list)
    return values


@pytest.mark.parametrize(("value", "count"), FULL, ids=names)
def test_a_composite_comes_back_with_every_field(value: Composite, count: int) -> None:
    assert decode_all(value.encoded()) == value
    assert decode_all(encode(value)) == value
    assert decode_plain(value.encoded(), 0)[0] == value


@pytest.mark.parametrize(("value", "count"), FULL, ids=names)
def test_a_composite_is_written_at_full_length_behind_a_smallulong(
    value: Composite, count: int
) -> None:
    raw = value.encoded()
    assert raw[:3] == bytes((0x00, 0x53, value.CODE))
    assert len(fields_of(raw)) == count


@pytest.mark.parametrize("value", LEAST, ids=names)
def test_a_composite_with_little_to_say_is_as_long_and_comes_back(value: Composite) -> None:
    raw = value.encoded()
    assert len(fields_of(raw)) == len(fields(value))  # type: ignore[arg-type]
    assert decode_all(raw) == value


@pytest.mark.parametrize("value", LEAST, ids=names)
def test_a_null_and_a_field_left_off_both_stand_for_the_default(value: Composite) -> None:
    mandatory = len([item for item in fields_of(value.encoded()) if item is not None])
    assert type(value).from_fields(decode_all(shortest(value))) == value
    padded = decode_all(shortest(value))
    padded += [None] * (len(fields(value)) - len(padded))  # type: ignore[arg-type]
    assert type(value).from_fields(padded) == value
    assert mandatory <= len(padded)


def shortest(value: Composite) -> bytes:
    """The composite's list as far as its mandatory fields reach."""
    required = {"Error": 1, "Received": 2, "Open": 1, "Attach": 3, "Transfer": 1, "Disposition": 2,
                "Detach": 1, "SaslMechanisms": 1, "SaslInit": 1, "SaslOutcome": 1}  # fmt: skip
    return encode(fields_of(value.encoded())[: required.get(names(value), 0)])


@pytest.mark.parametrize(
    "kind",
    [Error, Received, Open, Attach, Transfer, Disposition, Detach, SaslMechanisms, SaslInit,
     SaslOutcome],
)  # fmt: skip
def test_a_missing_mandatory_field_is_a_codec_error(kind: type[Composite]) -> None:
    head = bytes((0x00, 0x53, kind.CODE))
    for raw in (b"\x45", compound(0xC0, 1, b"\x40")):
        with pytest.raises(CodecError, match="mandatory"):
            decode_all(head + raw)


@pytest.mark.parametrize(("value", "count"), FULL, ids=names)
def test_one_field_too_many_is_a_codec_error(value: Composite, count: int) -> None:
    head, values = value.encoded()[:3], fields_of(value.encoded())
    with pytest.raises(CodecError, match="fields"):
        decode_all(head + encode([*values, None]))


@pytest.mark.parametrize(("value", "count"), FULL, ids=names)
def test_symbolic_and_long_descriptors_are_accepted(value: Composite, count: int) -> None:
    body = value.encoded()[3:]
    assert decode_all(b"\x00" + encode(Symbol(value.NAME)) + body) == value
    assert decode_all(b"\x00\x80" + struct.pack(">Q", value.CODE) + body) == value
    assert decode_all(b"\x00\xb3" + struct.pack(">I", len(value.NAME)) + value.NAME.encode() + body) == value  # fmt: skip # noqa: E501


@pytest.mark.parametrize("body", [b"\x40", b"\xc1\x01\x00", b"\xa1\x00", b"\x43"])
@pytest.mark.parametrize(("value", "count"), FULL, ids=names)
def test_a_composite_that_is_not_a_list_is_a_codec_error(
    value: Composite, count: int, body: bytes
) -> None:
    with pytest.raises(CodecError):
        decode_all(value.encoded()[:3] + body)


WRONG: list[Any] = [
    *("text", b"binary", UInt(5), True, 1.5, [], [UInt(1)], {}, {"k": 1}, -1, 2**63 - 1),
    *(Described(ULong(0x9999), None), Array([], 0x40), Symbol("symbol"), ERROR, Accepted()),
]


@given(st.sampled_from(FULL), st.data())
@settings(max_examples=1_000, deadline=None, database=None)
def test_what_is_read_of_mistyped_fields_can_be_written_again(
    example: tuple[Composite, int], data: st.DataObject
) -> None:
    """A field of the wrong type never gets past the decoder to surprise whoever reads it."""
    value, count = example
    values = fields_of(value.encoded())
    for _ in range(data.draw(st.integers(0, 2)) if count else 0):
        values[data.draw(st.integers(0, count - 1))] = data.draw(st.sampled_from(WRONG))
    raw = value.encoded()[:3] + encode(values)
    try:
        found = decode_all(raw)
    except CodecError:
        return
    assert decode_all(found.encoded()) == found


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Open, [UInt(1)]),
        (Open, ["c", None, "512"]),
        (Open, ["c", None, -1]),
        (Open, ["c", None, None, UInt(65536)]),
        (Open, ["c", None, None, None, 1.5]),
        (Open, ["c", None, 2**32]),
        (Open, ["c", None, True]),
        (Begin, [None, None, False]),
        (Open, ["c", *[None] * 8, "properties"]),
        (Begin, ["0"]),
        (Begin, [None, None, [UInt(1)]]),
        (Attach, ["n", "handle", True]),
        (Attach, ["n", UInt(0), UInt(1)]),
        (Attach, ["n", UInt(0), True, UInt(256)]),
        (Attach, ["n", UInt(0), True, *[None] * 6, "count"]),
        (Flow, [None, "window"]),
        (Detach, [UInt(0), True, "error"]),
        (Detach, [[]]),
        (End, [Accepted()]),
        (Close, [Described(ULong(0x9999), "error")]),
        (Rejected, [{}]),
        (Error, [b"condition"]),
        (Error, ["condition", None, "info"]),
        (Error, ["not äscii"]),
        (Modified, ["yes"]),
        (SaslInit, [b"ANONYMOUS"]),
        (SaslOutcome, ["0"]),
        (Disposition, [True, "first"]),
    ],
    ids=repr,
)
def test_a_field_of_the_wrong_type_is_a_codec_error(
    kind: type[Composite], values: list[Any]
) -> None:
    with pytest.raises(CodecError):
        decode_all(bytes((0x00, 0x53, kind.CODE)) + encode(values))


@pytest.mark.parametrize(
    "value",
    [
        Attach("n", 0, True, 256), Attach("n", 0, True, -1), Open("c", channel_max=65536),
        Attach("n", 2**32, True), Begin(remote_channel=-1), Error("not äscii"), Open("\ud800"),
        Attach("n", 0, True, max_message_size=2**64), SaslOutcome(300), Flow(link_credit=-1),
    ],
    ids=repr,
)  # fmt: skip
def test_a_field_out_of_range_refuses_to_be_written(value: Composite) -> None:
    with pytest.raises(CodecError):
        value.encoded()
    with pytest.raises(CodecError):
        encode([value])


def test_one_symbol_stands_where_several_may() -> None:
    opened = Open("c", offered_capabilities="one")
    assert decode_all(opened.encoded()).offered_capabilities == "one"
    assert type(decode_all(opened.encoded()).offered_capabilities) is Symbol


def test_the_outcomes_without_fields_are_read_as_the_one_instance_there_is() -> None:
    assert decode_all(bytes.fromhex("00532445")) is ACCEPTED
    assert decode_all(bytes.fromhex("005326c00100")) is RELEASED


UINTS = st.integers(0, 2**32 - 1) | st.sampled_from([0, 255, 256])


@given(UINTS, UINTS, st.binary(min_size=1, max_size=32), UINTS, st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None, database=None)
def test_the_quick_transfer_says_what_the_composite_says(
    handle: int, number: int, tag: bytes, message_format: int, settled: bool, more: bool
) -> None:
    raw = encode_transfer(handle, number, tag, message_format, settled, more)
    assert decode_all(raw) == Transfer(handle, number, tag, message_format, settled, more)
    assert len(fields_of(raw)) == 11
    assert len(raw) <= 64  # what session.TRANSFER_OVERHEAD sets aside


def test_a_continuing_transfer_repeats_no_delivery_id() -> None:
    raw = encode_transfer(1, None, b"tag", 5, False, True)
    assert decode_all(raw) == Transfer(1, None, None, None, False, True)
    assert len(fields_of(raw)) == 11


@given(st.booleans(), UINTS, UINTS, st.booleans())
@settings(max_examples=100, deadline=None, database=None)
def test_the_quick_disposition_says_what_the_composite_says(
    role: bool, first: int, last: int, settled: bool
) -> None:
    raw = encode_disposition(role, first, last, settled, Rejected(ERROR).encoded())
    assert decode_all(raw) == Disposition(role, first, last, settled, Rejected(ERROR))
    assert len(fields_of(raw)) == 6
