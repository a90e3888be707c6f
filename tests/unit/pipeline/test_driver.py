"""A round, and a pause when nothing moves, in a world that answers as it is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.pipeline.backlogs import Backlog, plain

from twinbus.homeward.carrier import BusyError, RefusedError, UnavailableError
from twinbus.homeward.driver import LOCKED_S, PAUSE_S, Driver
from twinbus.homeward.rounds import Destinations, Hold, Orders, Outcome, Tally

Q = "contoso/x-servicebus-transfer/0"


def away(*_: object) -> None:
    raise UnavailableError("not now")


def stood_still(
    on_limit: Callable[[str], None] = lambda destination: None,
) -> tuple[Driver, Destinations, Backlog]:
    """After a round in which the one message there is did not go."""
    backlog = Backlog(on_send=away)
    backlog.divert(Q, "a", plain("1"))
    known = Destinations()
    driver = Driver(known, [Q])
    driver.round(backlog)
    backlog.on_limit = on_limit
    return driver, known, backlog


def paused_ms(driver: Driver, backlog: Backlog) -> int:
    began = backlog.now
    while driver.is_pausing:
        driver.glance(backlog)
    return backlog.now - began


def test_rounds_follow_one_another_while_something_moves() -> None:
    backlog = Backlog()
    backlog.divert(Q, "a", plain("1"))
    driver = Driver(Destinations(), [Q])
    assert driver.round(backlog).moved
    assert not driver.is_pausing
    assert not driver.round(backlog).tallies
    assert not driver.is_pausing


def test_a_pause_ends_when_a_destination_is_back() -> None:
    driver, known, backlog = stood_still()
    assert driver.is_pausing
    assert paused_ms(driver, backlog) == 1_000
    assert known.down() == {"a": "not now"}  # it has answered, and taken nothing yet


@pytest.mark.parametrize("error", [BusyError("later"), RefusedError("never"), KeyError("a")])
def test_an_answer_of_any_kind_is_one_of_who_is_back(error: Exception) -> None:
    def answer(_: str) -> None:
        raise error

    driver, _, backlog = stood_still(on_limit=answer)
    assert paused_ms(driver, backlog) == 1_000


def test_a_pause_that_nothing_ends_lasts_its_time_and_who_is_down_is_asked_less_and_less() -> None:
    asked: list[int] = []

    def answer(_: str) -> None:
        asked.append(backlog.now)
        away()

    driver, known, backlog = stood_still(on_limit=answer)
    began = backlog.now
    assert PAUSE_S * 1000 <= paused_ms(driver, backlog) < PAUSE_S * 1000 + 1_001
    assert [at - began for at in asked] == [1_000, 3_000, 7_000, 15_000]
    due = known.next_try(backlog.now / 1000)
    assert due == began / 1000 + 31


def test_a_pause_ends_when_a_message_comes_that_no_round_has_seen() -> None:
    driver, _, backlog = stood_still(on_limit=away)
    driver.glance(backlog)
    assert driver.is_pausing
    backlog.divert(Q, "b", plain("2"))
    driver.glance(backlog)
    assert not driver.is_pausing


def test_a_queue_that_cannot_be_looked_at_has_nothing_new() -> None:
    driver, _, backlog = stood_still(on_limit=away)
    backlog.has_after = away  # type: ignore[method-assign, assignment]
    driver.glance(backlog)
    assert driver.is_pausing


def test_where_nobody_is_down_a_pause_is_as_short_as_a_look_at_the_locks() -> None:
    """Messages wait for one before them, whose lock must end."""
    backlog, known = Backlog(), Destinations()
    backlog.divert(Q, "a", plain("1"))
    backlog.divert(Q, "a", plain("2"))
    driver = Driver(known, [Q])
    left = Tally(Q, "a", Outcome.SKIPPED, 1, 0, 0, until_ms=backlog.now + 60_000)
    known.learn([left], backlog.now / 1000, 1.0)
    assert not driver.round(backlog).moved
    assert paused_ms(driver, backlog) == LOCKED_S * 1000


def test_a_round_waits_for_a_lock_that_is_about_to_end() -> None:
    backlog, known = Backlog(), Destinations()
    until_ms = backlog.now + 1_000
    known.learn([Tally(Q, "a", Outcome.SKIPPED, 1, 1, 1, until_ms)], backlog.now / 1000, 1.0)
    assert known.orders(backlog.now / 1000).holds == {(Q, "a"): (Hold(1, until_ms),)}
    Driver(known, [Q]).round(backlog)
    assert backlog.now == pytest.approx(until_ms + 2_050, abs=1)


class CutShortError(BaseException):
    """As a simulator ends a step at a question, and makes it again when the answer is there."""


@pytest.mark.parametrize(
    ("step", "question"),
    [("round", "carry"), ("glance", "sleep"), ("glance", "limit"), ("glance", "has_after")],
)
def test_a_step_that_is_cut_short_has_changed_nothing(step: str, question: str) -> None:
    driver, known, backlog = stood_still(on_limit=away)

    def cut(*_: object) -> None:
        raise CutShortError

    def state() -> str:
        own = {name: value for name, value in vars(driver).items() if name != "_destinations"}
        return repr((own, vars(known)))

    setattr(backlog, question, cut)
    before = state()
    with pytest.raises(CutShortError):
        getattr(driver, step)(backlog)
    assert state() == before
    delattr(backlog, question)
    getattr(driver, step)(backlog)
    assert state() != before


def test_orders_are_given_for_when_the_round_begins() -> None:
    driver, _, backlog = stood_still()
    given: list[Orders] = []
    backlog.carry = lambda orders: given.append(orders) or []  # type: ignore[method-assign, func-returns-value]
    driver.round(backlog)
    backlog.now += 1_000
    driver.round(backlog)
    assert [orders.skip for orders in given] == [{"a"}, frozenset()]
