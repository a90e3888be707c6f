"""Two namespaces as processes and a pair of factories on them, for tests: one face, both worlds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import azure.servicebus.aio as sdk
from harness.brokers import BrokerProcess, certificate

import twinbus
import twinbus.aio
from tests.worlds import Awaitable
from twinbus import SendAvailabilityPairedNamespaceOptions
from twinbus.failover.states import State

ZERO = timedelta(0)
SECOND = timedelta(seconds=1)


class Pair:
    """A primary and a secondary broker, and the factories of one world."""

    def __init__(self, kind: str, primary: BrokerProcess, secondary: BrokerProcess) -> None:
        self.kind = kind
        self.primary = primary
        self.secondary = secondary
        self.module: Any = twinbus.aio if kind == "asyncio" else twinbus
        self.events: list[Any] = []
        self.factory: Any = None
        self.backup: Any = None
        self.manager: Any = None
        self.options: Any = None

    async def open(self, *, pair: bool = True, factory: Any = None, **options: Any) -> Pair:
        settings: dict[str, Any] = {"retry_total": 0, **(factory or {})}
        make = self.module.MessagingFactory.from_connection_string
        self.factory = make(self.primary.connection_string, **settings)
        self.backup = make(self.secondary.connection_string, retry_total=0)
        self.manager = self.module.NamespaceManager.from_connection_string(
            self.secondary.connection_string, connection_verify=certificate(self.secondary)
        )
        self.factory.add_listener(self.events.append)
        values: dict[str, Any] = {
            "backlog_queue_count": 1,
            "failover_interval": ZERO,
            "ping_primary_interval": SECOND,
            "operation_timeout": timedelta(seconds=20),
            **options,
        }
        self.options = SendAvailabilityPairedNamespaceOptions(self.manager, self.backup, **values)
        if pair:
            await self.call(self.factory.pair_namespace, self.options)
        return self

    async def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.kind == "asyncio":
            return await method(*args, **kwargs)
        return await asyncio.to_thread(method, *args, **kwargs)

    def wrapped(self, made: Any) -> Any:
        return made if self.kind == "asyncio" else Awaitable(made)

    def sender(self, queue: str, **kwargs: Any) -> Any:
        return self.wrapped(self.factory.get_queue_sender(queue, **kwargs))

    def receiver(self, queue: str, **kwargs: Any) -> Any:
        return self.wrapped(self.factory.get_queue_receiver(queue, **kwargs))

    def state(self, path: str) -> State:
        state: State = self.factory.entity_states()[path]
        return state

    async def until(self, path: str, state: State, within_s: float = 60) -> None:
        end = time.monotonic() + within_s
        while self.state(path) is not state:
            assert time.monotonic() < end, (self.state(path), self.events)
            await asyncio.sleep(0.02)

    def seen(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def close(self) -> None:
        for each in (self.factory, self.backup, self.manager):
            if each is not None:
                await self.call(each.close)


@asynccontextmanager
async def two_brokers(
    folder: Path, queues: dict[str, dict[str, Any]], **more: dict[str, dict[str, Any]]
) -> AsyncIterator[tuple[BrokerProcess, BrokerProcess]]:
    """Fresh ones, for a test that kills them."""
    brokers = []
    for name, declared in (("primary", queues), ("secondary", more.get("backlog", {}))):
        (folder / name).mkdir()
        brokers.append(BrokerProcess(folder / name, declared))
    try:
        await asyncio.gather(*(asyncio.to_thread(broker.start) for broker in brokers))
        yield brokers[0], brokers[1]
    finally:
        for broker in brokers:
            broker.close()


async def peek(connection_string: str, queue: str, count: int = 100) -> list[Any]:
    client = sdk.ServiceBusClient.from_connection_string(connection_string, retry_total=0)
    async with client, client.get_queue_receiver(queue) as receiver:
        peeked: list[Any] = await receiver.peek_messages(count, sequence_number=1)
        return peeked


async def backlog(pair: Pair, count: int = 1) -> list[Any]:
    """All that waits, with the SDK's own eyes."""
    found = []
    for index in range(count):
        path = f"localhost/x-servicebus-transfer/{index}"
        found += await peek(pair.secondary.connection_string, path)
    return found


def properties(message: Any) -> dict[str, Any]:
    """A received message's application properties, as text."""

    def text(value: Any) -> Any:
        return value.decode() if isinstance(value, bytes) else value

    return {text(key): text(value) for key, value in (message.application_properties or {}).items()}
