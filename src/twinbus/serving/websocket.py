"""AMQP inside WebSockets, for clients that can only get out on HTTPS's port."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any, Generic

from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from twinbus.budget import Budget
from twinbus.serving.peer import HANDSHAKE_S, C
from twinbus.serving.port import Port

PATH = "/$servicebus/websocket"
SUBPROTOCOL = "AMQPWSB10"


class WebSocketPeer(Generic[C]):
    """A client whose bytes are binary WebSocket messages."""

    def __init__(self, port: Port[C], socket: WebSocket) -> None:
        self._port = port
        self._socket = socket
        self._output = asyncio.Event()
        self._started = time.monotonic()
        self._task: asyncio.Task[Any] | None = None
        # The connection began as HTTP, and was given its share of the budget then.
        self._budget: Budget = socket.scope["state"]["budget"]
        self.client = port.connect(self._output.set, self._budget)

    async def run(self) -> None:
        """Carry bytes both ways until either side ends it."""
        self._port.peers[self] = None
        self._task = asyncio.current_task()
        writing = asyncio.create_task(self._write())
        try:
            await self._read()
        except (WebSocketDisconnect, asyncio.CancelledError):
            pass  # the peer left, or the port closes
        except Exception as error:  # noqa: BLE001 - logged and counted
            self._port.note_failure(error)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            self._port.peers.pop(self, None)
            self.client.disconnect()

    async def _read(self) -> None:
        while self.client.is_open:
            self.client.receive(await self._receive())
            if self._port.gate.is_overloaded:
                relieved = asyncio.Event()
                self._port.gate.when_relieved(relieved.set)
                await relieved.wait()
        await self._send()

    async def _receive(self) -> bytes:
        message = await self._socket.receive()
        data = message.get("bytes")
        if message["type"] == "websocket.disconnect" or data is None:
            raise WebSocketDisconnect  # the peer left, or sends text, which AMQP is not
        return bytes(data)

    async def _write(self) -> None:
        try:
            while True:
                await self._output.wait()
                self._output.clear()
                await self._send()
        except WebSocketDisconnect:
            self.abort()
        except Exception as error:  # noqa: BLE001 - logged and counted
            self._port.note_failure(error)
            self.abort()  # or it would go on listening to one who hears nothing

    async def _send(self) -> None:
        # Not writable while a message is under way: what a slow peer can make us hold is bounded.
        self.client.writable = False
        data = self.client.data_to_send()
        self._budget.unread = len(data)
        if data:
            try:
                await self._socket.send_bytes(data)
            except RuntimeError as error:  # what Starlette says of a peer that is already gone
                raise WebSocketDisconnect from error
        self._budget.unread = 0
        self.client.writable = True
        if data:
            self.client.resume()

    def tick(self, now_s: float) -> None:
        if not self.client.is_opened and now_s - self._started > HANDSHAKE_S:
            self.abort()
        else:
            self.client.tick(now_s)

    def close(self) -> None:
        self.client.close()
        self._output.set()

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()


def web_app(port: Port[Any], management: ASGIApp) -> ASGIApp:
    """One application for what comes over HTTP: AMQP in WebSockets, and the management API."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket" or scope["path"].lower() != PATH:
            await management(scope, receive, send)
            return
        socket = WebSocket(scope, receive, send)
        offered = scope.get("subprotocols", [])
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        await WebSocketPeer(port, socket).run()
        if socket.client_state is WebSocketState.CONNECTED:
            with suppress(WebSocketDisconnect, RuntimeError):  # the peer may leave just now
                await socket.close()

    return app
