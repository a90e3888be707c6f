"""Taking what is in several queues now, in bites: who is asked for how much, and until when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from twinbus.homeward.received import ReceivedMessage
from twinbus.homeward.times import Times

# Rows of one queue in one micro-batch. A full batch must be sent and settled well within the minute
# that a lock lasts, and the fixed cost of a micro-batch is that of some thousand messages.
ROWS_A_QUEUE: Final = 5000
# What is taken at once. It is on its way to the sink before more is asked for.
BITE: Final = 500
# After this long no more is asked for: the locks of what came first are running.
BATCH_S: Final = 20.0


class Tap(Protocol):
    """What is needed of a queue's receiver."""

    def ask(self, count: int) -> None: ...
    def answer(self, count: int) -> list[ReceivedMessage]:
        """Up to ``count`` messages of those that are ready; fewer say that there are no more."""

    def let_go(self) -> object:
        """Nothing more is wanted of what was asked for."""


Told = Callable[[str, Exception], None]


def spread(queues: Sequence[str], most: int) -> list[tuple[str, ...]]:
    """The queues in at most ``most`` groups of about one size."""
    count = min(most, len(queues))
    return [tuple(queues[index::count]) for index in range(count)]


def bites(
    taps: Mapping[str, Tap], share: int, times: Times, told: Told, bite: int = BITE
) -> Iterator[list[ReceivedMessage]]:
    """Bites of each queue in turn, until it is empty, has given its share, or time is up.

    All queues are asked before the first answer is read: while one is read, the others' brokers
    work. A queue that does not answer has nothing this time, and ``told`` hears why.
    """
    left = dict.fromkeys(taps, share)
    ends = times.elapsed_s() + BATCH_S
    asked = {path: n for path in taps if (n := _ask(path, taps[path], min(bite, share), told))}
    try:
        while asked:
            path = next(iter(asked))
            count = asked.pop(path)
            found = _answer(path, taps[path], count, told)
            left[path] -= len(found)
            if len(found) == count and times.elapsed_s() < ends:
                again = _ask(path, taps[path], min(bite, left[path]), told)
                if again:
                    asked[path] = again
            if found:
                yield found
    finally:
        for path in asked:  # the reader was closed before its time
            with suppress(Exception):
                taps[path].let_go()


def _ask(path: str, tap: Tap, count: int, told: Told) -> int:
    if not count:
        return 0
    try:
        tap.ask(count)
    except Exception as error:  # noqa: BLE001  one queue's trouble is not the others'
        told(path, error)
        return 0
    return count


def _answer(path: str, tap: Tap, count: int, told: Told) -> list[ReceivedMessage]:
    try:
        return tap.answer(count)
    except Exception as error:  # noqa: BLE001  one queue's trouble is not the others'
        told(path, error)
        return []
