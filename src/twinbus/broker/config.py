"""What a broker is told to serve: its namespaces and the entities declared for them.

From the command line, or from a TOML file:

    [[namespace]]
    name = "contoso"
    port = 5672
    admin_port = 5300

    [[namespace.queue]]
    name = "orders"
    lock_duration = "PT30S"        # durations: ISO 8601, or a number of seconds
    max_delivery_count = 5

An entity that is declared and not there is created; one that is there is left as it is. A file
that is wrong in any place is refused whole.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import isodate

from twinbus.broker.descriptions import (
    FOREVER,
    DescriptionError,
    QueueDescription,
    Status,
    check_name,
    check_path,
)

DEFAULT_PORT = 5672
DEFAULT_ADMIN_PORT = 5300


class ConfigError(ValueError):
    """The configuration cannot be served; the text says where and why."""


@dataclass
class NamespaceConfig:
    """One namespace. A port of 0 takes any that is free."""

    name: str
    port: int = DEFAULT_PORT
    admin_port: int = DEFAULT_ADMIN_PORT
    key: str | None = field(default=None, repr=False)
    queues: dict[str, QueueDescription] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            check_name(self.name, "namespace")
        except DescriptionError as error:
            raise ConfigError(str(error)) from error
        for what, port in (("port", self.port), ("admin_port", self.admin_port)):
            if not 0 <= port <= 65_535:
                raise ConfigError(f"the {what} of '{self.name}' is {port}; use 0 to 65535")


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


def read_toml(path: Path) -> list[NamespaceConfig]:
    """The namespaces of a configuration file."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    unknown = set(document) - {"namespace"}
    items = document.get("namespace")
    if unknown or not isinstance(items, list) or not items:
        what = f"[{min(unknown)}] is not known" if unknown else "there is no [[namespace]]"
        raise ConfigError(f"{path}: {what}; the file holds one or more [[namespace]] tables")
    namespaces = []
    for index, item in enumerate(items):
        try:
            namespaces.append(_namespace(item, index))
        except (ConfigError, DescriptionError) as error:
            raise ConfigError(f"{path}: {error}") from error
    check_together(namespaces)
    return namespaces


def _namespace(item: dict[str, Any], index: int) -> NamespaceConfig:
    where = f"[[namespace]] number {index + 1}"
    _check_keys(item, {"name", "port", "admin_port", "key", "queue"}, where)
    if not isinstance(item.get("name"), str):
        raise ConfigError(f"{where} has no name")
    namespace = NamespaceConfig(
        item["name"],
        _integer(item.get("port", DEFAULT_PORT + index), f"port of {where}"),
        _integer(item.get("admin_port", DEFAULT_ADMIN_PORT + index), f"admin_port of {where}"),
        item.get("key"),
    )
    for queue in item.get("queue", []):
        path, description = _queue(queue, namespace.name)
        if path.lower() in {known.lower() for known in namespace.queues}:
            raise ConfigError(f"the queue '{path}' of '{namespace.name}' is declared twice")
        namespace.queues[path] = description
    return namespace


def _queue(item: dict[str, Any], namespace: str) -> tuple[str, QueueDescription]:
    path = item.get("name")
    if not isinstance(path, str):
        raise ConfigError(f"a [[namespace.queue]] of '{namespace}' has no name")
    where = f"the queue '{path}' of '{namespace}'"
    check_path(path)
    known = {field.name for field in fields(QueueDescription)} - {"access_rules"}
    _check_keys(item, known | {"name"}, where)
    values: dict[str, Any] = {}
    defaults = {field.name: field.default for field in fields(QueueDescription)}
    for name, value in item.items():
        if name != "name":
            values[name] = _setting(value, defaults[name], f"{name} of {where}")
    try:
        return path, QueueDescription(**values)
    except DescriptionError as error:
        raise ConfigError(f"{where}: {error}") from error


def _setting(value: Any, default: Any, where: str) -> Any:
    if isinstance(default, timedelta):
        return duration(value, where)
    if isinstance(default, Status):
        try:
            return Status(value)
        except ValueError as error:
            names = ", ".join(Status)
            raise ConfigError(f"{where} is '{value}'; it can be {names}") from error
    wanted = type(default) if default is not None else str
    if type(value) is not wanted:
        raise ConfigError(f"{where} is {value!r}, which is not a {wanted.__name__}")
    return value


def duration(value: Any, where: str) -> timedelta:
    """A duration from ISO 8601 text or a number of seconds."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return timedelta(seconds=value)
        parsed = isodate.parse_duration(value)
        if isinstance(parsed, timedelta):
            return parsed
    except OverflowError:
        return FOREVER
    except (isodate.ISO8601Error, TypeError, ValueError) as error:
        raise ConfigError(f"{where} is {value!r}; write 'PT30S', or 30 for seconds") from error
    raise ConfigError(f"{where} is {value!r}; months and years have no fixed length")


def _integer(value: Any, where: str) -> int:
    if type(value) is not int:
        raise ConfigError(f"{where} is {value!r}, which is not a whole number")
    return value


def _check_keys(item: dict[str, Any], known: set[str], where: str) -> None:
    for key in item:
        if key not in known:
            raise ConfigError(f"{where} has '{key}'; known are {', '.join(sorted(known))}")
