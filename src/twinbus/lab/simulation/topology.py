"""What the two namespaces of a simulated world have in them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Final

from twinbus.broker.descriptions import (
    MAX_INT,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.directory import Directory
from twinbus.broker.rules import Rule, SqlFilter, SqlRuleAction
from twinbus.lab.simulation.clock import START_MS
from twinbus.lab.simulation.node import formatted

PRIMARY, SECONDARY = "contoso", "fabrikam"
DETECTING: Final = ("orders", "lines", "news")  # these drop duplicates
DESTINATIONS: Final = (*DETECTING, "audit")
EAST, WEST, NORTH = SUBSCRIPTIONS = (
    "news/Subscriptions/east",
    "news/Subscriptions/west",
    "news/Subscriptions/north",
)
MOST_DELIVERIES: Final = 3  # in the west
LIVES_MS: Final = 60_000  # in the north, which takes what is red, and marks it
RECEIVED: Final = ("orders", "lines", "audit", *SUBSCRIPTIONS)
SESSIONS: Final = ("lines",)

_LOCK = timedelta(seconds=30)
_WINDOW = timedelta(days=1)


# To create entities takes longer than to copy a disk on which they are.
@cache
def primary_disk() -> bytes:
    return formatted(_create_destinations, _create_subscriptions)


@cache
def secondary_disk(queues: tuple[str, ...]) -> bytes:
    description = QueueDescription(max_delivery_count=MAX_INT, dead_lettering_on_expiration=True)

    def create(directory: Directory) -> None:
        for path in queues:
            directory.create_queue(path, description, START_MS, _created)

    return formatted(create)


def _create_destinations(directory: Directory) -> None:
    for path in ("orders", "lines", "audit"):
        description = QueueDescription(
            lock_duration=_LOCK,
            max_delivery_count=MAX_INT,
            requires_session=path in SESSIONS,
            requires_duplicate_detection=path in DETECTING,
            duplicate_window=_WINDOW,
        )
        directory.create_queue(path, description, START_MS, _created)
    news = TopicDescription(requires_duplicate_detection=True, duplicate_window=_WINDOW)
    directory.create_topic("news", news, START_MS, _created)


def _create_subscriptions(directory: Directory) -> None:
    usual = SubscriptionDescription(lock_duration=_LOCK, max_delivery_count=MAX_INT)
    lives = timedelta(milliseconds=LIVES_MS)
    red = Rule("red", SqlFilter("colour = 'red'"), SqlRuleAction("SET mark = 'north'"))
    for path, description, rule in (
        (EAST, usual, None),
        (WEST, replace(usual, max_delivery_count=MOST_DELIVERIES), None),
        (NORTH, replace(usual, default_ttl=lives, dead_lettering_on_expiration=True), red),
    ):
        name = path.rsplit("/", 1)[1]
        directory.create_subscription("news", name, description, rule, START_MS, _created)


def _created(error: Exception | None) -> None:
    assert error is None, error
