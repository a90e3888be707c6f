"""`twinbus drill`: an outage, rehearsed and judged."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.commands.terminal import (
    DOES_NOT_WORK,
    STOPPED,
    Json,
    connection,
    print_json,
    print_table,
    refuse,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from twinbus.lab.drill import Drill

REFRESH_S = 0.25
_COUNTS = (
    *("attempted", "acknowledged", "ok", "waiting", "dead_lettered"),
    *("lost", "duplicated", "recovered", "unexpected", "out_of_order"),
)


def drill(
    messages: Annotated[int, typer.Option("--messages", help="How many to send in all.")] = 600,
    senders: Annotated[int, typer.Option("--senders", help="How many send at once.")] = 4,
    seed: Annotated[int, typer.Option("--seed", help="Of everything that is left to chance.")] = 1,
    faults: Annotated[
        str,
        typer.Option(
            "--faults",
            help="What happens to the primary, one after the other: kill, freeze, disable, "
            "throttle, or any of `twinbus fault kinds`.",
        ),
    ] = "kill",
    primary: Annotated[
        str | None,
        typer.Option("--primary", help="A namespace of yours. Default: a local one is started."),
    ] = None,
    secondary: Annotated[
        str | None, typer.Option("--secondary", help="Another namespace of yours.")
    ] = None,
    primary_port: Annotated[
        int,
        typer.Option(
            "--primary-port", min=0, max=65_535, help="Of the local primary. Default: any."
        ),
    ] = 0,
    secondary_port: Annotated[
        int,
        typer.Option(
            "--secondary-port", min=0, max=65_535, help="Of the local secondary. Default: any."
        ),
    ] = 0,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", help="Keep namespaces' data and the ledger in this folder."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="A certificate to trust.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Rehearse a whole outage: kill the primary, divert, bring everything home, prove it.

    Fails with exit code 1 if a message is lost, or comes from nowhere.

    Example: twinbus drill --messages 600 --faults kill,throttle
    """
    logging.basicConfig(level=logging.CRITICAL)
    try:
        from twinbus.lab.drill import Drill, DrillError, DrillOptions
        from twinbus.pipeline.java import JavaError, find_java
    except ImportError as error:
        refuse(f"a drill needs more packages ({error.name}): pip install 'twinbus[broker,syphon]'")
    chosen = tuple(name.strip() for name in faults.split(",") if name.strip())
    _check(chosen, primary, secondary)
    try:
        find_java()  # said now, not after a minute
        options = DrillOptions(
            messages=messages,
            senders=senders,
            seed=seed,
            faults=("disable",) if primary and faults == "kill" else chosen,
            primary=primary,
            secondary=secondary,
            primary_port=primary_port,
            secondary_port=secondary_port,
            keep=keep,
            certificate=None if certificate is None else str(certificate),
        )
        result = asyncio.run(_watched(Drill(options), hidden=as_json))
    except (DrillError, JavaError) as error:
        refuse(str(error))
    except (KeyboardInterrupt, asyncio.CancelledError):
        typer.echo("twinbus: stopped; nothing is left running", err=True)
        raise typer.Exit(STOPPED) from None
    if as_json:
        print_json(result)
    else:
        _print(result)
    if not result["holds"] or result["audit"]["lost"]:
        raise typer.Exit(DOES_NOT_WORK)


def _check(faults: tuple[str, ...], primary: str | None, secondary: str | None) -> None:
    """What would otherwise be noticed in the middle of the drill."""
    from twinbus.broker.faults import KINDS
    from twinbus.lab.drill import ALIASES, DISABLE, FREEZE, KILL

    known = [KILL, FREEZE, DISABLE, *ALIASES, *KINDS]
    for name in faults:
        if name not in known:
            refuse(f"--faults {name}: there is no such fault; there are {', '.join(known)}")
    for option, text in (("--primary", primary), ("--secondary", secondary)):
        if text is not None:
            connection(text, option, "")


async def _watched(drill: Drill, *, hidden: bool) -> dict[str, Any]:
    """Run it, with a view of it that moves if somebody is watching."""
    from rich.console import Console
    from rich.live import Live

    # As Ctrl-C: what was started is ended, whoever asks.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    console = Console(stderr=True)
    if not console.is_terminal:
        drill.tell = lambda moment: typer.echo(f"{moment.at_s:7.2f} s  {moment.what}", err=True)
    if hidden or not console.is_terminal:
        return await drill.run()
    with Live(_view(drill), console=console, refresh_per_second=4) as live:

        async def refresh() -> None:
            while True:
                live.update(_view(drill))
                await asyncio.sleep(REFRESH_S)

        watching = asyncio.create_task(refresh())
        try:
            return await drill.run()
        finally:
            watching.cancel()
            live.update(_view(drill))


def _view(drill: Drill) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    history = drill.history
    table = Table("entity", "state", box=None, padding=(0, 2))
    for path, state in drill.states().items():
        colour = {"healthy": "green", "suspect": "yellow"}.get(state, "red")
        table.add_row(path, Text(state, style=colour))
    backlog = max(0, drill.diverted - drill.moved)
    words = (
        f"{history.begun} sent, {history.refused} refused, {drill.diverted} diverted, "
        f"{backlog} in the backlog, {drill.moved} moved home, {len(history.receipts)} received"
    )
    bar = ProgressBar(total=drill.options.messages, completed=len(history.receipts), width=60)
    return Group(Text(drill.phase, style="bold"), table, Text(words), bar)


def _print(result: dict[str, Any]) -> None:
    typer.echo("\nTime line")
    for moment in result["timeline"]:
        typer.echo(f"  {moment['at_s']:7.2f} s  {moment['what']}")
    typer.echo("\nBill")
    bill = result["bill"]
    rows = [
        [cause.replace("_", " "), str(of["units"]), f"{of['cost']:.6f}"]
        for cause, of in bill["by_cause"].items()
    ]
    print_table(("cause", "operations", f"cost, {bill['currency']}"), rows)
    audit = result["audit"]
    typer.echo(
        f"\nAudit of the ledger: {audit['accepted']} accepted, {audit['ok']} ok, "
        f"{audit['waiting']} waiting, {audit['dead']} dead, {audit['lost']} lost"
    )
    typer.echo("\nVerdict")
    print_table(("what", "messages"), [[name, str(result[name])] for name in _COUNTS])
    lost = result["lost"] + result["unexpected"] + audit["lost"]
    word = "FAILED: messages are lost or unexpected" if lost else "nothing is lost"
    typer.echo(
        f"{word}: {result['diverted']} of {result['attempted']} messages were diverted, "
        f"{result['moved']} came home by the syphon, in {result['took_s']} s"
    )
