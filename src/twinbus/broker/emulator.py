"""The configuration file of Microsoft's emulator, so that people can bring theirs along.

It is translated to our own document, whose reader then speaks of it in the words of this file. Its
settings have other names than ours and one form more: a rule says its filter's type. What it says
about ports is nothing; those come from the command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twinbus.broker.config import DEFAULT_ADMIN_PORT, DEFAULT_PORT, ConfigError, NamespaceConfig
from twinbus.broker.document import FilePlace, read_document, read_text
from twinbus.broker.rules import CORRELATED

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
    **{name.title().replace("_", ""): name for name in CORRELATED},
    "Subject": "label",
    "Properties": "properties",
}
# How the document's keys are spelled in the emulator's file.
_SPELLING = {
    "namespace": "Namespaces",
    "queue": "Queues",
    "topic": "Topics",
    "subscription": "Subscriptions",
    "rule": "Rules",
    "name": "Name",
    **{ours: theirs for theirs, ours in (_CORRELATION | _SETTINGS).items()},
}


def read_emulator(
    path: Path, ports: list[int] | None, admin_ports: list[int] | None
) -> list[NamespaceConfig]:
    """The namespaces of an emulator's config.json."""
    text = read_text(path)
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}, line {error.lineno}: this is not JSON: {error.msg} (column {error.colno})"
        ) from error
    place = FilePlace(path, text)
    user = found.get("UserConfig") if isinstance(found, dict) else None
    if not isinstance(user, dict):
        place.refuse("there is no 'UserConfig'")
    if not user.get("Namespaces"):
        place.refuse("'UserConfig' has no 'Namespaces'")
    namespaces = _each(user["Namespaces"], _namespace, place)
    if isinstance(namespaces, list):
        for index, each in enumerate(namespaces):
            if isinstance(each, dict):
                each["port"] = _nth(ports, index, DEFAULT_PORT, len(namespaces))
                each["admin_port"] = _nth(admin_ports, index, DEFAULT_ADMIN_PORT, len(namespaces))
    return read_document({"namespace": namespaces}, FilePlace(path, text, spelling=_SPELLING))


def _nth(given: list[int] | None, index: int, default: int, count: int) -> int:
    if given is None:
        return default + index
    if len(given) != count:
        raise ConfigError(f"the file has {count} namespaces; give {count} ports, not {len(given)}")
    return given[index]


def _each(
    items: Any, translate: Callable[[dict[str, Any], FilePlace], dict[str, Any]], place: FilePlace
) -> Any:
    """Each of a list, translated. What is no list of objects stays, for the reader to refuse."""
    if not isinstance(items, list):
        return items
    return [_named(item, translate, place) if isinstance(item, dict) else item for item in items]


def _named(
    item: dict[str, Any],
    translate: Callable[[dict[str, Any], FilePlace], dict[str, Any]],
    place: FilePlace,
) -> dict[str, Any]:
    name = item.get("Name")
    at = place.named(name) if isinstance(name, str) and name else place
    return {"name": name, **translate(item, at)}


def _namespace(item: dict[str, Any], place: FilePlace) -> dict[str, Any]:
    return {
        "queue": _each(item.get("Queues"), _settings, place),
        "topic": _each(item.get("Topics"), _topic, place),
    }


def _topic(item: dict[str, Any], place: FilePlace) -> dict[str, Any]:
    subscriptions = _each(item.get("Subscriptions"), _subscription, place)
    return {**_settings(item, place), "subscription": subscriptions}


def _subscription(item: dict[str, Any], place: FilePlace) -> dict[str, Any]:
    return {**_settings(item, place), "rule": _each(item.get("Rules"), _rule, place)}


def _rule(item: dict[str, Any], place: FilePlace) -> dict[str, Any]:
    properties = _object(item, "Properties", place)
    action = _object(properties, "Action", place).get("SqlExpression")
    rule = {} if action is None else {"action": action}
    kind = properties.get("FilterType")
    if kind == "Sql":
        sql = _object(properties, "SqlFilter", place).get("SqlExpression")
        if sql is None:
            place.refuse("the rule's SqlFilter has no 'SqlExpression'")
        return {**rule, "sql": sql}
    if kind != "Correlation":
        place.refuse(f"the rule's FilterType is {kind!r}; it can be 'Sql' or 'Correlation'")
    given = _object(properties, "CorrelationFilter", place)
    return {**rule, "correlation": _renamed(given, _CORRELATION, place)}


def _settings(item: dict[str, Any], place: FilePlace) -> dict[str, Any]:
    settings = _renamed(_object(item, "Properties", place), _SETTINGS, place)
    # The emulator writes an empty string where nothing is meant.
    return {name: each for name, each in settings.items() if each != ""}


def _renamed(given: dict[str, Any], names: dict[str, str], place: FilePlace) -> dict[str, Any]:
    for key in given:
        if key not in names:
            place.inside(key).refuse(f"'{key}' is not known; known are {', '.join(sorted(names))}")
    return {names[key]: value for key, value in given.items()}


def _object(item: dict[str, Any], key: str, place: FilePlace) -> dict[str, Any]:
    value = item.get(key) or {}
    if not isinstance(value, dict):
        place.inside(key).refuse(f"'{key}' is not an object")
    return dict(value)
