"""Cost against message size, from 100 bytes to Service Bus's limit of 256 KB."""

from __future__ import annotations

from collections.abc import Iterator

from bench.load import Raw, kilobyte_message
from bench.node import Node, rate
from bench.process import Measured
from bench.rabbitmq import QUORUM, Rabbit
from bench.results import Curve, Due, Result

TITLE = "Cost against message size"
LIMIT_S = 420
CUT = "a round sends about 100 MB of each size, or 20,000 messages, whichever is less"
LARGEST = 256 * 1024 - 256  # a message may have 256 KB, its properties included
SIZES = (100, 1_024, 4_096, 16_384, 65_536, LARGEST)
OURS, PEER = "Twinbus", "RabbitMQ, quorum"


def measure(quick: bool) -> Iterator[Result]:
    rounds, volume, most = (1, 1 << 20, 500) if quick else (3, 100 << 20, 20_000)
    send: dict[str, dict[int, list[float]]] = {OURS: {}, PEER: {}}
    receive: dict[str, dict[int, list[float]]] = {OURS: {}, PEER: {}}
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
                    sent, received = both_us(node, raw, payloads, size)
                    send[name].setdefault(size, []).append(sent)
                    receive[name].setdefault(size, []).append(received)
        for _, _, raw in sides:
            raw.close()
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


def both_us(node: Node, raw: Raw, payloads: list[bytes], size: int) -> tuple[float, float]:
    outstanding = max(8, min(500, (4 << 20) // size))
    address = node.address("q")
    sent = rate(lambda: raw.send(address, iter(payloads), outstanding))
    received = rate(lambda: raw.receive(address, len(payloads), outstanding))
    return 1e6 / sent, 1e6 / received
