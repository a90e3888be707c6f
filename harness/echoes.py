"""A port that serves no namespace: its clients give back what they are sent, in capital letters.

As a program it serves one of each kind and says which modules of ours that took.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.responses import PlainTextResponse
from websockets.asyncio.client import connect

from twinbus.budget import Budget
from twinbus.health import Health
from twinbus.serving.certificate import self_signed, server_context
from twinbus.serving.http import HttpFactory
from twinbus.serving.port import Address, Port
from twinbus.serving.websocket import PATH, SUBPROTOCOL, web_app

WAYS = ("plain", "TLS", "a WebSocket", "a WebSocket in TLS", "HTTP")


class Echo:
    """What is sent to it comes back; ``bye`` ends it, and ``fail`` is a mistake of its own."""

    def __init__(self, on_output: Callable[[], None], budget: Budget) -> None:
        self.budget = budget
        self.writable, self.starved = True, False
        self.is_open = self.is_opened = True
        self.is_connected = True
        self.ticks = 0
        self._on_output = on_output
        self._out = b""

    def receive(self, data: bytes) -> None:
        if data == b"fail":
            raise RuntimeError("planted")
        self._out += data.upper()
        if data == b"bye":
            self.is_open = False
        self._on_output()

    def data_to_send(self) -> bytes:
        out, self._out = self._out, b""
        return out

    def resume(self) -> None:
        self.writable, self.starved = True, False

    def tick(self, now_s: float) -> None:
        self.ticks += 1

    def close(self) -> None:
        self._out, self.is_open = b"closed", False

    def fail(self) -> None:
        self._out, self.is_open = b"failed", False

    def disconnect(self) -> None:
        self.is_connected = False


@asynccontextmanager
async def echoes(folder: Path) -> AsyncIterator[Port[Echo]]:
    """A port on loopback, with a certificate that is kept in the folder."""

    def tls() -> ssl.SSLContext:
        return server_context(*self_signed(folder))

    health, budget = Health(logging.getLogger("echoes")), Budget()
    port = Port("echoes", Address(port=0), Echo, tls, health, budget)
    http = HttpFactory(web_app(port, PlainTextResponse("over HTTP")), budget)
    port.start(http)
    try:
        yield port
    finally:
        await http.stop()
        await port.close()
        await port.disconnect()


def trusting(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=self_signed(folder)[0])


async def ask(port: Port[Echo], way: str, folder: Path, text: bytes = b"a word") -> bytes:
    """Say one thing to a new client, and hear the first that it says."""
    number, context = port.address.port, trusting(folder) if "TLS" in way else None
    if "WebSocket" in way:
        scheme = "ws" if context is None else "wss"
        url = f"{scheme}://localhost:{number}{PATH}"
        async with connect(url, ssl=context, subprotocols=[SUBPROTOCOL]) as socket:  # type: ignore[list-item]
            await socket.send(text)
            return bytes(await socket.recv())  # type: ignore[arg-type]
    reader, writer = await asyncio.open_connection("localhost", number, ssl=context)
    try:
        if way == "HTTP":
            text = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        writer.write(text)
        return await (reader.read() if way == "HTTP" else reader.read(100))
    finally:
        writer.close()


async def _each_way(folder: Path) -> list[str]:
    async with echoes(folder) as port:
        return [(await ask(port, way, folder)).decode() for way in WAYS]


if __name__ == "__main__":
    heard = asyncio.run(_each_way(Path(sys.argv[1])))
    ours = sorted(name for name in sys.modules if name.startswith("twinbus."))
    sys.stdout.write(json.dumps({"heard": heard, "modules": ours}))
