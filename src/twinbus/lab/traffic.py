"""Who sends and who receives during a drill, and what each of them saw.

Senders are paired; receivers are the plain SDK's, on the primary alone, as those of an application
that knows nothing of all this. Both write down what they did, for the verdict.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from twinbus.lab.verdict import Attempt, Receipt

# A send that was not taken is not sent again: what an application would do is its own business.
SEND_S: Final = 20.0
WAIT_S: Final = 1.0
AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Entity:
    """A queue or topic that is sent to, and what is received from."""

    path: str
    subscription: str | None = None
    sessions: tuple[str, ...] = ()


@dataclass
class History:
    """What senders and receivers saw."""

    attempts: list[Attempt] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    begun: int = 0
    refused: int = 0  # sends that raised

    @property
    def acknowledged(self) -> int:
        return sum(each.acknowledged for each in self.attempts)

    def missing(self) -> int:
        """Acknowledged, and not received yet."""
        seen = {each.id for each in self.receipts}
        return sum(each.acknowledged and each.id not in seen for each in self.attempts)


class Senders:
    """So many tasks that share a factory, each with messages of its own in a row."""

    def __init__(
        self, factory: Any, entities: Sequence[Entity], history: History, seed: int, count: int
    ) -> None:
        self._factory = factory
        self._entities = entities
        self._history = history
        self._seed = seed
        self._count = count
        self._numbers = [0] * count
        self._random = random.Random(seed)  # noqa: S311  bodies, not secrets

    async def send(self, messages: int, pause_s: float) -> None:
        """All of them send, until so many messages were tried."""
        share = [messages // self._count] * self._count
        share[0] += messages - sum(share)
        async with asyncio.TaskGroup() as tasks:
            for sender, mine in enumerate(share):
                tasks.create_task(self._send(sender, mine, pause_s))

    async def _send(self, sender: int, messages: int, pause_s: float) -> None:
        async with AsyncExitStack() as stack:
            links = [
                await stack.enter_async_context(self._factory.get_queue_sender(entity.path))
                for entity in self._entities
            ]
            for _ in range(messages):
                number = self._numbers[sender]
                self._numbers[sender] += 1
                place = number % len(links)
                await self._attempt(links[place], self._entities[place], sender, number)
                await asyncio.sleep(pause_s)

    async def _attempt(self, link: Any, entity: Entity, sender: int, number: int) -> None:
        name = f"{self._seed}-{sender}-{number}"
        session = entity.sessions[sender % len(entity.sessions)] if entity.sessions else None
        body = self._random.randbytes(self._random.randrange(10, 2000))
        message = ServiceBusMessage(body, message_id=name, session_id=session)
        self._history.begun += 1
        try:
            await link.send_messages(message, timeout=SEND_S)
        except ServiceBusError:
            self._history.refused += 1
            acknowledged = False
        else:
            acknowledged = True
        # Senders share sessions, so what is in order is what one of them sent.
        place = f"{session}" if session else f"sender {sender}"
        attempt = Attempt(name, entity.path, place, number, acknowledged)
        self._history.attempts.append(attempt)


class Receivers:
    """One task a queue, session or subscription, for as long as the drill lasts."""

    def __init__(
        self, make: Callable[[], ServiceBusClient], entities: Sequence[Entity], history: History
    ) -> None:
        self._make = make
        self._entities = entities
        self._history = history
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for entity in self._entities:
            for session in entity.sessions or (None,):
                name = f"receiver of {entity.path}"
                work = self._receive(entity, session)
                self._tasks.append(asyncio.create_task(work, name=name))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _receive(self, entity: Entity, session: str | None) -> None:
        """Receive for ever; an outage is a reason to try again, and nothing else."""
        while True:
            with suppress(ServiceBusError, OSError):
                async with self._make() as client, _receiver(client, entity, session) as receiver:
                    while True:
                        await self._take(receiver, entity)
            await asyncio.sleep(AGAIN_S)

    async def _take(self, receiver: Any, entity: Entity) -> None:
        for message in await receiver.receive_messages(50, max_wait_time=WAIT_S):
            await receiver.complete_message(message)
            name = str(message.message_id)
            place = message.session_id or f"sender {name.split('-')[1]}"
            self._history.receipts.append(Receipt(name, entity.path, place))


def _receiver(client: ServiceBusClient, entity: Entity, session: str | None) -> Any:
    if entity.subscription is not None:
        return client.get_subscription_receiver(entity.path, entity.subscription)
    settings: dict[str, Any] = {} if session is None else {"session_id": session}
    return client.get_queue_receiver(entity.path, **settings)
