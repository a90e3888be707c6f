"""`twinbus drill`: an outage, rehearsed and judged."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.commands.options import Json
from twinbus.commands.rehearsal import print_timeline, print_verdict, run
from twinbus.commands.terminal import (
    DOES_NOT_WORK,
    connection,
    needing,
    print_json,
    print_table,
    refuse,
    refusing,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from twinbus.lab.drill import Drill

Messages = Annotated[int, typer.Option("--messages", help="How many to send in all.")]
Senders = Annotated[int, typer.Option("--senders", help="How many send at once.")]
Seed = Annotated[int, typer.Option("--seed", help="Of everything that is left to chance.")]
Faults = Annotated[
    str,
    typer.Option(
        "--faults",
        help="What happens to the primary, one after the other: kill, freeze, disable, "
        "throttle, or any of `twinbus fault kinds`.",
    ),
]
DrillsPrimary = Annotated[
    str | None,
    typer.Option("--primary", help="A namespace of yours. Default: a local one is started."),
]
DrillsSecondary = Annotated[
    str | None, typer.Option("--secondary", help="Another namespace of yours.")
]
PrimaryPort = Annotated[
    int,
    typer.Option("--primary-port", min=0, max=65_535, help="Of the local primary. Default: any."),
]
SecondaryPort = Annotated[
    int,
    typer.Option(
        "--secondary-port", min=0, max=65_535, help="Of the local secondary. Default: any."
    ),
]
Keep = Annotated[
    Path | None, typer.Option("--keep", help="Keep namespaces' data and the ledger in this folder.")
]
Certificates = Annotated[
    list[Path] | None,
    typer.Option("--certificate", help="One to trust; give it twice if the two namespaces differ."),
]


def drill(
    messages: Messages = 600,
    senders: Senders = 4,
    seed: Seed = 1,
    faults: Faults = "kill",
    primary: DrillsPrimary = None,
    secondary: DrillsSecondary = None,
    primary_port: PrimaryPort = 0,
    secondary_port: SecondaryPort = 0,
    keep: Keep = None,
    certificate: Certificates = None,
    as_json: Json = False,
) -> None:
    """Rehearse a whole outage: kill the primary, divert, bring everything home, prove it.

    Fails with exit code 1 if a message is lost, comes from nowhere, or `twinbus broker --check`
    finds something in the file of a local namespace.

    Example: twinbus drill --messages 600 --faults kill,throttle
    """
    logging.basicConfig(level=logging.CRITICAL)
    ours = () if primary else ("uvicorn",)
    with needing("a drill", "broker,syphon", "pyspark", "pyarrow", *ours):
        from twinbus.lab.drill import Drill, DrillOptions
    chosen = tuple(name.strip() for name in faults.split(",") if name.strip())
    _check(chosen, primary, secondary)
    with refusing():
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
            certificates=tuple(map(str, certificate or ())),
        )
    result = run(lambda: Drill(options), _view, hidden=as_json)
    if as_json:
        print_json(result)
    else:
        _print(result)
    if not result["holds"] or result["audit"]["lost"]:
        raise typer.Exit(DOES_NOT_WORK)


def _check(faults: tuple[str, ...], primary: str | None, secondary: str | None) -> None:
    """What would otherwise be noticed in the middle of the drill."""
    from twinbus.broker.fault_kinds import KINDS
    from twinbus.lab.drill import ALIASES, DISABLE, FREEZE, KILL

    known = [KILL, FREEZE, DISABLE, *ALIASES, *KINDS]
    for name in faults:
        if name not in known:
            refuse(f"--faults {name}: there is no such fault; there are {', '.join(known)}")
    for option, text in (("--primary", primary), ("--secondary", secondary)):
        if text is not None:
            connection(text, option, "")


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
    print_timeline(result)
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
    print_verdict(result)
    lost = result["lost"] + result["unexpected"] + audit["lost"]
    word = "nothing is lost"
    if lost:
        word = "FAILED: messages are lost or unexpected"
    elif result["findings"]:
        word = "FAILED: the file of a namespace does not hold together"
    typer.echo(
        f"{word}: {result['diverted']} of {result['attempted']} messages were diverted, "
        f"{result['moved']} came home by the syphon, in {result['took_s']} s"
    )
