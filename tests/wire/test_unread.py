"""A client that asks for everything and reads nothing is closed, and its messages stay."""

from __future__ import annotations

import asyncio
from pathlib import Path

from harness.brokers import KEY
from harness.raw import Raw, kilobyte_message

from twinbus.amqp.link_endpoint import RECEIVER
from twinbus.broker.config import NamespaceConfig
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.server import Broker, BrokerConfig

MESSAGES = 800


async def test_a_client_that_does_not_read_is_closed_after_a_while(tmp_path: Path) -> None:
    namespace = NamespaceConfig("contoso", 0, 0, queues={"q": QueueDescription()})
    broker = Broker(BrokerConfig([namespace], tmp_path, key=KEY))
    await broker.start()
    (host,) = broker.hosts
    host.port.stuck_s = 1.0  # a minute, where people run it
    text = broker.connection_strings()["contoso"]

    def fill_and_ask() -> Raw:
        raw = Raw(text)
        raw.send("q", (kilobyte_message(n, 50_000) for n in range(MESSAGES)), 20)
        link = raw.attach(RECEIVER, "q", settle_second=True)
        link.grant(MESSAGES)
        raw.flush()
        return raw

    raw = await asyncio.to_thread(fill_and_ask)
    assert host.port.peers
    for _ in range(100):
        if not host.port.peers:
            break
        await asyncio.sleep(0.1)
    assert not host.port.peers, "the connection is still open"
    assert host.namespace.directory.entity("q").queue.counts.active == MESSAGES
    raw.socket.close()
    await broker.stop()
