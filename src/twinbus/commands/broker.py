"""`twinbus broker`: serve namespaces."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.commands import inspection
from twinbus.commands.options import Host, Json, Verbose
from twinbus.commands.terminal import needing, print_json, refuse

if TYPE_CHECKING:
    from twinbus.broker.config import NamespaceConfig
    from twinbus.broker.server import Broker, BrokerConfig

Names = Annotated[
    list[str] | None,
    typer.Option("--name", help="A namespace's name; give several to serve several."),
]
Ports = Annotated[
    list[int] | None,
    typer.Option("--port", help="Its AMQP port, one a name. Default: 5672, 5673, ..."),
]
AdminPorts = Annotated[
    list[int] | None,
    typer.Option("--admin-port", help="Its HTTP port, one a name. Default: 5300, 5301, ..."),
]
Data = Annotated[Path, typer.Option("--data", help="Where the messages are kept.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="TWINBUS_KEY",
        show_envvar=True,
        help="The key of RootManageSharedAccessKey; better given by the environment, "
        "where the process list does not show it. Default: made once, kept with the data.",
    ),
]
Queues = Annotated[
    list[str] | None, typer.Option("--queue", help="A queue to create if it is not there.")
]
Config = Annotated[
    Path | None, typer.Option("--config", help="A TOML file, or the emulator's config.json.")
]
TlsCert = Annotated[
    Path | None, typer.Option("--tls-cert", help="A certificate for TLS. Default: self-signed.")
]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="The certificate's key.")]
IdleLinkS = Annotated[
    float,
    typer.Option(
        "--idle-link-s", min=0, help="Close a link that carries nothing so long; 0 is never."
    ),
]
MayFault = Annotated[
    bool, typer.Option("--faults", help="Let those who may manage start faults: `twinbus fault`.")
]
ServedLedger = Annotated[
    str | None,
    typer.Option("--ledger", help="A folder or URL to record what is served; see `twinbus cost`."),
]
Check = Annotated[
    Path | None,
    typer.Option(
        "--check",
        help="Serve nothing: check all that must hold in the files under this data folder. "
        "Fails with exit code 1 if something does not.",
    ),
]
Repair = Annotated[
    bool,
    typer.Option(
        "--repair", help="With --check: mend what can be mended without losing a message."
    ),
]


def broker(
    context: typer.Context,
    name: Names = None,
    port: Ports = None,
    admin_port: AdminPorts = None,
    data: Data = Path(".twinbus"),
    key: Key = None,
    queue: Queues = None,
    config: Config = None,
    host: Host = "127.0.0.1",
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    idle_link_s: IdleLinkS = 600,
    faults: MayFault = False,
    ledger: ServedLedger = None,
    check: Check = None,
    repair: Repair = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Serve durable Service Bus namespaces to any Service Bus client.

    Example: twinbus broker --name contoso --port 5672 --queue orders --data ./data
    """
    if check is not None:
        _only_check(context)
        inspection.check(check, mend=repair, as_json=as_json)
        return
    if repair:
        refuse("--repair goes with --check: twinbus broker --check FOLDER --repair")
    # Imported here so that `pip install twinbus` without the broker's extra still has a CLI.
    with needing("the broker", "broker"):
        import uvloop  # noqa: F401

        from twinbus.broker.config import ConfigError
        from twinbus.broker.refusals import DescriptionError, StoreError
        from twinbus.broker.server import BrokerConfig, BrokerError, check_tls
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        namespaces = _namespaces(name, port, admin_port, queue, config)
        check_tls(tls_cert, tls_key)
        settings = BrokerConfig(
            namespaces, data, host, key, tls_cert, tls_key, idle_link_s, faults, ledger
        )
        _serve(settings, _print_ready_as_json if as_json else _print_ready)
    except (ConfigError, DescriptionError, BrokerError, StoreError, OSError) as error:
        refuse(str(error))


def _serve(settings: BrokerConfig, tell: Callable[[Broker], None]) -> None:
    import asyncio

    import uvloop

    from twinbus.broker.server import run

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(settings, tell))


def _only_check(context: typer.Context) -> None:
    """Refuse what would be done if the namespaces were served."""
    for name in context.params:
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        if given and name not in ("check", "repair", "as_json", "verbose"):
            refuse(f"--check serves nothing: leave out --{name.replace('_', '-')}")


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
    from twinbus.broker.config import ConfigError
    from twinbus.broker.document import read_toml
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
    for name, text, health in _ready(running):
        typer.echo(f"{name}: {text}")
        typer.echo(f"{name}: health at {health}", err=True)
    sys.stdout.flush()


def _print_ready_as_json(running: Broker) -> None:
    print_json(
        [
            {"namespace": name, "connection_string": text, "health": health}
            for name, text, health in _ready(running)
        ]
    )
    sys.stdout.flush()


def _ready(running: Broker) -> Iterator[tuple[str, str, str]]:
    strings, ports = running.connection_strings(), running.admin_ports
    for (name, text), port in zip(strings.items(), ports, strict=True):
        yield name, text, f"http://localhost:{port}/health"
