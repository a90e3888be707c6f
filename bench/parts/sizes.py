"""Cost against message size, from 100 bytes to Service Bus's limit of 256 KB."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from harness.raw import Raw, kilobyte_message

from bench.node import Node, rate
from bench.process import Measured
from bench.rabbitmq import QUORUM, Rabbit
from bench.results import Curve, Due, Figure, Result

TITLE = "Cost against message size"
LIMIT_S = 420
CUT = "a round sends about 100 MB of each size, or 20,000 messages, whichever is less"
LARGEST = 256 * 1024 - 256  # a message may have 256 KB, its properties included
LARGE = 65_536
SIZES = (100, 1_024, 4_096, 16_384, LARGE, LARGEST)
OURS, PEER = "Twinbus", "RabbitMQ, quorum"


def measure(quick: bool) -> Iterator[Result]:
    rounds, volume, most = (1, 1 << 20, 500) if quick else (3, 100 << 20, 20_000)
    send: dict[str, dict[int, list[float]]] = {OURS: {}, PEER: {}}
    receive: dict[str, dict[int, list[float]]] = {OURS: {}, PEER: {}}
    busy: dict[str, list[float]] = {"send": [], "receive": []}  # with large ones, in our broker
    with Measured() as broker, Rabbit({"q": QUORUM}) as rabbit:
        sides: list[tuple[str, Node, Raw]] = [
            (OURS, broker, Raw(broker.connection_string)),
            (PEER, rabbit, Raw(rabbit.connection_string)),
        ]
        for _ in range(rounds):
            for size in SIZES:
                count = min(most, max(20, volume // size))
                payloads = [kilobyte_message(index, size) for index in range(count)]
                for name, node, raw in sides:
                    (sent, sent_cpu), (received, received_cpu) = both_us(node, raw, payloads, size)
                    send[name].setdefault(size, []).append(sent)
                    receive[name].setdefault(size, []).append(received)
                    if size == LARGE and name == OURS:
                        busy["send"].append(sent_cpu)
                        busy["receive"].append(received_cpu)
        for _, _, raw in sides:
            raw.close()
    yield large("a durable send of 64 KB", send, busy["send"])
    yield large("receive and settle 64 KB", receive, busy["receive"])
    for name, title, values in (
        ("send-by-size", "Durable send", send),
        ("receive-by-size", "Receive and settle", receive),
    ):
        yield Curve(
            name,
            f"{title} against message size",
            "bytes a message",
            "us a message",
            {side: list(points.items()) for side, points in values.items()},
            f"elapsed time over one connection, {rounds} rounds, the two brokers in turn; as many "
            "outstanding as make 4 MB, 500 at most",
            due=Due.LINE,
            reason="beyond a frame's 64 KB a message is taken apart and put together again, and "
            "beyond a page of the store's it is kept on pages of its own.",
            log_y=True,
        )


def both_us(
    node: Node, raw: Raw, payloads: list[bytes], size: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Sending and receiving: elapsed, and the broker's CPU time."""
    outstanding = max(8, min(500, (4 << 20) // size))
    address, count = node.address("q"), len(payloads)

    def timed(work: Callable[[], int]) -> tuple[float, float]:
        start = node.cpu_s()
        elapsed = 1e6 / rate(work)
        return elapsed, (node.cpu_s() - start) / count * 1e6

    sent = timed(lambda: raw.send(address, iter(payloads), outstanding))
    raw.renew()
    return sent, timed(lambda: raw.receive(address, count, outstanding))


def large(name: str, found: dict[str, dict[int, list[float]]], busy: list[float]) -> Figure:
    ours, spent = found[OURS][LARGE], statistics.median(busy)
    return Figure(
        name,
        "us a message",
        ours,
        "elapsed, as below",
        {PEER: found[PEER][LARGE]},
        more_is_better=False,
        wall=f"the store: the broker computes for {spent:.0f} of {statistics.median(ours):.0f} us, "
        "reading and inserting in one thread and committing in another, which take turns on one "
        "connection of SQLite's; the rest waits for the disk, to which each byte goes twice, into "
        "the log and from there into the file",
    )
