"""The model's histories by bytes on sockets, and a broker process that is killed with kill -9."""

from __future__ import annotations

import pytest
from tests.wire import lies

from twinbus.lab.model.killing import finding, killing
from twinbus.lab.model.play import Played

LENGTH = 60
# How far a process is when it is killed is left to the machine; mostly it is the first.
MOST_HISTORIES = 60


@pytest.mark.parametrize("seed", range(5))
def test_what_was_answered_outlives_a_kill_and_nothing_else_appears(seed: int) -> None:
    counts = Played()
    assert finding(killing(seed, LENGTH), counts) is None
    assert counts.steps == LENGTH
    assert counts.crashes > 2


@pytest.mark.parametrize(
    "lie",
    [
        lies.answers_before_the_commit,
        lies.what_is_completed_stays,
        lies.what_is_stored_is_not_what_was_sent,
    ],
)
def test_a_planted_bug_is_caught(lie: object) -> None:
    name = getattr(lie, "__name__", "")
    for seed in range(MOST_HISTORIES):
        said = finding(killing(seed, LENGTH), planted=f"{lies.__name__}:{name}")
        if said is not None:
            print(f"seed {seed}: {said}")
            return
    pytest.fail(f"{MOST_HISTORIES} histories found nothing")
