"""What lies between a client and a node: requests and answers that are late, or never come.

Requests of one connection arrive in the order in which they were sent; those of two may overtake
each other. A request that is lost and an answer that is lost look the same to who waits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError

from twinbus.lab.simulation.clock import Clock, Promise
from twinbus.lab.simulation.node import Answer, Node

LATENCY_MS = (1, 30)


@dataclass(slots=True)
class Weather:
    """How it is on the way between a client and a node. Chances are between 0 and 1."""

    requests_lost: float = 0.0
    answers_lost: float = 0.0
    slower: int = 1


CLEAR = Weather()


class Network:
    def __init__(self, clock: Clock, rng: random.Random, tell: Callable[[str, str], None]) -> None:
        self._clock = clock
        self._rng = rng
        self._tell = tell
        self._weather: dict[tuple[str, str], Weather] = {}
        self._arrived: dict[tuple[str, str], int] = {}

    def weather(self, client: str, node: str) -> Weather:
        """Of this client, or of all; a client is known by the first word of its name."""
        of_one = self._weather.get((client.split("/")[0], node))
        return of_one or self._weather.get(("", node)) or CLEAR

    def change(self, client: str, node: str, weather: Weather | None) -> None:
        if weather is None:
            self._weather.pop((client, node), None)
        else:
            self._weather[client, node] = weather

    def clear(self) -> None:
        self._weather.clear()

    async def call(
        self, client: str, node: Node, what: str, act: Callable[[Answer], None], within_ms: int
    ) -> Any:
        """Ask a node. Raises the error that the SDK raises."""
        promise: Promise[Any] = Promise()

        def told(value: Any) -> None:
            weather = self.weather(client, node.name)
            if self._rng.random() < weather.answers_lost:
                self._tell(client, f"never hears from {node.name}: {what}")
                return
            if isinstance(value, ConnectionError):
                value = ServiceBusConnectionError(message=str(value))
            self._clock.after(self._latency(weather), lambda: promise.tell(value))

        def arrive() -> None:
            if node.is_up:
                node.serve(act, told)
            else:
                told(ConnectionRefusedError(f"{node.name} is down"))

        weather = self.weather(client, node.name)
        if self._rng.random() < weather.requests_lost:
            self._tell(client, f"does not reach {node.name}: {what}")
        else:
            key = (client, node.name)
            when = max(self._clock.now + self._latency(weather), self._arrived.get(key, 0) + 1)
            self._arrived[key] = when
            self._clock.at(when, arrive)

        def late() -> None:
            if not promise.known:
                promise.tell(OperationTimeoutError(message=f"{node.name} did not answer: {what}"))

        self._clock.after(within_ms, late)
        return await promise

    def _latency(self, weather: Weather) -> int:
        return self._rng.randint(*LATENCY_MS) * weather.slower
