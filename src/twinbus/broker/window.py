"""The part of a queue that is in memory: a page of what comes next, however long the queue is.

Messages live on disk in the order of their sequence numbers. The window remembers up to where it
has read (``loaded_to``) and how far the disk goes (``tail``); between the two, messages wait on
disk and cost no memory. What was handed out and comes back (abandoned, released, its lock expired)
is remembered by number alone and read again when its turn comes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Container

from twinbus.broker.entry import Entry

PAGE = 256
PAGE_BYTES = 1 << 20
# More returned messages than this are not remembered one by one: the window reads them again.
MAX_RETURNED = 10_000

Load = Callable[[int, int, int], list[Entry]]
Get = Callable[[int], Entry | None]


class Window:
    """Ready messages in order. ``taken`` are those that nobody else may have."""

    __slots__ = ("_get", "_load", "_loaded_to", "_ready", "_returned", "_tail", "_taken")

    def __init__(self, load: Load, get: Get, taken: Container[int], tail: int) -> None:
        self._load = load
        self._get = get
        self._taken = taken
        self._ready: deque[Entry] = deque()
        self._returned: list[int] = []
        self._loaded_to = 0
        self._tail = tail

    def note(self, sequence: int) -> None:
        """A message was committed that nobody waits for: the disk has it."""
        if sequence > self._tail:
            self._tail = sequence

    def arrive(self, entry: Entry, *, wanted: bool) -> None:
        """A message was committed. Keep it only if someone waits for just this one."""
        sequence = entry.sequence
        waiting = len(self._ready)
        # No more than a page: somebody who receives slowly must not fill our memory.
        has_room = waiting < PAGE and waiting * entry.size < PAGE_BYTES
        if wanted and has_room and self._loaded_to >= self._tail and sequence > self._loaded_to:
            self._ready.append(entry)
            self._loaded_to = sequence
        if sequence > self._tail:
            self._tail = sequence

    def give_back(self, sequence: int) -> None:
        if sequence > self._loaded_to:
            return  # it will be read in its turn
        heapq.heappush(self._returned, sequence)
        if len(self._returned) > MAX_RETURNED:
            self._rewind()

    def _rewind(self) -> None:
        self._loaded_to = self._returned[0] - 1
        self._returned.clear()
        self._ready.clear()

    def next(self) -> Entry | None:
        """The oldest message that is ready, taken out of the window."""
        while self._returned and (not self._ready or self._returned[0] < self._ready[0].sequence):
            entry = self._get(self._returned[0])  # read before it is forgotten: a disk may fail
            heapq.heappop(self._returned)
            if entry is not None and entry.state == 0 and entry.sequence not in self._taken:
                return entry
        if not self._ready and self._loaded_to < self._tail:
            self._fill()
        return self._ready.popleft() if self._ready else None

    def _fill(self) -> None:
        while not self._ready and self._loaded_to < self._tail:
            page = self._load(self._loaded_to, PAGE, PAGE_BYTES)
            if not page:
                self._loaded_to = self._tail
                return
            self._loaded_to = page[-1].sequence
            self._ready.extend(entry for entry in page if entry.sequence not in self._taken)

    def shed(self) -> None:
        """Forget the page: nobody wants it now, and the disk has it."""
        if self._ready:
            self._loaded_to = self._ready[0].sequence - 1
            self._returned = [number for number in self._returned if number <= self._loaded_to]
            heapq.heapify(self._returned)
            self._ready.clear()
