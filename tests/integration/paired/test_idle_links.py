"""A sender that was quiet for longer than the broker keeps an idle link: both worlds."""

from __future__ import annotations

import asyncio
import time

import pytest
from azure.servicebus import ServiceBusMessage
from harness.brokers import BrokerProcess
from tests.pairs import Pair, peek
from tests.worlds import World

from twinbus.failover.states import State

QUEUES: dict[str, dict[str, str]] = {"orders": {}, "bare": {}}
IDLE_S = 2
# The primary closes a link after two idle seconds, as Service Bus does after ten minutes.
OPTIONS = (("--idle-link-s", str(IDLE_S), "--verbose"), ())
# The broker looks every two seconds.
QUIET_S = IDLE_S + 4


@pytest.fixture
async def pair(pair: Pair) -> Pair:
    return await pair.open()


async def test_a_send_after_the_broker_closed_the_idle_link_goes_home_at_once(pair: Pair) -> None:
    async with pair.sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("first"))
        await asyncio.sleep(QUIET_S)
        started = time.monotonic()
        await sender.send_messages(ServiceBusMessage("second"))
        took_s = time.monotonic() - started
    assert took_s < 6, f"the send took {took_s:.1f} s; the SDK's own pause is 8 to 10"
    assert pair.state("orders") is State.HEALTHY
    assert not pair.events, "an idle link is no outage"
    bodies = [str(message) for message in await peek(pair.primary.connection_string, "orders")]
    assert bodies.count("second") == bodies.count("first")


async def test_the_broker_does_close_idle_links(
    brokers: tuple[BrokerProcess, BrokerProcess],
) -> None:
    """What the test above rests on, seen from the bare SDK: its link is gone."""
    world = World("asyncio", brokers[0].connection_string)
    async with world.sender("bare") as sender:
        await sender.send_messages(ServiceBusMessage("first"))
        link = sender._handler._link
        assert link.state.name == "ATTACHED"
        await asyncio.sleep(QUIET_S)
        await sender._handler._connection.listen(wait=0.5)
        assert link.state.name != "ATTACHED"
    await world.close()
