"""The disk: one SQLite file a namespace, and the batches that go into it.

Writing is group commit. Whoever changes something adds rows to the current ``Batch`` and a
callback; the committer writes the whole batch in one transaction and calls back after the commit,
so nothing is acknowledged before it is on disk (WAL, synchronous=FULL). A batch that fails is
rolled back whole and every callback gets the error; memory only ever changes in a callback.

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
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from twinbus.broker import aside, bodies
from twinbus.broker.batch import OLD_IDS, Batch, Callback, Change, Row
from twinbus.broker.entry import COLUMNS, Entry
from twinbus.broker.refusals import FormatError, StoreError
from twinbus.broker.schema import (
    ADDED,
    APPLICATION_ID,
    FORMAT,
    INDEXES,
    SCHEMA,
    SEQUENCE_BITS,
    bring_up_to_date,
    check_format,
    row_id,
    split,
)
from twinbus.health import each

log = logging.getLogger("twinbus.broker")

_PLACES = ", ".join("?" * (1 + len(COLUMNS)))
_INSERT = f"INSERT INTO message (id, {', '.join(COLUMNS)}) VALUES ({_PLACES})"  # noqa: S608 - ours
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
_SELECT = f"""
SELECT message.id, {", ".join(f"message.{name}" for name in COLUMNS[:-1])},
    coalesce(message.bare, body.bare)
FROM message LEFT JOIN body ON body.id = message.body
"""  # noqa: S608 - our own names
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
_BODY = -2  # of a row of `Batch.inserts`


class StoredEntity(NamedTuple):
    """An entity, or one of the queues behind it, with what its messages come to."""

    id: int
    path: str
    kind: str
    description: str
    created_ms: int
    updated_ms: int
    accessed_ms: int
    last_sequence: int = 0
    active: int = 0
    deferred: int = 0
    scheduled: int = 0
    bytes: int = 0
    pings: int = 0


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
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
            # Known before a message needs it, because a send that reads may be refused half-way.
            (given,) = self._reader.execute("SELECT body FROM next_number").fetchone()
            (there,) = self._reader.execute("SELECT coalesce(max(id), 0) + 1 FROM body").fetchone()
            self._next_body = max(int(given), int(there))
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
        script = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};"
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
        rows = self.query(_ONE, row_id(entity, sequence))
        return next(self._whole(rows), None)

    def take_lost(self) -> list[tuple[int, Entry]]:
        """(entity, message) of those that have lost their bytes, as they are now."""
        lost, self.lost = self.lost, set()
        rows = [row for key in lost for row in self.query(_ONE, key)]
        return [(row[0] >> SEQUENCE_BITS, _entry(row)) for row in rows]

    def next_session(self, entity: int, after: str) -> str | None:
        """The first session behind a name that has an active message.

        One step down an index, however many messages each session has, and of whatever state.
        """
        rows = self.query(
            "SELECT session FROM message INDEXED BY message_ready_session "
            "WHERE id >> 40 = ? AND session > ? AND state = 0 ORDER BY session LIMIT 1",
            *(entity, after),
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
        rows = self.query(
            "SELECT session FROM message INDEXED BY message_ready WHERE id > ? AND id < ? "
            "AND state = 0 AND session IS NOT NULL ORDER BY id LIMIT ?",
            *(row_id(entity, 0), row_id(entity + 1, 0), limit),
        )
        return list(dict.fromkeys(row[0] for row in rows))

    def expired(self, now_ms: int, limit: int) -> list[tuple[int, int]]:
        """(entity, sequence) of messages whose time is up."""
        rows = self.query(
            "SELECT id FROM message WHERE expires_ms <= ? AND state != 1 "
            "ORDER BY expires_ms LIMIT ?",
            *(now_ms, limit),
        )
        return [split(row[0]) for row in rows]

    def due(self, now_ms: int, limit: int) -> list[tuple[int, int]]:
        """(entity, sequence) of scheduled messages whose time has come."""
        rows = self.query(
            "SELECT id FROM message WHERE state = 2 AND due_ms <= ? ORDER BY due_ms, id LIMIT ?",
            *(now_ms, limit),
        )
        return [split(row[0]) for row in rows]

    def created_ms(self) -> int:
        return int(self.query("SELECT created_ms FROM about")[0][0])

    def entities(self) -> list[StoredEntity]:
        columns = ", ".join(StoredEntity._fields)
        rows = self.query(f"SELECT {columns} FROM entity ORDER BY id")  # noqa: S608 - our own names
        return [StoredEntity(*row) for row in rows]

    def rules(self) -> list[Row]:
        """Of each rule its subscription, its definition and when it was made."""
        return self.query(
            "SELECT entity, definition, created_ms FROM rule ORDER BY entity, created_ms, name"
        )

    def has_seen(self, entity: int, message_id: str, since_ms: int) -> bool:
        """Whether an entity remembers an id that is younger than that."""
        sql = "SELECT 1 FROM seen WHERE entity = ? AND message_id = ? AND at_ms > ?"
        return bool(self.query(sql, entity, message_id, since_ms))

    def has_ids_until(self, entity: int, until_ms: int) -> bool:
        """Whether an entity remembers an id that is as old as that."""
        return bool(self.query(f"SELECT 1 {OLD_IDS} LIMIT 1", entity, until_ms))

    def session_state(self, entity: int, session: str) -> bytes | None:
        rows = self.query("SELECT state FROM session WHERE entity = ? AND id = ?", entity, session)
        return rows[0][0] if rows else None

    def sessions(self, entity: int, skip: int, top: int) -> list[str]:
        """Those that have messages, by name."""
        rows = self.query(
            "SELECT DISTINCT session FROM message WHERE id >> 40 = ? AND session IS NOT NULL "
            "ORDER BY session LIMIT ? OFFSET ?",
            *(entity, top, skip),
        )
        return [row[0] for row in rows]

    def sessions_changed(self, entity: int, since_ms: int, skip: int, top: int) -> list[str]:
        """Those whose state changed after a moment, by name."""
        rows = self.query(
            "SELECT id FROM session WHERE entity = ? AND updated_ms > ? ORDER BY id "
            "LIMIT ? OFFSET ?",
            *(entity, since_ms, top, skip),
        )
        return [row[0] for row in rows]

    def next_entity(self) -> int:
        """The first number that no entity ever had."""
        (given,) = self.query("SELECT entity FROM next_number")[0]
        (there,) = self.query("SELECT coalesce(max(id), 0) + 1 FROM entity")[0]
        return max(int(given), int(there))

    def share(self, entry: Entry) -> None:
        """Have the bytes stored once, for all copies of this message. They may be already."""
        if entry.body is None:
            entry.body, self._next_body = self._next_body, self._next_body + 1

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
                    *(self.path, *reversed(split(row[0]))),
                )

    def query(self, sql: str, *values: Any) -> list[Row]:
        try:
            return self._reader.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise _translated(error) from error


def _entry(row: Row) -> Entry:
    # By place, which is quicker than by name: `_SELECT` has the columns as an entry has them.
    return Entry(row[0] & (1 << SEQUENCE_BITS) - 1, *row[1:])


def _translated(error: Exception) -> StoreError:
    name = getattr(error, "sqlite_errorname", "")
    full = name.startswith("SQLITE_FULL")
    reason = "the disk is full" if full else f"the store failed: {error} ({name})"
    return StoreError(reason, full=full)


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
