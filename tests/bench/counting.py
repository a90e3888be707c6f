"""Work counted rather than timed, so that it is the same on every machine in every mood.

Python's own instructions are counted by a trace function, SQLite's by SQLite. What runs in C is
one instruction to this, however long it takes; that is what the benchmarks are for.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def instructions(act: Callable[[], object]) -> int:
    """The bytecode instructions that ``act`` runs in this thread, all that it calls included."""
    count = 0

    def within(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
        return within

    def entered(frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return within

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def database_steps(connections: list[sqlite3.Connection], act: Callable[[], object]) -> int:
    """The instructions of SQLite's machine that ``act`` runs on these connections."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    for each in connections:
        each.set_progress_handler(step, 1)
    try:
        act()
    finally:
        for each in connections:
            each.set_progress_handler(None, 1)
    return count
