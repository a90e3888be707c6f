"""What the syphon makes of a destination that is busy, and of messages that have waited long."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from azure.servicebus.exceptions import ServiceBusError
from pyspark.sql import DataFrame, SparkSession
from tests.syphons import Namespaces, backlog_queues, names, until
from tests.unit.pipeline.backlogs import DATA, ODD, UNREADABLE, otherwise, plain

from twinbus import envelope
from twinbus.auth.credentials import Secret
from twinbus.broker.inspection import stores
from twinbus.homeward.rounds import BUSY_S, Orders, Tally
from twinbus.lab.faults import FaultClient
from twinbus.syphon.query import Syphon, SyphonOptions, TimeToLive

THROTTLED_S = 3.0


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces]:
    home = {"busy": {"requires_duplicate_detection": True}, "free": {}, "aged": {}, "good": {}}
    made = Namespaces(
        tmp_path_factory.mktemp("destinations"), home, backlog_queues(1, lock_duration="PT20S")
    )
    made.primary.extra = ("--faults",)
    made.start()
    yield made
    made.close()


def syphon_of(
    spark: SparkSession, namespaces: Namespaces, folder: Path, time_to_live: TimeToLive = "whole"
) -> Syphon:
    options = SyphonOptions(
        Secret(namespaces.primary.connection_string),
        Secret(namespaces.secondary.connection_string),
        namespaces.backlog,
        checkpoint=folder / "checkpoint",
        time_to_live=time_to_live,
    )
    return Syphon(spark, options)


@pytest.mark.timeout(300)  # it may be the first to use Spark
def test_a_busy_destination_is_let_be_for_ten_seconds_while_others_flow(
    spark: SparkSession, namespaces: Namespaces, tmp_path: Path
) -> None:
    faults = FaultClient(namespaces.primary.connection_string)
    namespaces.divert_ids("busy", names("b", 20))
    namespaces.divert_ids("free", names("f", 20))
    syphon = syphon_of(spark, namespaces, tmp_path)
    with faults.during("throttling", "busy", seconds=300):
        syphon.start()
        try:
            until(lambda: namespaces.home_ids("free"), lambda home: home == names("f", 20), 150)
            until(lambda: syphon.progress.snapshot().failed, bool, 30)
            refused_at = time.monotonic()
            assert namespaces.left() == 20, "all of them, and nothing else"
            time.sleep(THROTTLED_S)
            faults.clear()
            until(lambda: namespaces.home_ids("busy"), lambda home: home == names("b", 20), 60)
        finally:
            syphon.stop()
    assert time.monotonic() - refused_at > BUSY_S - 2, "it was let be, though it was well again"
    assert namespaces.left() == 0
    assert namespaces.dead() == []


def test_what_was_waited_is_deducted_and_what_has_expired_is_set_aside(
    spark: SparkSession, namespaces: Namespaces, tmp_path: Path
) -> None:
    ages = {"short": 1_000, "long": 3_600_000, "forever": None}
    namespaces.divert("aged", [plain(name, ttl_ms=ttl) for name, ttl in ages.items()])
    time.sleep(2.5)
    assert syphon_of(spark, namespaces, tmp_path, "remaining").drain()
    home = {envelope.id_of(each): each for each in namespaces.at_home("aged")}
    assert set(home) == {"long", "forever"}
    assert envelope.time_to_live_of(home["forever"]) is None
    left_ms = envelope.time_to_live_of(home["long"])
    assert left_ms is not None
    assert 3_600_000 - 120_000 < left_ms <= 3_600_000 - 2_500
    (expired,) = namespaces.dead()
    assert b"TTLExpiredException" in expired
    assert b"short" in expired


def test_a_query_that_fails_begins_again_and_says_so(
    spark: SparkSession, namespaces: Namespaces, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    syphon = syphon_of(spark, namespaces, tmp_path)
    carried = syphon._carried
    failures = [RuntimeError("whatever it was")]

    def sometimes(rows: DataFrame, orders: Orders) -> list[Tally]:
        if failures:
            raise failures.pop()
        return carried(rows, orders)

    syphon._carried = sometimes  # type: ignore[method-assign]
    before = namespaces.home_ids("free")
    namespaces.divert_ids("free", names("again", 5))
    assert syphon.drain()
    assert sorted(namespaces.home_ids("free")[len(before) :]) == names("again", 5)
    now = syphon.progress.snapshot()
    assert (now.restarts, now.troubles) == (1, {})
    assert "begins again in 1 s: RuntimeError: whatever it was" in caplog.text


def test_one_that_cannot_be_read_is_set_aside_with_a_reason_and_keeps_nobody(
    spark: SparkSession, namespaces: Namespaces, tmp_path: Path
) -> None:
    before = len(namespaces.dead())
    took = 0
    for index, odd in enumerate(ODD.values()):
        with suppress(ServiceBusError):  # what the broker does not let in cannot be in the way
            namespaces.put([odd])
            took += 1
        namespaces.put([otherwise(envelope.wrap(plain(str(index)), "good"), named=index % 2 == 0)])
    assert syphon_of(spark, namespaces, tmp_path, "remaining").drain(patience_s=30)
    assert namespaces.home_ids("good") == [str(index) for index in range(len(ODD))]
    dead = namespaces.dead()[before:]
    assert len(dead) == took
    assert all(b"TwinbusEnvelope" in each for each in dead)


def test_what_an_older_broker_took_and_nobody_can_read_is_set_aside_and_keeps_nobody(
    spark: SparkSession, namespaces: Namespaces, tmp_path: Path
) -> None:
    before, home = namespaces.dead(), namespaces.home_ids("good")
    took = dict(zip(names("old", len(UNREADABLE)), UNREADABLE.values(), strict=True))
    for name in took:
        namespaces.put([plain(name)])
        namespaces.divert_ids("good", [f"after-{name}"])
    namespaces.secondary.stop()
    as_an_older_broker_left(namespaces.secondary.folder, took)
    namespaces.secondary.start()
    assert syphon_of(spark, namespaces, tmp_path).drain(patience_s=30)
    assert namespaces.home_ids("good")[len(home) :] == [f"after-{name}" for name in took]
    dead = namespaces.dead()[len(before) :]
    assert len(dead) == len(took)
    for each, unreadable in zip(dead, took.values(), strict=True):
        assert b"TwinbusEnvelope" in each
        assert unreadable.removesuffix(DATA) in each, "what cannot be read is lost"


def as_an_older_broker_left(folder: Path, bytes_of: dict[str, bytes]) -> None:
    """Give messages that are stored, by their ids, bytes that are refused today."""
    (path,) = stores(folder)
    with closing(sqlite3.connect(path, isolation_level=None)) as link:
        for name, bare in bytes_of.items():
            values = (bare, plain(name))
            changed = link.execute("UPDATE message SET bare = ? WHERE bare = ?", values)
            assert changed.rowcount == 1, name
