"""What every command shares: refusals, connection strings, tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from twinbus.local import connections

if TYPE_CHECKING:
    from twinbus.local.connections import Connections
    from twinbus.paired.blocking.manager_blocking import NamespaceManager

# What an exit code means, of every command; docs/commands.md has the table.
DOES_NOT_WORK = 1
BAD_INPUT = 2
STOPPED = 130
EXIT_CODES = (
    f"0 it worked; {DOES_NOT_WORK} it did not, or the answer is no; {BAD_INPUT} what was given "
    f"cannot be used; {STOPPED} stopped by Ctrl-C"
)


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
def refusing() -> Iterator[None]:
    """What the user can put right is a sentence."""
    from twinbus.errors import TwinbusError

    try:
        yield
    except TwinbusError as error:
        refuse(str(error))


@contextmanager
def needing(what: str, extras: str, *packages: str) -> Iterator[None]:
    """What is imported in here comes with extras of the package; and so do ``packages``, which are
    imported later, or by other processes."""
    missing = [name for name in packages if find_spec(name) is None]
    try:
        yield
    except ModuleNotFoundError as error:
        missing.append(str(error.name))
    except ImportError as error:  # it is there, and not as we know it
        refuse(str(error))
    if missing:
        refuse(f"{what} needs more packages ({missing[0]}): pip install 'twinbus[{extras}]'")


@contextmanager
def asking(which: str) -> Iterator[None]:
    """A namespace that cannot be reached, or refuses, is no reason for a stack trace."""
    from azure.core.exceptions import AzureError

    from twinbus.errors import first_line

    try:
        yield
    except AzureError as error:
        fail(f"the {which} did not answer: {first_line(error)}")


@contextmanager
def managing(text: str, certificate: Path | None, which: str) -> Iterator[NamespaceManager]:
    from twinbus.paired.blocking.manager_blocking import NamespaceManager

    with (
        asking(which),
        NamespaceManager.from_connection_string(text, **trusting(certificate, text)) as manager,
    ):
        yield manager


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
