"""What is in a namespace's file: its tables, the version of their form, and how a row is numbered.

A message's row id is ``entity << 40 | sequence number``: one integer key, so that the messages of
an entity lie together in order, deleting a run of them is one range, and there is no index to keep
beside the table. It leaves 2**40 messages an entity and 2**23 numbers for entities. A number is
never given twice, so that nothing that an entity left can ever be another's.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from twinbus.broker import aside
from twinbus.broker.refusals import FormatError

FORMAT = 1
APPLICATION_ID = 0x54574E42  # "TWNB"
SEQUENCE_BITS = 40
LAST_NUMBER = (1 << 63 - SEQUENCE_BITS) - 1

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


def row_id(entity: int, sequence: int) -> int:
    return entity << SEQUENCE_BITS | sequence


def split(key: int) -> tuple[int, int]:
    """The entity and the sequence number of a row."""
    return key >> SEQUENCE_BITS, key & (1 << SEQUENCE_BITS) - 1


def check_format(link: sqlite3.Connection, path: Path) -> None:
    """Raise unless it is a store of ours, and of the version that this program knows."""
    (known,) = link.execute("PRAGMA application_id").fetchone()
    (version,) = link.execute("PRAGMA user_version").fetchone()
    if known != APPLICATION_ID:
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
