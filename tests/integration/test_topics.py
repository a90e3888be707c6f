"""Topics, subscriptions and rules, by the real SDK in both of its kinds."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
)
from harness.brokers import BrokerProcess
from tests.integration.administrators import (
    KINDS,
    Administrator,
    publish,
    subscription_receiver,
    topic_sender,
)
from tests.worlds import World, receive_some

QUEUES: dict[str, dict[str, Any]] = {}
DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
DEAD = ServiceBusSubQueue.DEAD_LETTER


@pytest.fixture
async def admin(world: World, broker: BrokerProcess) -> AsyncIterator[Administrator]:
    administrator = Administrator(world.kind, broker)
    yield administrator
    await administrator.close()


async def make(admin: Administrator, topic: str, **subscriptions: dict[str, Any]) -> str:
    """A topic of this test and kind, with subscriptions by their settings."""
    path = f"{topic}/{admin.kind}"
    await admin.create_topic(path)
    for name, settings in subscriptions.items():
        await admin.create_subscription(path, name, **settings)
    return path


async def only_rule(admin: Administrator, topic: str, name: str, **rule: Any) -> None:
    """Replace what a subscription takes by one rule."""
    await admin.create_rule(topic, name, "only", **rule)
    await admin.delete_rule(topic, name, "$Default")


async def taken(admin: Administrator, topic: str) -> dict[str, int]:
    """How many messages each subscription has."""
    runtime = await admin.list_subscriptions_runtime_properties(topic)
    return {each.name: each.active_message_count for each in runtime}


async def drain(world: World, topic: str, name: str, count: int, **kwargs: Any) -> list[Any]:
    kwargs.setdefault("receive_mode", DELETE)
    async with subscription_receiver(world, topic, name, **kwargs) as receiver:
        return await receive_some(receiver, count)


def rows(broker: BrokerProcess, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """What is on the disk of the running broker."""
    (path,) = (broker.folder / "data").rglob("messages.db")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as link:
        return link.execute(sql, values).fetchall()


COPIES = (
    "SELECT message.body, message.bare, body.holders, length(body.bare) FROM message "
    "JOIN entity ON entity.id = message.id >> 40 LEFT JOIN body ON body.id = message.body "
    "WHERE entity.path LIKE ? || '/Subscriptions/%'"
)


# --- routing ------------------------------------------------------------------------------


@pytest.mark.quick
async def test_message_is_stored_once_and_seen_by_every_subscription(
    world: World, admin: Administrator, broker: BrokerProcess
) -> None:
    topic = await make(admin, "once", one={}, two={}, three={})
    await publish(world, topic, ServiceBusMessage(b"x" * 10_000, message_id="m"))
    copies = rows(broker, COPIES, topic)
    assert len(copies) == 3
    ((body, own, holders, size),) = set(copies)
    assert own is None
    assert holders == 3
    assert size > 10_000
    for left, name in ((2, "one"), (1, "two"), (None, "three")):
        (message,) = await drain(world, topic, name, 1)
        assert b"".join(message.body) == b"x" * 10_000
        assert (message.message_id, message.sequence_number) == ("m", 1)
        found = rows(broker, "SELECT holders FROM body WHERE id = ?", body)
        assert found == ([(left,)] if left else [])


async def test_send_to_a_topic_without_subscriptions_succeeds_and_stores_nothing(
    world: World, admin: Administrator, broker: BrokerProcess
) -> None:
    topic = await make(admin, "nobody")
    await publish(world, topic, [ServiceBusMessage("x"), ServiceBusMessage("y")])
    assert rows(broker, COPIES, topic) == []
    await admin.create_subscription(topic, "late")
    assert await taken(admin, topic) == {"late": 0}


async def test_default_rule_takes_everything_and_no_rule_takes_nothing(
    world: World, admin: Administrator
) -> None:
    topic = await make(admin, "default", all={}, none={})
    await admin.delete_rule(topic, "none", "$Default")
    async with topic_sender(world, topic) as sender:
        await sender.send_messages(ServiceBusMessage("x"))
        assert await taken(admin, topic) == {"all": 1, "none": 0}
        await admin.create_rule(topic, "none", "again")
        await sender.send_messages(ServiceBusMessage("y"))
    assert await taken(admin, topic) == {"all": 2, "none": 1}


async def test_correlation_filter_compares_every_field(world: World, admin: Administrator) -> None:
    fields: dict[str, Any] = {
        "correlation_id": "c",
        "message_id": "m",
        "to": "t",
        "reply_to": "r",
        "label": "l",
        "session_id": "s",
        "reply_to_session_id": "rs",
        "content_type": "a/b",
        "properties": {"colour": "red", "size": 3, "big": True},
    }
    names = {name.replace("_", "-"): {name: value} for name, value in fields.items()}
    topic = await make(admin, "correlation", **{name: {} for name in [*names, "whole"]})
    for name, wanted in names.items():
        await only_rule(admin, topic, name, filter=CorrelationRuleFilter(**wanted))
    await only_rule(admin, topic, "whole", filter=CorrelationRuleFilter(**fields))

    def message(**changes: Any) -> ServiceBusMessage:
        values: dict[str, Any] = {**fields, **changes}
        values["subject"] = values.pop("label")
        values["application_properties"] = values.pop("properties")
        return ServiceBusMessage("x", **values)

    await publish(
        world,
        topic,
        message(),
        message(properties={"colour": "red", "size": 4, "big": True}),
        *[message(**{name: "other"}) for name in fields if name != "properties"],
    )
    # Each field's own subscription misses the one message in which that field differs.
    expected = dict.fromkeys(names, len(fields))
    assert await taken(admin, topic) == {**expected, "whole": 1}


async def test_sql_filters_choose_with_parameters_and_three_valued_logic(
    world: World, admin: Administrator
) -> None:
    filters = {
        "cheap": SqlRuleFilter("price < @limit", {"@limit": 100}),
        "system": SqlRuleFilter("sys.Label = 'order' AND sys.To LIKE 'eu-%'"),
        "absent": SqlRuleFilter("discount IS NULL"),
        "exists": SqlRuleFilter("EXISTS(discount)"),
        "unknown": SqlRuleFilter("NOT (discount > 5)"),
        "in": SqlRuleFilter("colour IN ('red', 'blue')"),
        "sum": SqlRuleFilter("price * 2 + 1 = 101"),
        "never": FalseRuleFilter(),
    }
    topic = await make(admin, "sql", **{name: {} for name in filters})
    for name, wanted in filters.items():
        await only_rule(admin, topic, name, filter=wanted)
    await publish(
        world,
        topic,
        ServiceBusMessage(
            "1", subject="order", to="eu-1", application_properties={"price": 50, "colour": "red"}
        ),
        ServiceBusMessage(
            "2", subject="order", to="us-1", application_properties={"price": 500, "discount": 3}
        ),
    )
    assert await taken(admin, topic) == {
        "cheap": 1,
        "system": 1,
        "absent": 1,
        "exists": 1,
        "unknown": 1,
        "in": 1,
        "sum": 1,
        "never": 0,
    }


async def test_each_matching_rule_with_an_action_gives_a_copy_of_its_own(
    world: World, admin: Administrator, broker: BrokerProcess
) -> None:
    topic = await make(admin, "actions", changed={}, plain={}, twice={})
    # $Default and `also` have no action: they give one copy together.
    await admin.create_rule(topic, "changed", "also", filter=SqlRuleFilter("price > 1"))
    action = SqlRuleAction("SET size = 'large'; REMOVE price; SET sys.Label = 'new'")
    await admin.create_rule(topic, "changed", "acts", action=action)
    added = SqlRuleAction("SET price = price + @more", {"@more": 5})
    await admin.create_rule(topic, "changed", "adds", action=added)
    await admin.create_rule(
        topic, "changed", "misses", filter=SqlRuleFilter("price > 99"), action=action
    )
    sent = ServiceBusMessage(
        b"body", subject="old", message_id="m", application_properties={"price": 10, "kept": "k"}
    )
    await publish(world, topic, sent)
    copies = await drain(world, topic, "changed", 4)
    seen = {
        message.application_properties.get(b"RuleName", b"-"): (
            message.subject,
            message.application_properties.get(b"price"),
            message.application_properties.get(b"size"),
            message.application_properties[b"kept"],
        )
        for message in copies
    }
    assert len(copies) == 3
    assert seen == {
        b"-": ("old", 10, None, b"k"),
        b"acts": ("new", None, b"large", b"k"),
        b"adds": ("old", 15, None, b"k"),
    }
    assert {b"".join(message.body) for message in copies} == {b"body"}
    assert {message.message_id for message in copies} == {"m"}
    assert await taken(admin, topic) == {"changed": 0, "plain": 1, "twice": 1}


async def test_filter_error_dead_letters_where_the_subscription_says_so(
    world: World, admin: Administrator
) -> None:
    setting = "dead_lettering_on_filter_evaluation_exceptions"
    topic = await make(admin, "errors", bury={setting: True}, skip={setting: False}, other={})
    for name in ("bury", "skip"):
        await only_rule(admin, topic, name, filter=SqlRuleFilter("10 / zero = 1"))
    await publish(world, topic, ServiceBusMessage("x", application_properties={"zero": 0}))
    assert await taken(admin, topic) == {"bury": 0, "skip": 0, "other": 1}
    skipped = await admin.get_subscription_runtime_properties(topic, "skip")
    assert skipped.dead_letter_message_count == 0
    (dead,) = await drain(world, topic, "bury", 1, sub_queue=DEAD)
    assert str(dead) == "x"
    assert "rule only" in dead.dead_letter_error_description
    assert "divides by zero" in dead.dead_letter_error_description


async def test_unknown_topic_and_subscription_are_not_found(
    world: World, admin: Administrator
) -> None:
    topic = await make(admin, "missing")
    with pytest.raises(MessagingEntityNotFoundError, match="could not be found"):
        await publish(world, "no-such-topic", ServiceBusMessage("x"))
    with pytest.raises(MessagingEntityNotFoundError, match="Subscriptions/none' could not be"):
        await drain(world, topic, "none", 1)
    with pytest.raises(ServiceBusError, match="receive from one of its subscriptions"):
        await world.receive(topic)


# --- a subscription is a queue ------------------------------------------------------------


async def test_subscription_locks_counts_defers_and_dead_letters_by_itself(
    world: World, admin: Administrator
) -> None:
    settings = {"max_delivery_count": 2, "lock_duration": timedelta(seconds=5)}
    topic = await make(admin, "semantics", one=settings, other={})
    await publish(world, topic, *[ServiceBusMessage(name) for name in ("poison", "late", "defer")])
    async with subscription_receiver(world, topic, "one") as receiver:
        poison, late, deferred = await receive_some(receiver, 3)
        await receiver.abandon_message(poison)
        (again,) = await receive_some(receiver, 1)
        assert (str(again), again.delivery_count) == ("poison", 1)
        await receiver.abandon_message(again)
        await receiver.defer_message(deferred)
        (expired,) = await receive_some(receiver, 1, within_s=9)
        assert (str(expired), expired.delivery_count) == ("late", 1)
        with pytest.raises(MessageLockLostError):
            await receiver.complete_message(late)
        await receiver.dead_letter_message(expired, reason="why", error_description="because")
        (found,) = await receiver.receive_deferred_messages(deferred.sequence_number)
        await receiver.complete_message(found)
        assert await receiver.peek_messages(10, sequence_number=1) == []
    dead = await drain(world, topic, "one", 2, sub_queue=DEAD)
    assert [(str(message), message.dead_letter_reason) for message in dead] == [
        ("poison", "MaxDeliveryCountExceeded"),
        ("late", "why"),
    ]
    assert dead[0].dead_letter_source.lower() == f"{topic}/subscriptions/one"
    assert await taken(admin, topic) == {"one": 0, "other": 3}


async def test_ttl_of_message_topic_and_subscription_the_shortest_counts(
    world: World, admin: Administrator
) -> None:
    bury = {"dead_lettering_on_message_expiration": True}
    short = {"default_message_time_to_live": timedelta(seconds=1), **bury}
    topic = await make(admin, "ttl", long={}, bury=bury, short=short)
    await publish(
        world,
        topic,
        ServiceBusMessage("brief", time_to_live=timedelta(seconds=1)),
        ServiceBusMessage("lasting", time_to_live=timedelta(hours=1)),
    )
    await asyncio.sleep(2)
    assert await taken(admin, topic) == {"long": 1, "bury": 1, "short": 0}
    runtime = await admin.list_subscriptions_runtime_properties(topic)
    assert {each.name: each.dead_letter_message_count for each in runtime} == {
        "long": 0,
        "bury": 1,
        "short": 2,
    }
    (dead,) = await drain(world, topic, "bury", 1, sub_queue=DEAD)
    assert (str(dead), dead.dead_letter_reason) == ("brief", "TTLExpiredException")


async def test_sessions_of_a_subscription_are_its_own(world: World, admin: Administrator) -> None:
    topic = await make(admin, "sessions", ordered={"requires_session": True}, plain={})
    await publish(
        world,
        topic,
        [ServiceBusMessage(f"{n}", session_id=f"s{n % 2}") for n in range(6)],
        ServiceBusMessage("none"),
    )
    async with subscription_receiver(world, topic, "ordered", session_id="s1") as receiver:
        await receiver.session.set_state(b"state")
        found = await receive_some(receiver, 3)
        for message in found:
            await receiver.complete_message(message)
        assert await receiver.session.get_state() == b"state"
    assert [str(message) for message in found] == ["1", "3", "5"]
    assert await taken(admin, topic) == {"ordered": 3, "plain": 7}
    # A session subscription cannot give out what has no session, so it must not keep it either.
    (dead,) = await drain(world, topic, "ordered", 1, sub_queue=DEAD)
    assert (str(dead), dead.dead_letter_reason) == ("none", "Session ID is null.")


async def test_message_scheduled_to_a_topic_appears_when_due_unless_cancelled(
    world: World, admin: Administrator
) -> None:
    topic = await make(admin, "schedule", all={}, red={})
    await only_rule(admin, topic, "red", filter=CorrelationRuleFilter(label="red"))
    due = datetime.now(UTC) + timedelta(seconds=4)
    async with topic_sender(world, topic) as sender:
        numbers = await sender.schedule_messages(
            [ServiceBusMessage(name, subject=name) for name in ("red", "blue", "green")], due
        )
        assert len(set(numbers)) == 3
        runtime = await admin.get_topic_runtime_properties(topic)
        assert runtime.scheduled_message_count == 3
        await sender.cancel_scheduled_messages(numbers[2])
        with pytest.raises(ServiceBusError):
            await sender.cancel_scheduled_messages(numbers[2])
        assert await taken(admin, topic) == {"all": 0, "red": 0}
    found = await drain(world, topic, "all", 3)
    assert datetime.now(UTC) >= due - timedelta(milliseconds=50)
    assert sorted(str(message) for message in found) == ["blue", "red"]
    assert await taken(admin, topic) == {"all": 0, "red": 1}
    assert (await admin.get_topic_runtime_properties(topic)).scheduled_message_count == 0


async def test_peek_of_a_subscription_sees_every_state(world: World, admin: Administrator) -> None:
    topic = await make(admin, "peek", one={})
    await publish(world, topic, *[ServiceBusMessage(f"{n}") for n in range(3)])
    async with subscription_receiver(world, topic, "one") as receiver:
        _, second = await receive_some(receiver, 2)
        await receiver.defer_message(second)
        peeked = await receiver.peek_messages(10, sequence_number=1)
    assert [(str(message), int(message.state)) for message in peeked] == [
        *[("0", 0), ("1", 1), ("2", 0)]
    ]


# --- restart ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_everything_about_a_topic_survives_kill_minus_nine(tmp_path: Path, kind: str) -> None:
    broker = BrokerProcess(tmp_path, {})
    broker.start()
    admin, world = Administrator(kind, broker), World(kind, broker.connection_string)
    topic = await make(admin, "kept", all={"user_metadata": "mine"}, some={"max_delivery_count": 3})
    action = SqlRuleAction("SET seen = 1")
    await only_rule(admin, topic, "some", filter=SqlRuleFilter("n > @n", {"@n": 1}), action=action)
    due = datetime.now(UTC) + timedelta(hours=1)
    async with topic_sender(world, topic) as sender:
        await sender.send_messages(
            [ServiceBusMessage(f"{n}", application_properties={"n": n}) for n in range(4)]
        )
        (number,) = await sender.schedule_messages(ServiceBusMessage("later"), due)
    async with subscription_receiver(world, topic, "all") as receiver:
        first, second, _, _ = await receive_some(receiver, 4)
        await receiver.defer_message(first)
        await receiver.dead_letter_message(second, reason="why")
    # The SDK leaks the sockets of clients that are open now, and warnings are errors.
    await admin.close()
    broker.kill()
    broker.start()
    admin = Administrator(kind, broker)
    rule = await admin.get_rule(topic, "some", "only")
    assert (rule.filter.parameters, rule.action.sql_expression) == ({"@n": 1}, "SET seen = 1")
    assert (await admin.get_subscription(topic, "all")).user_metadata == "mine"
    assert await taken(admin, topic) == {"all": 3, "some": 2}
    async with subscription_receiver(world, topic, "all") as receiver:
        found = await receive_some(receiver, 2)
        found += await receiver.receive_deferred_messages(first.sequence_number)
        for message in found:
            await receiver.complete_message(message)
    assert [str(message) for message in found] == ["2", "3", "0"]
    (dead,) = await drain(world, topic, "all", 1, sub_queue=DEAD)
    assert (str(dead), dead.dead_letter_reason) == ("1", "why")
    async with topic_sender(world, topic) as sender:
        await sender.cancel_scheduled_messages(number)
        await sender.send_messages(ServiceBusMessage("9", application_properties={"n": 9}))
    assert await taken(admin, topic) == {"all": 1, "some": 3}
    assert rows(broker, "SELECT count(*) FROM body") == [(0,)]
    await world.close()
    await admin.close()
    broker.close()
    assert "Traceback" not in broker.log()
