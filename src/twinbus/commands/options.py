"""Options that more than one command has; a command's own stand above it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
Host = Annotated[
    str, typer.Option("--host", help="The address to listen on; loopback unless you say so.")
]

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")]

Tier = Annotated[str, typer.Option("--tier", help="A tier of the price table.")]

Prices = Annotated[
    Path | None, typer.Option("--prices", help="A price table of your own, TOML or JSON.")
]
