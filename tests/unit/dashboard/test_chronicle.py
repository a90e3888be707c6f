"""The ledger as the dashboard reads it: real files by the real writer."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.unit.accounts.ledgers import BACKLOG, PRIMARY, Book, at

from twinbus.accounts.prices import read_tier
from twinbus.dashboard.chronicle import DIVERTED, HEALTHY, QUIET_S, SUSPECT, BacklogShare, Chronicle
from twinbus.dashboard.follower import LedgerFollower
from twinbus.dashboard.running_bill import running_bill

NOON = "11-18 12:00"
NOW = at("11-18 12:05") - 60


def read(folder: Path, now: float = NOW) -> Chronicle:
    books = LedgerFollower(folder, Chronicle(PRIMARY))
    books.refresh(now)
    assert not books.problem
    return books.chronicle


def state(chronicle: Chronicle, entity: str = "orders", now: float = NOW) -> str:
    told = chronicle.standing(entity, now)
    assert told is not None
    return told[0].state


# ---------------------------------------------------------------- states


def test_an_entity_is_as_its_last_mark_says(tmp_path: Path) -> None:
    books = LedgerFollower(tmp_path, Chronicle(PRIMARY))
    for mark, expected in (
        *(("suspect", SUSPECT), ("clear", HEALTHY), ("suspect", SUSPECT)),
        *(("divert", DIVERTED), ("restore", HEALTHY)),
    ):
        with Book(tmp_path) as book:
            book.ledger._files = len(list(tmp_path.glob("day=*/*")))  # one client, its next file
            book.turn(NOON, mark)
        assert books.refresh(NOW) == 1
        assert state(books.chronicle) == expected


def test_who_sends_and_was_never_in_trouble_reports_healthy(tmp_path: Path) -> None:
    with Book(tmp_path) as book:
        book.send(NOON, "1", entity="Orders")
    chronicle = read(tmp_path)
    assert state(chronicle) == HEALTHY
    assert chronicle.names == {"orders": "Orders"}
    assert chronicle.standing("payments", NOW) is None


def test_the_worst_of_several_clients_counts(tmp_path: Path) -> None:
    with Book(tmp_path, "a") as first, Book(tmp_path, "b") as second:
        first.turn(NOON, "divert")
        second.send("11-18 12:01", "1")
    told = read(tmp_path).standing("orders", NOW)
    assert told is not None
    assert (told[0].state, told[1]) == (DIVERTED, 2)


def test_a_client_that_is_gone_does_not_keep_an_entity_diverted(tmp_path: Path) -> None:
    with Book(tmp_path, "killed") as first, Book(tmp_path, "alive") as second:
        first.turn("11-18 09:00", "divert")
        second.send("11-18 12:01", "1")
    assert state(read(tmp_path)) == HEALTHY


def test_if_all_are_silent_the_last_word_stands_and_its_age_is_told(tmp_path: Path) -> None:
    with Book(tmp_path) as book:
        book.turn("11-18 09:00", "divert")
    told = read(tmp_path).standing("orders", NOW)
    assert told is not None
    assert told[0].state == DIVERTED
    assert NOW - told[2] > QUIET_S


def test_another_primarys_marks_are_not_ours(tmp_path: Path) -> None:
    with Book(tmp_path) as book:
        book.ledger.add("divert", "normal", "other.example.net", "orders", at=at(NOON))
    assert read(tmp_path).standing("orders", NOW) is None


def test_pings_are_counted_until_one_gets_through(tmp_path: Path) -> None:
    with Book(tmp_path) as book:
        for minute in range(3):
            when = at(f"11-18 12:0{minute}")
            book.ledger.add("ping", "ping", PRIMARY, "orders", ok=False, at=when)
    pings = read(tmp_path).pings["orders"]
    assert (pings.ok, pings.failed, pings.at) == (False, 3, at("11-18 12:02"))
    with Book(tmp_path, "other") as book:
        book.ledger.add("ping", "ping", PRIMARY, "orders", at=at("11-18 12:03"))
    pings = read(tmp_path).pings["orders"]
    assert (pings.ok, pings.failed, pings.at) == (True, 0, at("11-18 12:03"))


def test_outages_are_those_of_the_audit_the_newest_first(tmp_path: Path) -> None:
    with Book(tmp_path) as book:
        for when, mark in (("09:00", "divert"), ("09:10", "restore"), ("11:00", "divert")):
            book.turn(f"11-18 {when}", mark)
    newest, oldest = read(tmp_path).outages()
    assert newest.ended is None
    assert oldest.ended == datetime.fromtimestamp(at("11-18 09:10"), UTC)


# ---------------------------------------------------------------- what waits


def test_what_waits_is_what_was_diverted_less_what_was_settled(tmp_path: Path) -> None:
    with Book(tmp_path) as book:
        book.divert("11-18 11:00", "1", "2")
        book.divert("11-18 11:01", "3")
        book.divert("11-18 11:02", "4", entity="news/Subscriptions/x")
        book.syphon("11-18 11:03", "1", "2")
    waiting = read(tmp_path).waiting
    assert waiting[BACKLOG, "orders"].messages == 1
    assert waiting[BACKLOG, "orders"].oldest == at("11-18 11:01")
    assert waiting[BACKLOG, "news"].messages == 1


def test_messages_may_be_seen_to_leave_before_they_are_seen_to_come() -> None:
    waiting = BacklogShare()
    waiting.take(3)
    assert (waiting.messages, waiting.oldest) == (-3, None)
    waiting.put(10, 3)
    assert (waiting.messages, waiting.oldest) == (0, None)
    waiting.put(20, 2)
    assert (waiting.messages, waiting.oldest) == (2, 20)


def test_moments_are_thinned_out_and_none_is_lost() -> None:
    waiting = BacklogShare()
    for second in range(10_000):
        waiting.put(second * 2, 1)
    assert len(waiting._moments) <= 2_000
    assert sum(moment[1] for moment in waiting._moments) == waiting.messages == 10_000
    waiting.take(9_999)
    assert waiting.oldest is not None
    assert waiting.oldest > 19_000 - 100


# ---------------------------------------------------------------- reading


def test_only_new_files_are_read(tmp_path: Path) -> None:
    books = LedgerFollower(tmp_path, Chronicle(PRIMARY))
    assert books.refresh(NOW) == 0
    assert "no ledger yet" in books.problem
    with Book(tmp_path, "a") as book:
        book.send(NOON, "1")
    assert books.refresh(NOW) == 1
    assert books.refresh(NOW) == 0
    with Book(tmp_path, "b") as book:
        book.send(NOON, "2", "3")
        book.send("11-17 12:00", "4")
    assert books.refresh(NOW) == 2
    assert sum(line.count for line in books.chronicle.lines.values()) == 4


def test_a_late_record_of_an_old_day_is_seen_within_a_minute(tmp_path: Path) -> None:
    books = LedgerFollower(tmp_path, Chronicle(PRIMARY))
    with Book(tmp_path, "a") as book:
        book.send(NOON, "1")
    books.refresh(NOW)
    with Book(tmp_path, "b") as book:
        book.send("11-12 12:00", "2")
    assert books.refresh(NOW + 1) == 0
    assert books.refresh(NOW + 61) == 1


def test_what_is_older_than_the_month_and_the_week_is_left_alone(tmp_path: Path) -> None:
    with Book(tmp_path) as book:
        for day in ("09-30", "10-20", "11-01", "11-18"):
            book.send(f"{day} 12:00", day)
    assert {key[0] for key in read(tmp_path).lines} == {"2026-11-01", "2026-11-18"}
    early = datetime(2026, 11, 2, tzinfo=UTC).timestamp()
    with Book(tmp_path, "b") as book:
        book.send("10-28 12:00", "x")
    assert "2026-10-28" in {key[0] for key in read(tmp_path, early).lines}


def test_a_torn_file_is_passed_over_and_counted(tmp_path: Path) -> None:
    with Book(tmp_path) as book:
        book.send(NOON, "1")
    (tmp_path / "day=2026-11-18" / "torn.parquet").write_bytes(b"PAR1 and no more")
    books = LedgerFollower(tmp_path, Chronicle(PRIMARY))
    books.refresh(NOW)
    assert books.torn == 1
    assert state(books.chronicle) == HEALTHY
    assert len(books.journey("1").steps) == 1


def test_a_folder_that_is_no_ledger_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "_ledger.json").write_text('{"format": 99}')
    books = LedgerFollower(tmp_path, Chronicle(PRIMARY))
    books.refresh(NOW)
    assert "newer format" in books.problem


def test_a_journey_has_every_step_in_order(tmp_path: Path) -> None:
    with Book(tmp_path, "app") as app, Book(tmp_path, "syphon") as syphon:
        app.send("11-18 10:00", "lost-and-found", ok=False)
        app.divert("11-18 10:01", "other", "lost-and-found")
        syphon.syphon("11-18 11:00", "lost-and-found", "other")
        app.consume("11-18 11:01", "lost-and-found")
    found = LedgerFollower(tmp_path, Chronicle(PRIMARY)).journey("lost-and-found")
    assert [step.sentence for step in found.steps] == [
        "sent to orders, which failed",
        f"diverted to the backlog queue {BACKLOG}, for orders",
        f"taken from the backlog queue {BACKLOG}",
        "sent home to orders",
        f"settled in the backlog queue {BACKLOG}",
        "received from orders",
        "completed at orders",
    ]
    assert found.looked_at == found.files == 2
    assert not LedgerFollower(tmp_path, Chronicle(PRIMARY)).journey("found").steps


def test_an_empty_ledger_folder_has_no_journeys(tmp_path: Path) -> None:
    assert LedgerFollower(tmp_path, Chronicle(PRIMARY)).journey("1").steps == ()


def test_the_bill_prices_a_month_by_its_bands(tmp_path: Path) -> None:
    with Book(tmp_path) as book:
        book.plain("11-01 12:00", "send", "normal", 14_000_000)
        book.plain("11-18 12:00", "send", "normal", 1_000_000)
        book.plain("10-31 12:00", "send", "normal", 1_000_000)
        book.turn(NOON, "divert")
    bill = running_bill(read(tmp_path).lines, "2026-11", read_tier("standard"))
    assert bill["operations"] == 15_000_000
    assert bill["operations_cost"] == 1.6  # two million over the free thirteen
    assert bill["total"] == 11.41
    assert bill["by_cause"] == {"normal": {"units": 15_000_000, "cost": 1.6}}


def test_no_spark_is_needed() -> None:
    code = (
        "import sys, twinbus.dashboard.app, twinbus.commands.dashboard; "
        "sys.exit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
