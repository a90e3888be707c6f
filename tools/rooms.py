"""Coverage by room, in lines and branches, read from what `coverage json` wrote: `make coverage`.

A room is a folder below src/twinbus, or a module that lies there by itself. With --missing, also
the branches that no test took, by file.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOAL = 90.0


@dataclass
class Room:
    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_taken: int = 0

    def add(self, summary: dict[str, int]) -> None:
        self.lines += summary["num_statements"]
        self.lines_run += summary["covered_lines"]
        self.branches += summary["num_branches"]
        self.branches_taken += summary["covered_branches"]


def share(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 100.0


def room_of(path: str) -> str:
    inside = Path(path).parts[Path(path).parts.index("twinbus") + 1 :]
    return inside[0].removesuffix(".py")


def measured(report: dict[str, Any]) -> dict[str, Room]:
    rooms: dict[str, Room] = defaultdict(Room)
    for path, told in sorted(report["files"].items()):
        rooms[room_of(path)].add(told["summary"])
    return rooms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--missing", action="store_true")
    asked = parser.parse_args()
    report = json.loads(asked.report.read_text())
    rooms = measured(report)
    print("| room | lines | run | branches | taken |\n|---|---|---|---|---|")
    for name, room in sorted(rooms.items()):
        lines, branches = (
            share(room.lines_run, room.lines),
            share(room.branches_taken, room.branches),
        )
        print(f"| `{name}` | {room.lines} | {lines:.0f} % | {room.branches} | {branches:.0f} % |")
    if not asked.missing:
        return
    low = {n for n, r in rooms.items() if share(r.branches_taken, r.branches) < GOAL}
    for path, told in sorted(report["files"].items()):
        if room_of(path) in low and told["missing_branches"]:
            print(path, " ".join(f"{a}->{b}" for a, b in told["missing_branches"]))


if __name__ == "__main__":
    main()
