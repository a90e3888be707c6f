"""What the shell needs of its world: the time, locks, signals, promises, jobs. The threads'.

The names are those of ``twinbus.paired.aio.world``.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from typing import Any

from twinbus.health import Health

_LOGGER = logging.getLogger("twinbus.paired")

# How often jobs that do not end are told to.
JOIN_S = 0.05


class Lock:
    """One at a time, for those who will wait only so long."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, timeout: float | None) -> bool:
        return self._lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout))

    def release(self) -> None:
        self._lock.release()


Signal = threading.Event


class Promise:
    """The outcome of something that another job does: nothing, or an error."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: Future[None] = Future()

    def resolve(self, error: BaseException | None = None) -> None:
        with suppress(InvalidStateError):  # it has an outcome, or was given up just now
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

    def outcome(self, timeout: float | None) -> None:
        """Wait. TimeoutError if it takes too long, or whatever the promise was resolved with."""
        try:
            self._future.result(timeout)
        except FutureTimeoutError as error:
            raise TimeoutError from error
        except CancelledError as error:
            raise TimeoutError from error


class World:
    """The time, chance, and jobs in the background that end when their owner does. What fails in a
    job is logged.

    A thread cannot be cancelled: a job that waits must wait for a signal its owner sets first, or
    say how its waiting can be broken off.
    """

    # A thread cannot be cancelled: its waits end with an answer or a time-out.
    cancelled: tuple[type[BaseException], ...] = ()

    def __init__(self) -> None:
        self.chance = random.Random()  # noqa: S311  to spread load is all that it is for
        self._jobs: set[threading.Thread] = set()
        self._breaks: list[Callable[[], None]] = []
        self._mutex = threading.Lock()
        self._health = Health(_LOGGER)

    def now(self) -> float:
        """In seconds, for differences."""
        return time.monotonic()

    def date(self) -> float:
        """In seconds since 1970."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def signal(self) -> Signal:
        return Signal()

    @contextmanager
    def breakable(self, break_off: Callable[[], None]) -> Iterator[None]:
        """While in it, a job waits for a peer, and ``break_off`` makes that fail at once."""
        with self._mutex:
            self._breaks.append(break_off)
        try:
            yield
        finally:
            with self._mutex:
                self._breaks.remove(break_off)

    def start(
        self,
        name: str,
        job: Callable[..., None],
        *args: Any,
        ended: Callable[[], None] | None = None,
    ) -> bool:
        """Whether it could be started: a process has only so many threads. ``ended`` is called when
        there is no such job any longer, whatever became of it, or if it could not be started."""
        thread = threading.Thread(
            target=self._run, args=(name, ended, job, *args), name=f"twinbus {name}", daemon=True
        )
        with self._mutex:
            self._jobs.add(thread)
        if self.attempt("starting a job", name, thread.start):
            return True
        self._forget(thread, ended)
        return False

    def attempt(self, what: str, entity: str, act: Callable[..., None], *args: Any) -> bool:
        """Do a piece of what a job does, which is not to end if that fails."""
        return self._health.attempt(what, entity, act, *args)

    def _run(
        self, name: str, ended: Callable[[], None] | None, job: Callable[..., None], *args: Any
    ) -> None:
        try:
            self.attempt("a job in the background", name, job, *args)
        finally:
            self._forget(threading.current_thread(), ended)

    def _forget(self, thread: threading.Thread, ended: Callable[[], None] | None) -> None:
        with self._mutex:
            self._jobs.discard(thread)
        if ended is not None:
            ended()

    def stop(self, within_s: float | None = None) -> None:
        """Wait until all are gone, and those that they started to clean up. With ``within_s``
        nobody may wait for a peer any longer, and what does so all the same is not waited for."""
        ends = None if within_s is None else time.monotonic() + within_s
        while jobs := self._others():
            if ends is None:
                jobs[0].join()
                continue
            if time.monotonic() > ends:
                names = ", ".join(job.name for job in jobs)
                _LOGGER.warning("not waited for, they end by themselves: %s", names)
                return
            self._break_off()
            jobs[0].join(JOIN_S)

    def _break_off(self) -> None:
        # Again each time: a connection may only now have come to be.
        with self._mutex:
            breaks = list(self._breaks)
        for break_off in breaks:
            self.attempt("breaking off", "a link", break_off)

    def _others(self) -> list[threading.Thread]:
        with self._mutex:
            return [job for job in self._jobs if job is not threading.current_thread()]

    def __len__(self) -> int:
        return len(self._jobs)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def aside(act: Callable[[], object]) -> None:
    """Do what may take a while. A thread holds up nobody else."""
    act()
