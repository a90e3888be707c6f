"""What a queue's messages come to: how many there are, and what has become of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """How many messages there are, and how large they are together."""

    active: int = 0
    deferred: int = 0
    scheduled: int = 0
    bytes: int = 0
    pings: int = 0

    @property
    def total(self) -> int:
        return self.active + self.deferred + self.scheduled


@dataclass(slots=True)
class Totals:
    """What has happened to a queue's messages since the broker started; `metrics` tells it."""

    messages_in: int = 0
    messages_out: int = 0
    completed: int = 0
    dead_lettered: int = 0
    duplicates_dropped: int = 0
    receive_requests: int = 0
    empty_receives: int = 0
