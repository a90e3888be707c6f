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


def listen(port: int) -> socket.socket:
    """Raises OSError, with a sentence. Who connects from now on waits until it is served."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((HOST, port))
    except OSError as error:
        sock.close()
        reason = f"cannot listen on {HOST}:{port}: {error.strerror}"
        raise OSError(error.errno, reason) from error
    sock.listen(128)
    return sock


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
