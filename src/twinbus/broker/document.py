"""The configuration document: what a file says of namespaces, checked, with the line of a mistake.

    [[namespace]]
    name = "contoso"
    port = 5672
    admin_port = 5300

    [[namespace.queue]]
    name = "orders"
    lock_duration = "PT30S"        # durations: ISO 8601, or a number of seconds

    [[namespace.topic]]
    name = "events"
    [[namespace.topic.subscription]]
    name = "audit"
    [[namespace.topic.subscription.rule]]
    name = "large"
    sql = "amount > 1000"          # or: correlation = { label = "x", properties = { a = 1 } }
    action = "SET size = 'large'"

A TOML file is such a document; the emulator's config.json is translated to one (`emulator`), whose
mistakes are told in the words of that file. One that is wrong in any place is refused whole.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from twinbus.broker.config import (
    DEFAULT_ADMIN_PORT,
    DEFAULT_PORT,
    ConfigError,
    NamespaceConfig,
    SubscriptionConfig,
    TopicConfig,
    check_together,
)
from twinbus.broker.descriptions import (
    FOREVER,
    QueueDescription,
    Status,
    SubscriptionDescription,
    TopicDescription,
    check_name,
    check_path,
)
from twinbus.broker.durations import parse_span
from twinbus.broker.refusals import ArgumentError, DescriptionError
from twinbus.broker.rules import CorrelationFilter, Rule, SqlFilter, SqlRuleAction, TrueFilter

D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription)


class FilePlace:
    """Where in a file we are, by the names that lead there; finds the line to complain about."""

    def __init__(
        self,
        path: Path,
        text: str,
        steps: tuple[tuple[str, str], ...] = (),
        spelling: dict[str, str] | None = None,
    ) -> None:
        self.path = path
        self._text = text
        self._steps = steps
        self._spelling = spelling or {}

    def inside(self, key: str) -> FilePlace:
        """At a key, found as a whole: "order" is not in "orders", nor "q" in "queue"."""
        key = self.spell(key)
        return self._step(key, rf"(?<![\w/-]){re.escape(key)}(?![./]?[\w-])")

    def named(self, name: str) -> FilePlace:
        """At the thing that has this name, not at another one that mentions it."""
        return self._step(name, rf"""(?i:name)"?\s*[:=]\s*["']{re.escape(name)}["']""")

    def spell(self, key: str) -> str:
        """A key of ours as the file has it."""
        return self._spelling.get(key, key)

    def spell_all(self, keys: set[str]) -> str:
        """Those of our keys that the file may have."""
        spelling = self._spelling or {key: key for key in keys}
        return ", ".join(sorted(spelling[key] for key in keys if key in spelling))

    def _step(self, name: str, pattern: str) -> FilePlace:
        return FilePlace(self.path, self._text, (*self._steps, (name, pattern)), self._spelling)

    def refuse(self, reason: object, cause: Exception | None = None) -> NoReturn:
        where = f" ({'.'.join(name for name, _ in self._steps)})" if self._steps else ""
        raise ConfigError(f"{self.path}, line {self._line()}{where}: {reason}") from cause

    def _line(self) -> int:
        """The line of the last step, each looked for behind the one before it."""
        at = 0
        for _, pattern in self._steps:
            found = re.compile(pattern).search(self._text, at)
            at = found.start() if found else at
        return self._text.count("\n", 0, at) + 1


# ---------------------------------------------------------------- from the top down


def read_toml(path: Path) -> list[NamespaceConfig]:
    """The namespaces of a configuration file."""
    text = read_text(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    return read_document(document, FilePlace(path, text))


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error


def read_document(document: dict[str, Any], place: FilePlace) -> list[NamespaceConfig]:
    """The namespaces of a document that came from this file."""
    _check_keys(document, {"namespace"}, place)
    items = _tables(document.get("namespace"), "namespace", place)
    if not items:
        place.refuse("there is no [[namespace]]")
    namespaces = [_namespace(item, index, place) for index, item in enumerate(items)]
    try:
        check_together(namespaces)
    except ConfigError as error:
        raise ConfigError(f"{place.path}: {error}") from error
    return namespaces


def _namespace(item: dict[str, Any], index: int, place: FilePlace) -> NamespaceConfig:
    name = _name(item, "namespace", place)
    place = place.named(name)
    _check_keys(item, {"name", "port", "admin_port", "key", "queue", "topic"}, place)
    port = _typed(item.get("port", DEFAULT_PORT + index), int, place.inside("port"))
    admin_port = item.get("admin_port", DEFAULT_ADMIN_PORT + index)
    admin_port = _typed(admin_port, int, place.inside("admin_port"))
    key = _typed(item.get("key", ""), str, place.inside("key"))
    try:
        namespace = NamespaceConfig(name, port, admin_port, key or None)
    except ConfigError as error:
        place.refuse(error, error)
    for queue in _tables(item.get("queue"), "queue", place):
        path, at = _path(queue, namespace.queues, "queue", place)
        namespace.queues[path] = _describe(QueueDescription, queue, at)
    for topic in _tables(item.get("topic"), "topic", place):
        path, at = _path(topic, namespace.topics, "topic", place)
        subscriptions = _tables(topic.pop("subscription", None), "subscription", at)
        config = TopicConfig(_describe(TopicDescription, topic, at))
        namespace.topics[path] = config
        for subscription in subscriptions:
            _subscription(subscription, config, at)
    try:
        namespace.check()
    except ConfigError as error:
        place.refuse(error, error)
    return namespace


def _path(
    item: dict[str, Any], known: Iterable[str], what: str, place: FilePlace
) -> tuple[str, FilePlace]:
    path = _name(item, what, place)
    place = place.named(path)
    try:
        check_path(path)
    except DescriptionError as error:
        place.refuse(error, error)
    _check_new(path, known, what, place)
    return path, place


def _check_new(name: str, known: Iterable[str], what: str, place: FilePlace) -> None:
    if name.lower() in {each.lower() for each in known}:
        place.refuse(f"the {what} '{name}' is declared twice")


def _subscription(item: dict[str, Any], topic: TopicConfig, place: FilePlace) -> None:
    name = _name(item, "subscription", place)
    place = place.named(name)
    rules = _tables(item.pop("rule", None), "rule", place)
    try:
        check_name(name, "subscription")
    except DescriptionError as error:
        place.refuse(error, error)
    _check_new(name, topic.subscriptions, "subscription", place)
    config = SubscriptionConfig(_describe(SubscriptionDescription, item, place))
    for each in rules:
        rule = _rule(each, place)
        known = [other.name for other in config.rules]
        _check_new(rule.name, known, "rule", place.inside(rule.name))
        config.rules.append(rule)
    topic.subscriptions[name] = config


def _rule(item: dict[str, Any], place: FilePlace) -> Rule:
    name = _name(item, "rule", place)
    place = place.named(name)
    _check_keys(item, {"name", "sql", "correlation", "action"}, place)
    if "sql" in item and "correlation" in item:
        place.refuse(f"the rule '{name}' has both sql and correlation; give one")
    try:
        check_name(name, "rule")
        condition = _condition(item, place)
        act = SqlRuleAction(_typed(item["action"], str, place)) if "action" in item else None
        return Rule(name, condition, act)
    except (ArgumentError, TypeError) as error:
        place.refuse(f"the rule '{name}': {error}", error)


def _condition(
    item: dict[str, Any], place: FilePlace
) -> TrueFilter | SqlFilter | CorrelationFilter:
    if "sql" in item:
        return SqlFilter(_typed(item["sql"], str, place.inside("sql")))
    if "correlation" in item:
        parts = _typed(item["correlation"], dict, place)
        _check_keys(parts, {each.name for each in fields(CorrelationFilter)}, place)
        return CorrelationFilter(**parts)
    return TrueFilter()


# ---------------------------------------------------------------- values


def _describe(kind: type[D], item: dict[str, Any], place: FilePlace) -> D:
    """A description from settings by their names."""
    defaults: dict[str, Any] = {
        each.name: each.default for each in fields(kind) if each.name != "access_rules"
    }
    _check_keys(item, {*defaults, "name"}, place)
    values = {
        name: _setting(value, defaults[name], place.inside(name))
        for name, value in item.items()
        if name != "name"
    }
    try:
        return kind(**values)
    except DescriptionError as error:
        place.refuse(error, error)


def _setting(value: Any, default: Any, place: FilePlace) -> Any:
    if isinstance(default, timedelta):
        return duration(value, place)
    if isinstance(default, Status):
        try:
            return Status(value)
        except ValueError as error:
            place.refuse(f"'{value}' is not a status; use {', '.join(Status)}", error)
    return _typed(value, str if default is None else type(default), place)


def duration(value: Any, place: FilePlace) -> timedelta:
    """A duration from ISO 8601 text or a number of seconds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, str) and not (is_number and value == value):  # TOML has "nan"
        place.refuse(f"{value!r} is not a duration; write 'PT30S', or 30 for seconds")
    try:
        return parse_span(value, "this") if isinstance(value, str) else timedelta(seconds=value)
    except OverflowError:
        return FOREVER
    except DescriptionError as error:
        place.refuse(error, error)


def _tables(value: Any, what: str, place: FilePlace) -> list[dict[str, Any]]:
    """A list of tables, or nothing."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        place.inside(what).refuse(f"'{place.spell(what)}' is not a list of tables")
    return [dict(item) for item in value]


def _name(item: dict[str, Any], what: str, place: FilePlace) -> str:
    name = item.get("name")
    if not isinstance(name, str) or not name:
        key = place.spell("name")
        place.inside(what).refuse(f"a {what} has no {key if key == 'name' else repr(key)}")
    return str(name)


def _typed(value: Any, kind: type[Any], place: FilePlace) -> Any:
    if type(value) is not kind:
        place.refuse(f"{value!r} is not of type {kind.__name__}")
    return value


def _check_keys(item: dict[str, Any], known: set[str], place: FilePlace) -> None:
    for key in item:
        if key not in known:
            place.inside(key).refuse(
                f"'{place.spell(key)}' is not known; known are {place.spell_all(known)}"
            )
