"""Wrapped and unwrapped, a message is what it was: every AMQP type, every section, every size."""

from __future__ import annotations

import os
import random
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.unit.amqp.test_types import KEYS, PRIMITIVES

from twinbus import EnvelopeError, envelope
from twinbus.amqp import sections
from twinbus.amqp.decoding import decode
from twinbus.amqp.message import (
    Message,
    Properties,
    application_properties,
    encode_annotations,
)
from twinbus.amqp.sections import Sections
from twinbus.amqp.types import (
    Described,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    encode,
    encode_list,
    encode_map,
)

SLOW = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
VALUES = st.recursive(
    PRIMITIVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4)
)
TEXTS = st.text(max_size=30)


def section(code: int, raw: bytes) -> bytes:
    return b"\x00\x53" + bytes((code,)) + raw


@st.composite
def messages(draw: Any) -> bytes:
    """Encoded messages with any sections, values and body kinds."""
    parts = []
    maybe = st.none()
    if draw(st.booleans()):
        header = [
            draw(maybe | st.booleans()),
            draw(maybe | st.integers(0, 255).map(UByte)),
            draw(maybe | st.integers(0, 2**32 - 1).map(UInt)),
            draw(maybe | st.booleans()),
            draw(maybe | st.integers(0, 9).map(UInt)),
        ]
        parts.append(section(0x70, encode_list(header[: draw(st.integers(0, 5))])))
    maps = st.dictionaries(TEXTS.map(_symbol), VALUES, min_size=1, max_size=4)
    if draw(st.booleans()):
        parts.append(section(0x71, encode_map(draw(maps))))
    annotations = draw(st.just({}) | maps)
    if draw(st.booleans()):
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(draw(st.integers(0, 2**50)))
    if annotations:
        parts.append(section(0x72, encode_map(annotations)))
    ids = TEXTS | st.uuids() | st.binary(max_size=9)
    fields: list[Any] = [draw(ids)]
    fields += [draw(maybe | st.binary(max_size=9))]
    fields += [draw(maybe | TEXTS) for _ in range(3)]
    fields += [draw(maybe | ids)]
    fields += [draw(maybe | TEXTS.map(_symbol)) for _ in range(2)]
    fields += [draw(maybe | st.integers(0, 2**50).map(Timestamp)) for _ in range(2)]
    fields += [draw(maybe | TEXTS), draw(maybe | st.integers(0, 9).map(UInt)), draw(maybe | TEXTS)]
    parts.append(section(0x73, encode_list(fields)))
    own = st.dictionaries(TEXTS.filter(lambda key: key not in envelope.RESERVED), PRIMITIVES)
    if properties := draw(own):
        parts.append(section(0x74, encode_map(properties)))
    kind = draw(st.sampled_from(["data", "sequence", "value"]))
    if kind == "data":
        bodies = draw(st.lists(st.binary(max_size=300), min_size=1, max_size=3))
        parts += [section(0x75, encode(body)) for body in bodies]
    elif kind == "sequence":
        lists = draw(st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=2))
        parts += [section(0x76, encode_list(each)) for each in lists]
    else:
        parts.append(section(0x77, encode(draw(VALUES))))
    if draw(st.booleans()):
        parts.append(section(0x78, encode_map(draw(maps))))
    return b"".join(parts)


@st.composite
def damaged(draw: Any) -> bytes:
    """What may lie in a queue though nobody could have meant it: messages with a byte changed, cut
    short, with sections of any value, with parts and seals of any value; and mere noise."""
    kind = draw(st.sampled_from(["byte", "cut", "sections", "aliases", "noise"]))
    if kind == "noise":
        return bytes(draw(st.binary(max_size=100)))
    if kind == "aliases":
        names = st.sampled_from(sorted(envelope.RESERVED)) | TEXTS
        values = VALUES | st.sampled_from(["q", "identity", "zlib", 0, 1, 2, 2**40, -1])
        properties = draw(st.dictionaries(names, values, max_size=6))
        properties.setdefault(envelope.PATH, "q")
        inside = draw(st.binary(max_size=40) | messages())
        return section(0x74, encode_map(properties)) + section(0x75, encode(inside))
    if kind == "sections":
        codes = draw(st.lists(st.integers(0x6F, 0x79), max_size=6))
        path = section(0x74, encode_map({envelope.PATH: "q"}))
        return path + b"".join(section(code, encode(draw(VALUES))) for code in codes)
    message = draw(messages())
    wrapped = envelope.wrap(message, "q")
    whole = bytearray(draw(st.sampled_from([message, wrapped])))
    at = draw(st.integers(0, len(whole) - 1))
    if kind == "cut":
        return bytes(whole[:at])
    whole[at] = draw(st.integers(0, 255))
    return bytes(whole)


def _symbol(text: str) -> Symbol:
    return Symbol(text.encode("ascii", "replace").decode())


def normal(message: bytes) -> list[Any]:
    """A message as typed values: what must be the same afterwards. Trailing nulls do not count."""
    found: list[Any] = []
    pos = 0
    while pos < len(message):
        code = message[pos + 2]
        value, pos = decode(message, pos + 3)
        if code in (0x70, 0x73):
            while value and value[-1] is None:
                value.pop()
            if not value:
                continue
        found.append((code, typed(value)))
    return found


def typed(value: Any) -> Any:
    """With the type of everything written down: 1 == 1.0 == True, and these are three types."""
    if isinstance(value, dict):
        return [("map", typed(key), typed(each)) for key, each in value.items()]
    if type(value) is list:
        return ["list", *map(typed, value)]
    return (type(value).__name__, repr(value))


@given(message=messages(), path=st.text(min_size=1, max_size=260))
@SLOW
def test_wrapped_and_unwrapped_it_is_what_was_sent(message: bytes, path: str) -> None:
    assert envelope.unwrap(envelope.wrap(message, path)) == (path, _same(message, path))


def _same(message: bytes, path: str) -> bytes:
    back = envelope.unwrap(envelope.wrap(message, path))[1]
    assert normal(back) == normal(message)
    return back


@given(message=messages(), limit=st.integers(2_100, 4_000), order=st.randoms())
@SLOW
def test_packed_to_any_limit_it_is_what_was_sent(
    message: bytes, limit: int, order: random.Random
) -> None:
    packed = envelope.pack(message, "orders", limit)
    assert all(len(each) <= limit for each in packed)
    if len(packed) == 1:
        path, back = envelope.unwrap(packed[0])
    else:
        order.shuffle(packed)
        path, back = envelope.assemble([*packed, packed[0]])
    assert path == "orders"
    assert normal(back) == normal(message)


@given(message=messages())
@SLOW
def test_nothing_that_acts_in_the_backlog_stays_on_the_message(message: bytes) -> None:
    wrapped = Message.parse(envelope.wrap(message, "orders"))
    assert wrapped.ttl_ms is None
    assert wrapped.properties.group_id is None
    assert wrapped.properties.absolute_expiry_time is None
    assert "x-opt-scheduled-enqueue-time" not in wrapped.annotation_map()


def encoded(message: Any) -> bytes:
    raw = message if isinstance(message, AmqpAnnotatedMessage) else message.raw_amqp_message
    return bytes(encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(raw)))


def aliases(packed: bytes) -> dict[str, Any]:
    return Sections(packed).application()


def test_aliases_are_written_only_for_values_that_were_set() -> None:
    assert set(aliases(envelope.wrap(encoded(ServiceBusMessage("x")), "orders"))) == {"x-ms-path"}


def test_session_id_time_to_live_and_schedule_are_cleared_and_kept_under_their_aliases() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    message = ServiceBusMessage(
        "x", session_id="s", time_to_live=timedelta(seconds=90), scheduled_enqueue_time_utc=at
    )
    wrapped = envelope.wrap(encoded(message), "topics/news")
    cleared = Message.parse(wrapped)
    assert (cleared.properties.group_id, cleared.ttl_ms) == (None, None)
    assert "x-opt-scheduled-enqueue-time" not in cleared.annotation_map()
    found = aliases(wrapped)
    assert found.pop("x-ms-absoluteexpirytime") > 0
    assert {key: (type(value), value) for key, value in found.items()} == {
        "x-ms-path": (str, "topics/news"),
        "x-ms-sessionid": (str, "s"),
        "x-ms-timetolive": (UInt, 90_000),
        "x-ms-scheduledenqueuetimeutc": (Timestamp, int(at.timestamp() * 1000)),
    }


def test_a_schedule_that_is_no_time_stays_what_brokers_pass_over() -> None:
    odd = AmqpAnnotatedMessage(data_body=b"x", annotations={"x-opt-scheduled-enqueue-time": "soon"})
    (packed,) = envelope.pack(encoded(odd), "orders")
    assert aliases(packed) == {"x-ms-path": "orders"}
    path, home = envelope.unwrap(packed)
    assert path == "orders"
    assert Message.parse(home).annotation_map() == {"x-opt-scheduled-enqueue-time": "soon"}


def test_a_missing_message_id_is_assigned_and_another_is_left_alone() -> None:
    wrapped = Message.parse(envelope.wrap(encoded(ServiceBusMessage("x")), "orders"))
    assert UUID(wrapped.properties.message_id)
    kept = envelope.wrap(encoded(ServiceBusMessage("x", message_id="7")), "orders")
    assert Message.parse(kept).properties.message_id == "7"


def test_delivery_annotations_that_the_sdk_writes_last_are_kept() -> None:
    message = AmqpAnnotatedMessage(
        data_body=b"x", delivery_annotations={"a": 1}, footer={"f": 2}, header={"priority": 9}
    )
    back = decode_payload(memoryview(envelope.unwrap(envelope.pack(encoded(message), "q")[0])[1]))
    assert back.delivery_annotations == {b"a": 1}
    assert back.footer == {b"f": 2}
    assert back.header is not None
    assert back.header.priority == 9


@pytest.mark.parametrize("name", sorted(envelope.RESERVED))
def test_a_message_that_uses_one_of_our_names_keeps_it(name: str) -> None:
    message = encoded(ServiceBusMessage("x", message_id="1", application_properties={name: "mine"}))
    packed = envelope.pack(message, "orders")
    assert len(packed) == 1
    assert envelope.unwrap(packed[0]) == ("orders", message)


@pytest.mark.parametrize("size", [255_000, 261_000, 262_100, 262_144, 900_000])
@pytest.mark.parametrize("compressible", [True, False])
def test_none_is_refused_that_the_primary_would_have_taken(size: int, compressible: bool) -> None:
    body = b"x" * size if compressible else os.urandom(size)
    message = encoded(ServiceBusMessage(body, message_id="1", session_id="s"))
    packed = envelope.pack(message, "orders", 262_144)
    assert all(len(each) <= 262_144 for each in packed)
    back = envelope.unwrap(packed[0]) if len(packed) == 1 else envelope.assemble(packed)
    assert back[0] == "orders"
    assert normal(back[1]) == normal(message)


def test_properties_that_leave_no_room_for_aliases_are_sealed() -> None:
    message = encoded(
        ServiceBusMessage("x", application_properties={"a": "b" * 32_000, "c": "d" * 31_000})
    )
    (packed,) = envelope.pack(message, "orders")
    assert len(Sections(packed).raw(0x74)) < 1000


def test_what_is_no_diverted_message_is_refused_with_a_reason() -> None:
    plain = encoded(ServiceBusMessage("x"))
    with pytest.raises(EnvelopeError, match="has no x-ms-path"):
        envelope.unwrap(plain)
    with pytest.raises(EnvelopeError, match="not an encoded message"):
        envelope.unwrap(b"noise")
    wrong = encoded(
        ServiceBusMessage("x", application_properties={"x-ms-path": "q", "x-ms-timetolive": "1"})
    )
    with pytest.raises(EnvelopeError, match="x-ms-timetolive is str"):
        envelope.unwrap(wrong)


def test_parts_that_do_not_make_one_message_are_refused_with_a_reason() -> None:
    one = envelope.pack(encoded(ServiceBusMessage(os.urandom(9_000), message_id="1")), "q", 6_000)
    two = envelope.pack(encoded(ServiceBusMessage(os.urandom(9_000), message_id="2")), "q", 6_000)
    assert len(one) == len(two) == 3
    with pytest.raises(EnvelopeError, match="only 2 of 3 parts"):
        envelope.assemble(one[:2])
    with pytest.raises(EnvelopeError, match="of 2 messages"):
        envelope.assemble([*one, *two])
    with pytest.raises(EnvelopeError, match="give all its parts to assemble"):
        envelope.unwrap(one[0])
    damaged = bytearray(one[1])
    damaged[-1] ^= 1
    with pytest.raises(EnvelopeError, match="x-ms-checksum"):
        envelope.assemble([one[0], bytes(damaged), one[2]])


def test_rows_read_aliases_whose_keys_and_texts_are_bytes() -> None:
    row = {b"x-ms-path": b"orders", b"x-ms-sessionid": b"s", b"x-ms-timetolive": 5, b"mine": 1}
    assert envelope.home_of(row) == envelope.Home("orders", "s", 5)
    assert envelope.without_aliases(row) == {b"mine": 1}
    assert not envelope.is_sealed(row)
    assert envelope.part_of(row) is None


@given(noise=st.binary(max_size=200))
@SLOW
def test_noise_raises_nothing_but_an_envelope_error(noise: bytes) -> None:
    try:
        envelope.unwrap(noise)
    except EnvelopeError:
        return
    assume(False)


def test_properties_of_our_own_codec_agree_with_the_sdks() -> None:
    message = encoded(ServiceBusMessage("x", message_id="1", correlation_id="c", subject="s"))
    assert Message.parse(message).properties == Properties(
        message_id="1", correlation_id="c", subject="s"
    )


# ---------------------------------------------------------------- what nobody could have meant


@given(message=damaged())
@settings(SLOW, max_examples=600)
def test_what_comes_out_is_a_message_or_an_envelope_error(message: bytes) -> None:
    """What goes home must be one that a broker can read, or it would be in the way of others."""
    try:
        _, home = envelope.unwrap(message)
        envelope.living(home, 5)
        envelope.time_to_live_of(home)
    except EnvelopeError:
        return
    Message.parse(home).annotation_map()
    application_properties(Message.parse(home).bare)
    envelope.properties_of(home)


def diverted(**aliases: object) -> bytes:
    named = {name.replace("_", "-"): value for name, value in aliases.items()}
    return section(0x74, encode_map({"x-ms-path": "q", **named})) + section(0x75, encode(b"x"))


@pytest.mark.parametrize(
    ("aliases", "words"),
    [
        ({"x_ms_timetolive": 2**40}, "x-ms-timetolive is 1099511627776"),
        ({"x_ms_timetolive": -1}, "x-ms-timetolive is -1"),
        (
            {"x_ms_absoluteexpirytime": ULong(2**63)},
            "x-ms-absoluteexpirytime is 922",
        ),
        ({"x_ms_scheduledenqueuetimeutc": [1]}, "x-ms-scheduledenqueuetimeutc is list"),
        ({"x_ms_encoding": "identity", "x_ms_checksum": UInt(zlib.crc32(b"x"))}, "not an enc"),
        ({"x_ms_encoding": ["zlib"]}, "x-ms-encoding is"),
        ({"x_ms_path": "q" * 261}, "x-ms-path has 261 characters"),
        ({"x_ms_path": "$cbs"}, "which is no queue or topic"),
        ({"x_ms_path": "orders/$management"}, "which is no queue or topic"),
    ],
)
def test_an_alias_that_no_message_can_have_is_refused_with_a_reason(
    aliases: dict[str, object], words: str
) -> None:
    with pytest.raises(EnvelopeError, match=words):
        envelope.unwrap(diverted(**aliases))


@pytest.mark.parametrize("raw", [b"\xa1\x01x", b"\xc0\x02\x01\x43", b"\xff" * 9])
@pytest.mark.parametrize("code", [0x70, 0x71, 0x72, 0x73, 0x74])
def test_a_section_that_cannot_be_read_is_refused_with_a_reason(code: int, raw: bytes) -> None:
    sections = {0x70: b"\x45", 0x71: b"\xc1\x01\x00", 0x72: b"\xc1\x01\x00", 0x73: b"\x45"}
    sections[0x74] = encode_map({"x-ms-path": "q"})
    sections[code] = raw
    if (code, raw[0]) in ((0x70, 0xC0), (0x73, 0xC0)):
        sections[code] = b"\xc0\x04\x03\x45\x45\x45"  # a list, but of lists
    message = b"".join(section(each, sections[each]) for each in sorted(sections))
    with pytest.raises(EnvelopeError):
        envelope.unwrap(message + section(0x75, encode(b"x")))


@pytest.mark.parametrize("field", [[UInt(1)], []])
def test_a_value_with_the_descriptor_of_a_frames_part_comes_home_as_it_was(
    field: list[Any],
) -> None:
    annotations: dict[Any, Any] = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(5)}
    for code in (0x23, 0x24):  # how a delivery ended, where a message means something of its own
        annotations[Symbol(f"a-{code}")] = Described(ULong(code), field)
    raw = section(0x72, encode_map(annotations))
    message = raw + section(0x73, encode_list(["1"])) + section(0x75, encode(b"x"))
    _, home = envelope.unwrap(envelope.wrap(message, "q"))
    assert Message.parse(home).annotation_map() == annotations


def test_a_section_of_no_message_or_that_comes_twice_is_refused_and_not_lost() -> None:
    for extra in (section(0x24, b"\x45"), section(0x74, encode_map({"a": "b"}))):
        with pytest.raises(EnvelopeError, match="section"):
            envelope.unwrap(extra + diverted())


def test_a_message_that_unpacks_to_more_than_any_message_is_refused() -> None:
    bomb = zlib.compress(b"\x00" * (envelope.MOST_UNPACKED + 1))
    seal = encode_map({"x-ms-path": "q", "x-ms-encoding": "zlib", "x-ms-checksum": 0})
    with pytest.raises(EnvelopeError, match="unpacks to more than"):
        envelope.unwrap(section(0x74, seal) + section(0x75, encode(bomb)))


def test_keys_that_are_binary_do_not_hide_an_alias() -> None:
    properties = {b"x-ms-path": "q", b"x-ms-sessionid": "s", b"x-ms-timetolive": UInt(5)}
    message = section(0x74, encode_map(properties)) + section(0x75, encode(b"x"))
    path, home = envelope.unwrap(message)
    session = envelope.properties_of(home).session_id
    assert (path, session, envelope.time_to_live_of(home)) == ("q", "s", 5)


def test_a_sealed_message_comes_home_byte_for_byte() -> None:
    short = section(0x73, encode_list(["1"]))  # one field of thirteen, in the long form of a list
    head = section(0x70, b"\xd0" + bytes((0, 0, 0, 5, 0, 0, 0, 1, 0x41)))
    message = head + short + section(0x74, encode_map({"x-ms-path": "mine"}))
    message += section(0x75, encode(b"x"))
    (packed,) = envelope.pack(message, "orders")
    assert envelope.unwrap(packed) == ("orders", message)


def test_sections_that_were_taken_apart_are_not_changed_by_what_is_made_of_them() -> None:
    wrapped = envelope.wrap(
        encoded(ServiceBusMessage("x", session_id="s", time_to_live=timedelta(seconds=9))), "q"
    )
    apart = Sections(wrapped)
    first = envelope.opened(apart)
    assert envelope.opened(apart) == first
    assert apart.joined() == wrapped


def test_an_expiry_comes_home_without_a_session_too() -> None:
    message = Properties(message_id="a", absolute_expiry_time=5, creation_time=1).encoded()
    message += b"\x00\x53\x75\xa0\x01x"
    _, home = envelope.unwrap(envelope.wrap(message, "orders"))
    assert Message.parse(home).properties.absolute_expiry_time == 5


def test_what_the_backlog_wrote_into_the_header_stays_there() -> None:
    """That it was its first acquirer, and how often it handed it out."""
    sent = Properties(message_id="a").encoded() + b"\x00\x53\x75\xa0\x01x"
    header = b"\x00\x53\x70\xc0\x07\x05\x41\x50\x04\x40\x41\x43"
    stamped = header + encode_annotations({sections.SEQUENCE_NUMBER: 1})
    _, home = envelope.unwrap(stamped + envelope.wrap(sent, "orders"))
    assert list(Sections(home).header()) == [True, 4, None]
