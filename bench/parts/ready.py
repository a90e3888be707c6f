"""Time to ready: from starting the process to an open AMQP connection, on an empty folder."""

from __future__ import annotations

import time
from collections.abc import Iterator

from harness.raw import Raw

from bench.process import Measured
from bench.rabbitmq import QUORUM, Rabbit
from bench.results import Figure, Result

TITLE = "Time to ready"
LIMIT_S = 300


def measure(quick: bool) -> Iterator[Result]:
    ours, theirs, memory, their_memory = [], [], [], []
    for _ in range(1 if quick else 3):
        began = time.perf_counter()
        with Measured() as broker:
            Raw(broker.connection_string).close()
            ours.append(time.perf_counter() - began)
            memory.append(broker.rss_mb())
        with Rabbit({"q": QUORUM}) as rabbit:
            theirs.append(rabbit.ready_s)
            their_memory.append(rabbit.rss_mb())
    yield Figure(
        "time to ready",
        "s",
        ours,
        "from starting the process to an AMQP connection that is open, and for ours authorized; an "
        "empty folder, one queue",
        {"RabbitMQ": theirs},
        more_is_better=False,
        goal="ahead of RabbitMQ",
        met=max(ours) < min(theirs),
    )
    yield Figure(
        "memory when ready",
        "MB",
        memory,
        "resident memory of all its processes then",
        {"RabbitMQ": their_memory},
        more_is_better=False,
    )
