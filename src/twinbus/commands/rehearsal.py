"""What a drill and a soak share on a terminal: a view that moves, the time line, the verdict."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from twinbus.commands.progress import moving
from twinbus.commands.terminal import STOPPED, print_table, refusing

if TYPE_CHECKING:
    from rich.console import RenderableType

    from twinbus.lab.rehearsal import Rehearsal
    from twinbus.lab.timeline import Moment

_COUNTS = (
    *("attempted", "acknowledged", "ok", "waiting", "dead_lettered"),
    *("lost", "duplicated", "recovered", "unexpected", "out_of_order"),
)


T = TypeVar("T", bound="Rehearsal")


async def watched(
    rehearsal: T, view: Callable[[T], RenderableType], *, hidden: bool
) -> dict[str, Any]:
    """Run it, with a view of it that moves if somebody is watching."""
    import asyncio

    # As Ctrl-C: what was started is ended, whoever asks.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if not sys.stderr.isatty():
        rehearsal.timeline.tell = _print_moment
    async with moving(lambda: view(rehearsal), hidden=hidden):
        return await rehearsal.run()


def run(
    make: Callable[[], T], view: Callable[[T], RenderableType], *, hidden: bool
) -> dict[str, Any]:
    """Make it and run it. A mistake is a sentence; who stops it is told that nothing is left."""
    import asyncio

    from twinbus.spark.java import find_java

    try:
        with refusing():
            find_java()  # said now, not after a minute
            return asyncio.run(watched(make(), view, hidden=hidden))
    except (KeyboardInterrupt, asyncio.CancelledError):
        typer.echo("twinbus: stopped; nothing is left running", err=True)
        raise typer.Exit(STOPPED) from None


def _print_moment(moment: Moment) -> None:
    typer.echo(f"{moment.at_s:7.2f} s  {moment.what}", err=True)


def print_timeline(result: dict[str, Any]) -> None:
    """Unless it was told as it happened."""
    if sys.stderr.isatty():
        typer.echo("\nTime line")
        for moment in result["timeline"]:
            typer.echo(f"  {moment['at_s']:7.2f} s  {moment['what']}")


def print_verdict(result: dict[str, Any]) -> None:
    typer.echo("\nVerdict")
    print_table(("what", "messages"), [[name, str(result[name])] for name in _COUNTS])
    for finding in result["findings"]:
        typer.echo(f"a file does not hold together: {finding}")
