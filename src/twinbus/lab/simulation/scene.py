"""One seed: a primary, a secondary, applications, syphons, receivers, and what goes wrong.

    applications --> primary <------- receivers
          |             ^
          +--> secondary --> syphons

Everything that is left to chance is drawn from ``random.Random(seed)``: the plan, the messages,
every delay, the order of what happens at once. So a seed is a run, and gives the same trace
whenever and wherever it is run. For a while things go wrong. Then all faults end, time runs until
nothing moves any more, and the checker is asked. What must hold in every world:

    nothing that was acknowledged is lost, nothing is delivered that nobody sent
    exactly once, where the destination detects duplicates
    nothing is left waiting, and nothing that was acknowledged is dead-lettered, but by a receiver
    or by what its subscription was told
    what was sent is what is received
    an entity is restored only by a ping that it took
    nobody is handed more than it asked for, and a lock lasts as long as was said
    a settlement that was acknowledged has happened
    in the end nothing is left over, and an idle syphon asks no more than its long poll needs
    a queue's counters are what the disk says

and, in a world whose secondary is well and has one syphon that neither crashes nor stalls:

    a diverted send is never refused
    messages come home in the order of their backlog queue, destination by destination

That is all that is promised of order: not between queues, not between those that were diverted and
those that were not, and not for messages that are stored in several parts.
"""

from __future__ import annotations

import hashlib
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from uuid import UUID

from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from twinbus import envelope
from twinbus.auth.credentials import Secret
from twinbus.broker import namespace as broker_namespace
from twinbus.broker.descriptions import Status
from twinbus.lab.simulation.application import Application, LetterSender
from twinbus.lab.simulation.bugs import PARTS, Bug
from twinbus.lab.simulation.clock import START_MS, Clock, CrashedError, Task
from twinbus.lab.simulation.consumer import HomeReceiver
from twinbus.lab.simulation.history import History
from twinbus.lab.simulation.letter import Letter
from twinbus.lab.simulation.network import Network, Weather
from twinbus.lab.simulation.node import Node
from twinbus.lab.simulation.seed import FULL, HEALED_MS, LARGE, PlannedFault, plan_of
from twinbus.lab.simulation.topology import (
    DESTINATIONS,
    DETECTING,
    PRIMARY,
    RECEIVED,
    SECONDARY,
    SESSIONS,
    primary_disk,
    secondary_disk,
)
from twinbus.lab.simulation.way_home import SimulatedSyphon, SyphonSettings, Ways
from twinbus.lab.verdict import Judgement
from twinbus.paired import ping
from twinbus.paired.aio import pairing
from twinbus.syphon import books

# Parts that were left alone are given up after ten minutes; nothing else takes that long.
PATIENCE_MS: Final = 45 * 60_000
LOOK_MS: Final = 2_000
RESTART_MS: Final = 5_000
IDLE_MS: Final = 120_000
MOST_IDLE: Final = 3  # requests of a syphon

_REFUSALS: Final[dict[str, Callable[[], Exception]]] = {
    "busy": lambda: ServiceBusServerBusyError(message="the server is busy"),
    "disabled": lambda: MessagingEntityDisabledError(message="it is disabled"),
    "not-found": lambda: MessagingEntityNotFoundError(message="it is not there"),
}
_WEATHER: Final = {
    "cut": Weather(requests_lost=1.0, answers_lost=1.0),
    "answers-lost": Weather(answers_lost=0.7),
    "slow": Weather(slower=100),
}


@dataclass(frozen=True)
class SeedReport:
    """What came of a seed. ``breaches`` is empty if everything held."""

    seed: int
    bug: Bug
    breaches: tuple[str, ...]
    verdict: Judgement
    trace: tuple[str, ...]
    virtual_s: float
    diverted: int
    homecomings: int

    @property
    def holds(self) -> bool:
        return not self.breaches

    @property
    def digest(self) -> str:
        """Two runs with the same digest were the same run."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "plant": self.bug.value,
            "holds": self.holds,
            "breaches": list(self.breaches),
            "verdict": self.verdict.as_json(),
            "virtual_s": self.virtual_s,
            "events": len(self.trace),
            "digest": self.digest,
        }


def run(seed: int, bug: Bug = Bug.NONE) -> SeedReport:
    """A seed from beginning to end. To run it again is to replay it."""
    rng = random.Random(seed)  # noqa: S311  not a secret
    return Scene(seed, bug, rng).run()


replay = run


@contextmanager
def _patched(*patches: tuple[Any, str, Any]) -> Iterator[None]:
    """Modules that have another thing under a name meanwhile."""
    before = [getattr(module, name) for module, name, _ in patches]
    for module, name, thing in patches:
        setattr(module, name, thing)
    try:
        yield
    finally:
        for (module, name, _), thing in zip(patches, before, strict=True):
            setattr(module, name, thing)


class Scene:
    """Everything there is in one run."""

    def __init__(self, seed: int, bug: Bug, rng: random.Random) -> None:
        self._seed, self._bug, self._rng = seed, bug, rng
        self._parts = PARTS[bug]
        self.plan = plan = plan_of(rng)
        self.clock = Clock(rng)
        self.history = History(self.clock, plan)
        self.network = Network(self.clock, rng, self.history.tell)
        self.primary = self._node(PRIMARY, plan.skews_ms[0], primary_disk())
        self.secondary = self._node(SECONDARY, plan.skews_ms[1], secondary_disk(plan.queues))
        self._nodes = (self.primary, self.secondary)
        self._syphons: dict[str, Task] = {}
        self._letters: dict[str, Letter] = {}
        self._sending = plan.senders
        self._may_be_over = False

    def _node(self, name: str, skew_ms: int, image: bytes) -> Node:
        namespace = self._parts.namespace
        node = Node(name, self.clock, self._rng, self.history, image, namespace)
        node.skew_ms = skew_ms
        return node

    def run(self) -> SeedReport:
        try:
            with _patched(*self._seams()):
                self._begin()
                self.clock.run(START_MS + HEALED_MS, lambda: False)
                self._heal()
                self.clock.run(self.clock.now + PATIENCE_MS, self._is_over)
                self._idle()
        except Exception:  # noqa: BLE001  whatever breaks is what was looked for
            self.history.breaches.append(f"broken: {traceback.format_exc(limit=-4)}")
        verdict = self.history.judge(self._nodes)
        for node in self._nodes:
            node.disk.close()
        return SeedReport(
            *(self._seed, self._bug, tuple(self.history.breaches), verdict),
            trace=tuple(self.history.trace),
            virtual_s=(self.clock.now - START_MS) / 1000,
            diverted=len(self.history.pieces),
            homecomings=len(self.history.homecomings),
        )

    def _idle(self) -> None:
        """Nothing is there any more, so nobody asks more often than a long poll lasts."""
        self.clock.run(self.clock.now + IDLE_MS, lambda: False)  # what was under way may end
        before = self.secondary.requests
        self.clock.run(self.clock.now + IDLE_MS, lambda: False)
        asked = self.secondary.requests - before
        if asked > self.plan.syphons * MOST_IDLE:
            self.history.breach(f"{asked} requests in {IDLE_MS / 1000:.0f} idle seconds")

    def _seams(self) -> Iterator[tuple[Any, str, Any]]:
        """Ids that modules make up are drawn from the seed, what is packed is noted, and a bug may
        be planted."""
        for module in (envelope, broker_namespace, ping):
            yield module, "uuid4", lambda: UUID(int=self._rng.getrandbits(128), version=4)
        yield envelope, "pack", self._pack
        # A syphon's bookkeeper writes into what it is given for a ledger's place.
        yield books, "ledger_at", lambda records: records
        yield books, "host_of", Secret.reveal
        yield pairing, "Failover", self._parts.failover
        yield from self._parts.patches

    def _pack(self, message: bytes, path: str, limit: int) -> list[bytes]:
        parts = self._parts.pack(message, path, limit)
        self.history.diverted(self._letters[str(envelope.id_of(message))], parts)
        return parts

    def _begin(self) -> None:
        self.history.tell("world", str(self.plan))
        for fault in self.plan.faults:
            self.clock.after(fault.at_ms, partial(self._strike, fault))
        line = (self.plan, self.clock, self.network, self._nodes, self.history, self._rng)
        those = [Application(f"app{index}", *line) for index in range(self.plan.applications)]
        for index in range(self.plan.senders):
            self.clock.start(self._send_letters(index, those[index % len(those)]))
        for index in range(self.plan.syphons):
            self._start_syphon(index)
        for path in RECEIVED:
            receiver = HomeReceiver(
                *(path, self.clock, self.network, self.primary, self.history, self._rng),
                whims=lambda: self.plan.whims if self._is_troubled() else 0.0,
                sessions=path in SESSIONS,
            )
            self.clock.start(receiver.run())
        self._look()

    def _look(self) -> None:
        """Give ``_is_over`` a moment to be asked at, however quiet it is."""
        self._may_be_over = True
        self.clock.after(LOOK_MS, self._look)

    def _is_over(self) -> bool:
        if not self._may_be_over:
            return False
        self._may_be_over = False
        if self._sending or self.history.busy:
            return False
        return all(node.is_settled() for node in self._nodes)

    # ------------------------------------------------------------ those who send

    async def _send_letters(self, index: int, application: Application) -> None:
        rng = self._rng
        path = DESTINATIONS[(index + self._seed) % len(DESTINATIONS)]
        sender = LetterSender(f"s{index}", application, path)
        number = 0
        while number < self.plan.letters:
            await self.clock.sleep(rng.choice((5, 500, 4_000, 15_000)))
            count = rng.choice((1, 1, 1, 3))
            letters = [self._letter(index, number + each, path) for each in range(count)]
            number += count
            await self._send(sender, letters)
        self._sending -= 1

    def _letter(self, index: int, number: int, path: str) -> Letter:
        rng = self._rng
        due_ms = self.clock.now + 20_000 if rng.random() < 0.06 else None
        letter = Letter(
            id=f"m{index}.{number}",
            entity=path,
            session=f"session{index}" if path in SESSIONS or rng.random() < 0.3 else None,
            number=number,
            ttl_ms=rng.choice((None, None, 86_400_000)),
            due_ms=due_ms,
            is_scheduled=due_ms is not None and rng.random() < 0.7,
            colour=rng.choice(("red", "green")),
            body=rng.randbytes(rng.choice((10, 10, 10, LARGE))),
        )
        if self.plan.limit == FULL and rng.random() < 0.005:
            room = FULL - len(replace(letter, body=bytes(1_000)).encoded()) + 1_000
            letter = replace(letter, body=rng.randbytes(room))  # not one byte more is taken
        self._letters[letter.id] = letter
        self.history.written(letter)
        return letter

    async def _send(self, sender: LetterSender, letters: list[Letter]) -> None:
        """As applications do: some send again what failed, and some do not."""
        tell, names = self.history.tell, ", ".join(letter.id for letter in letters)
        while True:
            tell(sender.name, f"sends {names}")
            try:
                await self._hand_over(sender, letters)
            except ServiceBusError as error:
                tell(sender.name, f"is told that {names} failed: {type(error).__name__}")
                self.history.attempted(letters, acknowledged=False)
                if self._rng.random() >= self.plan.retries:
                    return
                await self.clock.sleep(1_000)
            else:
                tell(sender.name, f"is told that {names} is safe")
                self.history.attempted(letters, acknowledged=True)
                return

    async def _hand_over(self, sender: LetterSender, letters: list[Letter]) -> None:
        """Some of what is to come later is scheduled, and some of that taken back."""
        if not letters[0].is_scheduled:
            await sender.send(letters)
            return
        numbers = await sender.schedule(letters)
        if letters[0].entity in DETECTING and self._rng.random() < 0.7:
            self._sending += 1
            self.clock.start(self._cancel(sender, letters[0], numbers))

    async def _cancel(self, sender: LetterSender, letter: Letter, numbers: list[int]) -> None:
        with suppress(ServiceBusError):
            await self.clock.sleep(self._rng.choice((100, 5_000, 25_000)))
            await sender.cancel(letter, numbers[0] if numbers else None)
        self._sending -= 1

    # ------------------------------------------------------------ those who carry

    def _start_syphon(self, index: int) -> None:
        plan, name = self.plan, f"syphon{index}"
        settings = SyphonSettings(
            *(plan.queues, plan.share, plan.bite, plan.workers, plan.deducts, plan.skews_ms[2]),
            carrier=self._parts.carrier,
            crashes=plan.crashes,
            stalls=plan.stalls,
        )
        ways = Ways(
            *(name, settings, self.clock, self.network, self._nodes),
            *(self.history, self._rng, self._is_troubled),
        )
        self._syphons[name] = self.clock.start(self._keep(index, SimulatedSyphon(ways)))

    def _restart_syphon(self) -> None:
        if self._syphons["syphon0"].over:  # or it has been, since it was struck
            self._start_syphon(0)

    async def _keep(self, index: int, one: SimulatedSyphon) -> None:
        """Let a syphon run; when it crashes by itself, start another in its place."""
        try:
            await one.run()
        except CrashedError:
            if self._syphons[f"syphon{index}"].over:
                raise
            await self.clock.sleep(RESTART_MS)
            self._start_syphon(index)

    def _is_troubled(self) -> bool:
        return self.clock.now < START_MS + HEALED_MS

    # ------------------------------------------------------------ what goes wrong

    def _strike(self, fault: PlannedFault) -> None:
        where, _, what = fault.kind.partition("-")
        self.history.tell("world", f"{fault.kind} {fault.target} for {fault.for_ms} ms")
        if where == "syphon":
            self._syphons["syphon0"].crash()
            self.clock.after(RESTART_MS, self._restart_syphon)
            return
        node = self.primary if where in ("primary", "entity") else self.secondary
        undo = self._break(node, what, fault.target)
        self.clock.after(min(fault.for_ms, HEALED_MS - fault.at_ms), undo)

    def _break(self, node: Node, what: str, target: str) -> Callable[[], None]:
        """Answers what puts it right again."""
        if what == "crash":
            crash = self._rng.choice((node.crash, node.crash_writing))
            crash()
            return node.restart
        if what == "commits-fail":
            node.commits_fail = 0.5
            return partial(setattr, node, "commits_fail", 0.0)
        if what in _REFUSALS:
            node.refusals[target] = _REFUSALS[what]
            return node.refusals.clear
        if what == "changed":
            undo = partial(self._change, target, Status.ACTIVE)
            self._change(target, self._rng.choice((Status.DISABLED, Status.SEND_DISABLED)))
            return undo
        self.network.change(target, node.name, _WEATHER[what])
        return partial(self.network.change, target, node.name, None)

    def _change(self, path: str, status: Status) -> None:
        if self.primary.is_up:
            self.primary.change(path, status=status)

    def _heal(self) -> None:
        self.history.tell("world", "all faults have ended")
        self.network.clear()
        for node in self._nodes:
            node.restart()
            node.commits_fail = 0.0
            node.refusals.clear()
        for fault in self.plan.faults:
            if fault.kind == "entity-changed":
                self._change(fault.target, Status.ACTIVE)
