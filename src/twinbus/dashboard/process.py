"""The dashboard as a process: a port of loopback, until it is told to end."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HOST = "127.0.0.1"


def serve(sock: socket.socket, make: Callable[[], ASGIApp]) -> None:
    """Until SIGINT or SIGTERM, which end it well, whether it has begun to serve or not."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn has handlers of its own while it runs, and calls these when it is done.
        signal.signal(number, lambda *_: sys.exit(0))
    import uvicorn

    settings: dict[str, Any] = {
        "log_config": None,
        "access_log": False,  # it would have the token in it
        "server_header": False,
        "proxy_headers": False,
        "timeout_graceful_shutdown": 1,
        "http": "h11",
        "ws": "none",
    }
    uvicorn.Server(uvicorn.Config(make(), **settings)).run(sockets=[sock])
