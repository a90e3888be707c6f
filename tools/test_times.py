"""Where the time of the tests goes, read from what `tests/times.py` wrote: `make test-times`.

For each test and fixture its seconds by the clock and how many of these were waited, the slowest
first; then the same by file. What is waited is the clock less the processor time of the worker and
of everything below it, so a test that keeps two cores busy has waited nothing.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

LONG_TEST_S = 10.0  # which a worker may have to itself


@dataclass(frozen=True)
class Row:
    kind: str
    name: str
    clock_s: float
    processor_s: float

    @property
    def waited_s(self) -> float:
        return max(0.0, self.clock_s - self.processor_s)


def read(folder: Path) -> Iterator[Row]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            told = json.loads(line)
            where = told.get("test", "").split("::")[0]
            name = f"{told['name']} of {where}" if told["kind"] == "fixture" else told["name"]
            yield Row(told["kind"], name, told["clock_s"], told["processor_s"])


def summed(rows: Iterable[Row], key: str) -> list[Row]:
    """One row a name: a fixture is set up several times, a file has many tests."""
    clock: dict[tuple[str, str], float] = defaultdict(float)
    processor: dict[tuple[str, str], float] = defaultdict(float)
    for row in rows:
        name = row.name.split("::")[0] if key == "file" else row.name
        clock[row.kind, name] += row.clock_s
        processor[row.kind, name] += row.processor_s
    made = [Row(kind, name, clock[kind, name], processor[kind, name]) for kind, name in clock]
    return sorted(made, key=lambda row: row.clock_s, reverse=True)


def table(title: str, rows: list[Row], most: int) -> None:
    print(f"\n{title}\n{'clock':>8} {'waited':>8} {'processor':>10}")
    for row in rows[:most]:
        print(f"{row.clock_s:8.2f} {row.waited_s:8.2f} {row.processor_s:10.2f}  {row.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=60, help="rows a table")
    parser.add_argument(
        "--write", type=Path, help="the seconds of each file and long test, for tests/schedule.py"
    )
    asked = parser.parse_args()
    rows = list(read(asked.folder))
    tests = [row for row in rows if row.kind == "test"]
    table("tests", summed(tests, "test"), asked.most)
    fixtures = [row for row in rows if row.kind == "fixture"]
    table("fixtures", summed(fixtures, "test"), asked.most)
    table("files", summed(tests, "file"), asked.most)
    if asked.write:
        lengths = {row.name: round(row.clock_s, 1) for row in summed(tests, "file")}
        lengths |= {row.name: round(row.clock_s, 1) for row in tests if row.clock_s > LONG_TEST_S}
        asked.write.write_text(json.dumps(dict(sorted(lengths.items())), indent=1) + "\n")
    clock, processor = sum(t.clock_s for t in tests), sum(t.processor_s for t in tests)
    print(f"\n{len(tests)} tests: {clock:.0f} s by the clock, {processor:.0f} s of processors")


if __name__ == "__main__":
    main()
