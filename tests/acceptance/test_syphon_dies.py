"""Nothing is lost, whatever dies: workers, brokers, the driver, its checkpoint, locks."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.syphons import Namespaces, SyphonProcess, backlog_queues, names, until

pytestmark = [pytest.mark.xdist_group("syphon-dies"), pytest.mark.timeout(420)]

# A destination that detects duplicates, so that what is home is home once. Locks as short as they
# can be, so that what a dead one held is free again soon.
_ONCE = {"requires_duplicate_detection": True}
_PLACES = (
    *("workers", "stopped", "flight", "primary", "secondary", "slow"),
    *("driver", "two", "ended"),
)
HOME: dict[str, dict[str, Any]] = {name: dict(_ONCE) for name in _PLACES}
HOME["plain"] = {}
BACKLOG = backlog_queues(2, lock_duration="PT5S")
RATE = 40
COUNT = 240


def divert(namespaces: Namespaces, destination: str, count: int = COUNT) -> set[str]:
    """Into both backlog queues."""
    for queue in (0, 1):
        namespaces.divert_ids(destination, names(f"{destination}-{queue}", count // 2), queue)
    return {name for queue in (0, 1) for name in names(f"{destination}-{queue}", count // 2)}


def check_home(namespaces: Namespaces, destination: str, sent: set[str]) -> None:
    namespaces.until_empty(120)
    found = namespaces.home_ids(destination)
    assert len(found) == len(set(found)), "duplicates are dropped"
    assert set(found) == sent


def some_home(namespaces: Namespaces, destination: str, least: int = 1) -> None:
    until(lambda: len(namespaces.home_ids(destination)), lambda count: count >= least, 240)


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces]:
    made = Namespaces(tmp_path_factory.mktemp("dies"), HOME, BACKLOG)
    yield made.start()
    made.close()


@pytest.fixture(scope="module")
def syphon(namespaces: Namespaces) -> Iterator[SyphonProcess]:
    """One that takes its time, so that it can be met in the middle of a drain."""
    made = SyphonProcess(namespaces, "--rate", str(RATE), "--http-port", "0").until_started()
    yield made
    made.close()


def test_python_workers_killed_in_mid_drain(syphon: SyphonProcess, namespaces: Namespaces) -> None:
    sent = divert(namespaces, "workers")
    some_home(namespaces, "workers")
    workers = syphon.workers()
    assert workers, "there is a drain under way"
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
    assert len(namespaces.home_ids("workers")) < len(sent)
    check_home(namespaces, "workers", sent)


def test_the_primary_killed_in_mid_drain(syphon: SyphonProcess, namespaces: Namespaces) -> None:
    sent = divert(namespaces, "primary")
    some_home(namespaces, "primary")
    namespaces.primary.kill()
    try:
        until(lambda: "primary does not take messages" in syphon.log, bool, 60)
    finally:
        namespaces.primary.start()
    check_home(namespaces, "primary", sent)


def test_the_secondary_killed_in_mid_drain(syphon: SyphonProcess, namespaces: Namespaces) -> None:
    sent = divert(namespaces, "secondary")
    some_home(namespaces, "secondary")
    namespaces.secondary.kill()
    time.sleep(1)
    namespaces.secondary.start()
    check_home(namespaces, "secondary", sent)


def test_locks_that_would_end_in_a_slow_drain_are_renewed_and_nothing_is_sent_twice(
    syphon: SyphonProcess, namespaces: Namespaces
) -> None:
    """A round at this rate takes longer than a lock lasts."""
    before = syphon.progress()["duplicates"]
    sent = divert(namespaces, "slow", 2 * COUNT)
    began = time.monotonic()
    check_home(namespaces, "slow", sent)
    took = time.monotonic() - began
    assert len(sent) / took < 1.5 * RATE, "the rate is kept"
    found = namespaces.metrics(namespaces.primary, "slow")
    assert found["duplicates_dropped_total"] == 0
    assert syphon.progress()["duplicates"] == before


def test_workers_stopped_for_longer_than_a_lock_lasts(
    syphon: SyphonProcess, namespaces: Namespaces
) -> None:
    sent = divert(namespaces, "stopped")
    some_home(namespaces, "stopped")
    workers = syphon.workers()
    assert workers
    for worker in workers:
        worker.suspend()
    time.sleep(6)
    for worker in workers:
        if worker.is_running():
            worker.resume()
    check_home(namespaces, "stopped", sent)


def test_a_lock_that_ended_in_flight_gives_a_duplicate_which_is_dropped_and_counted(
    syphon: SyphonProcess, namespaces: Namespaces
) -> None:
    """The secondary is stopped for longer than a lock lasts. Whoever has sent and not yet settled
    then loses the lock; so it is tried until somebody was met there."""
    sent: set[str] = set()

    def dropped() -> int:
        return namespaces.metrics(namespaces.primary, "flight")["duplicates_dropped_total"]

    for attempt in range(5):
        ids = names(f"flight-{attempt}", COUNT // 2)
        namespaces.divert_ids("flight", ids, attempt % 2)
        some_home(namespaces, "flight", len(sent) + 1)
        sent.update(ids)
        namespaces.secondary.suspend()
        time.sleep(6)
        namespaces.secondary.resume()
        check_home(namespaces, "flight", sent)
        if dropped():
            break
    assert dropped()
    until(lambda: syphon.progress()["destinations"]["flight"]["duplicates"], bool, 30)


def test_sigterm_in_mid_drain_ends_it_and_another_goes_on(
    syphon: SyphonProcess, namespaces: Namespaces, tmp_path: Path
) -> None:
    """And the driver killed; with its checkpoint, and with the checkpoint deleted."""
    sent = divert(namespaces, "ended")
    some_home(namespaces, "ended")
    relatives = syphon.relatives()
    assert syphon.terminate() == 0, syphon.log
    assert not psutil.wait_procs(relatives, 20)[1]
    assert "Traceback" not in syphon.log
    assert namespaces.left(), "it was ended in the middle"
    checkpoint = tmp_path / "checkpoint"
    killed = SyphonProcess(
        namespaces, "--rate", str(RATE), "--checkpoint", str(checkpoint), name="killed"
    )
    last: SyphonProcess | None = None
    try:
        killed.until_started()
        before = len(namespaces.home_ids("ended"))
        some_home(namespaces, "ended", before + 1)
        killed.kill()
        assert list((checkpoint / "offsets").iterdir())
        check_more = divert(namespaces, "driver")
        last = SyphonProcess(namespaces, "--once", "--checkpoint", str(checkpoint), name="last")
        assert last.wait() == 0, last.log
        check_home(namespaces, "driver", check_more)
        check_home(namespaces, "ended", sent)
    finally:
        killed.close()
        if last is not None:
            last.close()


def test_two_at_once_with_the_checkpoint_of_one_deleted(
    namespaces: Namespaces, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    first = SyphonProcess(
        namespaces, "--rate", str(RATE), "--checkpoint", str(checkpoint), name="first"
    )
    second = SyphonProcess(namespaces, "--rate", str(RATE), name="second")
    third: SyphonProcess | None = None
    try:
        first.until_started()
        second.until_started()
        sent = divert(namespaces, "two", 2 * COUNT)
        some_home(namespaces, "two")
        first.kill()
        shutil.rmtree(checkpoint)
        third = SyphonProcess(
            namespaces, "--once", "--json", "--checkpoint", str(checkpoint), name="third"
        )
        assert third.wait() == 0, third.log
        check_home(namespaces, "two", sent)
        assert '"empty": true' in third.out
        lose_java(second)
    finally:
        for each in (first, second, third):
            if each is not None:
                each.close()


def lose_java(syphon: SyphonProcess) -> None:
    """As when a whole group of processes is told to end: it says so, and ends too."""
    next(each for each in syphon.relatives() if each.name() == "java").kill()
    assert syphon.wait(60) == 1, syphon.log
    assert "its Spark has ended" in syphon.log
    assert "Traceback" not in syphon.log


def test_once_gives_up_on_a_destination_that_stays_away_and_says_so(
    namespaces: Namespaces,
) -> None:
    namespaces.divert_ids("nowhere", ["lost"], 0)
    namespaces.divert_ids("plain", ["found"], 1)
    made = SyphonProcess(namespaces, "--once", "--patience", "3", name="once")
    try:
        assert made.wait() == 1
        assert "nowhere does not take messages" in made.log
        assert "the backlog is not empty; run it again when they are back" in made.log
        assert "1 messages went home" in made.out
        assert "Traceback" not in made.log
        assert namespaces.home_ids("plain") == ["found"]
        assert namespaces.left() == 1
    finally:
        made.close()
