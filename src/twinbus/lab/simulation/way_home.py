"""A syphon: real orders, real carriers, on the simulated network.

What is between them here is what ``pipeline.syphon``, ``source`` and ``post`` do: wait for
messages, make a round, learn from it, pause when nothing moves. A change there that matters to a
promise is to be made here too.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from twinbus import envelope
from twinbus.amqp.message import application_properties
from twinbus.classifier import Verdict, classify
from twinbus.homeward.carrier import BusyError, Carrier, Post, RefusedError, Row, UnavailableError
from twinbus.homeward.rounds import LEFT, Destinations, Orders, Tally
from twinbus.lab.simulation.clock import Clock, CrashedError, Tape, rerun
from twinbus.lab.simulation.network import Network
from twinbus.lab.simulation.node import Answer, Delivery, Node

LIMIT = 262_144
CALL_MS = 15_000
WATCH_MS = 60_000
RECEIVE_MS = 200
STALL_MS = 75_000
SETTLING_ATTEMPTS = 4
SETTLING_PAUSE_MS = 500
PAUSE_S, GLANCE_S, HELD_S = 30.0, 1.0, 2.0


class MakesCarrier(Protocol):
    def __call__(self, post: Post, orders: Orders) -> Carrier: ...


@dataclass(frozen=True)
class Settings:
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


class Notes(Protocol):
    """Where a syphon's doings are written down."""

    def tell(self, who: str, what: str) -> None: ...

    def came_home(self, destination: str, messages: Sequence[bytes]) -> None:
        """The destination has them on disk."""


class Line:
    """A syphon's ways to both nodes, and its clock."""

    def __init__(
        self,
        name: str,
        settings: Settings,
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

    @property
    def now_s(self) -> float:
        return self.local_ms(self.clock.now) / 1000

    def local_ms(self, moment: int) -> int:
        return moment + self.settings.skew_ms

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

    async def receive(self, queue: str, most: int) -> list[Row]:
        taken = await self._ask(
            self._secondary,
            f"receive from {queue}",
            lambda answer: self._secondary.receive(queue, most, RECEIVE_MS, answer),
        )
        received_ms = self.local_ms(self.clock.now)
        return [_row(each, received_ms, deducts=self.settings.deducts) for each in taken]

    async def has_after(self, highest: dict[str, int]) -> bool:
        found = await self._ask(
            self._secondary, "peek", lambda answer: self._secondary.has_after(highest, answer)
        )
        return bool(found)

    async def ready(self, destination: str) -> None:
        what = f"a link to {destination}"
        await self._to_primary(what, lambda answer: self._primary.ready(destination, answer))

    async def send(self, destination: str, messages: Sequence[bytes]) -> None:
        def act(answer: Answer) -> None:
            def taken(value: Any) -> None:
                if not isinstance(value, Exception):
                    self.notes.came_home(destination, messages)
                answer(value)

            self._primary.send(destination, list(messages), taken)

        await self._to_primary(f"{len(messages)} to {destination}", act)
        if self._is_troubled():
            await self._suffer()

    async def _suffer(self) -> None:
        if self._rng.random() < self.settings.crashes:
            self.notes.tell(self.name, "crashes between a send and its settlement")
            raise CrashedError
        if self._rng.random() < self.settings.stalls:
            self.notes.tell(self.name, "stops for longer than a lock lasts")
            await self.clock.sleep(STALL_MS)

    async def _to_primary(self, what: str, act: Callable[[Answer], None]) -> None:
        try:
            await self._ask(self._primary, what, act)
        except ServiceBusError as error:
            raise _translation(error) from error

    async def settle(self, act: str, queue: str, tokens: Sequence[UUID]) -> list[UUID]:
        """Answers those that could not be: their lock was lost, or the secondary is."""
        raw = [token.bytes for token in tokens]
        for attempt in range(SETTLING_ATTEMPTS):
            try:
                lost = await self._ask(
                    self._secondary,
                    f"{act} {len(raw)} of {queue}",
                    lambda answer: self._secondary.settle(act, queue, raw, answer),
                )
                return [UUID(bytes=token) for token in lost]
            except ServiceBusError:
                if attempt + 1 < SETTLING_ATTEMPTS:
                    await self.clock.sleep(SETTLING_PAUSE_MS * 2**attempt)
        return list(tokens)

    async def _ask(
        self, node: Node, what: str, act: Callable[[Answer], None], within_ms: int = CALL_MS
    ) -> Any:
        return await self._network.call(self.name, node, what, act, within_ms)


class TapedPost:
    """The carrier's post: everything by way of a tape."""

    def __init__(self, line: Line, tape: Tape) -> None:
        self._line = line
        self._tape = tape

    def receive(self, queue: str, most: int) -> list[Row]:
        return list(self._tape.wait(lambda: self._line.receive(queue, most)))

    def limit(self, destination: str) -> int:
        self._tape.wait(lambda: self._line.ready(destination))
        return LIMIT

    def send(self, destination: str, messages: Sequence[bytes]) -> None:
        self._tape.wait(lambda: self._line.send(destination, messages))

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
        return list(self._tape.wait(lambda: self._line.settle(act, queue, tokens)))

    def now_ms(self) -> int:
        return self._line.local_ms(self._tape.now)

    def sleep(self, seconds: float) -> None:
        def pause() -> Awaitable[None]:
            return self._line.clock.sleep(round(seconds * 1000))

        self._tape.wait(pause)


class Syphon:
    """One process."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._settings = settings = line.settings
        self._destinations = Destinations(settings.workers, None, settings.deducts, settings.share)
        self._highest = dict.fromkeys(settings.queues, 0)

    async def run(self) -> None:
        """For ever, or until it crashes."""
        while True:
            try:
                awake = await self._line.watch()
            except ServiceBusError:
                await self._line.clock.sleep(2_000)
                continue
            if awake:
                await self._round(awake)

    async def _round(self, awake: list[str]) -> None:
        line, destinations = self._line, self._destinations
        await line.clock.sleep(round(destinations.wait_s(line.now_s) * 1000))
        began, orders = line.clock.now, destinations.orders(line.now_s)
        tallies = await rerun(line.clock, lambda tape: self._carried(tape, awake, orders))
        for each in tallies:
            self._highest[each.queue] = max(each.highest, self._highest[each.queue])
            counted = f"{each.messages} of {each.queue} for {each.destination}"
            line.notes.tell(line.name, f"{each.outcome.value}: {counted} ({each.error or ''})")
        destinations.learn(tallies, line.now_s, (line.clock.now - began) / 1000)
        moved = any(each.outcome not in LEFT for each in tallies)
        if tallies and not moved and not destinations.goes_on(tallies):
            await self._pause()

    def _carried(self, tape: Tape, awake: list[str], orders: Orders) -> list[Tally]:
        """The workers' part of a round, one worker after the other."""
        post = TapedPost(self._line, tape)
        workers = min(self._settings.workers, len(awake))
        tallies: list[Tally] = []
        for index in range(workers):
            carrier = self._settings.carrier(post, orders)
            for queue in awake[index::workers]:
                self._read(post, queue, carrier)
            tallies += carrier.finish()
        return tallies

    def _read(self, post: TapedPost, queue: str, carrier: Carrier) -> None:
        left = self._settings.share
        while left > 0:
            asked = min(self._settings.bite, left)
            try:
                rows = post.receive(queue, asked)
            except ServiceBusError:
                return
            left -= len(rows)
            carrier.carry(rows)
            if len(rows) < asked:
                return

    async def _pause(self) -> None:
        line, destinations = self._line, self._destinations
        ends = line.now_s + PAUSE_S
        while line.now_s < ends:
            due = destinations.next_try(line.now_s)
            if due is None:
                await line.clock.sleep(round(HELD_S * 1000))
                return
            await line.clock.sleep(round(max(0.001, min(due - line.now_s, GLANCE_S)) * 1000))
            resting = set(destinations.resting(line.now_s))
            down = [name for name in destinations.down() if name not in resting]
            back = [await self._is_back(name) for name in down]
            if any(back) or await self._has_new():
                return

    async def _is_back(self, destination: str) -> bool:
        try:
            await self._line.ready(destination)
        except UnavailableError:
            self._destinations.failed(destination, self._line.now_s)
            return False
        except (BusyError, RefusedError):
            return True
        return True

    async def _has_new(self) -> bool:
        try:
            return await self._line.has_after(self._highest)
        except ServiceBusError:
            return False


def _row(each: Delivery, received_ms: int, *, deducts: bool) -> Row:
    """As ``pipeline.translation`` has it."""
    properties = application_properties(each.bare)
    waited_ms = max(0, received_ms - each.enqueued_ms)
    lives = properties.get(envelope.TIME_TO_LIVE) if deducts else None
    path, part_of = properties.get(envelope.PATH), properties.get(envelope.PART_OF)
    return Row(
        queue=each.path,
        number=each.number,
        token=UUID(bytes=each.token),
        locked_until_ms=each.locked_until_ms,
        received_ms=received_ms,
        waited_ms=waited_ms,
        destination=path if isinstance(path, str) else None,
        part_of=part_of if isinstance(part_of, str) else None,
        time_to_live_ms=None if lives is None else int(lives) - waited_ms,
        message=each.message,
    )


def _translation(error: ServiceBusError) -> Exception:
    """As ``pipeline.post`` has it."""
    verdict = classify(error)
    if verdict is Verdict.WAIT:
        return BusyError(str(error))
    if isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError):
        return UnavailableError(str(error))
    return RefusedError(str(error)) if verdict is Verdict.RAISE else UnavailableError(str(error))
