"""The ids that an entity has seen lately: a message whose id is among them comes to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.batch import Batch
from twinbus.broker.queue import Done, nothing

if TYPE_CHECKING:
    from twinbus.amqp.message import Message
    from twinbus.broker.entity import Entity
    from twinbus.broker.store import Store

Key = tuple[int, str]


class Duplicates:
    """Of one namespace. An id is on the disk, or on its way there with the batch it came in."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: dict[Key, tuple[Batch, list[Done]]] = {}

    def has_seen(self, entity: Entity, message: Message, now_ms: int) -> bool:
        """Whether the disk has the id of a message among those of this entity."""
        since_ms = now_ms - _window_ms(entity)
        return self._store.has_seen(entity.id, str(message.properties.message_id), since_ms)

    def batch_of(self, entity: Entity, message: Message) -> Batch:
        """The batch that decides what becomes of a message that is taken in now."""
        pending = self._pending.get(_key(entity, message))
        return self._store.batch if pending is None else pending[0]

    def note(
        self, entity: Entity, message: Message, seen: bool, now_ms: int, done: Done
    ) -> Done | None:
        """Remember an id and answer the callback to store with; None if it is a duplicate.

        A duplicate of a message that is still on its way to the disk shares that one's fate: to
        accept it on its own would be to lose both if the first one failed.
        """
        key = _key(entity, message)
        pending = self._pending.get(key)
        if pending is not None:
            entity.queue.totals.duplicates_dropped += 1
            pending[1].append(done)
            return None
        if seen:
            entity.queue.totals.duplicates_dropped += 1
            self._store.submit(done)
            return None
        self._store.batch.remember_id(*key, now_ms)
        self._pending[key] = self._store.batch, [done]

        def committed(error: Exception | None) -> None:
            for each in self._pending.pop(key)[1]:
                each(error)

        return committed

    def forget_old(self, entity: Entity, now_ms: int) -> None:
        until_ms = now_ms - _window_ms(entity)
        if self._store.has_ids_until(entity.id, until_ms):
            self._store.batch.forget_ids(entity.id, until_ms)
            self._store.submit(nothing)


def _key(entity: Entity, message: Message) -> Key:
    return entity.id, str(message.properties.message_id)


def _window_ms(entity: Entity) -> int:
    return int(entity.sized.duplicate_window.total_seconds() * 1000)
