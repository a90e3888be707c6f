"""The page of a queue that is in memory, over a disk that is a list."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from twinbus.broker.entry import Entry
from twinbus.broker.refusals import StoreError
from twinbus.broker.window import MAX_RETURNED, PAGE, Window


def entry(sequence: int, size: int = 10) -> Entry:
    times = (0, 0, None, None)
    return Entry(sequence, 0, *times, None, None, 0, size, 0, *(None,) * 5, b"x")


@dataclass
class Disk:
    """What is stored, and how often it was asked."""

    entries: dict[int, Entry] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    loads: int = 0
    fails: bool = False

    def put(self, *sequences: int) -> None:
        self.entries.update({number: entry(number) for number in sequences})

    def load(self, after: int, limit: int, max_bytes: int) -> list[Entry]:
        self.check()
        self.loads += 1
        found = [self.entries[number] for number in sorted(self.entries) if number > after]
        return found[:limit]

    def get(self, sequence: int) -> Entry | None:
        self.check()
        return self.entries.get(sequence)

    def check(self) -> None:
        if self.fails:
            raise StoreError("the store failed")

    def window(self, tail: int | None = None) -> Window:
        last = max(self.entries, default=0)
        return Window(self.load, self.get, self.held, last if tail is None else tail)


def drain(window: Window, limit: int = 100_000) -> list[int]:
    found: list[int] = []
    while len(found) < limit and (got := window.next()) is not None:
        found.append(got.sequence)
    return found


def test_a_long_queue_is_read_page_by_page_and_each_message_once() -> None:
    disk = Disk()
    disk.put(*range(1, 3 * PAGE))
    window = disk.window()
    assert drain(window) == list(range(1, 3 * PAGE))
    assert disk.loads == 3


def test_an_empty_window_does_not_ask_the_disk_again() -> None:
    disk = Disk()
    disk.put(1)
    window = disk.window()
    drain(window)
    loads = disk.loads
    assert drain(window) == []
    assert disk.loads == loads


def test_what_arrives_while_somebody_waits_needs_no_reading() -> None:
    disk = Disk()
    window = disk.window()
    disk.put(1)
    window.arrive(disk.entries[1], wanted=True)
    assert drain(window) == [1]
    assert disk.loads == 0


def test_what_arrives_while_nobody_waits_is_left_on_disk() -> None:
    disk = Disk()
    window = disk.window()
    for number in range(1, 1_001):
        disk.put(number)
        window.arrive(disk.entries[number], wanted=False)
    assert len(window._ready) == 0
    assert drain(window) == list(range(1, 1_001))


def test_what_arrives_behind_a_backlog_waits_its_turn() -> None:
    disk = Disk()
    disk.put(1, 2)
    window = disk.window()
    disk.put(3)
    window.arrive(disk.entries[3], wanted=True)
    assert drain(window) == [1, 2, 3]


def test_what_comes_back_goes_before_what_is_younger() -> None:
    disk = Disk()
    disk.put(1, 2, 3, 4)
    window = disk.window()
    assert drain(window, 3) == [1, 2, 3]
    window.give_back(2)
    window.give_back(1)
    assert drain(window) == [1, 2, 4]


def test_what_came_back_and_is_gone_or_held_meanwhile_is_passed_over() -> None:
    disk = Disk()
    disk.put(1, 2, 3)
    window = disk.window()
    drain(window)
    for number in (1, 2, 3):
        window.give_back(number)
    del disk.entries[1]
    disk.held.add(2)
    assert drain(window) == [3]


def test_very_many_that_come_back_are_not_remembered_one_by_one() -> None:
    disk = Disk()
    disk.put(*range(1, MAX_RETURNED + 100))
    window = disk.window()
    everything = drain(window)
    for number in everything:
        window.give_back(number)
    assert len(window._returned) <= MAX_RETURNED
    assert drain(window) == everything


def test_reading_again_passes_over_what_somebody_holds() -> None:
    disk = Disk()
    disk.put(*range(1, MAX_RETURNED + 10))
    window = disk.window()
    everything = drain(window)
    disk.held.add(5)
    for number in everything:
        if number != 5:
            window.give_back(number)
    again = drain(window)
    assert again == [number for number in everything if number != 5]
    disk.held.clear()
    window.give_back(5)
    assert drain(window) == [5]


def test_a_page_that_nobody_wants_is_forgotten_and_read_again() -> None:
    disk = Disk()
    disk.put(1, 2, 3)
    window = disk.window()
    assert drain(window, 1) == [1]
    window.shed()
    assert len(window._ready) == 0
    assert drain(window) == [2, 3]


def test_a_disk_that_cannot_be_read_costs_no_message_its_turn() -> None:
    disk = Disk()
    disk.put(1, 2, 3)
    window = disk.window()
    drain(window)
    window.give_back(2)
    disk.fails = True
    with pytest.raises(StoreError):
        window.next()
    disk.fails = False
    assert drain(window) == [2]


def test_for_one_message_no_more_than_its_page_is_read() -> None:
    disk = Disk()
    disk.put(*range(1, 3 * PAGE))
    first = disk.window().next()
    assert (first and first.sequence, disk.loads) == (1, 1)
