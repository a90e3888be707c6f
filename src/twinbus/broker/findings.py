"""What is found in a namespace's file: a finding, and what finds it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ALL: Final = "the file"
# Of a thousand rows with one flaw the first few say as much as all.
MOST: Final = 3

REPAIR: Final = "--repair"
ASIDE: Final = f"{REPAIR} sets this aside"
COPY: Final = "put back a copy of the folder, if there is one"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must hold and does not."""

    check: str
    subject: str  # an entity by its path, or the file
    what: str
    do: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.what}; {self.do}"


Say = Callable[[str, int], None]


def unheard(subject: str, count: int) -> None:
    """Nobody is told how far it is."""


@dataclass(slots=True)
class Look:
    """One look at a file: what the checks ask, and what is counted on the way."""

    path: Path
    link: sqlite3.Connection
    say: Say = unheard
    counts: dict[str, int] = field(default_factory=dict)

    def ask(self, sql: str, *values: Any) -> sqlite3.Cursor:
        return self.link.execute(sql, values)


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must hold. ``mend`` makes it so, losing no message; it may be done again."""

    name: str
    find: Callable[[Look], Iterator[Finding]]
    mend: Callable[[sqlite3.Connection], object] | None = None


@dataclass(frozen=True, slots=True)
class Flaw:
    """What a row must not be. ``sql`` is the condition, where SQLite can tell by itself."""

    check: str
    what: str
    do: str = COPY
    sql: str = ""


class Flaws:
    """Rows by their flaw and by whose they are: how many, and which first."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._found: dict[tuple[str, Flaw], tuple[int, list[int]]] = {}

    def add(self, subject: str, flaw: Flaw, number: int) -> None:
        count, firsts = self._found.get((subject, flaw), (0, []))
        if count < MOST:
            firsts.append(number)
        self._found[subject, flaw] = count + 1, firsts

    def findings(self) -> Iterator[Finding]:
        for (subject, flaw), (count, firsts) in self._found.items():
            which = ", ".join(map(str, firsts)) + (", ..." if count > MOST else "")
            numbers = "number" if count == 1 else "numbers"
            what = f"{many(count, self._noun)} {flaw.what} ({numbers} {which})"
            yield Finding(flaw.check, subject, what, flaw.do)


def many(count: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def nobodys(number: int) -> str:
    return f"number {number}, which is no entity's"
