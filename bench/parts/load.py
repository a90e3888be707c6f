"""Throughput and latency against load: messages offered at a steady pace, ours and RabbitMQ's."""

from __future__ import annotations

from collections.abc import Iterator

from harness.raw import Paced, Raw, kilobyte_message

from bench.node import Node
from bench.process import Measured
from bench.rabbitmq import QUORUM, Rabbit
from bench.results import Curve, Result

TITLE = "Throughput and latency against load"
LIMIT_S = 480
CUT = "a point is one and a half seconds of load; tails beyond the 99th percentile need more"
RATES = (500, 1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 25_000, 30_000, 40_000)
QUICK_RATES = (500, 2_000, 8_000)
OURS, PEER = "Twinbus", "RabbitMQ, quorum"


def measure(quick: bool) -> Iterator[Result]:
    rates, seconds, rounds = (QUICK_RATES, 0.5, 2) if quick else (RATES, 1.5, 3)
    found: dict[str, dict[int, list[Paced]]] = {
        name: {rate: [] for rate in rates} for name in (OURS, PEER)
    }
    payload = kilobyte_message(0)
    with Measured() as broker, Rabbit({"q": QUORUM}) as rabbit:
        sides: list[tuple[str, Node, Raw]] = [
            (OURS, broker, Raw(broker.connection_string)),
            (PEER, rabbit, Raw(rabbit.connection_string)),
        ]
        for _ in range(rounds):
            for rate in rates:
                for name, node, raw in sides:
                    count = int(rate * seconds)
                    address = node.address("q")
                    found[name][rate].append(raw.send_paced(address, payload, rate, count))
                    raw.renew()
                    raw.receive(address, count, 500)
        for _, _, raw in sides:
            raw.close()
    yield from curves(found, seconds, rounds)


def curves(
    found: dict[str, dict[int, list[Paced]]], seconds: float, rounds: int
) -> Iterator[Result]:
    how = (
        f"durable sends of 1 KB over one connection, offered at a steady pace for {seconds:g} s a "
        f"point, {rounds} rounds, the two brokers in turn"
    )
    yield Curve(
        "throughput-by-load",
        "Throughput against load",
        "offered, messages/s",
        "acknowledged, messages/s",
        {
            name: [(rate, [each.per_s for each in those]) for rate, those in by_rate.items()]
            for name, by_rate in found.items()
        },
        how,
        reason="It follows the load until the broker has used up its core, and stays there, give "
        "or take what else the machine does.",
        log_x=False,
    )
    for share, label in ((0.5, "median"), (0.99, "99th percentile")):
        yield Curve(
            f"latency-{'median' if share == 0.5 else 'p99'}-by-load",
            f"Latency of a durable send against load, {label}",
            "offered, messages/s",
            "ms",
            {
                name: [
                    (rate, [each.quantile_ms(share) for each in those])
                    for rate, those in by_rate.items()
                ]
                for name, by_rate in found.items()
            },
            f"{how}; from when a message was due to its acknowledgement, so that falling behind "
            "counts",
            reason="Flat while there is room, then as steep as the queue that builds up.",
            log_y=True,
            log_x=False,
        )
