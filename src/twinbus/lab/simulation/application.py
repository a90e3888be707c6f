"""Applications that send through a pairing.

The states, the rotation, the classifier and the envelope are the real ones. What is between them
here is what ``paired.aio`` has in its pairing, sender, diverter and pinger, decision by decision,
without the SDK below: a change there that matters to a promise is to be made here too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from azure.servicebus.exceptions import ServiceBusError

from twinbus import envelope
from twinbus.classifier import Verdict, classify
from twinbus.client_errors import BacklogError
from twinbus.failover.rotation import Rotation
from twinbus.failover.states import Failover, State
from twinbus.lab.simulation.clock import Clock, Signal
from twinbus.lab.simulation.letter import Letter, ping
from twinbus.lab.simulation.network import Network
from twinbus.lab.simulation.node import Node

BUSY_MS = 10_000
OPERATION_MS = 20_000
RESERVE_MS = 5_000
QUEUE_MS = 10_000
LEAST_MS = 250
PING_MS = 10_000

Pack = Callable[[bytes, str, int], list[bytes]]


class Notes(Protocol):
    """Where an application's doings are written down."""

    def tell(self, who: str, what: str) -> None: ...

    def restored(self, entity: str, since_ms: int) -> None:
        """An entity that was diverted since then is sent to again."""

    def diverted(self, letter: Letter, parts: list[bytes]) -> None:
        """A letter goes into the backlog as these messages."""

    def arrived(self, queue: str, messages: list[bytes], numbers: list[int]) -> None:
        """They are there."""

    def refused(self, letter: Letter) -> None:
        """Neither the entity nor any backlog queue took it."""


@dataclass(frozen=True)
class Settings:
    """How two namespaces are paired."""

    queues: tuple[str, ...]
    interval_s: float
    ping_ms: int
    out_s: float
    limit: int  # the largest message that a backlog queue takes
    pack: Pack = envelope.pack
    failover: Callable[[float], Failover] = Failover


class Entity:
    """A queue or topic of the primary, as all senders of a pairing see it."""

    def __init__(self, path: str, failover: Failover) -> None:
        self.path = path
        self.failover = failover
        self.troubled: Signal | None = None
        self.diverted_at = 0


class Pairing:
    """One application's: who is out, and who is asked."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        clock: Clock,
        network: Network,
        nodes: tuple[Node, Node],
        notes: Notes,
        rng: random.Random,
    ) -> None:
        self.name = name
        self.settings = settings
        self.clock = clock
        self.network = network
        self.primary, self.secondary = nodes
        self.notes = notes
        self.rotation = Rotation(settings.queues, settings.out_s, rng)
        self._rng = rng
        self._entities: dict[str, Entity] = {}

    @property
    def now_s(self) -> float:
        return self.clock.now / 1000

    def entity(self, path: str) -> Entity:
        if path not in self._entities:
            failover = self.settings.failover(self.settings.interval_s)
            self._entities[path] = Entity(path, failover)
        return self._entities[path]

    def is_diverted(self, entity: Entity) -> bool:
        self._entered(entity, entity.failover.look(self.now_s))
        return entity.failover.state is State.DIVERTED

    def failed(self, entity: Entity, began_ms: int) -> None:
        self._entered(entity, entity.failover.failed(self.now_s, began_ms / 1000))

    def succeeded(self, entity: Entity) -> None:
        self._entered(entity, entity.failover.succeeded())

    def _entered(self, entity: Entity, states: tuple[State, ...]) -> None:
        for state in states:
            self.notes.tell(self.name, f"{entity.path} is {state.value}")
            if state is State.DIVERTED:
                entity.diverted_at = self.clock.now
        if not states:
            return
        if entity.troubled is not None:
            entity.troubled.set()
        elif entity.failover.state is not State.HEALTHY:
            entity.troubled = Signal(self.clock)
            self.clock.start(self._watch(entity))

    async def _watch(self, entity: Entity) -> None:
        while entity.failover.state is not State.HEALTHY:
            entity.troubled = awake = Signal(self.clock)
            if entity.failover.state is State.SUSPECT:
                pause = round(entity.failover.diverts_at * 1000) - self.clock.now
                await awake.wait(max(0, pause))
                self.is_diverted(entity)
            elif not await awake.wait(self.settings.ping_ms):
                await self._ping(entity)
        entity.troubled = None

    async def _ping(self, entity: Entity) -> None:
        message = ping(self._rng.randbytes(8).hex())
        try:
            # Over a link of its own, as the pinger has it.
            await self.network.call(
                f"{self.name}/ping",
                self.primary,
                f"a ping of {entity.path}",
                lambda answer: self.primary.ping(entity.path, message, answer),
                PING_MS,
            )
        except ServiceBusError:
            states = entity.failover.ping_failed()
        else:
            states = entity.failover.ping_succeeded(self.now_s)
        if State.HEALTHY in states:
            self.notes.restored(entity.path, entity.diverted_at)
        self._entered(entity, states)


class Sender:
    """A sender to one entity: the primary while all is well, the backlog while it is not."""

    def __init__(self, name: str, pairing: Pairing, path: str) -> None:
        self.name = f"{pairing.name}/{name}"
        self._pairing = pairing
        self._entity = pairing.entity(path)
        self._sticky = pairing.rotation.pick(pairing.now_s)

    async def send(self, letters: list[Letter]) -> None:
        """Returns when they are safe; raises what the application would be told."""
        deadline = self._pairing.clock.now + OPERATION_MS
        if not await self._at_home(letters, deadline):
            await self._divert(letters, deadline)

    async def _at_home(self, letters: list[Letter], deadline: int) -> bool:
        pairing, entity = self._pairing, self._entity
        home_by = deadline - RESERVE_MS
        payloads = [letter.encoded() for letter in letters]
        while not pairing.is_diverted(entity):
            began = pairing.clock.now
            try:
                await pairing.network.call(
                    self.name,
                    pairing.primary,
                    f"{_names(letters)} to {entity.path}",
                    lambda answer: pairing.primary.send(entity.path, payloads, answer),
                    max(1, home_by - began),
                )
            except ServiceBusError as error:
                again = await self._after(error, began, home_by)
                if not again and entity.failover.state is not State.DIVERTED:
                    raise
            else:
                if entity.failover.state is not State.HEALTHY:
                    pairing.succeeded(entity)
                return True
        return False

    async def _after(self, error: Exception, began: int, home_by: int) -> bool:
        pairing = self._pairing
        verdict = classify(error)
        if verdict is Verdict.RAISE:
            raise error
        if verdict is Verdict.WAIT:
            if pairing.clock.now + BUSY_MS >= home_by:
                raise error
            await pairing.clock.sleep(BUSY_MS)
            return True
        pairing.failed(self._entity, began)
        return self._entity.failover.is_stale(began / 1000) and pairing.clock.now < home_by

    async def _divert(self, letters: list[Letter], deadline: int) -> None:
        pairing = self._pairing
        pending = list(letters)
        errors: dict[str, BaseException] = {}
        order = pairing.rotation.order(self._sticky, pairing.now_s)
        for tried, queue in enumerate(order):
            left = deadline - pairing.clock.now
            if left <= 0 and errors:
                break
            share = left // 2 if tried + 1 < len(order) else left
            try:
                await self._put(queue, pending, max(LEAST_MS, min(QUEUE_MS, share)))
            except ServiceBusError as error:
                errors[queue] = error
                pairing.rotation.failed(queue, pairing.now_s)
            else:
                pairing.rotation.succeeded(queue)
                self._sticky = queue
                return
        for letter in pending:
            pairing.notes.refused(letter)
        raise BacklogError(f"no backlog queue took {_names(pending)}", errors)

    async def _put(self, queue: str, pending: list[Letter], within_ms: int) -> None:
        """Take letters off ``pending`` as the queue accepts them: those that are one message each
        together, and the parts of one that is several each on their own."""
        settings, ends = self._pairing.settings, self._pairing.clock.now + within_ms
        while pending:
            batch: list[bytes] = []
            whole = 0
            for letter in pending:
                packed = settings.pack(letter.encoded(), self._entity.path, settings.limit)
                if len(packed) > 1 and batch:
                    break
                self._pairing.notes.diverted(letter, packed)
                batch += packed
                whole += 1
                if len(packed) > 1:
                    break
            split = whole == 1 and len(batch) > 1
            for transfer in [[each] for each in batch] if split else [batch]:
                await self._transfer(queue, transfer, pending[:whole], ends)
            del pending[:whole]

    async def _transfer(
        self, queue: str, messages: list[bytes], letters: list[Letter], ends: int
    ) -> None:
        pairing = self._pairing
        node = pairing.secondary

        def act(answer: Callable[[object], None]) -> None:
            def taken(value: object) -> None:
                if isinstance(value, list):
                    pairing.notes.arrived(queue, messages, value)
                answer(value)

            node.send(queue, messages, taken)

        what = f"{_names(letters)} to {queue}"
        within_ms = max(LEAST_MS, ends - pairing.clock.now)
        await pairing.network.call(f"{pairing.name}/{queue}", node, what, act, within_ms)


def _names(letters: list[Letter]) -> str:
    return ", ".join(letter.id for letter in letters)
