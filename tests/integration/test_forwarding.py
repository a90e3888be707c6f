"""Where messages go besides where they were sent: duplicates nowhere, forwarded ones on, and what
has no place to a dead-letter queue. By the real SDK; what takes minutes, with our own clock."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError, ServiceBusQuotaExceededError
from harness.brokers import BrokerProcess
from harness.raw import kilobyte_message
from tests.integration.administrators import (
    KINDS,
    Administrator,
    publish,
    subscription_receiver,
    topic_sender,
)
from tests.worlds import World, receive_some
from tests.years import MINUTE_MS, NOW_MS, Taker, Years

from twinbus.amqp.message import encode_annotations
from twinbus.amqp.sections import SCHEDULED
from twinbus.amqp.types import Timestamp
from twinbus.broker.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.broker.refusals import EntityNotFoundError

QUEUES: dict[str, dict[str, Any]] = {}
DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
DEAD = ServiceBusSubQueue.DEAD_LETTER
TRANSFER_DEAD = ServiceBusSubQueue.TRANSFER_DEAD_LETTER


@pytest.fixture
async def admin(world: World, broker: BrokerProcess) -> AsyncIterator[Administrator]:
    administrator = Administrator(world.kind, broker)
    yield administrator
    await administrator.close()


async def counts(admin: Administrator, queue: str) -> tuple[int, int, int]:
    """Active, dead-lettered, and dead-lettered on the way to another entity."""
    runtime = await admin.get_queue_runtime_properties(queue)
    return (
        runtime.active_message_count,
        runtime.dead_letter_message_count,
        runtime.transfer_dead_letter_message_count,
    )


async def take(world: World, queue: str, count: int, **kwargs: Any) -> list[Any]:
    async with world.receiver(queue, receive_mode=DELETE, **kwargs) as receiver:
        return await receive_some(receiver, count)


# --- duplicates ---------------------------------------------------------------------------


async def test_duplicate_is_accepted_and_dropped(world: World, admin: Administrator) -> None:
    queue = f"duplicates-{world.kind}"
    await admin.create_queue(queue, requires_duplicate_detection=True)
    later = datetime.now(UTC) + timedelta(hours=1)
    async with world.sender(queue) as sender:
        for text in ("first", "second"):
            await sender.send_messages(ServiceBusMessage(text, message_id="a"))
        await sender.send_messages(
            [ServiceBusMessage("in batch", message_id=name) for name in "bcbA"]
        )
        await sender.schedule_messages(ServiceBusMessage("scheduled", message_id="s"), later)
        await sender.send_messages(ServiceBusMessage("after scheduled", message_id="s"))
        await sender.schedule_messages(ServiceBusMessage("again", message_id="a"), later)
        await sender.send_messages([ServiceBusMessage("none"), ServiceBusMessage("none")])
    found = await world.peek(queue)
    seen = [(str(message), message.message_id) for message in found]
    assert seen[:5] == [
        ("first", "a"),
        ("in batch", "b"),
        ("in batch", "c"),
        ("in batch", "A"),
        ("scheduled", "s"),
    ]
    assert [text for text, _ in seen[5:]] == ["none", "none"]


@pytest.mark.parametrize("kind", KINDS)
async def test_duplicate_is_known_after_kill_minus_nine(tmp_path: Path, kind: str) -> None:
    broker = BrokerProcess(tmp_path, {})
    broker.start()
    admin, world = Administrator(kind, broker), World(kind, broker.connection_string)
    await admin.create_topic("topic", requires_duplicate_detection=True)
    await admin.create_subscription("topic", "s")
    await publish(world, "topic", ServiceBusMessage("before", message_id="a"))
    await admin.close()
    broker.kill()
    broker.start()
    await publish(
        world,
        "topic",
        ServiceBusMessage("after", message_id="a"),
        ServiceBusMessage("other", message_id="b"),
    )
    async with subscription_receiver(world, "topic", "s", receive_mode=DELETE) as receiver:
        found = await receive_some(receiver, 3, within_s=3)
    assert [str(message) for message in found] == ["before", "other"]
    await world.close()
    broker.close()


# --- forwarding ---------------------------------------------------------------------------


async def test_message_goes_from_queue_to_topic_to_queue(
    world: World, admin: Administrator, broker: BrokerProcess
) -> None:
    kind = world.kind
    await admin.create_queue(f"end-{kind}")
    await admin.create_topic(f"middle-{kind}")
    await admin.create_subscription(f"middle-{kind}", "on", forward_to=f"end-{kind}")
    await admin.create_subscription(f"middle-{kind}", "stays")
    await admin.create_queue(f"second-{kind}", forward_to=f"middle-{kind}")
    await admin.create_queue(f"first-{kind}", forward_to=f"second-{kind}")
    sent = ServiceBusMessage(
        b"body", message_id="m", application_properties={"n": 1}, time_to_live=timedelta(hours=1)
    )
    await world.send(f"first-{kind}", sent)
    (message,) = await take(world, f"end-{kind}", 1)
    assert b"".join(message.body) == b"body"
    assert (message.message_id, message.application_properties) == ("m", {b"n": 1})
    assert message.time_to_live == timedelta(hours=1)
    assert await counts(admin, f"first-{kind}") == (0, 0, 0)
    stays = await admin.get_subscription_runtime_properties(f"middle-{kind}", "stays")
    assert stays.active_message_count == 1
    async with world.receiver(f"end-{kind}") as receiver:
        assert await receiver.peek_messages(10, sequence_number=1) == []
    with pytest.raises(ServiceBusError, match="receive from there"):
        await take(world, f"first-{kind}", 1)


async def test_fifth_hop_is_a_dead_letter(world: World, admin: Administrator) -> None:
    names = [f"hop{n}-{world.kind}" for n in range(6)]
    await admin.create_queue(names[5])
    for name, target in reversed(list(pairwise(names))):
        await admin.create_queue(name, forward_to=target)
    await world.send(names[0], ServiceBusMessage("five"))
    await world.send(names[1], ServiceBusMessage("four"))
    (four,) = await take(world, names[5], 1)
    assert str(four) == "four"
    (five,) = await take(world, names[4], 1, sub_queue=DEAD)
    assert (str(five), five.dead_letter_reason) == ("five", "MaxTransferHopCountExceeded")
    assert [await counts(admin, name) for name in names] == [(0, 0, 0)] * 6


async def test_what_the_target_does_not_take_waits_in_the_transfer_dead_letter_queue(
    world: World, admin: Administrator
) -> None:
    kind = world.kind
    for problem in ("missing", "disabled", "full", "sessions"):
        settings: dict[str, Any] = {"max_size_in_megabytes": 1} if problem == "full" else {}
        if problem == "sessions":
            settings = {"requires_session": True}
        await admin.create_queue(f"{problem}-{kind}", **settings)
        await admin.create_queue(f"to-{problem}-{kind}", forward_to=f"{problem}-{kind}")
    await admin.delete_queue(f"missing-{kind}")
    disabled = await admin.get_queue(f"disabled-{kind}")
    disabled.status = "SendDisabled"
    await admin.update_queue(disabled)
    async with world.sender(f"full-{kind}") as sender:
        for _ in range(6):
            await sender.send_messages(ServiceBusMessage(b"x" * 200_000))
    for problem, text in (
        ("missing", "could not be found"),
        ("disabled", "disabled for sending"),
        ("full", "maximum size"),
        ("sessions", "Session ID is null"),
    ):
        source = f"to-{problem}-{kind}"
        await world.send(source, ServiceBusMessage(problem))
        assert await counts(admin, source) == (0, 0, 1)
        (dead,) = await take(world, source, 1, sub_queue=TRANSFER_DEAD)
        assert str(dead) == problem
        assert text in dead.dead_letter_error_description


async def test_forwarding_turned_on_moves_what_was_waiting_and_off_stops_it(
    world: World, admin: Administrator
) -> None:
    source, target = f"waiting-{world.kind}", f"moved-{world.kind}"
    await admin.create_queue(source)
    await admin.create_queue(target)
    later = datetime.now(UTC) + timedelta(hours=1)
    async with world.sender(source) as sender:
        for start in (0, 100, 200):
            batch = [ServiceBusMessage(f"{n}") for n in range(start, start + 100)]
            await sender.send_messages(batch)
        await sender.schedule_messages(ServiceBusMessage("later"), later)
        queue = await admin.get_queue(source)
        queue.forward_to = target
        await admin.update_queue(queue)
        await sender.send_messages(ServiceBusMessage("300"))
        found = await take(world, target, 301)
        assert sorted(int(str(message)) for message in found) == list(range(301))
        waiting = [int(str(message)) for message in found if str(message) != "300"]
        assert waiting == list(range(300))
        runtime = await admin.get_queue_runtime_properties(source)
        assert (runtime.active_message_count, runtime.scheduled_message_count) == (0, 1)
        queue.forward_to = None
        await admin.update_queue(queue)
        await sender.send_messages(ServiceBusMessage("stays"))
    assert [str(message) for message in await take(world, source, 1)] == ["stays"]


async def test_dead_letters_are_forwarded_with_their_reason(
    world: World, admin: Administrator
) -> None:
    kind = world.kind
    await admin.create_queue(f"graves-{kind}")
    await admin.create_queue(
        f"mortal-{kind}",
        forward_dead_lettered_messages_to=f"graves-{kind}",
        dead_lettering_on_message_expiration=True,
    )
    await world.send(
        f"mortal-{kind}",
        ServiceBusMessage("refused", application_properties={"kept": 1}),
        ServiceBusMessage("expired", time_to_live=timedelta(seconds=1)),
    )
    async with world.receiver(f"mortal-{kind}") as receiver:
        (message,) = await receive_some(receiver, 1)
        await receiver.dead_letter_message(message, reason="why", error_description="because")
    found = await take(world, f"graves-{kind}", 2)
    assert {
        str(message): (
            message.application_properties[b"DeadLetterReason"],
            message.application_properties.get(b"kept"),
            message.dead_letter_source,
        )
        for message in found
    } == {
        "refused": (b"why", 1, f"mortal-{kind}"),
        "expired": (b"TTLExpiredException", None, f"mortal-{kind}"),
    }
    assert await counts(admin, f"mortal-{kind}") == (0, 0, 0)


async def test_bytes_shared_by_subscriptions_are_freed_however_far_they_went(
    world: World, admin: Administrator, broker: BrokerProcess
) -> None:
    """From topic to topic, into a dead-letter queue, and to a topic where nobody wants them."""
    kind = world.kind
    for topic in (f"deaf-{kind}", f"next-{kind}", f"start-{kind}"):
        await admin.create_topic(topic)
    await admin.create_queue(f"gone-{kind}")
    for name in ("one", "two"):
        await admin.create_subscription(f"next-{kind}", name)
    for name, target in (("next", "next"), ("deaf", "deaf"), ("gone", "gone")):
        await admin.create_subscription(f"start-{kind}", name, forward_to=f"{target}-{kind}")
    await admin.create_subscription(f"start-{kind}", "sessions", requires_session=True)
    await admin.delete_queue(f"gone-{kind}")
    await publish(world, f"start-{kind}", ServiceBusMessage(b"x" * 1000))
    for topic, name, sub_queue in (
        ("next", "one", None),
        ("next", "two", None),
        ("start", "gone", TRANSFER_DEAD),
        ("start", "sessions", DEAD),
    ):
        async with subscription_receiver(
            world, f"{topic}-{kind}", name, sub_queue=sub_queue, receive_mode=DELETE
        ) as receiver:
            (message,) = await receive_some(receiver, 1)
        assert b"".join(message.body) == b"x" * 1000
    (path,) = (broker.folder / "data").rglob("messages.db")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as link:
        orphans = link.execute(
            "SELECT id, holders FROM body "
            "WHERE holders <> (SELECT count(*) FROM message WHERE message.body = body.id)"
        )
        assert orphans.fetchall() == []


async def test_forwarding_cannot_be_set_to_itself_or_to_nowhere(admin: Administrator) -> None:
    queue = f"selfish-{admin.kind}"
    made = await admin.create_queue(queue)
    for target, text in ((queue, "itself"), ("nowhere", "not there"), (f"{queue}/x", "not there")):
        made.forward_to = target
        with pytest.raises(HttpResponseError, match=text):
            await admin.update_queue(made)
    assert (await admin.get_queue(queue)).forward_to is None


async def fill(sender: Any) -> None:
    for _ in range(10):
        await sender.send_messages(ServiceBusMessage(b"x" * 200_000))


# --- size ---------------------------------------------------------------------------------


async def test_full_topic_refuses_and_takes_again_after_receiving(
    world: World, admin: Administrator
) -> None:
    topic = f"full-topic-{world.kind}"
    await admin.create_topic(topic, max_size_in_megabytes=1)
    await admin.create_subscription(topic, "s")
    async with topic_sender(world, topic) as sender:
        with pytest.raises(ServiceBusQuotaExceededError, match="maximum size"):
            await fill(sender)
        runtime = await admin.get_topic_runtime_properties(topic)
        assert runtime.size_in_bytes >= 1 << 20
        async with subscription_receiver(world, topic, "s", receive_mode=DELETE) as receiver:
            assert len(await receive_some(receiver, 6)) == 6
        await sender.send_messages(ServiceBusMessage("fits"))


# --- time, by hand ------------------------------------------------------------------------


@pytest.fixture
def years(tmp_path: Path) -> Iterator[Years]:
    years = Years(tmp_path / "home.db")
    yield years
    years.store.close()


IDLE = timedelta(minutes=5)


def test_duplicate_is_a_new_message_after_the_window(years: Years) -> None:
    window = timedelta(minutes=2)
    description = QueueDescription(requires_duplicate_detection=True, duplicate_window=window)
    years.do(years.directory.create_queue, "q", description)
    years.send("q", 1)
    years.go(1.9)
    years.send("q", 1)
    assert years.bodies("q") == 1
    years.reopen()
    years.send("q", 1)
    assert years.bodies("q") == 1
    # The window began with the message that was kept, not with those that were dropped.
    years.go(0.2)
    years.send("q", 1)
    assert years.bodies("q") == 2
    years.go(1)
    assert years.store.query("SELECT count(*) FROM seen") == [(1,)]
    years.go(2)
    assert years.store.query("SELECT count(*) FROM seen") == [(0,)]


def test_idle_queue_topic_and_subscription_delete_themselves(years: Years) -> None:
    create = years.directory
    years.do(create.create_queue, "q", QueueDescription(auto_delete_on_idle=IDLE))
    years.do(create.create_queue, "kept", QueueDescription())
    years.do(create.create_topic, "t", TopicDescription())
    idle = SubscriptionDescription(auto_delete_on_idle=IDLE)
    years.do(create.create_subscription, "t", "s", idle, None)
    years.do(create.create_topic, "gone", TopicDescription(auto_delete_on_idle=IDLE))
    years.do(create.create_subscription, "gone", "too", SubscriptionDescription(), None)
    years.send("q", 1)
    years.go(4.5)
    assert len(years.paths()) == 6
    years.go(1)
    assert years.paths() == {"kept", "t"}
    years.reopen()
    assert years.paths() == {"kept", "t"}
    assert years.store.query("SELECT count(*) FROM message") == [(0,)]


def test_queue_that_is_used_is_not_idle(years: Years) -> None:
    description = QueueDescription(auto_delete_on_idle=IDLE)
    for path in ("sent", "received", "unused"):
        years.do(years.directory.create_queue, path, description)
    taker = Taker()
    years.directory.entity("received").queue.add_consumer(taker)
    for number in range(4):
        years.send("sent", number)
        years.go(4)
    assert years.paths() == {"sent", "received"}
    # Idleness begins when the last receiver leaves, not when it came.
    years.directory.entity("received").queue.remove_consumer(taker)
    years.go(4)
    assert years.paths() == {"received"}
    years.go(2)
    assert years.paths() == set()


def test_time_without_a_broker_does_not_make_a_queue_idle(years: Years) -> None:
    years.do(years.directory.create_queue, "q", QueueDescription(auto_delete_on_idle=IDLE))
    years.now_ms += 1_000 * MINUTE_MS
    years.reopen()
    years.go(4)
    assert years.paths() == {"q"}
    years.go(2)
    assert years.paths() == set()


def test_queue_with_something_scheduled_is_not_idle(years: Years) -> None:
    years.do(years.directory.create_queue, "q", QueueDescription(auto_delete_on_idle=IDLE))
    due = encode_annotations({SCHEDULED: Timestamp(NOW_MS + 20 * MINUTE_MS)})
    entity = years.directory.entity("q")
    years.do(years.namespace.send, entity, [due + kilobyte_message(1)])
    years.go(15)
    assert years.paths() == {"q"}
    years.go(15)
    assert years.paths() == set()


def test_deleting_a_topic_while_a_subscription_is_being_made_leaves_nothing(years: Years) -> None:
    years.do(years.directory.create_topic, "t", TopicDescription())
    answers: list[tuple[str, Exception | None]] = []
    years.directory.create_subscription(
        *("t", "s", SubscriptionDescription(), None, years.now_ms),
        lambda error: answers.append(("create", error)),
    )
    years.directory.delete("t", lambda error: answers.append(("delete", error)))
    years.commit()
    assert len(answers) == 2
    years.reopen()
    assert years.paths() == set()
    assert years.store.query("SELECT path FROM entity") == []
    assert years.store.query("SELECT name FROM rule") == []


def test_deleting_twice_at_once_counts_once(years: Years) -> None:
    years.do(years.directory.create_topic, "t", TopicDescription())
    for name in ("one", "two"):
        years.do(years.directory.create_subscription, "t", name, SubscriptionDescription(), None)
    years.send("t", 1)
    topic = years.directory.entity("t").topic
    assert topic is not None
    held = topic.bytes
    answers: list[Exception | None] = []
    years.directory.delete("t/Subscriptions/one", answers.append)
    with pytest.raises(EntityNotFoundError):
        years.directory.delete("t/Subscriptions/one", answers.append)
    years.commit()
    assert answers == [None]
    assert topic.bytes == held // 2 > 0
    years.reopen()
    assert years.paths() == {"t", "t/Subscriptions/two"}
    assert years.bodies("t/Subscriptions/two") == 1
    assert years.store.query("SELECT holders FROM body") == [(1,)]
