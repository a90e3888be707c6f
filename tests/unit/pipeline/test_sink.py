"""A row as a message, or as an error that says why not."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from tests.unit.test_envelope import damaged

from twinbus.amqp.sections import SCHEDULED
from twinbus.envelope import checked, time_to_live_of
from twinbus.homeward.received import ReceivedMessage
from twinbus.spark.sink import SinkError, encoded, rows_of

LAST_OF_SPARK = 2**63 - 1


def rows(at_us: int) -> list[dict[str, object]]:
    columns = {
        "body": pa.array([b"x"]),
        "scheduled_enqueue_time": pa.array([at_us], pa.timestamp("us", "UTC")),
        "when": pa.array([at_us], pa.timestamp("us", "UTC")),
    }
    return rows_of(pa.RecordBatch.from_pydict(columns))


def test_a_time_that_python_does_not_know_is_a_time_all_the_same() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    (row,) = rows(int(at.timestamp() * 1_000_000))
    assert ReceivedMessage("", None, encoded(row), 0).time(SCHEDULED) == at.timestamp() * 1_000_000
    (last,) = rows(LAST_OF_SPARK)
    checked(encoded(last))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"body": b"x", "time_to_live_ms": 2**40}, "1099511627776 is out of range"),
        ({"body": b"x", "time_to_live_ms": -1}, "-1 is out of range"),
        ({"body": b"x", "content_type": "täxt"}, "cannot be encoded"),
        ({"body": 7}, "it must be binary or a string"),
        ({"message": b"noise"}, "not an encoded message"),
    ],
)
def test_a_row_that_can_be_no_message_is_told_in_a_sentence(
    row: dict[str, object], words: str
) -> None:
    with pytest.raises(SinkError, match=words):
        encoded(row)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damaged())
def test_what_is_sent_is_a_message(message: bytes) -> None:
    try:
        sent = encoded({"message": message})
        time_to_live_of(sent)
    except SinkError:
        return
    checked(sent)
