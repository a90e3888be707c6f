"""From rows of the backlog to rows on their way home: column expressions over the x-ms-* aliases.

What a column can say is said in columns, where Spark can show, optimise and distribute it: where a
message belongs, how long it has waited, whether that was too long, what it is a part of. The bytes
themselves are put back by ``envelope`` in the worker that sends them: no column type holds every
AMQP type.
"""

from __future__ import annotations

from typing import Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from twinbus import envelope

TimeToLive = Literal["whole", "remaining"]

# The columns of the source that the syphon needs.
BACKLOG_COLUMNS: Final = (
    *("entity", "sequence_number", "lock_token", "locked_until", "received_time"),
    *("enqueued_time", "application_properties", "message"),
)


def homeward(backlog: DataFrame, time_to_live: TimeToLive = "whole") -> DataFrame:
    """One row a backlog message, with what its aliases say."""
    # By two clocks, ours and the broker's: it cannot have waited less than no time, and must not
    # live the longer for it.
    waited_ms = f.greatest(
        f.lit(0), _milliseconds("received_time") - _milliseconds("enqueued_time")
    )
    lives_ms = _alias(envelope.TIME_TO_LIVE).try_cast("bigint")
    left_ms = f.try_subtract(lives_ms, waited_ms)  # of nonsense, null: the worker says what it is
    deducts = time_to_live == "remaining"
    return backlog.select(
        f.col("entity").alias("queue"),
        "sequence_number",
        "lock_token",
        _milliseconds("locked_until").alias("locked_until_ms"),
        _milliseconds("received_time").alias("received_ms"),
        waited_ms.alias("waited_ms"),
        _alias(envelope.PATH).alias("destination"),
        _alias(envelope.PART_OF).alias("part_of"),
        # Null: as it was sent. A sealed message has its time to live inside: the worker deducts.
        (left_ms if deducts else f.lit(None).cast("bigint")).alias("time_to_live_ms"),
        "message",
    )


def _alias(name: str) -> Column:
    return f.col("application_properties").getItem(name)


def _milliseconds(name: str) -> Column:
    return f.unix_millis(f.col(name))
