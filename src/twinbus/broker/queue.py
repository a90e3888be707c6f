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
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from twinbus.amqp.types import CodecError
from twinbus.broker.burial import (
    EXPIRED,
    Burial,
    Changes,
    annotation_fault,
    change,
    check_changes,
    unconsumed,
    unreadable,
)
from twinbus.broker.counts import Counts, Totals
from twinbus.broker.descriptions import QueueDescription, SubscriptionDescription
from twinbus.broker.entry import ACTIVE, DEFERRED, SCHEDULED, Entry
from twinbus.broker.lock import Consumer, MessageLock
from twinbus.broker.refusals import (
    EntityNotFoundError,
    LockLostError,
    MessageNotFoundError,
    StoreError,
)
from twinbus.broker.store import Store
from twinbus.broker.window import PAGE_BYTES, Window
from twinbus.health import each

if TYPE_CHECKING:
    from twinbus.broker.entity import Entity
    from twinbus.broker.namespace import Namespace
    from twinbus.broker.sessions import SessionLock

Received = QueueDescription | SubscriptionDescription
Done = Callable[[Exception | None], None]
# A settlement of which nothing can go wrong any more but the disk.
Settle = Callable[[Done], None]


def nothing(error: Exception | None) -> None:
    """Nobody waits for this one: another change of the same batch answers for it, or it is the
    broker's own work, which is tried again at the next turn."""


class Queue:
    """One store of messages: a queue, a subscription, or the dead-letter queue of one."""

    entity: Entity  # which it belongs to, and which says so when it is made

    def __init__(
        self,
        number: int,
        path: str,
        description: Received,
        store: Store,
        owner: Namespace,
        last_sequence: int = 0,
    ) -> None:
        self.number = number
        self.path = path
        self.description = description
        self.store = store
        self.counts = Counts()
        self.totals = Totals()
        self.last_sequence = last_sequence
        self.consumers: list[Consumer] = []
        self.locks: dict[bytes, MessageLock] = {}
        # Messages that are locked, or on their way out of the queue: nobody else is given them.
        self.taken: dict[int, bytes] = {}
        self.closed = False  # from when its deletion is on the way to the disk
        self._owner = owner
        self._new_token, self._wake = owner.new_token, owner.wake  # a look-up less each
        self._window = Window(
            lambda *page: store.load(number, *page), self._get, self.taken, last_sequence
        )

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
        self.store.batch.insert(self.number, entry)

        def committed(error: StoreError | None) -> None:
            if error is None and entry.state == ACTIVE:
                self.arrive(entry)
            done(error)

        self.store.submit(committed)
        return sequence

    def wake(self) -> None:
        """There may be something to hand out."""
        self._wake(self)

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
            if entry is None or entry.state != SCHEDULED or sequence in self.taken:
                raise MessageNotFoundError(
                    f"'{self.path}' has no scheduled message with sequence number {sequence}"
                )
            entries.append(entry)
        self._delete(entries, done)

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
        self.taken.clear()

    @property
    def in_use(self) -> bool:
        return bool(self.consumers or self.locks)

    @property
    def has_locks(self) -> bool:
        """Whether there are locks that time can end."""
        return bool(self.locks)

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
        owner: SessionLock | None = None,
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
            elif annotation_fault(entry) is not None:
                self._give_up_stored(entry.sequence)
            else:
                return entry

    def hand(
        self, entry: Entry, consumer: Consumer, now_ms: int, owner: SessionLock | None = None
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

    def lock(self, entry: Entry, now_ms: int, owner: SessionLock | None = None) -> MessageLock:
        until_ms = owner.until_ms if owner else now_ms + self._lock_ms
        lock = MessageLock(self._new_token(), entry, until_ms, owner)
        self.locks[lock.token] = lock
        self.taken[entry.sequence] = lock.token
        if owner is not None:
            owner.tokens.add(lock.token)
        return lock

    @property
    def _lock_ms(self) -> int:
        return int(self.description.lock_duration.total_seconds() * 1000)

    def _hand_for_good(self, entry: Entry, consumer: Consumer) -> None:
        """Receive-and-delete: gone from the disk before it goes out, so never delivered twice."""
        token = self._new_token()
        self.taken[entry.sequence] = token
        self.store.batch.delete(self.number, entry)
        consumer.reserve(1)

        def committed(error: StoreError | None) -> None:
            self.taken.pop(entry.sequence, None)
            consumer.reserve(-1)
            if error is None:
                consumer.deliver(entry, token, 0)
            else:
                self.come_back(entry)

        self.store.submit(committed)

    # -- settling

    def complete(self, token: bytes, done: Done) -> None:
        lock = self._find(token)
        self.store.batch.delete(self.number, lock.entry).completed += 1
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
                self.store.batch.rewrite(self.number, whole, whole.bare)
            self.store.batch.restate(self.number, lock.entry, DEFERRED, count)
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
        check_changes(made.notes(), self.path)
        return partial(self._settle_buried, lock, made)

    def _changed(
        self, entry: Entry, changes: Changes | None
    ) -> tuple[Entry | None, tuple[str, str] | None]:
        """The whole message with changed properties, or why it cannot be changed."""
        if not changes:
            return None, None
        check_changes(changes, self.path)
        whole = self._get(entry.sequence)
        return whole, None if whole is None else change(whole, changes)

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

    def _find(self, token: bytes) -> MessageLock:
        self.check_open()
        lock = self.locks.get(token)
        if lock is None or lock.busy:
            raise LockLostError(
                "The lock supplied is invalid. Either the lock expired, or the message has "
                f"already been removed from the queue '{self.path}'."
            )
        return lock

    def _returning(
        self, lock: MessageLock, count: int, now_ms: int, changes: Changes | None = None
    ) -> Settle:
        entry = lock.entry
        ready = entry.state == ACTIVE
        expired = ready and entry.expires_ms is not None and entry.expires_ms <= now_ms
        whole, fault = self._changed(entry, changes)
        if ready and count >= self.description.max_delivery_count:
            fault = fault or unconsumed(count)
        elif expired and self.description.dead_lettering_on_expiration:
            fault = fault or EXPIRED
        if fault is not None:
            return self._burying(lock, whole, count, *fault)

        def settle(done: Done) -> None:
            if expired:
                self.store.batch.delete(self.number, entry)
            else:
                if whole is not None:
                    self.store.batch.rewrite(self.number, whole, whole.bare)
                self.store.batch.restate(self.number, entry, entry.state, count)
            self._finish(lock, done, comes_back=not expired)

        return settle

    def _burying(
        self, lock: MessageLock, whole: Entry | None, count: int, reason: str, text: str
    ) -> Settle:
        """``whole`` is the message with its bytes, if they have been read: a lock has none."""
        found = whole or self._get(lock.entry.sequence)
        if found is None:  # it has lost its bytes, and is set aside
            return partial(self._settle_buried, lock, None)
        burial = Burial(replace(found, delivery_count=count), reason, text)
        return partial(self._settle_buried, lock, burial)

    def _settle_buried(self, lock: MessageLock, burial: Burial | None, done: Done) -> None:
        if burial is not None:
            self._owner.dead_letters.bury(self, burial)
        self._finish(lock, done, comes_back=False)

    def _finish(self, lock: MessageLock, done: Done, *, comes_back: bool) -> None:
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

    def _unlock(self, lock: MessageLock) -> None:
        self.locks.pop(lock.token, None)
        self.taken.pop(lock.entry.sequence, None)
        if lock.owner is not None:
            lock.owner.tokens.discard(lock.token)

    def come_back(self, entry: Entry) -> None:
        """A message that was handed out is ready again."""
        self._window.give_back(entry.sequence)
        self.wake()

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

    def take_back(self, lock: MessageLock, now_ms: int) -> None:
        """Nobody settled it, and nobody is told."""
        if self.closed:
            return
        with self.store.whole():
            self.abandon(lock.token, now_ms, nothing)

    def release_locks(self, now_ms: int) -> None:
        """Forget who holds what, as a restart does: no delivery is counted."""
        if self.closed:
            return
        for lock in list(self.locks.values()):
            if not lock.busy:
                self.release(lock.token, now_ms, nothing)

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
            self.store.batch.delete(self.number, entry)
        else:
            self._owner.dead_letters.bury(self, burial)
        self.taken[entry.sequence] = self._new_token()

        def committed(error: StoreError | None) -> None:
            self.taken.pop(entry.sequence, None)
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
        if entry is not None and (error := annotation_fault(entry)) is not None:
            self.give_up(entry, error)

    def _untouched(self, sequence: int) -> Entry | None:
        """The message as the disk has it, unless somebody holds it or it is on its way out."""
        return None if self.closed or sequence in self.taken else self._get(sequence)

    def set_aside(self, entry: Entry, reason: str, now_ms: int) -> None:
        """Take a message out of reach for good, unless somebody holds it: then its turn comes."""
        if self.closed or entry.sequence in self.taken:
            return
        self.store.batch.copy_aside(self.number, entry, reason, now_ms)
        self._delete([entry], nothing)

    def purge(
        self, limit: int, before_ms: int, now_ms: int, owner: SessionLock | None, done: Done
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
        if entries:
            self._delete(entries, done, comes_back=True)
        return len(entries)

    # -- looking, and receiving by number

    def peek(self, start: int, limit: int, session: str | None = None) -> list[Entry]:
        """Messages of any state in order, whoever holds them; none of them changes."""
        return self.store.browse(self.number, start, limit, PAGE_BYTES, session)

    def receive_deferred(
        self,
        sequences: list[int],
        now_ms: int,
        *,
        deletes: bool,
        owner: SessionLock | None,
        done: Done,
    ) -> list[tuple[Entry, bytes, int]]:
        """Lock, or delete, deferred messages: all of them or, if one is not there, none."""
        self.check_open()
        entries = []
        for sequence in dict.fromkeys(sequences):
            entry = self._get(sequence)
            if entry is None or entry.state != DEFERRED or sequence in self.taken:
                raise MessageNotFoundError(
                    f"Failed to lock one or more specified messages of '{self.path}'. "
                    f"The message with sequence number {sequence} does not exist."
                )
            entries.append(entry)
        faults = [(entry, error) for entry in entries if (error := annotation_fault(entry))]
        for entry, error in faults:
            self.give_up(entry, error)
        if faults:
            raise MessageNotFoundError(
                f"Failed to lock one or more specified messages of '{self.path}'. A message that "
                "cannot be read does not exist any more; it is in the dead-letter queue."
            )
        if not deletes:
            locks = [self.lock(entry, now_ms, owner) for entry in entries]
            done(None)
            return [(lock.entry, lock.token, lock.until_ms) for lock in locks]
        self._delete(entries, done)
        return [(entry, bytes(16), 0) for entry in entries]

    def _delete(self, entries: list[Entry], done: Done, *, comes_back: bool = False) -> None:
        for entry in entries:
            self.store.batch.delete(self.number, entry)
            self.taken[entry.sequence] = b""  # so that it is not deleted twice, or becomes due

        def committed(error: StoreError | None) -> None:
            for entry in entries:
                self.taken.pop(entry.sequence, None)
                if error is not None and comes_back:
                    self.come_back(entry)
            done(error)

        self.store.submit(committed)

    def _get(self, sequence: int) -> Entry | None:
        return self.store.get(self.number, sequence)
