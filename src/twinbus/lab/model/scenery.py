"""What there is when a history begins: entities of every kind, and rules."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from twinbus.amqp.types import Byte, Char, Described, Symbol, Timestamp, ULong
from twinbus.broker.descriptions import (
    FOREVER,
    QueueDescription,
    Status,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.rules import (
    CorrelationFilter,
    FalseFilter,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)
from twinbus.broker.rules import Rule as RealRule
from twinbus.lab.model.things import IdealEntity, IdealRule

SESSIONS = ("red", "blue", "green")


TTLS_S = (None, None, None, None, 2, 20)


PAUSES_MS = (1, 400, 2_100, 6_000, 31_000, 61_000)


JUMPS_MS = (-3_000, 3_600_000)


def queue(path: str, **description: Any) -> IdealEntity:
    return IdealEntity(path, "queue", **description)


def subscription(topic: str, name: str, *rules: str, **description: Any) -> IdealEntity:
    made = IdealEntity(f"{topic}/Subscriptions/{name}", "subscription", **description)
    made.rules = {rule: RULES[rule][1] for rule in rules}
    return made


RULES: dict[str, tuple[RealRule, IdealRule]] = {
    "all": (RealRule("all", TrueFilter()), IdealRule(lambda _: True)),
    "none": (RealRule("none", FalseFilter()), IdealRule(lambda _: False)),
    "large": (
        RealRule("large", SqlFilter("a > 2")),
        IdealRule(lambda m: m.properties.get("a", 0) > 2),
    ),
    "one": (
        RealRule("one", CorrelationFilter(properties={"a": 1})),
        IdealRule(lambda m: m.properties.get("a") == 1),
    ),
    "changed": (
        RealRule("changed", SqlFilter("a < 4"), SqlRuleAction("SET b = 7; REMOVE a")),
        IdealRule(lambda m: 0 < m.properties.get("a", 9) < 4, {"b": 7}, ("a",)),
    ),
}


def entities() -> list[IdealEntity]:
    """Two of everything, and each of its own kind. What is forwarded to comes first."""
    topic = IdealEntity("news", "topic")
    return [
        queue("plain"),
        queue("short", lock_ms=5_000, max_deliveries=2, ttl=30_000, dead_letters_expired=True),
        queue("once", window_ms=20_000),
        queue("little", max_bytes=1 << 20),
        queue("rooms", requires_session=True, lock_ms=5_000, max_deliveries=3),
        queue("halls", requires_session=True, ttl=20_000, dead_letters_expired=True),
        queue("on", forward_to="plain"),
        queue("further", forward_to="on"),
        queue("grave", forward_dead_to="short", max_deliveries=1, lock_ms=5_000),
        topic,
        IdealEntity("more", "topic", window_ms=60_000, ttl=60_000),
        subscription("news", "all", "all"),
        subscription("news", "some", "large", "one", lock_ms=5_000, max_deliveries=2),
        subscription("news", "changed", "changed", "all"),
        subscription("news", "on", "all", forward_to="once"),
        subscription("news", "rooms", "all", requires_session=True, lock_ms=5_000),
        subscription("more", "all", "all", ttl=5_000, dead_letters_expired=True),
        subscription("more", "none", "none"),
        subscription("more", "dead", "large", max_deliveries=1, forward_dead_to="plain"),
    ]


def description(entity: IdealEntity) -> Any:
    """The model's entity as the real one is told of it."""
    ttl = FOREVER if entity.ttl is None else timedelta(milliseconds=entity.ttl)
    common: dict[str, Any] = {"default_ttl": ttl, "status": Status(entity.status)}
    if entity.window_ms is not None:
        common["requires_duplicate_detection"] = True
        common["duplicate_window"] = timedelta(milliseconds=entity.window_ms)
    if entity.kind != "subscription":
        common["max_size_mb"] = entity.max_bytes >> 20
    if entity.kind == "topic":
        return TopicDescription(**common)
    kind = QueueDescription if entity.kind == "queue" else SubscriptionDescription
    return kind(
        **common,
        lock_duration=timedelta(milliseconds=entity.lock_ms),
        requires_session=entity.requires_session,
        dead_lettering_on_expiration=entity.dead_letters_expired,
        max_delivery_count=entity.max_deliveries,
        forward_to=entity.forward_to,
        forward_dead_letters_to=entity.forward_dead_to,
    )


UPDATES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("status", ("Active", "Disabled", "SendDisabled", "ReceiveDisabled", "Active", "Active")),
    ("lock_ms", (5_000, 60_000)),
    ("max_deliveries", (1, 2, 10)),
    ("ttl", (None, 4_000, 40_000)),
    ("dead_letters_expired", (True, False)),
    ("forward_to", (None, "plain", "once", "on", "further")),
    ("forward_dead_to", (None, "short")),
)


# What may be a property's value or an annotation's, and is seldom.
ODD: tuple[Any, ...] = (
    "größe\n\x00",
    b"\xff\x00",
    -(2**60),
    ULong(2**64 - 1),
    Byte(-1),
    1e300,
    True,
    Symbol("s"),
    Char("c"),
    Timestamp(2**62),
    UUID(int=5),
    [1, "two", [None]],
    {"k": {"l": 1}},
    Described(Symbol("x:y"), ["z"]),
    "x" * 300,
)


HOSTILE = (
    b"",
    b"\xff" * 40,
    b"\x00\x53\x74\xc1\x03\x02\xff\xff\x00\x53\x75\xa0\x01x",
    b"\x00\x53\x72\xd1\x00\x00\xff\xff\x00\x00\x00\x02x",
    b"\x00\x53\x74\xc1\x05\x02\x54\x01\xa1\x00\x00\x53\x75\xa0\x01x",
)[1:]
