"""The audit: one case of each verdict made by hand, and sums that add up whatever happened."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.unit.accounts.ledgers import Book

from twinbus.accounts.audit import Audit, MessageVerdict, Seen, as_dict, make_audit
from twinbus.accounts.journey import journey
from twinbus.accounts.outages import Mark, Outage, find_outages
from twinbus.accounts.tables import find, read


def audit(spark: SparkSession, folder: Path, *seen: Seen, **more: Any) -> Audit:
    return make_audit(spark, find(spark, str(folder)), seen, **more)


def verdicts(made: Audit) -> dict[str, str]:
    return {row["message_id"]: row["verdict"] for row in made.questionable.to_pylist()}


def one_of_each(folder: Path) -> list[Seen]:
    with Book(folder, "sender") as book:
        book.send("11-18 08:00", "sent")
        book.divert("11-18 08:10", "home", "waiting", "dead", "lost", "twice", "unsettled")
        book.send("11-18 08:20", "raised", "raised-and-seen", ok=False, units=0)
        book.turn("11-18 08:05", "divert")
        book.turn("11-18 08:25", "restore")
    with Book(folder, "syphon") as book:
        book.syphon("11-18 08:30", "home", "twice")
        book.syphon("11-18 08:31", "unsettled")
    with Book(folder, "receiver") as book:
        book.consume("11-18 08:40", "home", "twice", "stranger", "raised-and-seen")
        book.complete("11-18 08:41", "twice")
        book.receive("11-18 08:42", "unsettled")
        book.receive("11-18 08:43", "unsettled")
    return [Seen("Orders", "waiting"), Seen("orders", "dead", dead=True)]


@pytest.mark.quick
def test_one_of_each_verdict(spark: SparkSession, tmp_path: Path) -> None:
    made = audit(spark, tmp_path, *one_of_each(tmp_path))
    assert verdicts(made) == {
        "dead": "dead",
        "lost": "lost",
        "twice": "duplicated",
        "stranger": "unexpected",
        "raised-and-seen": "unexpected",
    }
    assert made.counts == {
        MessageVerdict.OK: 3,  # sent, home, unsettled: received twice, but not completed twice
        MessageVerdict.WAITING: 1,
        MessageVerdict.DEAD: 1,
        MessageVerdict.LOST: 1,
        MessageVerdict.DUPLICATED: 1,
        MessageVerdict.UNEXPECTED: 2,
    }
    assert made.accepted == 7
    (outage,) = made.outages
    assert (outage.entity, outage.clients) == ("orders", 1)
    assert outage.began == datetime(2026, 11, 18, 8, 5, tzinfo=UTC)
    assert outage.ended == datetime(2026, 11, 18, 8, 25, tzinfo=UTC)
    (window,) = made.windows.to_pylist()
    assert window["window"] == datetime(2026, 11, 18, 8, tzinfo=UTC)
    assert (window["accepted"], window["diverted"]) == (7, 6)
    assert (window["lag_p50_s"], window["lag_p99_s"]) == (20 * 60.0, 21 * 60.0)


def test_if_receivers_keep_the_ledger_too_what_none_of_them_received_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen = one_of_each(tmp_path)
    made = audit(spark, tmp_path, *seen, must_be_received=True)
    assert verdicts(made)["sent"] == "lost"
    assert made.lost == 2


def test_day_by_day_gives_the_same_audit_as_one_pass_and_takes_in_late_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    ledger, state = tmp_path / "ledger", str(tmp_path / "state")
    with Book(ledger, "sender") as book:
        book.divert("11-18 23:00", "a", "b")
        book.turn("11-18 23:00", "divert")
    first = audit(spark, ledger, state=state)
    assert verdicts(first) == {"a": "lost", "b": "lost"}
    with Book(ledger, "syphon") as book:
        book.syphon("11-19 01:00", "a")
    with Book(ledger, "sender-2") as book:  # a record that comes a day late
        book.divert("11-18 23:30", "c")
    second, whole = audit(spark, ledger, state=state), audit(spark, ledger)
    assert verdicts(second) == verdicts(whole) == {"b": "lost", "c": "lost"}
    assert second == whole


def test_every_subscription_gets_a_copy_and_that_is_no_duplicate(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Book(tmp_path) as book:
        book.send("11-18 08:00", "a", entity="News")
        book.consume("11-18 08:01", "a", entity="news/Subscriptions/one")
        book.consume("11-18 08:02", "a", entity="news/Subscriptions/two")
    made = audit(spark, tmp_path, must_be_received=True)
    assert made.counts[MessageVerdict.OK] == 1
    assert made.counts[MessageVerdict.DUPLICATED] == 0


def test_clocks_that_differ_change_no_verdict_and_are_reported(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Book(tmp_path, "fast") as book:
        book.divert("11-18 08:00", "a")
    with Book(tmp_path, "slow") as book:
        book.syphon("11-17 23:50", "a")
    made = audit(spark, tmp_path)
    assert made.counts[MessageVerdict.OK] == 1
    assert made.skew_s == 8 * 3600 + 600
    assert made.windows["lag_p50_s"].to_pylist() == [0.0]


# ---------------------------------------------------------------- sums

STEPS = (
    "send",
    "raise",
    "divert",
    "syphon",
    "receive",
    "consume",
    "dead_letter",
    "peek",
    "peek_dead",
)
HISTORIES = st.lists(st.lists(st.sampled_from(STEPS), max_size=6), min_size=1, max_size=40)


def expected(steps: list[str]) -> MessageVerdict | None:
    """The documentation's table, in Python, for one message."""
    accepted = steps.count("send") + steps.count("divert")
    arrived = steps.count("send") + steps.count("syphon")
    completed, received = steps.count("consume"), steps.count("receive") + steps.count("consume")
    dead, waiting = {"dead_letter", "peek_dead"} & set(steps), "peek" in steps
    if not accepted:
        return MessageVerdict.UNEXPECTED if arrived or received or dead or waiting else None
    if completed > 1 or (not received and arrived > 1):
        return MessageVerdict.DUPLICATED
    if completed:
        return MessageVerdict.OK
    if dead:
        return MessageVerdict.DEAD
    if received or arrived:
        return MessageVerdict.OK
    return MessageVerdict.WAITING if waiting else MessageVerdict.LOST


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
@given(HISTORIES)
def test_whatever_was_done_the_counts_add_up(
    spark: SparkSession, histories: list[list[str]]
) -> None:
    wanted = {f"m{number}": expected(steps) for number, steps in enumerate(histories)}
    with tempfile.TemporaryDirectory() as folder:
        seen = []
        with Book(Path(folder)) as book:
            book.turn("11-18 00:00", "divert")
            for number, steps in enumerate(histories):
                for hour, step in enumerate(steps):
                    name, when = f"m{number}", f"11-18 {hour:02d}:30"
                    if step.startswith("peek"):
                        seen.append(Seen("orders", name, dead=step == "peek_dead"))
                    elif step == "raise":
                        book.send(when, name, ok=False, units=0)
                    else:
                        getattr(book, step)(when, name)
        made = audit(spark, Path(folder), *seen)
    known = [each for each in wanted.values() if each is not None]
    assert made.counts == {each: known.count(each) for each in MessageVerdict}
    assert made.accepted == len([each for each in known if each is not MessageVerdict.UNEXPECTED])


# ---------------------------------------------------------------- outages

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


def mark(minute: int, client: str, *, diverted: bool, entity: str = "orders") -> Mark:
    return Mark(entity, client, NOON + timedelta(minutes=minute), diverted)


def test_diversions_of_several_clients_that_overlap_are_one_outage() -> None:
    found = find_outages(
        [
            mark(0, "one", diverted=True),
            mark(10, "one", diverted=False),
            mark(5, "two", diverted=True),
            mark(20, "two", diverted=False),
            mark(40, "one", diverted=True),
            mark(0, "one", diverted=True, entity="bills"),
        ]
    )
    assert found == (
        Outage("bills", NOON, None, 1),
        Outage("orders", NOON, NOON + timedelta(minutes=20), 2),
        Outage("orders", NOON + timedelta(minutes=40), None, 1),
    )


def test_times_that_nobody_can_print_and_none_at_all_keep_no_record_from_being_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A client's clock was wrong, or somebody else wrote into the folder."""
    with Book(tmp_path) as book:
        book.send("11-18 08:00", "1")
        book.consume("11-18 08:01", "1")
        book.turn("11-18 08:02", "divert")
    (file,) = tmp_path.glob("day=*/*.parquet")
    table = pq.ParquetFile(file).read()
    for name, at in (("late", 2**62), ("early", -(2**62)), ("none", None)):
        times = pa.array([at] * len(table), pa.int64()).cast(pa.timestamp("us", "UTC"))
        column = table.schema.get_field_index("at")
        pq.write_table(table.set_column(column, "at", times), file.with_name(f"{name}.parquet"))
    found = find(spark, str(tmp_path))
    made = make_audit(spark, found)
    assert made.accepted == 1
    assert as_dict(made)["lost"] == 0
    steps = journey(read(spark, found), "1")
    assert len(steps) == 12
    assert all(step.sentence for step in steps)
