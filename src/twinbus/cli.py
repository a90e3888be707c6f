"""The command line: one function a command."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from twinbus.broker.config import NamespaceConfig
    from twinbus.broker.server import Broker

app = typer.Typer(
    name="twinbus",
    help="Keep sending to Azure Service Bus while a queue or a whole namespace is out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

BAD_INPUT = 2
DOES_NOT_WORK = 1


@app.callback()
def twinbus() -> None:
    """Keep sending to Azure Service Bus while a queue or a whole namespace is out."""


def main() -> None:
    """The entry point."""
    app()


def _refuse(text: str) -> NoReturn:
    """A user's mistake: a sentence, no stack trace."""
    typer.echo(f"twinbus: {text}", err=True)
    raise typer.Exit(BAD_INPUT)


@app.command()
def broker(
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="A namespace's name; give several to serve several."),
    ] = None,
    port: Annotated[
        list[int] | None,
        typer.Option("--port", help="Its AMQP port, one a name. Default: 5672, 5673, ..."),
    ] = None,
    admin_port: Annotated[
        list[int] | None,
        typer.Option("--admin-port", help="Its HTTP port, one a name. Default: 5300, 5301, ..."),
    ] = None,
    data: Annotated[Path, typer.Option("--data", help="Where the messages are kept.")] = Path(
        ".twinbus"
    ),
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            envvar="TWINBUS_KEY",
            show_envvar=True,
            help="The key of RootManageSharedAccessKey; better given by the environment, "
            "where the process list does not show it. Default: made once, kept with the data.",
        ),
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", help="A queue to create if it is not there.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A TOML file, or the emulator's config.json.")
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; loopback unless you say so.")
    ] = "127.0.0.1",
    tls_cert: Annotated[
        Path | None,
        typer.Option("--tls-cert", help="A certificate for TLS. Default: self-signed."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", help="The certificate's key.")
    ] = None,
    idle_link_s: Annotated[
        float,
        typer.Option(
            "--idle-link-s", min=0, help="Close a link that carries nothing so long; 0 is never."
        ),
    ] = 600,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")] = False,
) -> None:
    """Serve durable Service Bus namespaces to any Service Bus client.

    Example: twinbus broker --name contoso --port 5672 --queue orders --data ./data
    """
    # Imported here so that `pip install twinbus` without the broker's extra still has a CLI.
    try:
        import uvloop

        from twinbus.broker.config import ConfigError
        from twinbus.broker.descriptions import DescriptionError
        from twinbus.broker.server import BrokerConfig, BrokerError, check_tls, run
        from twinbus.broker.store import StoreError
    except ImportError as error:
        _refuse(f"the broker needs more packages ({error.name}): pip install 'twinbus[broker]'")
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        namespaces = _namespaces(name, port, admin_port, queue, config)
        check_tls(tls_cert, tls_key)
        settings = BrokerConfig(namespaces, data, host, key, tls_cert, tls_key, idle_link_s)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(settings, _print_ready))
    except (ConfigError, DescriptionError, BrokerError, StoreError, OSError) as error:
        _refuse(str(error))


def _namespaces(
    names: list[str] | None,
    ports: list[int] | None,
    admin_ports: list[int] | None,
    queues: list[str] | None,
    config: Path | None,
) -> list[NamespaceConfig]:
    from twinbus.broker.config import (
        DEFAULT_ADMIN_PORT,
        DEFAULT_PORT,
        ConfigError,
        NamespaceConfig,
        check_together,
    )
    from twinbus.broker.descriptions import QueueDescription, check_path

    if config is not None:
        return _from_file(config, names, ports, admin_ports, queues)
    names = names or ["twinbus"]
    ports = ports or [DEFAULT_PORT + index for index in range(len(names))]
    admin_ports = admin_ports or [DEFAULT_ADMIN_PORT + index for index in range(len(names))]
    if not len(names) == len(ports) == len(admin_ports):
        raise ConfigError(
            f"{len(names)} --name, {len(ports)} --port and {len(admin_ports)} --admin-port: "
            "give one of each a namespace"
        )
    for path in queues or []:
        check_path(path)
    namespaces = [
        NamespaceConfig(*each, queues={path: QueueDescription() for path in queues or []})
        for each in zip(names, ports, admin_ports, strict=True)
    ]
    check_together(namespaces)
    return namespaces


def _from_file(
    config: Path,
    names: list[str] | None,
    ports: list[int] | None,
    admin_ports: list[int] | None,
    queues: list[str] | None,
) -> list[NamespaceConfig]:
    from twinbus.broker.config import ConfigError, read_toml
    from twinbus.broker.emulator import read_emulator

    if names or queues:
        raise ConfigError("--config names namespaces and queues; leave out --name and --queue")
    if config.suffix.lower() == ".json":
        return read_emulator(config, ports, admin_ports)
    if ports or admin_ports:
        raise ConfigError("a TOML file has the ports; leave out --port and --admin-port")
    return read_toml(config)


def _print_ready(running: Broker) -> None:
    """What a user, or a program that started us, needs to know."""
    for (namespace, text), admin_port in zip(
        running.connection_strings().items(), running.admin_ports, strict=True
    ):
        typer.echo(f"{namespace}: {text}")
        typer.echo(f"{namespace}: health at http://localhost:{admin_port}/health", err=True)
    sys.stdout.flush()


# ---------------------------------------------------------------- the pair

_Primary = Annotated[
    str | None,
    typer.Option("--primary", envvar="TWINBUS_PRIMARY", help="The primary's connection string."),
]
_Secondary = Annotated[
    str | None,
    typer.Option(
        "--secondary", envvar="TWINBUS_SECONDARY", help="The secondary's connection string."
    ),
]
_Certificate = Annotated[
    Path | None,
    typer.Option(
        "--certificate",
        envvar="TWINBUS_CERTIFICATE",
        help="A certificate to trust; for `twinbus broker`, <data>/certificate.pem.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command()
def backlog(
    secondary: _Secondary = None,
    primary_name: Annotated[
        str | None,
        typer.Option("--primary-name", help="Only the backlog of this primary, as `contoso`."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Look at this many messages a queue.")
    ] = None,
    certificate: _Certificate = None,
    as_json: _Json = False,
) -> None:
    """List what waits in the backlog: by queue and destination, count, bytes and oldest.

    Example: twinbus backlog --secondary "$SECONDARY"
    """
    from azure.core.exceptions import AzureError

    from twinbus.paired.blocking.factory import MessagingFactory
    from twinbus.paired.blocking.manager import NamespaceManager
    from twinbus.paired.waiting import backlog_queues, look

    text = _connection(secondary, "--secondary", "TWINBUS_SECONDARY")
    try:
        with (
            NamespaceManager.from_connection_string(text, **_trusting(certificate)) as manager,
            MessagingFactory.from_connection_string(text, retry_total=1) as client,
            _progress("looking at the backlog", hidden=as_json) as progress,
        ):
            queues = backlog_queues(manager, primary_name)
            found = look(client, queues, limit, progress)
    except AzureError as error:
        _fail(f"the secondary did not answer: {_first_line(error)}")
    rows = [entry.as_json() for entry in found]
    if as_json:
        _print_json({"queues": queues, "waiting": rows})
        return
    columns = ("queue", "destination", "messages", "bytes", "oldest")
    if rows:
        _print_table(columns, [[str(row[column]) for column in columns] for row in rows])
    total = sum(entry.messages for entry in found)
    typer.echo(f"{total} messages wait in {len(queues)} backlog queues")


@app.command()
def check(
    primary: _Primary = None,
    secondary: _Secondary = None,
    entity: Annotated[
        list[str] | None,
        typer.Option("--entity", help="A queue or topic of the primary to ping; give several."),
    ] = None,
    backlog_queue_count: Annotated[
        int, typer.Option("--backlog-queue-count", min=1, help="How many backlog queues to use.")
    ] = 10,
    certificate: _Certificate = None,
    as_json: _Json = False,
) -> None:
    """Try a pairing and print what works. Makes the backlog queues; sends nothing but pings.

    Example: twinbus check --primary "$PRIMARY" --secondary "$SECONDARY" --entity orders
    """
    from twinbus.paired.blocking.factory import MessagingFactory
    from twinbus.paired.blocking.manager import NamespaceManager
    from twinbus.paired.check import Step
    from twinbus.paired.check import check as steps_of

    home = _connection(primary, "--primary", "TWINBUS_PRIMARY")
    away = _connection(secondary, "--secondary", "TWINBUS_SECONDARY")
    steps: list[Step] = []
    with (
        MessagingFactory.from_connection_string(home, retry_total=0) as first,
        MessagingFactory.from_connection_string(away, retry_total=0) as second,
        NamespaceManager.from_connection_string(away, **_trusting(certificate)) as manager,
    ):
        for step in steps_of(first, second, manager, entity or [], backlog_queue_count):
            steps.append(step)
            if not as_json:
                said = f": {step.detail}" if step.detail else ""
                typer.echo(f"{'ok    ' if step.ok else 'FAILED'} {step.what}{said}")
    ok = all(step.ok for step in steps)
    if as_json:
        _print_json({"ok": ok, "steps": [asdict(step) for step in steps]})
    if not ok:
        raise typer.Exit(DOES_NOT_WORK)


def _connection(text: str | None, option: str, variable: str) -> str:
    """A connection string that can be read, or a sentence."""
    from azure.servicebus import parse_connection_string

    if not text:
        _refuse(f"which namespace? Give {option}, or set {variable}")
    try:
        parse_connection_string(text)
    except ValueError as error:
        _refuse(f"{option} is not a connection string: {_first_line(error)}")
    return text


def _trusting(certificate: Path | None) -> dict[str, Any]:
    if certificate is None:
        return {}
    if not certificate.is_file():
        _refuse(f"--certificate: there is no file {certificate}")
    return {"connection_verify": str(certificate)}


@contextmanager
def _progress(what: str, *, hidden: bool) -> Iterator[Callable[[str, int], None]]:
    """A line that moves while something takes time; on standard error, and only on a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        yield lambda queue, messages: None
        return
    with console.status(what) as status:
        yield lambda queue, messages: status.update(f"{what}: {queue}, {messages} messages")


def _print_table(columns: Sequence[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def _fail(text: str) -> NoReturn:
    """Not the user's mistake, but it does not work."""
    typer.echo(f"twinbus: {text}", err=True)
    raise typer.Exit(DOES_NOT_WORK)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
