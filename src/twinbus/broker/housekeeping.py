"""The passing of time in a namespace: locks end, messages become due or die of age, ids are
forgotten, and entities that nobody uses go.

What one entity or one message has wrong keeps no other from being looked after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from twinbus.amqp.types import CodecError
from twinbus.broker.aside import LOST
from twinbus.broker.entry import ACTIVE, SCHEDULED
from twinbus.broker.queue import Queue, nothing
from twinbus.broker.stored import message_of

if TYPE_CHECKING:
    from twinbus.broker.entity import Entity
    from twinbus.broker.namespace import Namespace

_SWEEP = 1_000
_HOUSEKEEPING_MS = 10_000
# A message that could not be looked after is let be for so long, so that others have their turn.
_RETRY_MS = 10_000


class Housekeeping:
    """Of one namespace, which tells it what to look after, and when."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._store = namespace.store
        self._locked: dict[Queue, None] = {}
        self._stuck: dict[tuple[int, int], int] = {}  # messages, and until when they are let be
        self._next_housekeeping_ms = 0
        self._began_ms = 0  # the first tick says
        self._noted_ms: dict[int, int] = {}

    def has_locks(self, queue: Queue) -> None:
        """From now on, until they have ended."""
        self._locked[queue] = None

    def tick(self, now_ms: int) -> None:
        namespace, attempt = self._namespace, self._namespace.health.attempt
        attempt("lost messages", namespace.name, self._set_lost_aside, now_ms)
        for queue in list(self._locked):
            attempt("locks", queue.path, self._expire_locks, queue, now_ms)
        attempt("schedule", namespace.name, self._sweep_due, now_ms)
        attempt("expiry", namespace.name, self._sweep_expired, now_ms)
        self._began_ms = self._began_ms or now_ms
        if now_ms >= self._next_housekeeping_ms:
            self._next_housekeeping_ms = now_ms + _HOUSEKEEPING_MS
            for entity in list(namespace.directory.entities()):
                attempt("housekeeping", entity.path, self._keep_house, entity, now_ms)
            # Those that were not met again are gone, or are due no longer.
            late_ms = now_ms - _RETRY_MS
            self._stuck = {key: at_ms for key, at_ms in self._stuck.items() if at_ms > late_ms}

    def _expire_locks(self, queue: Queue, now_ms: int) -> None:
        queue.expire_locks(now_ms)
        if not queue.has_locks:
            del self._locked[queue]

    def _sweep_due(self, now_ms: int) -> None:
        for number, sequence in self._store.due(now_ms, _SWEEP + len(self._stuck)):
            self._look_after("schedule", number, sequence, self._activate, now_ms)

    def _sweep_expired(self, now_ms: int) -> None:
        most = _SWEEP + len(self._stuck) + sum(len(queue.taken) for queue in self._locked)
        for number, sequence in self._store.expired(now_ms, most):
            self._look_after("expiry", number, sequence, self._expire, now_ms)

    def _look_after(
        self,
        what: str,
        number: int,
        sequence: int,
        act: Callable[[Queue, int, int], object],
        now_ms: int,
    ) -> None:
        """Do to a message what is due, whole or not at all, or let it be for a while."""
        key = (number, sequence)
        queue = self._namespace.directory.find(number)
        if queue is None or self._stuck.get(key, 0) > now_ms:
            return
        try:
            with self._store.whole():
                act(queue, sequence, now_ms)
        except Exception as error:  # noqa: BLE001 - logged, counted, and tried again
            self._stuck[key] = now_ms + _RETRY_MS
            self._namespace.health.failed(what, queue.path, error)
        else:
            self._stuck.pop(key, None)

    @staticmethod
    def _expire(queue: Queue, sequence: int, now_ms: int) -> None:
        queue.expire_stored(sequence)

    def _set_lost_aside(self, now_ms: int) -> None:
        """Messages whose bytes the file does not have: nobody can be given them."""
        for number, entry in self._store.take_lost():
            queue = self._namespace.directory.find(number)
            if queue is not None:
                queue.set_aside(entry, LOST, now_ms)

    def _activate(self, queue: Queue, sequence: int, now_ms: int) -> None:
        """A scheduled message's time has come: it is placed as if it were sent now."""
        if sequence in queue.taken or queue.entity.deleted:
            return
        entry = self._store.get(queue.number, sequence)
        if entry is None or entry.state != SCHEDULED:
            return
        try:
            message = message_of(entry)
        except CodecError as error:
            queue.give_up(entry, error)
            return
        # It arrived when it was scheduled.
        self._store.batch.delete(queue.number, entry).arrived -= 1
        active = replace(entry, state=ACTIVE, due_ms=None, enqueued_ms=now_ms)
        active.expires_ms = None if entry.ttl_ms is None else now_ms + entry.ttl_ms

        def done(error: Exception | None) -> None:
            queue.taken.pop(sequence, None)

        self._namespace.place(queue.entity, active, message, now_ms, done)
        # Until the move is on disk, so that the next look does not move it again.
        queue.taken[sequence] = b""

    def _keep_house(self, entity: Entity, now_ms: int) -> None:
        """Forget old message ids, note whether it was used, and delete it if it was not."""
        if entity.detects_duplicates:
            self._namespace.duplicates.forget_old(entity, now_ms)
        if self._noted_ms.get(entity.id, entity.updated_ms) < entity.accessed_ms:
            self._noted_ms[entity.id] = entity.accessed_ms
            self._store.batch.note_use(entity.id, entity.accessed_ms)
            self._store.submit(nothing)
        if entity.is_idle(now_ms, self._began_ms):
            self._namespace.directory.delete(entity.path, nothing)
