"""A stored message looked into again: filters and actions see of it what they saw when it came."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.test_admission import MINUTE_MS, Yard
from tests.unit.broker.test_queue import Answer, Taker, message, why

from twinbus.amqp.message import (
    Message,
    Properties,
    application_properties,
    encode_annotations,
    with_application_properties,
)
from twinbus.amqp.types import Symbol, encode
from twinbus.broker import routing
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.rules import CorrelationFilter, Rule, SqlFilter, SqlRuleAction

ANNOTATIONS = encode_annotations({Symbol("x-opt-partition-key"): "p", Symbol("mine"): 7})
HOUR = timedelta(hours=1)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yard.subscribe("key", Rule("k", SqlFilter("sys.PartitionKey = 'p'")))
    yard.subscribe("lasting", Rule("l", SqlFilter("sys.TimeToLive = @hour", {"@hour": HOUR})))
    yard.subscribe("changed", Rule("c", SqlFilter("1 = 1"), SqlRuleAction("SET seen = 1")))
    yield yard
    yard.close()


def sent(name: str) -> bytes:
    """With a time to live, a partition key and an annotation of the sender's own."""
    header = b"\x00\x53\x70" + encode([True, 9, 3_600_000])
    return header + ANNOTATIONS + message(name)


def directly(yard: Yard) -> None:
    yard.to("t", sent("m"))


def scheduled(yard: Yard) -> None:
    entity = yard.entity("t")
    due_ms = yard.now + MINUTE_MS
    yard.namespace.send_later(entity, [sent("m")], yard.now, due_ms, Answer())
    yard.commit()
    yard.tick(MINUTE_MS)


def forwarded(yard: Yard) -> None:
    yard.make("source", QueueDescription(forward_to="t"))
    yard.to("source", sent("m"))


def waiting_in_a_queue_that_begins_to_forward(yard: Yard) -> None:
    yard.to("q", sent("m"))
    yard.namespace.directory.update("q", QueueDescription(forward_to="t"), yard.now, Answer())
    yard.commit()


def dead_lettered(yard: Yard) -> None:
    source = yard.make("source", QueueDescription(forward_dead_letters_to="t"))
    yard.to("source", sent("m"))
    taker = Taker(1)
    source.queue.add_consumer(taker)
    yard.namespace.pump_queue(source.queue, yard.now)
    yard.settle(lambda done: source.queue.dead_letter(taker.got[0].token, why, done))


@pytest.mark.parametrize(
    "come",
    [directly, scheduled, forwarded, waiting_in_a_queue_that_begins_to_forward, dead_lettered],
)
def test_filters_and_actions_see_annotations_and_time_to_live_however_it_came(
    yard: Yard, come: Any
) -> None:
    come(yard)
    found = {name: yard.ids(yard.sub(name).queue) for name in ("key", "lasting", "changed")}
    assert found == {"key": ["m"], "lasting": ["m"], "changed": ["m"]}
    (copy,) = yard.sub("changed").queue.peek(0, 10)
    annotations = Message(annotations=copy.annotations).annotation_map()
    assert annotations == {"x-opt-partition-key": "p", "mine": 7}
    assert copy.ttl_ms == 3_600_000
    assert application_properties(copy.bare)["seen"] == 1


def test_a_time_to_live_longer_than_a_header_can_say_is_seen_by_filters(yard: Yard) -> None:
    days = timedelta(days=60)
    yard.subscribe("long", Rule("l", SqlFilter("sys.TimeToLive = @days", {"@days": days})))
    span = {
        "creation_time": yard.now,
        "absolute_expiry_time": yard.now + int(days.total_seconds() * 1000),
    }
    yard.to("t", message("m", **span))
    assert yard.ids(yard.sub("long").queue) == ["m"]


def test_properties_are_decoded_only_if_a_rule_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []

    def noted(bare: bytes) -> dict[str, Any]:
        decoded.append(bare)
        return application_properties(bare)

    monkeypatch.setattr(routing, "application_properties", noted)
    yard = Yard(tmp_path)
    topic = yard.entity("t")
    assert topic.topic is not None
    yard.subscribe("by-id", Rule("i", CorrelationFilter(message_id="a")))
    yard.subscribe("by-sql", Rule("s", SqlFilter("sys.MessageId = 'a'")))
    body = Properties(message_id="a").encoded() + b"\x00\x53\x75\xa0\x00"
    payload = with_application_properties(body, {f"k{n}": n for n in range(10)})
    for name in ("red", "acting"):
        yard.namespace.directory.delete(f"t/Subscriptions/{name}", Answer())
    yard.commit()
    yard.to("t", payload)
    assert yard.ids(yard.sub("by-id").queue) == yard.ids(yard.sub("by-sql").queue) == ["a"]
    assert decoded == []
    yard.subscribe("by-property", Rule("p", CorrelationFilter(properties={"k1": 1})))
    yard.to("t", payload.replace(b"\xa1\x01a", b"\xa1\x01b"))
    assert len(decoded) == 1
    yard.close()
