"""Durable send, and receive + settle one by one: our broker and RabbitMQ's two durable queues."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.raw import Raw, kilobyte_message

from bench.node import OUTSTANDING, Node, Turn, turn
from bench.process import Measured
from bench.rabbitmq import CLASSIC, QUORUM, Rabbit
from bench.results import Figure, Result

TITLE = "Queues: beside RabbitMQ"
LIMIT_S = 420
OURS, BEST = "Twinbus", "RabbitMQ, quorum"
PEERS = {BEST: QUORUM, "RabbitMQ, classic": CLASSIC}
BUSY = 0.85  # of a core
GOAL = "ahead of RabbitMQ's quorum queue"

Turns = dict[str, list[Turn]]


def measure(quick: bool) -> Iterator[Result]:
    count, rounds = (3_000, 3) if quick else (80_000, 3)
    turns = take_turns(count, rounds)
    how = f"1 KB, durable, one connection, {OUTSTANDING} outstanding, {count:,} messages a round"
    yield compared(
        "durable send",
        f"{how}; each acknowledged when it is on disk",
        *(turns, "sent_per_s", "send_cpu_us"),
    )
    yield compared(
        "receive and settle one by one",
        f"{how}, a disposition each. Ours confirms each when that is on disk and is waited for; "
        "RabbitMQ, which has no such mode, is told and believed",
        *(turns, "received_per_s", "receive_cpu_us"),
    )
    for what, field in (
        ("a durable send", "send_cpu_us"),
        ("receive and settle", "receive_cpu_us"),
    ):
        yield Figure(
            f"CPU time of {what}",
            "us a message",
            values(turns[OURS], field),
            "user and system time of the broker's processes, all threads, in the same rounds",
            {name: values(turns[name], field) for name in PEERS},
            more_is_better=False,
        )


def compared(name: str, how: str, turns: Turns, rate: str, cpu: str) -> Figure:
    peers = {peer: values(turns[peer], rate) for peer in PEERS}
    figure = Figure(name, "messages/s", values(turns[OURS], rate), how, peers)
    met = figure.ratio(BEST) >= 1
    return replace(figure, goal=GOAL, met=met, wall=wall(turns, rate, cpu))


def wall(turns: Turns, rate: str, cpu: str) -> str:
    """A Python process has one core at most; if it has used that up, that is the wall."""

    def cores(name: str) -> float:
        pairs = zip(values(turns[name], rate), values(turns[name], cpu), strict=True)
        return statistics.median(per_s * us / 1e6 for per_s, us in pairs)

    ours = cores(OURS)
    what = (
        "the interpreter" if ours > BUSY else "not the broker's CPU, but the load tool or the disk"
    )
    return (
        f"{what}: the broker kept {ours:.2f} cores busy, of the one that a Python process can use, "
        f"and RabbitMQ's quorum queue {cores(BEST):.2f}. The profile below says what with"
    )


def values(turns: Sequence[Turn], field: str) -> list[float]:
    return [getattr(each, field) for each in turns]


def take_turns(count: int, rounds: int) -> Turns:
    """Ours, quorum, classic, ours, quorum, classic, ..."""
    payloads = [kilobyte_message(index) for index in range(count)]
    turns: Turns = {OURS: [], **{name: [] for name in PEERS}}
    with Measured() as broker, Rabbit({kind: kind for kind in PEERS.values()}) as rabbit:
        sides: dict[str, tuple[Node, Raw, str]] = {
            OURS: (broker, Raw(broker.connection_string), "q"),
            **{name: (rabbit, Raw(rabbit.connection_string), kind) for name, kind in PEERS.items()},
        }
        for node, raw, queue in sides.values():
            turn(node, raw, queue, payloads[: count // 10])
        for _ in range(rounds):
            for name, (node, raw, queue) in sides.items():
                turns[name].append(turn(node, raw, queue, payloads))
        for _, raw, _ in sides.values():
            raw.close()
    return turns
