"""The disk: one SQLite file a namespace, and the batches that go into it.

Writing is group commit. Whoever changes something adds rows to the current ``Batch`` and a
callback; the committer writes the whole batch in one transaction and calls back after the commit,
so nothing is acknowledged before it is on disk (WAL, synchronous=FULL). A batch that fails is
rolled back whole and every callback gets the error; memory only ever changes in a callback.

A message's row id is ``entity << 40 | sequence number``: one integer key, so that the messages of
an entity lie together in order, deleting a run of them is one range, and there is no index to keep
beside the table. It leaves 2**40 messages an entity and 2**23 numbers for entities. A number is
never given twice, so that nothing that an entity left can ever be another's.

A queue's message keeps its bytes in its own row. A topic's message is stored once in ``body`` and
the rows of its subscriptions share it; `bodies` counts them.

Memory may be behind the disk: while one batch deletes an entity, the next one, which adds to it,
gathers already. So it is here that messages for an entity that is not there come to nothing. If
the disk refuses the deletion, the entity is there, and has them.
"""

from __future__ import annotations

import fcntl
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from twinbus.broker import aside, bodies
from twinbus.broker.refusals import FormatError, StoreError
from twinbus.health import each

log = logging.getLogger("twinbus.broker")

FORMAT = 1
SEQUENCE_BITS = 40
LAST_NUMBER = (1 << 63 - SEQUENCE_BITS) - 1
_APPLICATION_ID = 0x54574E42  # "TWNB"

ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2


SCHEMA = """
CREATE TABLE entity (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL, kind TEXT NOT NULL, description TEXT NOT NULL,
    created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL, accessed_ms INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL DEFAULT 0, active INTEGER NOT NULL DEFAULT 0,
    deferred INTEGER NOT NULL DEFAULT 0, scheduled INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0, pings INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX entity_path ON entity (lower(path));
CREATE TABLE message (
    id INTEGER PRIMARY KEY, state INTEGER NOT NULL DEFAULT 0,
    delivery_count INTEGER NOT NULL DEFAULT 0, enqueued_ms INTEGER NOT NULL, expires_ms INTEGER,
    due_ms INTEGER, session TEXT, ttl_ms INTEGER, flags INTEGER NOT NULL DEFAULT 0,
    size INTEGER NOT NULL, hops INTEGER NOT NULL DEFAULT 0,
    origin_sequence INTEGER, dead_source TEXT, delivery_annotations BLOB, annotations BLOB,
    body INTEGER, bare BLOB
);
CREATE INDEX message_expiry ON message (expires_ms) WHERE expires_ms IS NOT NULL;
CREATE INDEX message_due ON message (due_ms) WHERE state = 2;
CREATE INDEX message_session ON message (id >> 40, session, id) WHERE session IS NOT NULL;
CREATE TABLE about (created_ms INTEGER NOT NULL);
INSERT INTO about VALUES (CAST(strftime('%s', 'now') AS INTEGER) * 1000);
CREATE TABLE body (id INTEGER PRIMARY KEY, holders INTEGER NOT NULL, bare BLOB NOT NULL);
CREATE TABLE session (
    entity INTEGER NOT NULL, id TEXT NOT NULL, state BLOB, updated_ms INTEGER NOT NULL,
    PRIMARY KEY (entity, id)
) WITHOUT ROWID;
CREATE TABLE seen (
    entity INTEGER NOT NULL, message_id TEXT NOT NULL, at_ms INTEGER NOT NULL,
    PRIMARY KEY (entity, message_id)
) WITHOUT ROWID;
CREATE INDEX seen_at ON seen (entity, at_ms);
CREATE TABLE rule (
    entity INTEGER NOT NULL, name TEXT NOT NULL COLLATE NOCASE, definition TEXT NOT NULL,
    created_ms INTEGER NOT NULL, PRIMARY KEY (entity, name)
) WITHOUT ROWID;
"""
# What files of the first releases lack. Those releases can still open a file that has it.
ADDED = (
    "CREATE TABLE next_number (entity INTEGER NOT NULL, body INTEGER NOT NULL)",
    "INSERT INTO next_number VALUES (1, 1)",
    aside.TABLE,
)
# Added whenever one is missing. The active messages of sessions by age and by name, because a queue
# may have put aside more messages than anybody can walk past. A message without a session is in
# neither, so sending one costs nothing more.
INDEXES = (
    "CREATE INDEX IF NOT EXISTS message_ready ON message (id) "
    "WHERE state = 0 AND session IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS message_ready_session ON message (id >> 40, session, id) "
    "WHERE state = 0 AND session IS NOT NULL",
)

_INSERT = """
INSERT INTO message (
    id, state, delivery_count, enqueued_ms, expires_ms, due_ms, session, ttl_ms, flags, size,
    hops, origin_sequence, dead_source, delivery_annotations, annotations, body, bare
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
# Most messages are like most others; each column that is left to its default saves half a
# microsecond, which is what a column costs to bind.
_INSERT_PLAIN = "INSERT INTO message (id, enqueued_ms, size, bare) VALUES (?, ?, ?, ?)"
_SHARES = "SELECT 1 FROM body UNION ALL SELECT 1 FROM entity WHERE kind = 'subscription' LIMIT 1"
_REWRITE = "UPDATE message SET bare = ?, body = NULL WHERE id = ?"
_DELETE = "DELETE FROM message WHERE id BETWEEN ? AND ?"
_DROPS = (
    "DELETE FROM rule WHERE entity BETWEEN ? AND ?",
    "DELETE FROM session WHERE entity BETWEEN ? AND ?",
    "DELETE FROM seen WHERE entity BETWEEN ? AND ?",
    "DELETE FROM entity WHERE id BETWEEN ? AND ?",
)
_COUNT = """
UPDATE entity SET last_sequence = max(last_sequence, ?), active = active + ?,
    deferred = deferred + ?, scheduled = scheduled + ?, bytes = bytes + ?, pings = pings + ?
WHERE id = ?
"""
_SELECT = """
SELECT message.id, state, delivery_count, enqueued_ms, expires_ms, due_ms, session, ttl_ms, flags,
    size, hops, origin_sequence, dead_source, delivery_annotations, annotations, message.body,
    coalesce(message.bare, body.bare)
FROM message LEFT JOIN body ON body.id = message.body
"""
_READY = _SELECT + "WHERE message.id > ? AND message.id < ? AND state = 0"
_READY_IN_SESSION = (
    _SELECT + "WHERE message.id >> 40 = ? AND session = ? AND message.id > ? AND state = 0"
)
_ANY = _SELECT + "WHERE message.id >= ? AND message.id < ?"
_ANY_IN_SESSION = _ANY + " AND session = ?"
_OLDEST = (
    "SELECT enqueued_ms FROM message WHERE id > ? AND id < ? AND state = 0 ORDER BY id LIMIT 1"
)
_ONE = _SELECT + "WHERE message.id = ?"


@dataclass(slots=True)
class Entry:
    """One message in one queue: a row, as memory has it."""

    sequence: int
    state: int
    delivery_count: int
    enqueued_ms: int
    expires_ms: int | None
    due_ms: int | None
    session: str | None
    ttl_ms: int | None
    flags: int
    size: int
    hops: int
    origin_sequence: int | None
    dead_source: str | None
    delivery_annotations: bytes | None
    annotations: bytes | None
    body: int | None
    bare: bytes


Row = tuple[Any, ...]

_BODY = -2  # of a row of `Batch.inserts`

# All columns but the first and the last, which are the key and the bytes.
_columns = attrgetter(*(column.name for column in fields(Entry)[1:-1]))
_peculiarities = attrgetter(
    *("state", "delivery_count", "expires_ms", "due_ms", "session", "ttl_ms", "flags", "hops"),
    *("origin_sequence", "dead_source", "delivery_annotations", "annotations", "body"),
)
_PLAIN = (ACTIVE, 0, None, None, None, None, 0, 0, None, None, None, None, None)


def row_id(entity: int, sequence: int) -> int:
    return entity << SEQUENCE_BITS | sequence


@dataclass(slots=True)
class Change:
    """What a batch does to one entity's counters. The last three are counted in memory alone."""

    last_sequence: int = 0
    active: int = 0
    deferred: int = 0
    scheduled: int = 0
    bytes: int = 0
    pings: int = 0
    arrived: int = 0
    completed: int = 0
    dead_lettered: int = 0

    def add(self, state: int, count: int, size: int) -> None:
        self.bytes += size
        if state == ACTIVE:
            self.active += count
        elif state == DEFERRED:
            self.deferred += count
        else:
            self.scheduled += count

    def absorb(self, other: Change) -> None:
        self.last_sequence = max(self.last_sequence, other.last_sequence)
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_SUMS = tuple(column.name for column in fields(Change) if column.name != "last_sequence")

Callback = Callable[[StoreError | None], None]


@dataclass(slots=True)
class Batch:
    """Changes that reach the disk together or not at all."""

    inserts: list[Row] = field(default_factory=list)
    plain_inserts: list[Row] = field(default_factory=list)
    deletes: list[int] = field(default_factory=list)
    sharing: list[int] = field(default_factory=list)  # those of the deletes that may share bytes
    rewrites: list[tuple[bytes, int]] = field(default_factory=list)
    statements: list[tuple[str, Row]] = field(default_factory=list)
    dropped: list[tuple[int, int]] = field(default_factory=list)
    changes: dict[int, Change] = field(default_factory=dict)
    bodies: dict[int, bytes] = field(default_factory=dict)
    callbacks: list[Callback] = field(default_factory=list)
    size: int = 0

    def __bool__(self) -> bool:
        return bool(self.callbacks)

    def change(self, entity: int) -> Change:
        change = self.changes.get(entity)
        if change is None:
            change = self.changes[entity] = Change()
        return change

    def insert(self, entity: int, entry: Entry) -> None:
        key = entity << SEQUENCE_BITS | entry.sequence
        if _peculiarities(entry) == _PLAIN:
            self.plain_inserts.append((key, entry.enqueued_ms, entry.size, entry.bare))
        else:
            bare: bytes | None = entry.bare
            if entry.body is not None:
                self.bodies[entry.body], bare = entry.bare, None
            self.inserts.append((key, *_columns(entry), bare))
        self.size += entry.size
        change = self.change(entity)
        change.add(entry.state, 1, entry.size)
        change.last_sequence = entry.sequence
        change.arrived += 1

    def delete(self, entity: int, entry: Entry) -> Change:
        """Remove a message. That it shared its bytes when it was read is no more than a hint."""
        key = row_id(entity, entry.sequence)
        self.deletes.append(key)
        if entry.body is not None:
            self.sharing.append(key)
        change = self.change(entity)
        change.add(entry.state, -1, -entry.size)
        return change

    def restate(self, entity: int, entry: Entry, state: int, delivery_count: int) -> None:
        """Move a message between active and deferred, or count a delivery of it."""
        change = self.change(entity)
        change.add(entry.state, -1, 0)
        change.add(state, 1, 0)
        self.statements.append(
            (
                "UPDATE message SET state = ?, delivery_count = ? WHERE id = ?",
                (state, delivery_count, row_id(entity, entry.sequence)),
            )
        )

    def rewrite(self, entity: int, entry: Entry, bare: bytes) -> None:
        """Give a message other bytes of its own."""
        self.rewrites.append((bare, row_id(entity, entry.sequence)))

    def set_aside(self, entity: int, entry: Entry, reason: str, now_ms: int) -> None:
        """Take a message out of reach, but keep it."""
        key = row_id(entity, entry.sequence)
        self.run(aside.MOVE, now_ms, reason, key, key)
        self.delete(entity, entry)

    def drop(self, first: int, last: int) -> None:
        """Remove the entities of these numbers with all they have, whatever else the batch does."""
        self.dropped.append((first, last))

    def run(self, sql: str, *values: Any) -> None:
        """Any other change, made before messages are added and removed."""
        self.statements.append((sql, values))

    def absorb(self, other: Batch) -> None:
        """What another batch does comes after what this one does."""
        for column in fields(self):
            mine = getattr(self, column.name)
            if isinstance(mine, list):
                mine.extend(getattr(other, column.name))
        self.bodies |= other.bodies
        for entity, change in other.changes.items():
            self.change(entity).absorb(change)
        self.size += other.size


def _runs(ids: list[int]) -> list[tuple[int, int]]:
    """Neighbouring ids as ranges: consumers mostly settle in order, so there are few."""
    ids = sorted(set(ids))
    runs = []
    first = last = ids[0]
    for key in ids[1:]:
        if key != last + 1:
            runs.append((first, last))
            first = key
        last = key
    runs.append((first, last))
    return runs


def check_format(link: sqlite3.Connection, path: Path) -> None:
    """Raise unless it is a store of ours, and of the version that this program knows."""
    (known,) = link.execute("PRAGMA application_id").fetchone()
    (version,) = link.execute("PRAGMA user_version").fetchone()
    if known != _APPLICATION_ID:
        raise FormatError(
            f"{path} is a SQLite file, but not a Twinbus store; "
            "name another data folder, or move the file away"
        )
    if version != FORMAT:
        raise FormatError(
            f"{path} has format version {version}; this program reads version {FORMAT}. "
            "Use the release that wrote it, or start with an empty data folder"
        )


def bring_up_to_date(link: sqlite3.Connection) -> bool:
    """Add what a file of an older release lacks; answers whether it was one of the first."""
    first = not link.execute("SELECT 1 FROM sqlite_master WHERE name = 'next_number'").fetchone()
    for sql in (*ADDED, *INDEXES) if first else INDEXES:
        link.execute(sql)
    return first


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a namespace's folder: two who write there would each believe the messages are theirs."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreError(
                f"another broker is using {folder}; stop it, or name another data folder"
            ) from error
        yield


class Store:
    """One namespace's file. Reads see what is committed; ``apply`` and ``commit`` write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.batch = Batch()
        self.on_change: Callable[[], None] = lambda: None
        # The rows of messages that were met without their bytes. Nobody gets to see them.
        self.lost: set[int] = set()
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            raise FormatError(
                f"{path} cannot be opened as a Twinbus store: {error}. "
                "Name another data folder, or move the file away"
            ) from error

    def _open(self) -> None:
        self._writer = self._connect()
        self._prepare()
        self._reader = self._connect()
        self._reader.execute("PRAGMA query_only = ON")

    def _connect(self) -> sqlite3.Connection:
        link = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        link.execute("PRAGMA synchronous = FULL")
        # Debian's SQLite overwrites with zeros what is deleted, which doubles what settling writes.
        link.execute("PRAGMA secure_delete = OFF")
        link.execute("PRAGMA cache_size = -8192")
        return link

    def _prepare(self) -> None:
        """Create the file, or make sure that it is one of ours."""
        if self._writer.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            self._create()
        else:
            check_format(self._writer, self.path)
            self._put_in_order()

    def _create(self) -> None:
        # Wider pages hold several 1 KB messages each, which is what makes draining a queue cheap.
        self._writer.execute("PRAGMA page_size = 16384")
        self._writer.execute("PRAGMA journal_mode = WAL")
        script = f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {FORMAT};"
        added = ";".join((*ADDED, *INDEXES))
        self._writer.executescript(f"BEGIN; {script} {SCHEMA} {added}; COMMIT;")

    def _put_in_order(self) -> None:
        """Add what a file of an older release lacks, and set aside what belongs to nobody."""
        run = self._writer.execute
        run("BEGIN IMMEDIATE")
        is_old = bring_up_to_date(self._writer)
        found = aside.set_nobodys_rows_aside(self._writer)
        if is_old and run(_SHARES).fetchone():
            # Older releases counted who shares a body wrongly, so it is done once from the start.
            found += aside.set_strays_aside(self._writer)
            bodies.recount(self._writer)
        run("COMMIT")
        for sentence in found:
            log.warning("%s: %s", self.path, sentence)

    # -- writing

    def submit(self, callback: Callback) -> None:
        """Ask to be told when what was added to the batch is on disk, or why it is not."""
        self.batch.callbacks.append(callback)
        if len(self.batch.callbacks) == 1:
            self.on_change()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """What is added to the batch in here is in it whole or, if something raises, not at all.

        Then those who asked to be told are told at once, as if the disk had refused it, so that
        memory is as it was too.
        """
        batch, self.batch = self.batch, Batch()
        try:
            yield
        except BaseException as error:
            part, self.batch = self.batch, batch
            undone = StoreError(f"it could not be done: {error!r}")
            each(lambda callback: callback(undone), part.callbacks)
            raise
        part, self.batch = self.batch, batch
        batch.absorb(part)

    def take_batch(self) -> Batch:
        batch, self.batch = self.batch, Batch()
        return batch

    def apply(self, batch: Batch) -> None:
        """Write a batch into an open transaction. Fast: it touches memory, not the disk."""
        run = self._writer.execute
        try:
            run("BEGIN IMMEDIATE")
            for sql, values in batch.statements:
                run(sql, values)
            self._insert(batch, self._count(batch.changes))
            if batch.rewrites:
                bodies.release(self._writer, _runs([key for _, key in batch.rewrites]))
                self._writer.executemany(_REWRITE, batch.rewrites)
            if batch.sharing:
                bodies.release(self._writer, _runs(batch.sharing))
            if batch.deletes:
                self._writer.executemany(_DELETE, _runs(batch.deletes))
            for first, last in batch.dropped:
                self._drop(first, last)
        except (sqlite3.Error, OverflowError) as error:
            raise _translated(error) from error

    def _count(self, changes: dict[int, Change]) -> set[int]:
        """Add to the entities' counters. Answers which of the entities are not there."""
        gone = set()
        for entity, c in changes.items():
            values = (c.last_sequence, c.active, c.deferred, c.scheduled, c.bytes, c.pings, entity)
            if not self._writer.execute(_COUNT, values).rowcount:
                gone.add(entity)
        return gone

    def _insert(self, batch: Batch, gone: set[int]) -> None:
        plain, inserts = batch.plain_inserts, batch.inserts
        if gone:
            plain = [row for row in plain if row[0] >> SEQUENCE_BITS not in gone]
            inserts = [row for row in inserts if row[0] >> SEQUENCE_BITS not in gone]
        if plain:
            self._writer.executemany(_INSERT_PLAIN, plain)
        if inserts:
            self._writer.executemany(_INSERT, inserts)
        if batch.bodies:
            shared = [row[_BODY] for row in inserts if row[_BODY] is not None]
            bodies.hold(self._writer, shared, batch.bodies)
            self._writer.execute(
                "UPDATE next_number SET body = max(body, ?)", (max(batch.bodies) + 1,)
            )

    def _drop(self, first: int, last: int) -> None:
        run = (row_id(first, 0), row_id(last + 1, 0) - 1)
        bodies.release(self._writer, [run])
        self._writer.execute(_DELETE, run)
        for sql in _DROPS:
            self._writer.execute(sql, (first, last))

    def commit(self) -> None:
        """Make the open transaction durable. Blocks on the disk; safe from another thread."""
        try:
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            raise _translated(error) from error

    def rollback(self) -> None:
        """Forget the open transaction, whatever state the failure left it in."""
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except sqlite3.Error:
            # A connection that cannot even roll back is replaced; SQLite drops its work. If there
            # is no other to be had just now, the next batch fails too, and this is tried again.
            self._writer.close()
            self._writer = self._connect()

    # -- reading

    def load(self, entity: int, after: int, limit: int, max_bytes: int) -> list[Entry]:
        """Active messages behind a sequence number, oldest first, up to a number of bytes."""
        values = (row_id(entity, after), row_id(entity + 1, 0))
        return self._page(_READY, values, limit, max_bytes)

    def load_session(
        self, entity: int, session: str, after: int, limit: int, max_bytes: int
    ) -> list[Entry]:
        values = (entity, session, row_id(entity, after))
        return self._page(_READY_IN_SESSION, values, limit, max_bytes)

    def browse(
        self, entity: int, start: int, limit: int, max_bytes: int, session: str | None
    ) -> list[Entry]:
        """Messages of any state from a sequence number on, as a peek sees them."""
        start = min(max(start, 0), (1 << SEQUENCE_BITS) - 1)  # or it would reach other entities
        values = (row_id(entity, start), row_id(entity + 1, 0))
        if session is None:
            return self._page(_ANY, values, limit, max_bytes)
        return self._page(_ANY_IN_SESSION, (*values, session), limit, max_bytes)

    def get(self, entity: int, sequence: int) -> Entry | None:
        if not 0 <= sequence < 1 << SEQUENCE_BITS:
            return None  # a client may ask for any number; this one would be another entity's
        rows = self._read(_ONE, (row_id(entity, sequence),))
        return next(self._whole(rows), None)

    def take_lost(self) -> list[tuple[int, Entry]]:
        """(entity, message) of those that have lost their bytes, as they are now."""
        lost, self.lost = self.lost, set()
        rows = [row for key in lost for row in self._read(_ONE, (key,))]
        return [(row[0] >> SEQUENCE_BITS, _entry(row)) for row in rows]

    def next_session(self, entity: int, after: str) -> str | None:
        """The first session behind a name that has an active message.

        One step down an index, however many messages each session has, and of whatever state.
        """
        rows = self._read(
            "SELECT session FROM message INDEXED BY message_ready_session "
            "WHERE id >> 40 = ? AND session > ? AND state = 0 ORDER BY session LIMIT 1",
            (entity, after),
        )
        return next((row[0] for row in rows), None)

    def oldest_ms(self, entities: Iterable[int]) -> dict[int, int]:
        """When the first of each entity's active messages came.

        On a connection of its own, so that it may be asked on another thread: it walks past all
        that was put aside before them, and an index to spare that would burden every send.
        """
        try:
            with closing(self._connect()) as link:
                return {
                    entity: int(row[0])
                    for entity in entities
                    for row in link.execute(_OLDEST, (row_id(entity, 0), row_id(entity + 1, 0)))
                }
        except sqlite3.Error as error:
            raise _translated(error) from error

    def oldest_sessions(self, entity: int, limit: int) -> list[str]:
        """The sessions of an entity's oldest active messages, in that order."""
        rows = self._read(
            "SELECT session FROM message INDEXED BY message_ready WHERE id > ? AND id < ? "
            "AND state = 0 AND session IS NOT NULL ORDER BY id LIMIT ?",
            (row_id(entity, 0), row_id(entity + 1, 0), limit),
        )
        return list(dict.fromkeys(row[0] for row in rows))

    def expired(self, now_ms: int, limit: int) -> list[tuple[int, int]]:
        """(entity, sequence) of messages whose time is up."""
        rows = self._read(
            "SELECT id FROM message WHERE expires_ms <= ? AND state != 1 "
            "ORDER BY expires_ms LIMIT ?",
            (now_ms, limit),
        )
        return [_split(row[0]) for row in rows]

    def due(self, now_ms: int, limit: int) -> list[tuple[int, int]]:
        """(entity, sequence) of scheduled messages whose time has come."""
        rows = self._read(
            "SELECT id FROM message WHERE state = 2 AND due_ms <= ? ORDER BY due_ms, id LIMIT ?",
            (now_ms, limit),
        )
        return [_split(row[0]) for row in rows]

    def created_ms(self) -> int:
        return int(self._read("SELECT created_ms FROM about", ())[0][0])

    def next_entity(self) -> int:
        """The first number that no entity ever had."""
        (given,) = self._read("SELECT entity FROM next_number", ())[0]
        (there,) = self._read("SELECT coalesce(max(id), 0) + 1 FROM entity", ())[0]
        return max(int(given), int(there))

    def next_body(self) -> int:
        """The first number that no shared body ever had."""
        (given,) = self._read("SELECT body FROM next_number", ())[0]
        (there,) = self._read("SELECT coalesce(max(id), 0) + 1 FROM body", ())[0]
        return max(int(given), int(there))

    def query(self, sql: str, *values: Any) -> list[Row]:
        """Any other read."""
        return self._read(sql, values)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _page(self, sql: str, values: Row, limit: int, max_bytes: int) -> list[Entry]:
        entries: list[Entry] = []
        try:
            cursor = self._reader.execute(sql + " ORDER BY message.id", values)
            for entry in islice(self._whole(cursor), max(limit, 0)):
                entries.append(entry)
                max_bytes -= entry.size
                if max_bytes <= 0:
                    break
            cursor.close()
        except sqlite3.Error as error:
            raise _translated(error) from error
        return entries

    def _whole(self, rows: Iterable[Row]) -> Iterator[Entry]:
        """Rows as messages, without those that have lost their bytes, which are noted."""
        for row in rows:
            if row[-1] is not None:
                yield _entry(row)
            elif row[0] not in self.lost:
                self.lost.add(row[0])
                log.error(
                    "%s: message %s of entity %s has lost its bytes, and will be set aside",
                    *(self.path, *reversed(_split(row[0]))),
                )

    def _read(self, sql: str, values: Iterable[Any]) -> list[Row]:
        try:
            return self._reader.execute(sql, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise _translated(error) from error


def _entry(row: Row) -> Entry:
    return Entry(row[0] & (1 << SEQUENCE_BITS) - 1, *row[1:])


def _split(key: int) -> tuple[int, int]:
    return key >> SEQUENCE_BITS, key & (1 << SEQUENCE_BITS) - 1


def _translated(error: Exception) -> StoreError:
    name = getattr(error, "sqlite_errorname", "")
    full = name.startswith("SQLITE_FULL")
    reason = "the disk is full" if full else f"the store failed: {error} ({name})"
    return StoreError(reason, full=full)
