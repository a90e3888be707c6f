"""Every fault, with the real SDK seeing the error that the documents name for it; and the page over
which faults are started, with what is said of bad input."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from azure.core.exceptions import HttpResponseError, ServiceResponseError
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from harness.brokers import BrokerProcess, get_json
from tests.integration.administrators import (
    Administrator,
    admin_port,
    ask,
    publish,
    subscription_receiver,
    token,
)
from tests.times import is_prompt
from tests.worlds import World, receive_some

from twinbus.lab.faults import FaultClient, FaultError

_KINDS = ("asyncio", "blocking")
_NAMES = (
    *("busy", "rate", "refused", "unreceived", "far", "mute", "lost", "slow", "failing"),
    *("restarting", "late", "cut", "gone", "shut", "condition", "eu", "unheld"),
)
_SETTINGS: dict[str, dict[str, Any]] = {name: {} for name in _NAMES}
_SETTINGS["dropping"] = {"requires_duplicate_detection": True}
_SETTINGS["parted"] = {"enable_partitioning": True}
_SETTINGS["prompt"] = {}
_SETTINGS["visits"] = {"requires_session": True}
QUEUES = {f"{name}-{kind}": settings for name, settings in _SETTINGS.items() for kind in _KINDS}
QUEUES["other"] = {}
QUEUES["busy-asyncio/eu"] = {}
EXTRA = ("--faults",)
# Long enough for any machine; a test ends its faults itself.
LONG_S = 300


def client(broker: BrokerProcess) -> FaultClient:
    """At the admin port, which answers whatever has become of the other."""
    return FaultClient(broker.connection_string, f"http://localhost:{admin_port(broker)}")


@pytest.fixture
def faults(broker: BrokerProcess) -> Iterator[FaultClient]:
    """None is on before, and none after."""
    faults = client(broker)
    yield faults
    faults.clear()
    assert faults.list() == []


@pytest.fixture(params=_KINDS)
async def world(
    request: pytest.FixtureRequest, broker: BrokerProcess, faults: FaultClient
) -> AsyncIterator[World]:
    world = World(request.param, broker.connection_string)
    yield world
    await asyncio.to_thread(faults.clear)
    await world.close()


async def start(faults: FaultClient, kind: str, entity: str | None, **settings: Any) -> Any:
    settings.setdefault("seconds", LONG_S)
    return await asyncio.to_thread(faults.start, kind, entity, **settings)


async def clear(faults: FaultClient) -> None:
    await asyncio.to_thread(faults.clear)


async def until_cleared(faults: FaultClient) -> None:
    """Until a fault has ended by itself."""
    end = time.monotonic() + 30
    while await asyncio.to_thread(faults.list):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def bodies(world: World, queue: str) -> list[str]:
    return [str(each) for each in await world.peek(queue)]


# --- throttling -----------------------------------------------------------------------------


async def test_throttling_says_that_the_server_is_busy(world: World, faults: FaultClient) -> None:
    queue = f"busy-{world.kind}"
    async with world.sender(queue) as sender, world.receiver(queue) as receiver:
        await start(faults, "throttling", queue)
        with pytest.raises(ServiceBusServerBusyError, match="50009"):
            await sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(ServiceBusServerBusyError, match="50009"):
            await sender.schedule_messages(ServiceBusMessage("x"), datetime.now(UTC))
        with pytest.raises(ServiceBusServerBusyError, match="50009"):
            await receiver.peek_messages()
        with pytest.raises(ServiceBusServerBusyError, match="50009"):
            await world.receive(queue)
        assert await receiver.receive_messages(1, max_wait_time=0.5) == []
        await world.send("other", ServiceBusMessage("another entity is well"))
        await world.send("busy-asyncio/eu", ServiceBusMessage("and so is one with a longer path"))
        await clear(faults)
        await sender.send_messages(ServiceBusMessage("after"))
        (message,) = await receive_some(receiver, 1)
        assert str(message) == "after"
        await receiver.complete_message(message)


async def test_a_rate_of_credits_lets_some_through(world: World, faults: FaultClient) -> None:
    queue = f"rate-{world.kind}"
    async with world.sender(queue) as sender:
        await start(faults, "throttling", queue, rate=3)
        results = []
        for _ in range(60):
            try:
                await sender.send_messages(ServiceBusMessage("x"))
                results.append(True)
            except ServiceBusServerBusyError:
                results.append(False)
            if results.count(False) >= 3:
                break
        assert results[:3] == [True] * 3, "a second's worth is there at the start"
        assert False in results
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages([ServiceBusMessage("x")] * 4)
    await clear(faults)  # or the peek may be told that the server is busy
    assert len(await world.peek(queue)) == results.count(True)


async def test_a_partitioned_queue_is_throttled_in_some_fragments_alone(
    world: World, faults: FaultClient
) -> None:
    """Always the same ones, so that a key which is refused is refused again."""
    queue = f"parted-{world.kind}"
    async with world.sender(queue) as sender, world.receiver(queue) as receiver:
        await start(faults, "throttling", queue)

        async def is_taken(**where: Any) -> bool:
            try:
                await sender.send_messages(ServiceBusMessage("x", **where))
            except ServiceBusServerBusyError:
                return False
            return True

        taken = [await is_taken(partition_key=str(key)) for key in range(32)]
        assert 16 <= taken.count(True) < 32
        assert [await is_taken(partition_key=str(key)) for key in range(32)] == taken
        by_id = [await is_taken(message_id=str(key)) for key in range(32)]
        assert by_id == taken, "where there is no key, the message's id is one"
        found = await receive_some(receiver, 3 * taken.count(True))
        assert len(found) == 3 * taken.count(True)
        for message in found:
            await receiver.complete_message(message)


# --- the documents' four ways -----------------------------------------------------------------


async def test_sends_refused_is_being_unable_to_send(world: World, faults: FaultClient) -> None:
    queue = f"refused-{world.kind}"
    await world.send(queue, ServiceBusMessage("before"))
    async with world.sender(queue) as sender, world.receiver(queue) as receiver:
        await start(faults, "sends-refused", queue)
        with pytest.raises(ServiceBusError, match="'sends-refused' was started"):
            await sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(ServiceBusError, match="'sends-refused' was started"):
            await world.send(queue, ServiceBusMessage("by a new link"))
        with pytest.raises(ServiceBusError, match="'sends-refused' was started"):
            await sender.schedule_messages(ServiceBusMessage("x"), datetime.now(UTC))
        (message,) = await receiver.receive_messages(1, max_wait_time=5)
        await receiver.complete_message(message)
    assert await world.peek(queue) == []


@pytest.mark.parametrize(
    ("condition", "error"),
    [
        ("amqp:unauthorized-access", ServiceBusAuthorizationError),
        ("amqp:not-found", MessagingEntityNotFoundError),
        ("amqp:resource-limit-exceeded", ServiceBusQuotaExceededError),
        ("com.microsoft:entity-disabled", MessagingEntityDisabledError),
        ("com.microsoft:timeout", OperationTimeoutError),
        ("com.microsoft:server-busy", ServiceBusServerBusyError),
        ("amqp:internal-error", ServiceBusError),
    ],
)
@pytest.mark.quick
async def test_the_refusal_is_the_error_that_is_asked_for(
    world: World, faults: FaultClient, condition: str, error: type[Exception]
) -> None:
    queue = f"condition-{world.kind}"
    async with world.sender(queue) as sender:
        await start(faults, "sends-refused", queue, condition=condition)
        with pytest.raises(error):
            await sender.send_messages(ServiceBusMessage("x"))
    await start(faults, "receives-refused", queue, condition=condition)
    with pytest.raises(error):
        await world.receive(queue)


async def test_receives_refused_is_being_unable_to_receive(
    world: World, faults: FaultClient
) -> None:
    queue = f"unreceived-{world.kind}"
    async with world.receiver(queue) as receiver:
        await start(faults, "receives-refused", queue)
        await world.send(queue, ServiceBusMessage("taken in all the same"))
        with pytest.raises(ServiceBusError, match="'receives-refused' was started"):
            await receiver.receive_messages(1, max_wait_time=10)
        with pytest.raises(ServiceBusError, match="'receives-refused' was started"):
            await world.receive(queue)
    await clear(faults)
    (message,) = await world.receive(queue)
    assert str(message) == "taken in all the same"


async def test_management_refused_is_being_unable_to_manage(
    world: World, broker: BrokerProcess, faults: FaultClient
) -> None:
    admin = Administrator(world.kind, broker)
    await start(faults, "management-refused", None)
    for method, *arguments in (
        (admin.create_queue, f"new-{world.kind}"),
        (admin.get_queue, "other"),
        (admin.list_queues,),
        (admin.delete_queue, "other"),
    ):
        with pytest.raises(HttpResponseError, match="'management-refused' was started") as caught:
            await method(*arguments)
        assert caught.value.status_code == 503
    await world.send("other", ServiceBusMessage("messages come and go"))
    await clear(faults)
    await start(faults, "management-refused", "other")
    with pytest.raises(HttpResponseError):
        await admin.get_queue("other")
    assert (await admin.get_queue(f"far-{world.kind}")).name == f"far-{world.kind}"
    await admin.close()


async def test_an_unreachable_entity_ends_its_links_and_refuses_new_ones(
    world: World, faults: FaultClient
) -> None:
    queue = f"far-{world.kind}"
    async with world.sender(queue) as sender, world.sender("other") as other:
        await sender.send_messages(ServiceBusMessage("before"))
        async with world.receiver(queue) as receiver:
            await start(faults, "unreachable", queue)
            with pytest.raises(ServiceBusConnectionError):
                await sender.send_messages(ServiceBusMessage("x"))
            with pytest.raises(ServiceBusConnectionError):
                await receiver.receive_messages(1, max_wait_time=5)
            with pytest.raises(ServiceBusError):
                await world.send(queue, ServiceBusMessage("x"))
            await other.send_messages(ServiceBusMessage("another is well"))
        await clear(faults)
        await sender.send_messages(ServiceBusMessage("after"))
    assert await bodies(world, queue) == ["before", "after"]


async def test_an_unreachable_namespace_cuts_everybody_off(
    world: World, broker: BrokerProcess, faults: FaultClient
) -> None:
    queue = f"shut-{world.kind}"
    async with world.sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        await start(faults, "unreachable", None)
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("x"), timeout=20)
        with pytest.raises(FaultError, match="give its admin address"):
            await asyncio.to_thread(FaultClient(broker.connection_string).list)
        await clear(faults)
        await sender.send_messages(ServiceBusMessage("after"))
    assert await bodies(world, queue) == ["before", "after"]


# --- operations that time out -----------------------------------------------------------------


async def test_without_an_answer_operations_time_out_and_nothing_was_done(
    world: World, faults: FaultClient
) -> None:
    queue = f"mute-{world.kind}"
    await world.send(queue, ServiceBusMessage("before"))
    async with world.sender(queue) as sender, world.receiver(queue) as receiver:
        await start(faults, "no-answer", queue)
        with pytest.raises(OperationTimeoutError):
            await sender.send_messages(ServiceBusMessage("x"), timeout=1)
        with pytest.raises(OperationTimeoutError):
            await receiver.peek_messages(timeout=1)
        assert await receiver.receive_messages(1, max_wait_time=1) == []
        await clear(faults)
        (message,) = await receive_some(receiver, 1)
        assert str(message) == "before"
        await receiver.complete_message(message)
    assert await world.peek(queue) == []


async def test_a_receiver_that_waits_while_there_is_no_answer_is_served_afterwards(
    world: World, faults: FaultClient
) -> None:
    queue = f"unheld-{world.kind}"
    async with world.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as one:
        assert await one.receive_messages(1, max_wait_time=0.5) == []
        await start(faults, "no-answer", queue, seconds=2)
        waiting = asyncio.create_task(one.receive_messages(1, max_wait_time=60))
        await until_cleared(faults)
        await world.send(queue, ServiceBusMessage("after"))
        assert [str(each) for each in await waiting] == ["after"]


async def test_more_sends_than_a_link_has_credit_for_do_not_starve_it(
    broker: BrokerProcess, faults: FaultClient
) -> None:
    """Those that were refused have used up credit too."""
    world = World("asyncio", broker.connection_string)
    queue = "busy-asyncio"
    async with world.sender(queue) as sender:
        await start(faults, "throttling", queue)
        for _ in range(1_100):
            with pytest.raises(ServiceBusServerBusyError):
                await sender.send_messages(ServiceBusMessage("x"))
        await clear(faults)
        await sender.send_messages(ServiceBusMessage("after"), timeout=20)
    assert len(await world.receive(queue)) == 1
    await world.close()


# --- answers lost after the commit ------------------------------------------------------------


async def test_a_lost_answer_leaves_the_message_stored_and_a_second_send_a_duplicate(
    world: World, faults: FaultClient
) -> None:
    queue, plain = f"dropping-{world.kind}", f"lost-{world.kind}"
    for path in (queue, plain):
        await start(faults, "answers-lost", path)
        async with world.sender(path) as sender:
            with pytest.raises(OperationTimeoutError):
                await sender.send_messages(ServiceBusMessage("x", message_id="1"), timeout=1)
    await clear(faults)
    for path in (queue, plain):
        await world.send(path, ServiceBusMessage("x", message_id="1"))
    assert len(await world.peek(queue)) == 1
    assert len(await world.peek(plain)) == 2


async def test_a_lost_answer_to_a_settlement_leaves_the_message_settled(
    world: World, faults: FaultClient
) -> None:
    queue = f"unheld-{world.kind}"
    await world.send(queue, ServiceBusMessage("x"))
    async with world.receiver(queue) as receiver:
        (message,) = await receive_some(receiver, 1)
        await start(faults, "answers-lost", queue)
        with pytest.raises(OperationTimeoutError):
            await receiver.peek_messages(timeout=1)
        settling = asyncio.create_task(receiver.complete_message(message))
        await asyncio.sleep(1)
        assert not settling.done()
        await clear(faults)
        assert await world.peek(queue) == [], "it is gone, though nobody was told"
        settling.cancel()
        await asyncio.gather(settling, return_exceptions=True)


# --- the store --------------------------------------------------------------------------------


async def test_a_slow_store_makes_a_send_slow(world: World, faults: FaultClient) -> None:
    queue = f"slow-{world.kind}"
    async with world.sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("quick"))
        await start(faults, "slow-store", None, delay_s=1.5)
        began = time.monotonic()
        await sender.send_messages(ServiceBusMessage("slow"), timeout=30)
        assert time.monotonic() - began >= 1.5
        with pytest.raises(OperationTimeoutError):
            await sender.send_messages(ServiceBusMessage("too slow"), timeout=0.5)
    await clear(faults)
    assert (await bodies(world, queue))[:2] == ["quick", "slow"]


async def test_a_failing_store_refuses_and_stores_nothing(
    world: World, broker: BrokerProcess, faults: FaultClient
) -> None:
    queue = f"failing-{world.kind}"
    async with world.sender(queue) as sender, world.receiver(queue) as receiver:
        await sender.send_messages(ServiceBusMessage("before"))
        (message,) = await receive_some(receiver, 1)
        await start(faults, "failing-store", None)
        with pytest.raises(ServiceBusError, match="Nothing was changed; try again"):
            await sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(ServiceBusError):
            await receiver.complete_message(message)
        admin = Administrator(world.kind, broker)
        with pytest.raises(HttpResponseError, match="failing-store"):
            await admin.create_queue(f"never-{world.kind}")
        await admin.close()
    await clear(faults)
    assert await bodies(world, queue) == ["before"]


# --- the node behind an entity ----------------------------------------------------------------


async def test_a_node_that_restarts_detaches_loses_locks_and_is_back_by_itself(
    world: World, faults: FaultClient
) -> None:
    queue = f"restarting-{world.kind}"
    async with world.sender(queue) as sender, world.receiver(queue) as receiver:
        await sender.send_messages(ServiceBusMessage("locked"))
        (message,) = await receive_some(receiver, 1)
        await start(faults, "node-restart", queue, seconds=3)
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(OperationTimeoutError):
            await world.send(queue, ServiceBusMessage("x"))
        await until_cleared(faults)
        await sender.send_messages(ServiceBusMessage("after"))
        with pytest.raises(MessageLockLostError):
            await receiver.complete_message(message)
    again = await world.receive(queue, 2)
    assert [(str(each), each.delivery_count) for each in again] == [("locked", 0), ("after", 0)]


async def test_the_sdks_own_retries_outlast_a_node_that_restarts(
    broker: BrokerProcess, faults: FaultClient
) -> None:
    """Service Bus contains a mitigation for this in the form of automated client retry logic."""
    patient = World("asyncio", broker.connection_string, retry_total=8, retry_backoff_max=2)
    async with patient.sender("restarting-asyncio") as sender:
        await sender.send_messages(ServiceBusMessage("x"))
        await start(faults, "node-restart", "restarting-asyncio", seconds=2)
        await sender.send_messages(ServiceBusMessage("y"))
    assert len(await patient.receive("restarting-asyncio", 2)) == 2
    await patient.close()


async def test_a_session_is_lost_with_its_node(world: World, faults: FaultClient) -> None:
    queue = f"visits-{world.kind}"
    async with world.receiver(queue, session_id="s") as receiver:
        await start(faults, "node-restart", queue, seconds=1)
        with pytest.raises(ServiceBusError):
            await receiver.receive_messages(1, max_wait_time=10)
    await until_cleared(faults)
    await world.send(queue, ServiceBusMessage("x", session_id="s"))
    assert len(await world.receive(queue, session_id="s")) == 1


# --- the documented mitigation ----------------------------------------------------------------


async def test_store_and_forward_accepts_now_and_shows_the_message_later(
    world: World, faults: FaultClient
) -> None:
    queue = f"late-{world.kind}"
    await start(faults, "store-and-forward", queue, delay_s=3)
    async with world.sender(queue) as sender, world.receiver(queue) as receiver:
        began = time.monotonic()
        await sender.send_messages([ServiceBusMessage("late 1"), ServiceBusMessage("late 2")])
        assert is_prompt(began, 3)
        await clear(faults)
        await sender.send_messages(ServiceBusMessage("prompt"))
        found = await receive_some(receiver, 3, within_s=30)
        assert [str(each) for each in found] == ["prompt", "late 1", "late 2"]
        assert time.monotonic() - began >= 3
        for each in found:
            await receiver.complete_message(each)


async def test_a_message_may_take_fifteen_minutes_to_appear_while_other_entities_are_prompt(
    world: World, faults: FaultClient
) -> None:
    queue = f"late-{world.kind}"
    began = datetime.now(UTC)
    await start(faults, "store-and-forward", queue)
    await world.send(queue, ServiceBusMessage("in a quarter of an hour"))
    await world.send(f"prompt-{world.kind}", ServiceBusMessage("now"))
    (late,) = await world.peek(queue)
    (prompt,) = await world.receive(f"prompt-{world.kind}")
    assert str(prompt) == "now"
    assert late.scheduled_enqueue_time_utc is not None
    waits = late.scheduled_enqueue_time_utc - began
    assert timedelta(minutes=15) - timedelta(milliseconds=1) <= waits < timedelta(minutes=16)
    async with world.sender(queue) as sender:
        await sender.cancel_scheduled_messages(late.sequence_number)


# --- connections and the namespace ------------------------------------------------------------


async def test_connections_are_cut_and_cut_again(world: World, faults: FaultClient) -> None:
    queue = f"cut-{world.kind}"
    async with world.sender(queue) as sender, world.sender("other") as other:
        await sender.send_messages(ServiceBusMessage("before"))
        await other.send_messages(ServiceBusMessage("before"))
        await start(faults, "connections-cut", queue, every_s=0.5)
        with pytest.raises(ServiceBusError) as caught:
            await sender.send_messages(ServiceBusMessage("x"))
        assert isinstance(caught.value, ServiceBusConnectionError)
        await other.send_messages(ServiceBusMessage("its own connection"))
        await asyncio.sleep(1)
        await clear(faults)
        await sender.send_messages(ServiceBusMessage("after"))
    found = await bodies(world, queue)
    assert (found[0], found[-1]) == ("before", "after")


async def test_a_namespace_that_is_gone_comes_back_with_everything_in_it(
    world: World, broker: BrokerProcess, faults: FaultClient
) -> None:
    queue = f"gone-{world.kind}"
    async with world.sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        await start(faults, "namespace-gone", None, seconds=3)
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("x"), timeout=2)
        (fault,) = await asyncio.to_thread(faults.list)
        assert fault.kind == "namespace-gone"
        assert ask(broker, "GET", "other", plain=True).status == 503
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("localhost", broker.port)
        await until_cleared(faults)
        await sender.send_messages(ServiceBusMessage("after"))
    assert await bodies(world, queue) == ["before", "after"]


async def test_a_gone_namespace_can_be_called_back(world: World, faults: FaultClient) -> None:
    await start(faults, "namespace-gone", None)
    await clear(faults)
    await world.send(f"gone-{world.kind}", ServiceBusMessage("at once"))


# --- topics -----------------------------------------------------------------------------------


async def test_a_fault_of_a_subscription_is_not_its_topics(
    world: World, broker: BrokerProcess, faults: FaultClient
) -> None:
    topic = f"news-{world.kind}-{uuid4().hex[:6]}"
    admin = Administrator(world.kind, broker)
    await admin.create_topic(topic)
    for name in ("one", "two"):
        await admin.create_subscription(topic, name)
    await admin.close()
    await start(faults, "receives-refused", f"{topic}/subscriptions/ONE")
    await publish(world, topic, ServiceBusMessage("x"))
    with pytest.raises(ServiceBusError, match="receives-refused"):
        async with subscription_receiver(world, topic, "one") as receiver:
            await receiver.receive_messages(1, max_wait_time=5)
    async with subscription_receiver(world, topic, "two") as receiver:
        assert len(await receive_some(receiver, 1)) == 1
    await clear(faults)
    await start(faults, "unreachable", topic)
    with pytest.raises(ServiceBusConnectionError):
        await publish(world, topic, ServiceBusMessage("y"))
    with pytest.raises(ServiceBusConnectionError):
        async with subscription_receiver(world, topic, "two") as receiver:
            await receiver.receive_messages(1, max_wait_time=5)


# --- management over HTTP ---------------------------------------------------------------------


async def test_management_that_is_not_answered_is_answered_when_the_fault_is_over(
    world: World, broker: BrokerProcess, faults: FaultClient
) -> None:
    for kind in ("no-answer", "answers-lost"):
        name = f"{kind}-{world.kind}"
        await start(faults, kind, None)
        quick = Administrator(world.kind, broker, read_timeout=1)
        with pytest.raises((ServiceResponseError, HttpResponseError)):
            await quick.create_queue(name)
        await quick.close()
        await clear(faults)
    admin = Administrator(world.kind, broker)
    assert (await admin.get_queue(f"answers-lost-{world.kind}")).name.startswith("answers")
    await admin.close()


async def test_management_is_throttled_at_ten_credits(
    world: World, broker: BrokerProcess, faults: FaultClient
) -> None:
    admin = Administrator(world.kind, broker)
    await start(faults, "throttling", None, rate=9)
    with pytest.raises(HttpResponseError, match="50009") as caught:
        await admin.get_queue("other")
    assert caught.value.status_code == 429
    await clear(faults)
    await start(faults, "throttling", None, rate=10)
    assert (await admin.get_queue("other")).name == "other"
    await admin.close()


# --- starting, listing, clearing ---------------------------------------------------------------


def test_a_fault_ends_by_itself(faults: FaultClient) -> None:
    fault = faults.start("throttling", "other", seconds=0.5)
    assert 0 < fault.seconds_left <= 0.5
    end = time.monotonic() + 10
    while faults.list():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_faults_are_listed_and_cleared_one_by_one_or_together(faults: FaultClient) -> None:
    one = faults.start("throttling", "OTHER", seconds=LONG_S, rate=5)
    two = faults.start("slow-store", seconds=LONG_S)
    listed = {each.id: each for each in faults.list()}
    assert set(listed) == {one.id, two.id}
    assert (listed[one.id].entity, listed[one.id].settings) == ("other", {"rate": 5.0})
    assert (listed[two.id].entity, listed[two.id].settings) == (None, {"delay_s": 1.0})
    assert [each.id for each in faults.clear(one.id)] == [one.id]
    assert [each.id for each in faults.list()] == [two.id]
    assert [each.id for each in faults.clear()] == [two.id]
    assert faults.clear() == []
    with faults.during("throttling", "other") as fault:
        assert [each.id for each in faults.list()] == [fault.id]
    assert faults.list() == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("meteor",), "there is no fault 'meteor'; use one of throttling, sends-refused"),
        (("throttling", "nowhere"), "could not be found. Create it first, or check the name"),
        (("throttling", "other", -1), "seconds is -1; use a number from 0.1 to 86400"),
        (("throttling", "other", "soon"), "seconds is 'soon'; use a number"),
        (("slow-store", "other"), "is a whole namespace's trouble; leave out the entity"),
    ],
)
def test_bad_input_is_answered_with_what_to_do(
    faults: FaultClient, arguments: tuple[Any, ...], sentence: str
) -> None:
    with pytest.raises(FaultError) as caught:
        faults.start(*arguments)
    assert sentence in str(caught.value)
    assert faults.list() == []


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"delay_s": 1}, "'throttling' has no setting 'delay_s'; it takes rate"),
        ({"rate": "many"}, "rate is 'many'; use a number from 0"),
        ({"rate": True}, "rate is True; use a number from 0"),
    ],
)
def test_a_bad_setting_is_answered_with_what_it_may_be(
    faults: FaultClient, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(FaultError) as caught:
        faults.start("throttling", **settings)
    assert sentence in str(caught.value)


def test_a_fault_that_is_not_on_cannot_be_cleared(faults: FaultClient) -> None:
    with pytest.raises(FaultError, match="there is no fault 999; it may have ended by itself"):
        faults.clear(999)


def test_what_is_no_request_for_a_fault_is_refused(broker: BrokerProcess) -> None:
    for body in (b"", b"[]", b"{", b'{"entity": 5}', b"9" * 70_000):
        answer = ask(broker, "POST", "$faults", body)
        assert answer.status == 400
        assert "JSON object" in json.loads(answer.text)["error"]
    assert ask(broker, "DELETE", "$faults?id=x").status == 400
    assert ask(broker, "PUT", "$faults").status == 405


def test_faults_need_the_manage_claim(broker: BrokerProcess) -> None:
    assert ask(broker, "GET", "$faults", Authorization="").status == 401
    narrow = token(broker, "other")
    assert ask(broker, "GET", "$faults", Authorization=narrow).status == 401
    bad = broker.connection_string.replace("SharedAccessKey=", "SharedAccessKey=bm8")
    with pytest.raises(FaultError, match="Unauthorized") as caught:
        FaultClient(bad).list()
    assert "bm8" not in str(caught.value)


def test_the_client_speaks_to_the_amqp_port_in_plain_or_in_tls(broker: BrokerProcess) -> None:
    assert FaultClient(broker.connection_string).list() == []
    text = broker.connection_string.replace(";UseDevelopmentEmulator=true", "")
    certificate = str(broker.folder / "data" / "certificate.pem")
    assert FaultClient(text, certificate=certificate).list() == []


def test_the_process_is_healthy_whatever_its_faults(
    broker: BrokerProcess, faults: FaultClient
) -> None:
    faults.start("management-refused")
    answer = get_json(f"http://localhost:{admin_port(broker)}/health")
    assert answer["status"] == "healthy"


def test_seconds_are_counted_down(faults: FaultClient) -> None:
    faults.start("throttling", "other", seconds=LONG_S)
    time.sleep(0.1)
    (fault,) = faults.list()
    assert LONG_S - 60 < fault.seconds_left < LONG_S
    assert timedelta(seconds=fault.seconds_left) < timedelta(seconds=LONG_S)
