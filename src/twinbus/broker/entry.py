"""A message in a queue: what of it is kept, in a row of the store and in memory."""

from __future__ import annotations

from dataclasses import dataclass, fields

ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2
# The content type of a message that only asks whether a send would work. It is kept nowhere.
PING = "application/vnd.ms-servicebus-ping"
LAST_MS = 253_402_300_799_999  # the end of the year 9999, where Service Bus's time ends


@dataclass(slots=True)
class Entry:
    """One message in one queue. Most have nothing but a number, a time and their bytes."""

    sequence: int = 0
    state: int = ACTIVE
    delivery_count: int = 0
    enqueued_ms: int = 0
    expires_ms: int | None = None
    due_ms: int | None = None
    session: str | None = None
    ttl_ms: int | None = None
    flags: int = 0
    size: int = 0
    hops: int = 0
    origin_sequence: int | None = None
    dead_source: str | None = None
    delivery_annotations: bytes | None = None
    annotations: bytes | None = None
    body: int | None = None
    bare: bytes = b""


# All but the number. The store has them under the same names, and in this order.
COLUMNS = tuple(column.name for column in fields(Entry)[1:])


def lifetime(ttl_ms: int, from_ms: int) -> tuple[int | None, int | None]:
    """A time to live and when it ends; beyond what a timestamp can say a message never expires."""
    if from_ms + ttl_ms > LAST_MS:
        return None, None
    return ttl_ms, from_ms + ttl_ms
