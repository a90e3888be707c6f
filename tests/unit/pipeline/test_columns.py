"""A message as a row."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from tests.unit.test_envelope import damaged, messages

from twinbus.amqp.types import Symbol, Timestamp, UInt, ULong, encode_list, encode_map
from twinbus.homeward.received import ReceivedMessage
from twinbus.spark.columns import COLUMNS, arrow_schema, ddl, record_batch

TOKEN = UUID(int=7)
SEQUENCE = Symbol("x-opt-sequence-number")
MESSAGE = b"".join(
    (
        b"\x00\x53\x70" + encode_list([True, None, UInt(5000), None, UInt(3)]),
        b"\x00\x53\x72"
        + encode_map(
            {
                Symbol("x-opt-sequence-number"): 42,
                Symbol("x-opt-enqueued-time"): Timestamp(1_000),
                Symbol("x-opt-locked-until"): Timestamp(61_000),
                Symbol("x-opt-partition-key"): "key",
            }
        ),
        b"\x00\x53\x73"
        + encode_list(
            [
                *("id", None, "to", "subject", "reply", "correlation"),
                *(Symbol("text/plain"), None, None, None, "session"),
            ]
        ),
        b"\x00\x53\x74" + encode_map({"text": "x", "number": 7, "yes": True, "raw": b"\x01\xff"}),
        b"\x00\x53\x75\xa0\x02hi",
        b"\x00\x53\x75\xa0\x01!",
    )
)


def row(message: bytes, *names: str) -> dict[str, object]:
    schema = arrow_schema(names or COLUMNS)
    batch = record_batch([ReceivedMessage("orders", TOKEN, message, 2_000)], schema)
    (found,) = batch.to_pylist()
    return dict(found)


def test_every_column_is_read_off_the_message() -> None:
    found = row(MESSAGE)
    properties = found.pop("application_properties")
    assert dict(properties) == {  # type: ignore[call-overload]
        "text": "x",
        "number": "7",
        "yes": "true",
        "raw": "01ff",
    }
    assert found == {
        "entity": "orders",
        "sequence_number": 42,
        "lock_token": str(TOKEN),
        "locked_until": datetime(1970, 1, 1, 0, 1, 1, tzinfo=UTC),
        "enqueued_time": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "received_time": datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC),
        "delivery_count": 3,
        "message_id": "id",
        "session_id": "session",
        "correlation_id": "correlation",
        "content_type": "text/plain",
        "subject": "subject",
        "to": "to",
        "reply_to": "reply",
        "partition_key": "key",
        "time_to_live_ms": 5000,
        "scheduled_enqueue_time": None,
        "body": b"hi!",
        "message": MESSAGE,
    }


def test_only_the_columns_that_were_asked_for_are_made() -> None:
    assert row(b"\x00\x53\x75\xa0\x01x", "entity", "message") == {
        "entity": "orders",
        "message": b"\x00\x53\x75\xa0\x01x",
    }
    assert ddl(["entity", "body"]) == "`entity` string, `body` binary"


def test_a_body_that_is_a_value_is_text_or_bytes() -> None:
    assert row(b"\x00\x53\x77\xa1\x02hi", "body") == {"body": b"hi"}
    assert row(b"\x00\x53\x77\xa0\x01\xff", "body") == {"body": b"\xff"}
    assert row(b"\x00\x53\x77\x54\x07", "body") == {"body": b"7"}
    assert row(b"\x00\x53\x77\x40", "body") == {"body": b""}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages())
def test_any_message_is_a_row(message: bytes) -> None:
    assert (
        record_batch([ReceivedMessage("q", None, message, 0)], arrow_schema(COLUMNS)).num_rows == 1
    )
    assert row(message, "message") == {"message": message}


# ---------------------------------------------------------------- what cannot be read is null


def annotated(**annotations: object) -> bytes:
    named = {Symbol(name.replace("_", "-")): value for name, value in annotations.items()}
    return b"\x00\x53\x72" + encode_map(named) + b"\x00\x53\x75\xa0\x01x"


@pytest.mark.parametrize("value", ["soon", [1], {}, True, 2**63 - 1, ULong(2**64 - 1), b"\xff"])
def test_annotations_of_the_wrong_type_or_out_of_range_are_null(value: object) -> None:
    names = ("x_opt_scheduled_enqueue_time", "x_opt_enqueued_time", "x_opt_locked_until")
    found = row(annotated(**dict.fromkeys(names, value)))
    times = ("scheduled_enqueue_time", "enqueued_time", "locked_until")
    assert [found[name] for name in times] == [None] * 3
    number = row(annotated(x_opt_sequence_number=value))["sequence_number"]
    assert number == (value if value == 2**63 - 1 else None)


@pytest.mark.parametrize("field", ["nonsense", [], -1.5, ULong(2**63)])
def test_header_fields_of_the_wrong_type_or_out_of_range_are_null(field: object) -> None:
    found = row(b"\x00\x53\x70" + encode_list([None, None, field, None, field]))
    assert (found["time_to_live_ms"], found["delivery_count"]) == (None, None)


@pytest.mark.parametrize(
    "noise", [b"\xff" * 20, b"\xa1\x01x", b"\xc0\x02\x01\x56", b"\xa1\x01\xff"]
)
@pytest.mark.parametrize("code", [0x70, 0x71, 0x72, 0x73, 0x74])
def test_a_section_that_cannot_be_read_leaves_the_others_readable(code: int, noise: bytes) -> None:
    sections = [
        *((0x70, encode_list([None, None, UInt(5000)])), (0x72, encode_map({SEQUENCE: 42}))),
        *((0x73, encode_list(["id"])), (0x74, encode_map({"a": "b"})), (0x75, b"\xa0\x02hi")),
    ]
    spoilt = {**dict(sections), code: noise}
    # What does not even say where it ends takes along all that is behind it.
    found = row(b"".join(b"\x00\x53" + bytes((each,)) + spoilt[each] for each in sorted(spoilt)))
    if noise[0] != 0xFF:
        assert (found["body"], found["entity"]) == (b"hi", "orders")
        assert found["message_id"] == (None if code == 0x73 else "id")
        assert found["application_properties"] == (None if code == 0x74 else [("a", "b")])


def test_a_data_section_that_is_a_text_is_null_and_the_others_are_read() -> None:
    found = row(b"\x00\x53\x73" + encode_list(["id"]) + b"\x00\x53\x75\xa1\x02hi")
    assert (found["message_id"], found["body"]) == ("id", None)


WIDE = {code: b"\x00\x80" + code.to_bytes(8, "big") for code in range(0x70, 0x79)}
NAMED = {
    code: b"\x00\xa3" + bytes((len(name),)) + name
    for code, name in {
        0x70: b"amqp:header:list",
        0x72: b"amqp:message-annotations:map",
        0x73: b"amqp:properties:list",
        0x74: b"amqp:application-properties:map",
        0x75: b"amqp:data:binary",
    }.items()
}
LONG_NAMED = {
    code: b"\x00\xb3" + (len(raw) - 3).to_bytes(4, "big") + raw[3:] for code, raw in NAMED.items()
}


@pytest.mark.parametrize("descriptors", [WIDE, NAMED, LONG_NAMED])
def test_descriptors_are_read_in_every_legal_encoding(descriptors: dict[int, bytes]) -> None:
    otherwise = MESSAGE
    for code in NAMED:
        otherwise = otherwise.replace(b"\x00\x53" + bytes((code,)), descriptors[code])
    expected = row(MESSAGE)
    assert row(otherwise) == {**expected, "message": otherwise}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damaged())
def test_whatever_the_bytes_are_they_are_a_row(message: bytes) -> None:
    (found,) = record_batch(
        [ReceivedMessage("q", None, message, 0)], arrow_schema(COLUMNS)
    ).to_pylist()
    assert found["message"] == message
