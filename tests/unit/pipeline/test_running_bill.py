"""The dashboard's running bill against the one that Spark makes of the same ledger."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from tests.unit.pipeline.ledgers import PRIMARY, Book, at

from twinbus.accounts.bill import as_dict, make_bill
from twinbus.accounts.prices import read_tier
from twinbus.accounts.tables import find
from twinbus.dashboard.chronicle import Chronicle
from twinbus.dashboard.running_bill import running_bill
from twinbus.dashboard.shelf import Books


def test_both_bills_are_the_same(spark: SparkSession, tmp_path: Path) -> None:
    with Book(tmp_path) as book:
        book.plain("11-02 08:00", "send", "normal", 20_000_000)
        book.send("11-18 08:00", "a", "b", "c")
        book.divert("11-18 08:01", "d", "e")
        book.turn("11-18 08:01", "suspect")
        book.turn("11-18 08:01", "divert")
        book.ledger.add("ping", "ping", PRIMARY, "orders", at=at("11-18 08:02"))
        book.syphon("11-18 08:03", "d", "e")
        book.turn("11-18 08:03", "restore")
        book.consume("11-18 08:04", "a", "b", "d", "e", entity="orders")
        book.consume("11-18 08:04", "n", entity="news/Subscriptions/x")
    tier = read_tier("standard")
    books = Books(tmp_path, Chronicle(PRIMARY))
    books.refresh(at("11-18 09:00"))
    ours = running_bill(books.chronicle.lines, "2026-11", tier)
    made = make_bill(spark, find(spark, str(tmp_path)), tier)
    sparks = as_dict(made, made.lines.toArrow())
    for name in ("operations", "base", "operations_cost", "total", "currency", "tier"):
        assert ours[name] == sparks[name], name
    assert ours["by_cause"].keys() == sparks["by_cause"].keys()
    for cause, of in ours["by_cause"].items():
        assert of["units"] == sparks["by_cause"][cause]["units"], cause
        assert abs(of["cost"] - sparks["by_cause"][cause]["cost"]) < 1e-6, cause
    assert ours["by_cause"]["home_receive"]["units"] == 4
