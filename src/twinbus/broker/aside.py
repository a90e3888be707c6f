"""What is in the file and belongs to nobody, or has lost its bytes, is set aside: kept in the table
``aside`` with the reason, and never delivered.

This broker leaves no such rows. They come from releases that did, or from a damaged file.
"""

from __future__ import annotations

import sqlite3
import time

from twinbus.broker import bodies

TABLE = """
CREATE TABLE aside (
    found_ms INTEGER NOT NULL, reason TEXT NOT NULL, id INTEGER, state INTEGER,
    delivery_count INTEGER, enqueued_ms INTEGER, expires_ms INTEGER, due_ms INTEGER, session TEXT,
    ttl_ms INTEGER, flags INTEGER, size INTEGER, hops INTEGER, origin_sequence INTEGER,
    dead_source TEXT, delivery_annotations BLOB, annotations BLOB, bare BLOB
);
"""
# Of the rows of a message's id from one to another, with its bytes, wherever they are.
MOVE = """
INSERT INTO aside
SELECT ?, ?, message.id, state, delivery_count, enqueued_ms, expires_ms, due_ms, session, ttl_ms,
    flags, size, hops, origin_sequence, dead_source, delivery_annotations, annotations,
    coalesce(message.bare, body.bare)
FROM message LEFT JOIN body ON body.id = message.body WHERE message.id BETWEEN ? AND ?
"""
LOST = "its bytes are not in the file"

_NO_ENTITY = "its entity is not there"
# From number to number along the key, without looking at the messages in between. The last number
# that there can be is 2**23 - 1: the row behind its messages would be a negative one.
_NUMBERS_OF_MESSAGES = """
WITH RECURSIVE numbers (number) AS (
    SELECT min(id) >> 40 FROM message
    UNION ALL
    SELECT (SELECT id >> 40 FROM message WHERE id >= number + 1 << 40 ORDER BY id LIMIT 1)
    FROM numbers WHERE number < (1 << 23) - 1
)
SELECT number FROM numbers
WHERE number IS NOT NULL AND number NOT IN (SELECT id FROM entity)
"""
_NUMBERS = """
WITH RECURSIVE numbers (number) AS (
    SELECT min(entity) FROM {table}
    UNION ALL
    SELECT (SELECT min(entity) FROM {table} WHERE entity > number)
    FROM numbers WHERE number IS NOT NULL
)
SELECT number FROM numbers
WHERE number IS NOT NULL AND number NOT IN (SELECT id FROM entity)
"""
_DELETES = {
    "seen": "DELETE FROM seen WHERE entity = ?",
    "rule": "DELETE FROM rule WHERE entity = ?",
}
_SIDES_OF_NOBODY = """
SELECT id FROM entity AS side
WHERE kind IN ('dead', 'transfer') AND NOT EXISTS (
    SELECT 1 FROM entity WHERE id = side.id - CASE side.kind WHEN 'dead' THEN 1 ELSE 2 END
    AND kind IN ('queue', 'topic', 'subscription')
)
"""


def set_nobodys_rows_aside(link: sqlite3.Connection) -> list[str]:
    """Find what no entity has, at the start, and answer a sentence for each find.

    Cheap, because it steps from entity to entity and not from row to row.
    """
    found = _drop_entities(link)
    now_ms = _now_ms()
    for number in _numbers(link, _NUMBERS_OF_MESSAGES):
        run = (number << 40, (number + 1 << 40) - 1)
        count = link.execute(MOVE, (now_ms, _NO_ENTITY, *run)).rowcount
        _remove(link, run)
        found.append(f"{count} messages of entity {number}, which is not there, were set aside")
    for number in _numbers(link, _NUMBERS.format(table="session")):
        count = link.execute(
            "INSERT INTO aside (found_ms, reason, id, session, enqueued_ms, bare) "
            "SELECT ?, ?, entity << 40, id, updated_ms, state FROM session WHERE entity = ?",
            (now_ms, f"a session's state: {_NO_ENTITY}", number),
        ).rowcount
        found.append(f"{count} session states of entity {number}, which is not there: set aside")
        link.execute("DELETE FROM session WHERE entity = ?", (number,))
    # The ids that it has seen, and its rules: there is nothing in them to keep.
    for table, delete in _DELETES.items():
        for number in _numbers(link, _NUMBERS.format(table=table)):
            count = link.execute(delete, (number,)).rowcount
            found.append(f"{count} rows of '{table}' of entity {number}, which is not there: gone")
    return found


def set_strays_aside(link: sqlite3.Connection) -> list[str]:
    """Messages without bytes, and bytes without a message. Reads the whole file."""
    found = []
    lost = link.execute(
        "SELECT id FROM message WHERE bare IS NULL "
        "AND NOT EXISTS (SELECT 1 FROM body WHERE body.id = message.body)"
    ).fetchall()
    for (key,) in lost:
        link.execute(MOVE, (_now_ms(), LOST, key, key))
        _uncount(link, key)
        link.execute("DELETE FROM message WHERE id = ?", (key,))
    if lost:
        found.append(f"{len(lost)} messages have lost their bytes: set aside")
    of_nobody = "FROM body WHERE id NOT IN (SELECT body FROM message WHERE body IS NOT NULL)"
    strays = link.execute(
        f"INSERT INTO aside (found_ms, reason, bare) SELECT ?, ?, bare {of_nobody}",
        (_now_ms(), "bytes of no message"),
    ).rowcount
    if strays:
        link.execute(f"DELETE {of_nobody}")
        found.append(f"{strays} bodies belong to no message: set aside")
    return found


def _drop_entities(link: sqlite3.Connection) -> list[str]:
    """Subscriptions of topics that are not there, and queues behind entities that are not."""
    paths = link.execute(
        "SELECT id, path, kind FROM entity WHERE kind IN ('topic', 'subscription')"
    )
    rows = paths.fetchall()
    topics = {path.lower() for _, path, kind in rows if kind == "topic"}
    found = []
    for number, path, kind in rows:
        if kind == "subscription" and path.rsplit("/", 2)[0].lower() not in topics:
            link.execute("DELETE FROM entity WHERE id = ?", (number,))
            found.append(f"'{path}' has no topic and was removed")
    for (number,) in link.execute(_SIDES_OF_NOBODY).fetchall():
        link.execute("DELETE FROM entity WHERE id = ?", (number,))
    return found


def _numbers(link: sqlite3.Connection, sql: str) -> list[int]:
    return [row[0] for row in link.execute(sql).fetchall()]


def _remove(link: sqlite3.Connection, run: bodies.Run) -> None:
    bodies.release(link, [run])
    link.execute("DELETE FROM message WHERE id BETWEEN ? AND ?", run)


def _uncount(link: sqlite3.Connection, key: int) -> None:
    """Take a row out of its entity's counters."""
    link.execute(
        "UPDATE entity SET active = active - (state = 0), deferred = deferred - (state = 1), "
        "scheduled = scheduled - (state = 2), bytes = bytes - size "
        "FROM message WHERE message.id = ? AND entity.id = ?",
        (key, key >> 40),
    )


def _now_ms() -> int:
    return int(time.time() * 1000)
