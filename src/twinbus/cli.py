"""The command line. Each command is a function in `twinbus.commands`; this is the list of them,
under the headings of `twinbus --help`."""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.commands import (
    broker,
    dashboard,
    drill,
    fault,
    pair,
    proxy,
    report,
    sim,
    soak,
    syphon,
    up,
)
from twinbus.commands.terminal import EXIT_CODES, print_version

NAMESPACES = "Namespaces of your own"
PAIR = "A pair, and its backlog"
BOOKS = "What was done, and what it cost"
LAB = "Trouble on purpose"

app = typer.Typer(
    name="twinbus",
    help="Keep sending to Azure Service Bus while a queue or a whole namespace is out.",
    epilog=f"Exit codes: {EXIT_CODES}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def twinbus(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Keep sending to Azure Service Bus while a queue or a whole namespace is out.

    Example: twinbus broker --help
    """


app.command(rich_help_panel=NAMESPACES)(up.up)
app.command(rich_help_panel=NAMESPACES)(up.down)
app.command(rich_help_panel=NAMESPACES)(up.status)
app.command(rich_help_panel=NAMESPACES)(dashboard.dashboard)
app.command(rich_help_panel=NAMESPACES)(broker.broker)

app.command(rich_help_panel=PAIR)(pair.check)
app.command(rich_help_panel=PAIR)(syphon.syphon)
backlog = typer.Typer(invoke_without_command=True, help=pair.backlog.__doc__)
backlog.callback()(pair.backlog)
backlog.command()(syphon.redrive)
app.add_typer(backlog, name="backlog", rich_help_panel=PAIR)

app.command(rich_help_panel=BOOKS)(report.cost)
app.command(rich_help_panel=BOOKS)(report.audit)
app.command(rich_help_panel=BOOKS)(report.trace)

app.command(rich_help_panel=LAB)(drill.drill)
app.command(rich_help_panel=LAB)(soak.soak)
app.add_typer(fault.app, rich_help_panel=LAB)
app.command(rich_help_panel=LAB)(proxy.proxy)
app.command(rich_help_panel=LAB)(sim.sim)


def main() -> None:
    """The entry point."""
    app()
