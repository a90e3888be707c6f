"""What operations cost: a table of tiers, each with a monthly base and bands. Exact decimals."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from twinbus.errors import TwinbusError

MILLION: Final = 1_000_000


class PriceError(TwinbusError):
    """A price table that cannot be used, or a tier that is not in it; the text says where."""


@dataclass(frozen=True, slots=True)
class Band:
    """Operations of a month from ``start`` up to ``end``, which is None for the last."""

    start: int
    end: int | None
    per_million: Decimal


@dataclass(frozen=True, slots=True)
class Tier:
    name: str
    currency: str
    base: Decimal
    bands: tuple[Band, ...]

    def charge(self, operations: int) -> Decimal:
        """The first ``operations`` of a month, without the base."""
        return sum((_part(band, operations) for band in self.bands), Decimal(0))

    def between(self, before: int, after: int) -> Decimal:
        """Those that take a month's count from ``before`` to ``after``."""
        return self.charge(after) - self.charge(before)


@dataclass(frozen=True, slots=True)
class Day:
    """What one day adds to its month."""

    day: str
    units: int
    cost: Decimal


@dataclass(frozen=True, slots=True)
class Statement:
    """What days cost, and each of their months its base."""

    days: tuple[Day, ...]
    tier: Tier

    @property
    def months(self) -> list[str]:
        return sorted({each.day[:7] for each in self.days})

    @property
    def base(self) -> Decimal:
        return self.tier.base * len(self.months)

    @property
    def operations_cost(self) -> Decimal:
        return sum((each.cost for each in self.days), Decimal(0))

    @property
    def total(self) -> Decimal:
        return self.base + self.operations_cost

    @property
    def rates(self) -> dict[str, Decimal]:
        """What each operation of a day costs: all the same, so that lines add up to their day."""
        return {each.day: each.cost / (each.units or 1) for each in self.days}

    def in_all(self) -> dict[str, Any]:
        """For programs and for pages."""
        return {
            "tier": self.tier.name,
            "currency": self.tier.currency,
            "months": self.months,
            "operations": sum(each.units for each in self.days),
            "base": float(self.base),
            "operations_cost": float(round(self.operations_cost, 6)),
            "total": float(round(self.total, 6)),
        }


def price_days(units: Mapping[str, int], tier: Tier) -> tuple[Day, ...]:
    """Each day at the price of where its month stands."""
    days: list[Day] = []
    month, before = "", 0
    for day in sorted(units):
        if day[:7] != month:
            month, before = day[:7], 0
        days.append(Day(day, units[day], tier.between(before, before + units[day])))
        before += units[day]
    return tuple(days)


def _part(band: Band, operations: int) -> Decimal:
    end = operations if band.end is None else min(operations, band.end)
    return max(0, end - band.start) * band.per_million / MILLION


def read_tier(name: str, path: Path | None = None) -> Tier:
    """The tier of that name, of the table in ``path`` or of the one that comes with Twinbus."""
    table, where = _read(path)
    currency = table.get("currency", "USD")
    tiers = {key.lower(): value for key, value in table.items() if isinstance(value, dict)}
    if name.lower() not in tiers:
        raise PriceError(f"there is no tier '{name}' in {where}; it has {', '.join(sorted(tiers))}")
    return parse_tier(name.lower(), str(currency), tiers[name.lower()], where)


def _read(path: Path | None) -> tuple[dict[str, Any], str]:
    if path is None:
        return tomllib.loads((files("twinbus.accounts") / "prices.toml").read_text()), "the prices"
    try:
        text = path.read_text()
        found = json.loads(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
    except OSError as error:
        raise PriceError(f"the price table {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PriceError(f"the price table {path} is neither TOML nor JSON: {error}") from error
    if not isinstance(found, dict):
        raise PriceError(f"the price table {path} has no tiers")
    return found, str(path)


def parse_tier(name: str, currency: str, table: Mapping[str, Any], where: str) -> Tier:
    place = f"tier '{name}' of {where}"
    raw = table.get("band")
    if not isinstance(raw, list) or not raw:
        raise PriceError(f"{place} has no bands; give at least one [[{name}.band]]")
    bands = tuple(_band(each, f"band {number} of {place}") for number, each in enumerate(raw, 1))
    expected: int | None = 0
    for number, band in enumerate(bands, 1):
        if expected is None:
            raise PriceError(f"band {number - 1} of {place} has no end, but is not the last")
        if band.start != expected:
            kind = "gap" if band.start > expected else "overlap"
            raise PriceError(
                f"band {number} of {place} begins at {band.start:,}, but the one before it ends at "
                f"{expected:,}: there must be no {kind}"
            )
        expected = band.end
    if expected is not None:
        raise PriceError(
            f"{place} ends at {expected:,} operations; leave out `to` of the last band"
        )
    return Tier(name, currency, _money(table.get("base", 0), f"base of {place}"), bands)


def _band(table: Any, place: str) -> Band:
    if not isinstance(table, dict) or "per_million" not in table:
        raise PriceError(f"{place} has no per_million")
    start, end = table.get("from", 0), table.get("to")
    if not _is_count(start) or not (end is None or (_is_count(end) and end > start)):
        raise PriceError(f"{place} must go from a whole number to a greater one")
    return Band(start, end, _money(table["per_million"], f"per_million of {place}"))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _money(value: Any, place: str) -> Decimal:
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        amount = Decimal(-1)
    if not amount.is_finite() or amount < 0:
        raise PriceError(f"the {place} is {value!r}; it must be an amount of money")
    return amount
