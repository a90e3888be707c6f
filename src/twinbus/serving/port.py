"""A port: it listens, finds out what each peer speaks, and carries bytes to and from its client.

The port takes several protocols, told apart by their first byte: AMQP, HTTP, and TLS with either of
them inside, because Service Bus's clients expect messaging and management at one address.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, cast

from twinbus.budget import Budget
from twinbus.health import Health
from twinbus.serving.peer import HANDSHAKE_S, C, Gate, OpenGate, Peer, SocketPeer

log = logging.getLogger("twinbus.serving")

TICK_S = 2.0
TLS_FIRST_BYTE = 0x16
BACKLOG = 4_096


class FirstByteProtocol(asyncio.Protocol):
    """Inside TLS the first byte cannot be peeked at, so it is read and then handed on."""

    def __init__(self, port: Port[Any]) -> None:
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._patience = self._port.loop.call_later(HANDSHAKE_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()

    def data_received(self, data: bytes) -> None:
        self._patience.cancel()
        protocol = self._port.protocol_for(data[0])
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data)


@dataclass
class Address:
    """Where a port listens."""

    host: str = "127.0.0.1"
    port: int = 5672


class Port(Generic[C]):
    """One address that is listened on.

    ``connect`` makes the client for a peer. It is given what the client calls when it has something
    to say, and where the client counts what it keeps for its peer.
    """

    stuck_s = 60.0

    def __init__(
        self,
        name: str,
        address: Address,
        connect: Callable[[Callable[[], None], Budget], C],
        tls: Callable[[], ssl.SSLContext],
        health: Health,
        budget: Budget,
    ) -> None:
        self.name = name
        self.address = address
        self.connect = connect
        self.budget = budget
        self.peers: dict[Peer[C], None] = {}
        self.gate: Gate = OpenGate()
        self._tls = tls
        self._health = health
        self._context: ssl.SSLContext | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self.shut = False  # while it is, connections are taken and closed

    def start(self, http: Callable[[], asyncio.Protocol]) -> None:
        """Listen. ``http`` makes the protocol for a connection that turns out to speak HTTP."""
        self.loop = asyncio.get_running_loop()
        self._http = http
        self._socket = listening_socket(self.address)
        self.address.port = self._socket.getsockname()[1]
        self._accepting = self._spawn(self._accept(self._socket))
        self._spawn(self._tick())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def set_gone(self, gone: bool) -> None:
        """Stop listening, or listen again; those who are connected stay."""
        if gone and self._accepting is not None and self._socket is not None:
            # Closed only when the loop has ceased to watch it: the next file that is opened gets
            # its number, and would be watched in its place.
            self._accepting.add_done_callback(partial(_close, self._socket))
            self._accepting.cancel()
            self._accepting = None
        elif not gone and self._accepting is None:
            try:
                self._socket = listening_socket(self.address)
            except OSError as error:
                log.error("'%s' cannot come back yet: %s", self.name, error)
                return
            self._accepting = self._spawn(self._accept(self._socket))

    async def close(self) -> None:
        """Take no more connections; those that are open go on."""
        if self._socket is not None:
            self._socket.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def disconnect(self) -> None:
        """Say goodbye to whoever is connected."""
        for peer in list(self.peers):
            peer.close()
        await asyncio.sleep(0)
        for peer in list(self.peers):
            peer.abort()
        await asyncio.sleep(0)

    @property
    def is_gone(self) -> bool:
        return self._accepting is None

    @property
    def clients(self) -> list[C]:
        return [peer.client for peer in self.peers]

    # -- connections

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, _ = await self.loop.sock_accept(listening)
                self._take(sock)
                self._health.well("accepting", self.name)
            except Exception as error:  # noqa: BLE001 - logged and counted
                # Out of file descriptors, most likely: those that are open go on being served.
                self._health.failed("accepting", self.name, error)
                await asyncio.sleep(0.1)

    def _take(self, sock: socket.socket) -> None:
        if self.shut:
            sock.close()
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._spawn(self._serve(sock))
        except Exception:
            sock.close()
            raise

    def note_failure(self, error: Exception) -> None:
        """A connection met an error of ours, and is closed for that."""
        self._health.failed("connections", self.name, error)

    async def _serve(self, sock: socket.socket) -> None:
        """See by the first byte what the peer speaks, without taking the byte away."""
        try:
            first = await asyncio.wait_for(self._first_byte(sock), HANDSHAKE_S)
            if self.shut:
                raise ConnectionAbortedError("the port is shut")
            if first == TLS_FIRST_BYTE:
                await self.loop.connect_accepted_socket(
                    lambda: FirstByteProtocol(self), sock, ssl=self._tls_context()
                )
            else:
                await self.loop.connect_accepted_socket(lambda: self.protocol_for(first), sock)
        except (OSError, ssl.SSLError, TimeoutError) as error:
            log.info("a connection to '%s' came to nothing: %s", self.name, error)
            sock.close()
        except Exception as error:  # noqa: BLE001 - logged and counted
            self.note_failure(error)
            sock.close()
        except asyncio.CancelledError:
            sock.close()
            raise

    async def _first_byte(self, sock: socket.socket) -> int:
        ready: asyncio.Future[None] = self.loop.create_future()

        def readable() -> None:
            if not ready.done():
                ready.set_result(None)

        self.loop.add_reader(sock.fileno(), readable)
        try:
            await ready
        finally:
            self.loop.remove_reader(sock.fileno())
        first = sock.recv(1, socket.MSG_PEEK)
        return first[0] if first else 0

    def protocol_for(self, first: int) -> asyncio.Protocol:
        """AMQP starts with an A; whatever starts with another capital letter may be HTTP."""
        is_letter = ord("A") < first <= ord("Z")
        return self._http() if is_letter else SocketPeer(self)

    def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = self._tls()
        return self._context

    # -- time

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            for peer in list(self.peers):
                try:
                    peer.tick(now_s)
                except Exception as error:  # noqa: BLE001 - logged and counted
                    self.note_failure(error)
                    peer.abort()


def _close(sock: socket.socket, task: asyncio.Task[None]) -> None:
    sock.close()


def listening_socket(address: Address) -> socket.socket:
    """Raises OSError, with a sentence. Who connects from now on waits until it is served."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((address.host, address.port))
    except OSError as error:
        sock.close()
        raise OSError(
            error.errno, f"cannot listen on {address.host}:{address.port}: {error.strerror}"
        ) from error
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock
