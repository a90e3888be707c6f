"""The bill, against one worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.unit.accounts.ledgers import Book

from twinbus.accounts.bill import Bill, as_dict, make_bill
from twinbus.accounts.prices import read_tier
from twinbus.accounts.tables import find
from twinbus.ledger import Keeper, LedgerError

STANDARD = read_tier("standard")
M = 1_000_000


def bill(spark: SparkSession, folder: Path, state: Path | None = None) -> Bill:
    return make_bill(spark, find(spark, str(folder)), STANDARD, str(state) if state else None)


def rows(made: Bill) -> list[tuple[Any, ...]]:
    wanted = made.lines.select("day", "entity", "operation", "cause", "count", "units", "cost")
    return sorted((*row[:-1], round(row[-1], 9)) for row in wanted.collect())


def sums(made: Bill) -> dict[str, Any]:
    return as_dict(made, made.lines.toArrow())


def test_a_bill_worked_out_by_hand(spark: SparkSession, tmp_path: Path) -> None:
    with Book(tmp_path) as book:
        book.plain("11-18 08:00", "send", "normal", 12 * M)
        book.plain("11-19 08:00", "send", "normal", M)
        book.plain("11-19 09:00", "send", "normal", M // 2)
        book.plain("11-19 09:00", "ping", "ping", M // 2)
        book.plain("12-01 00:00", "send", "normal", 1000)
        book.send("11-19 10:00", "failed", ok=False, units=0)
        book.turn("11-19 10:00", "divert")
    made = bill(spark, tmp_path)
    # The 13 M that are included end within the second day: of its 2 M, one costs 0.80.
    assert rows(made) == [
        ("2026-11-18", "orders", "send", "normal", 12 * M, 12 * M, 0.0),
        ("2026-11-19", "orders", "ping", "ping", M // 2, M // 2, 0.2),
        ("2026-11-19", "orders", "send", "normal", 3 * M // 2, 3 * M // 2, 0.6),
        ("2026-12-01", "orders", "send", "normal", 1000, 1000, 0.0),
    ]
    found = sums(made)
    assert found["months"] == ["2026-11", "2026-12"]
    assert (found["base"], found["operations_cost"], found["total"]) == (19.62, 0.8, 20.42)
    assert found["operations"] == 14 * M + 1000
    assert found["by_cause"]["ping"]["cost"] == pytest.approx(0.2)


def test_a_diverted_message_is_on_the_bill_four_times_and_settled_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Book(tmp_path) as book:
        book.send("11-18 08:00", "a", "b")
        book.divert("11-18 08:10", "c", "d", "e")
        book.syphon("11-18 08:30", "c", "d", "e")
        book.consume("11-18 08:40", "a", "b", "c", "d", "e")
    found = sums(bill(spark, tmp_path))["by_cause"]
    assert {cause: sums["units"] for cause, sums in found.items()} == {
        "normal": 2 + 2 + 2,  # sends, receives, completions
        "backlog_send": 3,
        "backlog_receive": 3 + 3,
        "home_send": 3,
        "home_receive": 3 + 3,
    }


def test_day_by_day_gives_the_same_bill_as_one_pass_and_takes_in_late_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    ledger, state = tmp_path / "ledger", tmp_path / "state"
    with Book(ledger, "first") as book:
        book.plain("11-18 08:00", "send", "normal", 12 * M)
    bill(spark, ledger, state)
    with Book(ledger, "second") as book:
        book.plain("11-19 08:00", "send", "normal", 2 * M)
    assert rows(bill(spark, ledger, state)) == rows(bill(spark, ledger))
    with Book(ledger, "third") as book:
        book.plain("11-18 23:59", "send", "normal", M)
    late = bill(spark, ledger, state)
    assert rows(late) == rows(bill(spark, ledger))
    assert late.operations_cost == 2 * STANDARD.charge(14 * M)


def test_only_days_with_new_files_are_read_again(spark: SparkSession, tmp_path: Path) -> None:
    ledger, state = tmp_path / "ledger", tmp_path / "state"
    with Book(ledger) as book:
        book.plain("11-18 08:00", "send", "normal", 5)
    bill(spark, ledger, state)
    (old,) = ledger.glob("day=2026-11-18/*.parquet")
    old.write_bytes(b"PAR1 cannot be read any more PAR1")
    with Book(ledger, "next") as book:
        book.plain("11-19 08:00", "send", "normal", 7)
    assert sums(bill(spark, ledger, state))["operations"] == 12


def test_the_views_of_clients_and_brokers_are_never_mixed(
    spark: SparkSession, tmp_path: Path
) -> None:
    ledger, state = tmp_path / "ledger", tmp_path / "state"
    with Book(ledger, "sender") as book:
        book.plain("11-18 08:00", "send", "normal", 5)
    with Book(ledger, "server", Keeper.BROKER) as book:
        book.plain("11-18 08:00", "send", "normal", 5)
        book.plain("11-18 08:00", "forward", "normal", 2)
    for where in (None, str(state), str(state)):  # the second time from what was kept
        for keeper, operations in ((Keeper.CLIENT, 5), (Keeper.BROKER, 7)):
            made = make_bill(spark, find(spark, str(ledger), keeper), STANDARD, where)
            assert sums(made)["operations"] == operations, (where, keeper)


def test_a_ledger_from_before_brokers_kept_any_is_read_as_clients(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Book(tmp_path, "old") as book:
        book.plain("11-18 08:00", "send", "normal", 5)
    (path,) = tmp_path.glob("day=*/*.parquet")
    pq.write_table(pq.ParquetFile(path).read().drop_columns(["kept_by"]), path)
    assert sums(bill(spark, tmp_path))["operations"] == 5
    with pytest.raises(LedgerError, match="no broker kept the ledger"):
        find(spark, str(tmp_path), Keeper.BROKER)
    with Book(tmp_path, "new") as book:
        book.plain("11-18 09:00", "send", "normal", 7)
    assert sums(bill(spark, tmp_path))["operations"] == 12


def test_a_torn_file_is_passed_over_and_named(spark: SparkSession, tmp_path: Path) -> None:
    with Book(tmp_path) as book:
        book.plain("11-18 08:00", "send", "normal", 5)
    (whole,) = tmp_path.glob("day=*/*.parquet")
    whole.with_name("torn.parquet").write_bytes(whole.read_bytes()[:200])
    whole.with_name("empty.parquet").touch()
    found = find(spark, str(tmp_path))
    assert found.torn == ("day=2026-11-18/empty.parquet", "day=2026-11-18/torn.parquet")
    assert sums(make_bill(spark, found, STANDARD))["operations"] == 5


def test_any_store_that_spark_reads_will_do(spark: SparkSession, tmp_path: Path) -> None:
    from twinbus.accounts.tables import _find_remote

    with Book(tmp_path) as book:
        book.plain("11-18 08:00", "send", "normal", 5)
    # By way of Hadoop's file systems, as every URL is; here the one that needs no network.
    found = _find_remote(spark, f"file://{tmp_path}")
    assert found.days == find(spark, str(tmp_path)).days
    assert sums(make_bill(spark, found, STANDARD))["operations"] == 5
