"""What a broker is told to serve: its namespaces and the entities declared for them.

From the command line, from a TOML file (here), or from the emulator's config.json (`emulator`):

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

An entity that is declared and not there is created; one that is there is left as it is. A file
that is wrong in any place is refused whole, with the line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

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

DEFAULT_PORT = 5672
DEFAULT_ADMIN_PORT = 5300

D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription)


class ConfigError(ValueError):
    """The configuration cannot be served; the text says where and why."""


@dataclass
class SubscriptionConfig:
    description: SubscriptionDescription
    rules: list[Rule] = field(default_factory=list)


@dataclass
class TopicConfig:
    description: TopicDescription
    subscriptions: dict[str, SubscriptionConfig] = field(default_factory=dict)


@dataclass
class NamespaceConfig:
    """One namespace. A port of 0 takes any that is free."""

    name: str
    port: int = DEFAULT_PORT
    admin_port: int = DEFAULT_ADMIN_PORT
    key: str | None = field(default=None, repr=False)
    queues: dict[str, QueueDescription] = field(default_factory=dict)
    topics: dict[str, TopicConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            check_name(self.name, "namespace")
        except DescriptionError as error:
            raise ConfigError(str(error)) from error
        if not self.name.strip("."):
            raise ConfigError(f"'{self.name}' cannot be a namespace's name: its folder has it too")
        for what, port in (("port", self.port), ("admin_port", self.admin_port)):
            if not 0 <= port <= 65_535:
                raise ConfigError(f"the {what} of '{self.name}' is {port}; use 0 to 65535")

    def check(self) -> None:
        """Raise unless the declared entities can live together."""
        seen: set[str] = set()
        for path in [*self.queues, *self.topics]:
            if path.lower() in seen:
                raise ConfigError(f"'{path}' of '{self.name}' is declared twice")
            seen.add(path.lower())
        for path, description in self.receivers():
            for target in (description.forward_to, description.forward_dead_letters_to):
                if target is not None and target.lower() not in seen:
                    raise ConfigError(
                        f"'{path}' of '{self.name}' forwards to '{target}', which is not declared"
                    )
        self.in_order()

    def in_order(self) -> list[str]:
        """The queues, each behind those it forwards to."""
        ordered: dict[str, str] = {}
        waiting = {path.lower(): path for path in self.queues}
        while waiting:
            ready = {
                key: path
                for key, path in waiting.items()
                if not any(target in waiting for target in self._targets(path))
            }
            if not ready:
                circle = ", ".join(f"'{path}'" for path in waiting.values())
                raise ConfigError(f"the queues {circle} of '{self.name}' forward in a circle")
            ordered |= ready
            waiting = {key: path for key, path in waiting.items() if key not in ready}
        return list(ordered.values())

    def _targets(self, path: str) -> list[str]:
        queue = self.queues[path]
        targets = (queue.forward_to, queue.forward_dead_letters_to)
        return [target.lower() for target in targets if target is not None]

    def receivers(self) -> Iterator[tuple[str, QueueDescription | SubscriptionDescription]]:
        yield from self.queues.items()
        for topic, config in self.topics.items():
            for name, subscription in config.subscriptions.items():
                yield f"{topic}/Subscriptions/{name}", subscription.description


def check_together(namespaces: list[NamespaceConfig]) -> None:
    """Raise if two namespaces cannot live side by side."""
    names = [namespace.name.lower() for namespace in namespaces]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"the namespace '{name}' is there twice; give each its own name")
    ports: dict[int, str] = {}
    for namespace in namespaces:
        for port in (namespace.port, namespace.admin_port):
            if port and port in ports:
                raise ConfigError(
                    f"port {port} is given to '{ports[port]}' and to '{namespace.name}'; "
                    "give each namespace a port and an admin port of its own"
                )
            ports[port] = namespace.name


# ---------------------------------------------------------------- where in the file


class Place:
    """Where in a file we are, by the names that lead there; finds the line to complain about."""

    def __init__(
        self,
        path: Path,
        text: str,
        steps: tuple[tuple[str, str], ...] = (),
        spelling: dict[str, str] | None = None,
    ) -> None:
        self._path = path
        self._text = text
        self._steps = steps
        self._spelling = spelling or {}

    def inside(self, key: str) -> Place:
        """At a key, found as a whole: "order" is not in "orders", nor "q" in "queue"."""
        key = self._spelling.get(key, key)
        return self._step(key, rf"(?<![\w/-]){re.escape(key)}(?![./]?[\w-])")

    def named(self, name: str) -> Place:
        """At the thing that has this name, not at another one that mentions it."""
        return self._step(name, rf"""(?i:name)"?\s*[:=]\s*["']{re.escape(name)}["']""")

    def spelled(self, spelling: dict[str, str]) -> Place:
        """The same place in a file that has other words for our keys."""
        return Place(self._path, self._text, self._steps, spelling)

    def _step(self, name: str, pattern: str) -> Place:
        return Place(self._path, self._text, (*self._steps, (name, pattern)), self._spelling)

    def refuse(self, reason: object, cause: Exception | None = None) -> NoReturn:
        where = f" ({'.'.join(name for name, _ in self._steps)})" if self._steps else ""
        raise ConfigError(f"{self._path}, line {self._line()}{where}: {reason}") from cause

    def _line(self) -> int:
        """The line of the last step, each looked for behind the one before it."""
        at = 0
        for _, pattern in self._steps:
            found = re.compile(pattern).search(self._text, at)
            at = found.start() if found else at
        return self._text.count("\n", 0, at) + 1


# ---------------------------------------------------------------- TOML


def read_toml(path: Path) -> list[NamespaceConfig]:
    """The namespaces of a configuration file."""
    text = read_text(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    place = Place(path, text)
    _check_keys(document, {"namespace"}, place)
    items = tables(document.get("namespace"), "namespace", place)
    if not items:
        place.refuse("there is no [[namespace]]")
    namespaces = [_namespace(item, index, place) for index, item in enumerate(items)]
    try:
        check_together(namespaces)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return namespaces


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error


def _namespace(item: dict[str, Any], index: int, place: Place) -> NamespaceConfig:
    name = _name(item, "namespace", place)
    place = place.named(name)
    _check_keys(item, {"name", "port", "admin_port", "key", "queue", "topic"}, place)
    try:
        namespace = NamespaceConfig(
            name,
            _typed(item.get("port", DEFAULT_PORT + index), int, place.inside("port")),
            _typed(
                item.get("admin_port", DEFAULT_ADMIN_PORT + index), int, place.inside("admin_port")
            ),
            _typed(item.get("key", ""), str, place.inside("key")) or None,
        )
    except ConfigError as error:
        if "line" in str(error):
            raise
        place.refuse(error, error)
    known: set[str] = set()
    for queue in tables(item.get("queue"), "queue", place):
        path, at = _path(queue, known, "queue", place)
        namespace.queues[path] = describe(QueueDescription, queue, at)
    for topic in tables(item.get("topic"), "topic", place):
        path, at = _path(topic, known, "topic", place)
        subscriptions = tables(topic.pop("subscription", None), "subscription", at)
        config = TopicConfig(describe(TopicDescription, topic, at))
        namespace.topics[path] = config
        for subscription in subscriptions:
            _subscription(subscription, config, at)
    try:
        namespace.check()
    except ConfigError as error:
        place.refuse(error, error)
    return namespace


def _path(item: dict[str, Any], known: set[str], what: str, place: Place) -> tuple[str, Place]:
    path = _name(item, what, place)
    place = place.named(path)
    try:
        check_path(path)
    except DescriptionError as error:
        place.refuse(error, error)
    if path.lower() in known:
        place.refuse(f"the {what} '{path}' is declared twice")
    known.add(path.lower())
    return path, place


def _subscription(item: dict[str, Any], topic: TopicConfig, place: Place) -> None:
    name = _name(item, "subscription", place)
    place = place.named(name)
    rules = tables(item.pop("rule", None), "rule", place)
    try:
        check_name(name, "subscription")
    except DescriptionError as error:
        place.refuse(error, error)
    if name.lower() in {each.lower() for each in topic.subscriptions}:
        place.refuse(f"the subscription '{name}' is declared twice")
    config = SubscriptionConfig(describe(SubscriptionDescription, item, place))
    config.rules = [_rule(rule, place) for rule in rules]
    check_rules(config.rules, place)
    topic.subscriptions[name] = config


def check_rules(rules: list[Rule], place: Place) -> None:
    names: set[str] = set()
    for rule in rules:
        if rule.name.lower() in names:
            place.inside(rule.name).refuse(f"the rule '{rule.name}' is declared twice")
        names.add(rule.name.lower())


def _rule(item: dict[str, Any], place: Place) -> Rule:
    name = _name(item, "rule", place)
    place = place.named(name)
    _check_keys(item, {"name", "sql", "correlation", "action"}, place)
    if "sql" in item and "correlation" in item:
        place.refuse(f"the rule '{name}' has both sql and correlation; give one")
    return make_rule(name, item.get("sql"), item.get("correlation"), item.get("action"), place)


def make_rule(name: str, sql: Any, correlation: Any, action: Any, place: Place) -> Rule:
    """A rule from its parts, any of which may be missing."""
    try:
        check_name(name, "rule")
        condition: TrueFilter | SqlFilter | CorrelationFilter = TrueFilter()
        if sql is not None:
            condition = SqlFilter(_typed(sql, str, place.inside("sql")))
        elif correlation is not None:
            parts = _typed(correlation, dict, place)
            _check_keys(parts, {each.name for each in fields(CorrelationFilter)}, place)
            condition = CorrelationFilter(**parts)
        act = None if action is None else SqlRuleAction(_typed(action, str, place))
        return Rule(name, condition, act)
    except (ArgumentError, TypeError) as error:
        place.refuse(f"the rule '{name}': {error}", error)


# ---------------------------------------------------------------- values


def describe(kind: type[D], item: dict[str, Any], place: Place) -> D:
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


def _setting(value: Any, default: Any, place: Place) -> Any:
    if isinstance(default, timedelta):
        return duration(value, place)
    if isinstance(default, Status):
        try:
            return Status(value)
        except ValueError as error:
            place.refuse(f"'{value}' is not a status; use {', '.join(Status)}", error)
    return _typed(value, str if default is None else type(default), place)


def duration(value: Any, place: Place) -> timedelta:
    """A duration from ISO 8601 text or a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        place.refuse(f"{value!r} is not a duration; write 'PT30S', or 30 for seconds")
    try:
        return parse_span(value, "this") if isinstance(value, str) else timedelta(seconds=value)
    except OverflowError:
        return FOREVER
    except DescriptionError as error:
        place.refuse(error, error)


def tables(value: Any, what: str, place: Place) -> list[dict[str, Any]]:
    """A list of tables, or nothing."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        place.inside(what).refuse(f"'{what}' is not a list of tables")
    return [dict(item) for item in value]


def _name(item: dict[str, Any], what: str, place: Place) -> str:
    name = item.get("name")
    if not isinstance(name, str) or not name:
        place.inside(what).refuse(f"a {what} has no name")
    return str(name)


def _typed(value: Any, kind: type[Any], place: Place) -> Any:
    if type(value) is not kind:
        place.refuse(f"{value!r} is not of type {kind.__name__}")
    return value


def _check_keys(item: dict[str, Any], known: set[str], place: Place) -> None:
    for key in item:
        if key not in known:
            place.inside(key).refuse(f"'{key}' is not known; known are {', '.join(sorted(known))}")
