"""Which operations of a ledger are charged, and what each is put down to: one table, for whoever
makes a bill.

``bill`` says it in Spark's columns, of any number of records; the dashboard in plain Python, of the
lines that it has added up so far. A test gives both the same ledgers.

A day's records are added up by KEYS, but for those that failed and those in FREE. Then, why a
message was received at home nobody can see on the message itself: it came home as it was sent. So
of a day's RECEIVED at an entity, as many as CAME_HOME to it that day are put down to that. The sums
do not depend on this. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from twinbus.ledger import MARKS, Cause, Operation

KEYS: Final = ("day", "namespace", "entity", "operation", "cause")
SUMS: Final = ("count", "bytes", "units")
FREE: Final = tuple(sorted(mark.value for mark in MARKS))
CAME_HOME: Final = (Operation.SEND.value, Cause.HOME_SEND.value)
RECEIVED: Final = tuple(
    (operation.value, Cause.NORMAL.value) for operation in (Operation.RECEIVE, Operation.COMPLETE)
)
# What a path has between a queue or topic and what lies in it; in any case.
WITHIN: Final = ("/subscriptions/", "/$")
_WITHIN: Final = re.compile("|".join(map(re.escape, WITHIN)), re.IGNORECASE | re.ASCII)


class LineKey(NamedTuple):
    """KEYS, as a value."""

    day: str
    namespace: str
    entity: str
    operation: str
    cause: str


@dataclass(slots=True)
class BillLine:
    """A line of the bill; of what is on it, as much as the dashboard shows."""

    count: int = 0
    units: int = 0


def home_of(path: str) -> str:
    """The queue or topic that a path lies in."""
    return _WITHIN.split(path, maxsplit=1)[0]


def attributed(lines: Mapping[LineKey, BillLine]) -> Iterator[tuple[LineKey, BillLine]]:
    """The lines, with the receives of what came home put down to the outage."""
    came: dict[tuple[str, str, str], int] = {}
    for key, line in lines.items():
        if (key.operation, key.cause) == CAME_HOME:
            came[_home(key)] = came.get(_home(key), 0) + line.count
    for key, line in lines.items():
        received = (key.operation, key.cause) in RECEIVED
        moved = min(came.get(_home(key), 0), line.count) if received else 0
        units = share(line.units, moved, line.count)
        if moved:
            yield key._replace(cause=Cause.HOME_RECEIVE.value), BillLine(moved, units)
        if not moved or moved < line.count:
            yield key, BillLine(line.count - moved, line.units - units)


def _home(key: LineKey) -> tuple[str, str, str]:
    return key.day, key.namespace, home_of(key.entity).lower()


def share(amount: int, moved: int, count: int) -> int:
    """Of the amount of a line of ``count`` messages, what goes with those ``moved``. Halves are
    rounded up and all is in doubles, as Spark does it."""
    return math.floor(float(amount) * moved / count + 0.5) if moved else 0
