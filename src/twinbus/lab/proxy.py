"""A TCP proxy that makes a network bad: for what a broker cannot fake about itself.

    client <--> proxy <--> broker, or Azure

It carries bytes and does not look at them, so TLS passes through. What is bad can be changed while
it runs:

    async with Proxy("localhost", 5672) as proxy:
        proxy.change(latency_ms=200, bandwidth_kbps=256)
        proxy.change(black_hole=True)     # nothing passes; when it ends, what waited goes on
        proxy.cut()                       # every connection is reset
        proxy.cut_after(100)              # each ends 100 of its client's bytes later: in mid-frame
        proxy.half_open()                 # the far side is gone, and the client is not told

Within a connection no byte is lost or changes its place: TCP would not let that happen either.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

CHUNK = 16_384
MAX_UNDER_WAY = 256  # chunks in one direction of a connection
CONNECT_S = 10.0


@dataclass(frozen=True)
class Conditions:
    """How bad the network is. The times and the bytes are each connection's, from its start."""

    latency_ms: float = 0.0  # each way
    bandwidth_kbps: float = 0.0  # kilobits a second, each way; 0 is no limit
    black_hole: bool = False
    cut_after_s: float | None = None
    cut_after_bytes: int | None = None  # of what the client sends
    half_open_after_s: float | None = None
    black_hole_after_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value}; it cannot be below 0")


class Direction:
    """The bytes that go one way: read here, and written there when their time has come."""

    def __init__(self, connection: ProxiedConnection, source: Any, target: Any) -> None:
        self._connection = connection
        self._source: asyncio.StreamReader = source
        self._target: asyncio.StreamWriter = target
        # What was read and when it is due; None is the end. Whoever sends too much waits.
        self._under_way: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue(MAX_UNDER_WAY)
        self._free_at = 0.0  # when the bytes before have passed, where bandwidth is limited
        self.left: int | None = None  # how many bytes pass before the connection is cut

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        with self._connection.failing_together():
            while data := await self._source.read(CHUNK):
                if not self._connection.is_stuck:
                    late_s = self._connection.conditions.latency_ms / 1_000
                    await self._under_way.put((loop.time() + late_s, data))
        if self._connection.is_stuck and self is self._connection.up:
            self._connection.cut()  # the client has given up on it: nobody is left to be misled
        await self._under_way.put(None)

    async def write(self) -> None:
        with self._connection.failing_together():
            while (waiting := await self._under_way.get()) is not None:
                due, data = waiting
                await self._sleep_until(due)
                await self._pass(data)
            await self._connection.flowing()
            self._target.write_eof()

    async def _pass(self, data: bytes) -> None:
        while data:
            step = self._step()
            await self._connection.flowing()
            if self.left is not None and self.left < min(step, len(data)):
                await self._put(data[: self.left])
                self._connection.cut(self._target)
                raise ConnectionAbortedError
            await self._put(data[:step])
            data = data[step:]

    def _step(self) -> int:
        """How much to pass at a time: with little bandwidth, a twentieth of a second's worth."""
        kbps = self._connection.conditions.bandwidth_kbps
        return max(1, int(kbps * 125 / 20)) if kbps else CHUNK

    async def _put(self, data: bytes) -> None:
        if self.left is not None:
            self.left -= len(data)
        kbps = self._connection.conditions.bandwidth_kbps
        if kbps:
            now = asyncio.get_running_loop().time()
            self._free_at = max(now, self._free_at) + len(data) / (kbps * 125)
            await self._sleep_until(self._free_at)
        self._target.write(data)
        await self._target.drain()

    @staticmethod
    async def _sleep_until(moment: float) -> None:
        await asyncio.sleep(max(0.0, moment - asyncio.get_running_loop().time()))


class ProxiedConnection:
    """One client's connection, and ours to the far side."""

    def __init__(self, proxy: Proxy, client: Any, far: Any) -> None:
        self._proxy = proxy
        self._client: asyncio.StreamWriter = client[1]
        self._far: asyncio.StreamWriter = far[1]
        self.up = Direction(self, client[0], self._far)
        self._down = Direction(self, far[0], self._client)
        self.is_stuck = False  # for good: it fell into a hole, or its far side is lost
        self._changed = asyncio.Event()
        self._over = asyncio.Event()

    @property
    def conditions(self) -> Conditions:
        return self._proxy.conditions

    async def run(self) -> None:
        """Carry bytes until both sides have ended, or one has failed."""
        timers = self._set_timers()
        tasks = [asyncio.create_task(self._both_ways()), asyncio.create_task(self._cut_off())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for timer in timers:
                timer.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for writer in (self._client, self._far):
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

    async def _both_ways(self) -> None:
        down = self._down
        await asyncio.gather(self.up.read(), self.up.write(), down.read(), down.write())

    async def _cut_off(self) -> None:
        await self._over.wait()

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """When one end is reset, so is the other; unless the client is not to know."""
        try:
            yield
        except OSError:
            if not self.is_stuck and not self._over.is_set():
                self.cut()

    def _set_timers(self) -> list[asyncio.TimerHandle]:
        conditions, later = self.conditions, asyncio.get_running_loop().call_later
        self.up.left = conditions.cut_after_bytes
        wanted = (
            (conditions.cut_after_s, self.cut),
            (conditions.half_open_after_s, self.half_open),
            (conditions.black_hole_after_s, self._fall),
        )
        return [later(after_s, act) for after_s, act in wanted if after_s is not None]

    async def flowing(self) -> None:
        """Wait while nothing passes."""
        while self.is_stuck or self.conditions.black_hole:
            self._changed.clear()
            await self._changed.wait()

    def wake(self) -> None:
        self._changed.set()

    def _fall(self) -> None:
        self.is_stuck = True

    def cut(self, finishing: asyncio.StreamWriter | None = None) -> None:
        """Reset both ends; the one that is ``finishing`` gets what was written to it first."""
        self._over.set()
        for writer in (self._client, self._far):
            if writer is finishing:
                writer.close()
            else:
                _reset(writer)

    def half_open(self) -> None:
        """Lose the far side, and say nothing to the client."""
        self.is_stuck = True
        _reset(self._far)


class Proxy:
    """Listens, and carries every connection to one address."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        listen_host: str = "127.0.0.1",
        listen_port: int = 0,
        conditions: Conditions | None = None,
    ) -> None:
        self.conditions = conditions or Conditions()
        self._target = (host, port)
        self._listen = (listen_host, listen_port)
        self._server: asyncio.Server | None = None
        self._connections: dict[ProxiedConnection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        return self._listen[1]

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, *self._listen)
        self._listen = self._server.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Proxy:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # -- trouble

    def change(self, **conditions: Any) -> None:
        """Make the network better or worse, for connections that are open too."""
        self.conditions = replace(self.conditions, **conditions)
        for connection in self._connections:
            connection.wake()

    def cut(self) -> None:
        for connection in list(self._connections):
            connection.cut()

    def cut_after(self, count: int) -> None:
        """Cut each open connection when its client has sent so many more bytes."""
        for connection in self._connections:
            connection.up.left = count

    def half_open(self) -> None:
        for connection in list(self._connections):
            connection.half_open()

    # -- connections

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._carry(reader, writer)
        except asyncio.CancelledError:
            writer.close()  # the proxy stops; asyncio would report a cancelled connection as lost
        finally:
            self._tasks.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far = await asyncio.wait_for(asyncio.open_connection(*self._target), CONNECT_S)
        except (OSError, TimeoutError):
            _reset(writer)
            return
        connection = ProxiedConnection(self, (reader, writer), far)
        self._connections[connection] = None
        try:
            await connection.run()
        finally:
            del self._connections[connection]


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a machine does that has lost it."""
    sock = writer.get_extra_info("socket")
    with suppress(OSError, AttributeError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
