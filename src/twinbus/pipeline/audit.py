"""The audit: what was accepted, against what came home, what waits and what was dead-lettered.

Theory of operation. Every record that names messages becomes one row a message, with a 1 in the
column of what it is evidence of. Rows of the same message, the same id sent to the same queue or
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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from twinbus.ledger import Cause, Operation
from twinbus.pipeline.cost import home_path
from twinbus.pipeline.tables import Found, summary

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

# Of the ids in question, so many are listed; all are counted.
MOST_LISTED: Final = 1_000_000
# What a row may be evidence of.
EVIDENCE: Final = (
    "accepted",
    "attempted",
    "diverted",
    "arrived",
    "received",
    "completed",
    "dead",
    "waiting",
)
TIMES: Final = ("accepted_at", "home_at")
MESSAGE: Final = ("home", "message_id")


class Verdict(StrEnum):
    OK = "ok"  # it is home
    WAITING = "waiting"  # it is in the backlog
    DEAD = "dead"  # it was dead-lettered
    LOST = "lost"  # it was accepted, and nobody knows where it is
    DUPLICATED = "duplicated"  # it came home more than once
    UNEXPECTED = "unexpected"  # it was seen, but nobody is known to have sent it


QUESTIONABLE: Final = (Verdict.LOST, Verdict.DUPLICATED, Verdict.UNEXPECTED, Verdict.DEAD)


@dataclass(frozen=True, slots=True)
class Seen:
    """A message that was peeked: in the backlog, or in a dead-letter queue."""

    home: str
    message_id: str
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A client diverted an entity, or took it home again."""

    entity: str
    client: str
    at: datetime
    diverted: bool


@dataclass(frozen=True, slots=True)
class Outage:
    """When an entity was out, as its clients saw it. ``ended`` is None while one still diverts."""

    entity: str
    began: datetime
    ended: datetime | None
    clients: int


@dataclass(frozen=True, slots=True)
class Audit:
    """``windows`` has one row a window and entity; ``questionable`` the ids in question."""

    windows: pa.Table
    questionable: pa.Table
    outages: tuple[Outage, ...]
    counts: dict[Verdict, int] = field(default_factory=dict)
    # How far the clocks of two clients are apart at least; 0 if nothing shows that they differ.
    skew_s: float = 0.0

    @property
    def accepted(self) -> int:
        return sum(self.counts.values()) - self.counts[Verdict.UNEXPECTED]

    @property
    def lost(self) -> int:
        return self.counts[Verdict.LOST]


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
    columns = [*MESSAGE, "place", *EVIDENCE, *TIMES]
    everything = evidence.select(*columns)
    if seen:
        everything = everything.unionByName(peeked(spark, seen))
    judged = judge(messages(everything), must_be_received=must_be_received)
    windows = by_window(judged, window_s).toArrow()
    counts = {each: _sum(windows, each.value) for each in Verdict}
    questionable = listed(judged, sum(counts[each] for each in QUESTIONABLE))
    marked = summary(spark, found, marks, _under(state, "marks"))
    outages = find_outages(_mark(row) for row in marked.collect())
    skews = [each for each in windows["skew_s"].to_pylist() if each is not None]
    return Audit(
        windows.drop_columns(["skew_s"]), questionable, outages, counts, max([0.0, *skews])
    )


def _under(state: str | None, name: str) -> str | None:
    return None if state is None else f"{state.rstrip('/')}/{name}"


def _sum(table: pa.Table, column: str) -> int:
    return sum(table[column].to_pylist())


# ---------------------------------------------------------------- from records to messages


def events(records: DataFrame) -> DataFrame:
    """One row a message and record, with what it is evidence of."""
    from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

    flags = _flags()
    accepted, home = flags["accepted"], flags["arrived"] | flags["received"] | flags["completed"]
    own = flags["arrived"] & (F.col("cause") == Cause.NORMAL)
    any_flag = accepted | flags["attempted"] | home | flags["dead"]
    return (
        records.where(any_flag)
        .select(
            "day",
            home_path(F.coalesce("destination", "entity")).alias("home"),
            _place(F.lower("entity")).alias("place"),
            *(flag.cast("int").alias(name) for name, flag in flags.items()),
            F.lit(0).alias("waiting"),
            F.when(accepted, F.col("at")).alias("accepted_at"),
            # That the primary took a send says that it is home, but not how long that took.
            F.when(home & ~own, F.col("at")).alias("home_at"),
            "message_ids",
        )
        .withColumn("message_id", F.explode("message_ids"))
        .select("day", *MESSAGE, "place", *EVIDENCE, *TIMES)
    )


def _flags() -> dict[str, Column]:
    from pyspark.sql import functions as F  # noqa: N812

    operation, cause, ok = F.col("operation"), F.col("cause"), F.col("ok")
    sends = operation.isin(Operation.SEND.value, Operation.SCHEDULE.value)
    normal = cause == Cause.NORMAL
    diverted = cause == Cause.BACKLOG_SEND
    at_home = cause.isin(Cause.NORMAL.value, Cause.HOME_RECEIVE.value)
    in_dead_letters = F.lower("entity").endswith("/$deadletterqueue")
    return {
        "accepted": sends & ok & (normal | diverted),
        "attempted": sends & ~ok & normal,
        "diverted": sends & ok & diverted,
        "arrived": sends & ok & (normal | (cause == Cause.HOME_SEND)),
        "received": (operation == Operation.RECEIVE) & ok & at_home & ~in_dead_letters,
        "completed": (operation == Operation.COMPLETE) & ok & at_home & ~in_dead_letters,
        "dead": ok
        & (
            (operation == Operation.DEAD_LETTER)
            | ((operation == Operation.RECEIVE) & in_dead_letters)
        ),
    }


def _place(entity: Column) -> Column:
    """The subscription, or nothing for a queue."""
    from pyspark.sql import functions as F  # noqa: N812

    subscription = F.substring_index(F.substring_index(entity, "/subscriptions/", -1), "/$", 1)
    return F.when(F.contains(entity, F.lit("/subscriptions/")), subscription).otherwise("")


def facts(records: DataFrame) -> DataFrame:
    """What a day says about each message: what is kept between audits."""
    return _added(events(records), "day", *MESSAGE, "place")


def peeked(spark: SparkSession, seen: Sequence[Seen]) -> DataFrame:
    import pyarrow as pa
    from pyspark.sql import functions as F  # noqa: N812

    columns = {
        "home": pa.array([each.home for each in seen], pa.string()),
        "message_id": pa.array([each.message_id for each in seen], pa.string()),
        "dead": pa.array([int(each.dead) for each in seen], pa.int32()),
        "waiting": pa.array([int(not each.dead) for each in seen], pa.int32()),
    }
    frame = spark.createDataFrame(pa.table(columns))
    zeros = [F.lit(0).alias(name) for name in EVIDENCE if name not in ("dead", "waiting")]
    nothing = [F.lit(None).cast("timestamp").alias(name) for name in TIMES]
    return frame.select(
        home_path(F.col("home")).alias("home"),
        "message_id",
        F.lit("").alias("place"),
        *zeros,
        "dead",
        "waiting",
        *nothing,
    )


def _added(rows: DataFrame, *keys: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    sums = [F.sum(name).alias(name) for name in EVIDENCE]
    firsts = [F.min(name).alias(name) for name in TIMES]
    return rows.groupBy(*keys).agg(*sums, *firsts)


def messages(rows: DataFrame) -> DataFrame:
    """One row a message. ``most`` is how often it was completed where that was done most often."""
    from pyspark.sql import functions as F  # noqa: N812

    # Shuffled once, by message: both sums below then find their rows together.
    by_place = _added(rows.repartition(*MESSAGE), *MESSAGE, "place")
    return by_place.groupBy(*MESSAGE).agg(
        *(F.sum(name).alias(name) for name in EVIDENCE),
        *(F.min(name).alias(name) for name in TIMES),
        F.max("completed").alias("most"),
    )


def judge(found: DataFrame, *, must_be_received: bool) -> DataFrame:
    """With a column ``verdict``, and ``lag_s``, which is negative where clocks differ."""
    from pyspark.sql import functions as F  # noqa: N812

    seen_home = F.col("received") + F.col("completed")
    twice = (F.col("most") > 1) | ((seen_home == 0) & (F.col("arrived") > 1))
    home = (F.col("received") > 0) | (F.lit(not must_be_received) & (F.col("arrived") > 0))
    verdict = (
        F.when(F.col("accepted") == 0, Verdict.UNEXPECTED)
        .when(twice, Verdict.DUPLICATED)
        .when(F.col("completed") > 0, Verdict.OK)
        .when(F.col("dead") > 0, Verdict.DEAD)
        .when(home, Verdict.OK)
        .when(F.col("waiting") > 0, Verdict.WAITING)
        .otherwise(Verdict.LOST)
    )
    lag = F.col("home_at").cast("double") - F.col("accepted_at").cast("double")
    # A send that raised, of a message that nobody ever saw, is nobody's business.
    nothing = (F.col("accepted") + F.col("arrived") + seen_home == 0) & (
        F.col("dead") + F.col("waiting") == 0
    )
    return found.where(~nothing).select("*", verdict.alias("verdict"), lag.alias("lag_s"))


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
        "diverted",
        "accepted",
        "lag_s",
        lag.alias("lag"),
    )
    grouped = rows.groupBy("window", "entity").agg(
        F.sum((F.col("accepted") > 0).cast("long")).alias("accepted"),
        F.sum((F.col("diverted") > 0).cast("long")).alias("diverted"),
        *(F.sum((F.col("verdict") == each).cast("long")).alias(each.value) for each in Verdict),
        quantiles.alias("lags"),
        F.max(-F.col("lag_s")).alias("skew_s"),
    )
    return grouped.select(
        "window",
        "entity",
        "accepted",
        "diverted",
        *(each.value for each in Verdict),
        F.col("lags")[0].alias("lag_p50_s"),
        F.col("lags")[1].alias("lag_p99_s"),
        "skew_s",
    ).orderBy("window", "entity")


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
        *EVIDENCE,
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


def find_outages(marked: Iterable[Mark]) -> tuple[Outage, ...]:
    """Each client's diversions, and where those of several clients overlap, one outage of them."""
    spans: list[tuple[str, datetime, datetime | None, str]] = []
    ordered = sorted(marked, key=lambda mark: (mark.entity, mark.client, mark.at))
    for (entity, client), group in groupby(ordered, key=lambda mark: (mark.entity, mark.client)):
        began: datetime | None = None
        for mark in group:
            if mark.diverted:
                began = began or mark.at
            elif began is not None:
                spans.append((entity, began, mark.at, client))
                began = None
        if began is not None:
            spans.append((entity, began, None, client))
    return tuple(_merged(spans))


def _merged(spans: list[tuple[str, datetime, datetime | None, str]]) -> list[Outage]:
    found: list[Outage] = []
    clients: set[str] = set()
    for entity, began, ended, client in sorted(spans, key=lambda span: span[:2]):
        last = found[-1] if found else None
        joins = last is not None and last.entity == entity
        if last is not None and joins and (last.ended is None or began <= last.ended):
            clients.add(client)
            until = None if None in (last.ended, ended) else max(last.ended, ended)  # type: ignore[type-var]
            found[-1] = Outage(entity, last.began, until, len(clients))
        else:
            clients = {client}
            found.append(Outage(entity, began, ended, 1))
    return found


def as_dict(audit: Audit) -> dict[str, Any]:
    return {
        "accepted": audit.accepted,
        **{each.value: audit.counts[each] for each in Verdict},
        "clock_skew_at_least_s": round(audit.skew_s, 3),
        "windows": audit.windows.to_pylist(),
        "outages": [
            {
                "entity": each.entity,
                "began": each.began,
                "ended": each.ended,
                "clients": each.clients,
            }
            for each in audit.outages
        ],
        "questionable": audit.questionable.to_pylist(),
    }
