"""The price table, and a month's charge worked out by hand."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest

from twinbus.accounts.forecast import ForecastPlan, forecast
from twinbus.accounts.prices import PriceError, read_tier

STANDARD = read_tier("standard")
M = 1_000_000


@pytest.mark.parametrize(
    ("operations", "charge"),
    [
        (0, "0"),
        (13 * M, "0"),
        (13 * M + 1, "0.0000008"),
        (14 * M, "0.80"),
        (100 * M, "69.60"),  # 87 x 0.80
        (101 * M, "70.10"),
        (2_500 * M, "1269.60"),  # 69.60 + 2400 x 0.50
        (3_000 * M, "1369.60"),  # + 500 x 0.20
    ],
)
def test_a_month_is_charged_by_bands(operations: int, charge: str) -> None:
    assert STANDARD.charge(operations) == Decimal(charge)


def test_the_base_of_the_standard_tier() -> None:
    assert STANDARD.base == Decimal("9.81")
    assert read_tier("Basic").charge(2 * M) == Decimal("0.10")


def test_the_days_of_a_month_add_up_to_the_month() -> None:
    steps = [0, 5 * M, 50 * M, 120 * M, 2_600 * M]
    parts = [STANDARD.between(a, b) for a, b in pairwise(steps)]
    assert sum(parts) == STANDARD.charge(steps[-1])


def test_an_unknown_tier_is_a_sentence_that_names_those_there_are() -> None:
    with pytest.raises(PriceError, match=r"no tier .premium. .*; it has basic, standard"):
        read_tier("premium")


def table(tmp_path: Path, *bands: dict[str, object]) -> Path:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"currency": "EUR", "mine": {"base": 1, "band": list(bands)}}))
    return path


def test_a_table_of_your_own_replaces_ours(tmp_path: Path) -> None:
    tier = read_tier("mine", table(tmp_path, {"from": 0, "per_million": 2}))
    assert (tier.currency, tier.charge(3 * M)) == ("EUR", Decimal(6))


@pytest.mark.parametrize(
    ("bands", "words"),
    [
        ([{"from": 0, "to": 5, "per_million": 1}, {"from": 6, "per_million": 1}], "no gap"),
        ([{"from": 0, "to": 5, "per_million": 1}, {"from": 4, "per_million": 1}], "no overlap"),
        ([{"from": 0, "to": 5, "per_million": 1}], "leave out `to`"),
        ([{"from": 0, "per_million": 1}, {"from": 5, "per_million": 1}], "has no end"),
        ([{"from": 1, "per_million": 1}], "begins at 1"),
        ([{"from": 0}], "no per_million"),
        ([{"from": 0, "per_million": "cheap"}], "an amount of money"),
        ([{"from": 0, "per_million": -1}], "an amount of money"),
        ([{"from": 5, "to": 5, "per_million": 1}], "a greater one"),
        ([], "no bands"),
    ],
)
def test_a_table_with_a_gap_or_worse_is_a_sentence(
    tmp_path: Path, bands: list[dict[str, object]], words: str
) -> None:
    with pytest.raises(PriceError, match=words):
        read_tier("mine", table(tmp_path, *bands))


def test_a_table_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PriceError, match="cannot be read"):
        read_tier("mine", tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("= 1")
    with pytest.raises(PriceError, match="neither TOML nor JSON"):
        read_tier("mine", tmp_path / "bad.toml")


# -- the documents' arithmetic


def test_ten_idle_backlog_queues_are_40_receives_an_hour_960_a_day_28800_in_30_days() -> None:
    found = forecast(ForecastPlan(10, 0, 0, 0), STANDARD)["syphon_idle_receives"]
    assert found == {"per_hour": 40, "per_day": 960, "per_30_days": 28_800}


def test_each_syphon_waits_at_each_backlog_queue() -> None:
    many = forecast(ForecastPlan(10, 0, 0, 0, syphons=3), STANDARD)
    assert many["syphon_idle_receives"]["per_30_days"] == 3 * 28_800
    assert many["month"]["extra_operations"] == 3 * 28_800
    none = forecast(ForecastPlan(10, 0, 0, 0, syphons=0), STANDARD)["syphon_idle_receives"]
    assert set(none.values()) == {0}


def test_an_entity_that_is_out_is_pinged_once_a_minute_by_each_factory_of_each_client() -> None:
    assert forecast(ForecastPlan(10, 20, 0, 4), STANDARD)["pings"] == {
        "per_hour": 1200,
        "in_outage": 4800,
    }
    many = forecast(ForecastPlan(10, 20, 0, 4, factories=2, clients=3), STANDARD)["pings"]
    assert many == {"per_hour": 7200, "in_outage": 28_800}


def test_a_diverted_message_is_charged_four_times() -> None:
    found = forecast(ForecastPlan(10, 20, 240_000, 4), STANDARD)["diverted_messages"]
    assert found["messages"] == 40_000
    assert found["operations_each"] == 4
    assert found["operations"] == 160_000


def test_what_a_month_with_an_outage_costs_more_is_priced_on_top_of_its_traffic() -> None:
    # 8 M messages a day are 480 M operations a month, in the band of 0.50 a million. More are:
    # 28,800 idle receives, 4 x 60 x 20 pings, 2 x 8 M x 4 / 24 sends and receives.
    month = forecast(ForecastPlan(10, 20, 8 * M, 4), STANDARD)["month"]
    assert month["normal_operations"] == 480 * M
    assert month["extra_operations"] == 28_800 + 4_800 + 2_666_666
    assert month["extra_cost"] == pytest.approx(1.3501)
