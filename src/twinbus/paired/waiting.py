"""What waits in the backlog, by queue and by destination; and what is dead at home."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusReceiver, ServiceBusSubQueue
from azure.servicebus.amqp import AmqpMessageBodyType

from twinbus import envelope
from twinbus.envelope import is_backlog_path
from twinbus.errors import EnvelopeError
from twinbus.paired.blocking.manager import NamespaceManager

PAGE = 250
_SEQUENCE = AmqpMessageBodyType.SEQUENCE
NO_DESTINATION = "(no x-ms-path)"


@dataclass(slots=True)
class Waiting:
    """The messages of one backlog queue for one destination."""

    queue: str
    destination: str
    messages: int = 0
    bytes: int = 0
    oldest: datetime | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "queue": self.queue,
            "destination": self.destination,
            "messages": self.messages,
            "bytes": self.bytes,
            "oldest": self.oldest.isoformat() if self.oldest else None,
        }


def backlog_queues(manager: NamespaceManager, primary_name: str | None = None) -> list[str]:
    """The backlog queues of a namespace: all, or those of one primary."""
    names = [queue.name for queue in manager.list_queues()]
    found = [name for name in names if is_backlog_path(name)]
    if primary_name is not None:
        found = [name for name in found if name.split("/")[0].lower() == primary_name.lower()]
    return sorted(found, key=lambda name: (name.split("/")[0], int(name.split("/")[2])))


def look(
    client: ServiceBusClient,
    queues: Iterable[str],
    limit: int | None = None,
    progress: Callable[[str, int], None] = lambda queue, messages: None,
) -> list[Waiting]:
    """Peek at everything, or at ``limit`` messages a queue, and count. Nothing is locked."""
    found: dict[tuple[str, str], Waiting] = {}
    for queue in queues:
        with client.get_queue_receiver(queue) as receiver:
            for seen, message in enumerate(_peek(receiver, limit), 1):
                _count(found, queue, message)
                if seen % PAGE == 0:
                    progress(queue, seen)
    return list(found.values())


def waiting_ids(client: ServiceBusClient, queues: Iterable[str]) -> Iterator[tuple[str, str, bool]]:
    """(destination, message id, whether dead-lettered) of everything in the backlog. Nothing is
    locked. A message in parts is one message, if all of its parts are there."""
    parts: dict[tuple[str, bool], dict[int, Any]] = {}
    for queue in queues:
        for dead in (False, True):
            where: dict[str, Any] = {"sub_queue": ServiceBusSubQueue.DEAD_LETTER} if dead else {}
            with client.get_queue_receiver(queue, **where) as receiver:
                for message in _peek(receiver, None):
                    properties = message.application_properties or {}
                    try:
                        part = envelope.part_of(properties)
                        home = envelope.home_of(properties).path
                    except EnvelopeError:
                        yield NO_DESTINATION, str(message.message_id), dead
                        continue
                    if part is None:
                        yield home, str(message.message_id), dead
                        continue
                    group = parts.setdefault((part[0], dead), {})
                    group[part[1]] = message
                    if len(group) == part[2]:
                        yield home, _id_of_parts(group), dead


def dead_ids(client: ServiceBusClient, manager: NamespaceManager) -> Iterator[tuple[str, str]]:
    """(queue or topic, message id) of all dead letters of a namespace. Nothing is locked."""
    for home, opened in _dead_letter_queues(client, manager):
        with opened as receiver:
            for message in _peek(receiver, None):
                yield home, str(message.message_id)


def _dead_letter_queues(
    client: ServiceBusClient, manager: NamespaceManager
) -> Iterator[tuple[str, ServiceBusReceiver]]:
    """Those that are not empty, by the queue or topic that they belong to."""
    dead = ServiceBusSubQueue.DEAD_LETTER
    for queue in manager.list_queues_runtime_properties():
        if queue.dead_letter_message_count:
            yield queue.name, client.get_queue_receiver(queue.name, sub_queue=dead)
    for topic in manager.list_topics():
        for found in manager.list_subscriptions_runtime_properties(topic.name):
            if found.dead_letter_message_count:
                receiver = client.get_subscription_receiver(topic.name, found.name, sub_queue=dead)
                yield topic.name, receiver


def _id_of_parts(group: dict[int, Any]) -> str:
    bodies = (b"".join(group[number].body) for number in sorted(group))
    whole = envelope.join_bodies(group[0].application_properties or {}, bodies)
    return str(envelope.id_of(whole))


def _peek(receiver: Any, limit: int | None) -> Iterator[Any]:
    number, seen = 1, 0
    while limit is None or seen < limit:
        page = receiver.peek_messages(
            PAGE if limit is None else min(PAGE, limit - seen), sequence_number=number
        )
        if not page:
            return
        yield from page
        seen += len(page)
        number = (page[-1].sequence_number or 0) + 1


def _count(found: dict[tuple[str, str], Waiting], queue: str, message: Any) -> None:
    properties = message.application_properties or {}
    try:
        destination = envelope.home_of(properties).path
        part = envelope.part_of(properties)
    except EnvelopeError:
        destination, part = NO_DESTINATION, None
    entry = found.setdefault((queue, destination), Waiting(queue, destination))
    # A message in parts is one message; its first part stands for it.
    entry.messages += 1 if part is None or part[1] == 0 else 0
    entry.bytes += _size(message, properties)
    at = message.enqueued_time_utc
    if at is not None and (entry.oldest is None or at < entry.oldest):
        entry.oldest = at


def _size(message: Any, properties: dict[Any, Any]) -> int:
    """Body and properties, near enough: the SDK does not keep a message's encoding."""
    raw = message.raw_amqp_message
    if raw.body_type is AmqpMessageBodyType.DATA:
        body = sum(len(piece) for piece in raw.body)
    else:
        body = len(repr(list(raw.body) if raw.body_type is _SEQUENCE else raw.body))
    return body + sum(len(str(key)) + len(str(value)) for key, value in properties.items())
