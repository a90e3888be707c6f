"""Every way of a queue, by the real SDK over real sockets, in both of its kinds."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from harness.brokers import BrokerProcess
from harness.raw import Raw, kilobyte_message
from tests.worlds import World, receive_some

_KINDS = ("asyncio", "blocking")
# One queue a test and kind, so that no test sees another's messages.
_SETTINGS: dict[str, dict[str, Any]] = {
    "complete": {},
    "delete": {},
    "abandon": {},
    "deliveries": {"max_delivery_count": 2},
    "defer": {},
    "deadletter": {},
    "release": {},
    "renew": {"lock_duration": 5},
    "expiry": {"lock_duration": 5},
    "peek": {},
    "schedule": {},
    "cancel": {},
    "ttl": {},
    "ttldead": {"dead_lettering_on_expiration": True},
    "ttldefault": {"default_ttl": 1},
    "quota": {"max_size_mb": 1},
    "ping": {},
    "types": {},
    "batch": {},
    "size": {},
    "order": {},
    "share": {},
}
QUEUES = {f"{name}-{kind}": settings for name, settings in _SETTINGS.items() for kind in _KINDS}


def _queue(world: World, name: str) -> str:
    return f"{name}-{world.kind}"


@pytest.mark.quick
async def test_completed_message_is_gone(world: World) -> None:
    queue = _queue(world, "complete")
    await world.send(queue, ServiceBusMessage(b"hello"))
    (message,) = await world.receive(queue)
    assert b"".join(message.body) == b"hello"
    assert message.delivery_count == 0
    assert await world.peek(queue) == []


async def test_receive_and_delete_leaves_nothing(world: World) -> None:
    queue = _queue(world, "delete")
    await world.send(queue, *[ServiceBusMessage(f"{n}") for n in range(5)])
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with world.receiver(queue, receive_mode=mode) as receiver:
        found = await receive_some(receiver, 5)
    assert [str(message) for message in found] == ["0", "1", "2", "3", "4"]
    assert await world.peek(queue) == []


async def test_abandoned_message_is_ready_again_and_counted(world: World) -> None:
    queue = _queue(world, "abandon")
    await world.send(queue, ServiceBusMessage("again"))
    async with world.receiver(queue) as receiver:
        (first,) = await receive_some(receiver, 1)
        await receiver.abandon_message(first)
        (second,) = await receive_some(receiver, 1)
        assert (second.delivery_count, second.sequence_number) == (1, first.sequence_number)
        await receiver.complete_message(second)


async def test_message_that_fails_too_often_is_dead_lettered(world: World) -> None:
    queue = _queue(world, "deliveries")
    await world.send(queue, ServiceBusMessage("poison"))
    async with world.receiver(queue) as receiver:
        for _ in range(2):
            (message,) = await receive_some(receiver, 1)
            await receiver.abandon_message(message)
    (dead,) = await world.receive(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert "2 delivery attempts" in dead.dead_letter_error_description
    assert await world.peek(queue) == []


@pytest.mark.quick
async def test_deferred_message_comes_by_its_number_only(world: World) -> None:
    queue = _queue(world, "defer")
    await world.send(queue, ServiceBusMessage("one"), ServiceBusMessage("two"))
    async with world.receiver(queue) as receiver:
        one, two = await receive_some(receiver, 2)
        await receiver.defer_message(one)
        await receiver.defer_message(two)
        assert await receiver.receive_messages(1, max_wait_time=1) == []
        (again,) = await receiver.receive_deferred_messages(one.sequence_number)
        assert str(again) == "one"
        await receiver.complete_message(again)
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages(one.sequence_number)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with world.receiver(queue, receive_mode=mode) as receiver:
        (deleted,) = await receiver.receive_deferred_messages([two.sequence_number])
        assert str(deleted) == "two"
    assert await world.peek(queue) == []


async def test_dead_lettered_message_says_why(world: World) -> None:
    queue = _queue(world, "deadletter")
    await world.send(queue, ServiceBusMessage("bad", application_properties={"kept": 1}))
    async with world.receiver(queue) as receiver:
        (message,) = await receive_some(receiver, 1)
        await receiver.dead_letter_message(message, reason="why", error_description="because")
    (dead,) = await world.receive(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("why", "because")
    assert dead.application_properties[b"kept"] == 1
    assert dead.dead_letter_source == queue
    assert str(dead) == "bad"


async def test_closing_a_receiver_gives_back_what_it_had_not_read_uncounted(world: World) -> None:
    queue = _queue(world, "release")
    await world.send(queue, [ServiceBusMessage(f"{n}") for n in range(20)])
    async with world.receiver(queue, prefetch_count=20) as receiver:
        await receive_some(receiver, 1)
        await asyncio.sleep(0.5)
    async with world.receiver(queue) as receiver:
        found = await receive_some(receiver, 19)
    assert len(found) == 19
    assert {message.delivery_count for message in found} == {0}


async def test_renewed_lock_outlives_its_duration(world: World) -> None:
    queue = _queue(world, "renew")
    await world.send(queue, ServiceBusMessage("slow"))
    async with world.receiver(queue) as receiver:
        (message,) = await receive_some(receiver, 1)
        first_end = message.locked_until_utc
        await asyncio.sleep(3)
        renewed = await receiver.renew_message_lock(message)
        assert renewed > first_end
        await asyncio.sleep(3)
        await receiver.complete_message(message)
    assert await world.peek(queue) == []


async def test_expired_lock_is_lost_and_the_message_comes_again(world: World) -> None:
    queue = _queue(world, "expiry")
    await world.send(queue, ServiceBusMessage("late"))
    async with world.receiver(queue) as receiver:
        (message,) = await receive_some(receiver, 1)
        (again,) = await receive_some(receiver, 1, within_s=8)
        assert again.delivery_count == 1
        await receiver.complete_message(again)
        with pytest.raises(MessageLockLostError):
            await receiver.complete_message(message)


async def test_peek_sees_every_state_in_order_and_changes_nothing(world: World) -> None:
    queue = _queue(world, "peek")
    later = datetime.now(UTC) + timedelta(hours=1)
    await world.send(
        queue,
        ServiceBusMessage("locked"),
        ServiceBusMessage("deferred"),
        ServiceBusMessage("active"),
        ServiceBusMessage("scheduled", scheduled_enqueue_time_utc=later),
    )
    async with world.receiver(queue) as receiver:
        _, second = await receive_some(receiver, 2)
        await receiver.defer_message(second)
        for _ in range(2):
            peeked = await receiver.peek_messages(10, sequence_number=1)
            assert [str(message) for message in peeked] == [
                *("locked", "deferred", "active", "scheduled")
            ]
        states = [int(message.state) for message in peeked]
        assert states == [0, 1, 0, 2]


async def test_scheduled_message_appears_when_due_under_a_new_number(world: World) -> None:
    queue = _queue(world, "schedule")
    due = datetime.now(UTC) + timedelta(seconds=6)
    async with world.sender(queue) as sender:
        (number,) = await sender.schedule_messages(ServiceBusMessage("later"), due)
    async with world.receiver(queue) as receiver:
        assert await receiver.receive_messages(1, max_wait_time=1) == []
        (message,) = await receive_some(receiver, 1, within_s=10)
        assert datetime.now(UTC) >= due - timedelta(milliseconds=50)
        assert message.sequence_number > number
        await receiver.complete_message(message)


async def test_cancelled_schedule_never_appears(world: World) -> None:
    queue = _queue(world, "cancel")
    due = datetime.now(UTC) + timedelta(seconds=6)
    async with world.sender(queue) as sender:
        numbers = await sender.schedule_messages([ServiceBusMessage(f"{n}") for n in range(3)], due)
        assert len(set(numbers)) == 3
        await sender.cancel_scheduled_messages(numbers[:2])
        with pytest.raises(ServiceBusError):
            await sender.cancel_scheduled_messages(numbers[0])
    async with world.receiver(queue) as receiver:
        (left,) = await receive_some(receiver, 1, within_s=10)
        assert str(left) == "2"
        assert await receiver.receive_messages(1, max_wait_time=1) == []


async def test_expired_message_vanishes(world: World) -> None:
    queue = _queue(world, "ttl")
    await world.send(queue, ServiceBusMessage("short", time_to_live=timedelta(seconds=1)))
    await asyncio.sleep(1.8)
    assert await world.peek(queue) == []
    assert await world.peek(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) == []


async def test_expired_message_is_dead_lettered_where_the_queue_says_so(world: World) -> None:
    queue = _queue(world, "ttldead")
    await world.send(queue, ServiceBusMessage("short", time_to_live=timedelta(seconds=1)))
    await asyncio.sleep(1.8)
    (dead,) = await world.receive(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert dead.dead_letter_reason == "TTLExpiredException"
    assert dead.dead_letter_error_description == "The message expired and was dead lettered."


async def test_queue_ttl_is_the_ceiling(world: World) -> None:
    queue = _queue(world, "ttldefault")
    await world.send(queue, ServiceBusMessage("long", time_to_live=timedelta(hours=1)))
    await asyncio.sleep(1.8)
    assert await world.peek(queue) == []


async def test_full_queue_refuses_and_takes_again_after_receiving(world: World) -> None:
    queue = _queue(world, "quota")
    body = b"x" * 200_000
    async with world.sender(queue) as sender:
        for _ in range(6):
            await sender.send_messages(ServiceBusMessage(body))
        with pytest.raises(ServiceBusQuotaExceededError, match="maximum size"):
            await sender.send_messages(ServiceBusMessage(body))
    held = await world.receive(queue, 6)
    assert len(held) == 6
    await world.send(queue, ServiceBusMessage("fits"))
    assert len(await world.receive(queue)) == 1


async def test_ping_is_accepted_and_never_seen(world: World) -> None:
    queue = _queue(world, "ping")
    ping = ServiceBusMessage(
        b"",
        content_type="application/vnd.ms-servicebus-ping",
        time_to_live=timedelta(seconds=1),
        session_id="any",
    )
    await world.send(queue, ping, ServiceBusMessage("real"))
    assert [str(message) for message in await world.peek(queue)] == ["real"]
    (message,) = await world.receive(queue, 2)
    assert str(message) == "real"
    await asyncio.sleep(1.5)
    assert await world.peek(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) == []


async def test_what_was_sent_is_what_is_received(world: World) -> None:
    queue = _queue(world, "types")
    values: dict[Any, Any] = {
        "text": "grüß",
        "int": 7,
        "float": 1.5,
        "bool": True,
        "uuid": uuid.uuid4(),
        "none": None,
        "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    }
    sent = ServiceBusMessage(
        b"\x00\x01\xfe\xff" * 1000,
        application_properties=values,
        session_id="s",
        message_id="id",
        content_type="a/b",
        correlation_id="c",
        subject="subject",
        to="to",
        reply_to="r",
        reply_to_session_id="rs",
        partition_key="s",
        time_to_live=timedelta(days=1),
    )
    await world.send(queue, sent)
    (got,) = await world.receive(queue)
    assert b"".join(got.body) == b"\x00\x01\xfe\xff" * 1000
    for name in (
        *("session_id", "message_id", "content_type", "correlation_id", "subject", "to"),
        *("reply_to", "reply_to_session_id", "partition_key", "time_to_live"),
    ):
        assert getattr(got, name) == getattr(sent, name), name
    received = {key.decode(): value for key, value in got.application_properties.items()}
    received["text"] = received["text"].decode()
    received["time"] = datetime.fromtimestamp(received["time"] / 1000, UTC)
    assert received == values

    annotated = AmqpAnnotatedMessage(
        value_body={"nested": [1, {"deep": b"x"}], "n": None},
        header=AmqpMessageHeader(durable=True, priority=7, time_to_live=60_000),
        properties=AmqpMessageProperties(message_id="id2", group_id="g", group_sequence=3),
        annotations={"x-mine": "kept"},
        application_properties={"a": 1},
    )
    await world.send(queue, annotated)
    (got,) = await world.receive(queue)
    raw = got.raw_amqp_message
    assert raw.body == {b"nested": [1, {b"deep": b"x"}], b"n": None}
    assert (raw.header.durable, raw.header.priority) == (True, 7)
    assert (raw.properties.group_id, raw.properties.group_sequence) == (b"g", 3)
    assert raw.annotations[b"x-mine"] == b"kept"


async def test_batch_arrives_whole_and_in_order(world: World) -> None:
    queue = _queue(world, "batch")
    async with world.sender(queue) as sender:
        batch = await sender.create_message_batch()
        assert batch.max_size_in_bytes == 262_144
        for n in range(100):
            batch.add_message(ServiceBusMessage(f"{n}" + "x" * 1000, message_id=f"{n}"))
        await sender.send_messages(batch)
    found = await world.receive(queue, 100)
    assert [message.message_id for message in found] == [f"{n}" for n in range(100)]


async def test_message_over_the_limit_is_refused_and_one_at_the_limit_is_not(world: World) -> None:
    queue = _queue(world, "size")
    async with world.sender(queue) as sender:
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(b"x" * 300_000))
        await sender.send_messages(ServiceBusMessage(b"y" * 261_000))
    (message,) = await world.receive(queue)
    assert b"".join(message.body) == b"y" * 261_000


async def test_messages_come_in_the_order_they_were_sent(world: World) -> None:
    queue = _queue(world, "order")
    async with world.sender(queue) as sender:
        for start in range(0, 400, 100):
            batch = [ServiceBusMessage(f"{n}") for n in range(start, start + 100)]
            await sender.send_messages(batch)
    found = await world.receive(queue, 400)
    assert [str(message) for message in found] == [f"{n}" for n in range(400)]
    numbers = [message.sequence_number for message in found]
    assert numbers == sorted(numbers)


async def test_two_receivers_share_a_queue_without_sharing_a_message(world: World) -> None:
    queue = _queue(world, "share")
    await world.send(queue, [ServiceBusMessage(f"{n}") for n in range(40)])
    async with world.receiver(queue) as one, world.receiver(queue) as two:
        first = await receive_some(one, 20)
        second = await receive_some(two, 20)
    assert len({str(message) for message in first + second}) == 40


async def test_unknown_queue_is_not_found(world: World) -> None:
    with pytest.raises(MessagingEntityNotFoundError, match="no-such-queue' could not be found"):
        await world.send("no-such-queue", ServiceBusMessage("x"))


async def test_wrong_key_is_refused_without_naming_it(broker: BrokerProcess) -> None:
    text = broker.connection_string.replace("SharedAccessKey=", "SharedAccessKey=V1JPTkc")
    for kind in _KINDS:
        world = World(kind, text)
        with pytest.raises(ServiceBusAuthenticationError) as caught:
            await world.send(f"complete-{kind}", ServiceBusMessage("x"))
        await world.close()
        assert "V1JPTkc" not in str(caught.value)
    assert "V1JPTkc" not in broker.log()


def test_batches_of_frames_and_sdk_agree(broker: BrokerProcess) -> None:
    """The lean client of the benchmarks is a client like any other."""
    raw = Raw(broker.connection_string)
    assert raw.send("order-asyncio", iter([kilobyte_message(n) for n in range(50)]), 10) == 50
    assert raw.receive("order-asyncio", 50, 10) == 50
    raw.close()
