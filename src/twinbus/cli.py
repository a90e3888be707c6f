"""The command line. Each command is a function in `twinbus.commands`; this is the list of them."""

from __future__ import annotations

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

app = typer.Typer(
    name="twinbus",
    help="Keep sending to Azure Service Bus while a queue or a whole namespace is out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def twinbus() -> None:
    """Keep sending to Azure Service Bus while a queue or a whole namespace is out."""


app.command()(up.up)
app.command()(up.down)
app.command()(up.status)
app.command()(dashboard.dashboard)
app.command()(broker.broker)
app.command()(pair.check)
app.command()(syphon.syphon)

backlog = typer.Typer(invoke_without_command=True, help=pair.backlog.__doc__)
backlog.callback()(pair.backlog)
backlog.command()(syphon.redrive)
app.add_typer(backlog, name="backlog")

app.command()(drill.drill)
app.command()(soak.soak)
app.add_typer(fault.app)
app.command()(proxy.proxy)
app.command()(sim.sim)

app.command()(report.cost)
app.command()(report.audit)
app.command()(report.trace)


def main() -> None:
    """The entry point."""
    app()
