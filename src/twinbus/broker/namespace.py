"""A namespace: what becomes of a message that is sent to it.

    send -> admit -> duplicate? dropped                                          `duplicates`
                  -> due later? kept until then                                  `housekeeping`
                  -> place -> topic?     a copy for each whose rules match       `publishing`
                           -> forwarded? on to the next entity                   `forwarding`
                           -> queue or subscription                              `queue`

Pure like the queue: told the time, awaiting nothing. The server calls `tick` now and then,
`committed` when a batch is on disk, and everything else on behalf of clients. Whatever one send
causes goes into one batch, so it happens whole or not at all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from twinbus.amqp import sections
from twinbus.amqp.message import Message, typed_properties, with_properties
from twinbus.amqp.types import CodecError
from twinbus.auth.access_rules import AccessRule
from twinbus.broker.batch import Batch
from twinbus.broker.burial import Burial
from twinbus.broker.dead_letters import DeadLetters
from twinbus.broker.descriptions import FOREVER, Description
from twinbus.broker.directory import Directory
from twinbus.broker.duplicates import Duplicates
from twinbus.broker.entity import Entity
from twinbus.broker.entry import LAST_MS, PING, SCHEDULED, Entry, lifetime
from twinbus.broker.forwarding import NO_SESSION, Forwarding
from twinbus.broker.housekeeping import Housekeeping
from twinbus.broker.publishing import publish
from twinbus.broker.queue import Done, Queue, nothing
from twinbus.broker.refusals import (
    EntityDisabledError,
    EntityNotFoundError,
    MessageError,
    NotAllowedError,
    QuotaError,
    StoreError,
    TooLargeError,
)
from twinbus.broker.served import NoRecords
from twinbus.broker.store import Store
from twinbus.broker.stored import pack_flags
from twinbus.health import Health
from twinbus.ledger import LedgerError, Operation

if TYPE_CHECKING:
    from twinbus.broker.trouble import Trouble

log = logging.getLogger("twinbus.broker")

Answer = Callable[[Any], None]
# A message as it will be stored, as it was sent, and whether the disk has seen its id here.
Admitted = tuple[Entry, Message, bool]

MAX_MESSAGE_BYTES = 262_144
MAX_ID = 128


class Tokens:
    """Lock tokens: 16 random bytes each, fetched from the system many at a time."""

    def __init__(self) -> None:
        self._pool = b""
        self._next = 0

    def __call__(self) -> bytes:
        if self._next >= len(self._pool):
            self._pool, self._next = os.urandom(16 * 256), 0
        start = self._next
        self._next = start + 16
        return self._pool[start : start + 16]


class Namespace:
    """The messages of one namespace. `directory` has its entities."""

    def __init__(
        self,
        name: str,
        store: Store,
        rules: list[AccessRule],
        *,
        new_token: Callable[[], bytes] | None = None,
        health: Health | None = None,
    ) -> None:
        self.name = name
        self.store = store
        self.health = health or Health(log, expected=(StoreError, LedgerError, OSError))
        self.new_token = new_token or Tokens()
        self.idle_link_ms = 0  # never, unless told otherwise
        self.trouble: Trouble | None = None  # there is one while a fault is on
        self.books = NoRecords()  # unless a ledger is kept
        self._awake: dict[Queue, None] = {}
        self._faltering: dict[Queue, None] = {}  # their turn comes again with the next tick
        self.duplicates = Duplicates(store)
        self.dead_letters = DeadLetters(self)
        self.forwarding = Forwarding(self)
        self._housekeeping = Housekeeping(self)
        self.directory = Directory(name, store, rules, self)
        self.directory.on_update = self.forwarding.updated
        for entity in self.directory.entities():
            self.forwarding.updated(entity)

    # -- taking messages in

    def send(self, entity: Entity, payloads: list[bytes], now_ms: int, done: Done) -> list[int]:
        """Store messages, all of them or none. Answers their sequence numbers.

        A message that has none (a ping, a duplicate, one that went on to another entity) is 0.
        """
        return self._take_all(entity, self.admit(entity, payloads, now_ms), now_ms, done)

    def schedule(self, entity: Entity, payloads: list[bytes], now_ms: int, done: Done) -> list[int]:
        """As `send`, by a request, which a ledger has another name for."""
        admitted = self.admit(entity, payloads, now_ms)
        return self._take_all(entity, admitted, now_ms, done, Operation.SCHEDULE)

    def send_later(
        self, entity: Entity, payloads: list[bytes], now_ms: int, due_ms: int, done: Done
    ) -> None:
        """As `send`, but none of them appears before a moment."""
        admitted = self.admit(entity, payloads, now_ms)
        for entry, _, _ in admitted:
            _postpone(entry, due_ms)
        self._take_all(entity, admitted, now_ms, done)

    def admit(self, entity: Entity, payloads: list[bytes], now_ms: int) -> list[Admitted]:
        """The whole check of messages that are sent here: raises if one of them cannot be taken.

        Changes nothing. A message is read as far as any later step will read it, and the disk is
        asked what it has to be asked, so that none of what follows can fail half-way.
        """
        self.check_can_send(entity)
        if not payloads:
            raise MessageError(f"The batch for '{entity.path}' has no messages.")
        admitted = []
        for payload in payloads:
            admitted.append(self._read(entity, payload, now_ms))  # noqa: PERF401  a call less
        return admitted

    def _take_all(
        self,
        entity: Entity,
        admitted: list[Admitted],
        now_ms: int,
        done: Done,
        operation: Operation = Operation.SEND,
    ) -> list[int]:
        entity.accessed_ms = now_ms
        self.books.sent(operation, entity, admitted)
        numbers = []
        left = len(admitted)
        for entry, message, seen in admitted:
            left -= 1  # they share one batch, so the last of them answers for all
            each_done = nothing if left else done
            numbers.append(self._take(entity, entry, message, seen, now_ms, each_done))
        return numbers

    @staticmethod
    def check_can_send(entity: Entity) -> None:
        """Raise unless messages can be sent to an entity now."""
        if entity.deleted:
            raise EntityNotFoundError(f"The messaging entity '{entity.path}' was deleted.")
        if not entity.may_send:
            entity.sized  # noqa: B018 (raises for a subscription)
            raise EntityDisabledError(f"'{entity.path}' is currently disabled for sending.")
        if entity.bytes >= entity.max_bytes:
            raise QuotaError(
                f"'{entity.path}' holds {entity.bytes} bytes, its maximum size is "
                f"{entity.sized.max_size_mb} MB. Receive messages, or raise the size."
            )

    def _read(self, entity: Entity, payload: bytes, now_ms: int) -> Admitted:
        """Read a message and make sure that this entity takes it."""
        if len(payload) > MAX_MESSAGE_BYTES:
            raise TooLargeError(
                f"The message for '{entity.path}' has {len(payload)} bytes; "
                f"the limit is {MAX_MESSAGE_BYTES}."
            )
        try:
            message = Message.parse(payload)
            due_ms = None if message.annotations is None else _due(message, now_ms)
            if message.properties.content_type != PING:
                self._check_ids(entity, message)
        except CodecError as error:
            raise MessageError(
                f"The message for '{entity.path}' cannot be read: {error}"
            ) from error
        entry = _entry(message, len(payload), due_ms, now_ms)
        message.ttl_ms = entry.ttl_ms
        seen = (
            entity.detects_duplicates
            and message.properties.content_type != PING
            and self.duplicates.has_seen(entity, message, now_ms)
        )
        return entry, message, seen

    @staticmethod
    def _check_ids(entity: Entity, message: Message) -> None:
        properties = message.properties
        if properties.message_id is None:
            properties = typed_properties(message.bare)
            properties.message_id = uuid4().hex
            message.bare = with_properties(message.bare, properties)
            message.properties = properties
        if len(str(properties.message_id)) > MAX_ID or len(properties.group_id or "") > MAX_ID:
            raise MessageError(
                f"A message id and a session id have at most {MAX_ID} characters each; "
                f"the message for '{entity.path}' has more."
            )
        if entity.needs_session and properties.group_id is None:
            raise NotAllowedError(
                f"'{entity.path}' requires sessions: set a session id on the message."
            )

    def _take(
        self, entity: Entity, entry: Entry, message: Message, seen: bool, now_ms: int, done: Done
    ) -> int:
        if message.properties.content_type == PING:
            # Nothing to keep, but it goes through the disk: a ping asks whether a send would work.
            self.store.batch.change(entity.id).pings += 1
            self.store.submit(done)
            return 0
        if entity.detects_duplicates:
            fresh = self.duplicates.note(entity, message, seen, now_ms, done)
            if fresh is None:
                return 0
            done = fresh
        if entry.state == SCHEDULED or entity.is_plain:
            return entity.queue.put(entry, done)
        return self.place(entity, entry, message, now_ms, done)

    # -- finding a message's place

    def place(self, entity: Entity, entry: Entry, message: Message, now_ms: int, done: Done) -> int:
        """Find the queues in which a message belongs, and put it there. Answers its number."""
        ttl_ms = _capped(entity.description, entry.ttl_ms)
        if ttl_ms != entry.ttl_ms:
            entry.ttl_ms = ttl_ms
            entry.expires_ms = None if ttl_ms is None else now_ms + ttl_ms
        if entity.topic is not None:
            self.store.batch.change(entity.id).arrived += 1
            return publish(self, entity, entry, message, now_ms, done)
        if entity.received.forward_to is not None:
            self.store.batch.change(entity.id).arrived += 1
            return self.forwarding.forward(entity, entry, message, now_ms, done)
        if entity.received.requires_session:
            entry.session = message.properties.group_id
            if entry.session is None:
                text = f"'{entity.path}' requires sessions, and the message names none."
                burial = Burial(entry, NO_SESSION, text)
                return self.dead_letters.put(entity.dead_letters, entity.path, burial, done)
        return entity.queue.put(entry, done)

    # -- waking

    def wake(self, queue: Queue) -> None:
        self._awake[queue] = None

    def pump(self, now_ms: int) -> None:
        """Hand out what has become ready."""
        while self._awake:
            queue = next(iter(self._awake))
            del self._awake[queue]
            self.pump_queue(queue, now_ms)

    def pump_queue(self, queue: Queue, now_ms: int) -> None:
        """Whoever asks for this is not to blame for what another's message or receiver does."""
        try:
            queue.pump(now_ms)
        except Exception as error:  # noqa: BLE001 - logged, counted, and tried again
            self.health.failed("delivery", queue.path, error)
            self._faltering[queue] = None
        if queue.has_locks:
            self._housekeeping.has_locks(queue)

    def tick(self, now_ms: int) -> None:
        """Time passes."""
        self._housekeeping.tick(now_ms)
        self._awake |= self._faltering
        self._faltering.clear()
        self.pump(now_ms)
        self._post(now_ms)

    def committed(self, batch: Batch, error: StoreError | None, now_ms: int) -> None:
        """The batch is on disk, or is not: tell everybody who has a part in it."""
        if error is None:
            self.health.attempt("counting", self.name, self._count, batch)
        for callback in batch.callbacks:
            try:
                callback(error)
            except Exception as broken:  # noqa: BLE001 - logged and counted; others wait to be told
                self.health.failed("answers", self.name, broken)
        self.pump(now_ms)
        self._post(now_ms)

    def _post(self, now_ms: int) -> None:
        self.health.attempt("ledger", self.name, self.books.post, now_ms)

    def _count(self, batch: Batch) -> None:
        for number, change in batch.changes.items():
            queue = self.directory.find(number)
            if queue is None:
                continue
            counts = queue.counts
            counts.active += change.active
            counts.deferred += change.deferred
            counts.scheduled += change.scheduled
            counts.bytes += change.bytes
            counts.pings += change.pings
            totals = queue.totals
            totals.messages_in += change.arrived
            totals.completed += change.completed
            totals.dead_lettered += change.dead_lettered
            topic = (queue.entity.parent or queue.entity).topic
            if topic is not None:
                topic.bytes += change.bytes
        self.books.committed(batch)


def _due(message: Message, now_ms: int) -> int | None:
    """When the sender wants the message to appear, if that is yet to come."""
    due_ms = message.annotation_map().get(sections.SCHEDULED)
    if not isinstance(due_ms, int) or due_ms <= now_ms:
        return None
    if due_ms > LAST_MS:
        raise CodecError(f"{sections.SCHEDULED} is later than the year 9999")
    return int(due_ms)


def _postpone(entry: Entry, due_ms: int) -> None:
    """Let a message appear at a moment, or later still if its sender wants that."""
    entry.due_ms = max(due_ms, entry.due_ms or 0)
    entry.state = SCHEDULED
    if entry.ttl_ms is not None:
        entry.expires_ms = entry.due_ms + entry.ttl_ms


def _entry(message: Message, size: int, due_ms: int | None, now_ms: int) -> Entry:
    ttl_ms = message.ttl_ms
    properties = message.properties
    if properties.absolute_expiry_time is not None and properties.creation_time is not None:
        # The header's TTL ends at 49 days; these two go further.
        span_ms = properties.absolute_expiry_time - properties.creation_time
        ttl_ms = max(span_ms, ttl_ms or 0)
    # To name each of its columns would take twice as long.
    entry = Entry(enqueued_ms=now_ms, size=size, bare=message.bare)
    entry.annotations = message.annotations
    entry.delivery_annotations = message.delivery_annotations
    if due_ms is not None:
        entry.state, entry.due_ms = SCHEDULED, due_ms
    if ttl_ms is not None:
        entry.ttl_ms, entry.expires_ms = lifetime(ttl_ms, due_ms or now_ms)
    if message.durable or message.priority is not None:
        entry.flags = pack_flags(message.durable, message.priority)
    return entry


def _capped(description: Description, ttl_ms: int | None) -> int | None:
    """The message's own time to live, with the entity's for a default and a ceiling."""
    if description.default_ttl >= FOREVER:
        return ttl_ms
    ceiling = int(description.default_ttl.total_seconds() * 1000)
    return ceiling if ttl_ms is None else min(ttl_ms, ceiling)
