"""What the shell needs of its world: the time, locks, signals, promises, jobs. This is asyncio's.

``twinbus.paired.blocking.world_blocking`` has the same names for threads. These two files are the
only ones of the two shells that are written by hand. The third world is the simulator's.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from twinbus.health import Health

_LOGGER = logging.getLogger("twinbus.paired")


class Lock:
    """One at a time, for those who will wait only so long."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def acquire(self, timeout: float | None) -> bool:
        if not self._lock.locked() or timeout is None:
            return await self._lock.acquire()
        try:
            return await asyncio.wait_for(self._lock.acquire(), timeout)
        except TimeoutError:
            return False

    def release(self) -> None:
        self._lock.release()


class Signal:
    """Set once, waited for by many. It may be set from any thread."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._mutex = threading.Lock()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        with self._mutex:
            self._set = True
            waiting = list(self._waiting)
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def wait(self, timeout: float | None = None) -> bool:
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._mutex:
            if self._set:
                return True
            self._waiting.add(entry)
        try:
            await asyncio.wait_for(event.wait(), timeout)
        except TimeoutError:
            return self._set
        finally:
            self._waiting.discard(entry)
        return True


class Promise:
    """The outcome of something that another job does: nothing, or an error."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def resolve(self, error: BaseException | None = None) -> None:
        if self._future.done():
            return
        if error is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(error)

    def give_up(self) -> bool:
        """Nobody waits any longer; true if it was in time."""
        return self._future.cancel()

    @property
    def given_up(self) -> bool:
        return self._future.cancelled()

    async def outcome(self, timeout: float | None) -> None:
        """Wait. TimeoutError if it takes too long, or whatever the promise was resolved with."""
        await asyncio.wait_for(self._future, timeout)


class World:
    """The time, chance, and jobs in the background that end when their owner does. What fails in a
    job is logged."""

    # How a wait ends when whoever waits has had enough of it.
    cancelled: tuple[type[BaseException], ...] = (asyncio.CancelledError,)

    def __init__(self) -> None:
        self.chance = random.Random()  # noqa: S311  to spread load is all that it is for
        self._jobs: set[asyncio.Task[bool]] = set()
        self._health = Health(_LOGGER)

    def now(self) -> float:
        """In seconds, for differences."""
        return time.monotonic()

    def date(self) -> float:
        """In seconds since 1970."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def signal(self) -> Signal:
        return Signal()

    def breakable(self, break_off: Callable[[], None]) -> AbstractContextManager[None]:
        """While in it, a job waits for a peer. A task is cancelled, and needs no breaking off."""
        return nullcontext()

    def start(
        self,
        name: str,
        job: Callable[..., Awaitable[None]],
        *args: Any,
        ended: Callable[[], None] | None = None,
    ) -> bool:
        """Whether it could be started: a task always can. ``ended`` is called when there is no such
        job any longer, whatever became of it: a task may be cancelled before it has begun."""
        work = self.attempt("a job in the background", name, job, *args)
        task = asyncio.get_running_loop().create_task(work, name=f"twinbus {name}")
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        if ended is not None:
            task.add_done_callback(lambda _: ended())
        return True

    async def attempt(
        self, what: str, entity: str, act: Callable[..., Awaitable[None]], *args: Any
    ) -> bool:
        """Do a piece of what a job does, which is not to end if that fails."""
        return await self._health.attempt_soon(what, entity, act(*args))

    async def stop(self, within_s: float | None = None) -> None:
        """Cancel all, and wait until they are gone, and those that they started to clean up."""
        for job in self._others():
            job.cancel()
        while jobs := self._others():
            await asyncio.gather(*jobs, return_exceptions=True)

    def _others(self) -> list[asyncio.Task[bool]]:
        mine = asyncio.current_task()
        return [job for job in self._jobs if job is not mine]

    def __len__(self) -> int:
        return len(self._jobs)


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def aside(act: Callable[[], object]) -> None:
    """Do what may take a while without holding up everybody else."""
    await asyncio.to_thread(act)
