"""The management API over https, driven by the SDK's administration client in both of its kinds,
and what messaging clients see of it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
)
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)
from harness.brokers import BrokerProcess
from tests.integration.administrators import (
    KINDS,
    Administrator,
    ask,
    certificate,
    publish,
    subscription_receiver,
    token,
)
from tests.worlds import World, receive_some

QUEUES: dict[str, dict[str, Any]] = {}
ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"


@pytest.fixture(params=KINDS)
async def admin(
    request: pytest.FixtureRequest, broker: BrokerProcess
) -> AsyncIterator[Administrator]:
    administrator = Administrator(request.param, broker)
    yield administrator
    await administrator.close()


@pytest.fixture
async def world(admin: Administrator, broker: BrokerProcess) -> AsyncIterator[World]:
    """The messaging client of the same kind."""
    world = World(admin.kind, broker.connection_string)
    yield world
    await world.close()


def entry(inside: str = "", kind: str = "QueueDescription") -> bytes:
    return (
        f'<entry xmlns="{ATOM}"><content type="application/xml">'
        f'<{kind} xmlns="{SERVICE_BUS}">{inside}</{kind}></content></entry>'
    ).encode()


def access_rule(name: str, *rights: AccessRights) -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=list(rights),
        key_name=name,
    )


def assert_has(properties: Any, expected: dict[str, Any]) -> None:
    assert {name: getattr(properties, name) for name in expected} == expected


# --- queues -------------------------------------------------------------------------------


async def test_every_property_of_a_queue_comes_back_and_can_be_changed(
    admin: Administrator, broker: BrokerProcess
) -> None:
    name, target = f"props/{admin.kind}", f"props-target-{admin.kind}"
    await admin.create_queue(target)
    first = {
        "auto_delete_on_idle": timedelta(minutes=10),
        "dead_lettering_on_message_expiration": True,
        "default_message_time_to_live": timedelta(minutes=11, milliseconds=500),
        "duplicate_detection_history_time_window": timedelta(minutes=12),
        "enable_batched_operations": False,
        "enable_express": False,
        "enable_partitioning": True,
        "lock_duration": timedelta(seconds=13),
        "max_delivery_count": 14,
        "max_size_in_megabytes": 2048,
        "requires_duplicate_detection": True,
        "requires_session": True,
        "user_metadata": "<é & 'quoted'>\n\"lines\"",
    }
    made = await admin.create_queue(name, **first, forward_dead_lettered_messages_to=target)
    assert_has(made, first)
    got = await admin.get_queue(name)
    assert_has(got, first)
    assert got.name == name
    assert got.status == "Active"
    assert got.availability_status == "Available"
    where = f"sb://localhost:{broker.port}/{target}"
    assert (got.forward_to, got.forward_dead_lettered_messages_to) == (None, where)

    await admin.update_queue(got)
    unchanged = await admin.get_queue(name)
    assert_has(unchanged, {**first, "forward_dead_lettered_messages_to": where})

    second = {
        "auto_delete_on_idle": timedelta(days=20),
        "dead_lettering_on_message_expiration": False,
        "default_message_time_to_live": timedelta(days=21),
        "duplicate_detection_history_time_window": timedelta(seconds=22),
        "enable_batched_operations": True,
        "lock_duration": timedelta(minutes=4),
        "max_delivery_count": 24,
        "max_size_in_megabytes": 1024,
        "user_metadata": "other",
        "status": "SendDisabled",
    }
    for key, value in second.items():
        setattr(unchanged, key, value)
    unchanged.forward_to, unchanged.forward_dead_lettered_messages_to = target, None
    await admin.update_queue(unchanged)
    changed = await admin.get_queue(name)
    assert_has(changed, {**first, **second})
    assert (changed.forward_to, changed.forward_dead_lettered_messages_to) == (where, None)
    await admin.delete_queue(name)
    with pytest.raises(ResourceNotFoundError):
        await admin.get_queue(name)


async def test_queue_without_settings_has_the_defaults_of_service_bus(
    admin: Administrator,
) -> None:
    queue = await admin.create_queue(f"defaults-{admin.kind}")
    assert_has(
        queue,
        {
            "lock_duration": timedelta(minutes=1),
            "max_delivery_count": 10,
            "max_size_in_megabytes": 1024,
            "duplicate_detection_history_time_window": timedelta(minutes=10),
            "requires_session": False,
            "requires_duplicate_detection": False,
            "user_metadata": None,
        },
    )
    assert queue.default_message_time_to_live.days == 10_675_199
    assert queue.auto_delete_on_idle.days == 10_675_199


async def test_more_queues_than_a_page_are_all_listed_once(admin: Administrator) -> None:
    names = [f"paged-{admin.kind}-{number:03d}" for number in range(105)]
    for name in names:
        await admin.create_queue(name)

    def mine(listed: list[Any]) -> list[str]:
        return [each.name for each in listed if each.name.startswith(f"paged-{admin.kind}")]

    assert mine(await admin.list_queues()) == names
    assert mine(await admin.list_queues(max_page_size=40)) == names
    assert mine(await admin.list_queues_runtime_properties()) == names
    for name in names[:5]:
        await admin.delete_queue(name)
    assert mine(await admin.list_queues()) == names[5:]


@pytest.mark.quick
async def test_runtime_properties_count_the_messages_of_a_queue(
    admin: Administrator, world: World
) -> None:
    queue = f"runtime-{admin.kind}"
    await admin.create_queue(queue)
    later = datetime.now(UTC) + timedelta(hours=1)
    async with world.sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(f"{n}") for n in range(5)])
        await sender.schedule_messages(ServiceBusMessage("later"), later)
    async with world.receiver(queue) as receiver:
        one, two, three = await receive_some(receiver, 3)
        await receiver.complete_message(one)
        await receiver.dead_letter_message(two)
        await receiver.defer_message(three)
        counted = await admin.get_queue_runtime_properties(queue)
    assert_has(
        counted,
        {
            "name": queue,
            "active_message_count": 3,
            "dead_letter_message_count": 1,
            "scheduled_message_count": 1,
            "transfer_message_count": 0,
            "transfer_dead_letter_message_count": 0,
            "total_message_count": 5,
        },
    )
    assert counted.size_in_bytes > 0
    assert counted.created_at_utc <= counted.updated_at_utc <= counted.accessed_at_utc
    assert datetime.now(UTC) - counted.accessed_at_utc < timedelta(minutes=1)


# --- topics, subscriptions, rules ---------------------------------------------------------


async def test_every_property_of_a_topic_comes_back_and_can_be_changed(
    admin: Administrator,
) -> None:
    name = f"topic/props/{admin.kind}"
    first = {
        "auto_delete_on_idle": timedelta(minutes=10),
        "default_message_time_to_live": timedelta(hours=2),
        "duplicate_detection_history_time_window": timedelta(minutes=3),
        "enable_batched_operations": False,
        "enable_partitioning": True,
        "max_size_in_megabytes": 4096,
        "requires_duplicate_detection": True,
        "support_ordering": False,
        "user_metadata": "mine",
    }
    made = await admin.create_topic(name, **first)
    assert_has(made, first)
    await admin.update_topic(await admin.get_topic(name))
    got = await admin.get_topic(name)
    assert_has(got, {**first, "name": name, "status": "Active"})
    second = {
        "auto_delete_on_idle": timedelta(minutes=30),
        "default_message_time_to_live": timedelta(hours=5),
        "max_size_in_megabytes": 1024,
        "status": "SendDisabled",
        "support_ordering": True,
        "user_metadata": None,
    }
    for key, value in second.items():
        setattr(got, key, value)
    await admin.update_topic(got)
    assert_has(await admin.get_topic(name), {**first, **second})
    await admin.create_subscription(name, "s")
    assert name in [topic.name for topic in await admin.list_topics()]
    runtimes = {each.name: each for each in await admin.list_topics_runtime_properties()}
    assert runtimes[name].subscription_count == 1
    await admin.delete_topic(name)
    for missing in (admin.get_topic(name), admin.get_subscription(name, "s")):
        with pytest.raises(ResourceNotFoundError):
            await missing


async def test_every_property_of_a_subscription_comes_back_and_can_be_changed(
    admin: Administrator, broker: BrokerProcess
) -> None:
    topic, target = f"subs-{admin.kind}", f"subs-target-{admin.kind}"
    await admin.create_queue(target)
    await admin.create_topic(topic)
    first = {
        "auto_delete_on_idle": timedelta(minutes=10),
        "dead_lettering_on_filter_evaluation_exceptions": False,
        "dead_lettering_on_message_expiration": True,
        "default_message_time_to_live": timedelta(minutes=11),
        "enable_batched_operations": False,
        "lock_duration": timedelta(seconds=13),
        "max_delivery_count": 14,
        "requires_session": True,
        "user_metadata": "mine",
    }
    made = await admin.create_subscription(topic, "one", **first, forward_to=target)
    assert_has(made, first)
    got = await admin.get_subscription(topic, "one")
    where = f"sb://localhost:{broker.port}/{target}"
    assert_has(got, {**first, "name": "one", "status": "Active", "forward_to": where})
    await admin.update_subscription(topic, got)
    assert_has(await admin.get_subscription(topic, "one"), {**first, "forward_to": where})
    second = {
        "auto_delete_on_idle": timedelta(minutes=30),
        "dead_lettering_on_filter_evaluation_exceptions": True,
        "dead_lettering_on_message_expiration": False,
        "default_message_time_to_live": timedelta(hours=5),
        "enable_batched_operations": True,
        "lock_duration": timedelta(minutes=5),
        "max_delivery_count": 1,
        "status": "ReceiveDisabled",
        "user_metadata": "other",
        "forward_to": None,
    }
    for key, value in second.items():
        setattr(got, key, value)
    await admin.update_subscription(topic, got)
    assert_has(await admin.get_subscription(topic, "one"), {**first, **second})
    await admin.create_subscription(topic, "two")
    assert [each.name for each in await admin.list_subscriptions(topic)] == ["one", "two"]
    await admin.delete_subscription(topic, "one")
    runtime = await admin.list_subscriptions_runtime_properties(topic)
    assert [each.name for each in runtime] == ["two"]


async def test_runtime_properties_count_the_messages_of_a_topic_and_its_subscriptions(
    admin: Administrator, world: World
) -> None:
    topic = f"topic-runtime-{admin.kind}"
    await admin.create_topic(topic)
    for name in ("one", "two"):
        await admin.create_subscription(topic, name)
    later = datetime.now(UTC) + timedelta(hours=1)
    await publish(
        world,
        topic,
        [ServiceBusMessage("x" * 1000) for _ in range(3)],
        ServiceBusMessage("later", scheduled_enqueue_time_utc=later),
    )
    async with subscription_receiver(world, topic, "one") as receiver:
        (message,) = await receive_some(receiver, 1)
        await receiver.dead_letter_message(message)
    one = await admin.get_subscription_runtime_properties(topic, "one")
    two = await admin.get_subscription_runtime_properties(topic, "two")
    whole = await admin.get_topic_runtime_properties(topic)
    counts = ("active_message_count", "dead_letter_message_count", "total_message_count")
    assert [getattr(one, name) for name in counts] == [2, 1, 3]
    assert [getattr(two, name) for name in counts] == [3, 0, 3]
    assert (whole.subscription_count, whole.scheduled_message_count) == (2, 1)
    assert whole.size_in_bytes > 3000
    assert whole.created_at_utc <= whole.accessed_at_utc


async def test_every_kind_of_rule_comes_back_and_can_be_changed(admin: Administrator) -> None:
    topic = f"rules-{admin.kind}"
    await admin.create_topic(topic)
    await admin.create_subscription(topic, "s")
    (default,) = await admin.list_rules(topic, "s")
    assert default.name == "$Default"
    assert isinstance(default.filter, TrueRuleFilter)
    await admin.delete_rule(topic, "s", "$Default")
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    values: dict[str, Any] = {"@s": "<&>", "@i": 7, "@f": 1.5, "@b": True}
    values |= {"@t": moment, "@d": timedelta(hours=1)}
    sql = "a = @s AND b = @i AND c = @f AND d = @b AND e > @t AND f < @d"
    action = SqlRuleAction("SET x = @i; REMOVE y", {"@i": 7})
    await admin.create_rule(topic, "s", "sql", filter=SqlRuleFilter(sql, values), action=action)
    parts: dict[str, Any] = {
        "correlation_id": "c",
        "message_id": "m",
        "to": "t",
        "reply_to": "r",
        "label": "l",
        "session_id": "s",
        "reply_to_session_id": "rs",
        "content_type": "a/b",
        "properties": {"text": "x", "number": 5, "truth": False, "real": 2.5},
    }
    wanted = CorrelationRuleFilter(**parts)
    await admin.create_rule(topic, "s", "correlation", filter=wanted)
    await admin.create_rule(topic, "s", "false", filter=FalseRuleFilter())

    found = await admin.get_rule(topic, "s", "sql")
    assert found.filter.sql_expression == sql
    assert found.filter.parameters == values
    assert found.action.sql_expression == "SET x = @i; REMOVE y"
    assert found.action.parameters == {"@i": 7}
    correlation = await admin.get_rule(topic, "s", "correlation")
    assert_has(correlation.filter, parts)
    assert datetime.now(UTC) - correlation.created_at_utc < timedelta(minutes=1)

    await admin.update_rule(topic, "s", found)
    assert (await admin.get_rule(topic, "s", "sql")).filter.parameters == values
    correlation.filter = SqlRuleFilter("n = 2")
    await admin.update_rule(topic, "s", correlation)
    changed = await admin.get_rule(topic, "s", "correlation")
    assert changed.filter.sql_expression == "n = 2"
    kinds = {rule.name: type(rule.filter) for rule in await admin.list_rules(topic, "s")}
    assert kinds == {"sql": SqlRuleFilter, "correlation": SqlRuleFilter, "false": FalseRuleFilter}


async def test_namespace_tells_its_name_and_tier(admin: Administrator) -> None:
    found = await admin.get_namespace_properties()
    assert_has(
        found, {"name": "contoso", "messaging_sku": "Standard", "namespace_type": "Messaging"}
    )
    assert found.created_at_utc <= datetime.now(UTC)


# --- refusals -----------------------------------------------------------------------------


async def test_what_exists_and_what_is_missing_are_the_sdks_own_errors(
    admin: Administrator,
) -> None:
    name = f"errors-{admin.kind}"
    await admin.create_queue(name)
    await admin.create_topic(f"{name}-topic")
    await admin.create_subscription(f"{name}-topic", "s")
    queue = await admin.get_queue(name)
    for act in (
        admin.create_queue(name.upper()),
        admin.create_topic(name),
        admin.create_queue(f"{name}-topic"),
        admin.create_subscription(f"{name}-topic", "S"),
        admin.create_rule(f"{name}-topic", "s", "$default"),
    ):
        with pytest.raises(ResourceExistsError, match="already exists"):
            await act
    await admin.delete_queue(name)
    for act in (
        admin.get_queue(name),
        admin.get_queue_runtime_properties(name),
        admin.update_queue(queue),
        admin.delete_queue(name),
        admin.get_topic("nothing"),
        admin.delete_topic("nothing"),
        admin.create_subscription("nothing", "s"),
        admin.get_subscription(f"{name}-topic", "nothing"),
        admin.delete_subscription(f"{name}-topic", "nothing"),
        admin.list_subscriptions("nothing"),
        admin.create_rule(f"{name}-topic", "nothing", "r"),
        admin.get_rule(f"{name}-topic", "s", "nothing"),
        admin.delete_rule(f"{name}-topic", "s", "nothing"),
        admin.list_rules("nothing", "s"),
    ):
        with pytest.raises(ResourceNotFoundError):
            await act


async def test_what_is_fixed_at_creation_refuses_to_change(admin: Administrator) -> None:
    name = f"fixed-{admin.kind}"
    await admin.create_queue(name)
    await admin.create_topic(f"{name}-topic")
    await admin.create_subscription(f"{name}-topic", "s")
    for setting in ("requires_session", "requires_duplicate_detection", "enable_partitioning"):
        queue = await admin.get_queue(name)
        setattr(queue, setting, True)
        with pytest.raises(HttpResponseError, match=f"{setting} is fixed") as refused:
            await admin.update_queue(queue)
        assert refused.value.status_code == 400
        assert not getattr(await admin.get_queue(name), setting)
    topic = await admin.get_topic(f"{name}-topic")
    topic.requires_duplicate_detection = True
    with pytest.raises(HttpResponseError, match="is fixed"):
        await admin.update_topic(topic)
    subscription = await admin.get_subscription(f"{name}-topic", "s")
    subscription.requires_session = True
    with pytest.raises(HttpResponseError, match="is fixed"):
        await admin.update_subscription(f"{name}-topic", subscription)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lock_duration": timedelta(minutes=6)}, "LockDuration must be between"),
        ({"auto_delete_on_idle": timedelta(minutes=4)}, "AutoDeleteOnIdle must be between"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount must be between"),
        (
            {"duplicate_detection_history_time_window": timedelta(days=8)},
            "DuplicateDetectionHistoryTimeWindow must be between",
        ),
        ({"user_metadata": "x" * 1_025}, "UserMetadata has at most 1024"),
        ({"max_message_size_in_kilobytes": 1_024}, "Premium"),
        ({"forward_to": "nowhere"}, "'nowhere', which is not there"),
        ({"forward_to": "settings"}, "forward to itself"),
        ({"authorization_rules": [access_rule("m", AccessRights.MANAGE)]}, "Send and Listen too"),
    ],
)
async def test_settings_that_cannot_be_are_refused_with_a_sentence(
    admin: Administrator, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(HttpResponseError, match=text) as refused:
        await admin.create_queue("settings", **settings)
    assert refused.value.status_code == 400
    with pytest.raises(ResourceNotFoundError):
        await admin.get_queue("settings")


async def test_filter_that_is_too_long_or_wrong_is_refused_and_nothing_changed(
    admin: Administrator,
) -> None:
    topic = f"filters-{admin.kind}"
    await admin.create_topic(topic)
    await admin.create_subscription(topic, "s")
    for wanted, text in (
        (SqlRuleFilter("a = '" + "x" * 2_000 + "'"), "at most 1024"),
        (SqlRuleFilter("a = AND"), "column 5"),
        (SqlRuleFilter("a = @missing"), "@missing"),
        (CorrelationRuleFilter(), "at least one property"),
    ):
        with pytest.raises(HttpResponseError, match=text) as refused:
            await admin.create_rule(topic, "s", "r", filter=wanted)
        assert refused.value.status_code == 400
    with pytest.raises(HttpResponseError, match="column"):
        await admin.create_rule(topic, "s", "r", action=SqlRuleAction("SET"))
    assert [rule.name for rule in await admin.list_rules(topic, "s")] == ["$Default"]


def test_bad_input_gets_a_status_and_a_sentence_and_changes_nothing(broker: BrokerProcess) -> None:
    before = ask(broker, "GET", "$Resources/queues").text.count("<entry ")
    bomb = b'<!DOCTYPE e [<!ENTITY a "' + b"a" * 1000 + b'">'
    bomb += b"".join(b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(8))
    bomb += b"]><entry>&i;</entry>"
    subscription = "SubscriptionDescription"
    for path, body, status, text in (
        ("q" * 261, entry(), 400, "1 to 260 characters"),
        ("a%20b", entry(), 400, "cannot be an entity"),
        ("a%00b", entry(), 400, "cannot be an entity"),
        ("a//b", entry(), 400, "cannot be an entity"),
        ("%3Cscript%3E", entry(), 400, "cannot be an entity"),
        (f"t/subscriptions/{'s' * 51}", entry(kind=subscription), 400, "1 to 50"),
        ("t/subscriptions/a%20b", entry(kind=subscription), 400, "subscription's name"),
        (f"t/subscriptions/s/rules/{'r' * 51}", entry(kind="RuleDescription"), 400, "1 to 50"),
        ("bomb", bomb, 400, "document type"),
        ("torn", b"<entry", 400, "well-formed"),
        ("huge", b" " * (2 << 20), 413, "larger than"),
        ("nonsense", entry(kind="Nonsense"), 400, "QueueDescription"),
    ):
        answer = ask(broker, "PUT", path, body)
        assert (answer.status, text in answer.text) == (status, True), (path[:20], answer)
        assert answer.text.startswith(f"<Error><Code>{status}</Code>")
    assert ask(broker, "POST", "q", entry()).status == 405
    assert ask(broker, "GET", "$Resources/queues").text.count("<entry ") == before


# --- who may ------------------------------------------------------------------------------


async def test_wrong_key_is_an_authentication_error(
    admin: Administrator, broker: BrokerProcess
) -> None:
    text = broker.connection_string.replace("SharedAccessKey=", "SharedAccessKey=V1JPTkc")
    wrong = Administrator(admin.kind, broker, text)
    with pytest.raises(ClientAuthenticationError, match="not signed with a key") as refused:
        await wrong.create_queue("wrong")
    await wrong.close()
    assert "V1JPTkc" not in str(refused.value)
    with pytest.raises(ResourceNotFoundError):
        await admin.get_queue("wrong")


def test_no_token_or_a_bad_one_is_401_whatever_is_asked(broker: BrokerProcess) -> None:
    assert ask(broker, "PUT", "guarded", entry()).status == 201
    for method in ("GET", "PUT", "DELETE"):
        for header in ("", "Bearer x", token(broker, key="d3Jvbmc="), token(broker, "other")):
            answer = ask(broker, method, "guarded", entry(), Authorization=header)
            assert answer.status == 401, (method, header)
            assert "Unauthorized" in answer.text
    assert "QueueDescription" in ask(broker, "GET", "guarded").text


async def test_rule_that_may_listen_listens_and_may_do_nothing_else(
    admin: Administrator, world: World, broker: BrokerProcess
) -> None:
    queue = f"listen-{admin.kind}"
    made = await admin.create_queue(
        queue, authorization_rules=[access_rule("reader", AccessRights.LISTEN)]
    )
    (rule,) = made.authorization_rules
    assert (rule.key_name, rule.rights) == ("reader", ["Listen"])
    assert rule.primary_key != rule.secondary_key
    (again,) = (await admin.get_queue(queue)).authorization_rules
    assert (again.primary_key, again.secondary_key) == (rule.primary_key, rule.secondary_key)

    await world.send(queue, ServiceBusMessage("one"))
    text = (
        f"Endpoint=sb://localhost:{broker.port};SharedAccessKeyName=reader;"
        f"SharedAccessKey={rule.secondary_key};EntityPath={queue};UseDevelopmentEmulator=true"
    )
    reader = World(admin.kind, text)
    assert [str(message) for message in await reader.receive(queue)] == ["one"]
    with pytest.raises(ServiceBusAuthorizationError, match="'Send' claim is required"):
        await reader.send(queue, ServiceBusMessage("two"))
    await reader.close()
    manager = Administrator(admin.kind, broker, text.replace(f"EntityPath={queue};", ""))
    for act in (manager.get_queue(queue), manager.delete_queue(queue)):
        with pytest.raises(ClientAuthenticationError, match="Manage claim"):
            await act
    await manager.close()


# --- conditions ---------------------------------------------------------------------------


def test_update_of_what_has_changed_since_is_refused(broker: BrokerProcess) -> None:
    made = ask(broker, "PUT", "conditional", entry())
    tag = made.headers["ETag"]
    ten = entry("<LockDuration>PT10S</LockDuration>")
    twenty = entry("<LockDuration>PT20S</LockDuration>")
    first = ask(broker, "PUT", "conditional", ten, If_Match=tag)
    assert first.status == 200
    assert first.headers["ETag"] != tag
    late = ask(broker, "PUT", "conditional", twenty, If_Match=tag)
    assert late.status == 412
    assert "Read it again" in late.text
    assert "PT10S" in ask(broker, "GET", "conditional").text
    assert ask(broker, "PUT", "conditional", twenty, If_Match="*").status == 200
    assert "PT20S" in ask(broker, "GET", "conditional").text
    assert ask(broker, "PUT", "unconditional", entry(), If_Match="*").status == 404


# --- ports --------------------------------------------------------------------------------


def test_admin_port_speaks_plain_http_and_the_amqp_port_https(broker: BrokerProcess) -> None:
    assert ask(broker, "PUT", "by-http", entry(), plain=True).status == 201
    answer = ask(broker, "GET", "by-http", plain=False)
    assert '<title type="text">by-http</title>' in answer.text
    assert ask(broker, "GET", "by-http", plain=True, Authorization="").status == 401
    assert ask(broker, "GET", "health", plain=True, Authorization="").status == 200


def test_amqp_inside_tls_is_answered_with_amqp(broker: BrokerProcess) -> None:
    context = ssl.create_default_context(cafile=str(certificate(broker)))
    with (
        socket.create_connection(("localhost", broker.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        secure.sendall(b"AMQP\x03\x01\x00\x00")
        assert secure.recv(8) == b"AMQP\x03\x01\x00\x00"


# --- what messaging clients see -----------------------------------------------------------


async def _set_status(admin: Administrator, queue: str, status: str) -> None:
    properties = await admin.get_queue(queue)
    properties.status = status
    await admin.update_queue(properties)


async def test_status_is_seen_by_new_links_and_by_open_ones(
    admin: Administrator, world: World
) -> None:
    queue = f"status-{admin.kind}"
    await admin.create_queue(queue)
    async with world.sender(queue) as sender, world.receiver(queue) as receiver:
        await sender.send_messages(ServiceBusMessage("one"))
        (message,) = await receive_some(receiver, 1)
        await receiver.complete_message(message)

        await _set_status(admin, queue, "SendDisabled")
        with pytest.raises(MessagingEntityDisabledError, match="disabled for sending"):
            await sender.send_messages(ServiceBusMessage("two"))
        with pytest.raises(MessagingEntityDisabledError):
            await world.send(queue, ServiceBusMessage("two"))

        await _set_status(admin, queue, "ReceiveDisabled")
        await sender.send_messages(ServiceBusMessage("three"))
        with pytest.raises(MessagingEntityDisabledError, match="disabled for receiving"):
            await receive_some(receiver, 1)

        await _set_status(admin, queue, "Disabled")
        with pytest.raises(MessagingEntityDisabledError):
            await sender.send_messages(ServiceBusMessage("four"))

        await _set_status(admin, queue, "Active")
        (message,) = await receive_some(receiver, 1)
        assert str(message) == "three"


async def test_deletion_is_seen_by_open_links(admin: Administrator, world: World) -> None:
    queue = f"deleted-{admin.kind}"
    await admin.create_queue(queue)
    async with world.sender(queue) as sender, world.receiver(queue) as receiver:
        await sender.send_messages(ServiceBusMessage("one"))
        assert len(await receive_some(receiver, 1)) == 1
        waiting = asyncio.ensure_future(receiver.receive_messages(1, max_wait_time=20))
        await asyncio.sleep(0.5)
        await admin.delete_queue(queue)
        with pytest.raises(MessagingEntityNotFoundError):
            await waiting
        with pytest.raises(MessagingEntityNotFoundError):
            await sender.send_messages(ServiceBusMessage("two"))
    await admin.create_queue(queue)
    assert await world.peek(queue) == []
