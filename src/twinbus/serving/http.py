"""HTTP for an application that shares our event loop and, on the main port, our sockets.

uvicorn's protocol is used as it is; its server is not, because the listener has already accepted
the connection and seen its first byte.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from twinbus.budget import MAX_DROPPED, MAX_WEBSOCKET_MESSAGE, Budget


class HttpFactory:
    """Makes the protocol for one HTTP connection."""

    def __init__(self, app: Any, budget: Budget) -> None:
        self._budget = budget
        self._config = uvicorn.Config(
            app,
            http="h11",
            ws="websockets-sansio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws_max_size=MAX_WEBSOCKET_MESSAGE,
        )
        self._config.load()
        self._state = ServerState()

    def __call__(self) -> asyncio.Protocol:
        state = {"budget": self._budget.share()}  # which the application finds in its scope
        return H11Protocol(self._config, self._state, app_state=state)

    async def stop(self) -> None:
        """Close what is open and wait a little for requests under way."""
        for connection in list(self._state.connections):
            connection.shutdown()
        for _ in range(20):
            if not self._state.connections:
                return
            await asyncio.sleep(0.05)


async def body_of(request: Request, most: int) -> bytes | None:
    """A request's body, kept no further than ``most`` bytes; None if it has more."""
    budget: Budget = request.scope.get("state", {}).get("budget") or Budget()
    body, length = bytearray(), 0
    try:
        async for chunk in request.stream():
            length += len(chunk)
            if length <= most:
                body += chunk
                budget.bodies += len(chunk)
            elif length > MAX_DROPPED:
                break
    finally:
        budget.bodies -= len(body)
    return bytes(body) if length <= most else None
