"""Which worker gets which file of tests, and when.

Most tests wait for the SDK, so there are more workers than cores; a file goes to one worker, so
that its broker is started once. A long one that runs in both of the SDK's worlds goes to two, and a
test that is long by itself to a third. What takes longest begins first (`seconds.json`, which
`make test-times` writes), or the last of it would keep one worker busy long after the others are
done. What starts a Java of its own needs the cores: only some of these run at a time, and light
tests fill the time in which they wait.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SECONDS = Path(__file__).with_name("seconds.json")
UNKNOWN_S = 10.0  # a file that was never measured begins early
# The tests in these folders share a Spark session, one a worker; so many workers have one.
SPARK_FOLDERS = ("/pipeline/", "/accounts/")
# (xdist's own groups do nothing under pytest 9.2: they are appended to a name that it no longer
# looks at.)
SPARKS = ("spark 1", "spark 2")
# Files of tests/acceptance that start Spark processes, or a browser.
HEAVY = frozenset(
    f"tests/acceptance/test_{name}.py"
    for name in (
        *("cluster", "dashboard", "docs", "drill", "enable_syphon", "examples"),
        *("soak", "submit", "syphon", "syphon_dies"),
    )
)
STARTS_ITS_OWN = frozenset(
    f"tests/unit/{name}.py" for name in ("pipeline/test_engine", "accounts/test_report_commands")
)
WORLDS = ("asyncio", "blocking")
HEAVY_AT_ONCE = 3
HEAVY_TIMEOUT_S = 900
# A file that takes longer is shared out by world, the half of each with a broker of its own.
LONG_S = 20.0


def is_heavy(path: str) -> bool:
    return path in HEAVY or shares_spark(path)


def shares_spark(path: str) -> bool:
    return any(folder in path for folder in SPARK_FOLDERS)


def starts_spark(test: pytest.Item, path: str) -> bool:
    """By the fixture or, as the commands of a report do, by themselves."""
    fixtures: list[str] = getattr(test, "fixturenames", [])
    return "spark" in fixtures or path in STARTS_ITS_OWN


def shared_out(files: Iterable[str], seconds: dict[str, float]) -> dict[str, str]:
    """Each file that shares a Spark and the one that it gets, so that both have as much to do."""
    loads = dict.fromkeys(SPARKS, 0.0)
    shares = {}
    for path in sorted(files, key=lambda each: (-seconds.get(each, UNKNOWN_S), each)):
        least = min(loads, key=lambda name: loads[name])
        shares[path] = least
        loads[least] += seconds.get(path, UNKNOWN_S)
    return shares


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no annotations
    """A scope is what one worker gets: a file, a part of one, or all files that share a Spark."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._seconds: dict[str, float] = json.loads(SECONDS.read_text())
        self._spark_of: dict[str, str] = {}

    def schedule(self) -> None:
        files = {
            each.split("::")[0] for tests in self.registered_collections.values() for each in tests
        }
        self._spark_of = shared_out(filter(shares_spark, files), self._seconds)
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::")[0]
        if is_heavy(path):
            return self._spark_of.get(path, path)
        if nodeid in self._seconds:
            return nodeid
        world = next((each for each in WORLDS if f"[{each}" in nodeid), "")
        return path + world if self._seconds.get(path, 0.0) > LONG_S else path

    def _assign_work_unit(self, node: WorkerController) -> None:
        scope = self._next_scope()
        if scope is None:
            node.shutdown()  # whoever ends a heavy file takes the next of those that are left
            return
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _next_scope(self) -> str | None:
        full = self._heavy_running() >= HEAVY_AT_ONCE
        allowed = [each for each in self.workqueue if not (full and self._is_heavy(each))]
        return max(allowed, key=self._length_s, default=None)

    def _heavy_running(self) -> int:
        return sum(
            self._is_heavy(scope) and not all(tests.values())
            for work in self.assigned_work.values()
            for scope, tests in work.items()
        )

    @staticmethod
    def _is_heavy(scope: str) -> bool:
        return scope in SPARKS or is_heavy(scope)

    def _length_s(self, scope: str) -> float:
        files = [path for path, spark in self._spark_of.items() if spark == scope]
        if files:
            return sum(self._seconds.get(path, UNKNOWN_S) for path in files)
        path = scope
        for world in WORLDS:
            path = path.removesuffix(world)
        whole = self._seconds.get(path, UNKNOWN_S)
        return whole if path == scope else whole / len(WORLDS)
