"""`twinbus soak`: every kind of trouble under load, and the verdict."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.commands.options import Json
from twinbus.commands.rehearsal import print_timeline, print_verdict, run
from twinbus.commands.terminal import DOES_NOT_WORK, needing, print_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from twinbus.lab.soak import Soak

Minutes = Annotated[float, typer.Option("--minutes", help="How long there is trouble.")]
Seed = Annotated[int, typer.Option("--seed", help="Of what goes wrong, and when.")]
Faults = Annotated[
    str | None,
    typer.Option("--faults", help="Only these kinds of trouble. Default: all, see docs/lab.md."),
]
Senders = Annotated[int, typer.Option("--senders", help="How many processes send.")]
Keep = Annotated[
    Path | None, typer.Option("--keep", help="Keep data, journals and logs in this folder.")
]


def soak(
    minutes: Minutes = 3,
    seed: Seed = 1,
    faults: Faults = None,
    senders: Senders = 4,
    keep: Keep = None,
    as_json: Json = False,
) -> None:
    """Kill, freeze, throttle, cut and fill at random under load; then everything must be home.

    The same seed makes the same plan of trouble. Fails with exit code 1 if a message is lost, comes
    from nowhere, a queue is not empty in the end, or `twinbus broker --check` finds something.

    Example: twinbus soak --minutes 3 --seed 7 --faults kill-primary,kill-driver,disk-full-primary
    """
    logging.basicConfig(level=logging.CRITICAL)
    with needing("a soak", "broker,syphon,lab", "pyspark", "pyarrow", "uvicorn"):
        from twinbus.lab.plan import KINDS
        from twinbus.lab.soak import Soak, SoakOptions
    kinds = tuple(KINDS) if faults is None else tuple(map(str.strip, faults.split(",")))
    result = run(
        lambda: Soak(SoakOptions(minutes, seed, kinds, senders, keep=keep)), _view, hidden=as_json
    )
    if as_json:
        print_json(result)
    else:
        _print(result)
    if not result["holds"] or not result["empty"]:
        raise typer.Exit(DOES_NOT_WORK)


def _view(soak: Soak) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    troubles = ", ".join(str(each) for each in soak.under_way.values()) or "none"
    return Group(
        Text(soak.phase, style="bold"),
        Text(f"trouble: {troubles}"),
        Text(f"{len(soak.history.receipts)} received"),
        ProgressBar(total=soak.options.seconds, completed=soak.timeline.now, width=60),
    )


def _print(result: dict[str, Any]) -> None:
    print_timeline(result)
    print_verdict(result)
    for path, count in result["left"].items():
        typer.echo(f"not empty: {path}, {count} messages")
    well = result["holds"] and result["empty"]
    word = "nothing is lost, and every queue is empty" if well else "FAILED"
    restarts = sum(result["restarts"].values())
    typer.echo(
        f"{word}: {result['troubles']} troubles in {result['minutes']:g} minutes with seed "
        f"{result['seed']}, {restarts} restarts, {result['took_s']} s in all"
    )
