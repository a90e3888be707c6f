"""What every command shares: options, refusals, tables, progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from twinbus.local import connections

if TYPE_CHECKING:
    from twinbus.local.connections import Connections

# What an exit code means, of every command; docs/commands.md has the table.
DOES_NOT_WORK = 1
BAD_INPUT = 2
STOPPED = 130
EXIT_CODES = (
    f"0 it worked; {DOES_NOT_WORK} it did not, or the answer is no; {BAD_INPUT} what was given "
    f"cannot be used; {STOPPED} stopped by Ctrl-C"
)

Primary = Annotated[
    str | None,
    typer.Option("--primary", envvar="TWINBUS_PRIMARY", help="The primary's connection string."),
]
Secondary = Annotated[
    str | None,
    typer.Option(
        "--secondary", envvar="TWINBUS_SECONDARY", help="The secondary's connection string."
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        "--certificate",
        envvar="TWINBUS_CERTIFICATE",
        help="A certificate to trust; for `twinbus broker`, <data>/certificate.pem.",
    ),
]
BacklogQueueCount = Annotated[
    int | None,
    typer.Option(
        "--backlog-queue-count",
        min=1,
        help="The pairing's number of backlog queues. Those beyond it are somebody else's.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"twinbus {version('twinbus')}")
        raise typer.Exit


class Ended(typer.Exit):
    """The end of a command that has said why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(code)
        self.why = why


def refuse(text: str) -> NoReturn:
    """A user's mistake: a sentence, no stack trace."""
    typer.echo(f"twinbus: {text}", err=True)
    raise Ended(BAD_INPUT, text)


def local() -> Connections:
    """The pair that runs here, if one does."""
    return connections.read(connections.folder())


def connection(text: str | None, option: str, variable: str, ours: str = "") -> str:
    """A connection string that can be read, or a sentence. ``ours`` is that of the pair here."""
    # The SDK takes a fifth of a second to import, and `up` must not wait for it.
    from azure.servicebus import parse_connection_string

    from twinbus.errors import first_line

    text = text or ours
    if not text:
        refuse(f"which namespace? Give {option}, set {variable}, or start a pair: `twinbus up`")
    try:
        parse_connection_string(text)
    except ValueError as error:
        refuse(f"{option} is not a connection string: {first_line(error)}")
    return text


def primary_of(text: str | None) -> str:
    return connection(text, "--primary", "TWINBUS_PRIMARY", local().primary)


def secondary_of(text: str | None) -> str:
    return connection(text, "--secondary", "TWINBUS_SECONDARY", local().secondary)


def trusting(certificate: Path | None, text: str = "") -> dict[str, Any]:
    """What to trust. Who the certificate of the pair here is for, that pair alone says."""
    if certificate is None and local().knows(text):
        certificate = Path(local().certificate)
    if certificate is None:
        return {}
    if not certificate.is_file():
        refuse(f"--certificate: there is no file {certificate}")
    return {"connection_verify": str(certificate)}


@contextmanager
def progress(what: str, *, hidden: bool) -> Iterator[Callable[[str, int], None]]:
    """A line that moves while something takes time; on standard error, and only on a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        yield lambda queue, messages: None
        return
    with console.status(what) as status:
        yield lambda queue, messages: status.update(f"{what}: {queue}, {messages} messages")


def print_table(columns: Sequence[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def fail(text: str) -> NoReturn:
    """Not the user's mistake, but it does not work."""
    typer.echo(f"twinbus: {text}", err=True)
    raise Ended(DOES_NOT_WORK, text)
