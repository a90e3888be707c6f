"""Peeking: a look at the messages of a queue, or of its dead letters, that locks none of them.

Messages are read as bytes, by the reader that cannot raise: one that makes no sense is like any
other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twinbus.homeward.received import ReceivedMessage
from twinbus.sdk.raw import RawReceiver

PAGE: Final = 250
DEAD_LETTERS: Final = "/$DeadLetterQueue"


def peeked(line: RawReceiver, limit: int | None = None) -> Iterator[ReceivedMessage]:
    """All that is there, in the order of sequence numbers, or the first ``limit``."""
    number, seen = 1, 0
    while limit is None or seen < limit:
        page = line.peek(PAGE if limit is None else min(PAGE, limit - seen), number)
        if not page:
            return
        yield from (as_received(each) for each in page)
        seen += len(page)
        number = max(number, *map(number_of, page)) + 1


def as_received(message: bytes) -> ReceivedMessage:
    return ReceivedMessage("", None, message, 0)


def number_of(message: bytes) -> int:
    """Its sequence number; 0 if it does not say one."""
    return as_received(message).sequence_number or 0


def last_number(line: RawReceiver) -> int:
    """The highest sequence number in a queue; 0 if it is empty. Looks for it by halves, so that it
    asks some dozens of times, however many messages there are."""
    low, step = 0, 1
    while (found := _first_from(line, low + step)) is not None:
        low, step = found, 2 * step
    high = low + step  # there is nothing at or above
    while low + 1 < high:
        middle = (low + high) // 2
        found = _first_from(line, middle)
        if found is None:
            high = middle
        else:
            low = found
    return low


def _first_from(line: RawReceiver, number: int) -> int | None:
    page = line.peek(1, number)
    return max(number, number_of(page[0])) if page else None
