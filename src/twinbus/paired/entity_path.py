"""The path of what a receiver reads: a queue, a subscription, or a dead-letter queue of either."""

from __future__ import annotations

from dataclasses import dataclass

from azure.servicebus import ServiceBusSubQueue

_SUB_QUEUES = {
    "/$transfer/$deadletterqueue": ServiceBusSubQueue.TRANSFER_DEAD_LETTER,
    "/$deadletterqueue": ServiceBusSubQueue.DEAD_LETTER,
}
_SUBSCRIPTIONS = "/subscriptions/"


@dataclass(frozen=True, slots=True)
class EntityPath:
    entity: str
    subscription: str | None = None
    sub_queue: ServiceBusSubQueue | None = None


def parse_path(path: str) -> EntityPath:
    sub_queue = None
    for ending, kind in _SUB_QUEUES.items():
        if path.lower().endswith(ending):
            path, sub_queue = path[: -len(ending)], kind
            break
    at = path.lower().find(_SUBSCRIPTIONS)
    if at < 0:
        return EntityPath(path, None, sub_queue)
    return EntityPath(path[:at], path[at + len(_SUBSCRIPTIONS) :], sub_queue)
