"""What the broker has done and what it holds, as Prometheus reads it: `GET /metrics`.

The numbers are counted where things happen, as plain integers; here they are only written down.
A counter starts at 0 with the process. It is counted after the commit, so that a message is in it
once it is on disk. An entity's dead-letter queues are entities of their own among the counters, as
they are among the addresses, from the first time that anything happens there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from twinbus.broker.counts import Totals
from twinbus.broker.entity import Entity
from twinbus.broker.namespace import Namespace
from twinbus.broker.queue import Queue
from twinbus.exposition import MEDIA_TYPE, as_page, metric

_NOTHING = Totals()

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
    "locked_messages": ("Messages that a receiver holds.", lambda e: len(e.queue.locks)),
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
    store = host.namespace.store
    filled = [each.id for each in host.namespace.directory.entities() if each.queue.counts.active]
    oldest_ms = await asyncio.to_thread(store.oldest_ms, filled)
    return Response(as_page(exposition(host, oldest_ms)), media_type=MEDIA_TYPE)


def exposition(host: Served, oldest_ms: dict[int, int]) -> Iterator[str]:
    """The lines of the page. ``oldest_ms`` is when the first active message of an entity came."""
    whole = {"namespace": host.namespace.name}
    entities = list(host.namespace.directory.entities())
    queues = [queue for entity in entities for queue in _counted(entity)]
    for name, text in _COUNTERS.items():
        counts = [({**whole, "entity": q.path}, getattr(q.totals, name)) for q in queues]
        yield from metric(name, "counter", text, counts)
    for name, (text, value) in _GAUGES.items():
        values = [({**whole, "entity": each.path}, value(each)) for each in entities]
        yield from metric(name, "gauge", text, values)
    yield from _oldest(host.namespace.name, entities, oldest_ms)
    yield from metric(
        "connections", "gauge", "AMQP connections that are open.", [(whole, host.connection_count)]
    )
    yield from metric("links", "gauge", "AMQP links that are open.", [(whole, host.link_count)])


def _oldest(namespace: str, entities: list[Entity], oldest_ms: dict[int, int]) -> Iterator[str]:
    """A time, not an age: it is as true later as it was when it was asked for."""
    found = [
        ({"namespace": namespace, "entity": entity.path}, oldest_ms[entity.id] / 1000)
        for entity in entities
        if entity.id in oldest_ms
    ]
    text = "When the first message that is ready or locked came."
    yield from metric("oldest_message_timestamp_seconds", "gauge", text, found)


def _counted(entity: Entity) -> Iterator[Queue]:
    yield entity.queue
    for queue in entity.queues[1:]:
        if queue.totals != _NOTHING:
            yield queue
