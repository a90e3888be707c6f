"""Curves as pictures: SVG, one a curve, with the points' spread."""

from __future__ import annotations

import statistics
from pathlib import Path

import matplotlib as mpl

from bench.results import Curve, Due
from bench.shape import Fit, fit

mpl.use("svg")

from matplotlib import pyplot

COLOURS = ("#0b6e99", "#c4622d", "#6b7a3a", "#7d4e8f")


def draw(curve: Curve, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{curve.name}.svg"
    # Names of shapes that do not change, and text as text: the same values give the same file.
    with mpl.rc_context({"svg.hashsalt": curve.name, "svg.fonttype": "none", "font.size": 10}):
        figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
        for colour, (name, points) in zip(COLOURS, curve.lines.items(), strict=False):
            xs = [x for x, _ in points]
            middles = [statistics.median(values) for _, values in points]
            axes.plot(xs, middles, "o-", color=colour, label=name, markersize=4, linewidth=1.4)
            low = [min(values) for _, values in points]
            high = [max(values) for _, values in points]
            axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
        if curve.due is not Due.NONE:
            name, points = next(iter(curve.lines.items()))
            _draw_due(axes, curve, fit(points, curve.due), [x for x, _ in points])
        axes.set_xscale("log" if curve.log_x else "linear")
        axes.set_yscale("log" if curve.log_y else "linear")
        if not curve.log_y:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(curve.x)
        axes.set_ylabel(curve.y)
        axes.set_title(curve.title, fontsize=11, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.legend(frameon=False, fontsize=9)
        figure.savefig(path, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return path


def _draw_due(axes: pyplot.Axes, curve: Curve, line: Fit, xs: list[float]) -> None:
    # Many points, because a straight line is bent where one axis is logarithmic.
    steps = [xs[0] * (xs[-1] / xs[0]) ** (step / 60) for step in range(61)] if xs[0] > 0 else xs
    name = "flat" if curve.due is Due.FLAT else "a straight line"
    axes.plot(steps, [line.at(x) for x in steps], ":", color="#777777", linewidth=1.2, label=name)
