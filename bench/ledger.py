"""What a ledger costs those who send, and how long billing and auditing one takes.

    python bench/ledger.py [--millions 1,10,100] [--audit-millions 5] [--folder DIR]

Spark is warm when it is timed, on local[2]. A bill is timed as a user gets it: from listing the
files to the lines in hand. The ledgers are written by Spark itself and deleted afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from harness.brokers import BrokerProcess, certificate

import twinbus.aio
from bench.paired import (
    Timed,
    figure,
    interleaved,
    options,
    timed_list,
    timed_single,
    trimmed,
)
from bench.results import Figure
from twinbus.accounts.audit import Audit, MessageVerdict, make_audit
from twinbus.accounts.bill import make_bill
from twinbus.accounts.prices import read_tier
from twinbus.accounts.tables import find
from twinbus.ledger import FLUSH_INTERVAL_S, FORMAT, LIMIT, MARKER, Ledger
from twinbus.spark.engine import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MILLION = 1_000_000
DAYS, ENTITIES, FILES_A_DAY = 30, 50, 4
LOST = 7
SINGLES, LISTS = 200, 60
LISTED = "lists of 100"
WARM = "Spark is warm, on local[2]; from listing the files to the lines in hand"

# What every row has; the rest depends on what is measured.
COMMON = f"""
  timestamp_seconds(1793491200 + (id % {DAYS}) * 86400 + id % 86399) at,
  concat('client-', id % 20) client, true ok, 1L count, 900L bytes, 1L units,
  concat('queue-', id % {ENTITIES}) entity
"""
TRAFFIC = f"""
  SELECT {COMMON}, array(concat(hex(xxhash64(id)), '-', hex(id))) message_ids,
    if(id % 100 < 94, 'contoso', 'fabrikam') namespace,
    CASE WHEN id % 100 < 40 THEN 'send' WHEN id % 100 < 70 THEN 'receive' WHEN id % 100 < 92 THEN
      'complete' WHEN id % 100 < 94 THEN 'ping' WHEN id % 100 < 96 THEN 'empty_receive' ELSE 'send'
      END operation,
    CASE WHEN id % 100 < 92 THEN 'normal' WHEN id % 100 < 94 THEN 'ping' WHEN id % 100 < 96 THEN
      'syphon_idle' WHEN id % 100 < 98 THEN 'backlog_send' ELSE 'home_send' END cause,
    if(id % 100 >= 96 AND id % 100 < 98, 'queue-1', NULL) destination
  FROM rows"""
# The first half is accepted, the second delivered; the last few of the first half never are.
DELIVERIES = """
  SELECT {common}, array(concat(hex(xxhash64(id % {half})), '-', hex(id % {half}))) message_ids,
    'contoso' namespace, if(id < {half}, 'send', 'complete') operation, 'normal' cause,
    CAST(NULL AS STRING) destination
  FROM rows WHERE id < 2 * {half} - {lost}"""


def write(spark: SparkSession, folder: Path, rows: int, query: str) -> None:
    """A ledger of so many records, a day at a time: every DAYS-th row is of the same day."""
    folder.mkdir(parents=True)
    (folder / MARKER).write_text(json.dumps({"format": FORMAT}))
    for day in range(DAYS):
        spark.range(day, rows, DAYS, FILES_A_DAY).createOrReplaceTempView("rows")
        spark.sql(query).write.parquet(str(folder / f"day=2026-11-{day + 1:02d}"))


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    done = act()
    return time.perf_counter() - began, done


# ---------------------------------------------------------------- the bill


def bill_times(
    spark: SparkSession, folder: Path, runs: int, beside: Callable[[], Any] | None = None
) -> tuple[list[float], list[float]]:
    """Seconds of some bills of a ledger, and of whatever is done beside, in turn."""
    tier = read_tier("standard")

    def once() -> int:
        bill = make_bill(spark, find(spark, str(folder)), tier)
        return bill.lines.toArrow().num_rows if bill.days else 0

    once()  # Spark compiles the plan, and the disk's cache fills
    ours, theirs = [], []
    for _ in range(runs):
        ours.append(timed(once)[0])
        if beside:
            theirs.append(timed(beside)[0])
    return ours, theirs


def bills(spark: SparkSession, base: Path, millions: list[int]) -> list[Figure]:
    found, table = [], []
    for size in millions:
        folder = base / f"bill-{size}"
        write(spark, folder, size * MILLION, TRAFFIC)
        times, _ = bill_times(spark, folder, 2 if size >= 100 else 3)
        table.append((size, min(times)))
        goal = "< 10" if size == 10 else ""
        found.append(figure(f"bill of {size} M records", goal, times, "s", WARM))
        shutil.rmtree(folder)
    print(f"\n{'records':>12} {'seconds':>9} {'M a second':>11}")
    for size, best in table:
        print(f"{size:>10} M {best:9.2f} {size / best:11.2f}")
    return found


# ---------------------------------------------------------------- the audit


def write_deliveries(spark: SparkSession, folder: Path, half: int) -> None:
    """So many accepted, and as many less LOST delivered."""
    write(spark, folder, 2 * half, DELIVERIES.format(common=COMMON, half=half, lost=LOST))


def audit_times(
    spark: SparkSession, folder: Path, half: int, runs: int, beside: Callable[[], Any] | None = None
) -> tuple[list[float], list[float]]:
    """Seconds of some audits, and of whatever is done beside, in turn."""

    def once() -> Audit:
        return make_audit(spark, find(spark, str(folder)), must_be_received=True)

    once()  # as with the bill
    ours, theirs = [], []
    for _ in range(runs):
        took, made = timed(once)
        assert made.counts[MessageVerdict.OK] == half - LOST, made.counts
        assert made.lost == made.questionable.num_rows == LOST
        ours.append(took)
        if beside:
            theirs.append(timed(beside)[0])
    return ours, theirs


def audits(spark: SparkSession, base: Path, millions: int) -> list[Figure]:
    folder = base / "audit"
    write_deliveries(spark, folder, millions * MILLION)
    times, _ = audit_times(spark, folder, millions * MILLION, 2)
    shutil.rmtree(folder)
    name = f"audit of {millions} M accepted against {millions} M delivered"
    return [figure(name, "< 60", times, "s", WARM)]


# ---------------------------------------------------------------- sending


async def sending(base: Path, rounds: int) -> list[Figure]:
    """One paired sender, with its ledger and without in turn; the writing of it included."""
    for name in ("primary", "secondary"):
        (base / name).mkdir()
    primary = BrokerProcess(base / "primary", {"orders": {}})
    secondary = BrokerProcess(base / "secondary", {})
    primary.start()
    secondary.start()
    ledger = Ledger(base / "ledger", flush_interval_s=3600)
    found = []
    try:
        pair, backup = await paired(primary, secondary, ledger)
        watch = Stopwatch(pair.books)
        async with pair.get_queue_sender("orders") as sender:
            for what, count, make in (
                ("single sends", SINGLES, timed_single),
                (LISTED, LISTS, timed_list),
            ):
                found += await kept_or_not(pair, watch, ledger, make(sender), what, count, rounds)
        await pair.close()
        await backup.close()
        return found
    finally:
        ledger.close()
        primary.close()
        secondary.close()


async def kept_or_not(
    pair: Any,
    watch: Stopwatch,
    ledger: Ledger,
    act: Timed,
    what: str,
    count: int,
    rounds: int,
) -> list[Figure]:
    """By its parts, which is exact; and by the clock, beside what the clock says of nothing."""
    plain, noted = kept(pair, act, None), kept(pair, act, watch)
    for _ in range(10):
        await plain()
    ledger.flush()
    shares = []
    for _ in range(rounds):
        watch.spent_s = 0.0
        each = trimmed([await noted() for _ in range(count)])
        messages = 100 if what == LISTED else 1
        spared = each - watch.spent_s / count
        shares.append(spared / (each + writing_s(ledger, each, messages)))
    by_clock = await interleaved(rounds, count, plain, kept(pair, act, watch.books))
    itself = await interleaved(rounds, count, plain, kept(pair, act, None))
    return [
        figure(
            f"of a sender's time, what a ledger leaves it, {what}",
            ">= 0.98",
            shares,
            how="the time of a send less that of recording it, over the time of a send and of "
            "writing its record to Parquet, as if the thread that writes took it from the sender",
        ),
        Figure(
            f"the same by the clock, {what}",
            "x",
            by_clock,
            "without a ledger over with one, in turn, operation by operation; beside it a sender "
            "without one over itself, which says how far to trust that clock",
            {"without over without": itself},
        ),
    ]


class Stopwatch:
    """Books that say how long it took to keep them."""

    def __init__(self, books: Any) -> None:
        self.books = books
        self.spent_s = 0.0

    def sent(self, *args: Any, **kwargs: Any) -> None:
        began = time.perf_counter()
        self.books.sent(*args, **kwargs)
        self.spent_s += time.perf_counter() - began


def writing_s(ledger: Ledger, each_s: float, messages: int) -> float:
    """What writing takes a record, if as many wait as a busy sender makes between writings."""
    ledger.flush()
    rows = min(int(FLUSH_INTERVAL_S / each_s), LIMIT // (messages + 1))
    for _ in range(rows):
        ids = [str(uuid4()) for _ in range(messages)]
        ledger.add("send", "normal", "contoso", "orders", count=messages, message_ids=ids)
    return timed(ledger.flush)[0] / rows


def kept(pair: Any, act: Timed, books: Any) -> Timed:
    async def run() -> float:
        pair.books = books
        return await act()

    return run


async def paired(primary: BrokerProcess, secondary: BrokerProcess, ledger: Any) -> tuple[Any, Any]:
    make = twinbus.aio.MessagingFactory.from_connection_string
    pair = make(primary.connection_string, ledger=ledger)
    backup = make(secondary.connection_string)
    async with twinbus.aio.NamespaceManager.from_connection_string(
        secondary.connection_string, connection_verify=certificate(secondary)
    ) as manager:
        await pair.pair_namespace(options(manager, backup))
    return pair, backup


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", default="1,10,100")
    parser.add_argument("--audit-millions", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="where there is room for about 10 GB")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON at the end")
    arguments = parser.parse_args()
    sizes = [int(each) for each in arguments.millions.split(",") if each]
    with tempfile.TemporaryDirectory(prefix="bench-ledger-", dir=arguments.folder) as name:
        base = Path(name)
        found = asyncio.run(sending(base, arguments.rounds)) if arguments.rounds else []
        spark = spark_session("bench", master="local[2,4]")
        if arguments.audit_millions:
            found += audits(spark, base, arguments.audit_millions)
        found += bills(spark, base, sizes)
        spark.stop()
    if arguments.json:
        print(json.dumps([asdict(each) for each in found], indent=2))


if __name__ == "__main__":
    main()
