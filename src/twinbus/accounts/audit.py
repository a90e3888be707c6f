"""The audit: what was accepted, against what came home, what waits and what was dead-lettered.

Theory of operation. Every record that names messages becomes one row a message: what it is evidence
of, how often, and when first. Rows of the same message, the same id sent to the same queue or
topic, are added up. Adding does not mind the order, the clocks of those who wrote the records, nor
whether it is done in one pass or a day at a time; the verdict is read off the sums:

    accepted, completed twice at one place, or twice at home and seen by no receiver   duplicated
    accepted, completed                                                                ok
    accepted, dead-lettered                                                            dead
    accepted, received, or taken by the primary (unless receivers must have it)        ok
    accepted, peeked in the backlog                                                    waiting
    accepted, none of these                                                            lost
    not accepted by anybody who keeps this ledger, and yet seen                        unexpected

The first line that fits counts. A place is a queue or a subscription: a topic delivers once to
each. ``docs/costs.md`` says what this does not promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from twinbus.accounts.bill import home_path
from twinbus.accounts.outages import Mark, Outage, find_outages
from twinbus.accounts.tables import summary
from twinbus.ledger import Cause, Operation
from twinbus.ledger.reader import Found

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

# Of the ids in question, so many are listed; all are counted.
MOST_LISTED: Final = 1_000_000
# Of the entities with such ids, so many are asked for by name.
MOST_NAMED: Final = 500
MESSAGE: Final = ("home", "message_id")
ROW: Final = (*MESSAGE, "place", "kind", "times", "at")


class Evidence(StrEnum):
    """What a record is evidence of."""

    SENT = "sent"  # the primary accepted it, and so it is home
    DIVERTED = "diverted"  # the backlog accepted it
    ATTEMPTED = "attempted"  # a send that raised; it may have arrived
    RETURNED = "returned"  # the syphon sent it home, and the primary took it
    RECEIVED = "received"
    COMPLETED = "completed"
    DEAD = "dead"  # dead-lettered, or seen among the dead letters
    WAITING = "waiting"  # peeked in the backlog


class MessageVerdict(StrEnum):
    OK = "ok"  # it is home
    WAITING = "waiting"  # it is in the backlog
    DEAD = "dead"  # it was dead-lettered
    LOST = "lost"  # it was accepted, and nobody knows where it is
    DUPLICATED = "duplicated"  # it came home more than once
    UNEXPECTED = "unexpected"  # it was seen, but nobody is known to have sent it


QUESTIONABLE: Final = (
    MessageVerdict.LOST,
    MessageVerdict.DUPLICATED,
    MessageVerdict.UNEXPECTED,
    MessageVerdict.DEAD,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """A message that was peeked: in the backlog, or in a dead-letter queue."""

    home: str
    message_id: str
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Audit:
    """``windows`` has one row a window and entity; ``questionable`` the ids in question."""

    windows: pa.Table
    questionable: pa.Table
    outages: tuple[Outage, ...]
    counts: dict[MessageVerdict, int] = field(default_factory=dict)
    # How far the clocks of two clients are apart at least; 0 if nothing shows that they differ.
    skew_s: float = 0.0

    @property
    def accepted(self) -> int:
        return sum(self.counts.values()) - self.counts[MessageVerdict.UNEXPECTED]

    @property
    def lost(self) -> int:
        return self.counts[MessageVerdict.LOST]


def make_audit(
    spark: SparkSession,
    found: Found,
    seen: Sequence[Seen] = (),
    *,
    must_be_received: bool = False,
    window_s: int = 3600,
    state: str | None = None,
) -> Audit:
    """Without ``must_be_received``, what the primary took counts as home."""
    evidence = summary(spark, found, events if state is None else facts, _under(state, "facts"))
    rows = evidence.select(*ROW)
    if seen:
        rows = rows.unionByName(peeked(spark, seen))
    judged = judge(messages(rows), must_be_received=must_be_received)
    # Sorted here: there are few of them, and Spark would shuffle them once more for it.
    windows = by_window(judged, window_s).toArrow()
    windows = windows.sort_by([("window", "ascending"), ("entity", "ascending")])
    counts = {each: _sum(windows, each.value) for each in MessageVerdict}
    doubtful = judge(messages(_of(rows, _doubtful(windows))), must_be_received=must_be_received)
    marked = summary(spark, found, marks, _under(state, "marks"))
    skews = [each for each in windows["skew_s"].to_pylist() if each is not None]
    return Audit(
        windows.drop_columns(["skew_s"]),
        listed(doubtful, sum(counts[each] for each in QUESTIONABLE)),
        find_outages(_mark(row) for row in marked.collect()),
        counts,
        max([0.0, *skews]),
    )


def _doubtful(windows: pa.Table) -> list[str]:
    """The entities with a message in question."""
    names = [each.value for each in QUESTIONABLE]
    return sorted({row["entity"] for row in windows.to_pylist() if any(row[n] for n in names)})


def _of(rows: DataFrame, homes: list[str]) -> DataFrame:
    """The messages are gone through again only where there is something to find."""
    return rows.where(rows["home"].isin(homes)) if len(homes) <= MOST_NAMED else rows


def _under(state: str | None, name: str) -> str | None:
    return None if state is None else f"{state.rstrip('/')}/{name}"


def _sum(table: pa.Table, column: str) -> int:
    return sum(table[column].to_pylist())


# ---------------------------------------------------------------- from records to messages


def events(records: DataFrame) -> DataFrame:
    """One row a message and record. Narrow, because all of them are shuffled."""
    from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

    return (
        records.select("*", _kind().alias("kind"))
        .where(F.col("kind").isNotNull())
        # Before there is a row a message: a record may name a thousand.
        .select(
            "day",
            home_path(F.coalesce("destination", "entity")).alias("home"),
            _place(F.lower("entity")).alias("place"),
            "kind",
            F.lit(1).cast("bigint").alias("times"),
            "at",
            "message_ids",
        )
        .select("*", F.explode("message_ids").alias("message_id"))
        .where(F.col("message_id").isNotNull())
        .select("day", *ROW)
    )


def _kind() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    operation, cause, ok = F.col("operation"), F.col("cause"), F.col("ok")
    sends = operation.isin(Operation.SEND.value, Operation.SCHEDULE.value)
    at_home = cause.isin(Cause.NORMAL.value, Cause.HOME_RECEIVE.value)
    among_dead_letters = F.lower("entity").endswith("/$deadletterqueue")
    receives = (operation == Operation.RECEIVE) & at_home
    return (
        F.when(sends & ~ok & (cause == Cause.NORMAL), Evidence.ATTEMPTED)
        .when(~ok, None)
        .when(sends & (cause == Cause.NORMAL), Evidence.SENT)
        .when(sends & (cause == Cause.BACKLOG_SEND), Evidence.DIVERTED)
        .when(sends & (cause == Cause.HOME_SEND), Evidence.RETURNED)
        .when(operation == Operation.DEAD_LETTER, Evidence.DEAD)
        .when(receives & among_dead_letters, Evidence.DEAD)
        .when(receives, Evidence.RECEIVED)
        .when((operation == Operation.COMPLETE) & at_home & ~among_dead_letters, Evidence.COMPLETED)
    )


def _place(entity: Column) -> Column:
    """The subscription, or nothing for a queue."""
    from pyspark.sql import functions as F  # noqa: N812

    subscription = F.substring_index(F.substring_index(entity, "/subscriptions/", -1), "/$", 1)
    return F.when(F.contains(entity, F.lit("/subscriptions/")), subscription).otherwise("")


def facts(records: DataFrame) -> DataFrame:
    """What a day says about each message: what is kept between audits."""
    from pyspark.sql import functions as F  # noqa: N812

    grouped = events(records).groupBy("day", *MESSAGE, "place", "kind")
    added = grouped.agg(F.sum("times").alias("times"), F.min("at").alias("at"))
    return added.select("day", *ROW)


def peeked(spark: SparkSession, seen: Sequence[Seen]) -> DataFrame:
    import pyarrow as pa
    from pyspark.sql import functions as F  # noqa: N812

    kinds = [Evidence.DEAD if each.dead else Evidence.WAITING for each in seen]
    columns = {
        "home": pa.array([each.home for each in seen], pa.string()),
        "message_id": pa.array([each.message_id for each in seen], pa.string()),
        "kind": pa.array([each.value for each in kinds], pa.string()),
    }
    return spark.createDataFrame(pa.table(columns)).select(
        home_path(F.col("home")).alias("home"),
        "message_id",
        F.lit("").alias("place"),
        "kind",
        F.lit(1).cast("bigint").alias("times"),
        F.lit(None).cast("timestamp").alias("at"),
    )


def messages(rows: DataFrame) -> DataFrame:
    """One row a message: how often each kind of evidence was found, ``most`` completions at one
    place, and when it was accepted and first seen at home."""
    from pyspark.sql import functions as F  # noqa: N812

    def first(*kinds: Evidence) -> Column:
        return F.min(F.when(F.col("kind").isin(*(kind.value for kind in kinds)), F.col("at")))

    # Shuffled once, by message: both sums below then find their rows together.
    by_place = (
        rows.repartition(*MESSAGE)
        .groupBy(*MESSAGE, "place")
        .agg(
            *(
                F.sum(F.when(F.col("kind") == kind, F.col("times")).otherwise(0)).alias(kind.value)
                for kind in Evidence
            ),
            first(Evidence.SENT, Evidence.DIVERTED).alias("accepted_at"),
            # That the primary took a send says that it is home, but not how long that took.
            first(Evidence.RETURNED, Evidence.RECEIVED, Evidence.COMPLETED).alias("home_at"),
        )
    )
    return by_place.groupBy(*MESSAGE).agg(
        *(F.sum(kind.value).alias(kind.value) for kind in Evidence),
        F.max(Evidence.COMPLETED.value).alias("most"),
        F.min("accepted_at").alias("accepted_at"),
        F.min("home_at").alias("home_at"),
    )


def judge(found: DataFrame, *, must_be_received: bool) -> DataFrame:
    """With a column ``verdict``, and ``lag_s``, which is negative where clocks differ."""
    from pyspark.sql import functions as F  # noqa: N812

    accepted = F.col(Evidence.SENT) + F.col(Evidence.DIVERTED)
    arrived = F.col(Evidence.SENT) + F.col(Evidence.RETURNED)
    received = F.col(Evidence.RECEIVED) + F.col(Evidence.COMPLETED)
    twice = (F.col("most") > 1) | ((received == 0) & (arrived > 1))
    home = (received > 0) | (F.lit(not must_be_received) & (arrived > 0))
    verdict = (
        F.when(accepted == 0, MessageVerdict.UNEXPECTED)
        .when(twice, MessageVerdict.DUPLICATED)
        .when(F.col(Evidence.COMPLETED) > 0, MessageVerdict.OK)
        .when(F.col(Evidence.DEAD) > 0, MessageVerdict.DEAD)
        .when(home, MessageVerdict.OK)
        .when(F.col(Evidence.WAITING) > 0, MessageVerdict.WAITING)
        .otherwise(MessageVerdict.LOST)
    )
    lag = F.col("home_at").cast("double") - F.col("accepted_at").cast("double")
    # A send that raised, of a message that nobody ever saw, is not counted: its caller knows.
    seen = accepted + arrived + received + F.col(Evidence.DEAD) + F.col(Evidence.WAITING) > 0
    return found.where(seen).select("*", verdict.alias("verdict"), lag.alias("lag_s"))


# ---------------------------------------------------------------- what is reported


def by_window(judged: DataFrame, window_s: int) -> DataFrame:
    """Counts and lag by entity, and by when the messages were accepted."""
    from pyspark.sql import functions as F  # noqa: N812

    # Where neither time is known, as of what was only peeked, there is no window.
    seconds = F.unix_seconds(F.coalesce("accepted_at", "home_at"))
    window = F.timestamp_seconds(F.floor(seconds / window_s) * window_s)
    lag = F.when(F.col("lag_s").isNotNull(), F.greatest(F.col("lag_s"), F.lit(0.0)))
    quantiles = F.percentile_approx("lag", [0.5, 0.99], 10_000)
    rows = judged.select(
        window.alias("window"),
        F.col("home").alias("entity"),
        "verdict",
        Evidence.DIVERTED.value,
        "lag_s",
        lag.alias("lag"),
    )
    grouped = rows.groupBy("window", "entity").agg(
        F.sum((F.col("verdict") != MessageVerdict.UNEXPECTED).cast("long")).alias("accepted"),
        F.sum((F.col("diverted") > 0).cast("long")).alias("diverted"),
        *(
            F.sum((F.col("verdict") == each).cast("long")).alias(each.value)
            for each in MessageVerdict
        ),
        quantiles.alias("lags"),
        F.max(-F.col("lag_s")).alias("skew_s"),
    )
    return grouped.select(
        "window",
        "entity",
        "accepted",
        "diverted",
        *(each.value for each in MessageVerdict),
        F.col("lags")[0].alias("lag_p50_s"),
        F.col("lags")[1].alias("lag_p99_s"),
        "skew_s",
    )


def listed(judged: DataFrame, expected: int) -> pa.Table:
    """The ids in question. Looked for only if there are any."""
    from pyspark.sql import functions as F  # noqa: N812

    asked = judged.where(F.col("verdict").isin(*(each.value for each in QUESTIONABLE)))
    chosen = asked.select(
        F.col("verdict"),
        F.col("home").alias("entity"),
        "message_id",
        "accepted_at",
        "home_at",
        *(kind.value for kind in Evidence),
    )
    if not expected:
        return chosen.limit(0).toArrow()  # no job: Spark sees that there is nothing to do
    return (
        chosen.orderBy("verdict", "entity", "accepted_at", "message_id")
        .limit(MOST_LISTED)
        .toArrow()
    )


def marks(records: DataFrame) -> DataFrame:
    """When clients diverted what, as ``Mark``."""
    from pyspark.sql import functions as F  # noqa: N812

    turned = records.where(F.col("operation").isin(Operation.DIVERT.value, Operation.RESTORE.value))
    return turned.select(
        F.lower("entity").alias("entity"),
        "client",
        # As a number: Python would be handed the time of its own zone, without saying so.
        F.unix_micros("at").alias("at"),
        (F.col("operation") == Operation.DIVERT).alias("diverted"),
        "day",
    )


def _mark(row: Any) -> Mark:
    at = datetime.fromtimestamp(row["at"] / 1e6, UTC)
    return Mark(row["entity"], row["client"], at, row["diverted"])


def as_dict(audit: Audit) -> dict[str, Any]:
    return {
        "accepted": audit.accepted,
        **{each.value: audit.counts[each] for each in MessageVerdict},
        "clock_skew_at_least_s": round(audit.skew_s, 3),
        "windows": audit.windows.to_pylist(),
        "outages": [asdict(each) for each in audit.outages],
        "questionable": audit.questionable.to_pylist(),
    }
