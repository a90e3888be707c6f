"""A receiver at home: it knows nothing of a backlog, and only ever looks in one place.

It locks messages, notes them, completes them. A completion that is lost brings a message again,
under the sequence number that it had: that is what peek-lock is, and no duplicate.
"""

from __future__ import annotations

from collections.abc import Callable

from azure.servicebus.exceptions import ServiceBusError

from twinbus.lab.simulation.clock import Clock
from twinbus.lab.simulation.network import Network
from twinbus.lab.simulation.node import Answer, HandedOut, Node

POLL_MS = 60_000
CALL_MS = 15_000
MOST = 8


class HomeReceiver:
    def __init__(
        self,
        path: str,
        clock: Clock,
        network: Network,
        node: Node,
        note: Callable[[HandedOut], None],
        *,
        sessions: bool,
    ) -> None:
        self._path = path
        self._name = f"receiver/{path}"
        self._clock = clock
        self._network = network
        self._node = node
        self._note = note
        self._seen: set[int] = set()
        self._receive = node.receive_session if sessions else node.receive
        self._sessions = sessions

    async def run(self) -> None:
        while True:
            try:
                await self._once()
            except ServiceBusError:
                await self._clock.sleep(3_000)

    async def _once(self) -> None:
        got: list[HandedOut] = await self._network.call(
            self._name,
            self._node,
            "receive",
            lambda answer: self._receive(self._path, MOST, POLL_MS, answer),
            POLL_MS + CALL_MS,
        )
        for each in got:
            if each.number not in self._seen:
                self._seen.add(each.number)
                self._note(each)
        if got:
            await self._settle(got)

    async def _settle(self, got: list[HandedOut]) -> None:
        tokens = [each.token for each in got]
        await self._ask(lambda answer: self._node.settle("complete", self._path, tokens, answer))
        session = got[0].session
        if self._sessions and session is not None:
            await self._ask(lambda answer: self._node.close_session(self._path, session, answer))

    async def _ask(self, act: Callable[[Answer], None]) -> None:
        await self._network.call(self._name, self._node, "settle", act, CALL_MS)
