"""Ports for processes that are told where to listen.

A port that the system gave and that was let go again may be given to anybody before the process
takes it. So these are from below those that a system gives of its own accord, and each worker has
a range of its own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

FIRST, LAST = 12_000, 31_000
WORKERS = 16
_SHARE = (LAST - FIRST) // WORKERS


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, none of them twice in a row."""
    found: list[int] = []
    while len(found) < count:
        port = next(_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
    return found


def _in_turn() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    begin = FIRST + worker * _SHARE
    # Two runs of the tests on one machine do not begin at the same port.
    offset = os.getpid() % _SHARE
    while True:
        yield from chain(range(begin + offset, begin + _SHARE), range(begin, begin + offset))


_PORTS = _in_turn()
