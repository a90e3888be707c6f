"""What the load tool needs of a broker, ours or another; and the turn that both are given."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.raw import Raw

OUTSTANDING = 500


class Node(Protocol):
    """A broker process that is being measured."""

    connection_string: str
    ready_s: float

    def address(self, queue: str) -> str: ...
    def rss_mb(self) -> float: ...
    def cpu_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Turn:
    """Messages a second, and the broker's CPU time for each."""

    sent_per_s: float
    received_per_s: float
    send_cpu_us: float
    receive_cpu_us: float


def rate(work: Callable[[], int]) -> float:
    started = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - started)


def turn(node: Node, raw: Raw, queue: str, payloads: Sequence[bytes]) -> Turn:
    """Send these messages, then receive and settle them one by one."""
    count, address = len(payloads), node.address(queue)
    start = node.cpu_s()
    sent = rate(lambda: raw.send(address, iter(payloads), OUTSTANDING))
    send_us = (node.cpu_s() - start) / count * 1e6
    raw.renew()
    start = node.cpu_s()
    received = rate(lambda: raw.receive(address, count, OUTSTANDING))
    return Turn(sent, received, send_us, (node.cpu_s() - start) / count * 1e6)
