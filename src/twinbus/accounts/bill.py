"""The bill: what a ledger's operations cost, by day, namespace, entity, operation and cause.

A month's operations are priced in the order of their days: a day costs what it adds to the month.
Within a day every operation costs the same, so the lines of a day add up to it. All namespaces of
the ledger count as one account, as Service Bus counts those of a subscription.

Why a message was received at home nobody can see on the message itself: it came home as it was
sent. So of a day's receives from an entity, as many as messages came home to it that day are put
down to that. The sums do not depend on this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from twinbus.accounts.prices import Day, Tier, price_days
from twinbus.accounts.tables import Found, summary
from twinbus.ledger import MARKS, Cause, Operation

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

KEYS: Final = ("day", "namespace", "entity", "operation", "cause")
SUMS: Final = ("count", "bytes", "units")
_RECEIVES: Final = (Operation.RECEIVE, Operation.COMPLETE)


@dataclass(frozen=True, slots=True)
class Bill:
    """``lines`` has KEYS, SUMS and ``cost``."""

    lines: DataFrame
    days: tuple[Day, ...]
    tier: Tier

    @property
    def months(self) -> list[str]:
        return sorted({each.day[:7] for each in self.days})

    @property
    def base(self) -> Decimal:
        return self.tier.base * len(self.months)

    @property
    def operations_cost(self) -> Decimal:
        return sum((each.cost for each in self.days), Decimal(0))

    @property
    def total(self) -> Decimal:
        return self.base + self.operations_cost


def make_bill(spark: SparkSession, found: Found, tier: Tier, state: str | None = None) -> Bill:
    # Computed once and let go of its files: what follows looks at it several times.
    counted = summary(spark, found, lines, state).localCheckpoint()
    sums = _by_day_and_cause(counted).collect()
    units: dict[str, int] = {}
    for row in sums:
        units[row["day"]] = units.get(row["day"], 0) + row["units"]
    days = price_days(units, tier)
    if any(row["cause"] == Cause.HOME_SEND for row in sums):
        counted = attributed(counted)
    return Bill(priced(counted, days), days, tier)


def lines(records: DataFrame) -> DataFrame:
    """The operations that count, summed. A day's lines come from that day's records alone."""
    from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

    billable = records.where(F.col("ok") & ~F.col("operation").isin(*sorted(map(str, MARKS))))
    return billable.groupBy(*KEYS).agg(*(F.sum(name).alias(name) for name in SUMS))


def attributed(counted: DataFrame) -> DataFrame:
    """The lines, with the receives of what came home put down to the outage."""
    from pyspark.sql import functions as F  # noqa: N812

    home = home_path(F.col("entity"))
    came = (
        counted.where((F.col("cause") == Cause.HOME_SEND) & (F.col("operation") == Operation.SEND))
        .groupBy("day", "namespace", home.alias("home"))
        .agg(F.sum("count").alias("came"))
    )
    is_receive = (F.col("cause") == Cause.NORMAL) & F.col("operation").isin(*map(str, _RECEIVES))
    joined = (
        counted.withColumn("home", F.when(is_receive, home))
        .join(F.broadcast(came), ["day", "namespace", "home"], "left")
        .withColumn("moved", F.least(F.coalesce("came", F.lit(0)), "count"))
    )
    split = F.explode(
        F.when(F.col("moved") > 0, F.array(F.lit(0), F.lit(1))).otherwise(F.array(F.lit(0)))
    )
    both = joined.select("*", split.alias("part"))
    taken = [_share(F.col(name)).alias(name) for name in SUMS]
    cause = F.when(F.col("part") == 1, Cause.HOME_RECEIVE).otherwise(F.col("cause")).alias("cause")
    result = both.select("day", "namespace", "entity", "operation", cause, *taken)
    return result.where(F.col("count") > 0)


def _share(amount: Column) -> Column:
    """Of a line that is split: what goes with the messages that came home, and the rest."""
    from pyspark.sql import functions as F  # noqa: N812

    moved = F.coalesce(F.round(amount * F.col("moved") / F.col("count")), F.lit(0)).cast("bigint")
    return F.when(F.col("part") == 1, moved).otherwise(amount - moved)


def home_path(entity: Column) -> Column:
    """The queue or topic that an entity belongs to, in lower case: paths are not case-sensitive."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.substring_index(F.substring_index(F.lower(entity), "/subscriptions/", 1), "/$", 1)


def _by_day_and_cause(counted: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return counted.groupBy("day", "cause").agg(F.sum("units").alias("units"))


def priced(counted: DataFrame, days: Iterable[Day]) -> DataFrame:
    """The lines with a column ``cost``."""
    from pyspark.sql import functions as F  # noqa: N812

    rates = {each.day: float(each.cost / each.units) if each.units else 0.0 for each in days}
    table = F.create_map(*(F.lit(each) for pair in rates.items() for each in pair))
    cost = F.col("units") * table[F.col("day")]
    return counted.select(*KEYS, *SUMS, cost.alias("cost"))


def as_dict(bill: Bill, lines: pa.Table) -> dict[str, Any]:
    """The sums of ``bill.lines``, for programs and for the page."""
    wanted = (*SUMS, "cost")
    grouped = lines.group_by("cause").aggregate([(name, "sum") for name in wanted]).to_pylist()
    causes = {row["cause"]: row for row in grouped}
    return {
        "tier": bill.tier.name,
        "currency": bill.tier.currency,
        "months": bill.months,
        "operations": sum(each.units for each in bill.days),
        "base": float(bill.base),
        "operations_cost": float(round(bill.operations_cost, 6)),
        "total": float(round(bill.total, 6)),
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
