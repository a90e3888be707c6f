"""The paired sender side by side with the bare SDK: one run, the same broker, rounds interleaved.

    python bench/paired.py [--rounds N] [--json]

Every figure is a ratio or a difference of two things measured in turn within this run, so that the
machine's mood falls on both. A ratio is the median over rounds of (bare time / paired time): above
1 the paired sender is faster.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import operator
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import azure.servicebus as sdk
import azure.servicebus.aio as sdk_aio
from harness.brokers import BrokerProcess, certificate

import twinbus
import twinbus.aio
from bench.results import Figure
from twinbus import SendAvailabilityPairedNamespaceOptions
from twinbus.failover.states import State

BODY = b"x" * 1024
SINGLES, LISTS, LIST_SIZE = 150, 10, 100
QUEUES: dict[str, dict[str, Any]] = {"bare": {}, "paired": {}, "flushed": {}}
Timed = Callable[[], Awaitable[float]]
RATIO = "x"  # the unit of what is already a ratio of two things
SIGNS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
}
TAKEN_IN_TURN = (
    "the other's time over ours, operation by operation in turn within a round, the slowest tenth "
    "of each left out"
)


def message() -> sdk.ServiceBusMessage:
    return sdk.ServiceBusMessage(BODY)


async def interleaved(rounds: int, count: int, first: Timed, second: Timed) -> list[float]:
    """first's time over second's, round by round. Within a round the two take turns, operation by
    operation, and the slowest tenth of each is left out: it is the machine's, not theirs."""
    ratios = []
    for _ in range(rounds):
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(count):
            order = (0, 1) if number % 2 else (1, 0)
            for which in order:
                times[which].append(await (first, second)[which]())
        ratios.append(trimmed(times[0]) / trimmed(times[1]))
    return ratios


def trimmed(times: list[float]) -> float:
    kept = sorted(times)[: max(1, len(times) * 9 // 10)]
    return sum(kept) / len(kept)


def figure(
    name: str, goal: str, values: list[float], unit: str = RATIO, how: str = "", wall: str = ""
) -> Figure:
    """A goal is a sign and a number, or nothing."""
    middle = statistics.median(values)
    low, high = min(values), max(values)
    print(f"{name:58} {middle:8.3f} {unit}  ({low:.3f} to {high:.3f}; goal {goal})", flush=True)
    return Figure(
        name,
        unit,
        values,
        how or TAKEN_IN_TURN,
        more_is_better=unit == RATIO,
        goal=goal,
        met=SIGNS[goal.split()[0]](middle, float(goal.split()[1])) if goal else None,
        wall=wall,
    )


# ---------------------------------------------------------------- asyncio


def timed_single(sender: Any, count: int = 1) -> Timed:
    async def run() -> float:
        messages = [message() for _ in range(count)]
        began = time.perf_counter()
        for each in messages:
            await sender.send_messages(each)
        return time.perf_counter() - began

    return run


def timed_list(sender: Any) -> Timed:
    async def run() -> float:
        messages = [message() for _ in range(LIST_SIZE)]
        began = time.perf_counter()
        await sender.send_messages(messages)
        return time.perf_counter() - began

    return run


def timed_together(sender: Any, at_once: int = 100) -> Timed:
    async def run() -> float:
        messages = [message() for _ in range(at_once)]
        began = time.perf_counter()
        await asyncio.gather(*(sender.send_messages(each) for each in messages))
        return time.perf_counter() - began

    return run


async def asyncio_figures(pair: Any, bare: Any, rounds: int) -> list[Figure]:
    found = []
    flush = timedelta(milliseconds=1)
    async with (
        bare.get_queue_sender("bare") as plain,
        pair.get_queue_sender("paired") as paired,
        pair.get_queue_sender("flushed", batch_flush_interval=flush) as flushed,
    ):
        for warm in (plain, paired, flushed):
            await timed_single(warm, 30)()
        ratios = await interleaved(rounds, SINGLES, timed_single(plain), timed_single(paired))
        found.append(figure("asyncio, healthy, single sends", ">= 0.97", ratios))
        ratios = await interleaved(rounds, LISTS, timed_list(plain), timed_list(paired))
        found.append(figure("asyncio, healthy, lists of 100", ">= 0.97", ratios))
        ratios = await interleaved(rounds, 2, timed_single(plain, 100), timed_together(flushed))
        found.append(figure("asyncio, 100 at once, batch_flush_interval 1 ms", ">= 2.5", ratios))
    return found


# ---------------------------------------------------------------- blocking


def blocking(send: Callable[[Any], None], make: Callable[[], Any]) -> Timed:
    async def run() -> float:
        what = make()
        began = time.perf_counter()
        send(what)
        return time.perf_counter() - began

    return run


def many() -> list[sdk.ServiceBusMessage]:
    return [message() for _ in range(LIST_SIZE)]


async def blocking_figures(pair: Any, bare: Any, rounds: int) -> list[Figure]:
    found = []
    with bare.get_queue_sender("bare") as plain, pair.get_queue_sender("paired") as paired:
        for make, count, what in (
            (message, SINGLES, "single sends"),
            (many, LISTS, "lists of 100"),
        ):
            one, two = blocking(plain.send_messages, make), blocking(paired.send_messages, make)
            for _ in range(5):
                await one()
                await two()
            ratios = await interleaved(rounds, count, one, two)
            found.append(figure(f"blocking, healthy, {what}", ">= 0.97", ratios))
    return found


# ---------------------------------------------------------------- the first diverted send


async def until(pair: Any, state: State) -> None:
    reached = asyncio.Event()
    stop = pair.add_listener(lambda event: reached.set())
    while pair.entity_states()["paired"] is not state:
        await reached.wait()
        reached.clear()
    stop()


async def first_diverted(
    primary: BrokerProcess, pair: Any, backup: str, rounds: int
) -> list[Figure]:
    """After the interval has passed: the first send into the backlog, less a plain send to a
    backlog queue over an open link."""
    client = sdk_aio.ServiceBusClient.from_connection_string(backup)
    extra = []
    async with client, client.get_queue_sender("localhost/x-servicebus-transfer/0") as plain:
        await plain.send_messages(message())
        for _ in range(rounds):
            async with pair.get_queue_sender("paired") as sender:
                await sender.send_messages(message())
                primary.kill()
                with suppress(sdk.exceptions.ServiceBusError):
                    await sender.send_messages(message())
                await until(pair, State.DIVERTED)
                began = time.perf_counter()
                await sender.send_messages(message())
                diverted = time.perf_counter() - began
                began = time.perf_counter()
                await plain.send_messages(message())
                extra.append((diverted - (time.perf_counter() - began)) * 1000)
            primary.start()
            await until(pair, State.HEALTHY)
    name = "first diverted send, more than a plain one"
    how = "a primary killed, its interval over; less a send to a backlog queue over an open link"
    return [figure(name, "<= 50", extra, "ms", how)]


# ---------------------------------------------------------------- memory


def memory(pair: Any, rounds: int = 3) -> list[Figure]:
    """What pairing adds to each of 10,000 entities: its state, shared by all senders."""
    states, extra = [], []
    for number in range(rounds):
        states.append(
            allocated_kb(lambda name: pair.pairing.entity(name), f"state-{number}", 10_000)
        )
        paired = allocated_kb(lambda name: joined(pair.get_queue_sender(name)), "entity", 1_000)
        bare = allocated_kb(
            lambda name: sdk_aio.ServiceBusClient.get_queue_sender(pair, name), "entity", 1_000
        )
        extra.append(paired - bare)
    how = "allocated by Python, by tracemalloc, each of {:,}"
    return [
        figure("memory of an entity's state", "< 2", states, "KB", how.format(10_000)),
        figure("memory of a paired sender over a bare one", "< 2", extra, "KB", how.format(1_000)),
    ]


def joined(sender: Any) -> Any:
    sender._join()
    return sender


def allocated_kb(make: Callable[[str], Any], name: str, count: int) -> float:
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    kept = [make(f"{name}-{number}") for number in range(count)]
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return (after - before) / count / 1024


async def run(rounds: int) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="bench-paired-") as folder:
        return await run_in(Path(folder), rounds)


async def run_in(base: Path, rounds: int) -> list[Figure]:
    for name in ("primary", "secondary"):
        (base / name).mkdir()
    primary, secondary = (
        BrokerProcess(base / "primary", QUEUES),
        BrokerProcess(base / "secondary", {}),
    )
    primary.start()
    secondary.start()
    found: list[Figure] = []
    try:
        pair, backup = await paired_aio(primary, secondary)
        async with sdk_aio.ServiceBusClient.from_connection_string(
            primary.connection_string
        ) as bare:
            found += await asyncio_figures(pair, bare, rounds)
        found += memory(pair)
        await pair.close()
        await backup.close()
        found += await blocking_all(primary, secondary, rounds)
        pair, backup = await paired_aio(primary, secondary)
        found += await first_diverted(primary, pair, secondary.connection_string, 3)
        await pair.close()
        await backup.close()
    finally:
        primary.close()
        secondary.close()
    return found


async def paired_aio(primary: BrokerProcess, secondary: BrokerProcess) -> tuple[Any, Any]:
    make = twinbus.aio.MessagingFactory.from_connection_string
    pair, backup = make(primary.connection_string), make(secondary.connection_string)
    pair._config.retry_total = 0
    async with twinbus.aio.NamespaceManager.from_connection_string(
        secondary.connection_string, connection_verify=certificate(secondary)
    ) as manager:
        await pair.pair_namespace(options(manager, backup))
    return pair, backup


def options(manager: Any, backup: Any) -> SendAvailabilityPairedNamespaceOptions:
    return SendAvailabilityPairedNamespaceOptions(
        manager,
        backup,
        backlog_queue_count=1,
        failover_interval=timedelta(seconds=2),
        ping_primary_interval=timedelta(seconds=1),
    )


async def blocking_all(
    primary: BrokerProcess, secondary: BrokerProcess, rounds: int
) -> list[Figure]:
    make = twinbus.MessagingFactory.from_connection_string
    pair, backup = make(primary.connection_string), make(secondary.connection_string)
    with (
        twinbus.NamespaceManager.from_connection_string(
            secondary.connection_string, connection_verify=certificate(secondary)
        ) as manager,
        sdk.ServiceBusClient.from_connection_string(primary.connection_string) as bare,
    ):
        pair.pair_namespace(options(manager, backup))
        found = await blocking_figures(pair, bare, rounds)
        pair.close()
        backup.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON at the end")
    arguments = parser.parse_args()
    found = asyncio.run(run(arguments.rounds))
    if arguments.json:
        print(json.dumps([asdict(each) for each in found], indent=2))


if __name__ == "__main__":
    main()
