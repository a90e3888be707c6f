"""Applications that send through a pairing, which is the one that ships: it is given a world with a
virtual clock, and links that lead over the simulated network."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any, cast

from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from twinbus.errors import BacklogError
from twinbus.lab.simulation.clock import Clock
from twinbus.lab.simulation.history import History
from twinbus.lab.simulation.letter import Letter
from twinbus.lab.simulation.network import Network
from twinbus.lab.simulation.node import Answer, Node
from twinbus.lab.simulation.seed import SeedPlan
from twinbus.lab.simulation.topology import PRIMARY
from twinbus.lab.simulation.virtual import World, milliseconds
from twinbus.ledger import Ledger, Operation
from twinbus.paired.aio.link import Side
from twinbus.paired.aio.pairing import Pairing
from twinbus.paired.aio.route import Route
from twinbus.paired.bookkeeper import Bookkeeper
from twinbus.paired.events import Diverted, PairingEvent, Restored
from twinbus.paired.options import SendAvailabilityPairedNamespaceOptions
from twinbus.paired.outgoing import Outgoing, OutgoingBatch
from twinbus.paired.telemetry import Announcer
from twinbus.sdk.privates import (
    MGMT_REQUEST_MESSAGE,
    MGMT_REQUEST_MESSAGES,
    REQUEST_RESPONSE_SCHEDULE_MESSAGE_OPERATION,
)

OPERATION = timedelta(seconds=20)
BACKLOG_RETRY = timedelta(seconds=30)

Pack = Callable[[bytes, str, int], list[bytes]]
# What is asked of a node to take messages: ``Node.send``, or more.
Take = Callable[[str, list[bytes], Answer], None]


class SimulatedLink:
    """What sends bytes: no SDK, and nothing between a request and the network."""

    def __init__(
        self,
        name: str,
        path: str,
        network: Network,
        node: Node,
        take: Take,
        world: World,
        size: int,
        note: Callable[[str, list[bytes]], None],
    ) -> None:
        self.entity_name = path
        self._note = note
        self.limit = 0
        self.last_used = 0.0
        self._name = name
        self._network = network
        self._node = node
        self._take = take
        self._world = world
        self._size = size

    async def transfer(self, outgoing: Outgoing | OutgoingBatch, timeout: float | None, /) -> None:
        messages = outgoing.encoded()
        names = ", ".join(outgoing.ids()) or len(messages)
        take, path = self._take, self.entity_name
        await self.ask(f"{names} to {path}", lambda told: take(path, messages, told), timeout)
        self._note(path, messages)

    async def warm(self, timeout: float | None = None) -> None:
        ready, path = self._node.ready, self.entity_name
        await self.ask(f"a link to {path}", lambda told: ready(path, told), timeout)
        self.limit = self._size

    async def ask(self, what: str, act: Callable[[Answer], None], timeout: float | None) -> Any:
        assert timeout is not None
        within_ms = milliseconds(timeout)
        answer = await self._network.call(self._name, self._node, what, act, within_ms)
        self.last_used = self._world.now()
        return answer

    async def keep_warm(self) -> None:
        """It does not die."""

    async def close(self) -> None:
        """Nothing is kept open."""

    def drop_link(self) -> None:
        """Nothing is kept open."""

    def break_off(self) -> None:
        """Nobody breaks off."""


class NotingAnnouncer(Announcer):
    """What the pairing announces goes into the history, instead of logs and meters."""

    def __init__(self, name: str, history: History) -> None:
        super().__init__()
        self._name = name
        self._history = history
        self._diverted_at: dict[str, float] = {}

    def announce(self, event: PairingEvent) -> None:
        self._history.tell(self._name, str(event))
        if isinstance(event, Diverted):
            self._diverted_at[event.entity] = event.at
        elif isinstance(event, Restored):
            since_ms = round(self._diverted_at[event.entity] * 1000)
            self._history.restored(event.entity, since_ms)


class Application:
    """Has a pairing of its own."""

    def __init__(
        self,
        name: str,
        plan: SeedPlan,
        clock: Clock,
        network: Network,
        nodes: tuple[Node, Node],
        history: History,
        rng: random.Random,
    ) -> None:
        self.name = name
        self.history = history
        self._network = network
        self.primary, self._secondary = nodes
        self._size = plan.limit
        self.world = World(clock, rng)
        self.books = Bookkeeper(cast(Ledger, history.records), PRIMARY)
        manager, client = _clients()
        options = SendAvailabilityPairedNamespaceOptions(
            manager,
            client,
            len(plan.queues),
            timedelta(seconds=plan.interval_s),
            ping_primary_interval=timedelta(milliseconds=plan.ping_ms),
            operation_timeout=OPERATION,
            backlog_retry_interval=BACKLOG_RETRY,
        )
        self.pairing = Pairing(
            # Over links of their own, as pings are sent.
            Side(self.primary.name, lambda path: self._link("ping", path, self._ping)),
            Side(self._secondary.name, lambda queue: self._link(queue, queue, self._divert)),
            *(options, list(plan.queues), NotingAnnouncer(name, history), self.world, self.books),
        )

    def link(self, name: str, path: str) -> SimulatedLink:
        """To an entity of the primary."""
        return self._link(name, path, self.primary.send)

    def _link(self, name: str, path: str, take: Take) -> SimulatedLink:
        node = self._secondary if take == self._divert else self.primary
        name = f"{self.name}/{name}"
        note: Callable[[str, list[bytes]], None] = _nothing
        if take != self._ping:
            note = self.history.stored if take == self._divert else self.history.sent
        return SimulatedLink(name, path, self._network, node, take, self.world, self._size, note)

    def _ping(self, path: str, messages: list[bytes], answer: Answer) -> None:
        self.primary.ping(path, messages[0], answer)

    def _divert(self, queue: str, messages: list[bytes], answer: Answer) -> None:
        def taken(value: object) -> None:
            if isinstance(value, list):
                self.history.arrived(queue, messages, value)
            answer(value)

        self._secondary.send(queue, messages, taken)


class LetterSender:
    """A sender to one entity."""

    def __init__(self, name: str, application: Application, path: str) -> None:
        self.name = f"{application.name}/{name}"
        self._history = application.history
        self._books = application.books
        self._node = application.primary
        self._world = application.world
        self._link = application.link(name, path)
        self._route = Route(application.pairing, self._link)

    async def send(self, letters: list[Letter]) -> None:
        """Returns when they are safe; raises what the application would be told."""
        try:
            await self._route.deliver(self._transfer, _ready(letters), None)
        except BacklogError:
            for letter in letters:
                self._history.refused(letter)
            raise

    async def _transfer(self, ready: Outgoing | OutgoingBatch, timeout: float | None) -> None:
        try:
            await self._link.transfer(ready, timeout)
        except BaseException:
            self._books.sent(self._link.entity_name, ready, ok=False)
            raise
        self._books.sent(self._link.entity_name, ready)

    async def schedule(self, letters: list[Letter]) -> list[int]:
        """As ``send``, by a request. Answers numbers by which they can be cancelled, if they are
        home."""
        ready, seconds = _ready(letters), OPERATION.total_seconds()
        deadline = self._world.now() + seconds

        async def primarily(left: float) -> list[int]:
            messages, path = ready.encoded(), self._link.entity_name
            numbers: list[int] = await self._link.ask(
                f"{len(messages)} to be scheduled at {path}",
                lambda told: self._node.schedule(path, messages, told),
                left,
            )
            request = {MGMT_REQUEST_MESSAGES: [{MGMT_REQUEST_MESSAGE: each} for each in messages]}
            self._books.requested(path, REQUEST_RESPONSE_SCHEDULE_MESSAGE_OPERATION, request)
            self._history.sent(path, messages, Operation.SCHEDULE)
            return numbers

        done, numbers = await self._route.at_home(primarily, ready, deadline, seconds)
        if done:
            return list(numbers)
        await self._route.deliver(self._transfer, ready, max(0.001, deadline - self._world.now()))
        return []

    async def cancel(self, letter: Letter, number: int | None) -> None:
        """Take back what was scheduled. What was diverted is looked for where it will be."""
        path, seconds = letter.entity, OPERATION.total_seconds()
        if number is None:
            number = await self._link.ask(
                f"where is {letter.id}?",
                lambda told: self._node.scheduled(path, letter.id, told),
                seconds,
            )
        if not number:
            return
        self._history.cancelling(letter)
        try:
            await self._link.ask(
                f"cancel {letter.id}", lambda told: self._node.cancel(path, number, told), seconds
            )
        except (OperationTimeoutError, ServiceBusConnectionError):
            return  # nobody knows
        except ServiceBusError:
            self._history.kept(letter)
        else:
            self._history.cancelled(letter)


def _ready(letters: list[Letter]) -> OutgoingBatch:
    ids = [letter.id for letter in letters]
    return OutgoingBatch([letter.encoded() for letter in letters], ids=ids)


def _nothing(path: str, messages: list[bytes]) -> None:
    """Pings are not looked after."""


@cache
def _clients() -> tuple[ServiceBusAdministrationClient, ServiceBusClient]:
    """Options are not to be had without; nothing is asked of them."""
    text = "Endpoint=sb://fabrikam/;SharedAccessKeyName=none;SharedAccessKey=none"
    manager = ServiceBusAdministrationClient.from_connection_string(text)
    return manager, ServiceBusClient.from_connection_string(text)
