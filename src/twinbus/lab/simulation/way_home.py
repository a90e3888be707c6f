"""A syphon: the driver and the carriers that ship, on the simulated network.

What is here is in the place of Spark and of the SDK: requests on their way, a watch, and a tape by
which code that blocks runs in virtual time. It decides nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol, cast
from uuid import UUID

from azure.servicebus.exceptions import ServiceBusError

from twinbus.auth.credentials import Secret
from twinbus.homeward.answers import asked, settled
from twinbus.homeward.bites import bites, spread
from twinbus.homeward.carrier import Carrier, Parcel, Post
from twinbus.homeward.driver import Driver, Round
from twinbus.homeward.received import ReceivedMessage
from twinbus.homeward.rounds import Destinations, Orders, Tally
from twinbus.homeward.row import Row
from twinbus.lab.simulation.clock import Clock, CrashedError, Tape, rerun
from twinbus.lab.simulation.network import Network
from twinbus.lab.simulation.node import Answer, Node, Notes
from twinbus.lab.simulation.records import Records
from twinbus.lab.simulation.topology import PRIMARY, SECONDARY
from twinbus.syphon.books import Books

LIMIT = 262_144
CALL_MS = 15_000
WATCH_MS = 60_000
RECEIVE_MS = 200
STALL_MS = 75_000


class MakesCarrier(Protocol):
    def __call__(self, post: Post, orders: Orders) -> Carrier: ...


@dataclass(frozen=True)
class SyphonSettings:
    """How a syphon works, and what it suffers."""

    queues: tuple[str, ...]
    share: int
    bite: int
    workers: int
    deducts: bool
    skew_ms: int
    carrier: MakesCarrier = Carrier
    crashes: float = 0.0  # how likely, between a send and its settlement
    stalls: float = 0.0  # how likely it is to stop there for longer than a lock lasts


class Ways:
    """A syphon's ways to both nodes."""

    def __init__(
        self,
        name: str,
        settings: SyphonSettings,
        clock: Clock,
        network: Network,
        nodes: tuple[Node, Node],
        notes: Notes,
        rng: random.Random,
        is_troubled: Callable[[], bool],
    ) -> None:
        self.name = name
        self.settings = settings
        self.clock = clock
        self.notes = notes
        self._network = network
        self._primary, self._secondary = nodes
        self._rng = rng
        self._is_troubled = is_troubled

    async def watch(self) -> list[str]:
        """The queues in which there is a message; none after a while."""
        queues = self.settings.queues
        awake = await self._ask(
            self._secondary,
            "watch",
            lambda answer: self._secondary.watch(queues, WATCH_MS, answer),
            WATCH_MS + CALL_MS,
        )
        return list(awake)

    async def receive(self, queue: str, most: int) -> list[ReceivedMessage]:
        taken = await self._ask(
            self._secondary,
            f"receive from {queue}",
            lambda answer: self._secondary.receive(queue, most, RECEIVE_MS, answer),
        )
        now_ms = self.clock.now + self.settings.skew_ms
        return [
            ReceivedMessage(queue, UUID(bytes=each.token), each.message, now_ms) for each in taken
        ]

    def silent(self, queue: str, error: Exception) -> None:
        self.notes.tell(self.name, f"hears nothing from {queue}: {type(error).__name__}")

    async def has_after(self, queue: str, number: int) -> Any:
        return await self._ask(
            self._secondary,
            f"peek at {queue}",
            lambda answer: self._secondary.has_after(queue, number, answer),
        )

    async def ready(self, destination: str) -> None:
        what = f"a link to {destination}"
        await self._ask(
            self._primary, what, lambda answer: self._primary.ready(destination, answer)
        )

    async def send(self, destination: str, parcels: Sequence[Parcel]) -> None:
        messages = [parcel.message for parcel in parcels]

        def act(answer: Answer) -> None:
            def taken(value: Any) -> None:
                if not isinstance(value, Exception):
                    ids = [str(parcel.message_id) for parcel in parcels]
                    self.notes.came_home(destination, ids)
                answer(value)

            self._primary.send(destination, messages, taken)

        await self._ask(self._primary, f"{len(messages)} to {destination}", act)
        self.notes.brought(destination, [str(parcel.message_id) for parcel in parcels])
        if self._is_troubled():
            await self._suffer()

    async def _suffer(self) -> None:
        if self._rng.random() < self.settings.crashes:
            self.notes.tell(self.name, "crashes between a send and its settlement")
            raise CrashedError
        if self._rng.random() < self.settings.stalls:
            self.notes.tell(self.name, "stops for longer than a lock lasts")
            await self.clock.sleep(STALL_MS)

    async def settle(self, act: str, queue: str, tokens: Sequence[UUID]) -> list[UUID]:
        """Answers those whose lock was lost."""
        raw = [token.bytes for token in tokens]
        lost = await self._ask(
            self._secondary,
            f"{act} {len(raw)} of {queue}",
            lambda answer: self._secondary.settle(act, queue, raw, answer),
        )
        return [UUID(bytes=token) for token in lost]

    async def _ask(
        self, node: Node, what: str, act: Callable[[Answer], None], within_ms: int = CALL_MS
    ) -> Any:
        return await self._network.call(self.name, node, what, act, within_ms)


class TapedWorld:
    """What the driver and the carrier ask, by way of a tape."""

    def __init__(self, ways: Ways, tape: Tape, awake: Sequence[str] = ()) -> None:
        self._ways = ways
        self._tape = tape
        self._awake = awake
        self.records = Records()  # of this round: who crashes in it leaves none
        self._books = Books(cast(str, self.records), Secret(PRIMARY), Secret(SECONDARY))

    # -- the driver's

    def carry(self, orders: Orders) -> list[Tally]:
        """The workers' part of a round, one worker after the other."""
        settings = self._ways.settings
        tallies: list[Tally] = []
        for queues in spread(self._awake, settings.workers):
            carrier = settings.carrier(self, orders)
            taps = {queue: TapedTap(self._ways, self._tape, queue) for queue in queues}
            for some in bites(taps, settings.share, self, self._ways.silent, settings.bite):
                rows = [Row.of(each) for each in some]
                self._books.received(rows)
                carrier.carry(rows)
            tallies += carrier.finish()
        return tallies

    def has_after(self, queue: str, number: int) -> bool:
        return bool(self._tape.wait(lambda: self._ways.has_after(queue, number)))

    def limit(self, destination: str) -> int:
        asked(lambda: self._tape.wait(lambda: self._ways.ready(destination)))
        return LIMIT

    # -- the carrier's

    def send(self, destination: str, parcels: Sequence[Parcel]) -> None:
        asked(lambda: self._tape.wait(lambda: self._ways.send(destination, parcels)))
        self._books.sent(destination, parcels)

    def complete(self, queue: str, tokens: Sequence[UUID]) -> list[UUID]:
        return self._settled("complete", queue, tokens)

    def abandon(self, queue: str, tokens: Sequence[UUID]) -> list[UUID]:
        return self._settled("abandon", queue, tokens)

    def renew(self, queue: str, tokens: Sequence[UUID]) -> list[UUID]:
        return self._settled("renew", queue, tokens)

    def dead_letter(
        self, queue: str, tokens: Sequence[UUID], reason: str, description: str
    ) -> list[UUID]:
        return self._settled("dead-letter", queue, tokens)

    def _settled(self, act: str, queue: str, tokens: Sequence[UUID]) -> list[UUID]:
        def settle(some: Sequence[UUID]) -> list[UUID]:
            return list(self._tape.wait(lambda: self._ways.settle(act, queue, some)))

        return settled(tokens, settle, self)

    # -- the clocks

    def now_ms(self) -> int:
        return self._tape.now + self._ways.settings.skew_ms

    def elapsed_s(self) -> float:
        return self._tape.now / 1000

    def sleep(self, seconds: float) -> None:
        self._tape.wait(lambda: self._ways.clock.sleep(ceil(seconds * 1000)))


class TapedTap:
    """One queue, received from. Its node answers at once, so it is asked when an answer is due."""

    def __init__(self, ways: Ways, tape: Tape, queue: str) -> None:
        self._ways = ways
        self._tape = tape
        self._queue = queue

    def ask(self, count: int) -> None:
        """Nothing is on its way yet."""

    def answer(self, count: int) -> list[ReceivedMessage]:
        return list(self._tape.wait(lambda: self._ways.receive(self._queue, count)))

    def let_go(self) -> None:
        """Nothing is on its way."""


class SimulatedSyphon:
    """One process: in the place of Spark, which waits for messages and calls for rounds."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        settings = ways.settings
        destinations = Destinations(settings.workers, None, settings.deducts, settings.share)
        self._driver = Driver(destinations, settings.queues)

    async def run(self) -> None:
        """For ever, or until it crashes."""
        self._ways.notes.busy.discard(self._ways.name)  # who was it before has crashed
        while True:
            try:
                awake = await self._ways.watch()
            except ServiceBusError:
                await self._ways.clock.sleep(2_000)
                continue
            if awake:
                await self._round(awake)

    async def _round(self, awake: Sequence[str]) -> None:
        ways, driver = self._ways, self._driver
        worlds: list[TapedWorld] = []

        def act(tape: Tape) -> Round:
            worlds[:] = [TapedWorld(ways, tape, awake)]
            return driver.round(worlds[0])

        ways.notes.busy.add(ways.name)
        made = await rerun(ways.clock, act)
        ways.notes.busy.discard(ways.name)
        ways.notes.records.deeds.update(worlds[0].records.deeds)
        for each in made.tallies:
            counted = f"{each.messages} of {each.queue} for {each.destination}"
            ways.notes.tell(ways.name, f"{each.outcome.value}: {counted} ({each.error or ''})")
        while driver.is_pausing:
            await rerun(ways.clock, lambda tape: driver.glance(TapedWorld(ways, tape)))
