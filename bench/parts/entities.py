"""Cost against the number of entities: start, memory, a page of the list, a send."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from harness.raw import Raw, kilobyte_message

from bench.broker import list_pages
from bench.node import OUTSTANDING
from bench.process import Measured, namespace_toml
from bench.results import Curve, Due, Figure, Result

TITLE = "Cost against entities"
LIMIT_S = 300
NUMBERS = (10, 100, 1_000, 10_000)
QUICK_NUMBERS = (10, 300)
OURS = "Twinbus"


def measure(quick: bool) -> Iterator[Result]:
    numbers, rounds, sends = (QUICK_NUMBERS, 1, 500) if quick else (NUMBERS, 3, 10_000)
    ready: dict[int, list[float]] = {}
    memory: dict[int, list[float]] = {}
    page: dict[int, list[float]] = {}
    send: dict[int, list[float]] = {}
    for _ in range(rounds):
        for number in numbers:
            began = time.perf_counter()
            with Measured(queues_toml(number)) as broker:
                ready.setdefault(number, []).append(time.perf_counter() - began)
                memory.setdefault(number, []).append(broker.rss_mb())
                times = list_pages(broker, number)
                page.setdefault(number, []).append(statistics.median(times))
                send.setdefault(number, []).append(send_us(broker, number, sends))
    most = numbers[-1]
    yield Figure(
        f"management list of {most:,} queues",
        "ms a page",
        page[most],
        "100 queues a page over plain HTTP, from request to the last byte, the median page",
        more_is_better=False,
        goal="under 50 ms",
        met=statistics.median(page[most]) < 50,
    )
    yield Curve(
        "ready-by-entities",
        "Time to ready against entities",
        "queues",
        "s",
        {OURS: list(ready.items())},
        "from starting the process to GET /health, all queues created from a TOML file in an empty "
        "folder",
        due=Due.LINE,
        reason="starting Python is most of it while there are few.",
        log_y=True,
    )
    yield Curve(
        "memory-by-entities",
        "Memory against entities",
        "queues",
        "MB",
        {OURS: list(memory.items())},
        "resident memory when ready",
        due=Due.LINE,
        reason="what reading the file takes is given back only in part.",
    )
    yield Curve(
        "list-by-entities",
        "A page of the list against entities",
        "queues",
        "ms a page",
        {OURS: list(page.items())},
        "a page has 100 queues at most",
        due=Due.NONE,
        reason="A page is full from 100 queues on, and then flat.",
    )
    yield Curve(
        "send-by-entities",
        "Durable send against entities",
        "queues",
        "broker's CPU, us a message",
        {OURS: list(send.items())},
        f"{sends:,} messages of 1 KB to one of the queues",
        due=Due.FLAT,
        reason="a point is the time of some thousand messages, in which what else the machine does "
        "shows.",
    )


def queues_toml(number: int) -> str:
    return namespace_toml(
        "\n".join(f'[[namespace.queue]]\nname = "q{place:05d}"' for place in range(number))
    )


def send_us(broker: Measured, number: int, sends: int) -> float:
    raw = Raw(broker.connection_string)
    queue = f"q{number // 2:05d}"
    raw.send(queue, (kilobyte_message(n) for n in range(sends // 10)), OUTSTANDING)
    start = broker.cpu_s()
    raw.send(queue, (kilobyte_message(n) for n in range(sends)), OUTSTANDING)
    spent = broker.cpu_s() - start
    raw.close()
    return spent / sends * 1e6
