"""What waits in the backlog, by queue and by destination; and what is dead at home.

One that makes no sense is counted like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from twinbus import envelope
from twinbus.amqp.sections import ENQUEUED
from twinbus.auth.credentials import Secret
from twinbus.client_errors import EnvelopeError
from twinbus.homeward.received import ReceivedMessage
from twinbus.operate.peek import DEAD_LETTERS, PAGE, peeked
from twinbus.sdk.links import Links

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
        return {**asdict(self), "oldest": self.oldest.isoformat() if self.oldest else None}


def look(
    secondary: Secret,
    queues: Iterable[str],
    limit: int | None = None,
    progress: Callable[[str, int], None] = lambda queue, messages: None,
) -> list[Waiting]:
    """Peek at everything, or at ``limit`` messages a queue, and count. Nothing is locked."""
    found: dict[tuple[str, str], Waiting] = {}
    with closing(Links()) as kept:
        for queue in queues:
            for seen, message in enumerate(peeked(kept.receiver(secondary, queue), limit), 1):
                _count(found, queue, message)
                if seen % PAGE == 0:
                    progress(queue, seen)
    return list(found.values())


def waiting_ids(secondary: Secret, queues: Iterable[str]) -> Iterator[tuple[str, str, bool]]:
    """(destination, message id, whether dead-lettered) of everything in the backlog. Nothing is
    locked. A message in parts is one message, if all of its parts are there."""
    parts: dict[tuple[str, int, bool], dict[int, bytes]] = {}
    with closing(Links()) as kept:
        for queue in queues:
            for dead, path in ((False, queue), (True, queue + DEAD_LETTERS)):
                for message in peeked(kept.receiver(secondary, path)):
                    home, part = _place(message)
                    if part is None:
                        yield home, _id(message), dead
                        continue
                    group = parts.setdefault((part[0], part[2], dead), {})
                    group[part[1]] = message.message
                    if len(group) == part[2]:
                        yield home, _id_of_parts(message, group), dead


def dead_ids(primary: Secret, manager: Any) -> Iterator[tuple[str, str]]:
    """(queue or topic, message id) of all dead letters of a namespace. Nothing is locked."""
    with closing(Links()) as kept:
        for home, path in _dead_letter_queues(manager):
            for message in peeked(kept.receiver(primary, path)):
                yield home, _id(message)


def _dead_letter_queues(manager: Any) -> Iterator[tuple[str, str]]:
    """Those that are not empty, by the queue or topic that they belong to."""
    for queue in manager.list_queues_runtime_properties():
        if queue.dead_letter_message_count:
            yield queue.name, queue.name + DEAD_LETTERS
    for topic in manager.list_topics():
        for found in manager.list_subscriptions_runtime_properties(topic.name):
            if found.dead_letter_message_count:
                yield topic.name, f"{topic.name}/Subscriptions/{found.name}{DEAD_LETTERS}"


def _place(message: ReceivedMessage) -> tuple[str, tuple[str, int, int] | None]:
    """Where it belongs, and which part of which message it is."""
    properties = message.application_properties or {}
    try:
        return envelope.home_of(properties).path, envelope.part_of(properties)
    except EnvelopeError:
        return NO_DESTINATION, None


def _id(message: ReceivedMessage) -> str:
    found = message.field(0)
    return "" if found is None else str(found)


def _id_of_parts(last: ReceivedMessage, group: dict[int, bytes]) -> str:
    try:
        return str(envelope.id_of(envelope.assemble(group.values())[1]))
    except EnvelopeError:
        return _id(last)


def _count(found: dict[tuple[str, str], Waiting], queue: str, message: ReceivedMessage) -> None:
    destination, part = _place(message)
    entry = found.setdefault((queue, destination), Waiting(queue, destination))
    # A message in parts is one message; its first part stands for it.
    entry.messages += 1 if part is None or part[1] == 0 else 0
    entry.bytes += len(message.message)
    at_us = message.time(ENQUEUED)
    at = None if at_us is None else datetime.fromtimestamp(at_us / 1e6, UTC)
    if at is not None and (entry.oldest is None or at < entry.oldest):
        entry.oldest = at
