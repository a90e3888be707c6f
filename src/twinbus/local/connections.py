"""How the pair that runs here is reached: `.twinbus/connections.env`, for shells and for us.

Commands read it where neither an option nor the environment says which namespace is meant. What is
said of the pair, its certificate and its ledger, is never used for a namespace of somebody else.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twinbus.processes import write_private

FOLDER: Final = ".twinbus"
FOLDER_VARIABLE: Final = "TWINBUS_FOLDER"
FILE: Final = "connections.env"

_VARIABLES: Final = {
    "primary": "TWINBUS_PRIMARY",
    "secondary": "TWINBUS_SECONDARY",
    "primary_admin": "TWINBUS_PRIMARY_ADMIN",
    "secondary_admin": "TWINBUS_SECONDARY_ADMIN",
    "certificate": "TWINBUS_CERTIFICATE",
    "ledger": "TWINBUS_LEDGER",
}


@dataclass(frozen=True, slots=True)
class Connections:
    """Empty texts where no pair runs."""

    primary: str = ""
    secondary: str = ""
    primary_admin: str = ""
    secondary_admin: str = ""
    certificate: str = ""
    ledger: str = ""

    def knows(self, connection_string: str) -> bool:
        return connection_string != "" and connection_string in (self.primary, self.secondary)

    def admin_of(self, connection_string: str) -> str | None:
        """Where it is managed while its port is closed."""
        admins = {self.primary: self.primary_admin, self.secondary: self.secondary_admin}
        return admins.get(connection_string) or None

    def environment(self) -> dict[str, str]:
        return {variable: getattr(self, name) for name, variable in _VARIABLES.items()}


def folder() -> Path:
    """Where the pair is that commands mean."""
    return Path(os.environ.get(FOLDER_VARIABLE) or FOLDER)


def read(where: Path) -> Connections:
    try:
        lines = (where / FILE).read_text().splitlines()
        pairs = [shlex.split(line)[0].partition("=") for line in lines if "=" in line]
    except (OSError, ValueError, IndexError):
        return Connections()
    found = {variable: value for variable, _, value in pairs}
    return Connections(**{name: found.get(variable, "") for name, variable in _VARIABLES.items()})


def write(where: Path, connections: Connections) -> None:
    """Quoted, so that a shell may read it: `set -a; . .twinbus/connections.env`."""
    pairs = connections.environment().items()
    write_private(where / FILE, "".join(f"{name}={shlex.quote(text)}\n" for name, text in pairs))
