"""Durable send, and receive + settle one by one: our broker and RabbitMQ's two durable queues."""

from __future__ import annotations

from collections.abc import Iterator

from bench.load import Raw, kilobyte_message
from bench.node import OUTSTANDING, Node, Turn, turn
from bench.process import Measured
from bench.rabbitmq import CLASSIC, QUORUM, Rabbit
from bench.results import Figure, Result

TITLE = "Queues: beside RabbitMQ"
LIMIT_S = 420
PEERS = {"RabbitMQ, quorum": QUORUM, "RabbitMQ, classic": CLASSIC}
GOAL = "ahead of RabbitMQ's quorum queue"


def measure(quick: bool) -> Iterator[Result]:
    count, rounds = (3_000, 3) if quick else (80_000, 3)
    turns = take_turns(count, rounds)
    ours = turns.pop("")
    how = f"1 KB, durable, one connection, {OUTSTANDING} outstanding, {count:,} messages a round"
    send = Figure(
        "durable send",
        "messages/s",
        [each.sent_per_s for each in ours],
        f"{how}; each acknowledged when it is on disk",
        {name: [each.sent_per_s for each in those] for name, those in turns.items()},
    )
    yield goal(send)
    receive = Figure(
        "receive and settle one by one",
        "messages/s",
        [each.received_per_s for each in ours],
        f"{how}, a disposition each. Ours confirms each when that is on disk and is waited for; "
        "RabbitMQ, which has no such mode, is told and believed",
        {name: [each.received_per_s for each in those] for name, those in turns.items()},
    )
    yield goal(receive)
    for what, field in (
        ("a durable send", "send_cpu_us"),
        ("receive and settle", "receive_cpu_us"),
    ):
        yield Figure(
            f"CPU time of {what}",
            "us a message",
            [getattr(each, field) for each in ours],
            "user and system time of the broker's processes, all threads, in the same rounds",
            {name: [getattr(each, field) for each in those] for name, those in turns.items()},
            more_is_better=False,
        )


def goal(figure: Figure) -> Figure:
    met = figure.ratio("RabbitMQ, quorum") >= 1
    wall = (
        "the interpreter: the broker is one Python process, which one core can run; RabbitMQ uses "
        "both. The CPU times below say how much each message takes, and the profile what of"
    )
    return Figure(
        figure.name,
        figure.unit,
        figure.values,
        figure.how,
        figure.peers,
        goal=GOAL,
        met=met,
        wall=wall,
    )


def take_turns(count: int, rounds: int) -> dict[str, list[Turn]]:
    """Ours (the empty name), quorum, classic, ours, quorum, classic, ..."""
    payloads = [kilobyte_message(index) for index in range(count)]
    turns: dict[str, list[Turn]] = {"": [], **{name: [] for name in PEERS}}
    with Measured() as broker, Rabbit({kind: kind for kind in PEERS.values()}) as rabbit:
        sides: dict[str, tuple[Node, Raw, str]] = {
            "": (broker, Raw(broker.connection_string), "q"),
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
