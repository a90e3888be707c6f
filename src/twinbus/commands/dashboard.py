"""`twinbus dashboard`: a pair, looked at in a browser."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.auth.signature import Key
from twinbus.commands.terminal import (
    Certificate,
    Primary,
    Secondary,
    local,
    refuse,
    trusting,
)
from twinbus.local.pair import DASHBOARD_PORT

if TYPE_CHECKING:
    from starlette.types import ASGIApp

TOKEN_VARIABLE = "TWINBUS_DASHBOARD_TOKEN"  # noqa: S105  the name of a variable
STANDARD = "standard"
_NEEDED = ("starlette", "uvicorn", "pyarrow")


def dashboard(
    primary: Primary = None,
    secondary: Secondary = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            "--ledger", envvar="TWINBUS_LEDGER", help="The folder of the clients' ledger."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Of loopback; 0: any that is free.")
    ] = DASHBOARD_PORT,
    tier: Annotated[str, typer.Option("--tier", help="A tier of the price table.")] = STANDARD,
    prices: Annotated[
        Path | None, typer.Option("--prices", help="A price table of your own, TOML or JSON.")
    ] = None,
    primary_admin: Annotated[
        str | None,
        typer.Option(
            "--primary-admin",
            envvar="TWINBUS_PRIMARY_ADMIN",
            help="The primary's admin address, as http://localhost:5300.",
        ),
    ] = None,
    secondary_admin: Annotated[
        str | None,
        typer.Option(
            "--secondary-admin", envvar="TWINBUS_SECONDARY_ADMIN", help="The secondary's."
        ),
    ] = None,
    certificate: Certificate = None,
) -> None:
    """Show a pair in a browser: states, backlog, rates, outages, the bill, one message's journey.

    Prints an address with a token in it; who has that may look, and start faults where the broker
    allows it. Ctrl-C ends it.

    Example: twinbus dashboard --primary "$PRIMARY" --secondary "$SECONDARY" --ledger ./ledger
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        needed = f"the dashboard needs more packages ({missing[0]})"
        refuse(f"{needed}: pip install 'twinbus[dashboard]'")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    from twinbus.dashboard.process import HOST, serve
    from twinbus.serving.port import Address, listening_socket

    first = _asked("primary", primary or local().primary, primary_admin, certificate)
    second = _asked("secondary", secondary or local().secondary, secondary_admin, certificate)
    folder = _folder(ledger or local().ledger)
    _check_prices(tier, prices)
    try:
        sock = listening_socket(Address(HOST, port))
    except OSError as error:
        refuse(error.strerror or str(error))
    token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
    bound = sock.getsockname()[1]
    # Said before the heavier half is imported: who comes meanwhile is served a moment later.
    typer.echo(f"dashboard: http://{HOST}:{bound}/?token={token}")
    sys.stdout.flush()

    def make() -> ASGIApp:
        from twinbus.accounts.prices import read_tier
        from twinbus.dashboard.app import Dashboard, dashboard_app
        from twinbus.dashboard.asking import NamespaceAddress
        from twinbus.dashboard.login import Login

        made = Dashboard(
            NamespaceAddress(*first), NamespaceAddress(*second), folder, read_tier(tier, prices)
        )
        return dashboard_app(made, Login(bound, token))

    serve(sock, make)


def _asked(
    role: str, text: str, admin: str | None, certificate: Path | None
) -> tuple[str, Key, str, Path | None]:
    """What an ``NamespaceAddress`` is made of."""
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
    from twinbus.accounts.prices import PriceError, read_tier

    try:
        read_tier(tier, prices)
    except PriceError as error:
        refuse(str(error))
