"""The running bill of this month, as `twinbus cost` would make it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from twinbus.accounts.attribution import BillLine, LineKey, attributed
from twinbus.accounts.prices import Statement, Tier, price_days
from twinbus.ledger import Cause


def running_bill(lines: Mapping[LineKey, BillLine], month: str, tier: Tier) -> dict[str, Any]:
    """What the operations of ``month``, as 2026-11, cost so far."""
    chosen = {key: line for key, line in lines.items() if key.day.startswith(month)}
    units = {f"{month}-01": 0}  # a month without operations has its base too
    for key, line in chosen.items():
        units[key.day] = units.get(key.day, 0) + line.units
    statement = Statement(price_days(units, tier), tier)
    rates = statement.rates
    causes: dict[str, tuple[int, Decimal]] = {}
    for key, line in attributed(chosen):
        before = causes.get(key.cause, (0, Decimal(0)))
        causes[key.cause] = before[0] + line.units, before[1] + line.units * rates[key.day]
    return {
        "month": month,
        **statement.in_all(),
        "by_cause": {
            cause.value: {"units": found[0], "cost": float(round(found[1], 6))}
            for cause in Cause
            if (found := causes.get(cause.value)) is not None
        },
    }
