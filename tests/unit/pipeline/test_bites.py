"""Taking what is in several queues now: all are asked at once, and read in turn."""

from __future__ import annotations

from itertools import islice
from uuid import uuid4

import pytest
from azure.servicebus.exceptions import ServiceBusError

from twinbus.homeward.bites import BATCH_S, Tap, bites, spread
from twinbus.homeward.received import ReceivedMessage


class Hand:
    """A clock that somebody turns."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def elapsed_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Queue:
    """One with so many messages, which writes down what it is asked."""

    def __init__(self, name: str, messages: int, story: list[str]) -> None:
        self.name = name
        self.messages = messages
        self.story = story
        self.fails_at: str | None = None

    def ask(self, count: int) -> None:
        self._told(f"ask {count}")

    def answer(self, count: int) -> list[ReceivedMessage]:
        self._told("answer")
        taken = min(count, self.messages)
        self.messages -= taken
        return [ReceivedMessage(self.name, uuid4(), b"", 0) for _ in range(taken)]

    def let_go(self) -> None:
        self._told("let go")

    def _told(self, what: str) -> None:
        self.story.append(f"{self.name}: {what}")
        if self.fails_at is not None and what.startswith(self.fails_at):
            raise ServiceBusError("it is away")


def none(path: str, error: Exception) -> None:
    raise AssertionError(f"{path}: {error}")


def taps(story: list[str], **messages: int) -> dict[str, Queue]:
    return {name: Queue(name, count, story) for name, count in messages.items()}


def test_all_are_asked_before_one_is_read_and_those_that_gave_all_are_asked_again() -> None:
    story: list[str] = []
    queues: dict[str, Tap] = dict(taps(story, a=5, b=1))
    sizes = [(some[0].entity, len(some)) for some in bites(queues, 100, Hand(), none, bite=3)]
    assert sizes == [("a", 3), ("b", 1), ("a", 2)]
    assert story[:2] == ["a: ask 3", "b: ask 3"]
    assert story == [*story[:2], "a: answer", "a: ask 3", "b: answer", "a: answer"]


def test_no_queue_gives_more_than_its_share() -> None:
    story: list[str] = []
    queues: dict[str, Tap] = dict(taps(story, a=99))
    assert [len(some) for some in bites(queues, 5, Hand(), none, bite=2)] == [2, 2, 1]
    assert story[-2:] == ["a: ask 1", "a: answer"]


def test_no_more_is_asked_for_when_time_is_up() -> None:
    story: list[str] = []
    queues: dict[str, Tap] = dict(taps(story, a=99))
    clock = Hand()
    taken = bites(queues, 99, clock, none, bite=2)
    next(taken)
    clock.sleep(BATCH_S)
    assert [len(some) for some in taken] == [2]  # it was on its way


@pytest.mark.parametrize("fails_at", ["ask", "answer"])
def test_a_queue_that_does_not_answer_has_nothing_and_the_others_do(fails_at: str) -> None:
    told: list[tuple[str, str]] = []
    queues = taps([], a=3, b=3)
    queues["a"].fails_at = fails_at
    taken = bites(dict(queues), 9, Hand(), lambda path, error: told.append((path, str(error))))
    assert [some[0].entity for some in taken] == ["b"]
    assert told == [("a", "it is away")]


def test_who_stops_reading_lets_go_of_what_was_asked_for() -> None:
    story: list[str] = []
    queues = taps(story, a=1, b=1, c=1)
    queues["b"].fails_at = "let go"
    taken = bites(dict(queues), 9, Hand(), none)
    assert len(list(islice(taken, 1))) == 1
    taken.close()  # type: ignore[attr-defined]
    assert story[-2:] == ["b: let go", "c: let go"]


def test_queues_are_spread_over_groups_of_about_one_size() -> None:
    assert spread(["a", "b", "c"], 2) == [("a", "c"), ("b",)]
    assert spread(["a"], 4) == [("a",)]
    assert spread([], 4) == []
