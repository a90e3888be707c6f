"""A namespace: what becomes of a message that is sent to it, and the passing of time.

    send -> check -> duplicate? dropped
                  -> due later? kept until then
                  -> topic?     one copy for each subscription whose rules match
                  -> forwarded? on to the next entity, four times at the most
                  -> queue or subscription

Pure like the queue: told the time, awaiting nothing. The server calls `tick` now and then,
`committed` when a batch is on disk, and everything else on behalf of clients. Whatever one send
causes goes into one batch, so it happens whole or not at all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from twinbus.amqp import sections
from twinbus.amqp.incoming import Event
from twinbus.amqp.message import Message, typed_properties, with_properties
from twinbus.amqp.types import CodecError
from twinbus.auth.access_rules import AccessRule, Claim
from twinbus.broker.aside import LOST
from twinbus.broker.batch import Batch
from twinbus.broker.descriptions import FOREVER, Description
from twinbus.broker.directory import Directory
from twinbus.broker.entity import Entity
from twinbus.broker.entry import ACTIVE, SCHEDULED, Entry
from twinbus.broker.queue import Burial, Done, Queue, unreadable
from twinbus.broker.refusals import (
    EntityDisabledError,
    EntityNotFoundError,
    MessageError,
    NotAllowedError,
    QuotaError,
    RequestError,
    StoreError,
    TooLargeError,
)
from twinbus.broker.routing import Changed, read, rewrite
from twinbus.broker.store import Store
from twinbus.broker.stored import dead_letter, message_of, pack_flags
from twinbus.health import Health
from twinbus.ledger import LedgerError, Operation

if TYPE_CHECKING:
    from twinbus.broker.served import Bookkeeper

log = logging.getLogger("twinbus.broker")

Answer = Callable[[Any], None]
# A message as it will be stored, as it was sent, and whether the disk has seen its id here.
Admitted = tuple[Entry, Message, bool]

PING = "application/vnd.ms-servicebus-ping"
MAX_MESSAGE_BYTES = 262_144
MAX_ID = 128
LAST_MS = 253_402_300_799_999  # the end of the year 9999, where Service Bus's time ends
MAX_HOPS = 4
NO_SESSION = "Session ID is null."
# How many messages that lay in a queue when it began to forward are moved at a time.
MAX_FORWARDING = 100
_SWEEP = 1_000
_HOUSEKEEPING_MS = 10_000
# A message that could not be looked after is let be for so long, so that others have their turn.
_RETRY_MS = 10_000


class Trouble(Protocol):
    """What stands between a namespace and its clients while a fault is on; see `trouble`."""

    def intercept(self, client: Any, events: Iterator[Event]) -> Iterator[Event]:
        """What a client sent, without what is to come to nothing."""

    def admit(self, path: str, operation: str, claim: Claim, answer: Answer) -> Answer:
        """A request to an entity's ``$management``: raise, or tell where the answer goes."""

    async def before_managing(self, path: str) -> None:
        """A management request over HTTP: raise, or wait, before it is done."""

    async def before_answering(self, path: str) -> None:
        """It is done: wait before it is answered."""

    def commit_delay_s(self) -> float:
        """How much longer a commit takes. Raises StoreError where it fails."""

    def tick(self, now_ms: int) -> None: ...


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
        self.books: Bookkeeper | None = None  # there is one if a ledger is kept
        self._awake: dict[Queue, None] = {}
        self._faltering: dict[Queue, None] = {}  # their turn comes again with the next tick
        self._stuck: dict[tuple[int, int], int] = {}  # messages, and until when they are let be
        self._holding: dict[Queue, None] = {}
        self._pending_ids: dict[tuple[int, str], list[Done]] = {}
        self._next_housekeeping_ms = 0
        self._began_ms = 0  # the first tick says
        self._noted_ms: dict[int, int] = {}
        self.directory = Directory(name, store, rules, self)
        self.directory.on_update = self._updated
        for entity in self.directory.entities():
            self._updated(entity)

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
        self._check_can_send(entity)
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
        if self.books is not None:
            done = self.books.sending(operation, entity.path, admitted, done)
        numbers = []
        left = len(admitted)
        for entry, message, seen in admitted:
            left -= 1  # they share one batch, so the last of them answers for all
            each_done = nothing if left else done
            numbers.append(self._take(entity, entry, message, seen, now_ms, each_done))
        return numbers

    def _check_can_send(self, entity: Entity) -> None:
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
            and self._has_seen(entity, message, now_ms)
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
            fresh = self._note_id(entity, str(message.properties.message_id), seen, now_ms, done)
            if fresh is None:
                return 0
            done = fresh
        if entry.state == SCHEDULED or entity.is_plain:
            return entity.queue.put(entry, done)
        return self._place(entity, entry, message, now_ms, done)

    def _has_seen(self, entity: Entity, message: Message, now_ms: int) -> bool:
        """Whether the disk has the id of a message among those of this entity."""
        since_ms = now_ms - int(entity.sized.duplicate_window.total_seconds() * 1000)
        return self.store.has_seen(entity.id, str(message.properties.message_id), since_ms)

    def _note_id(
        self, entity: Entity, message_id: str, seen: bool, now_ms: int, done: Done
    ) -> Done | None:
        """Remember an id and answer the callback to store with; None if it is a duplicate.

        A duplicate of a message that is still on its way to the disk shares that one's fate: to
        accept it on its own would be to lose both if the first one failed.
        """
        key = (entity.id, message_id)
        waiting = self._pending_ids.get(key)
        if waiting is not None:
            entity.queue.tally.duplicates_dropped += 1
            waiting.append(done)
            return None
        if seen:
            entity.queue.tally.duplicates_dropped += 1
            self.store.submit(done)
            return None
        self.store.batch.remember_id(entity.id, message_id, now_ms)
        self._pending_ids[key] = [done]

        def committed(error: Exception | None) -> None:
            for each in self._pending_ids.pop(key):
                each(error)

        return committed

    # -- finding a message's place

    def _place(
        self, entity: Entity, entry: Entry, message: Message, now_ms: int, done: Done
    ) -> int:
        ttl_ms = _capped(entity.description, entry.ttl_ms)
        if ttl_ms != entry.ttl_ms:
            entry.ttl_ms = ttl_ms
            entry.expires_ms = None if ttl_ms is None else now_ms + ttl_ms
        if entity.topic is not None:
            self.store.batch.change(entity.id).arrived += 1
            return self._publish(entity, entry, message, now_ms, done)
        if entity.received.forward_to is not None:
            self.store.batch.change(entity.id).arrived += 1
            return self._forward(entity, entry, message, now_ms, done)
        if entity.received.requires_session:
            entry.session = message.properties.group_id
            if entry.session is None:
                text = f"'{entity.path}' requires sessions, and the message names none."
                burial = Burial(entry, NO_SESSION, text)
                self._put_dead(entity.dead_letters, entity.path, burial, done)
                return 0
        return entity.queue.put(entry, done)

    def _publish(
        self, entity: Entity, entry: Entry, message: Message, now_ms: int, done: Done
    ) -> int:
        """Give each subscription its copies. The bytes that several have are stored once."""
        topic = entity.topic
        assert topic is not None
        as_sent: list[Entity] = []
        changed: list[tuple[Entity, Changed]] = []
        facts = read(message)
        for name, match in topic.index.route(facts.properties):
            subscription = topic.subscriptions[name.lower()]
            if match.error is not None:
                self._bury_filter_error(subscription, entry, match.error)
            for copy in match.copies:
                if copy is None:
                    as_sent.append(subscription)
                    continue
                try:
                    changed.append((subscription, rewrite(message, facts, copy)))
                except Exception as error:  # noqa: BLE001 - an action's failure, as in `route`
                    self._bury_filter_error(subscription, entry, f"the action failed: {error}")
        # One that comes from another topic, by way of a subscription, may share its bytes already.
        if len(as_sent) > 1:
            self.store.share(entry)
        for subscription in as_sent:
            self._place(subscription, replace(entry), message, now_ms, nothing)
        for subscription, new in changed:
            copy_entry = replace(entry, bare=new.message.bare, body=None)
            copy_entry.annotations = new.message.annotations
            if new.ttl_ms is not None:
                copy_entry.ttl_ms, copy_entry.expires_ms = _lifetime(new.ttl_ms, now_ms)
            self._place(subscription, copy_entry, new.message, now_ms, nothing)
        self.store.submit(done)
        return 0

    def _bury_filter_error(self, subscription: Entity, entry: Entry, error: str) -> None:
        if getattr(subscription.description, "dead_lettering_on_filter_errors", False):
            burial = Burial(replace(entry), "FilterException", error)
            self._put_dead(subscription.dead_letters, subscription.path, burial)

    def _forward(
        self, source: Entity, entry: Entry, message: Message, now_ms: int, done: Done
    ) -> int:
        """Hand the message on. What cannot go on stays with the source, with the reason."""
        source.queue.last_sequence += 1
        self.store.batch.change(source.id).last_sequence = source.queue.last_sequence
        moved = replace(
            entry,
            hops=entry.hops + 1,
            origin_sequence=entry.origin_sequence or source.queue.last_sequence,
            session=None,
        )
        if moved.hops > MAX_HOPS:
            text = f"The message was forwarded {MAX_HOPS} times; that is the limit."
            burial = Burial(moved, "MaxTransferHopCountExceeded", text)
            self._put_dead(source.dead_letters, source.path, burial, done)
            return 0
        try:
            target = self._forward_target(source, message)
        except RequestError as error:
            reason = type(error).__name__.removesuffix("Error")
            burial = Burial(moved, reason, str(error))
            self._put_dead(source.transfer_dead_letters, source.path, burial, done)
            return 0
        if self.books is not None:
            done = self.books.forwarding(source.path, target.path, message, moved.size, done)
        if message.ttl_ms != moved.ttl_ms:  # an entity on its way has shortened it
            message = replace(message, ttl_ms=moved.ttl_ms)
        self._place(target, moved, message, now_ms, done)
        return 0

    def _forward_target(self, source: Entity, message: Message) -> Entity:
        target = self.directory.entity(str(source.received.forward_to))
        self._check_can_send(target)
        needs_session = getattr(target.description, "requires_session", False)
        if needs_session and message.properties.group_id is None:
            raise NotAllowedError(NO_SESSION)
        return target

    def _updated(self, entity: Entity) -> None:
        """Forward what was waiting when forwarding was turned on, and stop when it is off."""
        if entity.topic is not None:
            return
        forwarders = [c for c in entity.queue.consumers if isinstance(c, Forwarder)]
        for forwarder in forwarders:
            entity.queue.remove_consumer(forwarder)
        if entity.received.forward_to is not None and not entity.received.requires_session:
            entity.queue.add_consumer(Forwarder(self, entity))
        self.wake(entity.queue)

    def forward_waiting(self, source: Entity, entry: Entry, token: bytes, done: Done) -> None:
        """Move a message that lies in a forwarding queue: out of it and on, in one batch."""
        try:
            message = message_of(entry)
        except CodecError as error:
            fault = unreadable(error)
            source.queue.dead_letter(token, lambda whole: Burial(whole, *fault), done)
            return
        source.queue.complete(token, done)
        self.store.batch.change(source.id).completed -= 1  # by nobody who received it
        self._forward(source, replace(entry), message, entry.enqueued_ms, nothing)

    # -- dead letters

    def bury(self, queue: Queue, burial: Burial) -> None:
        """Move a message to the dead-letter queue, in the batch that takes it from its own."""
        found = self.directory.find(queue.entity)
        self.store.batch.delete(queue.entity, burial.entry)
        if found is None:
            return  # the entity was deleted, and its dead-letter queue with it
        entity, _ = found
        if entity.topic is not None:  # it has no dead-letter queue that anybody could look into
            for subscription in entity.topic.subscriptions.values():
                self._put_dead(subscription.dead_letters, queue.path, burial)
            return
        target = entity.received.forward_dead_letters_to
        if target is None or queue is not entity.queue:
            self._put_dead(entity.dead_letters, queue.path, burial)
            return
        try:
            self._forward_dead(entity, queue.path, burial)
        except RequestError as error:
            note = f"{burial.description} (not forwarded to '{target}': {error})"
            self._put_dead(entity.dead_letters, queue.path, replace(burial, description=note))

    def _forward_dead(self, entity: Entity, path: str, burial: Burial) -> None:
        target = self.directory.entity(str(entity.received.forward_dead_letters_to))
        self._check_can_send(target)
        dead = dead_letter(burial, path)
        message = message_of(dead)
        if (
            getattr(target.description, "requires_session", False)
            and not message.properties.group_id
        ):
            raise NotAllowedError(NO_SESSION)
        self.store.batch.change(entity.id).dead_lettered += 1
        done = self._noted(path, burial, nothing)
        if self.books is not None:
            done = self.books.forwarding(path, target.path, message, dead.size, done)
        self._place(target, dead, message, dead.enqueued_ms, done)

    def _put_dead(
        self, queue: Queue, source: str, burial: Burial, done: Done | None = None
    ) -> None:
        found = self.directory.find(queue.entity)
        if found is not None:
            self.store.batch.change(found[0].id).dead_lettered += 1
        queue.put(dead_letter(burial, source), self._noted(source, burial, done or nothing))

    def _noted(self, source: str, burial: Burial, done: Done) -> Done:
        if self.books is None or burial.is_asked:
            return done
        return self.books.burying(source, burial.entry, done)

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
        if queue.is_held:
            self._holding[queue] = None

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
        if self.books is not None:
            self.health.attempt("ledger", self.name, self.books.post, now_ms)

    def _count(self, batch: Batch) -> None:
        for number, change in batch.changes.items():
            found = self.directory.find(number)
            if found is None:
                continue
            entity, queue = found
            counts = queue.counts
            counts.active += change.active
            counts.deferred += change.deferred
            counts.scheduled += change.scheduled
            counts.bytes += change.bytes
            counts.pings += change.pings
            tally = queue.tally
            tally.messages_in += change.arrived
            tally.completed += change.completed
            tally.dead_lettered += change.dead_lettered
            topic = (entity.parent or entity).topic
            if topic is not None:
                topic.bytes += change.bytes

    # -- time

    def tick(self, now_ms: int) -> None:
        """Let locks expire, scheduled messages become active, and messages die of age.

        What one entity or one message has wrong keeps no other from being looked after.
        """
        attempt = self.health.attempt
        attempt("lost messages", self.name, self._set_lost_aside, now_ms)
        for queue in list(self._holding):
            attempt("locks", queue.path, self._expire_locks, queue, now_ms)
        attempt("schedule", self.name, self._sweep_due, now_ms)
        attempt("expiry", self.name, self._sweep_expired, now_ms)
        self._began_ms = self._began_ms or now_ms
        if now_ms >= self._next_housekeeping_ms:
            self._next_housekeeping_ms = now_ms + _HOUSEKEEPING_MS
            for entity in list(self.directory.entities()):
                attempt("housekeeping", entity.path, self._keep_house, entity, now_ms)
            # Those that were not met again are gone, or are due no longer.
            late_ms = now_ms - _RETRY_MS
            self._stuck = {key: at_ms for key, at_ms in self._stuck.items() if at_ms > late_ms}
        self._awake |= self._faltering
        self._faltering.clear()
        self.pump(now_ms)
        self._post(now_ms)

    def _expire_locks(self, queue: Queue, now_ms: int) -> None:
        queue.expire_locks(now_ms)
        if not queue.is_held:
            del self._holding[queue]

    def _sweep_due(self, now_ms: int) -> None:
        for number, sequence in self.store.due(now_ms, _SWEEP + len(self._stuck)):
            self._look_after("schedule", number, sequence, self._activate, now_ms)

    def _sweep_expired(self, now_ms: int) -> None:
        most = _SWEEP + len(self._stuck) + sum(len(queue.held) for queue in self._holding)
        for number, sequence in self.store.expired(now_ms, most):
            self._look_after("expiry", number, sequence, self._expire_stored, now_ms)

    def _look_after(
        self,
        what: str,
        number: int,
        sequence: int,
        act: Callable[[int, int, int], None],
        now_ms: int,
    ) -> None:
        """Do to a message what is due, whole or not at all, or let it be for a while."""
        key = (number, sequence)
        if self._stuck.get(key, 0) > now_ms:
            return
        try:
            with self.store.whole():
                act(number, sequence, now_ms)
        except Exception as error:  # noqa: BLE001 - logged, counted, and tried again
            self._stuck[key] = now_ms + _RETRY_MS
            found = self.directory.find(number)
            self.health.failed(what, self.name if found is None else found[1].path, error)
        else:
            self._stuck.pop(key, None)

    def _expire_stored(self, number: int, sequence: int, now_ms: int) -> None:
        found = self.directory.find(number)
        if found is not None:
            found[1].expire_stored(sequence)

    def _set_lost_aside(self, now_ms: int) -> None:
        """Messages whose bytes the file does not have: nobody can be given them."""
        for number, entry in self.store.take_lost():
            found = self.directory.find(number)
            if found is not None:
                found[1].set_aside(entry, LOST, now_ms)

    def _activate(self, number: int, sequence: int, now_ms: int) -> None:
        """A scheduled message's time has come: it is placed as if it were sent now."""
        found = self.directory.find(number)
        if found is None or sequence in found[1].held:
            return
        entity, queue = found
        if entity.deleted:
            return
        entry = self.store.get(number, sequence)
        if entry is None or entry.state != SCHEDULED:
            return
        try:
            message = message_of(entry)
        except CodecError as error:
            queue.give_up(entry, error)
            return
        self.store.batch.delete(number, entry).arrived -= 1  # it arrived when it was scheduled
        active = replace(entry, state=ACTIVE, due_ms=None, enqueued_ms=now_ms)
        active.expires_ms = None if entry.ttl_ms is None else now_ms + entry.ttl_ms

        def done(error: Exception | None) -> None:
            queue.held.pop(sequence, None)

        self._place(entity, active, message, now_ms, done)
        # Held until the move is on disk, so that the next look does not move it again.
        queue.held[sequence] = b""

    def _keep_house(self, entity: Entity, now_ms: int) -> None:
        """Forget old message ids, note whether it was used, and delete it if it was not."""
        if entity.detects_duplicates:
            self._forget_ids(entity, now_ms)
        if self._noted_ms.get(entity.id, entity.updated_ms) < entity.accessed_ms:
            self._noted_ms[entity.id] = entity.accessed_ms
            self.store.batch.note_use(entity.id, entity.accessed_ms)
            self.store.submit(nothing)
        if entity.is_idle(now_ms, self._began_ms):
            self.directory.delete(entity.path, nothing)

    def _forget_ids(self, entity: Entity, now_ms: int) -> None:
        before_ms = now_ms - int(entity.sized.duplicate_window.total_seconds() * 1000)
        if self.store.has_ids_until(entity.id, before_ms):
            self.store.batch.forget_ids(entity.id, before_ms)
            self.store.submit(nothing)


class Forwarder:
    """Takes what lies in a forwarding queue and hands it on."""

    deletes = False

    def __init__(self, namespace: Namespace, source: Entity) -> None:
        self._namespace = namespace
        self._source = source
        self._under_way: set[bytes] = set()

    def demand(self) -> int:
        return MAX_FORWARDING - len(self._under_way)

    def reserve(self, count: int) -> None:
        """Never asked: it locks what it takes."""

    def deliver(self, entry: Entry, token: bytes, locked_until_ms: int) -> None:
        self._under_way.add(token)
        try:
            with self._namespace.store.whole():
                moved = partial(self._moved, token)
                self._namespace.forward_waiting(self._source, entry, token, moved)
        except BaseException:
            self._under_way.discard(token)
            raise

    def _moved(self, token: bytes, error: Exception | None) -> None:
        """It is on disk in its new place, or still locked in the old one until the lock expires."""
        self._under_way.discard(token)
        self._namespace.wake(self._source.queue)

    def lose(self, error: RequestError) -> None:
        """It holds nothing."""


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
        entry.ttl_ms, entry.expires_ms = _lifetime(ttl_ms, due_ms or now_ms)
    if message.durable or message.priority is not None:
        entry.flags = pack_flags(message.durable, message.priority)
    return entry


def _lifetime(ttl_ms: int, from_ms: int) -> tuple[int | None, int | None]:
    """A time to live and when it ends; beyond what a timestamp can say a message never expires."""
    if from_ms + ttl_ms > LAST_MS:
        return None, None
    return ttl_ms, from_ms + ttl_ms


def _capped(description: Description, ttl_ms: int | None) -> int | None:
    """The message's own time to live, with the entity's for a default and a ceiling."""
    if description.default_ttl >= FOREVER:
        return ttl_ms
    ceiling = int(description.default_ttl.total_seconds() * 1000)
    return ceiling if ttl_ms is None else min(ttl_ms, ceiling)


def nothing(error: Exception | None) -> None:
    """Nobody waits for this one: another change of the same batch answers for it, or it is the
    broker's own housekeeping, which is tried again at the next turn."""
