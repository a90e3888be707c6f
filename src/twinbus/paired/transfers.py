"""What goes into the backlog, transfer by transfer: each message packed for its way, once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from twinbus import envelope
from twinbus.amqp.batches import BATCH_OVERHEAD, ITEM_OVERHEAD


class Transfers:
    """Messages to one entity, until a backlog queue has accepted them.

    What was packed and not accepted is the same, with the same ids, when it is tried again: only a
    queue that takes less at a time has it packed anew.
    """

    def __init__(self, path: str, messages: Iterable[bytes]) -> None:
        self._path = path
        self._pending = deque(messages)
        self._packed: deque[list[bytes]] = deque()  # of the first of them
        self._room = 0

    def __bool__(self) -> bool:
        return bool(self._pending)

    def next(self, limit: int) -> tuple[list[list[bytes]], int]:
        """Batches to send next, and how many messages are in them.

        As many whole messages as fit into one batch; or one message whose parts need several.
        """
        if limit - BATCH_OVERHEAD != self._room:
            self._room = limit - BATCH_OVERHEAD
            self._packed.clear()
        batch: list[bytes] = []
        size = 0
        for count, message in enumerate(self._pending):
            if count == len(self._packed):
                room = self._room - ITEM_OVERHEAD
                self._packed.append(envelope.pack(message, self._path, room))
            packed = self._packed[count]
            needed = sum(len(item) + ITEM_OVERHEAD for item in packed)
            if size + needed > self._room:
                return ([batch], count) if batch else ([[item] for item in packed], 1)
            batch += packed
            size += needed
        return [batch], len(self._pending)

    def accepted(self, count: int) -> None:
        """So many are in the backlog."""
        for _ in range(count):
            self._pending.popleft()
            self._packed.popleft()
