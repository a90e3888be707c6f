"""`twinbus sim`: the simulator, many seeds at a time."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.commands.options import Json
from twinbus.commands.progress import bar
from twinbus.commands.terminal import DOES_NOT_WORK, print_json, refuse

if TYPE_CHECKING:
    from twinbus.lab.simulation import SeedReport

# How many seeds a worker takes at a time, and how much of a failure's trace is shown.
CHUNK = 25
TAIL = 60
# The first failures say as much as all.
MOST_FAILURES = 20


def _bugs() -> list[str]:
    from twinbus.lab.simulation import Bug

    return list(Bug)


Seeds = Annotated[int, typer.Option("--seeds", min=1, help="How many.")]
First = Annotated[int, typer.Option("--from", min=0, help="The first of them.")]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Replay this one, and show its trace.")
]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Processes.")]
PlantedBug = Annotated[
    str,
    typer.Option("--plant", help="A bug to plant, to see that it is caught.", autocompletion=_bugs),
]


def sim(
    seeds: Seeds = 1_000,
    first: First = 0,
    seed: Seed = None,
    workers: Workers = 2,
    plant: PlantedBug = "none",
    json: Json = False,
) -> None:
    """Run the real failover, envelope, queues and syphon on a virtual clock, with faults.

    A seed is a run. One that breaks a promise is printed, and --seed replays it exactly.
    Needs twinbus[broker]. Exit code 1: a promise was broken.

    Example: twinbus sim --seeds 1000

    Example: twinbus sim --seed 4711
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    from twinbus.lab.simulation import Bug, run

    if plant not in list(Bug):
        refuse(f"there is no plant '{plant}'; there are {', '.join(Bug)}")
    if seed is not None:
        _show(run(seed, Bug(plant)), json=json, tail=None)
        return
    began = time.monotonic()
    totals: dict[str, Any] = {"seeds": 0, "failed": 0, "virtual_s": 0.0, "diverted": 0}
    failures: list[SeedReport] = []
    chunks = [
        range(start, min(start + CHUNK, first + seeds))
        for start in range(first, first + seeds, CHUNK)
    ]
    columns = ("seeds", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with bar("seeds", seeds, *columns, hidden=json) as tell:
        for figures, failed in _run_all(chunks, Bug(plant), workers):
            for name, value in figures.items():
                totals[name] += value
            failures += failed[: MOST_FAILURES - len(failures)]
            tell(advance=int(figures["seeds"]))
    totals["seconds"] = round(time.monotonic() - began, 1)
    _conclude(totals, failures, json=json)


def _run_all(
    chunks: list[range], plant: str, workers: int
) -> Iterator[tuple[dict[str, float], list[SeedReport]]]:
    """The outcome of each chunk, in order."""
    if workers == 1:
        with stopping_between() as look:
            yield from (run_chunk(chunk, plant, look) for chunk in chunks)
        return
    # Spawned, not forked: the bar above has a thread, and a fork would take its locks along.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures: list[Future[tuple[dict[str, float], list[SeedReport]]]] = [
            pool.submit(run_chunk, chunk, plant) for chunk in chunks
        ]
        yield from (future.result() for future in futures)


@contextmanager
def stopping_between() -> Iterator[Callable[[], None]]:
    """Ctrl-C ends it between two seeds. In the middle of one it may come while the interpreter
    tidies up behind an object, where whatever is raised is printed and forgotten."""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))

    def look() -> None:
        if pressed:
            raise KeyboardInterrupt

    try:
        yield look
    finally:
        signal.signal(signal.SIGINT, before)


def run_chunk(
    seeds: range, plant: str, look: Callable[[], None] = lambda: None
) -> tuple[dict[str, float], list[SeedReport]]:
    """Some seeds, in a process of their own: sums, and those that failed."""
    from twinbus.lab.simulation import Bug, run

    figures = {"seeds": 0.0, "failed": 0.0, "virtual_s": 0.0, "diverted": 0.0}
    failed = []
    for seed in seeds:
        look()
        report = run(seed, Bug(plant))
        figures["seeds"] += 1
        figures["virtual_s"] += report.virtual_s
        figures["diverted"] += report.diverted
        if not report.holds:
            figures["failed"] += 1
            failed.append(report)
    return figures, failed


def _conclude(totals: dict[str, Any], failures: list[SeedReport], *, json: bool) -> None:
    if json:
        print_json({**totals, "failures": [report.as_json() for report in failures]})
    else:
        rate = totals["seeds"] / max(totals["seconds"], 0.1)
        typer.echo(
            f"{totals['seeds']:.0f} seeds in {totals['seconds']:.0f} s ({rate:.0f} a second), "
            f"{totals['virtual_s'] / 3600:.0f} hours of virtual time, "
            f"{totals['diverted']:.0f} messages diverted; {totals['failed']:.0f} seeds failed"
        )
        for report in failures[1:]:
            typer.echo(f"seed {report.seed}: {report.breaches[0].splitlines()[0]}")
        if failures:
            _show(failures[0], json=False, tail=TAIL)
    if failures:
        raise typer.Exit(DOES_NOT_WORK)


def _show(report: SeedReport, *, json: bool, tail: int | None) -> None:
    """A run: its trace, or the end of it, and what was broken."""
    if json:
        print_json({**report.as_json(), "trace": list(report.trace)})
    else:
        # The first line is the plan.
        shown = report.trace if tail is None else (report.trace[0], "...", *report.trace[-tail:])
        typer.echo("\n".join(shown))
        typer.echo(f"seed {report.seed}, digest {report.digest}: {report.verdict}")
        for breach in report.breaches:
            typer.echo(f"seed {report.seed} broke a promise: {breach}")
        if not report.holds:
            planted = "" if report.bug.value == "none" else f" --plant {report.bug.value}"
            typer.echo(f"replay it with: twinbus sim --seed {report.seed}{planted}")
    if not report.holds:
        raise typer.Exit(DOES_NOT_WORK)
