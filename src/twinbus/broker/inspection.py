"""Whether a namespace's file says one thing throughout, found out without serving it.

A store holds some facts twice, because asking for them again would be slow: how many messages an
entity has, how many rows share a body, the last number that was given. And it relies on others
that SQLite does not watch: that each row belongs to an entity, and has bytes that are a message.
``STRUCTURE`` and ``CONTENT`` are the lists of what must hold. Each check looks at the whole
file and answers with findings; some can also mend what they find without losing a message.

Looking is reading: the file is opened so that nothing is written beside it either, as it lies, with
the log that a killed broker left. If a broker serves it meanwhile, what is checked is one moment.
Mending is one transaction, in a file that nobody serves. The checks are made again before it is
committed, and what is said to be mended is what they no longer find.

Rows are walked, never gathered: memory does not grow with the number of messages.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from twinbus.broker import aside, bodies
from twinbus.broker.descriptions import from_json
from twinbus.broker.entity import DEAD_LETTERS, KINDS, NUMBERS, SUBSCRIPTIONS, TRANSFER_DEAD_LETTERS
from twinbus.broker.findings import (
    ALL,
    ASIDE,
    COPY,
    MOST,
    REPAIR,
    Check,
    Finding,
    Look,
    Say,
    many,
    nobodys,
    unheard,
)
from twinbus.broker.message_checks import find_bodies, find_counters, find_messages, mend_counters
from twinbus.broker.refusals import FormatError, StoreError
from twinbus.broker.rules import from_json as rule_from_json
from twinbus.broker.schema import SCHEMA, bring_up_to_date, check_format
from twinbus.broker.store import alone_in
from twinbus.errors import TwinbusError

FILE: Final = "messages.db"
# What a file of the first releases lacks, see `store`.
ADDED_TABLES: Final = frozenset(("aside", "next_number"))
ADDED_INDEXES: Final = frozenset(("message_ready", "message_ready_session"))
# What is counted on the way, one of each.
COUNTED: Final = {"entities": "entity", "messages": "message", "bytes": "byte", "bodies": "body"}


class InspectionError(TwinbusError):
    """The file cannot be looked at, or must not be mended now; the text says why."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found in one file, and what of that was mended."""

    path: Path
    findings: list[Finding]
    mended: list[Finding]
    counts: dict[str, int]

    @property
    def namespace(self) -> str:
        return self.path.parent.name

    def summary(self) -> str:
        found = many(len(self.findings), "finding") if self.findings else "nothing found"
        counts = ", ".join(many(count, COUNTED[what]) for what, count in self.counts.items())
        return f"{self.path}: {found}{f' ({counts})' if counts else ''}"

    def as_json(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "file": str(self.path),
            "findings": [asdict(each) for each in self.findings],
            "mended": [asdict(each) for each in self.mended],
            "counts": self.counts,
        }


# ---------------------------------------------------------------- the file as SQLite has it


def _find_format(look: Look) -> Iterator[Finding]:
    if look.ask("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
        yield Finding("format", ALL, "it is empty, and no broker has made a store of it", COPY)
        return
    try:
        check_format(look.link, look.path)
    except FormatError as error:
        what, _, do = re.split("(; |[.] )", str(error), maxsplit=1)
        yield Finding("format", ALL, what, do)


def _find_damage(look: Look) -> Iterator[Finding]:
    for (line,) in look.ask(f"PRAGMA integrity_check({MOST})"):
        if line != "ok":
            yield Finding("integrity", ALL, f"SQLite says: {' '.join(line.split())}", COPY)


def _mend_damage(link: sqlite3.Connection) -> None:
    """An index is made anew from its table; a table that is damaged stays as it is."""
    link.execute("REINDEX")


@cache
def _schema() -> dict[str, tuple[str, str]]:
    """What is in a new store, by name: its kind, and how it is made."""
    with closing(sqlite3.connect(":memory:")) as link:
        link.executescript(SCHEMA)
        bring_up_to_date(link)
        return _things(link)


def _things(link: sqlite3.Connection) -> dict[str, tuple[str, str]]:
    rows = link.execute("SELECT name, type, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {name: (kind, sql) for name, kind, sql in rows}


def _find_schema(look: Look) -> Iterator[Finding]:
    there = _things(look.link)
    is_old = not there.keys() & ADDED_TABLES  # the next start of a broker adds what it lacks
    to_come = ADDED_TABLES | ADDED_INDEXES if is_old else frozenset()
    for name, (kind, sql) in _schema().items():
        if name not in there and name not in to_come:
            do = f"{REPAIR} makes it" if kind == "index" else COPY
            yield Finding("schema", ALL, f"the {kind} '{name}' is missing", do)
        elif name in there and there[name] != (kind, sql):
            yield Finding("schema", ALL, f"the {kind} '{name}' is not made as it must be", COPY)
    for table in {"about", "next_number"} & there.keys():
        (count,) = look.ask(f"SELECT count(*) FROM {table}").fetchone()
        if count != 1:
            what = f"the table '{table}' has {many(count, 'row')} and must have 1"
            yield Finding("schema", ALL, what, COPY)


def _mend_schema(link: sqlite3.Connection) -> None:
    there = _things(link)
    for name, (kind, sql) in _schema().items():
        if name not in there and kind == "index":
            link.execute(sql)


def _find_types(look: Look) -> Iterator[Finding]:
    """SQLite keeps a text where a number belongs, if somebody puts one there."""
    there = _things(look.link)
    for table in (name for name, (kind, _) in _schema().items() if kind == "table"):
        if table not in there:
            continue  # of a file of the first releases, or it has been found missing
        columns = look.ask(f"PRAGMA table_info({table})").fetchall()
        wrong = ", ".join(f"sum({_mistyped(column)})" for column in columns)
        counts = look.ask(f"SELECT {wrong} FROM {table}").fetchone()
        for column, count in zip(columns, counts, strict=True):
            if count:
                what = f"{many(count, 'row')} of '{table}' with no {column[2]} as '{column[1]}'"
                yield Finding("types", ALL, what, COPY)


def _mistyped(column: tuple[int, str, str, int, Any, int]) -> str:
    _, name, kind, required, _, key = column
    allowed = f"'{kind.lower()}'" if required or key else f"'{kind.lower()}', 'null'"
    return f"typeof({name}) NOT IN ({allowed})"


# ---------------------------------------------------------------- entities

_PLACE = """
CREATE TEMP TABLE place (
    id INTEGER PRIMARY KEY, path TEXT, kind TEXT, sessions INTEGER, duplicates INTEGER, trouble TEXT
)
"""


def _draw_places(look: Look) -> Iterator[Finding]:
    """Which number is whose, by the entities alone: their side queues' follow from their own.

    Finds nothing itself, but what is asked later needs that this could be done.
    """
    yield from ()
    look.ask("DROP TABLE IF EXISTS temp.place")
    look.ask(_PLACE)
    look.counts["entities"] = 0
    for number, path, kind, text in look.ask("SELECT id, path, kind, description FROM entity"):
        if kind not in ("dead", "transfer"):
            look.counts["entities"] += 1
            look.link.executemany(
                "INSERT OR IGNORE INTO place VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (number, path, kind, *_described(kind, text)),
                    (number + 1, f"{path}/{DEAD_LETTERS}", "dead", 0, 0, None),
                    (number + 2, f"{path}/{TRANSFER_DEAD_LETTERS}", "transfer", 0, 0, None),
                ],
            )


def _described(kind: str, text: str) -> tuple[bool | None, bool | None, str | None]:
    """Whether it requires sessions and detects duplicates; or why that cannot be told."""
    try:
        description = from_json(KINDS[kind], text)
    except Exception as error:  # noqa: BLE001 - it may hold anything, and is said to
        return None, None, f"{type(error).__name__}: {error}"
    sessions = getattr(description, "requires_session", False)
    return sessions, getattr(description, "requires_duplicate_detection", False), None


def _find_descriptions(look: Look) -> Iterator[Finding]:
    for path, trouble in look.ask("SELECT path, trouble FROM place WHERE trouble IS NOT NULL"):
        yield Finding("description", path, f"its description cannot be read ({trouble})", COPY)


def _find_numbers(look: Look) -> Iterator[Finding]:
    """An entity has three numbers, its own and those of its two side queues; see `entity`."""
    for number, path, kind, owner in look.ask(
        "SELECT entity.id, entity.path, entity.kind, place.path FROM entity "
        "LEFT JOIN place ON place.id = entity.id WHERE place.id IS NULL "
        "OR (place.path, place.kind) != (entity.path, entity.kind)"
    ):
        what = f"it is entered as '{kind}' with the number {number}, which is "
        if owner is None:
            yield Finding("numbers", path, f"{what}no entity's", f"{REPAIR} removes this")
        else:
            yield Finding("numbers", path, f"{what}that of '{owner}'", COPY)
    for number, path in look.ask(
        "SELECT id, path FROM place WHERE kind NOT IN ('dead', 'transfer') AND (id % ? OR id < ?)",
        *(NUMBERS, NUMBERS),
    ):
        what = f"its number is {number}, and those of entities are multiples of {NUMBERS}"
        yield Finding("numbers", path, what, COPY)
    for number, path in look.ask(
        "SELECT id, path FROM place WHERE id NOT IN (SELECT id FROM entity)"
    ):
        what = f"its number, {number}, is not entered, so that nothing is counted there"
        yield Finding("numbers", path, what, f"{REPAIR} enters it")


def _mend_numbers(link: sqlite3.Connection) -> None:
    """What is nobody's is set aside as at a start; and side queues are entered."""
    aside.set_nobodys_rows_aside(link)
    link.execute(
        "INSERT INTO entity (id, path, kind, description, created_ms, updated_ms, accessed_ms) "
        "SELECT place.id, place.path, place.kind, main.description, main.created_ms, "
        "main.updated_ms, main.accessed_ms FROM place "
        "JOIN entity AS main ON main.id = place.id - place.id % ? "
        "WHERE place.id NOT IN (SELECT id FROM entity)",
        (NUMBERS,),
    )


def _find_topics(look: Look) -> Iterator[Finding]:
    topics = {path.lower() for (path,) in look.ask("SELECT path FROM place WHERE kind = 'topic'")}
    for (path,) in look.ask("SELECT path FROM place WHERE kind = 'subscription'"):
        topic, _, _ = path.rpartition(f"/{SUBSCRIPTIONS}/")
        if topic.lower() not in topics:
            yield Finding("topic", path, "it is a subscription of no topic", ASIDE)


def _find_rules(look: Look) -> Iterator[Finding]:
    for number, name, text, path, kind in look.ask(
        "SELECT entity, name, definition, path, kind FROM rule LEFT JOIN place ON id = entity"
    ):
        subject = path or nobodys(number)
        if kind != "subscription":
            do = f"{REPAIR} removes this" if path is None else COPY
            yield Finding("rules", subject, f"the rule '{name}' is of no subscription", do)
            continue
        try:
            known = rule_from_json(json.loads(text)).name
        except Exception as error:  # noqa: BLE001 - as above
            yield Finding("rules", subject, f"the rule '{name}' cannot be read ({error})", COPY)
            continue
        if known != name:
            yield Finding("rules", subject, f"the rule '{name}' calls itself '{known}'", COPY)


def _find_states(look: Look) -> Iterator[Finding]:
    """Session states, and ids that duplicate detection has seen, of who has no use for them."""
    for table, use, noun in (
        ("session", "sessions", "session state"),
        ("seen", "duplicates", "remembered message id"),
    ):
        for number, path, count in look.ask(
            f"SELECT entity, place.path, count(*) FROM {table} "
            f"LEFT JOIN place ON place.id = entity WHERE place.id IS NULL OR NOT {use} "
            "GROUP BY entity"
        ):
            do = ASIDE if path is None else "nobody asks for this, and it stays"
            yield Finding(table, path or nobodys(number), f"{many(count, noun)} of no use", do)


# ---------------------------------------------------------------- all of it

# Each is asked only if those before it found nothing.
STRUCTURE: Final = (
    Check("format", _find_format),
    Check("integrity", _find_damage, _mend_damage),
    Check("schema", _find_schema, _mend_schema),
    Check("types", _find_types),
    Check("entities", _draw_places),
)
# In the order in which they are mended: what is set aside is no longer counted.
CONTENT: Final = (
    Check("description", _find_descriptions),
    Check("numbers", _find_numbers, _mend_numbers),
    Check("topic", _find_topics),
    Check("rules", _find_rules),
    Check("states", _find_states),
    Check("messages", find_messages, aside.set_strays_aside),
    Check("bodies", find_bodies, bodies.recount),
    Check("counters", find_counters, mend_counters),
)


def stores(folder: Path) -> list[Path]:
    """The files of the namespaces under a data folder, or under a folder of such."""
    return sorted(path for depth in ("", "*/", "*/*/") for path in folder.glob(depth + FILE))


def inspect(path: Path, say: Say = unheard) -> Inspection:
    """Look at one namespace's file. Raises InspectionError where it cannot be opened."""
    with _opened(path) as link:
        look = Look(path, link, say)
        return Inspection(path, examine(look), [], look.counts)


def repair(path: Path, say: Say = unheard) -> Inspection:
    """Mend what can be mended. Raises InspectionError, with nothing changed, where none may be."""
    _check_readable(path)
    try:
        with alone_in(path.parent):
            report = inspect(path, say)
            if not report.findings or report.findings[0].check == "format":
                return report
            with closing(sqlite3.connect(path, isolation_level=None)) as link:
                link.execute("BEGIN IMMEDIATE")
                report = _repaired(Look(path, link, say))
                link.execute("COMMIT" if report.mended else "ROLLBACK")
                return report
    except (sqlite3.Error, StoreError, OSError, OverflowError) as error:
        raise InspectionError(f"{path} was left as it is: {error}") from error


def _repaired(look: Look) -> Inspection:
    found = _structure(look)
    if found:
        with suppress(sqlite3.DatabaseError):  # what it cannot make anew is found again below
            _mend(STRUCTURE, look)
        if _structure(look):
            return Inspection(look.path, found, [], look.counts)
    found += _content(look)
    bring_up_to_date(look.link)
    _mend(CONTENT, look)
    left = examine(look)
    return Inspection(look.path, left, [each for each in found if each not in left], look.counts)


def _mend(checks: tuple[Check, ...], look: Look) -> None:
    for check in checks:
        if check.mend is not None:
            check.mend(look.link)


def examine(look: Look) -> list[Finding]:
    """Make all checks; those of the content only where the file can be read."""
    return _structure(look) or _content(look)


def _structure(look: Look) -> list[Finding]:
    for check in STRUCTURE:
        found = list(_made(check, look))
        if found:
            return found
    return []


def _content(look: Look) -> list[Finding]:
    return [finding for check in CONTENT for finding in _made(check, look)]


def _made(check: Check, look: Look) -> Iterator[Finding]:
    try:
        yield from check.find(look)
    except (sqlite3.DatabaseError, OverflowError) as error:
        yield Finding(check.name, ALL, f"SQLite cannot read it: {error}", COPY)


def _check_readable(path: Path) -> None:
    """Raise where SQLite would only say that it is "unable to open database file"."""
    try:
        if path.is_dir():
            raise InspectionError(f"{path} is a folder, where the messages of a namespace belong")
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise InspectionError(f"{path} is no file, and has no messages of a namespace")
        if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise InspectionError(f"{path} cannot be read: {error.strerror}") from error


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The file as it is at this moment, whoever writes to it, with nothing made beside it.

    Without a log nobody serves it, and SQLite need not look for one. A broker that was killed left
    a log and its index; SQLite then makes an index of its own in memory, or it reads the one that a
    running broker keeps. A log without its index was copied, and one that does not begin as a log
    is damaged: there SQLite must make an index.
    """
    _check_readable(path)
    log, index = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    how = (
        "readonly_shm=1"
        if index.exists() and _begins_well(log)
        else ""
        if log.exists()
        else "immutable=1"
    )
    where = f"{path.resolve().as_uri()}?mode=ro&{how}"
    try:
        link = sqlite3.connect(where, uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise InspectionError(f"{path} cannot be opened: {error}") from error
    with closing(link):
        link.execute("BEGIN")
        yield link


def _begins_well(log: Path) -> bool:
    """Whether a log has a log's first bytes, or none; of any other SQLite takes nothing."""
    with suppress(FileNotFoundError), log.open("rb") as file:
        return file.read(4) in (b"", b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
    return True
