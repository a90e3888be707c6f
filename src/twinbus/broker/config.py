"""What a broker is told to serve: its namespaces and the entities declared for them.

It is told on the command line, or by a file (`document`). An entity that is declared and not there
is created; one that is there is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from twinbus.broker.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    check_name,
)
from twinbus.broker.refusals import DescriptionError
from twinbus.broker.rules import Rule
from twinbus.errors import TwinbusError

DEFAULT_PORT = 5672
DEFAULT_ADMIN_PORT = 5300


class ConfigError(TwinbusError, ValueError):
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
            for target in description.targets:
                if target.lower() not in seen:
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
                if not any(t.lower() in waiting for t in self.queues[path].targets)
            }
            if not ready:
                circle = ", ".join(f"'{path}'" for path in waiting.values())
                raise ConfigError(f"the queues {circle} of '{self.name}' forward in a circle")
            ordered |= ready
            waiting = {key: path for key, path in waiting.items() if key not in ready}
        return list(ordered.values())

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
