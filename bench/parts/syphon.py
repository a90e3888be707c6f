"""The syphon beside RabbitMQ's shovel and the loop anybody would write with the SDK."""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from bench import shovel
from bench import syphon as measured
from bench.results import Figure, Note, Result

TITLE = "The syphon: beside RabbitMQ's shovel and a bare SDK loop"
LIMIT_S = 720
CUT = "drains of 50,000 messages; `make bench-syphon` has longer ones, and memory after a million"
BUSY = 0.7  # of all cores: above this, what runs on them is what holds it back
SHOVEL, LOOP = "RabbitMQ's shovel", "a bare SDK loop"


def measure(quick: bool) -> Iterator[Result]:
    messages, bare, rounds = (2_000, 500, 2) if quick else (50_000, 6_000, 3)
    primary, secondary = measured.namespaces()
    with primary, secondary, shovel.nodes() as (away, home):
        cold = [measured.cold(primary, secondary) for _ in range(1 if quick else 3)]
        yield Figure(
            "first message home, cold",
            "s",
            cold,
            "from starting `twinbus syphon` to the first message home: Spark's start is most of it",
            more_is_better=False,
        )
        steps = measured.steps(primary, secondary, bare)
        found: dict[str, list[float]] = {"ours": [], SHOVEL: [], LOOP: [], "wire": []}
        spent: dict[str, float] = {}
        with measured.running(primary, secondary) as syphon:
            yield Figure(
                "a message home, warm",
                "s",
                measured.latencies(secondary, syphon, 3 if quick else 10),
                "one message while nothing else comes, from sending it to its count at home",
                more_is_better=False,
            )
            for _ in range(rounds):
                drained = measured.drains(primary, secondary, syphon, messages, 1)
                found["ours"] += drained["drain_per_s"]
                spent = drained["cpu_us_a_message"]
                with measured.stopped(syphon):
                    found[SHOVEL].append(shovel.drain(away, home, messages))
                    loop = measured.bare_loop(primary, secondary, bare)
                    found[LOOP].append(asyncio.run(loop))
                    found["wire"].append(measured.own_client(primary, secondary, bare * 2))
    yield from told(found, spent, messages)
    yield Note("Where a drained message's time goes", profile(spent, steps))


def told(
    found: Mapping[str, list[float]], spent: Mapping[str, float], messages: int
) -> Iterator[Result]:
    yield Figure(
        "syphon drain",
        "messages/s",
        found["ours"],
        f"{messages:,} messages of 1 KB in ten queues, both brokers and Spark on the same cores; "
        "each stored at home before it is completed in the backlog. The shovel moves one quorum "
        f"queue, on-confirm, prefetch {shovel.PREFETCH:,}; the loop receives 100, sends them as a "
        "list, completes each",
        {name: found[name] for name in (SHOVEL, LOOP)},
        goal="toward the shovel",
        wall=wall(found, spent),
    )
    yield Figure(
        "the same with our own wire code",
        "messages/s",
        found["wire"],
        "one process without Spark and SDK, no columns and no ledger: what the brokers would give",
    )


def wall(found: Mapping[str, list[float]], spent: Mapping[str, float]) -> str:
    """Out of cores, or mostly waiting: what the syphon's and the brokers' CPU times say."""
    rate = statistics.median(found["ours"])
    own_us = sum(value for name, value in spent.items() if not name.startswith("broker"))
    brokers_us = sum(spent.values()) - own_us
    cores, there = (own_us + brokers_us) * rate / 1e6, os.cpu_count() or 1
    what = (
        "the interpreter, the SDK and Java" if cores > BUSY * there else "the fixed cost of a batch"
    )
    return (
        f"{what}: a message takes {own_us:.0f} us of the syphon's CPU and {brokers_us:.0f} us of "
        f"the two brokers', which at {rate:,.0f}/s keeps {cores:.1f} of {there} cores busy. Our "
        f"own wire code without Spark and SDK moves {statistics.median(found['wire']):,.0f}/s. The "
        "tables in its section say where the time goes"
    )


def profile(spent: Mapping[str, float], steps: Mapping[str, float]) -> str:
    rows: list[tuple[str, Any]] = [*sorted(spent.items())]
    lines = ["| process | CPU us a message |", "|---|---|"]
    lines += [f"| {name} | {value:.0f} |" for name, value in rows]
    lines += ["", "| step in a worker, one thread | us a message |", "|---|---|"]
    lines += [f"| {name} | {value:.1f} |" for name, value in steps.items()]
    return "\n".join(lines)
