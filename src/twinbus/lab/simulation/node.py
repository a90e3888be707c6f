"""A namespace on a machine of its own, which can fail.

The namespace, its queues and its store are the broker's own; the database is in memory, and stands
for the disk: what was committed there survives a crash, nothing else does. This module is in the
place of the server and the committer: it hands requests to the namespace, and takes batches to the
disk one after the other, in virtual time.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)

from twinbus.amqp.message import Message
from twinbus.auth.access_rules import root_rule
from twinbus.broker.batch import Batch
from twinbus.broker.burial import Burial, Changes
from twinbus.broker.delivery import payload
from twinbus.broker.directory import Directory
from twinbus.broker.entry import DEFERRED, SCHEDULED, Entry
from twinbus.broker.namespace import Namespace
from twinbus.broker.queue import Done, Queue
from twinbus.broker.refusals import (
    EntityDisabledError,
    EntityNotFoundError,
    LockLostError,
    RequestError,
    StoreError,
)
from twinbus.broker.sessions import SessionLock, SessionQueue, Waiter
from twinbus.broker.store import Store
from twinbus.health import Health
from twinbus.lab.simulation.clock import START_MS, Clock
from twinbus.lab.simulation.records import Records

# The broker looks at its clock four times a second. Here it does so when a lock is due to end, and
# otherwise seldom: nothing else is waited for that closely, and an idle look costs two queries.
TICK_MS = 250
IDLE_TICK_MS = 5_000
LATE_MS = 2 * TICK_MS  # a lock has ended by then
COMMIT_MS = (1, 40)
Answer = Callable[[Any], None]


class Notes(Protocol):
    """Where nodes and syphons write down what happens to them."""

    def tell(self, who: str, what: str) -> None: ...

    def pinged(self, entity: str) -> None:
        """A ping of it is on disk."""

    def came_home(self, destination: str, ids: Sequence[str]) -> None:
        """The destination has these messages on disk."""

    records: Records
    busy: set[str]  # the syphons that are in a round

    def brought(self, destination: str, ids: Sequence[str]) -> None:
        """A syphon was told that they are there."""

    def breach(self, what: str) -> None:
        """A promise was not kept."""


class MakesNamespace(Protocol):
    """How a namespace is made: ``Namespace``, or one with a bug."""

    def __call__(
        self, name: str, store: Store, rules: list[Any], *, new_token: Callable[[], bytes]
    ) -> Namespace: ...


class Disk(Store):
    """The real store in memory. Its reader and its writer are one connection, which is the same
    here: a batch is applied and committed in one step, so nobody reads what is not committed."""

    def __init__(self, image: bytes | None = None) -> None:
        self._image = image
        super().__init__(Path(":memory:"))

    def _open(self) -> None:
        self._writer = self._reader = self._connect()
        if self._image is not None:
            self._writer.deserialize(self._image)
        self._prepare()

    def image(self) -> bytes:
        """The disk as it is now, for others to begin with."""
        return self._writer.serialize()

    def keep(self, batch: Batch) -> None:
        """Put a batch on the disk, or raise StoreError with nothing changed."""
        try:
            self.apply(batch)
            self.commit()
        except StoreError:
            self.rollback()
            raise


class Unforgiving(Health):
    """A broker logs what fails in its loops and goes on. Here each such failure ends the run."""

    def failed(self, what: str, entity: str, error: BaseException) -> None:
        raise error


@dataclass(frozen=True, slots=True)
class HandedOut:
    """A message as it was handed out."""

    path: str
    number: int
    token: bytes
    locked_until_ms: int
    enqueued_ms: int
    session: str | None
    ttl_ms: int | None
    message: bytes
    bare: bytes
    count: int  # of its deliveries before, by the broker's count
    before: int  # and by ours: the broker forgets some in a crash
    deferred: bool
    key: tuple[int, int]  # no other message of this node ever has it


@dataclass(eq=False)
class Taker:
    """One who receives up to ``wants`` messages. ``heard`` is called after the first."""

    path: str
    wants: int
    heard: Callable[[], None]
    hand: Callable[[str, Entry, bytes, int], HandedOut]
    over: Callable[[str], None]  # told of what is over the credit
    deletes: bool = False
    got: list[HandedOut] = field(default_factory=list)

    def demand(self) -> int:
        return self.wants

    def reserve(self, count: int) -> None:
        """Only those who delete what they receive are asked this; a taker locks it."""

    def deliver(self, entry: Entry, token: bytes, locked_until_ms: int) -> None:
        if self.wants <= 0:
            self.over(f"{self.path} delivers {entry.sequence} beyond the credit it was given")
        self.wants -= 1
        self.got.append(self.hand(self.path, entry, token, locked_until_ms))
        self.heard()

    def lose(self, error: RequestError) -> None:
        """Its session's lock has ended; whoever settles will hear of it."""
        self.wants = 0


class Node:
    """A namespace that answers, crashes and restarts."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        rng: random.Random,
        notes: Notes,
        image: bytes,
        make: MakesNamespace = Namespace,
    ) -> None:
        self.name = name
        self.skew_ms = 0
        self.is_up = True
        self.commits_fail = 0.0  # how likely
        self.refusals: dict[str, Callable[[], Exception]] = {}
        self.disk = Disk(image)
        self._clock = clock
        self._rng = rng
        self._notes = notes
        self._make = make
        self._life = 0
        self.requests = 0
        self._is_doomed = False
        self._handed: Counter[tuple[int, int]] = Counter()
        self._held: dict[bytes, int] = {}  # until when a lock was said to last
        self._writing: Batch | None = None
        self._waiting: list[Answer] = []
        self._boot()
        self._ticks: set[int] = set()
        self._clock.after(IDLE_TICK_MS, self._idle_tick)

    @property
    def now(self) -> int:
        return self._clock.now + self.skew_ms

    # -- living and dying

    def _boot(self) -> None:
        self._held.clear()
        self.disk.on_change = lambda: None
        rules = [root_rule("key")]
        self.namespace = self._make(self.name, self.disk, rules, new_token=self._new_token)
        self.namespace.health = Unforgiving(logging.getLogger(__name__))
        self.disk.on_change = self._request

    def _new_token(self) -> bytes:
        return self._rng.randbytes(16)

    def crash(self) -> None:
        """Everything that is not on disk is gone. A batch on its way there may have arrived."""
        if not self.is_up:
            return
        self._notes.tell(self.name, "crashes")
        self.is_up = False
        self._life += 1
        if self._writing is not None and self._rng.random() < 0.5:
            self._notes.tell(self.name, "its last batch is on disk, and nobody was told")
            self.disk.keep(self._writing)
        self._writing = None
        self.disk.batch = Batch()
        cut, self._waiting = self._waiting, []
        for answer in cut:
            answer(ConnectionResetError(f"{self.name} closed the connection"))

    def crash_writing(self) -> None:
        """Crash as soon as a batch is on its way to the disk: that is when it matters."""
        self._is_doomed = True

    def restart(self) -> None:
        self._is_doomed = False
        if self.is_up:
            return
        self._notes.tell(self.name, "restarts")
        self.is_up = True
        self._boot()
        if self.disk.batch:
            self._request()

    def _idle_tick(self) -> None:
        self._tick()
        self._clock.after(IDLE_TICK_MS, self._idle_tick)

    def _tick(self) -> None:
        self._ticks.discard(self.now)
        if self.is_up:
            self.namespace.tick(self.now)

    def _tick_after(self, moment: int) -> None:
        """At the first look at the clock that finds this moment past."""
        at = moment // TICK_MS * TICK_MS + TICK_MS
        if at not in self._ticks:
            self._ticks.add(at)
            self._clock.at(at - self.skew_ms, self._tick)

    # -- the disk

    def _request(self) -> None:
        if self._writing is None:
            self._writing = Batch()  # whoever asks next sees that a write is under way
            self._later(self._rng.randint(0, 2), self._write)

    def _later(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Do it then, unless the node has crashed before."""
        life = self._life
        self._clock.after(delay_ms, lambda: act() if life == self._life else None)

    def _write(self) -> None:
        self._writing = batch = self.disk.take_batch()
        takes_ms = self._rng.randint(*COMMIT_MS)
        if self._is_doomed:
            self._later(self._rng.randint(0, takes_ms - 1), self.crash)
        self._later(takes_ms, lambda: self._commit(batch))

    def _commit(self, batch: Batch) -> None:
        error: StoreError | None = None
        try:
            if self.commits_fail and self._rng.random() < self.commits_fail:
                raise StoreError("the disk is full", full=True)
            self.disk.keep(batch)
        except StoreError as refused:
            self._notes.tell(self.name, f"a commit fails: {refused}")
            error = refused
            self._held.clear()  # a lock whose end the disk refused goes on until the next look
        self._writing = None
        self.namespace.committed(batch, error, self.now)
        if self.disk.batch:
            self._request()

    # -- what it is asked

    def serve(self, act: Callable[[Answer], None], answer: Answer) -> None:
        """Do something for a client, who is told once, or never if the node crashes first; then
        its connection tells it."""
        self._waiting.append(answer)
        self.requests += 1

        def once(value: Any) -> None:
            if answer in self._waiting:
                self._waiting.remove(answer)
                answer(_translated(value) if isinstance(value, Exception) else value)

        try:
            act(once)
        except (RequestError, StoreError, ServiceBusError) as error:
            once(error)

    def change(self, path: str, **changes: Any) -> None:
        """An administrator's change, which the disk may refuse."""
        entity = self.namespace.directory.entity(path)
        self._held.clear()  # who holds a session of what is disabled loses it
        described = replace(entity.description, **changes)
        self.namespace.directory.update(path, described, self.now, _nobody)

    def ready(self, path: str, answer: Answer) -> None:
        """Whether somebody may send there."""
        self._check(path)
        self.namespace.directory.entity(path)
        answer(None)

    def send(
        self,
        path: str,
        messages: list[bytes],
        answer: Answer,
        take: Callable[..., list[int]] | None = None,
    ) -> None:
        """Answers sequence numbers when they are on disk."""
        self._check(path)
        entity = self.namespace.directory.entity(path)
        numbers: list[int] = []

        def done(error: Exception | None) -> None:
            self._later(0, lambda: answer(error or numbers))

        numbers += (take or self.namespace.send)(entity, messages, self.now, done)

    def schedule(self, path: str, messages: list[bytes], answer: Answer) -> None:
        self.send(path, messages, answer, self.namespace.schedule)

    def scheduled(self, path: str, id_: str, answer: Answer) -> None:
        """Answers the number of a scheduled message, or nothing."""
        found = (entry for entry in self._queue(path).peek(0, 1_000) if entry.state == SCHEDULED)
        ids = {Message.parse(entry.bare).properties.message_id: entry.sequence for entry in found}
        answer(ids.get(id_))

    def cancel(self, path: str, number: int, answer: Answer) -> None:
        self._check(path)
        self._queue(path).cancel([number], answer)

    def ping(self, path: str, message: bytes, answer: Answer) -> None:
        def taken(value: Any) -> None:
            if not isinstance(value, Exception):
                self._notes.pinged(path)
            answer(value)

        self.send(path, [message], taken)

    def _check(self, path: str) -> None:
        refusal = self.refusals.get(path)
        if refusal is not None:
            raise refusal()

    def _taker(self, path: str, wants: int, finish: Callable[[], None]) -> Taker:
        return Taker(*(path, wants, lambda: self._later(1, finish), self._hand, self._notes.breach))

    def _hand(self, path: str, entry: Entry, token: bytes, until_ms: int) -> HandedOut:
        self._tick_after(until_ms)
        self._held[token] = until_ms
        key = (self._queue(path).number, entry.sequence)
        self._handed[key] += 1
        return HandedOut(
            *(path, entry.sequence, token, until_ms, entry.enqueued_ms, entry.session),
            *(entry.ttl_ms, payload(entry, until_ms), entry.bare, entry.delivery_count),
            *(self._handed[key] - 1, entry.state == DEFERRED, key),
        )

    def deferred(self, path: str, answer: Answer) -> None:
        """Answers the numbers of those that are to be asked for by number."""
        found = self._queue(path).peek(0, 1_000)
        answer([entry.sequence for entry in found if entry.state == DEFERRED])

    def receive_deferred(self, path: str, number: int, answer: Answer) -> None:
        queue = self._queue(path)
        taken = queue.receive_deferred([number], self.now, deletes=False, owner=None, done=_nobody)
        self.namespace.pump_queue(queue, self.now)  # for its locks to be looked after
        answer([self._hand(path, *each) for each in taken])

    def receive(self, path: str, most: int, wait_ms: int, answer: Answer) -> None:
        """Answers deliveries: what there is, or what comes first within a time."""
        queue = self._received(path)
        taker = self._taker(path, most, lambda: finish())
        ended = False

        def finish() -> None:
            nonlocal ended
            if not ended:
                ended, taker.wants = True, 0
                queue.remove_consumer(taker)
                answer(taker.got)

        queue.add_consumer(taker)
        self.namespace.pump_queue(queue, self.now)
        self._later(wait_ms if not taker.got else 1, finish)

    def receive_session(self, path: str, most: int, wait_ms: int, answer: Answer) -> None:
        """As ``receive``, of the next session that is free. The session is held on to."""
        queue = self._received(path)
        assert isinstance(queue, SessionQueue)
        taken: list[SessionLock] = []
        taker = self._taker(path, most, lambda: finish())
        waiter = Waiter(taker, taken.append)
        ended = False

        def finish() -> None:
            nonlocal ended
            if not ended:
                ended, taker.wants = True, 0
                queue.stop_waiting(waiter)
                if taken and not taker.got:
                    queue.close_session(taken[0], self.now)
                answer(taker.got)

        queue.wait(waiter)
        self.namespace.pump_queue(queue, self.now)
        self._later(wait_ms if not taker.got else 1, finish)

    def close_session(self, path: str, session_id: str, answer: Answer) -> None:
        queue = self._queue(path)
        assert isinstance(queue, SessionQueue)
        queue.close_session(queue.session(session_id), self.now)
        self.namespace.pump(self.now)
        answer(None)

    def watch(self, paths: Sequence[str], wait_ms: int, answer: Answer) -> None:
        """Answers when a message is there, which goes back to its place unseen."""
        takers = [self._taker(path, 1, lambda: finish()) for path in paths]
        ended = False

        def finish() -> None:
            nonlocal ended
            if ended:
                return
            ended = True
            heard = [taker.path for taker in takers if taker.got]
            for taker in takers:
                taker.wants = 0
                queue = self._queue(taker.path)
                queue.remove_consumer(taker)
                for each in taker.got:
                    if each.token in queue.locks:
                        queue.release(each.token, self.now, _nobody)
            answer(heard)

        for taker in takers:
            queue = self._queue(taker.path)
            queue.add_consumer(taker)
            self.namespace.pump_queue(queue, self.now)
        self._later(wait_ms, finish)

    def has_after(self, path: str, number: int, answer: Answer) -> None:
        """Whether a queue has a message behind a sequence number, locked or not."""
        answer(bool(self._queue(path).peek(number + 1, 1)))

    def settle(
        self,
        act: str,
        path: str,
        tokens: Iterable[bytes],
        answer: Answer,
        changes: Changes | None = None,
    ) -> None:
        """Answers those whose lock was lost, when all others are on disk."""
        queue = self._queue(path)
        settle: Callable[[bytes, Done], None] = {
            "complete": queue.complete,
            "abandon": lambda token, done: queue.abandon(token, self.now, done, changes),
            "defer": lambda token, done: queue.defer(token, done, changes),
            "renew": lambda token, done: self._renew(queue, token, done),
            "dead-letter": lambda token, done: queue.dead_letter(token, _burial, done),
        }[act]
        lost: list[bytes] = []
        left = 1  # for the loop itself, so that nobody is told before it is over
        failed: Exception | None = None

        def done(error: Exception | None) -> None:
            nonlocal left, failed
            left -= 1
            failed = failed or error
            if left == 0:
                answer(failed or lost)

        for token in tokens:
            until_ms = self._held.pop(token, self.now)  # of one settled before, nothing is known
            try:
                left += 1
                settle(token, done)
                if self.now > until_ms + LATE_MS:
                    self._notes.breach(f"a lock of {path} outlived its time")
            except LockLostError:
                left -= 1
                lost.append(token)
                if self.now < until_ms:
                    self._notes.breach(f"a lock of {path} was lost before its time")
        done(None)
        self.namespace.pump(self.now)

    def _renew(self, queue: Queue, token: bytes, done: Done) -> None:
        self._held[token] = until_ms = queue.renew(token, self.now)
        self._tick_after(until_ms)
        done(None)

    def _received(self, path: str) -> Queue:
        entity, queue = self.namespace.directory.resolve(path)
        if not entity.received.status.may_receive:
            raise EntityDisabledError(f"'{path}' is disabled for receiving")
        return queue

    def _queue(self, path: str) -> Queue:
        return self.namespace.directory.resolve(path)[1]

    # -- what lies there

    def queues(self) -> Iterable[Queue]:
        return (queue for entity in self.namespace.directory.entities() for queue in entity.queues)

    def is_settled(self) -> bool:
        """Whether nothing waits, except what was set aside."""
        return self.is_up and not self.left_over()

    def left_over(self) -> list[str]:
        """What somebody still waits for, or holds."""
        return [
            queue.path
            for entity in self.namespace.directory.entities()
            for queue in entity.queues
            if (queue is entity.queue and queue.counts.total) or queue.has_locks or queue.taken
        ]

    def contents(self, *, dead: bool) -> list[tuple[str, Entry]]:
        return [
            (entity.path, entry)
            for entity in self.namespace.directory.entities()
            for queue in (entity.queues[1:] if dead else entity.queues[:1])
            for entry in queue.peek(0, 1_000)
        ]

    def drift(self) -> list[str]:
        """Queues whose counters differ from what is on disk."""
        return [
            f"{queue.path} counts {queue.counts.total} messages and has {found}"
            for queue in self.queues()
            if (found := len(queue.peek(0, 1_000))) != queue.counts.total
        ]


def formatted(*create: Callable[[Directory], None]) -> bytes:
    """A disk on which these have created their entities, one after the other."""
    disk = Disk()
    namespace = Namespace("new", disk, [root_rule("key")])
    for each in create:
        each(namespace.directory)
        batch = disk.take_batch()
        disk.keep(batch)
        namespace.committed(batch, None, START_MS)
    image = disk.image()
    disk.close()
    return image


def _nobody(error: Exception | None) -> None:
    """Nobody waits for this one."""


def _burial(entry: Entry) -> Burial:
    return Burial(entry, "SetAside", None)


def _translated(error: Exception) -> Exception:
    """The broker's error as the SDK has it."""
    if isinstance(error, EntityDisabledError):
        return MessagingEntityDisabledError(message=str(error))
    if isinstance(error, EntityNotFoundError):
        return MessagingEntityNotFoundError(message=str(error))
    if isinstance(error, RequestError):
        return ServiceBusError(str(error), condition=error.condition)
    if isinstance(error, StoreError):
        return ServiceBusError(str(error), condition="amqp:internal-error")
    return error
