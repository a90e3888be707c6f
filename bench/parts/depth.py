"""Cost against backlog depth: memory, and what a message takes when many wait before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.raw import Raw, kilobyte_message

from bench.node import OUTSTANDING, Node
from bench.process import Measured
from bench.rabbitmq import QUORUM, Rabbit
from bench.results import Curve, Due, Figure, Result

TITLE = "Cost against backlog depth"
LIMIT_S = 720
CUT = "RabbitMQ is filled to 200,000 only"
DEPTHS = (1_000, 10_000, 100_000, 200_000, 1_000_000)
QUICK_DEPTHS = (1_000, 4_000)
COMPARED, QUICK_COMPARED = 200_000, 4_000
PROBE = 5_000
OURS, PEER = "Twinbus", "RabbitMQ, quorum"


@dataclass(slots=True)
class Growth:
    """By depth, a value a run."""

    memory_mb: dict[int, list[float]] = field(default_factory=dict)
    send_us: dict[int, list[float]] = field(default_factory=dict)
    receive_us: dict[int, list[float]] = field(default_factory=dict)

    def add(self, depth: int, memory: float, send: float, receive: float) -> None:
        self.memory_mb.setdefault(depth, []).append(memory)
        self.send_us.setdefault(depth, []).append(send)
        self.receive_us.setdefault(depth, []).append(receive)


def measure(quick: bool) -> Iterator[Result]:
    depths, compared = (QUICK_DEPTHS, QUICK_COMPARED) if quick else (DEPTHS, COMPARED)
    rounds, probe = (1, 500) if quick else (3, PROBE)
    ours, theirs = Growth(), Growth()
    for _ in range(rounds):
        with Measured() as broker:
            grow(broker, depths, probe, ours)
        with Rabbit({"q": QUORUM}) as rabbit:
            grow(rabbit, [each for each in depths if each <= compared], probe, theirs)
    yield Figure(
        f"memory with {compared:,} messages queued",
        "MB",
        ours.memory_mb[compared],
        f"resident memory of all the broker's processes, {compared:,} durable messages of 1 KB; a "
        "fresh process each round",
        {PEER: theirs.memory_mb[compared]},
        more_is_better=False,
        goal="ahead of RabbitMQ's quorum queue",
        met=max(ours.memory_mb[compared]) < min(theirs.memory_mb[compared]),
    )
    yield from curves(ours, theirs, probe)


def grow(node: Node, depths: list[int] | tuple[int, ...], probe: int, growth: Growth) -> None:
    """Fill step by step; at each depth receive some from the front and send as many."""
    address = node.address("q")
    payloads = [kilobyte_message(index) for index in range(probe)]
    raw = Raw(node.connection_string)
    queued = 0
    for depth in depths:
        raw.send(address, (kilobyte_message(n) for n in range(queued, depth)), OUTSTANDING)
        queued = depth
        memory, taken = node.rss_mb(), min(probe, depth)
        raw.renew()
        start = node.cpu_s()
        raw.receive(address, taken, OUTSTANDING)
        middle = node.cpu_s()
        raw.send(address, iter(payloads[:taken]), OUTSTANDING)
        end = node.cpu_s()
        growth.add(depth, memory, (end - middle) / taken * 1e6, (middle - start) / taken * 1e6)
    raw.close()


def curves(ours: Growth, theirs: Growth, probe: int) -> Iterator[Result]:
    yield Curve(
        "memory-by-depth",
        "Memory against backlog depth",
        "messages queued",
        "MB",
        {OURS: list(ours.memory_mb.items()), PEER: list(theirs.memory_mb.items())},
        "resident memory of the broker's processes",
        due=Due.FLAT,
        reason="it grows while the store's page caches and the window of messages at hand fill, "
        "and once they are full, from 100,000 on, no more.",
    )
    for name, title, values, others in (
        ("receive-by-depth", "Receive and settle", ours.receive_us, theirs.receive_us),
        ("send-by-depth", "Durable send", ours.send_us, theirs.send_us),
    ):
        yield Curve(
            name,
            f"{title} against backlog depth",
            "messages queued",
            "broker's CPU, us a message",
            {OURS: list(values.items()), PEER: list(others.items())},
            f"up to {probe:,} messages at each depth, from the front, or behind all others",
            due=Due.FLAT,
            reason="a point is the time of a few thousand messages, in which what else the machine "
            "does shows.",
        )
