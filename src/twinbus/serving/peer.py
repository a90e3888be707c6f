"""Who is connected to a port: a client, and the socket that carries its bytes.

`AnyClient` is whatever speaks with one peer, without a socket: bytes in, bytes out, and the time. A
port is given a factory of them, and knows nothing else of what it serves.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from twinbus.budget import MAX_UNREAD

if TYPE_CHECKING:
    from twinbus.serving.port import Port

log = logging.getLogger("twinbus.serving")

HANDSHAKE_S = 30.0


class AnyClient(Protocol):
    """One conversation. Whenever it has something to say, it calls what its factory was given."""

    writable: bool  # set by the port: whether the peer reads what it is sent
    starved: bool  # it stopped writing, because so much was not yet taken, and waits for `resume`

    @property
    def is_open(self) -> bool:
        """False after a goodbye, from either side."""

    @property
    def is_opened(self) -> bool:
        """Whether the peer has introduced itself."""

    def receive(self, data: bytes) -> None: ...

    def data_to_send(self) -> bytes: ...

    def resume(self) -> None:
        """There is room to write again."""

    def tick(self, now_s: float) -> None: ...

    def close(self) -> None:
        """Say goodbye."""

    def fail(self) -> None:
        """Say goodbye, because of a mistake on this side."""

    def disconnect(self) -> None:
        """The socket is gone."""


C = TypeVar("C", bound=AnyClient)
C_co = TypeVar("C_co", bound=AnyClient, covariant=True)


class Peer(Protocol[C_co]):
    """A client and whatever carries its bytes."""

    @property
    def client(self) -> C_co: ...

    def tick(self, now_s: float) -> None: ...

    def close(self) -> None:
        """Say goodbye and close."""

    def abort(self) -> None:
        """Close without a word."""


class Gate(Protocol):
    """What all peers of a port have to wait for before more is read from them."""

    @property
    def is_overloaded(self) -> bool: ...

    def when_relieved(self, callback: Callable[[], None]) -> None: ...


class OpenGate:
    """Nobody has to wait."""

    is_overloaded = False

    def when_relieved(self, callback: Callable[[], None]) -> None:
        callback()


class SocketPeer(asyncio.Protocol):
    """A client on a TCP or TLS connection."""

    def __init__(self, port: Port[C]) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._budget = port.budget.share()
        self.client = port.connect(self._wants_to_write, self._budget)
        self._scheduled = False
        self._reading = True
        self._stuck_since: float | None = None
        self._started = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without the base class.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=MAX_UNREAD)
        self._port.peers[self] = None

    def data_received(self, data: bytes) -> None:
        try:
            self.client.receive(data)
        except Exception as error:  # noqa: BLE001 - logged and counted
            self._fail(error)
            return
        if self._port.gate.is_overloaded and self._reading:
            self._pause_reading()
            self._port.gate.when_relieved(self._resume_reading)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._port.peers.pop(self, None)
        self._transport = None
        self.client.disconnect()

    def _fail(self, error: Exception) -> None:
        """Ours to mend, not the peer's fault: it is told, and nobody else notices."""
        self._port.note_failure(error)
        try:
            self.client.fail()
            self._write()
        except Exception as worse:  # noqa: BLE001 - logged and counted
            self._port.note_failure(worse)
            self.abort()

    # -- writing

    def _wants_to_write(self) -> None:
        """Write at the end of this turn of the loop, once for all that happened in it."""
        if not self._scheduled:
            self._scheduled = True
            self._port.loop.call_soon(self._flush)

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
        data = self.client.data_to_send()
        if data:
            transport.write(data)
        self._budget.unread = transport.get_write_buffer_size()
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
            log.info("a connection to '%s' never opened; closed", self._port.name)
            self._transport.abort()
        elif self._stuck_since is not None and now_s - self._stuck_since > self._port.stuck_s:
            log.info("a client of '%s' does not read; closed", self._port.name)
            self._transport.abort()
        else:
            self.client.tick(now_s)

    def close(self) -> None:
        self.client.close()
        self._flush()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
