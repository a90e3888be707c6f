"""Applications that send through a pairing, which is the one that ships: it is given a world with a
virtual clock, and links that lead over the simulated network."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from functools import cache

from azure.servicebus import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from twinbus.errors import BacklogError
from twinbus.lab.simulation.clock import Clock
from twinbus.lab.simulation.history import History
from twinbus.lab.simulation.letter import Letter
from twinbus.lab.simulation.network import Network
from twinbus.lab.simulation.node import Answer, Node
from twinbus.lab.simulation.seed import SeedPlan
from twinbus.lab.simulation.virtual import World, milliseconds
from twinbus.paired.aio.link import Side
from twinbus.paired.aio.pairing import Pairing
from twinbus.paired.aio.route import Route
from twinbus.paired.events import Diverted, PairingEvent, Restored
from twinbus.paired.options import SendAvailabilityPairedNamespaceOptions
from twinbus.paired.outgoing import Outgoing, OutgoingBatch
from twinbus.paired.telemetry import Announcer

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
    ) -> None:
        self.entity_name = path
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
        await self._call(f"{names} to {path}", lambda told: take(path, messages, told), timeout)

    async def warm(self, timeout: float | None = None) -> None:
        ready, path = self._node.ready, self.entity_name
        await self._call(f"a link to {path}", lambda told: ready(path, told), timeout)
        self.limit = self._size

    async def _call(self, what: str, act: Callable[[Answer], None], timeout: float | None) -> None:
        assert timeout is not None
        within_ms = milliseconds(timeout)
        await self._network.call(self._name, self._node, what, act, within_ms)
        self.last_used = self._world.now()

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
        self._primary, self._secondary = nodes
        self._size = plan.limit
        self._world = World(clock, rng)
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
            Side(self._primary.name, lambda path: self._link("ping", path, self._ping)),
            Side(self._secondary.name, lambda queue: self._link(queue, queue, self._divert)),
            *(options, list(plan.queues), NotingAnnouncer(name, history), self._world),
        )

    def link(self, name: str, path: str) -> SimulatedLink:
        """To an entity of the primary."""
        return self._link(name, path, self._primary.send)

    def _link(self, name: str, path: str, take: Take) -> SimulatedLink:
        node = self._secondary if take == self._divert else self._primary
        name = f"{self.name}/{name}"
        return SimulatedLink(name, path, self._network, node, take, self._world, self._size)

    def _ping(self, path: str, messages: list[bytes], answer: Answer) -> None:
        self._primary.ping(path, messages[0], answer)

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
        self._link = application.link(name, path)
        self._route = Route(application.pairing, self._link)

    async def send(self, letters: list[Letter]) -> None:
        """Returns when they are safe; raises what the application would be told."""
        ids = [letter.id for letter in letters]
        ready = OutgoingBatch([letter.encoded() for letter in letters], ids=ids)
        try:
            await self._route.deliver(self._link.transfer, ready, None)
        except BacklogError:
            for letter in letters:
                self._history.refused(letter)
            raise


@cache
def _clients() -> tuple[ServiceBusAdministrationClient, ServiceBusClient]:
    """Options are not to be had without; nothing is asked of them."""
    text = "Endpoint=sb://fabrikam/;SharedAccessKeyName=none;SharedAccessKey=none"
    manager = ServiceBusAdministrationClient.from_connection_string(text)
    return manager, ServiceBusClient.from_connection_string(text)
