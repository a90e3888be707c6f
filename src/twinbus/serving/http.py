"""HTTP for an application that shares our event loop and, on the main port, our sockets.

uvicorn's protocol is used as it is; its server is not, because the listener has already accepted
the connection and seen its first byte.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState


class HttpFactory:
    """Makes the protocol for one HTTP connection."""

    def __init__(self, app: Any) -> None:
        self._config = uvicorn.Config(
            app,
            http="h11",
            ws="websockets-sansio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
        self._config.load()
        self._state = ServerState()

    def __call__(self) -> asyncio.Protocol:
        return H11Protocol(self._config, self._state, app_state={})

    async def stop(self) -> None:
        """Close what is open and wait a little for requests under way."""
        for connection in list(self._state.connections):
            connection.shutdown()
        for _ in range(20):
            if not self._state.connections:
                return
            await asyncio.sleep(0.05)
