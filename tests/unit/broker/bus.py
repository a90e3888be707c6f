"""A namespace with topics over a real store, whose clock, commits and refusals are the test's, and
what must hold of its file whatever is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinbus.amqp.message import Message, Properties
from twinbus.amqp.types import encode
from twinbus.auth.access_rules import root_rule
from twinbus.broker.batch import Batch
from twinbus.broker.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.broker.entry import Entry
from twinbus.broker.namespace import Namespace
from twinbus.broker.queue import Queue
from twinbus.broker.refusals import RequestError, StoreError
from twinbus.broker.store import Store

START_MS = 1_700_000_000_000

# Each finds what must not be there.
_MUST_BE_EMPTY = {
    "bodies whose holders are not their rows": (
        "SELECT id, holders, (SELECT count(*) FROM message WHERE message.body = body.id) FROM body "
        "WHERE holders <> (SELECT count(*) FROM message WHERE message.body = body.id)"
    ),
    "rows without bytes": (
        "SELECT id >> 40, id & ((1 << 40) - 1) FROM message "
        "WHERE bare IS NULL AND body NOT IN (SELECT id FROM body)"
    ),
    "bodies without a row": (
        "SELECT id, holders FROM body WHERE id NOT IN (SELECT body FROM message WHERE body > 0)"
    ),
    "messages of nobody": (
        "SELECT id >> 40, count(*) FROM message WHERE id >> 40 NOT IN (SELECT id FROM entity) "
        "GROUP BY 1"
    ),
    "sessions of nobody": "SELECT * FROM session WHERE entity NOT IN (SELECT id FROM entity)",
    "ids of nobody": "SELECT * FROM seen WHERE entity NOT IN (SELECT id FROM entity)",
    "rules of nobody": "SELECT * FROM rule WHERE entity NOT IN (SELECT id FROM entity)",
    "counters that are wrong": (
        "SELECT path, active, deferred, scheduled, bytes FROM entity LEFT JOIN ("
        "  SELECT id >> 40 AS owner, sum(state = 0) AS a, sum(state = 1) AS d, "
        "  sum(state = 2) AS s, sum(size) AS b FROM message GROUP BY 1) ON owner = id "
        "WHERE (active, deferred, scheduled, bytes) "
        "<> (coalesce(a, 0), coalesce(d, 0), coalesce(s, 0), coalesce(b, 0))"
    ),
}


def wrong(store: Store) -> dict[str, list[Any]]:
    """What does not hold of a store, by the name of what must: empty, if it is as it must be."""
    found = {name: store.query(sql) for name, sql in _MUST_BE_EMPTY.items()}
    return {name: rows for name, rows in found.items() if rows}


def message(text: str, ttl_ms: int | None = None, **properties: Any) -> bytes:
    head = b"" if ttl_ms is None else b"\x00\x53\x70" + encode([False, None, ttl_ms])
    body = b"\x00\x53\x75" + encode(b"body of " + text.encode())
    return head + Properties(message_id=text, **properties).encoded() + body


def text_of(bare: bytes) -> str:
    """A message's id, if its body is the one that it was sent with."""
    text = str(Message.parse(bare).properties.message_id)
    assert b"body of " + text.encode() in bare
    return text


@dataclass(eq=False)
class Taker:
    """One who receives: as many as it wants."""

    wants: int = 0
    deletes: bool = False
    got: list[tuple[str, bytes]] = field(default_factory=list)
    reserved: int = 0
    lost: RequestError | None = None

    def demand(self) -> int:
        return self.wants - self.reserved

    def reserve(self, count: int) -> None:
        self.reserved += count

    def deliver(self, entry: Entry, token: bytes, locked_until_ms: int) -> None:
        self.wants -= 1
        self.got.append((text_of(entry.bare), token))

    def lose(self, error: RequestError) -> None:
        self.lost = error

    @property
    def texts(self) -> list[str]:
        return [text for text, _ in self.got]

    @property
    def tokens(self) -> list[bytes]:
        return [token for _, token in self.got]


class Bus:
    """The namespace, and a disk that commits, refuses or dies when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "messages.db"
        self.now = START_MS
        self.open()

    def open(self) -> None:
        self.store = Store(self.path)
        self.namespace = Namespace("home", self.store, [root_rule("a2V5")])
        self.directory = self.namespace.directory

    def reopen(self) -> None:
        """As after kill -9: what was not committed is gone."""
        self.store.close()
        self.open()

    def close(self) -> None:
        self.store.close()

    # -- the disk

    def write(self) -> Batch:
        """A batch reaches the disk, and nobody has been told yet."""
        batch = self.store.take_batch()
        self.store.apply(batch)
        self.store.commit()
        return batch

    def tell(self, batch: Batch, error: StoreError | None = None) -> None:
        self.namespace.committed(batch, error, self.now)

    def commit(self) -> None:
        while self.store.batch:
            self.tell(self.write())

    def refuse(self) -> None:
        """The disk refuses what has gathered."""
        batch = self.store.take_batch()
        self.store.apply(batch)
        self.store.rollback()
        self.tell(batch, StoreError("the disk is full", full=True))

    def do(self, change: Callable[..., Any], *args: Any) -> None:
        """Make a change that calls back, and commit it."""
        answers: list[Exception | None] = []
        change(*args, answers.append)
        self.commit()
        assert answers == [None]

    def tick(self, later_ms: int = 0) -> None:
        self.now += later_ms
        self.namespace.tick(self.now)

    # -- entities and messages

    def queue(self, path: str) -> Queue:
        return self.directory.resolve(path)[1]

    def create_queue(self, path: str, **description: Any) -> None:
        self.do(self.directory.create_queue, path, QueueDescription(**description), self.now)

    def create_topic(self, path: str) -> None:
        self.do(self.directory.create_topic, path, TopicDescription(), self.now)

    def subscribe(self, topic: str, name: str, **description: Any) -> str:
        made = SubscriptionDescription(**description)
        self.do(self.directory.create_subscription, topic, name, made, None, self.now)
        return f"{topic}/Subscriptions/{name}"

    def delete(self, path: str) -> None:
        self.do(self.directory.delete, path)

    def send(self, path: str, *texts: str, ttl_ms: int | None = None) -> None:
        payloads = [message(text, ttl_ms) for text in texts]
        self.do(self.namespace.send, self.directory.entity(path), payloads, self.now)

    def take(self, path: str, wants: int = 100, *, deletes: bool = False) -> Taker:
        """Receive what is there, and go on receiving."""
        taker = Taker(wants, deletes)
        queue = self.queue(path)
        queue.add_consumer(taker)
        self.namespace.pump_queue(queue, self.now)
        return taker

    def texts(self, path: str) -> list[str]:
        return [text_of(entry.bare) for entry in self.queue(path).peek(0, 1_000)]

    def wrong(self) -> dict[str, list[Any]]:
        return wrong(self.store)
