"""`twinbus dashboard`: a pair, looked at in a browser."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.auth.signature import Key
from twinbus.commands.options import Certificate, Prices, Primary, Secondary, Tier
from twinbus.commands.terminal import local, needing, refuse, refusing, trusting
from twinbus.local.pair import DASHBOARD_PORT

if TYPE_CHECKING:
    from socket import socket

    from starlette.types import ASGIApp

TOKEN_VARIABLE = "TWINBUS_DASHBOARD_TOKEN"  # noqa: S105  the name of a variable
STANDARD = "standard"

ClientsLedger = Annotated[
    str | None,
    typer.Option("--ledger", envvar="TWINBUS_LEDGER", help="The folder of the clients' ledger."),
]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="Of loopback; 0: any that is free.")]
PrimaryAdmin = Annotated[
    str | None,
    typer.Option(
        "--primary-admin",
        envvar="TWINBUS_PRIMARY_ADMIN",
        help="The primary's admin address, as http://localhost:5300.",
    ),
]
SecondaryAdmin = Annotated[
    str | None,
    typer.Option("--secondary-admin", envvar="TWINBUS_SECONDARY_ADMIN", help="The secondary's."),
]


def dashboard(
    primary: Primary = None,
    secondary: Secondary = None,
    ledger: ClientsLedger = None,
    port: Port = DASHBOARD_PORT,
    tier: Tier = STANDARD,
    prices: Prices = None,
    primary_admin: PrimaryAdmin = None,
    secondary_admin: SecondaryAdmin = None,
    certificate: Certificate = None,
) -> None:
    """Show a pair in a browser: states, backlog, rates, outages, the bill, one message's journey.

    Prints an address with a token in it; who has that may look, and start faults where the broker
    allows it. Ctrl-C ends it.

    Example: twinbus dashboard --primary "$PRIMARY" --secondary "$SECONDARY" --ledger ./ledger
    """
    with needing("the dashboard", "dashboard", "starlette", "uvicorn", "pyarrow"):
        from twinbus.dashboard.process import HOST, serve
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")

    first = _asked("primary", primary or local().primary, primary_admin, certificate)
    second = _asked("secondary", secondary or local().secondary, secondary_admin, certificate)
    folder = _folder(ledger or local().ledger)
    _check_prices(tier, prices)
    sock = _listening(port)
    token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
    bound = sock.getsockname()[1]
    # Said before the heavier half is imported: who comes meanwhile is served a moment later.
    typer.echo(f"dashboard: http://{HOST}:{bound}/?token={token}")
    sys.stdout.flush()

    def make() -> ASGIApp:
        from twinbus.accounts.prices import read_tier
        from twinbus.dashboard.app import Dashboard, dashboard_app
        from twinbus.dashboard.asking import AskedAt
        from twinbus.dashboard.login import Login

        made = Dashboard(AskedAt(*first), AskedAt(*second), folder, read_tier(tier, prices))
        return dashboard_app(made, Login(bound, token))

    serve(sock, make)


def _listening(port: int) -> socket:
    from twinbus.dashboard.process import HOST
    from twinbus.serving.port import Address, listening_socket

    try:
        return listening_socket(Address(HOST, port))
    except OSError as error:
        refuse(error.strerror or str(error))


def _asked(
    role: str, text: str, admin: str | None, certificate: Path | None
) -> tuple[str, Key, str, Path | None]:
    """What an ``AskedAt`` is made of."""
    if not text:
        variable = f"TWINBUS_{role.upper()}"
        refuse(f"which {role}? Give --{role}, set {variable}, or start a pair: `twinbus up`")
    try:
        key = Key.of(text)
    except ValueError as error:
        refuse(f"--{role} is not a connection string: {error}")
    trusted = trusting(certificate, text).get("connection_verify")
    return role, key, admin or local().admin_of(text) or "", trusted and Path(trusted)


def _folder(ledger: str) -> Path | None:
    if "://" in ledger:
        refuse(f"--ledger {ledger}: the dashboard reads a ledger in a folder of this machine")
    return Path(ledger) if ledger else None


def _check_prices(tier: str, prices: Path | None) -> None:
    """Only what was given can be wrong, and reading prices takes a while to import."""
    if tier == STANDARD and prices is None:
        return
    from twinbus.accounts.prices import read_tier

    with refusing():
        read_tier(tier, prices)
