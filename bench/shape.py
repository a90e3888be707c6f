"""Whether a cost grows as it should: how far measured points are from a line or a level."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.results import Due

# The medians of some runs on a machine with other things to do are hardly closer to a line.
TOLERANCE = 0.25

Points = Sequence[tuple[float, Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Fit:
    """``base + slope * x``, and the point farthest from it, as a share of it."""

    base: float
    slope: float
    off: float

    def at(self, x: float) -> float:
        return self.base + self.slope * x

    @property
    def holds(self) -> bool:
        return self.off <= TOLERANCE


def fit(points: Points, due: Due) -> Fit:
    """The line that is closest by shares, so that the small sizes count as much as the large."""
    xs = [x for x, _ in points]
    ys = [statistics.median(values) for _, values in points]
    if due is Due.FLAT or len(points) < 2:
        base, slope = statistics.fmean(ys), 0.0
    else:
        base, slope = _line(xs, ys)
    at = [base + slope * x for x in xs]
    off = max(
        abs(y - there) / there if there > 0 else float("inf")
        for y, there in zip(ys, at, strict=True)
    )
    return Fit(base, slope, off)


def _line(xs: list[float], ys: list[float]) -> tuple[float, float]:
    """Least squares with weights 1 / y^2."""
    weights = [1 / max(y, 1e-12) ** 2 for y in ys]
    total = sum(weights)
    mean_x = sum(w * x for w, x in zip(weights, xs, strict=True)) / total
    mean_y = sum(w * y for w, y in zip(weights, ys, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, x in zip(weights, xs, strict=True))
    both = sum(w * (x - mean_x) * (y - mean_y) for w, x, y in zip(weights, xs, ys, strict=True))
    slope = both / spread if spread else 0.0
    return mean_y - slope * mean_x, slope
