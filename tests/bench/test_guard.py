"""The hot paths cost what they did when these numbers were written, within a margin.

A number is a count of instructions (counting.py), so neither a slow machine nor a busy one changes
it; another release of Python does, a little. A path that really must do more gets a new number, in
the commit that makes it so.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.bench import paths
from tests.bench.counting import database_steps, instructions

from twinbus import envelope
from twinbus.broker.namespace import Namespace
from twinbus.broker.queue import Queue
from twinbus.broker.rules import RuleIndex
from twinbus.broker.store import Store
from twinbus.failover.states import Failover
from twinbus.ledger import Ledger

Opened = Callable[[Path], AbstractContextManager[paths.Work]]

MARGIN = 1.6
DATABASE_STEPS: dict[Opened, int] = {paths.send: 50, paths.receive: 37, paths.settle: 14}
# Counts to a number, in several steps each.
COUNT = """
  WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
  SELECT max(i) FROM n"""


@dataclass(frozen=True)
class Guard:
    """``number`` is of one message. ``owner`` and ``name`` are a function on the path."""

    path: Opened
    number: int
    owner: Any
    name: str
    messages: int = 1

    def check(self, folder: Path) -> None:
        with self.path(folder) as work:
            count = instructions(work) / self.messages
        assert count <= self.number * MARGIN, (
            f"{self.path.__name__} takes {count:.0f} instructions a message; it took {self.number}"
        )


GUARDS = (
    Guard(paths.send, 2_128, Namespace, "send", paths.MESSAGES),
    Guard(paths.receive, 934, Queue, "lock", paths.MESSAGES),
    Guard(paths.settle, 1_168, Queue, "complete", paths.MESSAGES),
    Guard(paths.wrap, 1_863, envelope, "Sections"),
    Guard(paths.unwrap, 1_946, envelope, "_restore"),
    Guard(paths.route, 2_003, RuleIndex, "route"),
    Guard(paths.outage, 349, Failover, "failed"),
    Guard(paths.record, 86, Ledger, "add"),
)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.path.__name__)
def test_a_hot_path_takes_what_it_took(guard: Guard, tmp_path: Path) -> None:
    guard.check(tmp_path)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.path.__name__)
def test_a_path_that_takes_twice_as_much_is_noticed(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(guard.owner, guard.name)

    def slowed(*args: Any, **more: Any) -> Any:
        idle(guard.number)
        return original(*args, **more)

    monkeypatch.setattr(guard.owner, guard.name, slowed)
    with pytest.raises(AssertionError, match="instructions a message; it took"):
        guard.check(tmp_path)


def idle(count: int) -> None:
    """About so many instructions that do nothing: a turn of the loop takes three at least."""
    for _ in range(count // 3):
        pass


@pytest.mark.parametrize(("path", "number"), DATABASE_STEPS.items())
def test_the_store_is_asked_no_more_than_it_was(
    path: Opened, number: int, tmp_path: Path, connections: list[sqlite3.Connection]
) -> None:
    check_store(path, number, tmp_path, connections)


@pytest.mark.parametrize(("path", "number"), DATABASE_STEPS.items())
def test_a_store_that_is_asked_twice_as_much_is_noticed(
    path: Opened, number: int, tmp_path: Path, connections: list[sqlite3.Connection]
) -> None:
    @contextmanager
    def twice(folder: Path) -> Iterator[paths.Work]:
        with path(folder) as work:
            yield lambda: (work(), connections[0].execute(COUNT, [number * paths.MESSAGES // 4]))

    with pytest.raises(AssertionError, match="steps a message; it took"):
        check_store(twice, number, tmp_path, connections)


def check_store(
    path: Opened, number: int, folder: Path, connections: list[sqlite3.Connection]
) -> None:
    with path(folder) as work:
        count = database_steps(connections, work) / paths.MESSAGES
    assert count <= number * MARGIN, f"SQLite takes {count:.0f} steps a message; it took {number}"


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Those that stores open from now on."""
    opened: list[sqlite3.Connection] = []
    connect = Store._connect

    def noted(self: Store) -> sqlite3.Connection:
        opened.append(connect(self))
        return opened[-1]

    monkeypatch.setattr(Store, "_connect", noted)
    return opened
