"""What the tests spend their time on: for each test and fixture, its seconds by the clock and the
processor time of its worker and of all processes below it. What is left of the clock was waited.

On when TWINBUS_TEST_TIMES names a folder: each worker writes a file there, a JSON object a line,
which `tools/test_times.py` reads. `make test-times` does both.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

VARIABLE = "TWINBUS_TEST_TIMES"
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def processor_s() -> float:
    """Of this process, of those it has waited for, and of those that live below it."""
    ours = os.times()
    return (
        ours.user + ours.system + ours.children_user + ours.children_system + _living(os.getpid())
    )


def _living(pid: int) -> float:
    total = 0.0
    for task in _listed(f"/proc/{pid}/task"):
        try:
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        except OSError:  # the thread has ended meanwhile
            continue
        total += sum(_spent(int(child)) + _living(int(child)) for child in children)
    return total


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _spent(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    # The name, in parentheses, may hold anything; the four times are the 12th to 15th after it.
    fields = stat[stat.rindex(")") + 2 :].split()
    return sum(map(int, fields[11:15])) / TICKS_A_SECOND


class Stopwatch:
    """A pytest plugin."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._file: IO[str] = (folder / f"{worker}-{os.getpid()}.jsonl").open("a")

    @contextmanager
    def _measured(self, **what: str) -> Iterator[None]:
        began, spent = time.time(), processor_s()
        yield
        row = {
            **what,
            "began": round(began, 3),
            "clock_s": round(time.time() - began, 4),
            "processor_s": round(processor_s() - spent, 4),
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
