"""How far the syphon is: counted, and told in every way there is."""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from twinbus.homeward.rounds import Outcome, Tally
from twinbus.spark import troubles
from twinbus.syphon.progress import (
    Count,
    Listener,
    Progress,
    ProgressServer,
    Snapshot,
    prometheus_text,
)


def tally(outcome: Outcome, messages: int, destination: str = "orders", error: str = "") -> Tally:
    return Tally("q", destination, outcome, messages, error=error or None)


@pytest.fixture
def progress() -> Progress:
    made = Progress()
    made.learn(
        [
            tally(Outcome.MOVED, 5),
            tally(Outcome.DUPLICATED, 1),
            tally(Outcome.DEAD, 2),
            tally(Outcome.FAILED, 3, "bills", "it is away"),
            tally(Outcome.BUSY, 1, "bills", "it is busy"),
            tally(Outcome.SKIPPED, 9, "bills", "not its turn"),
            Tally("q", "orders", Outcome.PARTIAL, 2, part_of="some-message"),
        ],
        took_s=1.5,
    )
    return made


def test_outcomes_are_counted_by_destination(progress: Progress) -> None:
    now = progress.snapshot()
    assert now.destinations["orders"] == Count(moved=5, dead_lettered=2, duplicates=1)
    assert now.destinations["bills"] == Count(failed=4, error="it is busy")
    assert (now.moved, now.failed, now.dead_lettered, now.duplicates) == (5, 4, 2, 1)
    assert (now.rounds, now.last_round_s) == (1, 1.5)


def test_a_snapshot_does_not_change(progress: Progress) -> None:
    now = progress.snapshot()
    progress.learn([tally(Outcome.MOVED, 1)], 1)
    assert now.moved == 5


def test_an_error_is_forgotten_when_messages_move(progress: Progress) -> None:
    progress.learn([tally(Outcome.MOVED, 1, "bills")], 1)
    assert progress.snapshot().destinations["bills"].error is None


def test_a_look_says_what_is_left_and_is_stale_after_the_next_round(progress: Progress) -> None:
    assert progress.is_stale()
    progress.look({"bills": 3, "new": 1}, 4, exact=True)
    now = progress.snapshot()
    assert {name: count.left for name, count in now.destinations.items()} == {
        "orders": 0,
        "bills": 3,
        "new": 1,
    }
    assert (now.left, now.left_is_exact) == (4, True)
    assert not progress.is_stale()
    progress.learn([], 1)
    assert progress.is_stale()


def test_prometheus_gets_a_line_a_number_with_names_escaped(progress: Progress) -> None:
    progress.learn([tally(Outcome.MOVED, 1, 'a"b\\c')], 1)
    lines = prometheus_text(progress.snapshot(), 100).splitlines()
    assert 'twinbus_syphon_moved_total{destination="orders"} 5' in lines
    assert 'twinbus_syphon_moved_total{destination="a\\"b\\\\c"} 1' in lines
    assert 'twinbus_syphon_failed_total{destination="bills"} 4' in lines
    assert "twinbus_syphon_rounds_total 2" in lines
    for name in ("left", "lag_seconds"):
        assert not any(line.startswith(f"twinbus_syphon_{name}") for line in lines), "nobody looked"


def test_the_lag_is_the_age_of_the_oldest_message_and_zero_when_there_is_none(
    progress: Progress,
) -> None:
    progress.look({"orders": 1}, 1, exact=True, oldest=97.5)
    assert "twinbus_syphon_lag_seconds 2.5\n" in prometheus_text(progress.snapshot(), 100)
    progress.look({}, 0, exact=True)
    assert "twinbus_syphon_lag_seconds 0.0\n" in prometheus_text(progress.snapshot(), 100)


def test_the_endpoint_has_both_and_nothing_else(progress: Progress) -> None:
    server = ProgressServer(progress, 0)
    try:
        base = f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"{base}/progress", timeout=10) as answer:
            found = json.load(answer)
        assert (found["moved"], found["destinations"]["bills"]["failed"]) == (5, 4)
        with urllib.request.urlopen(f"{base}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{base}/other", timeout=10)
        caught.value.close()
        assert caught.value.code == 404
    finally:
        server.close()


def test_health_says_what_does_not_work_until_it_does(
    progress: Progress, caplog: pytest.LogCaptureFixture
) -> None:
    server = ProgressServer(progress, 0)
    url = f"http://127.0.0.1:{server.port}/health"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert json.load(answer) == {"status": "ok", "troubles": {}}
        progress.trouble("queues", {"contoso/x-servicebus-transfer/0": "it is away"})
        progress.trouble("query", {})
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(url, timeout=10)
        assert caught.value.code == 503
        troubles = {"contoso/x-servicebus-transfer/0": "it is away"}
        assert json.load(caught.value) == {"status": "trouble", "troubles": troubles}
        caught.value.close()
        assert "contoso/x-servicebus-transfer/0: it is away" in caplog.text
        progress.trouble("queues", {})
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert json.load(answer)["status"] == "ok"
    finally:
        server.close()


def test_whatever_fails_in_the_listener_is_shown_and_the_next_event_is_heard(
    progress: Progress,
) -> None:
    told: list[Snapshot] = []

    def look() -> None:
        raise KeyError("an odd answer")

    listener = Listener(progress, told.append, look)
    event: object = object()
    listener.onQueryIdle(event)  # type: ignore[arg-type]
    assert told[0].troubles == {"the look into the backlog": "'an odd answer'"}
    listener.onQueryProgress(event)  # type: ignore[arg-type]
    assert len(told) == 2


def test_what_the_source_has_trouble_with_reaches_the_driver_by_a_file(tmp_path: Path) -> None:
    where = tmp_path / "troubles"
    assert troubles.read(where) == {}
    source = troubles.Troubles(str(where))
    source.tell("one", "cut off")
    source.tell("two", "cut off")
    source.tell("one", None)
    assert troubles.read(where) == {"two": "cut off"}
    where.write_text("[half")
    assert troubles.read(where) == {}
    troubles.Troubles(str(tmp_path / "nowhere" / "troubles")).tell("one", "the disk is full")


def test_the_listener_tells_what_has_changed_and_looks_when_the_query_idles(
    progress: Progress, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Snapshot] = []
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        progress.look({"bills": 4}, 4, exact=True)

    listener = Listener(progress, told.append, look)
    event: object = object()
    with caplog.at_level(logging.INFO, "twinbus.syphon"):
        listener.onQueryStarted(event)  # type: ignore[arg-type]  # it does not look at it
        listener.onQueryProgress(event)  # type: ignore[arg-type]
        listener.onQueryIdle(event)  # type: ignore[arg-type]
        listener.onQueryIdle(event)  # type: ignore[arg-type]
        listener.onQueryTerminated(event)  # type: ignore[arg-type]
    assert len(looks) == 1
    assert [snapshot.left for snapshot in told] == [None, 4, 4, 4]
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "the syphon has started",
        "orders: 5 moved, 2 dead-lettered, 1 duplicates",
        "bills: 0 moved, 4 failed",
        "bills does not take messages: it is busy",
        "orders: 5 moved, 2 dead-lettered, 1 duplicates, 0 left",
        "bills: 0 moved, 4 failed, 4 left",
    ]
