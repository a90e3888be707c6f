"""What the driver learns from a round, and orders for the next. The clock is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from tests.unit.pipeline.backlogs import Backlog, plain

from twinbus.homeward.carrier import UnavailableError
from twinbus.homeward.driver import Driver
from twinbus.homeward.rounds import (
    BUSY_S,
    LAST_RETRY_S,
    SKEW_MS,
    Destinations,
    Hold,
    Outcome,
    Tally,
)

Q = "contoso/x-servicebus-transfer/0"


def tally(
    outcome: Outcome, messages: int = 1, lowest: int = 1, until_ms: int = 0, destination: str = "a"
) -> Tally:
    return Tally(Q, destination, outcome, messages, lowest, lowest + messages, until_ms)


def test_a_destination_that_fails_is_left_alone_longer_every_time() -> None:
    known = Destinations()
    now, pauses = 0.0, []
    for _ in range(8):
        known.learn([tally(Outcome.FAILED)], now, 1)
        due = known.next_try(now)
        assert due is not None
        assert "a" in known.orders(due - 0.1).skip
        assert "a" not in known.orders(due).skip
        pauses.append(due - now)
        now = due
    assert pauses[0] == 1
    assert all(later == min(LAST_RETRY_S, 2 * earlier) for earlier, later in pairwise(pauses))


def test_a_destination_that_takes_messages_again_is_forgiven() -> None:
    known = Destinations()
    known.learn([tally(Outcome.FAILED)], 0, 1)
    assert known.down() == {"a": ""}
    known.learn([tally(Outcome.MOVED)], 5, 1)
    assert known.down() == {}
    known.learn([tally(Outcome.FAILED)], 6, 1)
    assert known.next_try(6) == 7


def test_a_busy_destination_gets_ten_seconds_then_half_the_pace_and_more_with_each_round() -> None:
    known = Destinations(workers=2)
    known.learn([tally(Outcome.MOVED, messages=4000), tally(Outcome.BUSY)], 100, took_s=2)
    assert known.orders(100 + BUSY_S - 0.1).skip == {"a"}
    assert known.orders(100 + BUSY_S).skip == frozenset()
    assert known.orders(110).paces == {"a": 500}
    known.learn([tally(Outcome.MOVED)], 112, 1)
    assert known.orders(112).paces == {"a": 625}
    for _ in range(30):
        known.learn([tally(Outcome.MOVED)], 120, 1)
    assert known.orders(120).paces == {}


def test_busy_over_and_over_is_never_slower_than_the_slowest() -> None:
    known = Destinations()
    for _ in range(20):
        known.learn([tally(Outcome.BUSY)], 0, 1)
    assert known.orders(60).paces == {"a": 10}


def test_a_rate_is_shared_out_to_the_workers() -> None:
    assert Destinations(workers=4, rate=100).orders(0).pace == 25


@pytest.mark.parametrize("outcome", [Outcome.BUSY, Outcome.FAILED, Outcome.SKIPPED])
def test_what_was_left_under_lock_holds_those_behind_it_until_the_lock_has_ended(
    outcome: Outcome,
) -> None:
    known = Destinations()
    known.learn([tally(outcome, lowest=7, until_ms=60_000)], 1, 1)
    assert known.orders(1).holds == {(Q, "a"): (Hold(7, 60_000),)}
    known.learn([], 63, 1)
    assert known.orders(63).holds == {}


def test_a_hold_keeps_those_behind_and_those_received_before_it_ended() -> None:
    hold = Hold(7, 60_000)
    assert not hold.keeps(7, 0)
    assert hold.keeps(8, 60_000 + SKEW_MS)
    assert not hold.keeps(8, 60_000 + SKEW_MS + 1)


# ---------------------------------------------------------------- many rounds


class Down:
    """Destinations that do not answer, for a while."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    def __call__(self, destination: str, ids: Sequence[str]) -> None:
        if destination in self.names:
            raise UnavailableError("not now")


def drive(backlog: Backlog, known: Destinations, ends_ms: int, most: int = 5000) -> None:
    """Rounds and pauses, each half a second after there is something to receive."""
    driver, backlog.share = Driver(known, backlog.queues), most
    while not backlog.is_empty() and backlog.now < ends_ms:
        ready = backlog.next_ready_ms()
        assert ready is not None
        backlog.now = ready + 500
        driver.round(backlog)
        while driver.is_pausing:
            driver.glance(backlog)


def test_others_flow_on_behind_a_long_run_for_a_destination_that_is_down() -> None:
    backlog = Backlog(on_send=Down("down"))
    for number in range(230):
        backlog.divert(Q, "down", plain(str(number)))
    backlog.divert(Q, "up", plain("behind"))
    known = Destinations(share=50)
    drive(backlog, known, backlog.now + 60_000, most=50)
    assert backlog.home == {"up": ["behind"]}


def test_what_was_held_comes_home_soon_after_its_destination_is_back() -> None:
    """Not one message a minute: those that wait for one another go together."""
    down = Down("down")
    backlog = Backlog(on_send=down)
    for number in range(60):
        backlog.divert(Q, "down" if number % 2 else "up", plain(str(number)))
    known = Destinations()
    drive(backlog, known, backlog.now + 30_000)
    assert "down" not in backlog.home
    down.names.clear()
    drive(backlog, known, backlog.now + 300_000)
    assert backlog.home["down"] == [str(number) for number in range(60) if number % 2]
    assert backlog.now < 1_000_000 + 200_000


def seen_for_long(share: int) -> Destinations:
    """Two parts of a message were all that a round took of its queue, for longer than it takes."""
    known = Destinations(share=share)
    for now in range(0, 200, 20):
        part = Tally(Q, "orders", Outcome.PARTIAL, 2, 1, 2, part_of="group")
        known.learn([part], float(now), 1.0)
    return known


def test_parts_that_are_seen_without_the_others_for_long_are_alone() -> None:
    assert seen_for_long(share=3).orders(200.0).alone == {"group"}


def test_a_round_that_was_cut_short_does_not_say_that_a_part_is_alone() -> None:
    """The others may lie behind; who is taken to be alone is dead-lettered in the end."""
    assert not seen_for_long(share=2).orders(200.0).alone
