"""Changes of a namespace that reach the disk together or not at all.

What a batch can do is its verbs; the text of what they say to SQLite is here and in `store`, which
writes the batch. Those who want to know what became of it are its callbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from twinbus.broker import aside
from twinbus.broker.entry import ACTIVE, COLUMNS, DEFERRED, Entry
from twinbus.broker.refusals import StoreError
from twinbus.broker.schema import SEQUENCE_BITS, row_id

if TYPE_CHECKING:
    from twinbus.broker.served import ServedAct

Row = tuple[Any, ...]

OLD_IDS = "FROM seen WHERE entity = ? AND at_ms <= ?"

_all_but_the_bytes = attrgetter(*COLUMNS[:-1])
_peculiarities = attrgetter(*(n for n in COLUMNS if n not in ("enqueued_ms", "size", "bare")))
_PLAIN = _peculiarities(Entry())


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
    records: list[ServedAct] = field(default_factory=list)  # for a ledger, if one is kept
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
            self.inserts.append((key, *_all_but_the_bytes(entry), bare))
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
        self.size += len(bare)

    def copy_aside(self, entity: int, entry: Entry, reason: str, now_ms: int) -> None:
        """Keep, out of reach, a message that is deleted."""
        key = row_id(entity, entry.sequence)
        self.run(aside.MOVE, now_ms, reason, key, key)

    # -- entities

    def create_entity(
        self, number: int, path: str, kind: str, description: str, now_ms: int, next_entity: int
    ) -> None:
        """``next_entity`` is the first number that no entity has had, this one included."""
        self.run("UPDATE next_number SET entity = max(entity, ?)", next_entity)
        self.run(
            "INSERT INTO entity (id, path, kind, description, created_ms, updated_ms, "
            "accessed_ms) VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(number, path, kind, description, now_ms, now_ms, now_ms),
        )

    def describe(self, entity: int, description: str, now_ms: int) -> None:
        sql = "UPDATE entity SET description = ?, updated_ms = ? WHERE id = ?"
        self.run(sql, description, now_ms, entity)

    def note_use(self, entity: int, accessed_ms: int) -> None:
        self.run("UPDATE entity SET accessed_ms = ? WHERE id = ?", accessed_ms, entity)

    def drop(self, first: int, last: int) -> None:
        """Remove the entities of these numbers with all they have, whatever else the batch does."""
        self.dropped.append((first, last))

    # -- what entities have besides messages

    def keep_rule(self, entity: int, name: str, definition: str, created_ms: int) -> None:
        self.run(
            "INSERT OR REPLACE INTO rule (entity, name, definition, created_ms) "
            "VALUES (?, ?, ?, ?)",
            *(entity, name, definition, created_ms),
        )

    def drop_rule(self, entity: int, name: str) -> None:
        self.run("DELETE FROM rule WHERE entity = ? AND name = ?", entity, name)

    def remember_id(self, entity: int, message_id: str, now_ms: int) -> None:
        sql = "INSERT OR REPLACE INTO seen (entity, message_id, at_ms) VALUES (?, ?, ?)"
        self.run(sql, entity, message_id, now_ms)

    def forget_ids(self, entity: int, until_ms: int) -> None:
        self.run(f"DELETE {OLD_IDS}", entity, until_ms)

    def set_state(self, entity: int, session: str, state: bytes | None, now_ms: int) -> None:
        if state is None:
            self.run("DELETE FROM session WHERE entity = ? AND id = ?", entity, session)
        else:
            self.size += len(state)
            self.run(
                "INSERT INTO session (entity, id, state, updated_ms) VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE "
                "SET state = excluded.state, updated_ms = excluded.updated_ms",
                *(entity, session, state, now_ms),
            )

    def run(self, sql: str, *values: Any) -> None:
        """Any change but of messages, made before those are added and removed."""
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
