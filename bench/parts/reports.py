"""The bill and the audit on Spark, beside DuckDB on the same files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench import duck
from bench import ledger as measured
from bench.results import Curve, Due, Figure, Result
from twinbus.spark.engine import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TITLE = "The bill and the audit: beside DuckDB"
LIMIT_S = 1500
CUT = "the ledgers are written by Spark, not by senders"
PEER = "DuckDB"
WALL = (
    "Spark: rows go through Java, tasks and shuffles that a cluster needs, and each query is "
    "planned anew; DuckDB is a library on one machine. The plot below says how the distance "
    "changes with the size"
)


def measure(quick: bool) -> Iterator[Result]:
    millions = (0.1, 0.3) if quick else (1.0, 10.0, 100.0)
    half = 50_000 if quick else 5_000_000
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-ledger-") as name:
        base = Path(name)
        spark = spark_session("bench", master="local[2,4]")
        try:
            yield audit(spark, base / "audit", half)
            yield from bills(spark, base, millions)
        finally:
            spark.stop()


def audit(spark: SparkSession, folder: Path, half: int) -> Figure:
    measured.write_deliveries(spark, folder, half)

    def beside() -> None:
        assert duck.audit(folder) == measured.LOST

    ours, theirs = measured.audit_times(spark, folder, half, 3, beside)
    shutil.rmtree(folder)
    return Figure(
        f"audit of {half:,} accepted against as many delivered",
        "s",
        ours,
        f"{measured.WARM}; DuckDB does the join and the counts, and not what is around them",
        {PEER: theirs},
        more_is_better=False,
        goal="under 60 s",
        met=max(ours) < 60,
        wall=WALL,
    )


def bills(spark: SparkSession, base: Path, millions: tuple[float, ...]) -> Iterator[Result]:
    ours: list[tuple[float, list[float]]] = []
    theirs: list[tuple[float, list[float]]] = []
    for size in millions:
        folder = base / f"bill-{size}"
        rows = int(size * measured.MILLION)
        measured.write(spark, folder, rows, measured.TRAFFIC)
        spark_s, duck_s = measured.bill_times(spark, folder, 3, partial(duck.bill, folder))
        shutil.rmtree(folder)
        ours.append((rows, spark_s))
        theirs.append((rows, duck_s))
        yield Figure(
            f"bill of {size:g} M records",
            "s",
            spark_s,
            f"{measured.WARM}; DuckDB does the groups and the sums",
            {PEER: duck_s},
            more_is_better=False,
            goal="under 10 s" if size == 10 else "",
            met=min(spark_s) < 10 if size == 10 else None,
            wall=WALL,
        )
    yield Curve(
        "bill-by-rows",
        "A bill against the ledger's size",
        "records",
        "s",
        {"Twinbus on Spark": ours, PEER: theirs},
        "30 days, 50 entities, four files a day; Spark and DuckDB in turn on the same files, three "
        "bills each",
        due=Due.LINE,
        reason="planning and starting the tasks is most of a small bill.",
        log_y=True,
    )
