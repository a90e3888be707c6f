"""A receiver at home: it knows nothing of a backlog, and only ever looks in one place.

It locks messages, notes them, settles them. A settlement that is lost brings a message again,
under the sequence number that it had: that is what peek-lock is, and no duplicate. While there is
trouble it has whims: it abandons, defers, changes or dead-letters what it could complete, and may
take longer for it than its lock lasts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from azure.servicebus.exceptions import ServiceBusError

from twinbus.broker.burial import Changes
from twinbus.lab.simulation.clock import Clock
from twinbus.lab.simulation.history import History
from twinbus.lab.simulation.letter import STAMP
from twinbus.lab.simulation.network import Network
from twinbus.lab.simulation.node import Answer, HandedOut, Node

POLL_MS = 60_000
CALL_MS = 15_000
MOST = 8
HALF_A_LOCK_MS = 17_000
WHIMS: Final = ("abandon", "abandon", "defer", "dead-letter", "late", "renew")


class HomeReceiver:
    def __init__(
        self,
        path: str,
        clock: Clock,
        network: Network,
        node: Node,
        history: History,
        rng: random.Random,
        whims: Callable[[], float],
        *,
        sessions: bool,
    ) -> None:
        self._path = path
        self._name = f"receiver/{path}"
        self._clock = clock
        self._network = network
        self._node = node
        self._history = history
        self._rng = rng
        self._whims = whims
        self._stamp = 0
        self._owes = False  # it may have put off something
        self._receive = node.receive_session if sessions else node.receive
        self._sessions = sessions

    async def run(self) -> None:
        while True:
            try:
                got = await self._poll(1_000 if self._owes else POLL_MS)
                await self._take(got)
                if self._owes:
                    await self._fetch()
            except ServiceBusError:
                await self._clock.sleep(3_000)

    async def _poll(self, wait_ms: int) -> Any:
        return await self._ask(
            lambda answer: self._receive(self._path, MOST, wait_ms, answer), wait_ms + CALL_MS
        )

    async def _take(self, got: list[HandedOut]) -> None:
        """Note and settle what came, each act with its messages."""
        acts: dict[str, list[HandedOut]] = {}
        for each in got:
            self._history.received(each)
            acts.setdefault(self._act(), []).append(each)
        for act, some in acts.items():
            await self._settle(act, some)
        session = got[0].session if got else None
        if self._sessions and session is not None:
            await self._ask(lambda answer: self._node.close_session(self._path, session, answer))

    def _act(self) -> str:
        if self._rng.random() >= self._whims():
            return "complete"
        act = self._rng.choice(WHIMS)
        return "abandon" if self._sessions and act == "defer" else act

    async def _settle(self, act: str, some: list[HandedOut]) -> None:
        tokens = [each.token for each in some]
        if act in ("late", "renew"):
            await self._clock.sleep(HALF_A_LOCK_MS)
            if act == "renew":
                await self._ask(lambda told: self._node.settle(act, self._path, tokens, told))
            await self._clock.sleep(HALF_A_LOCK_MS)
            act = "complete"
        self._owes |= act == "defer"
        self._stamp += 1
        changes: Changes | None = {STAMP: self._stamp} if act in ("abandon", "defer") else None
        self._history.settling(act, some, self._stamp)
        lost = await self._ask(
            lambda told: self._node.settle(act, self._path, tokens, told, changes)
        )
        for each in some:
            if each.token not in lost:
                self._history.settled(act, each, self._stamp)

    async def _fetch(self) -> None:
        """What it has put off, or may have: an answer may have been lost."""
        numbers = await self._ask(lambda told: self._node.deferred(self._path, told))
        self._owes = bool(numbers)
        for each in numbers:
            by_number = partial(self._node.receive_deferred, self._path, each)
            await self._take(await self._ask(by_number))

    async def _ask(self, act: Callable[[Answer], None], within_ms: int = CALL_MS) -> Any:
        return await self._network.call(self._name, self._node, "receive", act, within_ms)
