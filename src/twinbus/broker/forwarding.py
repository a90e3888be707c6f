"""Handing a message on from one entity to the next, four times at the most."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from twinbus.amqp.types import CodecError
from twinbus.broker.burial import Burial, unreadable
from twinbus.broker.entry import Entry
from twinbus.broker.queue import Done, nothing
from twinbus.broker.refusals import NotAllowedError, RequestError
from twinbus.broker.stored import message_of

if TYPE_CHECKING:
    from twinbus.amqp.message import Message
    from twinbus.broker.entity import Entity
    from twinbus.broker.namespace import Namespace

MAX_HOPS = 4
NO_SESSION = "Session ID is null."
# How many messages that lay in a queue when it began to forward are moved at a time.
MAX_FORWARDING = 100


class Forwarding:
    """Between the entities of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def forward(
        self, source: Entity, entry: Entry, message: Message, now_ms: int, done: Done
    ) -> int:
        """Hand the message on. What cannot go on stays with the source, with the reason."""
        namespace = self._namespace
        source.queue.last_sequence += 1
        namespace.store.batch.change(source.id).last_sequence = source.queue.last_sequence
        moved = replace(
            entry,
            hops=entry.hops + 1,
            origin_sequence=entry.origin_sequence or source.queue.last_sequence,
            session=None,
        )
        if moved.hops > MAX_HOPS:
            text = f"The message was forwarded {MAX_HOPS} times; that is the limit."
            burial = Burial(moved, "MaxTransferHopCountExceeded", text)
            return namespace.dead_letters.put(source.dead_letters, source.path, burial, done)
        try:
            target = self.target(str(source.received.forward_to), message)
        except RequestError as error:
            burial = Burial(moved, type(error).__name__.removesuffix("Error"), str(error))
            side = source.transfer_dead_letters
            return namespace.dead_letters.put(side, source.path, burial, done)
        namespace.books.forwarded(source.path, target.path, message, moved.size)
        if message.ttl_ms != moved.ttl_ms:  # an entity on its way has shortened it
            message = replace(message, ttl_ms=moved.ttl_ms)
        namespace.place(target, moved, message, now_ms, done)
        return 0

    def target(self, path: str, message: Message) -> Entity:
        """The entity to which a message may go on. Raises RequestError where it may not."""
        target = self._namespace.directory.entity(path)
        self._namespace.check_can_send(target)
        needs_session = getattr(target.description, "requires_session", False)
        if needs_session and not message.properties.group_id:
            raise NotAllowedError(NO_SESSION)
        return target

    # -- what was there when it began

    def updated(self, entity: Entity) -> None:
        """Forward what was waiting when forwarding was turned on, and stop when it is off."""
        if entity.topic is not None:
            return
        forwarders = [c for c in entity.queue.consumers if isinstance(c, Forwarder)]
        for forwarder in forwarders:
            entity.queue.remove_consumer(forwarder)
        if entity.received.forward_to is not None and not entity.received.requires_session:
            entity.queue.add_consumer(Forwarder(self, entity))
        entity.queue.wake()

    def forward_waiting(self, source: Entity, entry: Entry, token: bytes, done: Done) -> None:
        """Move a message that lies in a forwarding queue: out of it and on, in one batch."""
        store = self._namespace.store
        with store.whole():
            try:
                message = message_of(entry)
            except CodecError as error:
                fault = unreadable(error)
                source.queue.dead_letter(token, lambda whole: Burial(whole, *fault), done)
                return
            source.queue.complete(token, done)
            store.batch.change(source.id).completed -= 1  # by nobody who received it
            self.forward(source, replace(entry), message, entry.enqueued_ms, nothing)


class Forwarder:
    """Takes what lies in a forwarding queue and hands it on."""

    deletes = False

    def __init__(self, forwarding: Forwarding, source: Entity) -> None:
        self._forwarding = forwarding
        self._source = source
        self._under_way: set[bytes] = set()

    def demand(self) -> int:
        return MAX_FORWARDING - len(self._under_way)

    def reserve(self, count: int) -> None:
        """Never asked: it locks what it takes."""

    def deliver(self, entry: Entry, token: bytes, locked_until_ms: int) -> None:
        self._under_way.add(token)
        try:
            self._forwarding.forward_waiting(
                self._source, entry, token, partial(self._moved, token)
            )
        except BaseException:
            self._under_way.discard(token)
            raise

    def _moved(self, token: bytes, error: Exception | None) -> None:
        """It is on disk in its new place, or still locked in the old one until the lock expires."""
        self._under_way.discard(token)
        self._source.queue.wake()

    def lose(self, error: RequestError) -> None:
        """It holds nothing."""
