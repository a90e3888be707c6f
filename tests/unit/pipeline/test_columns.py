"""A message as a row."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from tests.unit.test_envelope import messages

from twinbus.amqp.types import Symbol, Timestamp, UInt, encode_list, encode_map
from twinbus.pipeline.columns import COLUMNS, Received, arrow_schema, ddl, record_batch

TOKEN = UUID(int=7)
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
    batch = record_batch([Received("orders", TOKEN, message, 2_000)], schema)
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
    assert record_batch([Received("q", None, message, 0)], arrow_schema(COLUMNS)).num_rows == 1
    assert row(message, "message") == {"message": message}
