"""`twinbus broker --config`: the emulator's config.json and our TOML, good ones and bad ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleFilter
from harness.brokers import KEY, BrokerProcess
from tests.integration.administrators import (
    KINDS,
    Administrator,
    publish,
    subscription_receiver,
)
from tests.worlds import World, receive_some

from twinbus.broker.config import ConfigError
from twinbus.broker.document import read_toml
from twinbus.broker.emulator import read_emulator

TWINBUS = str(Path(sys.executable).with_name("twinbus"))

EMULATOR: dict[str, Any] = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "first",
                        "Properties": {
                            "DeadLetteringOnMessageExpiration": True,
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "ForwardDeadLetteredMessagesTo": "",
                            "ForwardTo": "second",
                            "LockDuration": "PT1M",
                            "MaxDeliveryCount": 3,
                            "RequiresDuplicateDetection": False,
                            "RequiresSession": False,
                        },
                    },
                    {"Name": "second", "Properties": {"ForwardTo": "queue.1"}},
                    {
                        "Name": "queue.1",
                        "Properties": {"RequiresDuplicateDetection": True, "MaxDeliveryCount": 7},
                    },
                ],
                "Topics": [
                    {
                        "Name": "topic.1",
                        "Properties": {"DefaultMessageTimeToLive": "PT2H"},
                        "Subscriptions": [
                            {
                                "Name": "correlated",
                                "Properties": {"LockDuration": "PT30S", "ForwardTo": ""},
                                "Rules": [
                                    {
                                        "Name": "system",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {
                                                "ContentType": "application/text",
                                                "CorrelationId": "id1",
                                                "Label": "subject1",
                                                "MessageId": "msgid1",
                                                "ReplyTo": "someQueue",
                                                "ReplyToSessionId": "sessionId",
                                                "SessionId": "session1",
                                                "To": "xyz",
                                            },
                                        },
                                    },
                                    {
                                        "Name": "user",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {"Properties": {"prop1": "v1"}},
                                        },
                                    },
                                ],
                            },
                            {
                                "Name": "sql",
                                "Properties": {"RequiresSession": False},
                                "Rules": [
                                    {
                                        "Name": "acts",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {"SqlExpression": "prop1 = 'v1'"},
                                            "Action": {"SqlExpression": "SET sys.To = 'Entity'"},
                                        },
                                    }
                                ],
                            },
                            {"Name": "all", "Properties": {}},
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}

TOML = """
[[namespace]]
name = "contoso"
port = 0
admin_port = 0

[[namespace.queue]]
name = "orders"
lock_duration = "PT30S"
forward_dead_letters_to = "graves"

[[namespace.queue]]
name = "graves"
max_delivery_count = 3

[[namespace.topic]]
name = "events"
default_ttl = 3600

[[namespace.topic.subscription]]
name = "audit"
requires_session = true

[[namespace.topic.subscription]]
name = "large"
forward_to = "orders"
[[namespace.topic.subscription.rule]]
name = "by-amount"
sql = "amount > 1000"
action = "SET size = 'large'"
[[namespace.topic.subscription.rule]]
name = "by-label"
correlation = { label = "big", properties = { colour = "red", n = 1 } }
"""


class Configured(BrokerProcess):
    """A broker that is started with a file."""

    def __init__(self, folder: Path, config: Path, *extra: str) -> None:
        super().__init__(folder, {}, extra=extra)
        self.config = config

    def start(self) -> None:
        command = [TWINBUS, "broker", "--config", str(self.config)]
        command += ["--data", str(self.folder / "data"), *self.extra]
        with (self.folder / "broker.log").open("a") as log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "TWINBUS_KEY": KEY},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log()
        self.connection_string = line.split(": ", 1)[1].strip()
        self.port = int(self.connection_string.split(";")[0].rsplit(":", 1)[1])


@pytest.mark.parametrize("kind", KINDS)
async def test_emulators_config_gives_its_entities_and_rules(tmp_path: Path, kind: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(EMULATOR, indent=2))
    broker = Configured(tmp_path, config, "--port", "0", "--admin-port", "0")
    broker.start()
    admin, world = Administrator(kind, broker), World(kind, broker.connection_string)
    assert (await admin.get_namespace_properties()).name == "sbemulatorns"
    queues = {queue.name: queue for queue in await admin.list_queues()}
    assert list(queues) == ["first", "queue.1", "second"]
    assert queues["first"].default_message_time_to_live == timedelta(hours=1)
    assert queues["first"].forward_to.endswith("/second")
    assert queues["first"].forward_dead_lettered_messages_to is None
    assert queues["queue.1"].requires_duplicate_detection
    assert queues["queue.1"].max_delivery_count == 7
    topic = await admin.get_topic("topic.1")
    assert topic.default_message_time_to_live == timedelta(hours=2)
    correlated = await admin.get_subscription("topic.1", "correlated")
    assert correlated.lock_duration == timedelta(seconds=30)
    rules = {rule.name: rule for rule in await admin.list_rules("topic.1", "correlated")}
    assert set(rules) == {"system", "user"}
    assert isinstance(rules["system"].filter, CorrelationRuleFilter)
    assert rules["system"].filter.reply_to_session_id == "sessionId"
    (acts,) = await admin.list_rules("topic.1", "sql")
    assert isinstance(acts.filter, SqlRuleFilter)
    assert [rule.name for rule in await admin.list_rules("topic.1", "all")] == ["$Default"]

    matching = ServiceBusMessage("a", application_properties={"prop1": "v1"})
    await publish(world, "topic.1", matching, ServiceBusMessage("b"))
    delete = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with subscription_receiver(world, "topic.1", "sql", receive_mode=delete) as receiver:
        (message,) = await receive_some(receiver, 1)
    assert (str(message), message.to) == ("a", "Entity")
    runtime = await admin.list_subscriptions_runtime_properties("topic.1")
    counts = {each.name: each.active_message_count for each in runtime}
    assert counts == {"correlated": 1, "sql": 0, "all": 2}
    await world.send("first", ServiceBusMessage("forwarded"))
    assert [str(message) for message in await world.receive("queue.1")] == ["forwarded"]

    # What is there from an earlier run stays as it is, with its messages.
    changed = await admin.get_queue("queue.1")
    changed.max_delivery_count = 9
    await admin.update_queue(changed)
    await admin.delete_rule("topic.1", "correlated", "user")
    await admin.close()
    broker.kill()
    broker.extra = ("--port", str(broker.port), "--admin-port", "0")
    broker.start()
    admin = Administrator(kind, broker)
    assert (await admin.get_queue("queue.1")).max_delivery_count == 9
    assert len(await admin.list_rules("topic.1", "correlated")) == 1
    runtime = await admin.get_subscription_runtime_properties("topic.1", "all")
    assert runtime.active_message_count == 2
    await world.close()
    await admin.close()
    broker.close()
    assert "Traceback" not in broker.log()


async def test_our_toml_gives_topics_subscriptions_and_rules(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(TOML)
    broker = Configured(tmp_path, config)
    broker.start()
    admin = Administrator("blocking", broker)
    assert [queue.name for queue in await admin.list_queues()] == ["graves", "orders"]
    topic = await admin.get_topic("events")
    assert topic.default_message_time_to_live == timedelta(hours=1)
    assert (await admin.get_subscription("events", "audit")).requires_session
    large = await admin.get_subscription("events", "large")
    assert large.forward_to.endswith("/orders")
    by_amount, by_label = await admin.list_rules("events", "large")
    assert by_amount.filter.sql_expression == "amount > 1000"
    assert by_amount.action.sql_expression == "SET size = 'large'"
    assert by_label.filter.label == "big"
    assert by_label.filter.properties == {"colour": "red", "n": 1}
    await admin.close()
    broker.close()


# --- refusals -----------------------------------------------------------------------------


def _emulator_line(text: str, name: str) -> int:
    """The last line that has the name: each case below puts its fault there."""
    return max(n for n, line in enumerate(text.splitlines(), 1) if name in line)


def changed(*path: Any, to: Any) -> dict[str, Any]:
    """The emulator's sample with one thing changed."""
    config: dict[str, Any] = json.loads(json.dumps(EMULATOR))
    at: Any = config["UserConfig"]["Namespaces"][0]
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = to
    return config


QUEUE = ("Queues", 2, "Properties")
RULE = ("Topics", 0, "Subscriptions", 1, "Rules", 0, "Properties")
SYSTEM = ("Topics", 0, "Subscriptions", 0, "Rules", 0)


@pytest.mark.parametrize(
    ("config", "name", "text"),
    [
        (changed(*QUEUE, to={"LockTime": "PT1M"}), "LockTime", "'LockTime' is not known"),
        (changed(*QUEUE, to={"LockDuration": "soon"}), "soon", "'soon'"),
        (changed(*QUEUE, to={"LockDuration": "PT10M"}), "queue.1", "LockDuration must be between"),
        (changed(*QUEUE, to={"MaxDeliveryCount": "7"}), '"7"', "'7' is not of type int"),
        (changed(*QUEUE, to={"RequiresSession": "yes"}), '"yes"', "not of type bool"),
        (changed(*QUEUE, to={"Status": "Asleep"}), "Asleep", "'Asleep' is not a status"),
        (changed(*QUEUE, to=["x"]), "", "'Properties' is not an object"),
        (changed(*QUEUE, to={"ForwardTo": "nowhere"}), "", "'nowhere', which is not declared"),
        (changed(*QUEUE, to={"ForwardTo": "first"}), "", "forward in a circle"),
        (changed("Queues", 2, "Name", to="a b"), '"a b"', "'a b' cannot be an entity's path"),
        (changed("Queues", 2, "Name", to=""), "", "a queue has no 'Name'"),
        (changed("Queues", 2, "Name", to="second"), "", "'second' is declared twice"),
        (changed("Topics", 0, "Name", to="SECOND"), "", "'SECOND' of 'sbemulatorns' is declared"),
        (changed("Queues", to={}), '"Queues"', "'Queues' is not a list"),
        (changed(*RULE, "FilterType", to="Magic"), '"acts"', "FilterType is 'Magic'"),
        (
            changed(*RULE, "SqlFilter", to={"SqlExpression": "a = "}),
            '"acts"',
            "the rule 'acts': line 1, column",
        ),
        (
            changed(*RULE, "SqlFilter", to={"SqlExpression": "a = '" + "x" * 2000 + "'"}),
            '"acts"',
            "at most 1024",
        ),
        (changed(*RULE, "SqlFilter", to={}), '"acts"', "SqlExpression"),
        (changed(*RULE, "Action", to={"SqlExpression": "SET"}), '"acts"', "the rule 'acts'"),
        (
            changed(*SYSTEM, "Properties", "CorrelationFilter", to={"Colour": "red"}),
            "Colour",
            "'Colour' is not known",
        ),
        (
            changed(*SYSTEM, "Properties", "CorrelationFilter", to={}),
            '"system"',
            "at least one property",
        ),
        (changed(*SYSTEM, "Name", to="user"), "", "the rule 'user' is declared twice"),
        (
            changed("Topics", 0, "Subscriptions", 2, "Name", to="SQL"),
            '"SQL"',
            "'SQL' is declared twice",
        ),
        (changed("Topics", 0, "Subscriptions", 2, "Name", to="s" * 51), "sss", "1 to 50"),
        (changed("Name", to="a/b"), '"a/b"', "cannot be a namespace's name"),
        ({"UserConfig": {"Namespaces": []}}, "", "has no 'Namespaces'"),
        ({"Namespaces": []}, "", "there is no 'UserConfig'"),
        ([], "", "there is no 'UserConfig'"),
    ],
)
def test_wrong_emulator_config_is_refused_with_the_line_and_the_reason(
    tmp_path: Path, config: Any, name: str, text: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config, indent=2))
    with pytest.raises(ConfigError) as refused:
        read_emulator(path, None, None)
    said = str(refused.value)
    found = re.search(r"config\.json, line (\d+)", said)
    assert found is not None, said
    assert text in said
    if name:
        assert int(found[1]) == _emulator_line(path.read_text(), name), said


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ('"PT30S"', '"soon"', 9, "'soon'"),
        ("lock_duration", "lock_time", 9, "'lock_time' is not known"),
        ('"PT30S"', '"PT10M"', 8, "LockDuration must be between"),
        ("max_delivery_count = 3", 'max_delivery_count = "3"', 14, "'3' is not of type int"),
        ('name = "graves"', "", None, "a queue has no name"),
        ('name = "graves"', 'name = "ORDERS"', 13, "declared twice"),
        ('name = "graves"', 'name = "gr aves"', 13, "cannot be an entity's path"),
        ('letters_to = "graves"', 'letters_to = "none"', None, "'none', which is not declared"),
        ('name = "large"', 'name = "audit"', None, "'audit' is declared twice"),
        ('"amount > 1000"', '"amount >"', 28, "column"),
        ('"SET size', '"SIT size', 28, "column"),
        ('name = "by-label"', 'name = "by-amount"', None, "'by-amount' is declared twice"),
        ('name = "by-label"', 'name = "by-label"\nsql = "1=1"', 32, "both sql and correlation"),
        ("label =", "lable =", 33, "lable"),
        ('label = "big"', "label = 7", 32, "label of a correlation filter is compared as text"),
        ("port = 0\n", "port = 70000\n", 3, "70000; use 0 to 65535"),
        ("port = 0\n", 'port = "0"\n', 4, "'0' is not of type int"),
        ('name = "events"', "name = events", None, "is not TOML"),
        ("[[namespace]]", "[[namespaces]]", 2, "'namespaces' is not known"),
    ],
)
def test_wrong_toml_is_refused_with_the_line_and_the_reason(
    tmp_path: Path, old: str, new: str, line: int | None, text: str
) -> None:
    path = tmp_path / "broker.toml"
    assert old in TOML
    path.write_text(TOML.replace(old, new, 1))
    with pytest.raises(ConfigError) as refused:
        read_toml(path)
    said = str(refused.value)
    assert text in said
    found = re.search(r"line (\d+)", said)
    assert found is not None, said
    if line is not None:
        assert int(found[1]) == line, said


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [TWINBUS, "broker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_command_refuses_with_exit_code_2_and_creates_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    torn = tmp_path / "torn.json"
    torn.write_text('{\n  "UserConfig": {\n')
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(changed(*RULE, "FilterType", to="Magic"), indent=2))
    toml = tmp_path / "wrong.toml"
    toml.write_text(TOML.replace("sql =", "sqll ="))
    for path, text in (
        (torn, "torn.json, line 3: this is not JSON"),
        (wrong, "FilterType is 'Magic'"),
        (toml, "wrong.toml, line 29"),
        (tmp_path / "none.toml", "cannot be read"),
    ):
        answer = run("--config", str(path), "--data", str(data))
        assert answer.returncode == 2, answer
        assert answer.stderr.startswith("twinbus: ")
        assert text in answer.stderr
        assert answer.stdout == ""
        assert "Traceback" not in answer.stderr
    assert not data.exists()


def test_declaring_a_topic_where_there_is_a_queue_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    head = '[[namespace]]\nname = "contoso"\nport = 0\nadmin_port = 0\n'
    config.write_text(head + '[[namespace.queue]]\nname = "x"\n')
    broker = Configured(tmp_path, config)
    broker.start()
    broker.kill()
    config.write_text(
        head + '[[namespace.queue]]\nname = "y"\n[[namespace.topic]]\nname = "X"\n'
        '[[namespace.topic.subscription]]\nname = "s"\n'
    )
    answer = run("--config", str(config), "--data", str(tmp_path / "data"))
    assert answer.returncode == 2
    assert "is declared as a topic, but the data folder has a queue" in answer.stderr
    assert "Traceback" not in answer.stderr
