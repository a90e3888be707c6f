"""What goes wrong in a soak is chosen by its seed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.lab.plan import KINDS, PlanError, make_plan

seeds = st.integers(0, 1 << 32)
times = st.floats(1, 900)
some_kinds = st.lists(st.sampled_from(sorted(KINDS)), min_size=1, unique=True)


@given(seeds, times, some_kinds)
def test_a_seed_is_a_plan(seed: int, seconds: float, kinds: list[str]) -> None:
    assert make_plan(seed, seconds, kinds) == make_plan(seed, seconds, kinds)


@given(seeds, times, some_kinds)
def test_nothing_has_two_troubles_and_all_is_over_in_the_end(
    seed: int, seconds: float, kinds: list[str]
) -> None:
    plan = make_plan(seed, seconds, kinds)
    assert {each.kind for each in plan} <= set(kinds)
    for target in set(KINDS.values()):
        mine = [each for each in plan if each.target == target]
        for one, next_one in pairwise(mine):
            assert one.at_s + one.lasts_s < next_one.at_s
    assert all(each.at_s + each.lasts_s <= seconds for each in plan)


def test_seeds_differ_and_between_them_everything_goes_wrong() -> None:
    plans = [make_plan(seed, 180) for seed in range(1, 13)]
    assert len({tuple(plan) for plan in plans}) == len(plans)
    assert {each.kind for plan in plans for each in plan} == set(KINDS)
    assert min(len(plan) for plan in plans) > 15


@pytest.mark.parametrize(
    ("kinds", "word"), [(["kill-primary", "flood"], "'flood'"), ([], "no trouble")]
)
def test_an_unknown_trouble_is_named_with_those_there_are(kinds: list[str], word: str) -> None:
    with pytest.raises(PlanError, match=word) as raised:
        make_plan(1, 60, kinds)
    assert "kill-driver" in str(raised.value)
