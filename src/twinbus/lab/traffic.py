"""Who sends and who receives during a drill or a soak, and what each of them saw.

Senders are paired; receivers are the plain SDK's, on the primary alone, as those of an application
that knows nothing of all this. Both write down what they did, for the verdict.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from azure.core.exceptions import AzureError, ResourceExistsError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from twinbus.errors import TwinbusError, first_line
from twinbus.lab.verdict import Attempt, Receipt

log = logging.getLogger(__name__)

# A send that was not taken is not sent again: what an application would do is its own business.
SEND_S: Final = 20.0
WAIT_S: Final = 1.0
AGAIN_S: Final = 0.5
# The SDK does not notice a connection whose far side is lost, and receives nothing on it for ever.
# So one that is quiet for this long is opened anew.
QUIET_S: Final = 10.0
HUNG_S: Final = 45.0
STOP_S: Final = 10.0
PAGE: Final = 250


class EntityError(TwinbusError):
    """A queue or topic could not be made; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A queue or topic that is sent to, and what is received from."""

    path: str
    subscription: str | None = None
    sessions: tuple[str, ...] = ()


# Two queues, a session queue and a topic.
SESSIONS: Final = tuple(f"visit-{number}" for number in range(4))


def entities(prefix: str = "") -> tuple[Destination, ...]:
    """One of each kind that can be sent to."""
    return (
        Destination(f"{prefix}orders"),
        Destination(f"{prefix}payments"),
        Destination(f"{prefix}visits", sessions=SESSIONS),
        Destination(f"{prefix}news", subscription="readers"),
    )


def create(manager: Any, entity: Destination) -> None:
    """Make it on the primary, unless it is there. Raises EntityError."""
    settings: dict[str, Any] = {"requires_duplicate_detection": True}
    try:
        with suppress(ResourceExistsError):
            if entity.subscription is None:
                manager.create_queue(
                    entity.path, requires_session=bool(entity.sessions), **settings
                )
            else:
                manager.create_topic(entity.path, **settings)
                manager.create_subscription(entity.path, entity.subscription)
    except AzureError as error:
        raise EntityError(
            f"could not create '{entity.path}' on the primary: {first_line(error)}. The key needs "
            "the Manage claim, and the namespace must be reachable"
        ) from error


@dataclass
class Observed:
    """What senders and receivers saw."""

    attempts: list[Attempt] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    begun: int = 0
    refused: int = 0  # sends that raised
    # Received, and the receiver was not told that it is settled: it may come again, rightly.
    unsettled: set[tuple[str, str]] = field(default_factory=set)

    @property
    def acknowledged(self) -> int:
        return sum(each.acknowledged for each in self.attempts)

    def attempted(self, attempt: Attempt) -> None:
        """Told when a send begins, and again when it was acknowledged."""
        self.begun += not attempt.acknowledged
        self.attempts.append(attempt)

    def received(self, receipt: Receipt) -> None:
        """Told of a message before it is settled, so that none is forgotten whose settling is
        done at the broker while its answer is lost."""
        if (receipt.entity, receipt.id) not in self.unsettled:
            self.receipts.append(receipt)
        self.unsettled.add((receipt.entity, receipt.id))

    def settled(self, receipt: Receipt) -> None:
        self.unsettled.discard((receipt.entity, receipt.id))

    def missing(self) -> int:
        """Acknowledged, and not received yet."""
        seen = {each.id for each in self.receipts}
        return sum(each.acknowledged and each.id not in seen for each in self.attempts)


class SteadySender:
    """One that sends in a row, to one entity after the other."""

    def __init__(
        self,
        index: int,
        entities: Sequence[Destination],
        history: Observed,
        seed: int,
        number: int = 0,
    ) -> None:
        self._index = index
        self._entities = entities
        self._history = history
        self._seed = seed
        self._number = number  # of its next message
        self._random = random.Random(f"{seed}-{index}")  # noqa: S311  bodies, not secrets

    async def send(self, factory: Any, messages: int, pause_s: float) -> None:
        async with AsyncExitStack() as stack:
            links = [
                await stack.enter_async_context(factory.get_queue_sender(entity.path))
                for entity in self._entities
            ]
            for _ in range(messages):
                place = self._number % len(links)
                await self._attempt(links[place], self._entities[place])
                await asyncio.sleep(pause_s)

    async def _attempt(self, link: Any, entity: Destination) -> None:
        number, self._number = self._number, self._number + 1
        name = f"{self._seed}-{self._index}-{number}"
        session = entity.sessions[self._index % len(entity.sessions)] if entity.sessions else None
        body = self._random.randbytes(self._random.randrange(10, 2000))
        message = ServiceBusMessage(body, message_id=name, session_id=session)
        # Senders share sessions, so what is in order is what one of them sent.
        place = session or f"sender {self._index}"
        attempt = Attempt(name, entity.path, place, number, acknowledged=False)
        self._history.attempted(attempt)
        try:
            await link.send_messages(message, timeout=SEND_S)
        except ServiceBusError:
            self._history.refused += 1
        else:
            self._history.attempted(replace(attempt, acknowledged=True))


class Senders:
    """So many tasks that share a factory."""

    def __init__(
        self,
        factory: Any,
        entities: Sequence[Destination],
        history: Observed,
        seed: int,
        count: int,
    ) -> None:
        self._factory = factory
        self._senders = [SteadySender(index, entities, history, seed) for index in range(count)]

    async def send(self, messages: int, pause_s: float) -> None:
        """All of them send, until so many messages were tried."""
        count = len(self._senders)
        async with asyncio.TaskGroup() as tasks:
            for index, sender in enumerate(self._senders):
                mine = messages // count + (messages % count if index == 0 else 0)
                tasks.create_task(sender.send(self._factory, mine, pause_s))


@dataclass
class Pulse:
    """When something was last seen to live."""

    at: float = field(default_factory=time.monotonic)


class Receivers:
    """One task a queue, session or subscription, for as long as the drill lasts."""

    def __init__(
        self,
        make: Callable[[], ServiceBusClient],
        entities: Sequence[Destination],
        history: Observed,
    ) -> None:
        self._make = make
        self._entities = entities
        self._history = history
        self._tasks: list[asyncio.Task[None]] = []
        self._listening: set[asyncio.Task[None]] = set()
        self._stopping = False

    def start(self) -> None:
        for entity in self._entities:
            for session in entity.sessions or (None,):
                name = f"receiver of {entity.path}"
                work = self._receive(entity, session)
                self._tasks.append(asyncio.create_task(work, name=name))

    async def stop(self) -> None:
        self._stopping = True
        for task in (*self._tasks, *self._listening):
            task.cancel()
        # Not for ever: one that hangs in the SDK ends when its broker does.
        await asyncio.wait({*self._tasks, *self._listening}, timeout=STOP_S)

    async def _receive(self, entity: Destination, session: str | None) -> None:
        """Receive until stopped; an outage is a reason to try again, and nothing else.

        A link that breaks at the wrong moment can leave the SDK waiting for ever, deaf even to a
        cancellation. Such a one is left alone, and another takes its place.
        """
        while not self._stopping:
            pulse = Pulse()
            listening = asyncio.create_task(self._listen(entity, session, pulse))
            self._listening.add(listening)
            listening.add_done_callback(self._listening.discard)
            while not listening.done() and time.monotonic() - pulse.at < HUNG_S:
                await asyncio.wait({listening}, timeout=1)
            if listening.done():
                _note(listening, entity)
            else:
                listening.cancel()
            await asyncio.sleep(AGAIN_S)

    async def _listen(self, entity: Destination, session: str | None, pulse: Pulse) -> None:
        async with self._make() as client, _receiver(client, entity, session) as receiver:
            heard_at = time.monotonic()
            while not self._stopping and time.monotonic() - heard_at < QUIET_S:
                if await self._take(receiver, entity):
                    heard_at = time.monotonic()
                pulse.at = time.monotonic()

    async def _take(self, receiver: Any, entity: Destination) -> int:
        """How many there were."""
        messages = await receiver.receive_messages(50, max_wait_time=WAIT_S)
        for message in messages:
            name = str(message.message_id)
            place = message.session_id or f"sender {name.split('-')[1]}"
            receipt = Receipt(name, entity.path, place)
            self._history.received(receipt)
            await receiver.complete_message(message)
            self._history.settled(receipt)
        return len(messages)


def _note(listening: asyncio.Task[None], entity: Destination) -> None:
    error = None if listening.cancelled() else listening.exception()
    if error is not None:
        log.debug("receiving from %s failed", entity.path, exc_info=error)


def _receiver(client: Any, entity: Destination, session: str | None) -> Any:
    if entity.subscription is not None:
        return client.get_subscription_receiver(entity.path, entity.subscription)
    settings: dict[str, Any] = {} if session is None else {"session_id": session}
    return client.get_queue_receiver(entity.path, **settings)


def ids_in(client: Any, entity: Destination) -> Iterator[str]:
    """What lies in it, with the blocking client. Nothing is locked."""
    with _receiver(client, entity, None) as receiver:
        number = 1
        while page := receiver.peek_messages(PAGE, sequence_number=number):
            yield from (str(each.message_id) for each in page)
            number = page[-1].sequence_number + 1
