"""The emulator's file is translated to the document that our TOML is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinbus.broker.config import ConfigError, NamespaceConfig
from twinbus.broker.document import read_toml
from twinbus.broker.emulator import read_emulator

TOML = """
[[namespace]]
name = "n"
port = 7000
admin_port = 7001

[[namespace.queue]]
name = "orders"
lock_duration = "PT30S"
max_delivery_count = 3
status = "SendDisabled"

[[namespace.topic]]
name = "events"
requires_duplicate_detection = true
[[namespace.topic.subscription]]
name = "large"
forward_to = "orders"
[[namespace.topic.subscription.rule]]
name = "by-amount"
sql = "amount > 1000"
action = "SET size = 'large'"
[[namespace.topic.subscription.rule]]
name = "by-label"
correlation = { label = "big", properties = { n = 1 } }
"""
SUBSCRIPTION: dict[str, Any] = {
    "Name": "large",
    "Properties": {"ForwardTo": "orders", "ForwardDeadLetteredMessagesTo": ""},
    "Rules": [
        {
            "Name": "by-amount",
            "Properties": {
                "FilterType": "Sql",
                "SqlFilter": {"SqlExpression": "amount > 1000"},
                "Action": {"SqlExpression": "SET size = 'large'"},
            },
        },
        {
            "Name": "by-label",
            "Properties": {
                "FilterType": "Correlation",
                "CorrelationFilter": {"Subject": "big", "Properties": {"n": 1}},
            },
        },
    ],
}
NAMESPACE: dict[str, Any] = {
    "Name": "n",
    "Queues": [
        {
            "Name": "orders",
            "Properties": {
                "LockDuration": "PT30S",
                "MaxDeliveryCount": 3,
                "Status": "SendDisabled",
                "UserMetadata": "",
            },
        }
    ],
    "Topics": [
        {
            "Name": "events",
            "Properties": {"RequiresDuplicateDetection": True},
            "Subscriptions": [SUBSCRIPTION],
        }
    ],
}


def read(folder: Path, *namespaces: Any, ports: list[int] | None = None) -> list[NamespaceConfig]:
    path = folder / "config.json"
    path.write_text(json.dumps({"UserConfig": {"Namespaces": list(namespaces)}}, indent=2))
    admin_ports = None if ports is None else [port + 1 for port in ports]
    return read_emulator(path, ports, admin_ports)


def test_both_files_may_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text(TOML)
    assert read(tmp_path, NAMESPACE, ports=[7000]) == read_toml(tmp_path / "broker.toml")


def test_each_namespace_has_ports_of_its_own(tmp_path: Path) -> None:
    two = [{"Name": "a"}, {"Name": "b", "Queues": None, "Topics": []}]
    assert [(each.port, each.admin_port) for each in read(tmp_path, *two)] == [
        (5672, 5300),
        (5673, 5301),
    ]
    assert [each.port for each in read(tmp_path, *two, ports=[7, 9])] == [7, 9]
    with pytest.raises(ConfigError, match="the file has 2 namespaces; give 2 ports, not 1"):
        read(tmp_path, *two, ports=[7])
    with pytest.raises(ConfigError, match=r"config\.json: port 8 is given to 'a' and to 'b'"):
        read(tmp_path, *two, ports=[7, 8])


@pytest.mark.parametrize(
    ("namespace", "sentence"),
    [
        ("x", "'Namespaces' is not a list of tables"),
        ({}, "a namespace has no 'Name'"),
        ({"Name": "n", "Queues": ["x"]}, "(n.Queues): 'Queues' is not a list of tables"),
        ({"Name": "n", "Queues": [{}]}, "(n.Queues): a queue has no 'Name'"),
        ({"Name": "n", "Topics": [{"Name": 5}]}, "(n.Topics): a topic has no 'Name'"),
        (
            {"Name": "n", "Topics": [{"Name": "t", "Subscriptions": [{"Properties": {}}]}]},
            "(n.t.Subscriptions): a subscription has no 'Name'",
        ),
        (
            {"Name": "n", "Queues": [{"Name": "q", "Properties": {"lock_duration": 5}}]},
            "(n.q.lock_duration): 'lock_duration' is not known; known are AutoDeleteOnIdle",
        ),
        (
            {"Name": "n", "Topics": [{"Name": "t", "Properties": {"ForwardTo": "q"}}]},
            "(n.t.ForwardTo): 'ForwardTo' is not known; known are AutoDeleteOnIdle",
        ),
        (
            {"Name": "n", "Queues": [{"Name": "q", "Properties": {"LockDuration": "soon"}}]},
            "line 10 (n.q.LockDuration): ",
        ),
    ],
)
def test_a_mistake_is_told_in_the_words_of_the_file(
    tmp_path: Path, namespace: Any, sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, namespace)
    assert sentence in str(caught.value)
