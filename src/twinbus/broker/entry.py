"""A message in a queue: what of it is kept, in a row of the store and in memory."""

from __future__ import annotations

from dataclasses import dataclass

ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2


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
