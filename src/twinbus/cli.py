"""The command line. Each command is a function in `twinbus.commands`; this is the list of them."""

from __future__ import annotations

import typer

from twinbus.commands import broker, pair, report

app = typer.Typer(
    name="twinbus",
    help="Keep sending to Azure Service Bus while a queue or a whole namespace is out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def twinbus() -> None:
    """Keep sending to Azure Service Bus while a queue or a whole namespace is out."""


app.command()(broker.broker)
app.command()(pair.backlog)
app.command()(pair.check)
app.command()(report.cost)
app.command()(report.audit)
app.command()(report.trace)


def main() -> None:
    """The entry point."""
    app()
