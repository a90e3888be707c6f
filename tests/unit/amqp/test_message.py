"""A message as sections: what is read of it, and that the rest stays the bytes it was."""

import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from twinbus.amqp.decoding import decode_all, ends_simple_map
from twinbus.amqp.message import (
    Message,
    Properties,
    application_properties,
    encode_annotations,
    encode_header,
    typed_properties,
    with_application_properties,
    with_properties,
)
from twinbus.amqp.sections import body_value, data_items
from twinbus.amqp.types import (
    Char,
    CodecError,
    Described,
    Int,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    encode,
    encode_list,
    encode_map,
)

RUNS = settings(max_examples=200, deadline=None, database=None)


def section(code: int, raw: bytes) -> bytes:
    return bytes((0x00, 0x53, code)) + raw


def data(raw: bytes) -> bytes:
    return section(0x75, encode(raw))


def wide_data(raw: bytes) -> bytes:
    return section(0x75, b"\xb0" + struct.pack(">I", len(raw)) + raw)


HEADER = section(0x70, encode([True, UByte(7), UInt(60_000), False, UInt(2)]))
DELIVERY_ANNOTATIONS = section(0x71, encode({Symbol("x-opt-lock-token"): UUID(int=5)}))
ANNOTATIONS = section(0x72, encode({Symbol("x-opt-partition-key"): "p", Symbol("n"): Int(-5)}))
PROPERTIES = section(0x73, encode([UUID(int=9), None, "to", "subject"]))
APPLICATION = section(0x74, encode({"colour": "red", "size": Int(5), "at": Timestamp(7)}))
FOOTER = section(0x78, encode({Symbol("crc"): UInt(5)}))

BODIES = st.one_of(
    st.binary(max_size=400).map(data),
    st.lists(st.binary(max_size=300), min_size=2, max_size=4).map(
        lambda parts: b"".join(map(data, parts))
    ),
    st.binary(max_size=20).map(wide_data),
    st.lists(st.lists(st.integers(-9, 9)), min_size=1, max_size=3).map(
        lambda rows: b"".join(section(0x76, encode_list(row)) for row in rows)
    ),
    st.one_of(st.text(max_size=20), st.floats(), st.none(), st.dictionaries(st.text(), st.text()))
    .map(encode)
    .map(lambda raw: section(0x77, raw)),
    # The value's inside is nobody's business, so it may as well be noise.
    st.binary(max_size=50).map(lambda raw: section(0x77, b"\xc0" + bytes((len(raw),)) + raw)),
)
OPTIONAL = st.booleans()


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """The part a broker may change and the bare message behind it."""
    front = [part for part in (HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS) if draw(OPTIONAL)]
    bare = [part for part in (PROPERTIES, APPLICATION) if draw(OPTIONAL)]
    tail = [FOOTER] if draw(OPTIONAL) else []
    return b"".join(front), b"".join([*bare, draw(BODIES), *tail])


@given(messages())
@RUNS
def test_the_bare_message_is_kept_byte_for_byte(parts: tuple[bytes, bytes]) -> None:
    front, bare = parts
    assert Message.parse(front + bare).bare == bare


def test_header_and_annotations_are_read_and_stripped() -> None:
    raw = HEADER + DELIVERY_ANNOTATIONS + ANNOTATIONS + PROPERTIES + data(b"body")
    message = Message.parse(raw)
    assert (message.durable, message.priority, message.ttl_ms) == (True, 7, 60_000)
    assert message.annotation_map() == {"x-opt-partition-key": "p", "n": -5}
    assert type(message.annotation_map()["n"]) is Int
    assert message.annotations == ANNOTATIONS[3:]
    assert message.delivery_annotations == DELIVERY_ANNOTATIONS[3:]
    assert message.properties == Properties(UUID(int=9), None, "to", "subject")
    assert message.bare == PROPERTIES + data(b"body")


@pytest.mark.parametrize(
    "header",
    [b"\xc0\x02\x01\x41", b"\xc0\x03\x01\x56\x01", b"\xd0\x00\x00\x00\x05\x00\x00\x00\x01\x41"],
    ids=["short", "with a byte for true", "wide"],
)
def test_a_header_that_says_durable_alone_is_read_however_it_is_written(header: bytes) -> None:
    message = Message.parse(section(0x70, header) + ANNOTATIONS + data(b"body"))
    assert message == Message(durable=True, annotations=ANNOTATIONS[3:], bare=data(b"body"))


def test_a_message_of_a_body_alone_has_the_defaults() -> None:
    message = Message.parse(data(b"body"))
    assert message == Message(bare=data(b"body"))
    assert message.annotation_map() == {}
    assert application_properties(message.bare) == {}
    assert typed_properties(message.bare) == Properties()


def test_an_empty_payload_is_an_empty_message() -> None:
    assert Message.parse(b"") == Message()


def test_a_short_header_and_one_of_nulls_give_the_defaults() -> None:
    for raw in (b"\x45", encode([None]), encode([None] * 5)):
        message = Message.parse(section(0x70, raw) + data(b""))
        assert (message.durable, message.priority, message.ttl_ms) == (False, None, None)


def test_null_annotations_are_no_annotations() -> None:
    assert Message.parse(section(0x72, b"\x40") + data(b"")).annotation_map() == {}


NAMES = {
    0x70: "amqp:header:list", 0x71: "amqp:delivery-annotations:map",
    0x72: "amqp:message-annotations:map", 0x73: "amqp:properties:list",
    0x74: "amqp:application-properties:map", 0x75: "amqp:data:binary",
    0x76: "amqp:amqp-sequence:list", 0x77: "amqp:amqp-value:*", 0x78: "amqp:footer:map",
}  # fmt: skip


@pytest.mark.parametrize("form", ["symbol", "long"])
def test_sections_are_known_by_symbol_and_by_long_descriptor_too(form: str) -> None:
    def rewritten(part: bytes) -> bytes:
        name = NAMES[part[2]].encode()
        descriptor = (
            b"\xa3" + bytes((len(name),)) + name
            if form == "symbol"
            else b"\x80" + struct.pack(">Q", part[2])
        )
        return b"\x00" + descriptor + part[3:]

    front = rewritten(HEADER) + rewritten(DELIVERY_ANNOTATIONS) + rewritten(ANNOTATIONS)
    for body in (data(b"x"), section(0x76, b"\x45"), section(0x77, b"\x40")):
        bare = rewritten(PROPERTIES) + rewritten(APPLICATION) + rewritten(body) + rewritten(FOOTER)
        message = Message.parse(front + bare)
        assert message.bare == bare
        assert message.priority == 7
        assert message.properties.subject == "subject"
        assert message.annotation_map()["x-opt-partition-key"] == "p"
        assert application_properties(bare)["colour"] == "red"
        assert typed_properties(bare).to == "to"


PROPERTY_VALUES: dict[str, Any] = {
    "message_id": "id",
    "user_id": b"user",
    "to": "to",
    "subject": "subject",
    "reply_to": "reply",
    "correlation_id": ULong(5),
    "content_type": Symbol("text/plain"),
    "content_encoding": Symbol("gzip"),
    "absolute_expiry_time": Timestamp(2**60),
    "creation_time": Timestamp(-1),
    "group_id": "session",
    "group_sequence": UInt(2**32 - 1),
    "reply_to_group_id": "other",
}


def test_every_property_comes_back_with_its_type() -> None:
    given_ = Properties(**PROPERTY_VALUES)
    bare = with_properties(data(b"x"), given_)
    found = typed_properties(bare)
    assert found == given_
    for name, value in PROPERTY_VALUES.items():
        assert type(getattr(found, name)) is type(value), name
    assert Message.parse(bare).properties == given_


def test_properties_given_as_plain_values_are_written_with_the_types_of_the_wire() -> None:
    plain = Properties(content_type="text/plain", creation_time=5, group_sequence=7)
    found = typed_properties(with_properties(b"", plain))
    assert [type(found.content_type), type(found.creation_time), type(found.group_sequence)] == [
        *(Symbol, Timestamp, UInt)
    ]


@pytest.mark.parametrize("message_id", [ULong(2**64 - 1), UUID(int=3), b"binary", "text"])
def test_a_message_id_may_be_of_any_of_its_four_types(message_id: Any) -> None:
    raw = section(0x73, encode([message_id, *[None] * 4, message_id])) + data(b"")
    assert Message.parse(raw).properties == Properties(message_id, correlation_id=message_id)
    assert type(typed_properties(raw).correlation_id) is type(message_id)


@given(messages())
@RUNS
def test_other_properties_change_only_their_section(parts: tuple[bytes, bytes]) -> None:
    bare = parts[1]
    rest = bare[len(PROPERTIES) :] if bare.startswith(PROPERTIES) else bare
    changed = with_properties(bare, Properties(message_id="new"))
    assert changed.endswith(rest)
    assert typed_properties(changed) == Properties(message_id="new")
    assert Message.parse(changed).properties.message_id == "new"
    assert application_properties(changed) == application_properties(bare)
    again = with_properties(changed, typed_properties(changed))
    assert again == changed


@given(messages())
@RUNS
def test_other_application_properties_change_only_their_section(
    parts: tuple[bytes, bytes],
) -> None:
    bare = parts[1]
    head = PROPERTIES if bare.startswith(PROPERTIES) else b""
    body = bare[len(head) :].removeprefix(APPLICATION)
    changed = with_application_properties(bare, {"n": Int(5), "c": Char("x"), "s": Symbol("y")})
    section_ = section(0x74, encode_map({"n": Int(5), "c": Char("x"), "s": Symbol("y")}))
    assert changed == head + section_ + body
    assert {key: type(value) for key, value in application_properties(changed).items()} == {
        "n": Int,
        "c": Char,
        "s": Symbol,
    }
    assert with_application_properties(changed, {}) == head + body


def test_application_properties_added_to_others_leave_those_as_they_were() -> None:
    bare = PROPERTIES + APPLICATION + data(b"x")
    changed = with_application_properties(bare, {**application_properties(bare), "new": True})
    found = application_properties(changed)
    assert found == {"colour": "red", "size": 5, "at": 7, "new": True}
    assert (type(found["size"]), type(found["at"])) == (Int, Timestamp)


def test_a_batch_is_one_message_a_data_section() -> None:
    inner = [PROPERTIES + data(b"one"), data(b"two" * 100), data(b"")]
    envelope = PROPERTIES + b"".join(map(data, inner)) + wide_data(inner[0])
    assert data_items(envelope) == [*inner, inner[0]]
    assert data_items(b"") == []


@pytest.mark.parametrize(
    "raw", [section(0x75, b"\x40"), section(0x75, encode("text")), data(b"x")[:-1], b"\x00\x53"]
)
def test_a_batch_that_is_none_is_a_codec_error(raw: bytes) -> None:
    with pytest.raises(CodecError):
        data_items(raw)


def test_the_value_of_a_body_is_read_with_its_type() -> None:
    bare = PROPERTIES + APPLICATION + section(0x77, encode({"a": [UInt(5), UUID(int=1)]}))
    value = body_value(bare)
    assert value == {"a": [5, UUID(int=1)]}
    assert type(value["a"][0]) is UInt
    with pytest.raises(CodecError, match="no value"):
        body_value(PROPERTIES + data(b"x"))


@pytest.mark.parametrize("priority", [None, 0, 255])
@pytest.mark.parametrize("ttl_ms", [None, 0, 2**32 - 1])
def test_a_header_that_was_written_reads_the_same(priority: int | None, ttl_ms: int | None) -> None:
    raw = encode_header(True, priority, ttl_ms, 3)
    assert decode_all(raw).value == [True, priority, ttl_ms, False, 3]
    assert type(decode_all(raw).value[4]) is UInt
    message = Message.parse(raw + data(b""))
    assert (message.durable, message.priority, message.ttl_ms) == (True, priority, ttl_ms)


def test_annotations_that_were_written_read_the_same() -> None:
    items = {Symbol("x-opt-sequence-number"): 5, Symbol("x-opt-enqueued-time"): Timestamp(7)}
    found = Message.parse(encode_annotations(items) + data(b"")).annotation_map()
    assert found == items
    assert [type(key) for key in found] == [Symbol, Symbol]
    assert [type(value) for value in found.values()] == [int, Timestamp]


@pytest.mark.parametrize(("priority", "ttl_ms"), [(256, None), (-1, None), (None, 2**32)])
def test_a_header_out_of_range_refuses_to_be_written(
    priority: int | None, ttl_ms: int | None
) -> None:
    with pytest.raises(CodecError):
        encode_header(False, priority, ttl_ms, 0)


@pytest.mark.parametrize(
    "raw",
    [
        section(0x70, encode([None, "high"])),
        section(0x70, encode([None, UInt(256)])),
        section(0x70, encode([None, -1])),
        section(0x70, encode([None, None, "soon"])),
        section(0x70, encode([None, None, -1])),
        section(0x70, encode([None, None, 2**32])),
        section(0x70, encode([None, None, [UInt(1)]])),
        section(0x70, encode("header")),
        section(0x73, encode([[]])),
        section(0x73, encode([1.5])),
        section(0x73, encode([True])),
        section(0x73, encode([None, "user"])),
        section(0x73, encode([None, None, {}])),
        section(0x73, encode([*[None] * 8, "soon"])),
        section(0x73, encode([*[None] * 10, UInt(5)])),
        section(0x73, encode([*[None] * 11, "one"])),
        section(0x73, encode([*[None] * 11, -1])),
        section(0x73, encode([None] * 14)),
        section(0x73, encode({})),
        section(0x73, b"\x40"),
    ],
)
def test_a_header_or_property_of_the_wrong_type_is_a_codec_error(raw: bytes) -> None:
    with pytest.raises(CodecError):
        Message.parse(raw + data(b""))


@pytest.mark.parametrize(
    "raw",
    [
        APPLICATION + PROPERTIES + data(b""),
        PROPERTIES + PROPERTIES + data(b""),
        APPLICATION + APPLICATION + data(b""),
        data(b"") + PROPERTIES,
        data(b"") + HEADER,
        FOOTER + data(b""),
        PROPERTIES + ANNOTATIONS + data(b""),
        section(0x77, b"\x40") * 2,
    ],
)
def test_sections_out_of_order_are_a_codec_error(raw: bytes) -> None:
    """Whoever changes a section looks for it in its place, and must find the one that counts."""
    with pytest.raises(CodecError):
        Message.parse(raw)


@pytest.mark.parametrize(
    "raw",
    [b"noise", b"\x00", b"\x00\x53", b"\x00\x53\x75", b"\x00\xa3\x04nope\x40",
     section(0x79, b"\x40"),
     section(0x10, b"\x45"), b"\x00\x80" + b"\xff" * 8 + b"\x40", b"\x40", data(b"x") + b"\x00",
     section(0x75, b"\xb0\xff\xff\xff\xff"), section(0x77, b"\x00" * 99)],
)  # fmt: skip
def test_noise_is_a_codec_error(raw: bytes) -> None:
    with pytest.raises(CodecError):
        Message.parse(raw)


def test_maps_that_are_none_are_a_codec_error() -> None:
    for code in (0x71, 0x72, 0x74):
        with pytest.raises(CodecError):
            Message.parse(section(code, encode("text")) + data(b""))
    with pytest.raises(CodecError):
        Message(annotations=encode("text")).annotation_map()
    with pytest.raises(CodecError):
        application_properties(section(0x74, encode([])) + data(b""))


def every_reader(raw: bytes) -> None:
    for read in (
        lambda: Message.parse(raw).annotation_map(),
        lambda: application_properties(raw),
        lambda: with_application_properties(raw, {"a": 1}),
        lambda: typed_properties(raw),
        lambda: with_properties(raw, Properties()),
        lambda: body_value(raw),
        lambda: data_items(raw),
    ):
        try:
            read()
        except CodecError:
            continue


@given(st.binary(max_size=60))
@settings(RUNS, max_examples=500)
@example(section(0x73, encode([None] * 20)))
@example(section(0x73, encode({"a": 1})))
@example(section(0x73, b"\x40"))
@example(section(0x73, encode(Described(ULong(0x9999), []))))
@example(section(0x74, b""))
def test_any_bytes_are_a_message_or_a_codec_error(raw: bytes) -> None:
    every_reader(raw)
    every_reader(b"\x00\x53\x73" + raw)
    every_reader(b"\x00\x53\x74" + raw)


@given(messages(), st.data())
@RUNS
def test_a_damaged_message_reads_or_is_a_codec_error(
    parts: tuple[bytes, bytes], draws: st.DataObject
) -> None:
    raw = bytearray(b"".join(parts))
    for _ in range(draws.draw(st.integers(1, 3))):
        raw[draws.draw(st.integers(0, len(raw) - 1))] = draws.draw(st.integers(0, 255))
    every_reader(bytes(raw))
    every_reader(bytes(raw[: draws.draw(st.integers(0, len(raw)))]))


@given(messages())
@settings(RUNS, max_examples=60)
def test_a_message_cut_short_is_another_message_or_a_codec_error(
    parts: tuple[bytes, bytes],
) -> None:
    """A cut at a section's end leaves a message; any other leaves none."""
    raw = b"".join(parts)
    for size in range(len(raw)):
        try:
            message = Message.parse(raw[:size])
        except CodecError:
            continue
        assert raw[:size].endswith(message.bare)
        assert raw[size : size + 2] == b"\x00\x53"


def test_delivery_annotations_written_last_are_put_where_they_belong() -> None:
    properties = Properties(message_id="m").encoded()
    body = b"\x00\x53\x75\xa0\x02hi"
    late = encode_map({Symbol("x-late"): 1})
    message = Message.parse(properties + body + b"\x00\x53\x71" + late)
    assert message.delivery_annotations == late
    assert message.bare == properties + body
    with pytest.raises(CodecError, match="twice"):
        Message.parse(b"\x00\x53\x71" + late + properties + body + b"\x00\x53\x71" + late)


@pytest.mark.parametrize("count", [1, 2, 13])
@pytest.mark.parametrize("message_id", ["", "m", "grüß", "x" * 200])
def test_a_lone_id_is_read_as_any_other_properties_are(message_id: str, count: int) -> None:
    body = b"\x00\x53\x75\xa0\x02hi"
    section = b"\x00\x53\x73" + encode_list([message_id] + [None] * (count - 1))
    message = Message.parse(section + body)
    assert message.properties == typed_properties(section) == Properties(message_id)
    assert message.bare == section + body


def test_a_lone_id_that_is_cut_short_or_is_no_text_is_refused() -> None:
    section = b"\x00\x53\x73" + encode_list(["mmmm", None, None])
    for end in range(1, len(section)):
        with pytest.raises(CodecError):
            Message.parse(section[:end])
    with pytest.raises(CodecError):
        Message.parse(section.replace(b"mmmm", b"\xff\xff\xff\xff"))


@pytest.mark.parametrize(
    ("pairs", "is_simple"),
    [
        (b"\xa1\x01k\x98" + bytes(16), True),
        (b"\xa1\x01k\x99" + bytes(16), False),  # no type of AMQP's
        (b"\xa3\x01k\x50\x01", True),
        (b"\xa0\x01k\x50\x01", False),  # a key of bytes
    ],
    ids=["uuid", "0x99", "symbol", "binary"],
)
def test_only_what_is_known_to_be_simple_is_passed_over(pairs: bytes, is_simple: bool) -> None:
    encoded = bytes((0xC1, len(pairs) + 1, 2)) + pairs
    assert ends_simple_map(encoded, 0) == (len(encoded) if is_simple else None)
