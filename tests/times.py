"""What the tests spend their time on: for each test and fixture, its seconds by the clock and the
processor time of its worker and of all processes below it. What is left of the clock was waited.

On when TWINBUS_TEST_TIMES names a folder: each worker writes a file there, a JSON object a line,
which `tools/test_times.py` reads. `make test-times` does both.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

VARIABLE = "TWINBUS_TEST_TIMES"
LOOK_S = 0.2
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Processors:
    """The processor time of this process and of every process that was ever seen below it.

    Seen by looking again and again: a process whose parent ended before it (Spark's Java, a daemon)
    belongs to nobody's children when it ends, and what it took would be lost.
    """

    def __init__(self) -> None:
        self._spent: dict[tuple[int, str], float] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._look, name="processors", daemon=True).start()

    def spent_s(self) -> float:
        ours = os.times()
        with self._lock:
            self._see(os.getpid())
            return ours.user + ours.system + sum(self._spent.values())

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_S)
            with self._lock:
                self._see(os.getpid())

    def _see(self, pid: int) -> None:
        for task in _listed(f"/proc/{pid}/task"):
            for child in _read(f"/proc/{pid}/task/{task}/children").split():
                # The name, in parentheses, may hold anything. After it: the processor time of the
                # process is the 12th and 13th field, when it began the 20th.
                fields = _read(f"/proc/{child}/stat").rpartition(")")[2].split()
                if fields:
                    spent = (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND
                    self._spent[int(child), fields[19]] = spent
                    self._see(int(child))


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # the process has ended meanwhile
        return []


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


class Stopwatch:
    """A pytest plugin."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._file: IO[str] = (folder / f"{worker}-{os.getpid()}.jsonl").open("a")
        self._processors = Processors()

    @contextmanager
    def _measured(self, **what: str) -> Iterator[None]:
        began, spent = time.time(), self._processors.spent_s()
        yield
        row = {
            **what,
            "began": round(began, 3),
            "clock_s": round(time.time() - began, 4),
            "processor_s": round(self._processors.spent_s() - spent, 4),
        }
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        with self._measured(kind="test", name=item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[Any]:
        with self._measured(kind="fixture", name=fixturedef.argname, test=request.node.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[Any]:
        with self._measured(kind="teardown", name=item.nodeid):
            return (yield)


def slowness() -> float:
    """How much longer than its own work a program takes here: 1 on a machine that is at rest."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, "-c", "sum(range(20_000_000))"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return max(1.0, (time.monotonic() - began) / worked)


def is_prompt(began: float, limit_s: float) -> bool:
    """Whether no more time has passed than is promised of a machine at rest; on a busy one, as much
    more as it is busy with other things, twice over: that changes from moment to moment."""
    took_s = time.monotonic() - began
    return took_s < limit_s or took_s < 2 * limit_s * slowness()
