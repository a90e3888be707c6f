"""Virtual time: what happens when, and code that blocks where nobody may."""

from __future__ import annotations

import random

import pytest

from twinbus.lab.simulation.clock import START_MS, Clock, CrashedError, Promise, Tape, rerun
from twinbus.lab.simulation.virtual import Signal


def clock() -> Clock:
    return Clock(random.Random(1))


def run(clock: Clock, until_ms: int = 1_000_000) -> None:
    clock.run(START_MS + until_ms, lambda: False)


def test_what_is_due_later_happens_later_and_takes_no_time() -> None:
    time, seen = clock(), []
    time.after(2_000, lambda: seen.append(("b", time.now - START_MS)))
    time.after(1_000, lambda: seen.append(("a", time.now - START_MS)))
    run(time)
    assert seen == [("a", 1_000), ("b", 2_000)]


def test_what_is_due_after_the_end_is_not_forgotten() -> None:
    time, seen = clock(), []
    time.after(2_000, lambda: seen.append("late"))
    run(time, 1_000)
    assert seen == []
    run(time, 3_000)
    assert seen == ["late"]


def test_what_happens_at_once_happens_in_an_order_of_the_seed() -> None:
    def order(seed: int) -> list[int]:
        time, seen = Clock(random.Random(seed)), []
        for each in range(6):
            time.after(5, lambda each=each: seen.append(each))  # type: ignore[misc]
        run(time)
        return seen

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_a_signal_is_waited_for_no_longer_than_asked() -> None:
    time, seen = clock(), []

    async def wait() -> None:
        signal = Signal(time)
        seen.append((await signal.wait(0.5), time.now - START_MS))

    time.start(wait())
    run(time)
    assert seen == [(False, 500)]


def test_a_task_that_crashed_goes_no_further() -> None:
    time, seen = clock(), []

    async def work() -> None:
        seen.append("before")
        try:
            await time.sleep(1_000)
        except Exception:
            seen.append("no handler may see it")
            raise
        seen.append("after")

    task = time.start(work())
    run(time, 500)
    task.crash()
    run(time)
    assert seen == ["before"]


def test_code_that_blocks_gets_its_answers_one_by_one_and_the_time_they_came_at() -> None:
    time, seen = clock(), []
    promises: list[Promise[str]] = [Promise(), Promise()]
    time.after(100, lambda: promises[0].tell("one"))
    time.after(300, lambda: promises[1].tell(ValueError("two")))

    async def answer(index: int) -> str:
        return await promises[index]

    def act(tape: Tape) -> list[tuple[object, int]]:
        told: list[tuple[object, int]] = [(tape.wait(lambda: answer(0)), tape.now - START_MS)]
        try:
            tape.wait(lambda: answer(1))
        except ValueError as error:
            told.append((str(error), tape.now - START_MS))
        return told

    async def work() -> None:
        seen.extend(await rerun(time, act))

    time.start(work())
    run(time)
    assert seen == [("one", 100), ("two", 300)]


def test_a_crash_inside_an_answer_is_nobodys_to_handle() -> None:
    time = clock()

    async def crash() -> None:
        raise CrashedError

    def act(tape: Tape) -> None:
        try:
            tape.wait(crash)
        except Exception:  # noqa: BLE001  what careless code does
            pytest.fail("it was handled")

    async def work() -> None:
        with pytest.raises(CrashedError):
            await rerun(time, act)

    time.start(work())
    run(time)
