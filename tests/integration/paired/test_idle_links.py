"""A sender that was quiet for longer than the broker keeps an idle link: both worlds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from azure.servicebus import ServiceBusMessage
from harness.brokers import BrokerProcess
from tests.pairs import Pair, peek
from tests.worlds import World

from twinbus.failover.states import State

IDLE_S = 2
# The broker looks every two seconds.
QUIET_S = IDLE_S + 4


@pytest.fixture(scope="module")
def brokers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """The primary closes a link after two idle seconds, as Service Bus does after ten minutes."""
    primary = BrokerProcess(
        tmp_path_factory.mktemp("primary"),
        {"orders": {}, "bare": {}},
        extra=("--idle-link-s", str(IDLE_S), "--verbose"),
    )
    secondary = BrokerProcess(tmp_path_factory.mktemp("secondary"), {})
    primary.start()
    secondary.start()
    yield primary, secondary
    for process in (primary, secondary):
        process.close()
        assert "Traceback" not in process.log(), process.log()


@pytest.fixture(params=["asyncio", "blocking"])
async def pair(
    request: pytest.FixtureRequest, brokers: tuple[BrokerProcess, BrokerProcess]
) -> AsyncIterator[Pair]:
    pair = await Pair(request.param, *brokers).open()
    yield pair
    await pair.close()


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
