"""The edges of sending, on the wire: how soon an outage is known, what is refused while it lasts,
and that nothing is doubled by it. Both worlds, the SDK's own retries."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from azure.servicebus.management import ServiceBusAdministrationClient
from harness.brokers import KEY, BrokerProcess, certificate
from tests.integration.administrators import admin_port
from tests.pairs import Pair, backlog, peek
from tests.times import is_prompt

from twinbus.failover.states import State
from twinbus.lab.faults import FaultClient
from twinbus.paired.ping import CONTENT_TYPE

_NAMES = ("sized", "mute", "silent", "shut", "busy", "lone", "twice", "brim")
QUEUES: dict[str, dict[str, Any]] = {name: {} for name in _NAMES}
QUEUES["visits"] = QUEUES["calls"] = {"requires_session": True}
OPTIONS = (("--faults",), ("--faults",))
LONG_S = 300
MINUTE = timedelta(minutes=1)
DEFAULT_RETRIES = {"retry_total": 3}


@pytest.fixture
def faults(brokers: tuple[BrokerProcess, BrokerProcess]) -> Iterator[FaultClient]:
    """The primary's. All end with the test."""
    primary = brokers[0]
    client = FaultClient(primary.connection_string, f"http://localhost:{admin_port(primary)}")
    yield client
    client.clear()


async def refusal(call: Any) -> tuple[type, Any]:
    """What a send raised: the class, and the condition that the SDK knows it by."""
    with pytest.raises(ServiceBusError) as caught:
        await call
    return type(caught.value), caught.value._condition


async def start(faults: FaultClient, kind: str, entity: str, **settings: Any) -> None:
    settings.setdefault("seconds", LONG_S)
    await asyncio.to_thread(faults.start, kind, entity, **settings)


def runtime(pair: Pair, path: str) -> int:
    """How many messages wait there."""
    manager = ServiceBusAdministrationClient.from_connection_string(
        pair.secondary.connection_string, connection_verify=certificate(pair.secondary)
    )
    with manager:
        return int(manager.get_queue_runtime_properties(path).active_message_count or 0)


def elsewhere(connection_string: str) -> Any:
    """The primary as a client sees it that was told another way there."""
    return SimpleNamespace(connection_string=connection_string)


# -- what is refused


async def test_while_diverted_a_size_is_refused_as_the_healthy_entity_refuses_it(
    pair: Pair, faults: FaultClient
) -> None:
    await pair.open(primary_name=f"sized-{pair.kind}", ping_primary_interval=MINUTE)
    soon = datetime.now(UTC) + timedelta(hours=1)
    big = bytes(2_000_000)
    async with pair.sender("sized") as sender:

        async def refused() -> list[Any]:
            return [
                await refusal(sender.send_messages(ServiceBusMessage(big))),
                await refusal(sender.send_messages({"body": big})),
                await refusal(sender.send_messages([ServiceBusMessage(big)])),
                await refusal(sender.send_messages([ServiceBusMessage(bytes(100_000))] * 3)),
            ]

        healthy = await refused()
        assert (await refusal(sender.schedule_messages({"body": big}, soon)))[0] is (
            MessageSizeExceededError
        )
        await start(faults, "sends-refused", "sized")
        await sender.send_messages(ServiceBusMessage("fits"))
        assert pair.state("sized") is State.DIVERTED
        assert await refused() == healthy
        assert (await refusal(sender.schedule_messages({"body": big}, soon)))[0] is (
            MessageSizeExceededError
        )
    async with pair.sender("sized", batch_flush_interval=timedelta(milliseconds=1)) as sender:
        assert await refusal(sender.send_messages(ServiceBusMessage(big))) == healthy[0]
    path = f"sized-{pair.kind}/x-servicebus-transfer/0"
    assert len(await peek(pair.secondary.connection_string, path)) == 1


async def test_after_something_too_large_to_schedule_the_next_is_scheduled(pair: Pair) -> None:
    await pair.open()
    soon = datetime.now(UTC) + timedelta(hours=1)
    async with pair.sender("brim") as sender:
        for _ in range(2):
            with pytest.raises(MessageSizeExceededError):
                await sender.schedule_messages(ServiceBusMessage(bytes(262_000)), soon)
            (number,) = await sender.schedule_messages(ServiceBusMessage("x"), soon)
            await sender.cancel_scheduled_messages(number)


async def test_a_batch_that_the_sdk_filled_to_the_brim_is_taken_healthy_or_diverted(
    pair: Pair, faults: FaultClient
) -> None:
    await pair.open(primary_name=f"brim-{pair.kind}", ping_primary_interval=MINUTE)
    async with pair.sender("brim") as sender:

        async def send_full() -> int:
            batch = await sender.create_message_batch()
            with suppress(MessageSizeExceededError):
                while True:
                    batch.add_message(ServiceBusMessage(bytes(20), session_id="s"))
            await sender.send_messages(batch)
            return len(batch._messages)

        count = await send_full()
        await start(faults, "sends-refused", "brim")
        assert await send_full() == count
    assert pair.state("brim") is State.DIVERTED
    path = f"brim-{pair.kind}/x-servicebus-transfer/0"
    found = await asyncio.to_thread(runtime, pair, path)
    assert found == count


async def test_while_diverted_a_queue_known_for_its_sessions_is_sent_no_message_without(
    pair: Pair, faults: FaultClient
) -> None:
    await pair.open(primary_name=f"visits-{pair.kind}", ping_primary_interval=MINUTE)
    async with pair.sender("visits") as sender:
        healthy = await refusal(sender.send_messages(ServiceBusMessage("x")))
        await start(faults, "sends-refused", "visits")
        await sender.send_messages(ServiceBusMessage("fits", session_id="s"))
        assert pair.state("visits") is State.DIVERTED
        assert await refusal(sender.send_messages(ServiceBusMessage("x"))) == healthy
        ping = ServiceBusMessage("x", session_id="s", content_type=CONTENT_TYPE)
        with pytest.raises(ServiceBusError, match="content type of pings"):
            await sender.send_messages(ping)
    path = f"visits-{pair.kind}/x-servicebus-transfer/0"
    assert len(await peek(pair.secondary.connection_string, path)) == 1


async def test_a_session_received_from_a_queue_says_that_it_needs_sessions(
    pair: Pair, faults: FaultClient
) -> None:
    await pair.open(primary_name=f"calls-{pair.kind}", ping_primary_interval=MINUTE)
    async with pair.sender("calls") as sender:
        async with pair.receiver("calls", session_id="s"):
            pass
        with pytest.raises(ServiceBusError):
            async with pair.receiver("sized", session_id="s"):
                pass
        await start(faults, "sends-refused", "calls")
        await sender.send_messages(ServiceBusMessage("fits", session_id="s"))
        with pytest.raises(ServiceBusError, match=r"'calls' requires sessions"):
            await sender.send_messages(ServiceBusMessage("x"))
    assert pair.factory.entity_states() == {"calls": State.DIVERTED}
    assert not pair.factory.pairing.admission("sized").needs_session


# -- what is not doubled


async def test_what_is_scheduled_when_answers_are_lost_has_the_same_ids_in_both_places(
    pair: Pair, faults: FaultClient
) -> None:
    await pair.open(primary_name=f"twice-{pair.kind}")
    before = len(await peek(pair.primary.connection_string, "twice"))
    async with pair.sender("twice") as sender:
        await start(faults, "answers-lost", "twice")
        soon = datetime.now(UTC) + timedelta(hours=1)
        two = [{"body": "one"}, {"body": "two"}]
        assert len(await sender.schedule_messages(two, soon, timeout=6)) == 2
    await asyncio.to_thread(faults.clear)
    path = f"twice-{pair.kind}/x-servicebus-transfer/0"
    away = [each.message_id for each in await peek(pair.secondary.connection_string, path)]
    home = [each.message_id for each in await peek(pair.primary.connection_string, "twice")]
    assert len(away) == 2
    assert home[before:] == away


# -- what counts


async def test_time_outs_of_asyncio_divert_a_primary_that_says_nothing(
    brokers: tuple[BrokerProcess, BrokerProcess], faults: FaultClient
) -> None:
    pair = Pair("asyncio", *brokers)
    await pair.open(factory=DEFAULT_RETRIES, operation_timeout=MINUTE)
    try:
        async with pair.sender("mute") as sender:
            await sender.send_messages(ServiceBusMessage("before"))
            await start(faults, "no-answer", "mute")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sender.send_messages(ServiceBusMessage("lost")), 2)
            assert pair.state("mute") is State.DIVERTED
            await asyncio.wait_for(sender.send_messages(ServiceBusMessage("kept")), 5)
        assert "kept" in [str(each) for each in await backlog(pair)]
    finally:
        await pair.close()


async def test_a_time_out_of_the_callers_own_diverts_and_is_kept(pair: Pair) -> None:
    await pair.open(factory=DEFAULT_RETRIES, operation_timeout=MINUTE)
    pair.primary.suspend()
    try:
        began = time.monotonic()
        await pair.sender("silent").send_messages(ServiceBusMessage("kept"), timeout=4)
        assert is_prompt(began, 6)
        assert pair.state("silent") is State.DIVERTED
    finally:
        pair.primary.resume()


# -- how soon an outage is known: the SDK's default retries, an interval of zero


async def test_the_first_send_to_a_primary_that_says_nothing_takes_less_than_15_seconds(
    pair: Pair,
) -> None:
    await pair.open(factory=DEFAULT_RETRIES, operation_timeout=MINUTE)
    async with pair.sender("silent") as warm:
        await warm.send_messages(ServiceBusMessage("before"))
        pair.primary.suspend()
        try:
            began = time.monotonic()
            await asyncio.gather(
                warm.send_messages(ServiceBusMessage("x")),
                pair.sender("shut").send_messages(ServiceBusMessage("x")),
                pair.sender("sized").schedule_messages(ServiceBusMessage("x"), datetime.now(UTC)),
            )
            assert is_prompt(began, 15)
        finally:
            pair.primary.resume()
    assert set(pair.factory.entity_states().values()) == {State.DIVERTED}


async def test_the_first_send_to_a_port_that_refuses_takes_less_than_5_seconds(pair: Pair) -> None:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        port = taken.getsockname()[1]  # nobody listens there, and nobody else will
        real = pair.primary
        closed = real.connection_string.replace(f":{real.port}", f":{port}")
        pair.primary = elsewhere(closed)
        await pair.open(factory=DEFAULT_RETRIES, operation_timeout=MINUTE)
        began = time.monotonic()
        await asyncio.gather(
            pair.sender("silent").send_messages(ServiceBusMessage("x")),
            pair.sender("shut").schedule_messages(ServiceBusMessage("x"), datetime.now(UTC)),
        )
        assert is_prompt(began, 5)
    assert set(pair.factory.entity_states().values()) == {State.DIVERTED}


async def test_a_bad_key_is_raised_within_3_seconds(pair: Pair) -> None:
    pair.primary = elsewhere(pair.primary.connection_string.replace(KEY, "d3Jvbmc="))
    await pair.open(factory=DEFAULT_RETRIES, failover_interval=MINUTE)
    began = time.monotonic()
    with pytest.raises(ServiceBusAuthenticationError):
        await pair.sender("silent").send_messages(ServiceBusMessage("x"))
    assert is_prompt(began, 3)
    assert pair.state("silent") is State.HEALTHY


# -- a busy server


async def test_a_receivers_requests_and_an_unpaired_sender_leave_a_busy_server_alone_too(
    pair: Pair, faults: FaultClient
) -> None:
    await pair.open(pair=False, factory=DEFAULT_RETRIES)
    async with pair.sender("busy") as sender, pair.receiver("busy") as receiver:
        await sender.send_messages(ServiceBusMessage("before"))
        await start(faults, "throttling", "busy", seconds=4)
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(ServiceBusMessage("in a hurry"), timeout=5)
        began = time.monotonic()
        await asyncio.gather(
            sender.send_messages(ServiceBusMessage("patient")), receiver.peek_messages(1)
        )
        assert 10 <= time.monotonic() - began < 25
