"""The dashboard's running bill against the one that Spark makes of the same ledger."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.unit.accounts.ledgers import PRIMARY, SECONDARY, Book, at

from twinbus.accounts.attribution import BillLine, LineKey, attributed, home_of, share
from twinbus.accounts.bill import as_dict, make_bill
from twinbus.accounts.prices import read_tier
from twinbus.accounts.tables import find
from twinbus.dashboard.chronicle import Chronicle
from twinbus.dashboard.follower import LedgerFollower
from twinbus.dashboard.running_bill import running_bill
from twinbus.ledger import Cause, Operation, RecordKeeper

TIER = read_tier("standard")


def bills(spark: SparkSession, folder: Path) -> tuple[dict[str, Any], dict[str, Any], pa.Table]:
    follower = LedgerFollower(folder, Chronicle(PRIMARY))
    follower.refresh(at("11-18 09:00"))
    assert not follower.torn
    made = make_bill(spark, find(spark, str(folder)), TIER)
    ours = running_bill(follower.chronicle.lines, "2026-11", TIER)
    lines = made.lines.toArrow()
    return ours, as_dict(made, lines), lines


def assert_same(ours: dict[str, Any], sparks: dict[str, Any]) -> None:
    for name in ("operations", "base", "operations_cost", "total", "currency", "tier", "months"):
        assert ours[name] == sparks[name], name
    assert ours["by_cause"].keys() == sparks["by_cause"].keys()
    for cause, of in ours["by_cause"].items():
        assert of["units"] == sparks["by_cause"][cause]["units"], cause
        assert of["cost"] == pytest.approx(sparks["by_cause"][cause]["cost"], abs=1e-6), cause


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
    ours, sparks, _ = bills(spark, tmp_path)
    assert_same(ours, sparks)
    assert ours["by_cause"]["home_receive"]["units"] == 4


# What a record may be. Few names, so that what came home meets what was received.
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "operation": st.sampled_from(
                # More often what the attribution is about.
                [Operation.SEND, Operation.RECEIVE, Operation.COMPLETE] * 4 + list(Operation)
            ),
            "cause": st.sampled_from([Cause.NORMAL, Cause.HOME_SEND] * 4 + list(Cause)),
            "namespace": st.sampled_from([PRIMARY, SECONDARY]),
            "entity": st.sampled_from(
                [
                    *("orders", "Orders", "orders/$DeadLetterQueue"),
                    *("news", "news/subscriptions/a", "News/Subscriptions/b/$deadletterqueue"),
                ]
            ),
            "count": st.integers(0, 9),
            "units": st.integers(0, 30),
            "bytes": st.integers(0, 10**13),
            "ok": st.sampled_from([True, True, True, False]),
            "at": st.sampled_from([at("11-17 08:00"), at("11-18 08:00")]),
        }
    ),
    min_size=20,
    max_size=80,
)


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
@given(RECORDS, RECORDS)
def test_whatever_is_in_a_ledger_both_bills_are_the_same(
    spark: SparkSession, of_clients: list[dict[str, Any]], of_brokers: list[dict[str, Any]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        with (
            Book(where) as client,
            Book(where, "server", RecordKeeper.BROKER) as broker,
        ):
            client.plain("11-01 08:00", "send", "normal", 13_000_000)  # from here on it costs
            for book, records in ((client, of_clients), (broker, of_brokers)):
                for record in records:
                    book.ledger.add(**record)
        ours, sparks, lines = bills(spark, where)
        assert_same(ours, sparks)
    free = {Operation.SUSPECT, Operation.CLEAR, Operation.DIVERT, Operation.RESTORE}
    charged = [each for each in of_clients if each["ok"] and each["operation"] not in free]
    for name in ("count", "units", "bytes"):
        told = sum(lines[name].to_pylist()) - (13_000_000 if name != "bytes" else 0)
        assert told == sum(each[name] for each in charged), f"the lines keep every {name}"


def test_what_brokers_kept_in_the_same_ledger_is_not_counted_twice(tmp_path: Path) -> None:
    with Book(tmp_path) as client, Book(tmp_path, "server", RecordKeeper.BROKER) as broker:
        client.send("11-18 08:00", "a")
        broker.send("11-18 08:00", "a")
    follower = LedgerFollower(tmp_path, Chronicle(PRIMARY))
    assert follower.refresh(at("11-18 09:00")) == 2
    assert running_bill(follower.chronicle.lines, "2026-11", TIER)["operations"] == 1


def test_a_month_without_operations_costs_its_base() -> None:
    bill = running_bill({}, "2026-11", TIER)
    assert (bill["operations"], bill["total"], bill["by_cause"]) == (0, 9.81, {})


# ---------------------------------------------------------------- the table itself


def key(operation: str, cause: str, entity: str = "orders") -> LineKey:
    return LineKey("2026-11-18", PRIMARY, entity, operation, cause)


def test_as_many_receives_as_came_home_are_put_down_to_the_outage() -> None:
    lines = {
        key("send", "home_send", "Orders"): BillLine(3, 3),
        key("receive", "normal"): BillLine(4, 8),
        key("complete", "normal", "orders/$deadletterqueue"): BillLine(2, 2),
        key("abandon", "normal"): BillLine(4, 4),
    }
    assert dict(attributed(lines)) == {
        key("send", "home_send", "Orders"): BillLine(3, 3),
        key("receive", "home_receive"): BillLine(3, 6),
        key("receive", "normal"): BillLine(1, 2),
        key("complete", "home_receive", "orders/$deadletterqueue"): BillLine(2, 2),
        key("abandon", "normal"): BillLine(4, 4),
    }


def test_a_line_of_no_message_keeps_its_units() -> None:
    lines = {key("send", "home_send"): BillLine(1, 1), key("receive", "normal"): BillLine(0, 5)}
    assert dict(attributed(lines)) == lines


@pytest.mark.parametrize(
    ("amount", "moved", "count", "expected"),
    [(1, 1, 2, 1), (5, 1, 2, 3), (7, 0, 0, 0), (9, 2, 2, 9)],
)
def test_halves_are_rounded_up(amount: int, moved: int, count: int, expected: int) -> None:
    assert share(amount, moved, count) == expected


@pytest.mark.parametrize(
    ("path", "home"),
    [("a/b", "a/b"), ("T/SUBSCRIPTIONS/s/$q", "T"), ("q/$x/subscriptions/y", "q"), ("$q", "$q")],
)
def test_a_path_lies_in_a_queue_or_topic(path: str, home: str) -> None:
    assert home_of(path) == home
