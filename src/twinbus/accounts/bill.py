"""The bill: what a ledger's operations cost, by day, namespace, entity, operation and cause.

A month's operations are priced in the order of their days: a day costs what it adds to the month.
Within a day every operation costs the same, so the lines of a day add up to it. All namespaces of
the ledger count as one account, as Service Bus counts those of a subscription.

What is charged, and what for, ``attribution`` says.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

from twinbus.accounts.attribution import CAME_HOME, FREE, KEYS, RECEIVED, SUMS, WITHIN
from twinbus.accounts.prices import Statement, Tier, price_days
from twinbus.accounts.tables import summary
from twinbus.ledger import Cause
from twinbus.ledger.reader import Found

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill(Statement):
    """``lines`` has KEYS, SUMS and ``cost``."""

    lines: DataFrame


def make_bill(spark: SparkSession, found: Found, tier: Tier, state: str | None = None) -> Bill:
    # Computed once and let go of its files: what follows looks at it several times.
    counted = summary(spark, found, lines, state).localCheckpoint()
    sums = _by_day_and_cause(counted).collect()
    units: dict[str, int] = {}
    for row in sums:
        units[row["day"]] = units.get(row["day"], 0) + row["units"]
    statement = Statement(price_days(units, tier), tier)
    if any(row["cause"] == Cause.HOME_SEND for row in sums):
        counted = attributed(counted)
    return Bill(days=statement.days, tier=tier, lines=priced(counted, statement.rates))


def lines(records: DataFrame) -> DataFrame:
    """The operations that count, summed. A day's lines come from that day's records alone."""
    from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

    billable = records.where(F.col("ok") & ~F.col("operation").isin(*FREE))
    return billable.groupBy(*KEYS).agg(*(F.sum(name).alias(name) for name in SUMS))


def attributed(counted: DataFrame) -> DataFrame:
    """The lines, with the receives of what came home put down to the outage."""
    from pyspark.sql import functions as F  # noqa: N812

    home = home_path(F.col("entity"))
    came = (
        counted.where(_is_one_of(CAME_HOME))
        .groupBy("day", "namespace", home.alias("home"))
        .agg(F.sum("count").alias("came"))
    )
    joined = (
        counted.withColumn("home", F.when(_is_one_of(*RECEIVED), home))
        .join(F.broadcast(came), ["day", "namespace", "home"], "left")
        .withColumn("moved", F.least(F.coalesce("came", F.lit(0)), "count"))
    )
    stays, goes = F.lit(False), F.lit(True)
    parts = (
        F.when(F.col("moved") == 0, F.array(stays))
        .when(F.col("moved") == F.col("count"), F.array(goes))
        .otherwise(F.array(stays, goes))
    )
    both = joined.select("*", F.explode(parts).alias("goes"))
    taken = [_share(F.col(name)).alias(name) for name in SUMS]
    cause = F.when(F.col("goes"), Cause.HOME_RECEIVE).otherwise(F.col("cause")).alias("cause")
    return both.select("day", "namespace", "entity", "operation", cause, *taken)


def _is_one_of(*kinds: tuple[str, str]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    both = [(F.col("operation") == operation) & (F.col("cause") == why) for operation, why in kinds]
    return reduce(operator.or_, both)


def _share(amount: Column) -> Column:
    """Of a line that is split: what goes with the messages that came home, and the rest."""
    from pyspark.sql import functions as F  # noqa: N812

    exact = amount.cast("double") * F.col("moved") / F.col("count")
    moved = F.when(F.col("moved") > 0, F.floor(exact + 0.5)).otherwise(0)
    return F.when(F.col("goes"), moved).otherwise(amount - moved)


def home_path(entity: Column) -> Column:
    """The queue or topic that an entity belongs to, in lower case: paths are not case-sensitive."""
    from pyspark.sql import functions as F  # noqa: N812

    path = F.lower(entity)
    for within in WITHIN:
        path = F.substring_index(path, within, 1)
    return path


def _by_day_and_cause(counted: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return counted.groupBy("day", "cause").agg(F.sum("units").alias("units"))


def priced(counted: DataFrame, rates: Mapping[str, Decimal]) -> DataFrame:
    """The lines with a column ``cost``."""
    from pyspark.sql import functions as F  # noqa: N812

    table = F.create_map(*(F.lit(each) for day in rates for each in (day, float(rates[day]))))
    cost = F.col("units") * table[F.col("day")]
    return counted.select(*KEYS, *SUMS, cost.alias("cost"))


def as_dict(bill: Bill, lines: pa.Table) -> dict[str, Any]:
    """The sums of ``bill.lines``, for programs and for the page."""
    wanted = (*SUMS, "cost")
    grouped = lines.group_by("cause").aggregate([(name, "sum") for name in wanted]).to_pylist()
    causes = {row["cause"]: row for row in grouped}
    return {
        **bill.in_all(),
        "by_cause": {
            cause.value: {name: causes[cause.value][f"{name}_sum"] for name in wanted}
            for cause in Cause
            if cause.value in causes
        },
        "by_day": {
            each.day: {"units": each.units, "cost": float(round(each.cost, 6))}
            for each in bill.days
        },
    }
