"""Where messages go that were given up: to a dead-letter queue, or on from there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from twinbus.broker.burial import Burial
from twinbus.broker.queue import Done, Queue, nothing
from twinbus.broker.refusals import RequestError
from twinbus.broker.stored import dead_letter, message_of

if TYPE_CHECKING:
    from twinbus.broker.entity import Entity
    from twinbus.broker.namespace import Namespace


class DeadLetters:
    """Of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def bury(self, queue: Queue, burial: Burial) -> None:
        """Move a message to the dead-letter queue, in the batch that takes it from its own."""
        entity = queue.entity
        self._namespace.store.batch.delete(queue.number, burial.entry)
        if entity.topic is not None:  # it has no dead-letter queue that anybody could look into
            for subscription in entity.topic.subscriptions.values():
                self.put(subscription.dead_letters, queue.path, burial)
            return
        target = entity.received.forward_dead_letters_to
        if target is None or queue is not entity.queue:
            self.put(entity.dead_letters, queue.path, burial)
            return
        try:
            self._forward(entity, target, burial)
        except RequestError as error:
            note = f"{burial.description} (not forwarded to '{target}': {error})"
            self.put(entity.dead_letters, queue.path, replace(burial, description=note))

    def _forward(self, entity: Entity, path: str, burial: Burial) -> None:
        namespace, source = self._namespace, entity.queue.path
        dead = dead_letter(burial, source)
        message = message_of(dead)
        target = namespace.forwarding.target(path, message)
        namespace.store.batch.change(entity.id).dead_lettered += 1
        namespace.books.forwarded(source, target.path, message, dead.size)
        namespace.books.buried(source, burial)
        namespace.place(target, dead, message, dead.enqueued_ms, nothing)

    def put(self, queue: Queue, source: str, burial: Burial, done: Done = nothing) -> int:
        """Into a dead-letter queue. Answers 0: nobody is told the number that it has there."""
        self._namespace.store.batch.change(queue.entity.id).dead_lettered += 1
        self._namespace.books.buried(source, burial)
        queue.put(dead_letter(burial, source), done)
        return 0
