"""The configuration file of Microsoft's emulator, so that people can bring theirs along.

Its settings have other names than ours and one form more: a rule says its filter's type. What it
says about ports is nothing; those come from the command line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from twinbus.broker.config import (
    DEFAULT_ADMIN_PORT,
    DEFAULT_PORT,
    ConfigError,
    NamespaceConfig,
    Place,
    SubscriptionConfig,
    TopicConfig,
    check_rules,
    check_together,
    describe,
    make_rule,
    read_text,
    tables,
)
from twinbus.broker.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    check_name,
    check_path,
)
from twinbus.broker.refusals import DescriptionError
from twinbus.broker.rules import Rule

D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription)

_SETTINGS = {
    "AutoDeleteOnIdle": "auto_delete_on_idle",
    "DeadLetteringOnFilterEvaluationExceptions": "dead_lettering_on_filter_errors",
    "DeadLetteringOnMessageExpiration": "dead_lettering_on_expiration",
    "DefaultMessageTimeToLive": "default_ttl",
    "DuplicateDetectionHistoryTimeWindow": "duplicate_window",
    "EnableBatchedOperations": "enable_batched_operations",
    "EnablePartitioning": "enable_partitioning",
    "ForwardDeadLetteredMessagesTo": "forward_dead_letters_to",
    "ForwardTo": "forward_to",
    "LockDuration": "lock_duration",
    "MaxDeliveryCount": "max_delivery_count",
    "MaxSizeInMegabytes": "max_size_mb",
    "RequiresDuplicateDetection": "requires_duplicate_detection",
    "RequiresSession": "requires_session",
    "Status": "status",
    "UserMetadata": "user_metadata",
}
_CORRELATION = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "label",
    "Subject": "label",
    "MessageId": "message_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
    "Properties": "properties",
}


def read_emulator(
    path: Path, ports: list[int] | None, admin_ports: list[int] | None
) -> list[NamespaceConfig]:
    """The namespaces of an emulator's config.json."""
    text = read_text(path)
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}, line {error.lineno}: this is not JSON: {error.msg} (column {error.colno})"
        ) from error
    place = Place(path, text)
    user = document.get("UserConfig") if isinstance(document, dict) else None
    if not isinstance(user, dict):
        place.refuse("there is no 'UserConfig'")
    items = tables(user.get("Namespaces"), "Namespaces", place)
    if not items:
        place.refuse("'UserConfig' has no 'Namespaces'")
    namespaces = []
    for index, item in enumerate(items):
        port = _nth(ports, index, DEFAULT_PORT, len(items))
        admin_port = _nth(admin_ports, index, DEFAULT_ADMIN_PORT, len(items))
        namespaces.append(_namespace(item, port, admin_port, place))
    check_together(namespaces)
    return namespaces


def _nth(given: list[int] | None, index: int, default: int, count: int) -> int:
    if given is None:
        return default + index
    if len(given) != count:
        raise ConfigError(f"the file has {count} namespaces; give {count} ports, not {len(given)}")
    return given[index]


def _namespace(item: dict[str, Any], port: int, admin_port: int, place: Place) -> NamespaceConfig:
    name = _name(item, "namespace", place)
    place = place.named(name)
    try:
        namespace = NamespaceConfig(name, port, admin_port)
    except ConfigError as error:
        place.refuse(error, error)
    for queue in tables(item.get("Queues"), "Queues", place):
        path, at = _path(queue, namespace.queues, "queue", place)
        namespace.queues[path] = _describe(QueueDescription, queue, at)
    for topic in tables(item.get("Topics"), "Topics", place):
        path, at = _path(topic, namespace.topics, "topic", place)
        config = namespace.topics[path] = TopicConfig(_describe(TopicDescription, topic, at))
        for subscription in tables(topic.get("Subscriptions"), "Subscriptions", at):
            _subscription(subscription, config, at)
    try:
        namespace.check()
    except ConfigError as error:
        place.refuse(error, error)
    return namespace


def _subscription(item: dict[str, Any], topic: TopicConfig, place: Place) -> None:
    name = _name(item, "subscription", place)
    place = place.named(name)
    try:
        check_name(name, "subscription")
    except DescriptionError as error:
        place.refuse(error, error)
    if name.lower() in {each.lower() for each in topic.subscriptions}:
        place.refuse(f"the subscription '{name}' is declared twice")
    config = SubscriptionConfig(_describe(SubscriptionDescription, item, place))
    config.rules = [_rule(rule, place) for rule in tables(item.get("Rules"), "Rules", place)]
    check_rules(config.rules, place)
    topic.subscriptions[name] = config


def _rule(item: dict[str, Any], place: Place) -> Rule:
    name = _name(item, "rule", place)
    place = place.named(name)
    properties = _object(item, "Properties", place)
    kind = properties.get("FilterType")
    action = _object(properties, "Action", place).get("SqlExpression")
    if kind == "Sql":
        sql = _object(properties, "SqlFilter", place).get("SqlExpression")
        if sql is None:
            place.refuse("the rule's SqlFilter has no 'SqlExpression'")
        return make_rule(name, sql, None, action, place)
    if kind != "Correlation":
        place.refuse(f"the rule's FilterType is {kind!r}; it can be 'Sql' or 'Correlation'")
    given = _object(properties, "CorrelationFilter", place)
    return make_rule(name, None, _renamed(given, _CORRELATION, place), action, place)


def _describe(kind: type[D], item: dict[str, Any], place: Place) -> D:
    settings = _renamed(_object(item, "Properties", place), _SETTINGS, place)
    place = place.spelled({ours: theirs for theirs, ours in _SETTINGS.items()})
    # The emulator writes an empty string where nothing is meant.
    return describe(kind, {name: each for name, each in settings.items() if each != ""}, place)


def _renamed(given: dict[str, Any], names: dict[str, str], place: Place) -> dict[str, Any]:
    for key in given:
        if key not in names:
            place.inside(key).refuse(f"'{key}' is not known; known are {', '.join(sorted(names))}")
    return {names[key]: value for key, value in given.items()}


def _object(item: dict[str, Any], key: str, place: Place) -> dict[str, Any]:
    value = item.get(key) or {}
    if not isinstance(value, dict):
        place.inside(key).refuse(f"'{key}' is not an object")
    return dict(value)


def _name(item: dict[str, Any], what: str, place: Place) -> str:
    name = item.get("Name")
    if not isinstance(name, str) or not name:
        place.refuse(f"a {what} has no 'Name'")
    return name


def _path(
    item: dict[str, Any], known: dict[str, Any], what: str, place: Place
) -> tuple[str, Place]:
    path = _name(item, what, place)
    place = place.named(path)
    try:
        check_path(path)
    except DescriptionError as error:
        place.refuse(error, error)
    if path in known:
        place.refuse(f"the {what} '{path}' is declared twice")
    return path, place
