"""Cost against connections: memory of idle ones, and a send beside them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from harness.raw import Raw, kilobyte_message

from bench.node import OUTSTANDING
from bench.process import Measured
from bench.results import Curve, Due, Figure, Result

TITLE = "Cost against connections"
LIMIT_S = 300
NUMBERS = (1, 10, 100, 500, 1_000, 2_000)
QUICK_NUMBERS = (1, 50)
OURS = "Twinbus"


def measure(quick: bool) -> Iterator[Result]:
    numbers, rounds, sends = (QUICK_NUMBERS, 1, 500) if quick else (NUMBERS, 3, 10_000)
    memory: dict[int, list[float]] = {}
    send: dict[int, list[float]] = {}
    opening: dict[int, list[float]] = {}
    for _ in range(rounds):
        with Measured() as broker:
            raw = Raw(broker.connection_string)
            # As many as are sent later, so that what messages take of memory has been taken.
            warming = sends * len(numbers)
            raw.send("q", (kilobyte_message(n) for n in range(warming)), OUTSTANDING)
            held: list[Raw] = []
            for number in numbers:
                began, start = time.perf_counter(), len(held) + 1
                held += [Raw(broker.connection_string) for _ in range(start, number)]
                if number > start:
                    each_ms = (time.perf_counter() - began) / (number - start) * 1000
                    opening.setdefault(number, []).append(each_ms)
                time.sleep(0.2)
                memory.setdefault(number, []).append(broker.rss_mb())
                cpu = broker.cpu_s()
                raw.send("q", (kilobyte_message(n) for n in range(sends)), OUTSTANDING)
                send.setdefault(number, []).append((broker.cpu_s() - cpu) / sends * 1e6)
            for each in held:
                each.socket.close()
            raw.close()
    few, many = numbers[0], numbers[-1]
    pairs = zip(memory[few], memory[many], strict=True)
    each_kb = [(more - less) * 1024 / (many - few) for less, more in pairs]
    yield Figure(
        "memory of an idle connection",
        "KB",
        each_kb,
        f"resident memory with {many:,} connections, opened and authorized, less that with {few}, "
        "divided; the messages sent between are on disk",
        more_is_better=False,
        goal="under 20 KB",
        met=statistics.median(each_kb) < 20,
    )
    yield Curve(
        "memory-by-connections",
        "Memory against connections",
        "connections",
        "MB",
        {OURS: list(memory.items())},
        "resident memory with so many connections, opened and authorized",
        due=Due.LINE,
        log_x=False,
        reason="the interpreter takes memory in larger pieces than a connection needs.",
    )
    yield Curve(
        "open-by-connections",
        "Opening a connection against connections",
        "connections",
        "ms each",
        {OURS: list(opening.items())},
        "one after the other: TCP, SASL, open, session and a token, until it is authorized",
        due=Due.FLAT,
        log_x=False,
        reason="the load tool itself holds all of them in one process.",
    )
    yield Curve(
        "send-by-connections",
        "Durable send against idle connections",
        "connections",
        "broker's CPU, us a message",
        {OURS: list(send.items())},
        f"{sends:,} messages of 1 KB over one of them",
        due=Due.FLAT,
        log_x=False,
        reason="a point is the time of some thousand messages, in which what else the machine does "
        "shows.",
    )
