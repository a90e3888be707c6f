"""The parts of a report's page: what a reader can make of them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from twinbus.accounts.report import COLOURS, stacked_bars, table, time_line

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("largest", "steps"),
    [
        (1, ["0", "1", "2", "3", "4"]),
        (37, ["0", "10", "20", "30", "40"]),
        (600, ["0", "200", "400", "600", "800"]),
        (5_940_000, ["0", "2M", "4M", "6M", "8M"]),
        (10_000_000, ["0", "2.5M", "5M", "7.5M", "10M"]),
    ],
)
def test_an_axis_has_steps_that_one_would_say(largest: int, steps: list[str]) -> None:
    drawn = stacked_bars([("11-18", [largest])], ["normal"], "operations")
    assert re.findall(r'text-anchor="end">([^<]*)<', drawn) == steps


def test_one_bar_is_a_bar_and_no_wall() -> None:
    (width,) = re.findall(r'<rect [^>]*width="([\d.]+)"', stacked_bars([("a", [5])], ["x"], "y"))
    assert float(width) < 100


def test_a_loss_does_not_look_like_a_success() -> None:
    drawn = stacked_bars([("a", [5, 1])], ["ok", "lost"], "messages", COLOURS)
    assert re.findall(r'<rect [^>]*fill="var\(--(\w+)\)"', drawn) == ["good", "bad"]


def test_numbers_stand_to_the_right_with_as_many_decimals_even_where_some_are_missing() -> None:
    made = table(("entity", "count", "lag_p50_s"), [["a", 1_000, 0.5], ["b", 2, None]])
    assert re.findall(r'<td class="([^"]*)">([^<]*)<', made) == [
        ("", "a"),
        ("n", "1,000"),
        ("n d", "0.5000"),
        ("", "b"),
        ("n", "2"),
        ("n d", "–"),  # noqa: RUF001  as the page has it
    ]
    assert "lag p50 s" in made


def test_an_outage_that_is_over_ends_where_the_time_line_says() -> None:
    drawn = time_line([("orders", NOON, NOON + timedelta(hours=1))])
    (start, width) = re.findall(r'<rect x="([\d.]+)" y="4" width="([\d.]+)"', drawn)[0]
    assert float(start) + float(width) == 1000
    assert "2026-11-18 13:00:00</text>" in drawn


def test_an_outage_that_is_not_over_says_so() -> None:
    over = ("invoices", NOON, NOON + timedelta(hours=1))
    drawn = time_line([over, ("orders/of-the-northern-region-and-its-islands", NOON, None)])
    ends = [
        float(x) + float(w)
        for x, w in re.findall(r'<rect x="([\d.]+)"[^>]*width="([\d.]+)"', drawn)
    ]
    assert ends[0] < ends[1] == 1000
    assert ">still out</text>" in drawn
    assert "orders/of-the-northern-region-and…" in drawn
