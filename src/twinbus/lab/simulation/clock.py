"""Virtual time, and who does something in it.

Time is a number that jumps from one event to the next. What happens at the same moment happens in
an order that the seed decides. Whoever waits is a coroutine that awaits a ``Promise``.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
START_MS: Final = 1_700_000_000_000


class CrashedError(BaseException):
    """The process that this ran in is gone. No handler of exceptions is meant to see it."""


class Promise(Generic[T]):
    """Something that will be known later. The first who tells it wins."""

    __slots__ = ("_error", "_then", "_value", "known")

    def __init__(self) -> None:
        self.known = False
        self._value: Any = None
        self._error: Exception | None = None
        self._then: list[Callable[[], None]] = []

    def tell(self, value: T | Exception) -> None:
        if self.known:
            return
        self.known = True
        if isinstance(value, Exception):
            self._error = value
        else:
            self._value = value
        waiting, self._then = self._then, []
        for each in waiting:
            each()

    def then(self, act: Callable[[], None]) -> None:
        if self.known:
            act()
        else:
            self._then.append(act)

    def __await__(self) -> Generator[Promise[Any], None, T]:
        if not self.known:
            yield self
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[no-any-return]  # T, once it is resolved


class Task:
    """A coroutine on its way. ``crash`` ends it where it is."""

    def __init__(self, work: Coroutine[Promise[Any], None, None]) -> None:
        self._work = work
        self.over = False

    def step(self) -> None:
        if self.over:
            return
        try:
            awaited = self._work.send(None)
        except StopIteration:
            self.over = True
        else:
            awaited.then(self.step)

    def crash(self) -> None:
        if self.over:
            return
        self.over = True
        try:
            self._work.throw(CrashedError())
        except (CrashedError, StopIteration):
            return


class Clock:
    """The time, and what is to happen when."""

    def __init__(self, rng: random.Random) -> None:
        self.now = START_MS
        self._rng = rng
        self._count = 0
        self._events: list[tuple[int, float, int, Callable[[], None]]] = []

    def at(self, when: int, act: Callable[[], None]) -> None:
        self._count += 1
        event = (max(when, self.now), self._rng.random(), self._count, act)
        heapq.heappush(self._events, event)

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        self.at(self.now + delay_ms, act)

    def start(self, work: Coroutine[Promise[Any], None, None]) -> Task:
        task = Task(work)
        self.after(0, task.step)
        return task

    async def sleep(self, delay_ms: int) -> None:
        promise: Promise[None] = Promise()
        self.after(delay_ms, lambda: promise.tell(None))
        await promise

    def run(self, until_ms: int, is_over: Callable[[], bool]) -> None:
        """Let time pass until a moment, or until it is over."""
        while self._events and self._events[0][0] <= until_ms and not is_over():
            self.now, _, _, act = heapq.heappop(self._events)
            act()


async def rerun(clock: Clock, act: Callable[[Tape], T]) -> T:
    """Run code that blocks, as the carrier does, where nobody may block.

    It waits by way of a ``Tape``. When an answer has come it is run again from the beginning, with
    the answers so far, and gets one step further: code that is pure does the same again. That is
    cheaper than a thread, and leaves nothing to the machine's scheduler.
    """
    tape = Tape(clock)
    while True:
        try:
            return act(tape)
        except _UnansweredError as asked:
            await tape.record(asked.question())


class _UnansweredError(BaseException):
    """This far and no further; no handler of exceptions is meant to see it."""

    def __init__(self, question: Callable[[], Awaitable[Any]]) -> None:
        super().__init__()
        self.question = question


class Tape:
    """What was answered so far, and when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: list[tuple[Any, Exception | None, int]] = []
        self._next = 0
        self._began = clock.now

    @property
    def now(self) -> int:
        """The time as it was at this point of the code."""
        return self._answers[self._next - 1][2] if self._next else self._began

    def wait(self, question: Callable[[], Awaitable[Any]]) -> Any:
        if self._next == len(self._answers):
            self._next = 0
            raise _UnansweredError(question)
        value, error, _ = self._answers[self._next]
        self._next += 1
        if error is not None:
            raise error
        return value

    async def record(self, asked: Awaitable[Any]) -> None:
        value, failed = None, None
        try:
            value = await asked
        except Exception as error:  # noqa: BLE001  it is raised in the code that waits for it
            failed = error
        self._answers.append((value, failed, self._clock.now))
