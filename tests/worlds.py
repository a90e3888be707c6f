"""The SDK's two worlds behind one face, so that a test written once runs in both.

The asyncio clients are used as they are. The blocking ones are wrapped: each call runs in a thread
and is awaited, each `with` is an `async with`. Nothing in between changes what goes over the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import azure.servicebus as blocking
import azure.servicebus.aio as asynchronous


class Awaitable:
    """A blocking SDK object whose methods are awaited."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name == "session":
            return Awaitable(value)
        if not callable(value):
            return value

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(value, *args, **kwargs)

        return call

    async def __aenter__(self) -> Awaitable:
        await asyncio.to_thread(self._inner.__enter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self._inner.__exit__, *error)


# The SDK's sender has a thread or task that sleeps a second at a time, and closing waits for it.
NO_KEEP_ALIVE: dict[str, Any] = {"keep_alive": 0}


class World:
    """One kind of client to one namespace. Errors come at once: the SDK's retries are off."""

    def __init__(self, kind: str, connection_string: str, **options: Any) -> None:
        self.kind = kind
        module: Any = asynchronous if kind == "asyncio" else blocking
        options = {"retry_total": 0, **options}
        self.client = module.ServiceBusClient.from_connection_string(connection_string, **options)

    def _get(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        return made if self.kind == "asyncio" else Awaitable(made)

    def sender(self, queue: str, **kwargs: Any) -> Any:
        return self._get(self.client.get_queue_sender, queue, **NO_KEEP_ALIVE, **kwargs)

    def receiver(self, queue: str, **kwargs: Any) -> Any:
        return self._get(self.client.get_queue_receiver, queue, **kwargs)

    async def close(self) -> None:
        if self.kind == "asyncio":
            await self.client.close()
        else:
            await asyncio.to_thread(self.client.close)

    # -- what most tests do

    async def send(self, queue: str, *messages: Any) -> None:
        async with self.sender(queue) as sender:
            for message in messages:
                await sender.send_messages(message)

    async def receive(self, queue: str, count: int = 1, **kwargs: Any) -> list[Any]:
        """Receive and complete."""
        async with self.receiver(queue, **kwargs) as receiver:
            found = await receive_some(receiver, count)
            for message in found:
                await receiver.complete_message(message)
            return found

    async def peek(self, queue: str, count: int = 100, **kwargs: Any) -> list[Any]:
        async with self.receiver(queue, **kwargs) as receiver:
            peeked: list[Any] = await receiver.peek_messages(count, sequence_number=1)
            return peeked


async def receive_some(receiver: Any, count: int, within_s: float = 5) -> list[Any]:
    """``count`` messages, or as many as come in time: the SDK may give them in several calls."""
    found: list[Any] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while len(found) < count and loop.time() < end:
        wait = max(0.1, end - loop.time())
        found += await receiver.receive_messages(count - len(found), max_wait_time=wait)
    return found
