"""A ledger's folder as a DataFrame, and summaries of it that are brought up to date day by day.

A summary is a DataFrame with a column ``day`` whose rows of one day depend on that day's records
alone. Kept in a state folder, only days whose files are not those of last time are read again: new
days, and old ones for which a late record came. So the answer is the same in one pass or in many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from twinbus.ledger import MARKER, LedgerError, RecordKeeper, check_marker
from twinbus.ledger.reader import PYTHONS_TIMES, Found, find_local, is_data, local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = (
    "at TIMESTAMP, client STRING, namespace STRING, entity STRING, operation STRING, cause STRING, "
    "ok BOOLEAN, count BIGINT, bytes BIGINT, units BIGINT, message_ids ARRAY<STRING>, "
    "destination STRING, kept_by STRING, day STRING"
)

Summarise = Callable[["DataFrame"], "DataFrame"]


def find(
    spark: SparkSession, where: str, keeper: RecordKeeper | None = RecordKeeper.CLIENT
) -> Found:
    """Look at a ledger. Raises LedgerError, with a sentence, if there is nothing to read."""
    local = local_path(where)
    files = find_local(local) if local is not None else _find_remote(spark, where)
    found = replace(files, keeper=keeper)
    found.check_records(where)
    if keeper is not None and read(spark, found).isEmpty():
        raise LedgerError(_of_others(spark, found, where))
    return found


def _of_others(spark: SparkSession, found: Found, where: str) -> str:
    if read(spark, replace(found, keeper=None)).isEmpty():
        return f"the ledger {where} has no records that can be read"
    if found.keeper is RecordKeeper.BROKER:
        return f"no broker kept the ledger {where}, only clients did: leave out --kept-by"
    return f"only brokers kept the ledger {where}: give --kept-by broker to see what they served"


def _find_remote(spark: SparkSession, where: str) -> Found:
    """Through Hadoop, as Spark itself will read it."""
    root = where.rstrip("/")
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext
    make = jvm.org.apache.hadoop.fs.Path
    try:
        files = make(root).getFileSystem(context._jsc.hadoopConfiguration())
        if not files.exists(make(f"{root}/{MARKER}")):
            raise LedgerError(f"there is no ledger {where}: it has no {MARKER}")
        stream = files.open(make(f"{root}/{MARKER}"))
        marker = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        stream.close()
        statuses = list(files.globStatus(make(f"{root}/day=*/*.parquet")))
    except LedgerError:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise LedgerError(f"the ledger {where} cannot be reached: {first}") from error
    check_marker(marker, where)
    days: dict[str, set[str]] = {}
    for status in statuses:
        path = status.getPath()
        if is_data(path.getName()):
            days.setdefault(path.getParent().getName()[4:], set()).add(path.getName())
    return Found(root, {day: frozenset(names) for day, names in sorted(days.items())})


def read(spark: SparkSession, found: Found, days: Iterable[str] | None = None) -> DataFrame:
    """The records of these days, or of all. Files that are torn are passed over."""
    from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

    chosen = sorted(found.days if days is None else days)
    records = (
        spark.read.schema(SCHEMA)
        .option("basePath", found.root)
        .option("ignoreCorruptFiles", "true")
        .parquet(*(found.folder(day) for day in chosen))
    )
    # A clock that is wrong, or a record without a time, must not be what nobody can print.
    first, last = (F.timestamp_micros(F.lit(us)) for us in PYTHONS_TIMES)
    records = records.withColumn("at", F.greatest(F.least("at", last), first))
    if found.keeper is None:
        return records
    # Ledgers of earlier versions do not say, and no broker kept them.
    by_broker = F.col("kept_by").eqNullSafe(RecordKeeper.BROKER.value)
    return records.where(by_broker if found.keeper is RecordKeeper.BROKER else ~by_broker)


# ---------------------------------------------------------------- summaries


def summary(
    spark: SparkSession, found: Found, summarise: Summarise, state: str | None = None
) -> DataFrame:
    """``summarise`` of all records. With a state folder, only what is new is read."""
    if state is None:
        return summarise(read(spark, found))
    if found.keeper is RecordKeeper.BROKER:
        state = f"{state}/_broker"  # a name that the other summary beside it passes over
    index = f"{state}/_index"
    known = _known(spark, index)
    changed = [day for day, names in found.days.items() if known.get(day) != names]
    shape = summarise(read(spark, found, list(found.days)[:1])).schema
    if changed:
        (
            summarise(read(spark, found, changed))
            .repartition("day")
            .write.mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy("day")
            .parquet(state)
        )
        # Last, so that a crash before this line means only that the work is done again.
        _remember(spark, index, found)
    kept = spark.read.schema(shape).parquet(state)
    return kept.where(kept["day"].isin(list(found.days))).select(*shape.names)


def _known(spark: SparkSession, index: str) -> dict[str, frozenset[str]]:
    from pyspark.errors import PySparkException

    try:
        rows = spark.read.schema("day STRING, files ARRAY<STRING>").json(index).collect()
    except PySparkException:  # there is none yet, or a crash left half of one: all is new
        return {}
    return {row["day"]: frozenset(row["files"] or ()) for row in rows if row["day"]}


def _remember(spark: SparkSession, index: str, found: Found) -> None:
    import pyarrow as pa

    # From Arrow, because rows from a list would need a Python process on some worker.
    rows = [{"day": day, "files": sorted(names)} for day, names in found.days.items()]
    spark.createDataFrame(pa.Table.from_pylist(rows)).coalesce(1).write.mode("overwrite").json(
        index
    )
