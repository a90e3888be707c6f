"""The paired sender against real brokers in trouble, each kind of it: both worlds.

What the unit tests say of a fake link is shown here on the wire.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from harness.brokers import BrokerProcess
from tests.integration.administrators import admin_port
from tests.pairs import SECOND, Pair, backlog, peek
from tests.times import is_prompt

from twinbus import BacklogError
from twinbus.failover.states import State
from twinbus.lab.faults import FaultClient
from twinbus.paired.aio import pinger as aio_pinger
from twinbus.paired.blocking import pinger_blocking as blocking_pinger
from twinbus.paired.events import BacklogQueueOut, Diverted, Pinged, Suspected

_NAMES = ("busy", "refused", "other", "mute", "failing", "moving", "far", "gone", "all")
QUEUES: dict[str, dict[str, Any]] = {name: {} for name in _NAMES}
QUEUES["lost"] = {"requires_duplicate_detection": True}
OPTIONS = (("--faults",), ("--faults",))
LONG_S = 300


def faults_of(process: BrokerProcess) -> FaultClient:
    return FaultClient(process.connection_string, f"http://localhost:{admin_port(process)}")


@pytest.fixture
def faults(brokers: tuple[BrokerProcess, BrokerProcess]) -> FaultClient:
    """The primary's."""
    return faults_of(brokers[0])


@pytest.fixture
async def pair(pair: Pair, brokers: tuple[BrokerProcess, BrokerProcess]) -> AsyncIterator[Pair]:
    """All faults end with the test."""
    yield pair
    for process in brokers:
        await asyncio.to_thread(faults_of(process).clear)


async def start(faults: FaultClient, kind: str, entity: str | None, **settings: Any) -> None:
    settings.setdefault("seconds", LONG_S)
    await asyncio.to_thread(faults.start, kind, entity, **settings)


async def clear(faults: FaultClient) -> None:
    await asyncio.to_thread(faults.clear)


def message() -> tuple[str, ServiceBusMessage]:
    """One that no other test has sent."""
    name = uuid4().hex
    return name, ServiceBusMessage(name, message_id=name)


async def ids(connection_string: str, queue: str) -> list[str]:
    return [each.message_id for each in await peek(connection_string, queue, 250)]


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def waiting(pair: Pair) -> list[str]:
    """The ids in the backlog."""
    return [each.message_id for each in await backlog(pair)]


async def test_a_busy_server_is_left_alone_for_ten_seconds_and_then_gets_the_message(
    pair: Pair, faults: FaultClient
) -> None:
    """Without failover, and without the SDK's quicker retries."""
    await pair.open(factory={"retry_total": 3}, operation_timeout=timedelta(seconds=60))
    name, sent = message()
    async with pair.sender("busy") as sender:
        await start(faults, "throttling", "busy", seconds=4)
        began = time.monotonic()
        await sender.send_messages(sent)
        assert 10 <= time.monotonic() - began < 20
    assert name in await ids(pair.primary.connection_string, "busy")
    assert pair.state("busy") is State.HEALTHY
    assert pair.seen(Suspected) == []


async def test_busy_is_raised_to_a_caller_who_has_no_ten_seconds(
    pair: Pair, faults: FaultClient
) -> None:
    await pair.open()
    async with pair.sender("busy") as sender:
        await start(faults, "throttling", "busy")
        began = time.monotonic()
        with pytest.raises(ServiceBusServerBusyError, match="50009"):
            await sender.send_messages(message()[1], timeout=5)
        assert is_prompt(began, 5)
    assert pair.state("busy") is State.HEALTHY


async def test_unauthorized_is_raised_and_nothing_is_diverted(
    pair: Pair, faults: FaultClient
) -> None:
    await pair.open()
    name, sent = message()
    async with pair.sender("refused") as sender:
        await start(faults, "sends-refused", "refused", condition="amqp:unauthorized-access")
        with pytest.raises(ServiceBusAuthorizationError):
            await sender.send_messages(sent)
    assert pair.state("refused") is State.HEALTHY
    assert name not in await waiting(pair)


@pytest.mark.parametrize(
    "condition",
    [
        "amqp:internal-error",
        "amqp:resource-limit-exceeded",
        "com.microsoft:entity-disabled",
        "com.microsoft:timeout",
    ],
)
async def test_an_entity_that_refuses_is_diverted_alone_and_comes_home_by_ping(
    pair: Pair, faults: FaultClient, condition: str
) -> None:
    await pair.open()
    away, home = message(), message()
    async with pair.sender("refused") as sender, pair.sender("other") as other:
        await start(faults, "sends-refused", "refused", condition=condition)
        await sender.send_messages(away[1])
        await other.send_messages(message()[1])
        assert pair.state("refused") is State.DIVERTED
        assert pair.state("other") is State.HEALTHY
        await until(lambda: bool(pair.seen(Pinged)))
        assert not any(event.succeeded for event in pair.seen(Pinged)), "pings are refused as well"
        await clear(faults)
        await pair.until("refused", State.HEALTHY)
        await sender.send_messages(home[1])
    assert away[0] in await waiting(pair)
    there = await ids(pair.primary.connection_string, "refused")
    assert (away[0] in there, home[0] in there) == (False, True)


async def test_within_the_interval_the_failure_is_the_callers_and_a_success_clears_it(
    pair: Pair, faults: FaultClient
) -> None:
    await pair.open(failover_interval=timedelta(minutes=1))
    async with pair.sender("refused") as sender:
        await start(faults, "sends-refused", "refused")
        with pytest.raises(ServiceBusError, match="sends-refused"):
            await sender.send_messages(message()[1])
        assert pair.state("refused") is State.SUSPECT
        await clear(faults)
        await sender.send_messages(message()[1])
        assert pair.state("refused") is State.HEALTHY


async def test_an_answer_lost_after_the_commit_loses_nothing_and_the_copy_is_a_duplicate(
    pair: Pair, faults: FaultClient
) -> None:
    """The message is in both places, under one id; when it comes home, the destination drops it."""
    await pair.open()
    name, sent = message()
    async with pair.sender("lost") as sender:
        await start(faults, "answers-lost", "lost")
        await sender.send_messages(sent, timeout=6)
        assert pair.state("lost") is State.DIVERTED
        assert name in await waiting(pair)
        await clear(faults)
        assert (await ids(pair.primary.connection_string, "lost")).count(name) == 1
        await pair.until("lost", State.HEALTHY)
        await sender.send_messages(ServiceBusMessage(name, message_id=name))
        assert (await ids(pair.primary.connection_string, "lost")).count(name) == 1


async def test_no_answer_is_a_time_out_and_diverts_in_time(pair: Pair, faults: FaultClient) -> None:
    await pair.open()
    name, sent = message()
    async with pair.sender("mute") as sender:
        await start(faults, "no-answer", "mute")
        began = time.monotonic()
        await sender.send_messages(sent, timeout=8)
        assert is_prompt(began, 9)
        await clear(faults)
    assert name in await waiting(pair)
    assert name not in await ids(pair.primary.connection_string, "mute")


async def test_closing_does_not_wait_for_a_ping_that_hangs(
    pair: Pair, faults: FaultClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinging = threading.Event()
    for pinger in (blocking_pinger.Pinger, aio_pinger.Pinger):

        def noted(self: Any, path: str, ping: Any = pinger.ping) -> Any:
            pinging.set()
            return ping(self, path)

        monkeypatch.setattr(pinger, "ping", noted)
    await pair.open()
    before = set(threading.enumerate())
    async with pair.sender("mute") as sender:
        await start(faults, "no-answer", "mute")
        await sender.send_messages(message()[1], timeout=8)
    assert await asyncio.to_thread(pinging.wait, 60), "a ping was sent"
    await asyncio.sleep(0.5)  # so that it is on its way, and not still being prepared
    began = time.monotonic()
    await pair.call(pair.factory.close)
    assert is_prompt(began, 3), "a ping may take ten seconds"
    left = {each.name for each in set(threading.enumerate()) - before}
    assert not [name for name in left if name.startswith("twinbus ")], left


async def test_a_store_that_fails_on_the_primary_diverts(pair: Pair, faults: FaultClient) -> None:
    await pair.open()
    name, sent = message()
    async with pair.sender("failing") as sender:
        await start(faults, "failing-store", None)
        await sender.send_messages(sent)
        await clear(faults)
        await pair.until("failing", State.HEALTHY)
    assert name in await waiting(pair)
    assert name not in await ids(pair.primary.connection_string, "failing")


async def test_a_node_that_restarts_is_outlasted_by_the_sdks_retries(
    pair: Pair, faults: FaultClient
) -> None:
    retries = {"retry_total": 8, "retry_backoff_max": 2}
    await pair.open(factory=retries, operation_timeout=timedelta(seconds=60))
    name, sent = message()
    async with pair.sender("moving") as sender:
        await sender.send_messages(message()[1])
        await start(faults, "node-restart", "moving", seconds=2)
        await sender.send_messages(sent)
    assert name in await ids(pair.primary.connection_string, "moving")
    assert pair.seen(Diverted) == []


@pytest.mark.quick
async def test_an_unreachable_entity_is_diverted(pair: Pair, faults: FaultClient) -> None:
    await pair.open()
    name, sent = message()
    await start(faults, "unreachable", "far")
    async with pair.sender("far") as sender:
        await sender.send_messages(sent)
        assert pair.state("far") is State.DIVERTED
    assert name in await waiting(pair)


async def test_a_namespace_that_is_gone_is_diverted_and_comes_home_by_itself(
    pair: Pair, faults: FaultClient
) -> None:
    await pair.open()
    away, home = message(), message()
    async with pair.sender("gone") as sender:
        await sender.send_messages(message()[1])
        await start(faults, "namespace-gone", None, seconds=3)
        await sender.send_messages(away[1])
        assert pair.state("gone") is State.DIVERTED
        await pair.until("gone", State.HEALTHY, within_s=40)
        await sender.send_messages(home[1])
    assert away[0] in await waiting(pair)
    assert home[0] in await ids(pair.primary.connection_string, "gone")


async def test_a_backlog_queue_in_trouble_leaves_the_rotation_and_none_left_is_an_error(
    pair: Pair, faults: FaultClient
) -> None:
    prefix = f"rota-{uuid4().hex[:8]}"
    queues = [f"{prefix}/x-servicebus-transfer/{number}" for number in range(2)]
    await pair.open(backlog_queue_count=2, primary_name=prefix, ping_primary_interval=SECOND * 60)
    away = faults_of(pair.secondary)
    await start(faults, "sends-refused", "all")
    await start(away, "sends-refused", queues[0])
    for _ in range(4):
        async with pair.sender("all") as sender:
            inner = getattr(sender, "_inner", sender)
            inner._join().sticky = queues[0]
            await sender.send_messages(message()[1])
    assert [event.queue for event in pair.seen(BacklogQueueOut)] == [queues[0]]
    assert len(await peek(pair.secondary.connection_string, queues[1])) == 4
    await start(away, "sends-refused", queues[1])
    async with pair.sender("all") as sender:
        with pytest.raises(BacklogError) as caught:
            await sender.send_messages(message()[1])
    assert sorted(caught.value.errors) == queues
    assert "sends-refused" in str(caught.value)
