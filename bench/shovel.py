"""RabbitMQ's shovel from one node to another: what people would move a backlog with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from harness.raw import Raw, kilobyte_message

from bench.node import OUTSTANDING
from bench.rabbitmq import QUORUM, Rabbit

PLUGINS = ("rabbitmq_management", "rabbitmq_shovel")
BACKLOG, HOME = "backlog", "home"
NAME = "drain"
PREFETCH = 1_000  # the shovel's own default


@contextmanager
def nodes() -> Iterator[tuple[Rabbit, Rabbit]]:
    with Rabbit({BACKLOG: QUORUM}, PLUGINS) as away, Rabbit({HOME: QUORUM}, PLUGINS) as home:
        yield away, home


def drain(away: Rabbit, home: Rabbit, messages: int, within_s: float = 300) -> float:
    """Messages a second from a full queue to an empty one, confirmed on the other side."""
    source, target = Raw(away.connection_string), Raw(home.connection_string)
    payloads = (kilobyte_message(index) for index in range(messages))
    source.send(away.address(BACKLOG), payloads, OUTSTANDING)
    began = time.monotonic()
    away.ask("PUT", f"parameters/shovel/%2f/{NAME}", {"value": _settings(away, home)})
    while away.ask("GET", "parameters/shovel/%2f"):
        if time.monotonic() - began > within_s:
            raise RuntimeError(f"the shovel did not end within {within_s:g} s")
        time.sleep(0.02)
    took = time.monotonic() - began
    target.socket.settimeout(30)  # if it left one behind, that is told as such
    target.receive(home.address(HOME), messages, OUTSTANDING)
    source.close()
    target.close()
    return messages / took


def _settings(away: Rabbit, home: Rabbit) -> dict[str, object]:
    """Its safest mode. It ends by itself, and is gone, once what it found is moved."""
    return {
        "src-protocol": "amqp091",
        "src-uri": away.amqp_uri,
        "src-queue": BACKLOG,
        "src-prefetch-count": PREFETCH,
        "src-delete-after": "queue-length",
        "dest-protocol": "amqp091",
        "dest-uri": home.amqp_uri,
        "dest-queue": HOME,
        "ack-mode": "on-confirm",
    }
