"""What the broker has done and what it holds, as Prometheus reads it: `GET /metrics`.

The numbers are counted where things happen, as plain integers; here they are only written down.
A counter starts at 0 with the process. It is counted after the commit, so that a message is in it
once it is on disk. An entity's dead-letter queues are entities of their own among the counters, as
they are among the addresses, from the first time that anything happens there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from twinbus.broker.entities import Entity
from twinbus.broker.namespace import Namespace
from twinbus.broker.queue import Queue, Tally

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NOTHING = Tally()

_COUNTERS = {
    "messages_in": "Messages taken in: sent, scheduled, or copied to a subscription.",
    "messages_out": "Messages delivered to receivers.",
    "completed": "Messages completed by receivers.",
    "dead_lettered": "Messages moved to a dead-letter queue.",
    "duplicates_dropped": "Messages dropped by duplicate detection.",
    "receive_requests": "Times that a receiver asked for messages.",
    "empty_receives": "Times that a receiver asked and got none.",
}
_GAUGES: dict[str, tuple[str, Callable[[Entity], int]]] = {
    "active_messages": ("Messages that are ready or locked.", lambda e: e.queue.counts.active),
    "deferred_messages": ("Messages put aside.", lambda e: e.queue.counts.deferred),
    "scheduled_messages": ("Messages to appear later.", lambda e: e.queue.counts.scheduled),
    "dead_letter_messages": ("Messages given up.", lambda e: e.dead_letters.counts.total),
    "transfer_dead_letter_messages": (
        "Messages that could not be forwarded.",
        lambda e: e.transfer_dead_letters.counts.total,
    ),
}


class Served(Protocol):
    """A namespace with its clients: the listener."""

    @property
    def namespace(self) -> Namespace: ...

    @property
    def connection_count(self) -> int: ...

    @property
    def link_count(self) -> int: ...


async def metrics_page(host: Served, request: Request) -> Response:
    return Response("\n".join([*exposition(host), ""]), media_type=MEDIA_TYPE)


def exposition(host: Served) -> Iterator[str]:
    """The lines of Prometheus's text format."""
    namespace = _quoted(host.namespace.name)
    entities = list(host.namespace.directory.entities())
    queues = [queue for entity in entities for queue in _counted(entity)]
    for name, text in _COUNTERS.items():
        yield from _head(f"{name}_total", "counter", text)
        for queue in queues:
            labels = f'namespace="{namespace}",entity="{_quoted(queue.path)}"'
            yield f"twinbus_{name}_total{{{labels}}} {getattr(queue.tally, name)}"
    for name, (text, value) in _GAUGES.items():
        yield from _head(name, "gauge", text)
        for entity in entities:
            labels = f'namespace="{namespace}",entity="{_quoted(entity.path)}"'
            yield f"twinbus_{name}{{{labels}}} {value(entity)}"
    yield from _oldest(host.namespace, entities)
    for name, text, count in (
        ("connections", "AMQP connections that are open.", host.connection_count),
        ("links", "AMQP links that are open.", host.link_count),
    ):
        yield from _head(name, "gauge", text)
        yield f'twinbus_{name}{{namespace="{namespace}"}} {count}'


def _oldest(namespace: Namespace, entities: list[Entity]) -> Iterator[str]:
    """A time, not an age: it is as true later as it was when it was asked for."""
    name = "oldest_message_timestamp_seconds"
    yield from _head(name, "gauge", "When the first message that is ready or locked came.")
    for entity in entities:
        at_ms = namespace.store.oldest_ms(entity.id) if entity.queue.counts.active else None
        if at_ms is not None:
            labels = f'namespace="{_quoted(namespace.name)}",entity="{_quoted(entity.path)}"'
            yield f"twinbus_{name}{{{labels}}} {at_ms / 1000:.3f}"


def _counted(entity: Entity) -> Iterator[Queue]:
    yield entity.queue
    for queue in entity.queues[1:]:
        if queue.tally != _NOTHING:
            yield queue


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP twinbus_{name} {text}"
    yield f"# TYPE twinbus_{name} {kind}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
