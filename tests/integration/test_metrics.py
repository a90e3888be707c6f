"""What the broker counts, after the real SDK has done something worth counting."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from harness.brokers import BrokerProcess
from tests.integration.administrators import Administrator, ask, publish
from tests.worlds import World, receive_some

_KINDS = ("asyncio", "blocking")
_SETTINGS: dict[str, dict[str, Any]] = {
    "counted": {},
    "deleting": {},
    "failing": {"max_delivery_count": 1},
    "twice": {"requires_duplicate_detection": True},
    "asked": {},
    "later": {},
    "open": {},
    "old": {},
}
QUEUES = {f"{name}-{kind}": settings for name, settings in _SETTINGS.items() for kind in _KINDS}
QUEUES["metrics"] = {}


def metrics(broker: BrokerProcess, entity: str = "") -> dict[str, int]:
    """The numbers of one entity, or of the namespace, by their names."""
    answer = ask(broker, "GET", "metrics")
    assert answer.status == 200, answer.text
    wanted = f',entity="{entity}"' if entity else ""
    pattern = rf'^twinbus_(\w+){{namespace="contoso"{re.escape(wanted)}}} (\d+)$'
    return {name: int(value) for name, value in re.findall(pattern, answer.text, re.MULTILINE)}


async def until(broker: BrokerProcess, entity: str, **wanted: int) -> dict[str, int]:
    """The numbers, as soon as they are these: a client's goodbye may still be on its way."""
    end = time.monotonic() + 10
    while True:
        found = await asyncio.to_thread(metrics, broker, entity)
        told = {name: found[name] for name in wanted}
        if told == wanted:
            return found
        assert time.monotonic() < end, (told, wanted)
        await asyncio.sleep(0.05)


async def test_messages_are_counted_in_and_out_and_completed(
    world: World, broker: BrokerProcess
) -> None:
    queue = f"counted-{world.kind}"
    async with world.sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        await sender.send_messages(ServiceBusMessage("c"))
    await until(broker, queue, messages_in_total=3, active_messages=3)
    async with world.receiver(queue) as receiver:
        a, b, _ = await receive_some(receiver, 3)
        await receiver.complete_message(a)
        await receiver.defer_message(b)
        await until(broker, queue, messages_out_total=3, completed_total=1)
        await until(broker, queue, active_messages=1, deferred_messages=1)
        await receiver.receive_deferred_messages(b.sequence_number)
    await until(broker, queue, messages_in_total=3, messages_out_total=4, completed_total=1)


async def test_receive_and_delete_is_delivery_without_completion(
    world: World, broker: BrokerProcess
) -> None:
    queue = f"deleting-{world.kind}"
    await world.send(queue, ServiceBusMessage("a"))
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with world.receiver(queue, receive_mode=mode) as receiver:
        await receive_some(receiver, 1)
    await until(broker, queue, messages_out_total=1, completed_total=0, active_messages=0)


async def test_dead_letters_are_counted_and_their_queue_is_an_entity_of_its_own(
    world: World, broker: BrokerProcess
) -> None:
    queue = f"failing-{world.kind}"
    await world.send(queue, ServiceBusMessage("by count"), ServiceBusMessage("by hand"))
    async with world.receiver(queue) as receiver:
        one, two = await receive_some(receiver, 2)
        await receiver.abandon_message(one)
        await receiver.dead_letter_message(two)
    await until(broker, queue, dead_lettered_total=2, dead_letter_messages=2, active_messages=0)
    await world.receive(queue, 2, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    await until(broker, queue, dead_letter_messages=0, completed_total=0)
    await until(broker, f"{queue}/$deadletterqueue", messages_out_total=2, completed_total=2)


async def test_duplicates_are_counted_as_dropped_not_as_taken_in(
    world: World, broker: BrokerProcess
) -> None:
    queue = f"twice-{world.kind}"
    await world.send(queue, *[ServiceBusMessage("x", message_id="1") for _ in range(3)])
    await until(broker, queue, messages_in_total=1, duplicates_dropped_total=2)


async def test_a_receive_that_finds_nothing_is_counted_as_empty(
    world: World, broker: BrokerProcess
) -> None:
    """A call of the SDK is one request; it ends with the next, or with the link."""
    queue = f"asked-{world.kind}"
    async with world.receiver(queue) as receiver:
        assert await receiver.receive_messages(1, max_wait_time=0.5) == []
        assert await receiver.receive_messages(1, max_wait_time=0.5) == []
        await until(broker, queue, receive_requests_total=2, empty_receives_total=1)
    await until(broker, queue, receive_requests_total=2, empty_receives_total=2)
    await world.send(queue, ServiceBusMessage("x"))
    async with world.receiver(queue) as receiver:
        assert len(await receiver.receive_messages(5, max_wait_time=5)) == 1
    await until(broker, queue, receive_requests_total=3, empty_receives_total=2)


async def test_the_oldest_message_is_told_by_when_it_came(
    world: World, broker: BrokerProcess
) -> None:
    queue = f"old-{world.kind}"
    began = time.time()
    await world.send(queue, ServiceBusMessage("first"))
    await until(broker, queue, active_messages=1)
    (at,) = oldest(broker, queue)
    assert began - 1 <= at <= time.time() + 1
    await world.send(queue, ServiceBusMessage("second"))
    await until(broker, queue, active_messages=2)
    assert oldest(broker, queue) == [at]
    async with world.receiver(queue) as receiver:
        for message in await receive_some(receiver, 2):
            await receiver.complete_message(message)
    await until(broker, queue, active_messages=0)
    assert oldest(broker, queue) == []


def oldest(broker: BrokerProcess, queue: str) -> list[float]:
    name = "twinbus_oldest_message_timestamp_seconds"
    lines = ask(broker, "GET", "metrics").text.splitlines()
    return [float(each.split()[1]) for each in lines if each.startswith(name) and queue in each]


async def test_a_scheduled_message_is_taken_in_once(world: World, broker: BrokerProcess) -> None:
    queue = f"later-{world.kind}"
    at = datetime.now(UTC) + timedelta(seconds=2)
    async with world.sender(queue) as sender:
        await sender.schedule_messages(ServiceBusMessage("x"), at)
    await until(broker, queue, messages_in_total=1, scheduled_messages=1, active_messages=0)
    await until(broker, queue, messages_in_total=1, scheduled_messages=0, active_messages=1)


async def test_connections_and_links_are_those_that_are_open(
    world: World, broker: BrokerProcess
) -> None:
    await until(broker, "", connections=0, links=0)
    async with world.sender(f"open-{world.kind}"):
        # The link, and the pair of them that takes tokens.
        await until(broker, "", connections=1, links=3)
    await until(broker, "", connections=0, links=0)


async def test_a_topic_counts_what_is_sent_and_a_subscription_its_copies(
    world: World, broker: BrokerProcess
) -> None:
    topic = f"topic-{world.kind}"
    admin = Administrator(world.kind, broker)
    await admin.create_topic(topic)
    await admin.create_subscription(topic, "one")
    await admin.create_subscription(topic, "two")
    await admin.close()
    await publish(world, topic, ServiceBusMessage("a"), ServiceBusMessage("b"))
    await until(broker, topic, messages_in_total=2)
    await until(broker, f"{topic}/Subscriptions/one", messages_in_total=2, active_messages=2)
    await until(broker, f"{topic}/Subscriptions/two", messages_in_total=2)


def test_metrics_need_the_manage_claim(broker: BrokerProcess) -> None:
    answer = ask(broker, "GET", "metrics", Authorization="")
    assert answer.status == 401
    assert "no Authorization header" in answer.text
    assert ask(broker, "GET", "metrics", plain=True).status == 200


def test_every_line_is_of_the_text_format(broker: BrokerProcess) -> None:
    answer = ask(broker, "GET", "metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    line = r"# (HELP|TYPE) twinbus_\w+ .+|twinbus_\w+\{(\w+=\"[^\"]*\",?)+\} \d+(\.\d+)?"
    for each in answer.text.splitlines():
        assert re.fullmatch(line, each), each
    assert answer.text.endswith("\n")


async def test_a_queue_of_that_name_is_still_managed(world: World, broker: BrokerProcess) -> None:
    admin = Administrator(world.kind, broker)
    assert (await admin.get_queue("metrics")).name == "metrics"
    await admin.close()
