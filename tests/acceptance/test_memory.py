"""What the broker keeps in memory: not the messages, and not what greedy clients leave unread."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.brokers import BrokerProcess
from harness.raw import Raw, kilobyte_message

from twinbus.amqp.link_endpoint import RECEIVER

QUEUES: dict[str, dict[str, Any]] = {"deep": {}, "greedy": {}, "other": {}}
DEEP = 100_000  # a tenth of the million that may cost 100 MB
MAX_DEEPER_KB = 8 * 1_024
MAX_DEEP_KB = 50 * 1_024
MAX_GREEDY_KB = 50 * 1_024
IDLE = 500
MAX_IDLE_KB = 20


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of the test's own: memory is compared with what it was at the start."""
    broker = BrokerProcess(tmp_path, QUEUES)
    broker.start()
    yield broker
    broker.close()
    assert "Traceback" not in broker.log(), broker.log()


def warm(broker: BrokerProcess) -> int:
    """The memory of a broker that has done some work, in KB: pools filled, modules loaded."""
    raw = Raw(broker.connection_string)
    raw.send("other", (kilobyte_message(n) for n in range(2_000)), 500)
    assert raw.receive("other", 2_000, 500) == 2_000
    raw.close()
    time.sleep(0.5)
    return broker.rss_kb()


def test_memory_does_not_grow_with_the_depth_of_a_queue(fresh: BrokerProcess) -> None:
    """Caches and buffers fill at first, and are what they are; from there on nothing grows."""
    empty = warm(fresh)
    raw = Raw(fresh.connection_string)
    sizes = []
    for _ in range(5):
        assert raw.send("deep", (kilobyte_message(n) for n in range(DEEP // 4)), 500) == DEEP // 4
        sizes.append(fresh.rss_kb())
    assert raw.receive("deep", 5_000, 500) == 5_000
    reading = fresh.rss_kb()
    raw.close()
    print(f"empty {empty} KB; each {DEEP // 4} messages more: {sizes} KB; read: {reading} KB")
    assert sizes[-1] - sizes[0] < MAX_DEEPER_KB
    assert max(sizes[-1], reading) - empty < MAX_DEEP_KB


def test_a_client_that_asks_for_everything_and_reads_nothing_costs_little(
    fresh: BrokerProcess,
) -> None:
    raw = Raw(fresh.connection_string)
    raw.send("greedy", (kilobyte_message(n, 4_000) for n in range(25_000)), 500)
    before = warm(fresh)
    greedy = [Raw(fresh.connection_string) for _ in range(3)]
    for client in greedy:
        client.attach(RECEIVER, "greedy", settle_second=True).grant(2**31 - 1)
        client.flush()
    peak = before
    end = time.monotonic() + 4
    served = 0
    while time.monotonic() < end:
        raw.send("other", iter([kilobyte_message(served)]), 1)
        served += raw.receive("other", 1, 1)
        peak = max(peak, fresh.rss_kb())
    print(f"{before} KB before, {peak} KB at most; {served} messages of others meanwhile")
    assert peak - before < MAX_GREEDY_KB
    assert served > 10
    assert raw.receive("greedy", 100, 100) == 100
    for client in greedy:
        client.socket.close()
    raw.close()


def test_a_client_that_reads_and_never_settles_holds_no_bodies(fresh: BrokerProcess) -> None:
    """A lock costs memory until it ends; the message's bytes do not."""
    raw = Raw(fresh.connection_string)
    count = 10_000
    raw.send("greedy", (kilobyte_message(n, 4_000) for n in range(count)), 500)
    before = warm(fresh)
    hoarder = Raw(fresh.connection_string)
    hoarder.attach(RECEIVER, "greedy", settle_second=True).grant(count)
    hoarder.flush()
    hoarder.socket.settimeout(2)
    size = 0
    try:
        while size < count * 4_000:
            size += len(hoarder.socket.recv(1 << 20))
    except TimeoutError:
        pass
    grown = fresh.rss_kb() - before
    print(f"{count} locks cost {grown} KB, {grown * 1024 // count} bytes each")
    assert size >= count * 4_000
    assert grown < 20 * 1_024
    hoarder.socket.close()
    raw.close()


def test_idle_connections_are_cheap(fresh: BrokerProcess) -> None:
    warm(fresh)
    idle: list[Raw] = [Raw(fresh.connection_string) for _ in range(20)]
    before = fresh.rss_kb()
    idle += [Raw(fresh.connection_string) for _ in range(IDLE)]
    each = (fresh.rss_kb() - before) / IDLE
    print(f"{each:.1f} KB for each of {IDLE} idle connections")
    assert each < MAX_IDLE_KB
    for client in idle:
        client.socket.shutdown(socket.SHUT_RDWR)
        client.socket.close()
