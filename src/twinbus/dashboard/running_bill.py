"""The running bill of this month, as `twinbus cost` would make it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from twinbus.accounts.prices import Tier, price_days
from twinbus.dashboard.chronicle import Line, LineKey
from twinbus.dashboard.readings import home_of
from twinbus.ledger import Cause, Operation

_RECEIVES: Final = (Operation.RECEIVE.value, Operation.COMPLETE.value)
_CAUSES: Final = [cause.value for cause in Cause]


def running_bill(lines: Mapping[LineKey, Line], month: str, tier: Tier) -> dict[str, Any]:
    """What the operations of ``month``, as 2026-11, cost so far."""
    chosen = {key: line for key, line in lines.items() if key[0].startswith(month)}
    units: dict[str, int] = {}
    for key, line in chosen.items():
        units[key[0]] = units.get(key[0], 0) + line.units
    days = price_days(units, tier)
    rates = {day.day: day.cost / day.units if day.units else Decimal(0) for day in days}
    causes: dict[str, tuple[int, Decimal]] = {}
    for (day, cause), amount in _by_cause(chosen).items():
        before = causes.get(cause, (0, Decimal(0)))
        causes[cause] = (before[0] + amount, before[1] + amount * rates[day])
    operations = sum((day.cost for day in days), Decimal(0))
    return {
        "month": month,
        "tier": tier.name,
        "currency": tier.currency,
        "operations": sum(units.values()),
        "base": float(tier.base),
        "operations_cost": float(round(operations, 6)),
        "total": float(round(tier.base + operations, 6)),
        "by_cause": {
            cause: {"units": causes[cause][0], "cost": float(round(causes[cause][1], 6))}
            for cause in sorted(causes, key=_CAUSES.index)
        },
    }


def _by_cause(lines: Mapping[LineKey, Line]) -> dict[tuple[str, str], int]:
    """Units by day and cause; receives of what came home are put down to the outage, as
    ``twinbus.accounts.bill`` explains."""
    came = _came_home(lines)
    found: dict[tuple[str, str], int] = {}
    for (day, namespace, entity, operation, cause), line in lines.items():
        moved = 0
        if cause == Cause.NORMAL and operation in _RECEIVES and line.count:
            share = min(came.get((day, namespace, home_of(entity).lower()), 0), line.count)
            moved = round(line.units * share / line.count)
        for why, amount in ((cause, line.units - moved), (Cause.HOME_RECEIVE.value, moved)):
            if amount or why == cause:
                found[day, why] = found.get((day, why), 0) + amount
    return found


def _came_home(lines: Mapping[LineKey, Line]) -> dict[tuple[str, str, str], int]:
    came: dict[tuple[str, str, str], int] = {}
    for (day, namespace, entity, operation, cause), line in lines.items():
        if cause == Cause.HOME_SEND and operation == Operation.SEND:
            place = (day, namespace, home_of(entity).lower())
            came[place] = came.get(place, 0) + line.count
    return came
