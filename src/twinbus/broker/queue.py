"""A queue: what is ready, who holds a lock on what, and what settling means.

    put ---------> READY --deliver--> LOCKED --complete--> gone
    schedule       ^  ^                 | | |--defer-----> DEFERRED (by sequence number only)
      --> SCHEDULED   +---abandon-------+ |--dead_letter-> dead-letter queue
          (when due)  +---lock expired--+

Pure: it awaits nothing, opens nothing and is told the time in milliseconds. Changes go into the
store's batch, and the queue's own memory changes only when the batch is on disk: each operation
takes ``done``, which is called then, with an error if the disk refused. A lock lives in memory
alone, so a restart releases it.

Not guaranteed: strict order once a message comes back. A message that is abandoned is delivered
again before younger ones that are still waiting, not before those already handed out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from twinbus.amqp.message import Message, application_properties, with_application_properties
from twinbus.amqp.types import CodecError, encode_map
from twinbus.broker.descriptions import QueueDescription, SubscriptionDescription
from twinbus.broker.entry import ACTIVE, DEFERRED, SCHEDULED, Entry
from twinbus.broker.refusals import (
    ArgumentError,
    EntityNotFoundError,
    LockLostError,
    MessageNotFoundError,
    RequestError,
    StoreError,
)
from twinbus.broker.store import Store
from twinbus.broker.window import PAGE_BYTES, Window
from twinbus.health import each

Received = QueueDescription | SubscriptionDescription
Done = Callable[[Exception | None], None]
Changes = dict[str, object]
# A settlement of which nothing can go wrong any more but the disk.
Settle = Callable[[Done], None]

EXPIRED = ("TTLExpiredException", "The message expired and was dead lettered.")
MAX_DELIVERIES = "MaxDeliveryCountExceeded"
UNREADABLE = "UnreadableMessage"


class Consumer(Protocol):
    """One who receives. ``deletes`` is receive-and-delete; otherwise peek-lock."""

    deletes: bool

    def demand(self) -> int:
        """How many messages it would take now."""

    def reserve(self, count: int) -> None:
        """So many are on their way (or, if negative, are not after all)."""

    def deliver(self, entry: Entry, token: bytes, locked_until_ms: int) -> None:
        """Take one."""

    def lose(self, error: RequestError) -> None:
        """There will be no more, and this is why."""


class Letter(NamedTuple):
    """Which message it is and, if that is elsewhere, where it belongs: for a ledger."""

    message_id: Any
    destination: str | None


@dataclass(slots=True, eq=False)
class Lock:
    """Somebody's right to settle one message."""

    token: bytes
    entry: Entry
    until_ms: int
    owner: Holder | None = None
    busy: bool = False  # its settlement is on the way to the disk
    letter: Letter | None = None  # if a ledger is kept


class Holder(Protocol):
    """A session that holds locks; the lock ends when the session's does."""

    until_ms: int
    window: Window
    tokens: set[bytes]


@dataclass(slots=True)
class Counts:
    """How many messages there are, and how large they are together."""

    active: int = 0
    deferred: int = 0
    scheduled: int = 0
    bytes: int = 0
    pings: int = 0

    @property
    def total(self) -> int:
        return self.active + self.deferred + self.scheduled


@dataclass(slots=True)
class Tally:
    """What has happened to a queue's messages since the broker started; `metrics` tells it."""

    messages_in: int = 0
    messages_out: int = 0
    completed: int = 0
    dead_lettered: int = 0
    duplicates_dropped: int = 0
    receive_requests: int = 0
    empty_receives: int = 0


@dataclass(slots=True)
class Burial:
    """A message on its way to a dead-letter queue, and why."""

    entry: Entry
    reason: str | None
    description: str | None
    properties: Changes = field(default_factory=dict)
    is_asked: bool = False  # by a receiver, whose settlement it is

    def notes(self) -> Changes:
        """What is written on the message."""
        notes = dict(self.properties)
        if self.reason is not None:
            notes["DeadLetterReason"] = self.reason
        if self.description is not None:
            notes["DeadLetterErrorDescription"] = self.description
        return notes


def unreadable(error: CodecError) -> tuple[str, str]:
    """Why a message is given up that was stored before its bytes were looked into."""
    return UNREADABLE, f"The message cannot be read: {error}."


class Queue:
    """One store of messages: a queue, a subscription, or the dead-letter queue of one."""

    def __init__(
        self,
        entity: int,
        path: str,
        description: Received,
        store: Store,
        *,
        last_sequence: int,
        new_token: Callable[[], bytes],
        bury: Callable[[Queue, Burial], None],
        wake: Callable[[Queue], None],
    ) -> None:
        self.entity = entity
        self.path = path
        self.description = description
        self.store = store
        self.counts = Counts()
        self.tally = Tally()
        self.last_sequence = last_sequence
        self.consumers: list[Consumer] = []
        self.locks: dict[bytes, Lock] = {}
        self.held: dict[int, bytes] = {}
        self.closed = False  # from when its deletion is on the way to the disk
        self._new_token = new_token
        self._bury = bury
        self._wake = wake
        self._window = Window(self._load, self._get, self.held, last_sequence)

    def check_open(self) -> None:
        if self.closed:
            raise EntityNotFoundError(f"The messaging entity '{self.path}' was deleted.")

    # -- putting in

    def put(self, entry: Entry, done: Done) -> int:
        """Give the message a sequence number and store it. Answers that number.

        Also where it is closed: if the deletion comes about, the store has no place for the
        message, and if the disk refuses that, the message belongs here.
        """
        self.last_sequence = sequence = self.last_sequence + 1
        entry.sequence = sequence
        self.store.batch.insert(self.entity, entry)

        def committed(error: StoreError | None) -> None:
            if error is None and entry.state == ACTIVE:
                self.arrive(entry)
            done(error)

        self.store.submit(committed)
        return sequence

    def arrive(self, entry: Entry) -> None:
        if self.consumers:
            self._window.arrive(entry, wanted=True)
            self._wake(self)
        else:
            self._window.note(entry.sequence)

    def cancel(self, sequences: list[int], done: Done) -> None:
        """Take scheduled messages back: all of them or, if one is not there, none."""
        self.check_open()
        entries = []
        for sequence in dict.fromkeys(sequences):
            entry = self._get(sequence)
            if entry is None or entry.state != SCHEDULED or sequence in self.held:
                raise MessageNotFoundError(
                    f"'{self.path}' has no scheduled message with sequence number {sequence}"
                )
            entries.append(entry)
        for entry in entries:
            self.store.batch.delete(self.entity, entry)
            self.held[entry.sequence] = b""  # or it might become due, or be cancelled twice
        self.store.submit(lambda error: self._deleted(entries, error, done))

    # -- handing out

    def add_consumer(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
        if not self.consumers:
            self._window.shed()

    def dismissed(self) -> list[Consumer]:
        """All who receive from it, who no longer do."""
        consumers, self.consumers = self.consumers, []
        return consumers

    def forget(self) -> None:
        """It is deleted: there is nothing left that somebody could hold."""
        self.locks.clear()
        self.held.clear()

    @property
    def in_use(self) -> bool:
        return bool(self.consumers or self.locks)

    def pump(self, now_ms: int) -> None:
        """Hand out what is ready to those who want it, in turn.

        Who fails is passed over until the next time. The others have their turn, then it is raised.
        """
        if self.closed:
            return
        waiting = list(self.consumers)
        failed: Exception | None = None
        while waiting:
            still = []
            for consumer in waiting:
                try:
                    if self.serve(consumer, self._window, now_ms, once=len(waiting) > 1):
                        still.append(consumer)
                except StoreError:
                    raise  # what cannot be read for one cannot be read for anybody
                except Exception as error:  # noqa: BLE001 - raised below
                    failed = failed or error
            waiting = still
        if failed is not None:
            raise failed

    def serve(
        self,
        consumer: Consumer,
        window: Window,
        now_ms: int,
        owner: Holder | None = None,
        *,
        once: bool = False,
    ) -> bool:
        """Hand one consumer what it wants, or one message of that. Whether it may want more."""
        while consumer.demand() > 0:
            entry = self.take(window, now_ms)
            if entry is None:
                return False
            self.hand(entry, consumer, now_ms, owner)
            if once:
                return True
        return False

    def take(self, window: Window, now_ms: int) -> Entry | None:
        """The next message that has not expired and can be handed out; others are dealt with."""
        while True:
            entry = window.next()
            if entry is None:
                return None
            # By its number: the sweep may have found it on disk since this page was read.
            if entry.expires_ms is not None and entry.expires_ms <= now_ms:
                self.expire_stored(entry.sequence)
            elif not self._can_be_read(entry):
                self._give_up_stored(entry.sequence)
            else:
                return entry

    @staticmethod
    def _can_be_read(entry: Entry) -> bool:
        """Whether it can be handed out, for which nothing but its annotations is decoded."""
        if entry.annotations is None and entry.delivery_annotations is None:
            return True
        return annotation_fault(entry) is None

    def hand(
        self, entry: Entry, consumer: Consumer, now_ms: int, owner: Holder | None = None
    ) -> None:
        if consumer.deletes:
            self._hand_for_good(entry, consumer)
            return
        lock = self.lock(entry, now_ms, owner)
        try:
            # If this fails the lock stands, and ends in its time: a delivery that failed, like any
            # other, so that a message which nobody can be given is given up in the end.
            consumer.deliver(entry, lock.token, lock.until_ms)
        finally:
            # The bytes are on disk; prefetching clients must not fill our memory with them.
            entry.bare, entry.annotations = b"", None

    def lock(self, entry: Entry, now_ms: int, owner: Holder | None = None) -> Lock:
        until_ms = owner.until_ms if owner else now_ms + self._lock_ms
        lock = Lock(self._new_token(), entry, until_ms, owner)
        self.locks[lock.token] = lock
        self.held[entry.sequence] = lock.token
        if owner is not None:
            owner.tokens.add(lock.token)
        return lock

    @property
    def _lock_ms(self) -> int:
        return int(self.description.lock_duration.total_seconds() * 1000)

    def _hand_for_good(self, entry: Entry, consumer: Consumer) -> None:
        """Receive-and-delete: gone from the disk before it goes out, so never delivered twice."""
        token = self._new_token()
        self.held[entry.sequence] = token
        self.store.batch.delete(self.entity, entry)
        consumer.reserve(1)

        def committed(error: StoreError | None) -> None:
            self.held.pop(entry.sequence, None)
            consumer.reserve(-1)
            if error is None:
                consumer.deliver(entry, token, 0)
            else:
                self.come_back(entry)

        self.store.submit(committed)

    # -- settling

    def complete(self, token: bytes, done: Done) -> None:
        lock = self._find(token)
        self.store.batch.delete(self.entity, lock.entry).completed += 1
        self._finish(lock, done, comes_back=False)

    def abandon(
        self, token: bytes, now_ms: int, done: Done, changes: Changes | None = None
    ) -> None:
        """Let another have it; a message that failed often enough is dead-lettered instead."""
        self.abandoning(token, now_ms, changes)(done)

    def abandoning(self, token: bytes, now_ms: int, changes: Changes | None = None) -> Settle:
        """All of `abandon` that may fail; what is left to do is answered."""
        lock = self._find(token)
        return self._returning(lock, lock.entry.delivery_count + 1, now_ms, changes)

    def release(self, token: bytes, now_ms: int, done: Done) -> None:
        """Hand it back unseen: the delivery does not count."""
        lock = self._find(token)
        if lock.entry.expires_ms is not None and lock.entry.expires_ms <= now_ms:
            self._returning(lock, lock.entry.delivery_count, now_ms)(done)
            return
        self._unlock(lock)
        if lock.entry.state == ACTIVE:
            self.come_back(lock.entry)
        done(None)

    def defer(self, token: bytes, done: Done, changes: Changes | None = None) -> None:
        self.deferring(token, changes)(done)

    def deferring(self, token: bytes, changes: Changes | None = None) -> Settle:
        lock = self._find(token)
        count = lock.entry.delivery_count + 1
        whole, fault = self._changed(lock.entry, changes)
        if fault is not None:
            return self._burying(lock, whole, count, *fault)

        def settle(done: Done) -> None:
            if whole is not None:
                self.store.batch.rewrite(self.entity, whole, whole.bare)
            self.store.batch.restate(self.entity, lock.entry, DEFERRED, count)
            self._finish(lock, done, comes_back=False)

        return settle

    def dead_letter(self, token: bytes, burial: Callable[[Entry], Burial], done: Done) -> None:
        self.dead_lettering(token, burial)(done)

    def dead_lettering(self, token: bytes, burial: Callable[[Entry], Burial]) -> Settle:
        lock = self._find(token)
        whole = self._get(lock.entry.sequence)
        if whole is None:
            raise LockLostError(f"the message of '{self.path}' is no longer there")
        whole.delivery_count += 1
        made = burial(whole)
        self._check_changes(made.notes())
        return partial(self._settle_buried, lock, made)

    def _changed(
        self, entry: Entry, changes: Changes | None
    ) -> tuple[Entry | None, tuple[str, str] | None]:
        """The whole message with changed properties, or why it cannot be changed."""
        if not changes:
            return None, None
        self._check_changes(changes)
        whole = self._get(entry.sequence)
        if whole is None:
            return None, None
        try:
            items = {**application_properties(whole.bare), **changes}
            whole.bare = with_application_properties(whole.bare, items)
        except CodecError as error:
            return whole, unreadable(error)
        return whole, None

    def _check_changes(self, changes: Changes) -> None:
        try:
            encode_map(changes)
        except CodecError as error:
            raise ArgumentError(
                f"The properties for a message of '{self.path}' cannot be encoded: {error}"
            ) from error

    def check_locks(self, tokens: list[bytes]) -> None:
        """Raise unless every one of these locks can be settled now."""
        for token in tokens:
            self._find(token)

    def renew(self, token: bytes, now_ms: int) -> int:
        """Start the lock's time anew; answers when it ends."""
        lock = self._find(token)
        if lock.owner is not None:
            return lock.owner.until_ms
        del self.locks[token]  # to the end: the dictionary is in order of expiry
        lock.until_ms = now_ms + self._lock_ms
        self.locks[token] = lock
        return lock.until_ms

    def _find(self, token: bytes) -> Lock:
        self.check_open()
        lock = self.locks.get(token)
        if lock is None or lock.busy:
            raise LockLostError(
                "The lock supplied is invalid. Either the lock expired, or the message has "
                f"already been removed from the queue '{self.path}'."
            )
        return lock

    def _returning(
        self, lock: Lock, count: int, now_ms: int, changes: Changes | None = None
    ) -> Settle:
        entry = lock.entry
        ready = entry.state == ACTIVE
        expired = ready and entry.expires_ms is not None and entry.expires_ms <= now_ms
        whole, fault = self._changed(entry, changes)
        if ready and count >= self.description.max_delivery_count:
            text = f"Message could not be consumed after {count} delivery attempts."
            fault = fault or (MAX_DELIVERIES, text)
        elif expired and self.description.dead_lettering_on_expiration:
            fault = fault or EXPIRED
        if fault is not None:
            return self._burying(lock, whole, count, *fault)

        def settle(done: Done) -> None:
            if expired:
                self.store.batch.delete(self.entity, entry)
            else:
                if whole is not None:
                    self.store.batch.rewrite(self.entity, whole, whole.bare)
                self.store.batch.restate(self.entity, entry, entry.state, count)
            self._finish(lock, done, comes_back=not expired)

        return settle

    def _burying(
        self, lock: Lock, whole: Entry | None, count: int, reason: str, text: str
    ) -> Settle:
        """``whole`` is the message with its bytes, if they have been read: a lock has none."""
        found = whole or self._get(lock.entry.sequence)
        if found is None:  # it has lost its bytes, and is set aside
            return partial(self._settle_buried, lock, None)
        burial = Burial(replace(found, delivery_count=count), reason, text)
        return partial(self._settle_buried, lock, burial)

    def _settle_buried(self, lock: Lock, burial: Burial | None, done: Done) -> None:
        if burial is not None:
            self._bury(self, burial)
        self._finish(lock, done, comes_back=False)

    def _finish(self, lock: Lock, done: Done, *, comes_back: bool) -> None:
        """The last step of a settlement: nothing that may fail comes after it."""
        lock.busy = True

        def committed(error: StoreError | None) -> None:
            if error is not None:
                lock.busy = False  # the lock stands; it expires like any other
            else:
                self._unlock(lock)
                if comes_back and lock.entry.state == ACTIVE:
                    self.come_back(lock.entry)
            done(error)

        self.store.submit(committed)

    def _unlock(self, lock: Lock) -> None:
        self.locks.pop(lock.token, None)
        self.held.pop(lock.entry.sequence, None)
        if lock.owner is not None:
            lock.owner.tokens.discard(lock.token)

    def come_back(self, entry: Entry) -> None:
        """A message that was handed out is ready again."""
        self._window.give_back(entry.sequence)
        self._wake(self)

    # -- time

    def expire_locks(self, now_ms: int) -> None:
        """Take back what was locked and not settled in time. Sessions look after their own."""
        if self.closed:
            return
        late = []
        for lock in self.locks.values():
            if lock.until_ms > now_ms:
                break
            if not lock.busy and lock.owner is None:
                late.append(lock)
        each(partial(self.take_back, now_ms=now_ms), late)

    def take_back(self, lock: Lock, now_ms: int) -> None:
        """Nobody settled it, and nobody is told."""
        if self.closed:
            return
        with self.store.whole():
            self.abandon(lock.token, now_ms, _ignore)

    def release_locks(self, now_ms: int) -> None:
        """Forget who holds what, as a restart does: no delivery is counted."""
        if self.closed:
            return
        for lock in list(self.locks.values()):
            if not lock.busy:
                self.release(lock.token, now_ms, _ignore)

    def reorder_locks(self) -> None:
        """Sort the locks by expiry again, after the lock duration was changed."""
        self.locks = dict(sorted(self.locks.items(), key=lambda item: item[1].until_ms))

    def expire(self, entry: Entry) -> None:
        """The message's time to live is over."""
        keeps = self.description.dead_lettering_on_expiration and entry.state != SCHEDULED
        self._take_out(entry, Burial(entry, *EXPIRED) if keeps else None)

    def give_up(self, entry: Entry, error: CodecError) -> None:
        """The message cannot be read: it is set aside, before it stops anybody."""
        self._take_out(entry, Burial(entry, *unreadable(error)))

    def _take_out(self, entry: Entry, burial: Burial | None) -> None:
        """Remove a message that nobody holds. What is buried comes with its bytes."""
        if burial is None:
            self.store.batch.delete(self.entity, entry)
        else:
            self._bury(self, burial)
        self.held[entry.sequence] = self._new_token()

        def committed(error: StoreError | None) -> None:
            self.held.pop(entry.sequence, None)
            if error is not None and entry.state == ACTIVE:
                self.come_back(entry)

        self.store.submit(committed)

    def expire_stored(self, sequence: int) -> bool:
        """The sweep found an expired message; a locked one waits until its lock ends."""
        entry = self._untouched(sequence)
        if entry is not None:
            self.expire(entry)
        return entry is not None

    def _give_up_stored(self, sequence: int) -> None:
        entry = self._untouched(sequence)
        error = annotation_fault(entry) if entry is not None else None
        if entry is not None and error is not None:
            self.give_up(entry, error)

    def _untouched(self, sequence: int) -> Entry | None:
        """The message as the disk has it, unless somebody holds it or it is on its way out."""
        return None if self.closed or sequence in self.held else self._get(sequence)

    def set_aside(self, entry: Entry, reason: str, now_ms: int) -> None:
        """Take a message out of reach for good, unless somebody holds it: then its turn comes."""
        if self.closed or entry.sequence in self.held:
            return
        self.held[entry.sequence] = b""
        self.store.batch.set_aside(self.entity, entry, reason, now_ms)
        self.store.submit(lambda error: self._deleted([entry], error, _ignore))

    def purge(
        self, limit: int, before_ms: int, now_ms: int, owner: Holder | None, done: Done
    ) -> int:
        """Delete ready messages that were enqueued before a moment; answers how many."""
        self.check_open()
        window = self._window if owner is None else owner.window
        entries: list[Entry] = []
        try:
            while len(entries) < limit:
                entry = self.take(window, now_ms)
                if entry is None:
                    break
                if entry.enqueued_ms >= before_ms:
                    window.give_back(entry.sequence)
                    break
                entries.append(entry)
        except StoreError:
            for entry in entries:
                window.give_back(entry.sequence)
            raise
        for entry in entries:
            self.held[entry.sequence] = b""
            self.store.batch.delete(self.entity, entry)
        if entries:
            self.store.submit(lambda error: self._purged(entries, error, done))
        return len(entries)

    def _purged(self, entries: list[Entry], error: StoreError | None, done: Done) -> None:
        self._deleted(entries, error, done)
        if error is not None:
            for entry in entries:
                self.come_back(entry)

    # -- looking, and receiving by number

    def peek(self, start: int, limit: int, session: str | None = None) -> list[Entry]:
        """Messages of any state in order, whoever holds them; none of them changes."""
        return self.store.browse(self.entity, start, limit, PAGE_BYTES, session)

    def receive_deferred(
        self, sequences: list[int], now_ms: int, *, deletes: bool, owner: Holder | None, done: Done
    ) -> list[tuple[Entry, bytes, int]]:
        """Lock, or delete, deferred messages: all of them or, if one is not there, none."""
        self.check_open()
        entries = []
        for sequence in dict.fromkeys(sequences):
            entry = self._get(sequence)
            if entry is None or entry.state != DEFERRED or sequence in self.held:
                raise MessageNotFoundError(
                    f"Failed to lock one or more specified messages of '{self.path}'. "
                    f"The message with sequence number {sequence} does not exist."
                )
            entries.append(entry)
        faults = [(entry, annotation_fault(entry)) for entry in entries]
        for entry, error in faults:
            if error is not None:
                self.give_up(entry, error)
        if any(error is not None for _, error in faults):
            raise MessageNotFoundError(
                f"Failed to lock one or more specified messages of '{self.path}'. A message that "
                "cannot be read does not exist any more; it is in the dead-letter queue."
            )
        if not deletes:
            locks = [self.lock(entry, now_ms, owner) for entry in entries]
            done(None)
            return [(lock.entry, lock.token, lock.until_ms) for lock in locks]
        for entry in entries:
            self.store.batch.delete(self.entity, entry)
            self.held[entry.sequence] = b""
        self.store.submit(lambda error: self._deleted(entries, error, done))
        return [(entry, bytes(16), 0) for entry in entries]

    def _deleted(self, entries: list[Entry], error: StoreError | None, done: Done) -> None:
        for entry in entries:
            self.held.pop(entry.sequence, None)
        done(error)

    def _load(self, after: int, limit: int, max_bytes: int) -> list[Entry]:
        return self.store.load(self.entity, after, limit, max_bytes)

    def _get(self, sequence: int) -> Entry | None:
        return self.store.get(self.entity, sequence)

    # -- what the rest of the broker asks

    @property
    def is_held(self) -> bool:
        """Whether there are locks that time can end."""
        return bool(self.locks)


def annotation_fault(entry: Entry) -> CodecError | None:
    """What is wrong with a message's annotations, which are decoded as it is handed out."""
    try:
        Message(
            annotations=entry.annotations, delivery_annotations=entry.delivery_annotations
        ).check_annotations()
    except CodecError as error:
        return error
    return None


def _ignore(error: Exception | None) -> None:
    """A lock that ended by itself has nobody to tell. If the disk refused, the lock stands and
    ends again at the next look."""
