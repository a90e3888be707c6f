"""A namespace on a port: sockets, the clock, and the bytes between a socket and a `Client`.

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
from typing import Any, Protocol, cast

from twinbus.amqp.performatives import Error
from twinbus.broker.committer import Committer
from twinbus.broker.dialect import Client
from twinbus.broker.namespace import Namespace

log = logging.getLogger("twinbus.broker")

TICK_S = 0.25
CLIENT_TICK_S = 2.0
HANDSHAKE_S = 30.0
# A peer that leaves this much unread is neither read from nor delivered to until it reads.
WRITE_HIGH_WATER = 1 << 20
TLS_FIRST_BYTE = 0x16
BACKLOG = 4_096


class Clock:
    """Milliseconds since 1970 that never jump: the wall's time at the start, steady from there."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> int:
        return int((time.monotonic() + self._offset) * 1000)


class Carrier(Protocol):
    """Whatever carries one client's bytes."""

    client: Client

    def tick(self, now_s: float) -> None: ...

    def close(self) -> None:
        """Say goodbye and close."""

    def abort(self) -> None:
        """Close without a word."""


class AmqpProtocol(asyncio.Protocol):
    """One AMQP connection's bytes on a TCP or TLS connection."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._transport: asyncio.Transport | None = None
        self.client = Client(host.namespace, host.clock, self._wants_to_write)
        self._scheduled = False
        self._reading = True
        self._stuck_since: float | None = None
        self._started = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without the base class.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self._host.protocols[self] = None

    def data_received(self, data: bytes) -> None:
        try:
            self.client.receive(data)
        except Exception as error:  # noqa: BLE001 - logged and counted
            self._fail(error)
            return
        if self._host.committer.is_overloaded and self._reading:
            self._pause_reading()
            self._host.committer.when_relieved(self._resume_reading)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._host.protocols.pop(self, None)
        self._transport = None
        self.client.disconnect()

    def _fail(self, error: Exception) -> None:
        """Ours to mend, not the peer's fault: it is told, and nobody else notices."""
        self._host.note_failure(error)
        try:
            self.client.amqp.close(Error("amqp:internal-error", "The broker failed; see its log."))
            self._write()
        except Exception as worse:  # noqa: BLE001 - logged and counted
            self._host.note_failure(worse)
            self.abort()

    # -- writing

    def _wants_to_write(self, client: Client) -> None:
        """Write at the end of this turn of the loop, once for all that happened in it."""
        if not self._scheduled:
            self._scheduled = True
            self._host.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - logged and counted
            self._fail(error)

    def _write(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        data = self.client.amqp.data_to_send()
        if data:
            transport.write(data)
        if not self.client.is_open:
            transport.close()
        elif self.client.starved and self.client.writable:
            self.client.resume()

    def pause_writing(self) -> None:
        self.client.writable = False
        self._stuck_since = time.monotonic()
        self._pause_reading()

    def resume_writing(self) -> None:
        self._stuck_since = None
        self._resume_reading()
        self.client.resume()

    # -- reading

    def _pause_reading(self) -> None:
        if self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        transport = self._transport
        if not self._reading and self.client.writable and transport is not None:
            self._reading = True
            if not transport.is_closing():
                transport.resume_reading()

    # -- time

    def tick(self, now_s: float) -> None:
        if self._transport is None:
            return
        if not self.client.is_opened and now_s - self._started > HANDSHAKE_S:
            log.info("a connection to '%s' never opened; closed", self.client.namespace.name)
            self._transport.abort()
        elif self._stuck_since is not None and now_s - self._stuck_since > self._host.stuck_s:
            log.info("a client of '%s' does not read; closed", self.client.namespace.name)
            self._transport.abort()
        else:
            self.client.tick(now_s)

    def close(self) -> None:
        self.client.amqp.close(None)
        self._flush()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class FirstByteProtocol(asyncio.Protocol):
    """Inside TLS the first byte cannot be peeked at, so it is read and then handed on."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._patience = self._host.loop.call_later(HANDSHAKE_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()

    def data_received(self, data: bytes) -> None:
        self._patience.cancel()
        protocol = self._host.protocol_for(data[0])
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data)


@dataclass
class Address:
    """Where a namespace listens."""

    host: str = "127.0.0.1"
    port: int = 5672


class Host:
    """One namespace, listening."""

    stuck_s = 60.0

    def __init__(
        self,
        namespace: Namespace,
        address: Address,
        clock: Callable[[], int],
        tls: Callable[[], ssl.SSLContext],
    ) -> None:
        self.namespace = namespace
        self.address = address
        self.clock = clock
        self.protocols: dict[Carrier, None] = {}
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self.shut = False  # while it is, connections are taken and closed

    async def start(self, http: Callable[[], asyncio.Protocol]) -> None:
        """Listen. ``http`` makes the protocol for a connection that turns out to speak HTTP."""
        self.loop = asyncio.get_running_loop()
        self._http = http
        self._socket = listening_socket(self.address)
        self.address.port = self._socket.getsockname()[1]
        self.committer = Committer(self.namespace, self.clock)
        self._accepting = self._spawn(self._accept(self._socket))
        self._spawn(self._tick())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def set_gone(self, gone: bool) -> None:
        """Close the port, or open it again; what is stored is not touched."""
        if gone and self._accepting is not None and self._socket is not None:
            # Closed when nobody waits on it any more: the next file would get its number.
            self._accepting.add_done_callback(partial(_close, self._socket))
            self._accepting.cancel()
            self._accepting = None
        elif not gone and self._accepting is None:
            try:
                self._socket = listening_socket(self.address)
            except OSError as error:
                log.error("'%s' cannot come back yet: %s", self.namespace.name, error)
                return
            self._accepting = self._spawn(self._accept(self._socket))

    async def stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.committer.drain()
        for protocol in list(self.protocols):
            protocol.close()
        await asyncio.sleep(0)
        for protocol in list(self.protocols):
            protocol.abort()
        await asyncio.sleep(0)
        await self.committer.close()

    @property
    def is_gone(self) -> bool:
        return self._accepting is None

    @property
    def clients(self) -> list[Client]:
        return [carrier.client for carrier in self.protocols]

    @property
    def connection_count(self) -> int:
        return len(self.protocols)

    @property
    def link_count(self) -> int:
        return sum(carrier.client.link_count for carrier in self.protocols)

    # -- connections

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, _ = await self.loop.sock_accept(listening)
                self._take(sock)
                self.namespace.health.well("accepting", self.namespace.name)
            except Exception as error:  # noqa: BLE001 - logged and counted
                # Out of file descriptors, most likely: those that are open go on being served.
                self.namespace.health.failed("accepting", self.namespace.name, error)
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
        self.namespace.health.failed("connections", self.namespace.name, error)

    async def _serve(self, sock: socket.socket) -> None:
        """See by the first byte what the peer speaks, without taking the byte away."""
        try:
            first = await asyncio.wait_for(self._first_byte(sock), HANDSHAKE_S)
            if self.shut:
                raise ConnectionAbortedError("the namespace is shut")
            if first == TLS_FIRST_BYTE:
                await self.loop.connect_accepted_socket(
                    lambda: FirstByteProtocol(self), sock, ssl=self._tls_context()
                )
            else:
                await self.loop.connect_accepted_socket(lambda: self.protocol_for(first), sock)
        except (OSError, ssl.SSLError, TimeoutError) as error:
            log.info("a connection to '%s' came to nothing: %s", self.namespace.name, error)
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
        return self._http() if is_letter else AmqpProtocol(self)

    def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = self._tls()
        return self._context

    # -- time

    async def _tick(self) -> None:
        namespace, attempt = self.namespace, self.namespace.health.attempt
        clients_at = 0.0
        while True:
            await asyncio.sleep(TICK_S)
            attempt("time", namespace.name, namespace.tick, self.clock())
            if namespace.trouble is not None:
                attempt("faults", namespace.name, namespace.trouble.tick, self.clock())
            now_s = time.monotonic()
            if now_s >= clients_at:
                clients_at = now_s + CLIENT_TICK_S
                for protocol in list(self.protocols):
                    self._tick_client(protocol, now_s)

    def _tick_client(self, protocol: Carrier, now_s: float) -> None:
        try:
            protocol.tick(now_s)
        except Exception as error:  # noqa: BLE001 - logged and counted
            self.note_failure(error)
            protocol.abort()


def _close(sock: socket.socket, task: asyncio.Task[None]) -> None:
    sock.close()


def listening_socket(address: Address) -> socket.socket:
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
