"""`twinbus up`, `down` and `status`: a pair of namespaces on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from twinbus.commands.options import Json
from twinbus.commands.terminal import DOES_NOT_WORK, fail, print_json, print_table, refusing
from twinbus.local import connections
from twinbus.local.pair import (
    ADMIN_PORT,
    DASHBOARD,
    DASHBOARD_PORT,
    NAMESPACES,
    PORT,
    LocalPair,
    Part,
    Wishes,
)

Folder = Annotated[
    Path,
    typer.Option(
        "--folder",
        envvar=connections.FOLDER_VARIABLE,
        help="Where messages, keys and the ledger are kept.",
    ),
]
_FOLDER = Path(connections.FOLDER)

Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", help="A queue of the primary to create if it is not there."),
]
Port = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65_534,
        help=f"The primary's; the secondary has the next. Default: {PORT}. 0: any free one.",
    ),
]
AdminPort = Annotated[
    int | None, typer.Option(min=0, max=65_534, help=f"Likewise, for HTTP. Default: {ADMIN_PORT}.")
]
DashboardPort = Annotated[
    int | None, typer.Option(min=0, max=65_535, help=f"The dashboard's. Default: {DASHBOARD_PORT}.")
]
WithDashboard = Annotated[bool, typer.Option(help="Whether there is to be one.")]
MayFault = Annotated[
    bool, typer.Option("--faults", help="Let `twinbus fault` and the dashboard make trouble.")
]


def up(
    queue: Queues = None,
    port: Port = None,
    admin_port: AdminPort = None,
    dashboard_port: DashboardPort = None,
    dashboard: WithDashboard = True,
    faults: MayFault = False,
    folder: Folder = _FOLDER,
    as_json: Json = False,
) -> None:
    """Start a pair of namespaces and a dashboard on this machine, and say how to reach them.

    They go on until `twinbus down`. Every command in this folder finds them by itself.

    Example: twinbus up --queue orders --faults
    """
    pair = LocalPair(folder)
    wishes = Wishes(port, admin_port, dashboard_port, tuple(queue or ()), faults, dashboard)
    with refusing():
        started = pair.up(wishes)
    if as_json:
        print_json({"started": started, **_addresses(pair)})
        return
    for name, text in _addresses(pair).items():
        typer.echo(f"{name}: {text}")
    _say_started(pair, started)


def _addresses(pair: LocalPair) -> dict[str, str]:
    facts = {part.name: part.facts for part in pair.parts() if part.running}
    found = {name: facts[name]["connection_string"] for name in NAMESPACES if name in facts}
    return found | ({DASHBOARD: facts[DASHBOARD]["url"]} if DASHBOARD in facts else {})


def _say_started(pair: LocalPair, started: list[str]) -> None:
    already = [part.name for part in pair.parts() if part.running and part.name not in started]
    if not started:
        typer.echo("it was up already; `twinbus down` ends it", err=True)
    elif already:
        typer.echo(f"started {' and '.join(started)}; the rest was up already", err=True)
    else:
        typer.echo(
            f"other commands find them by {pair.folder / connections.FILE}; `twinbus down` ends it",
            err=True,
        )


def down(folder: Folder = _FOLDER, as_json: Json = False) -> None:
    """End what `twinbus up` has started. The messages stay, for the next time.

    Example: twinbus down
    """
    with refusing():
        ended = LocalPair(folder).down() if folder.is_dir() else []
    if as_json:
        print_json({"ended": ended})
    else:
        typer.echo(f"ended {', '.join(ended)}" if ended else "nothing was up")


def status(folder: Folder = _FOLDER, as_json: Json = False) -> None:
    """Say what of the pair is up. Exit code 1 if not both namespaces are.

    Example: twinbus status
    """
    pair = LocalPair(folder)
    parts = pair.parts()
    if as_json:
        print_json({"folder": str(folder), "parts": {p.name: _as_json(p) for p in parts}})
    else:
        print_table(("part", "state", "process", "address"), [_row(part) for part in parts])
        for part in parts:
            if part.known and not part.running:
                typer.echo(
                    f"the {part.name} ended unasked, its log is {pair.log(part.name)}; "
                    "`twinbus up` starts it again",
                    err=True,
                )
    if not all(part.running for part in parts if part.name in NAMESPACES):
        if not as_json and not any(part.known for part in parts):
            fail("nothing is up; `twinbus up` starts a pair")
        raise typer.Exit(DOES_NOT_WORK)


def _as_json(part: Part) -> dict[str, Any]:
    """Without the keys, which are in connections.env."""
    facts = {key: value for key, value in part.facts.items() if key != "connection_string"}
    told = {key: value for key, value in asdict(part).items() if key not in ("name", "facts")}
    return {"state": part.state, **told, **facts}


def _row(part: Part) -> list[str]:
    facts = part.facts
    address = facts.get("url") or (f"sb://localhost:{facts['port']}" if "port" in facts else "")
    return [part.name, part.state, str(part.pid or ""), address]
