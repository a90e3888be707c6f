"""The state machine: by table, by scenario, and by random walks that agree with a simple model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.failover.states import (
    TRANSITIONS,
    Event,
    Failover,
    IllegalEventError,
    State,
)

HEALTHY, SUSPECT, DIVERTED = State.HEALTHY, State.SUSPECT, State.DIVERTED


def test_every_state_has_a_row_and_every_row_leads_to_a_state() -> None:
    assert set(TRANSITIONS) == set(State)
    assert all(after in State for row in TRANSITIONS.values() for after in row.values())


def test_every_event_is_used() -> None:
    assert {event for row in TRANSITIONS.values() for event in row} == set(Event)


def test_only_a_ping_or_an_operator_ends_a_diversion() -> None:
    ends = {event for event, after in TRANSITIONS[DIVERTED].items() if after is not DIVERTED}
    assert ends == {Event.PING_SUCCEEDED, Event.MARKED_HEALTHY}


def test_only_the_interval_starts_a_diversion() -> None:
    ways = {
        (before, event)
        for before, row in TRANSITIONS.items()
        for event, after in row.items()
        if after is DIVERTED and before is not DIVERTED
    }
    assert ways == {(SUSPECT, Event.INTERVAL_PASSED)}


def test_an_illegal_event_raises_and_leaves_the_state_as_it_was() -> None:
    failover = Failover(60)
    with pytest.raises(
        IllegalEventError, match="'ping failed' cannot happen to an entity that is h"
    ):
        failover.ping_failed()
    assert failover.state is HEALTHY


def test_interval_zero_diverts_on_the_first_failure() -> None:
    failover = Failover(0)
    assert failover.failed(100, 99) == (SUSPECT, DIVERTED)


def test_a_failure_starts_a_timer_and_the_interval_without_success_engages_failover() -> None:
    failover = Failover(60)
    assert failover.failed(100, 99) == (SUSPECT,)
    assert failover.look(159.9) == ()
    assert failover.look(160) == (DIVERTED,)


def test_later_failures_do_not_start_the_timer_anew() -> None:
    failover = Failover(60)
    failover.failed(100, 99)
    assert failover.failed(150, 149) == ()
    assert failover.failed(161, 155) == (DIVERTED,)


def test_a_success_within_the_interval_clears_the_suspicion() -> None:
    failover = Failover(60)
    failover.failed(100, 99)
    assert failover.succeeded() == (HEALTHY,)
    assert failover.look(1000) == ()
    assert failover.failed(1000, 999) == (SUSPECT,)
    assert failover.look(1059) == (), "the timer runs from the new failure"


def test_a_ping_that_succeeds_restores_the_entity() -> None:
    failover = Failover(0)
    failover.failed(100, 99)
    assert failover.ping_failed() == ()
    assert failover.ping_succeeded(200) == (HEALTHY,)


def test_what_began_before_the_restoration_says_nothing_when_it_fails_after() -> None:
    failover = Failover(0)
    failover.failed(100, 99)
    failover.ping_succeeded(200)
    assert failover.failed(201, 150) == ()
    assert failover.state is HEALTHY
    assert failover.failed(202, 200.5) == (SUSPECT, DIVERTED)


def test_a_success_of_a_send_from_before_does_not_end_a_diversion() -> None:
    failover = Failover(0)
    failover.failed(100, 99)
    assert failover.succeeded() == ()
    assert failover.state is DIVERTED


def test_marking_healthy_ends_a_diversion_and_a_suspicion() -> None:
    for interval_s in (0, 60):
        failover = Failover(interval_s)
        failover.failed(100, 99)
        assert failover.mark_healthy(101) == (HEALTHY,)
        assert failover.mark_healthy(102) == ()


STEPS = st.lists(
    st.tuples(st.sampled_from(["fail", "succeed", "look", "ping", "no ping"]), st.floats(0, 40)),
    max_size=60,
)


@given(interval_s=st.sampled_from([0.0, 10.0, 60.0]), steps=STEPS)
@settings(max_examples=300, deadline=None)
def test_any_history_agrees_with_the_documents_sentence(
    interval_s: float, steps: list[tuple[str, float]]
) -> None:
    """Diverted, from the moment the interval has passed since the first failure after the last
    success, until a ping succeeds."""
    failover = Failover(interval_s)
    now, first_failure, diverted = 0.0, None, False
    for step, pause in steps:
        now += pause
        failover.look(now)
        if first_failure is not None and now >= first_failure + interval_s:
            diverted = True
        assert (failover.state is DIVERTED) is diverted
        if step == "fail":
            failover.failed(now, now)
            first_failure = now if first_failure is None else first_failure
            diverted = diverted or now >= first_failure + interval_s
        elif step == "succeed":
            failover.succeeded()
            first_failure = first_failure if diverted else None
        elif diverted and step == "ping":
            failover.ping_succeeded(now)
            diverted, first_failure = False, None
        elif diverted and step == "no ping":
            failover.ping_failed()
        assert (failover.state is DIVERTED) is diverted
        assert (failover.state is HEALTHY) is (first_failure is None)
