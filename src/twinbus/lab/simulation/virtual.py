"""What the paired shell needs of its world, on the virtual clock: the third of the worlds."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from twinbus.lab.simulation.clock import Clock, Promise
from twinbus.paired.aio import world as aio


def milliseconds(seconds: float) -> int:
    """Not a moment less: who waits for a time looks whether it has come."""
    return math.ceil(seconds * 1000 - 1e-6)


class Signal(aio.Signal):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_set = False
        self._waits: list[Promise[bool]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waits, self._waits = self._waits, []
        for each in waits:  # who sets it may hold a lock: nobody goes on within
            self._clock.after(0, partial(each.tell, True))

    async def wait(self, timeout: float | None = None) -> bool:
        if self._is_set:
            return True
        promise: Promise[bool] = Promise()
        self._waits.append(promise)
        if timeout is not None:
            self._clock.after(milliseconds(timeout), lambda: promise.tell(self._is_set))
        return await promise


class World(aio.World):
    """Nobody is cancelled in it, and what fails in a job fails the whole run: what the others log
    and outlive is a bug that is to be found."""

    cancelled = ()

    def __init__(self, clock: Clock, chance: random.Random) -> None:
        super().__init__()
        self._clock = clock
        self.chance = chance

    def now(self) -> float:
        return self._clock.now / 1000

    date = now

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(milliseconds(seconds))

    def signal(self) -> Signal:
        return Signal(self._clock)

    def start(
        self,
        name: str,
        job: Callable[..., Awaitable[None]],
        *args: Any,
        ended: Callable[[], None] | None = None,
    ) -> bool:
        async def work() -> None:
            await job(*args)
            if ended is not None:
                ended()

        self._clock.start(work())
        return True

    async def attempt(
        self, what: str, entity: str, act: Callable[..., Awaitable[None]], *args: Any
    ) -> bool:
        await act(*args)
        return True
