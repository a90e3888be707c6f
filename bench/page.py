"""Results as docs/performance.md: pure, but for the files that `write` writes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.results import Curve, Due, Figure, Outcome, State
from bench.shape import fit

PAGE = "performance.md"
INTRO = """\
Written by `make bench`; nothing here is edited by hand. Every ratio is of two things measured in
turn in one run on one machine, so it can be repeated anywhere; the seconds cannot. A ratio above 1
means that we are ahead, whether more or less of the unit is better. A value is the median, with the
lowest and the highest in brackets; a ratio is the median of the rounds' own ratios."""
AGAIN = """\
`make bench` takes about half an hour on two cores, which should have nothing else to do. RabbitMQ
is Debian's package: where it is missing and one is root, it is installed, and its service is not
started.

- `make bench PARTS="rabbitmq syphon"` runs only those parts again; the page keeps the last results
  of the others, which are under `.bench/`.
- `make bench QUICK=1` rehearses everything with small sizes and writes its page under
  `.bench/quick/`.

What must not get slower unnoticed is counted, not timed, in `make test`:
`tests/bench/test_guard.py`."""
QUICK = """\
**A rehearsal with small sizes: these figures mean nothing.** `make bench` measures."""
TABLE = "| figure | unit | ours | peer | theirs | ratio | goal |\n|---|---|---|---|---|---|---|"


def write(
    outcomes: Sequence[Outcome], about: Mapping[str, str], docs: Path, *, quick: bool
) -> Path:
    """The page and its pictures. The only part of this with files."""
    path = docs / PAGE
    path.write_text(render(outcomes, about, quick=quick))
    from bench.plots import draw  # takes a second, and the words do not need it

    for outcome in outcomes:
        for curve in outcome.curves:
            draw(curve, docs / "images")
    return path


def render(outcomes: Sequence[Outcome], about: Mapping[str, str], *, quick: bool = False) -> str:
    blocks = ["# Performance", QUICK if quick else INTRO]
    if troubled := [each for each in outcomes if each.state is not State.DONE]:
        names = ", ".join(f"{each.part} ({each.state})" for each in troubled)
        blocks.append(f"**Not whole:** {names}. Their sections say why.")
    blocks += ["## The machine", _machine(about), "## In short", _summary(outcomes)]
    blocks += _behind(outcomes)
    for outcome in outcomes:
        blocks += _section(outcome)
    blocks += ["## Again", AGAIN]
    return "\n\n".join(blocks) + "\n"


def _machine(about: Mapping[str, str]) -> str:
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in about.items())]
    )


def _summary(outcomes: Sequence[Outcome]) -> str:
    """What has a goal or a peer, without the spread."""
    lines = ["| figure | ours | ratio to peer | goal |", "|---|---|---|---|"]
    for figure in (each for outcome in outcomes for each in outcome.figures):
        if figure.goal or figure.peers:
            ratios = "; ".join(f"{figure.ratio(peer):.2f} {peer}" for peer in figure.peers)
            middle = f"{number(statistics.median(figure.values))} {figure.unit}"
            lines.append(f"| {figure.name} | {middle} | {ratios} | {_goal(figure)} |")
    return "\n".join(lines)


def _goal(figure: Figure) -> str:
    if not figure.goal:
        return ""
    if figure.met is None:
        return figure.goal
    return f"{figure.goal}: {'met' if figure.met else '**missed**'}"


def _behind(outcomes: Sequence[Outcome]) -> list[str]:
    """Why, for each figure that is behind and knows."""
    figures = [each for outcome in outcomes for each in outcome.figures]
    behind = [each for each in figures if each.wall and each.is_behind]
    if not behind:
        return []
    lines = [f"- **{each.name}**: {each.wall}." for each in behind]
    return ["## Where we are behind, and the wall", "\n".join(lines)]


def _section(outcome: Outcome) -> list[str]:
    title = outcome.title or outcome.part
    took = f"{outcome.took_s:.0f} s, {outcome.began}"
    blocks = [f"## {title}", f"`{outcome.command}` ({took})"]
    if outcome.state is not State.DONE:
        blocks.append(f"**{outcome.state}**: {outcome.error or 'no reason is known'}")
    if outcome.cut:
        blocks.append(f"Cut: {outcome.cut}.")
    if outcome.figures:
        rows = [row for figure in outcome.figures for row in _rows(figure)]
        blocks.append("\n".join([TABLE, *rows]))
        blocks.append("\n".join(f"- {each.name}: {each.how}." for each in outcome.figures))
    for curve in outcome.curves:
        blocks.append(f"![{curve.title}](images/{curve.name}.svg)")
        blocks.append(f"{curve.title}: {curve.how}. {judged(curve)}".strip())
    for note in outcome.notes:
        blocks += [f"### {note.title}", note.text]
    return blocks


def _rows(figure: Figure) -> list[str]:
    ours = spread(figure.values)
    peers = figure.peers or {"": ()}
    rows = []
    for place, (peer, theirs) in enumerate(peers.items()):
        name = figure.name if place == 0 else ""
        goal = _goal(figure) if place == 0 else ""
        ratio = f"**{figure.ratio(peer):.2f}**" if peer else ""
        cells = [name, figure.unit, ours, peer, spread(theirs), ratio, goal]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def judged(curve: Curve) -> str:
    """Whether our line, the first, is what is due; if it is not, the reason."""
    if curve.due is Due.NONE:
        return curve.reason
    points = next(iter(curve.lines.values()))
    if len(points) < 3:
        return "Too few points to tell its shape."
    found = fit(points, curve.due)
    shape = "Flat" if curve.due is Due.FLAT else "A straight line"
    if found.holds:
        return f"{shape}, within {found.off:.0%}."
    return f"Not {shape[0].lower()}{shape[1:]} (off by {found.off:.0%}): {curve.reason}"


def spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


def number(value: float) -> str:
    """Three digits that count, no exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3g}"
