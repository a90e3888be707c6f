"""`twinbus fault`: trouble for a broker, on purpose."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.commands.options import Certificate, Json
from twinbus.commands.terminal import (
    connection,
    fail,
    local,
    print_json,
    print_table,
    refuse,
    trusting,
)

if TYPE_CHECKING:
    from twinbus.lab.faults import Fault, FaultClient

app = typer.Typer(
    name="fault",
    help="Give a broker that runs with --faults trouble, on purpose.",
    no_args_is_help=True,
)

Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        envvar="TWINBUS_NAMESPACE",
        help="Its connection string. Default: the primary of `twinbus up`.",
    ),
]
Admin = Annotated[
    str | None,
    typer.Option(
        "--admin",
        envvar="TWINBUS_ADMIN",
        help="Its admin address, as http://localhost:5300: for a namespace that is off its port.",
    ),
]


def _kinds() -> list[tuple[str, str]]:
    from twinbus.broker.fault_kinds import KINDS

    return [(kind.name, kind.text) for kind in KINDS.values()]


FaultKind = Annotated[
    str, typer.Argument(help="What kind: see `twinbus fault kinds`.", autocompletion=_kinds)
]
Entity = Annotated[
    str | None,
    typer.Option("--entity", help="A queue, topic or subscription. Default: all of them."),
]
Seconds = Annotated[float, typer.Option("--for", help="How many seconds it lasts.")]
Rate = Annotated[float | None, typer.Option("--rate", help="throttling: credits a second.")]
DelayS = Annotated[
    float | None, typer.Option("--delay-s", help="slow-store, store-and-forward: how late.")
]
EveryS = Annotated[float | None, typer.Option("--every-s", help="connections-cut: how often.")]
Condition = Annotated[
    str | None, typer.Option("--condition", help="sends-refused, receives-refused: the AMQP error.")
]


@app.command()
def start(
    kind: FaultKind,
    namespace: Namespace = None,
    entity: Entity = None,
    seconds: Seconds = 60.0,
    rate: Rate = None,
    delay_s: DelayS = None,
    every_s: EveryS = None,
    condition: Condition = None,
    admin: Admin = None,
    certificate: Certificate = None,
    as_json: Json = False,
) -> None:
    """Start a fault. It ends by itself.

    Example: twinbus fault start throttling --entity orders --for 30
    """
    settings = {"rate": rate, "delay_s": delay_s, "every_s": every_s, "condition": condition}
    given = {name: value for name, value in settings.items() if value is not None}
    client = _client(namespace, admin, certificate)
    _print(_called(client.start, kind, entity, seconds, **given), as_json)


@app.command("list")
def list_faults(
    namespace: Namespace = None,
    admin: Admin = None,
    certificate: Certificate = None,
    as_json: Json = False,
) -> None:
    """List the faults that are on.

    Example: twinbus fault list
    """
    _print(_called(_client(namespace, admin, certificate).list), as_json)


FaultId = Annotated[int | None, typer.Argument(metavar="[ID]", help="Which one. Default: all.")]


@app.command()
def clear(
    fault_id: FaultId = None,
    namespace: Namespace = None,
    admin: Admin = None,
    certificate: Certificate = None,
    as_json: Json = False,
) -> None:
    """End a fault, or all of them, before their time.

    Example: twinbus fault clear 3
    """
    _print(_called(_client(namespace, admin, certificate).clear, fault_id), as_json)


@app.command()
def kinds(as_json: Json = False) -> None:
    """Say what kinds of faults there are.

    Example: twinbus fault kinds
    """
    from twinbus.broker.fault_kinds import KINDS

    rows = [
        {
            "kind": kind.name,
            "of": "an entity or the namespace" if kind.per_entity else "the namespace",
            "settings": {name: str(allowed) for name, allowed in kind.settings.items()},
            "what": kind.text,
        }
        for kind in KINDS.values()
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        typer.echo(f"{row['kind']:<20}{row['what']}")


def _client(namespace: str | None, admin: str | None, certificate: Any) -> FaultClient:
    from twinbus.errors import first_line
    from twinbus.lab.faults import FaultClient

    text = connection(namespace, "--namespace", "TWINBUS_NAMESPACE", local().primary)
    trusted = trusting(certificate, text).get("connection_verify")
    try:
        return FaultClient(text, admin or local().admin_of(text), trusted)
    except ValueError as error:
        refuse(first_line(error))


def _called(method: Any, *args: Any, **kwargs: Any) -> Any:
    from twinbus.errors import first_line
    from twinbus.lab.faults import FaultError

    try:
        return method(*args, **kwargs)
    except FaultError as error:
        if error.status in (400, 404):
            refuse(first_line(error))
        fail(first_line(error))


def _print(found: Fault | list[Fault], as_json: bool) -> None:
    faults = found if isinstance(found, list) else [found]
    if as_json:
        print_json([asdict(each) for each in faults] if found is faults else asdict(faults[0]))
        return
    if not faults:
        typer.echo("no faults")
        return
    columns = ("id", "kind", "entity", "seconds left", "settings")
    print_table(columns, [_row(each) for each in faults])


def _row(fault: Fault) -> list[str]:
    settings = ", ".join(f"{name}={value}" for name, value in fault.settings.items())
    entity = fault.entity or "(namespace)"
    return [str(fault.id), fault.kind, entity, f"{fault.seconds_left:g}", settings]
