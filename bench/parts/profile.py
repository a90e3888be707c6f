"""Where the broker's time goes: wire, queue and store in one process, no sockets between.

The figures are CPU time without a profiler; the shares are with one, which is hard on many small
calls, so they say what to look at, not what would be saved.
"""

from __future__ import annotations

import cProfile
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.conversations import Conversation

from bench.results import Figure, Note, Result
from twinbus.amqp.link_endpoint import RECEIVER, SENDER

TITLE = "Where the broker's time goes"
LIMIT_S = 180
AT_ONCE = 250
ROOMS = (
    ("/twinbus/amqp/", "the wire (Python)"),
    ("/twinbus/broker/store", "the store's Python"),
    ("/twinbus/broker/", "queues and dialect (Python)"),
    ("sqlite3", "SQLite (C), commits to disk included"),
)
REST = "built-ins that these call (C)"


def measure(quick: bool) -> Iterator[Result]:
    batches = 4 if quick else 40
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-profile-") as folder:
        conversation = Watched(Path(folder))
        sender = conversation.attach(SENDER, "orders")
        receiver = conversation.attach(RECEIVER, "orders")
        steps: dict[str, Callable[[], None]] = {
            "send": lambda: conversation.send(sender, AT_ONCE),
            "receive and settle": lambda: conversation.receive(receiver, AT_ONCE),
        }
        spent: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(3):
            for name, act in steps.items():
                spent[name].append(_cpu_us(conversation, act, batches))
        for name, values in spent.items():
            yield Figure(
                f"{name}, in memory",
                "us a message",
                values,
                f"CPU time of the broker's side, {AT_ONCE * batches:,} messages of 1 KB, "
                f"{AT_ONCE} at once, stored and committed; no sockets and no loop, which are the "
                "rest of what the broker's process takes above",
                more_is_better=False,
            )
        rooms = {name: _shares(conversation, act, batches) for name, act in steps.items()}
        conversation.store.close()
    yield Note("By room", _table(rooms))


class Watched(Conversation):
    """One whose broker's side goes through ``watch``: its client is in the same process."""

    watch: Callable[[Callable[[bytes], bytes], bytes], bytes] | None = None

    def serve(self, data: bytes) -> bytes:
        serve = super().serve
        return self.watch(serve, data) if self.watch else serve(data)


def _cpu_us(conversation: Watched, act: Callable[[], None], batches: int) -> float:
    spent = 0.0

    def timed(serve: Callable[[bytes], bytes], data: bytes) -> bytes:
        nonlocal spent
        began = time.process_time()
        answer = serve(data)
        spent += time.process_time() - began
        return answer

    conversation.watch = timed
    for _ in range(batches):
        act()
    return spent / (AT_ONCE * batches) * 1e6


def _shares(conversation: Watched, act: Callable[[], None], batches: int) -> dict[str, float]:
    profile = cProfile.Profile()
    conversation.watch = profile.runcall
    for _ in range(batches):
        act()
    found: dict[str, float] = {}
    for (file, _, name), (_, _, own_s, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]  # undocumented, and the only way to the numbers
        room = next((room for part, room in ROOMS if part in file or part in name), REST)
        found[room] = found.get(room, 0.0) + own_s
    total = sum(found.values())
    return {room: own / total for room, own in found.items()}


def _table(rooms: dict[str, dict[str, float]]) -> str:
    lines = [f"| share of the time | {' | '.join(rooms)} |", "|---" * (len(rooms) + 1) + "|"]
    for room in (*(room for _, room in ROOMS), REST):
        cells = [f"{shares.get(room, 0):.0%}" for shares in rooms.values()]
        lines.append(f"| {room} | {' | '.join(cells)} |")
    return "\n".join(lines)
