"""A namespace, served: its port, its disk, and the passing of time."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable

from twinbus.broker.committer import Committer
from twinbus.broker.dialect import Client
from twinbus.broker.namespace import Namespace
from twinbus.budget import Budget
from twinbus.serving.port import Address, Port

TICK_S = 0.25


class SteadyClock:
    """Milliseconds since 1970 that never jump: the wall's time at the start, steady from there."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> int:
        return int((time.monotonic() + self._offset) * 1000)


class Host:
    """One namespace."""

    def __init__(
        self,
        namespace: Namespace,
        address: Address,
        clock: Callable[[], int],
        tls: Callable[[], ssl.SSLContext],
    ) -> None:
        self.namespace = namespace
        self.clock = clock
        self.budget = Budget()
        health = namespace.health
        self.port = Port(namespace.name, address, self._connect, tls, health, self.budget)
        self._ticking: asyncio.Task[None] | None = None

    def _connect(self, on_output: Callable[[], None], budget: Budget) -> Client:
        return Client(self.namespace, self.clock, on_output, budget)

    async def start(self, http: Callable[[], asyncio.Protocol]) -> None:
        """Listen. ``http`` makes the protocol for a connection that turns out to speak HTTP."""
        self.port.start(http)
        self.port.gate = self.committer = Committer(self.namespace, self.clock, self.budget)
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Finish what is being written before those who wait for it are told goodbye."""
        await self.port.close()
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        await self.committer.drain()
        await self.port.disconnect()
        await self.committer.close()

    @property
    def connection_count(self) -> int:
        return len(self.port.peers)

    @property
    def link_count(self) -> int:
        return sum(client.link_count for client in self.port.clients)

    async def _tick(self) -> None:
        namespace, attempt = self.namespace, self.namespace.health.attempt
        while True:
            await asyncio.sleep(TICK_S)
            attempt("time", namespace.name, namespace.tick, self.clock())
            if namespace.trouble is not None:
                attempt("faults", namespace.name, namespace.trouble.tick, self.clock())
