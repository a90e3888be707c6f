"""Rows of the backlog on their way home."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import Row, SparkSession

from twinbus import envelope
from twinbus.spark.columns import ddl
from twinbus.syphon.translation import BACKLOG_COLUMNS, homeward

RECEIVED = datetime(2026, 1, 1, 12, tzinfo=UTC)


def homeward_row(spark: SparkSession, enqueued: datetime) -> Row:
    aliases = {envelope.PATH: "orders", envelope.TIME_TO_LIVE: "60000"}
    values = ("q", 1, "t", RECEIVED, RECEIVED, enqueued, aliases, b"m")
    backlog = spark.createDataFrame([values], ddl(BACKLOG_COLUMNS))
    (row,) = homeward(backlog, "remaining").collect()
    return row


def test_what_was_waited_is_deducted_from_the_time_to_live(spark: SparkSession) -> None:
    row = homeward_row(spark, RECEIVED - timedelta(seconds=20))
    assert (row.waited_ms, row.time_to_live_ms) == (20_000, 40_000)


def test_a_brokers_clock_that_is_ahead_lets_no_message_live_longer(spark: SparkSession) -> None:
    row = homeward_row(spark, RECEIVED + timedelta(seconds=5))
    assert (row.waited_ms, row.time_to_live_ms) == (0, 60_000)
