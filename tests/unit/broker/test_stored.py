"""A stored message looked into again: filters and actions see of it what they saw when it came."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.unit.broker.test_admission import MINUTE_MS, Yard
from tests.unit.broker.test_queue import Answer, Taker, message, why

from twinbus.amqp.batches import batch_of, messages_of
from twinbus.amqp.message import (
    Message,
    Properties,
    application_properties,
    encode_annotations,
    with_application_properties,
)
from twinbus.amqp.sections import (
    DELIVERY_ANNOTATIONS,
    PARTITION_KEY,
    SCHEDULED,
    descriptor,
    section,
    walk,
)
from twinbus.amqp.types import Symbol, Timestamp, UByte, UInt, encode
from twinbus.broker import routing
from twinbus.broker.burial import Burial
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.expressions import MessageProperties
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


def header(ttl_ms: int) -> bytes:
    return section(0x70, encode([True, 9, ttl_ms]))


def sent(name: str) -> bytes:
    """With a time to live, a partition key and an annotation of the sender's own."""
    return header(3_600_000) + ANNOTATIONS + message(name)


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
    decode = Message.application_properties

    def noted(message: Message) -> dict[str, Any]:
        decoded.append(message.bare)
        return decode(message)

    monkeypatch.setattr(Message, "application_properties", noted)
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


# ---------------------------------------------------------------- the same facts, whichever way

DAYS_60_MS = 60 * 24 * 60 * MINUTE_MS
LIVES = {
    "forever": (b"", {}),
    "a minute": (header(60_000), {}),
    "an hour": (header(3_600_000), {}),
    "as long as a header can say": (header(2**32 - 1), {}),
    "sixty days": (header(5), {"creation_time": 0, "absolute_expiry_time": DAYS_60_MS}),
}
NOTES = {
    "none": b"",
    "a key": encode_annotations({PARTITION_KEY: "p"}),
    "a time that has passed": encode_annotations({SCHEDULED: Timestamp(1), PARTITION_KEY: "p"}),
    "of the sender's own": encode_annotations({Symbol("mine"): UInt(7), Symbol("t"): Timestamp(5)}),
    "for the next hop": section(DELIVERY_ANNOTATIONS, encode({Symbol("hop"): UByte(1)})),
}


class Way:
    """To the topic ``t``, by way of a queue that may shorten a time to live, or directly."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **source: Any) -> None:
        self.yard = Yard(folder)
        self.yard.subscribe("acts", Rule("a", SqlFilter("1 = 1"), SqlRuleAction("SET seen = 1")))
        self.facts: list[tuple[dict[str, Any], dict[str, Any]]] = []
        real = MessageProperties

        def noted(system: dict[str, Any], user: Any) -> Any:
            self.facts.append((dict(system), dict(user)))
            return real(system, user)

        monkeypatch.setattr(routing, "MessageProperties", noted)
        self.source = source

    def directly(self, payload: bytes) -> None:
        self.yard.to("t", payload)

    def scheduled(self, payload: bytes, path: str = "t") -> None:
        yard = self.yard
        due_ms = yard.now + MINUTE_MS
        yard.namespace.send_later(yard.entity(path), [payload], yard.now, due_ms, Answer())
        yard.commit()
        yard.tick(MINUTE_MS)

    def forwarded(self, payload: bytes) -> None:
        self.yard.make("source", QueueDescription(forward_to="t", **self.source))
        self.yard.to("source", payload)

    def scheduled_and_forwarded(self, payload: bytes) -> None:
        self.yard.make("source", QueueDescription(forward_to="t", **self.source))
        self.scheduled(payload, "source")

    def kept_and_forwarded(self, payload: bytes) -> None:
        self.yard.make("source", QueueDescription(**self.source))
        self.yard.to("source", payload)
        found = QueueDescription(forward_to="t", **self.source)
        self.yard.namespace.directory.update("source", found, self.yard.now, Answer())
        self.yard.commit()

    def dead_lettered_and_forwarded(self, payload: bytes) -> None:
        found = QueueDescription(forward_dead_letters_to="t", **self.source)
        queue, taker = self.yard.make("source", found).queue, Taker(1)
        self.yard.to("source", payload)
        queue.add_consumer(taker)
        self.yard.namespace.pump_queue(queue, self.yard.now)
        why_not = lambda entry: Burial(entry, None, None)  # noqa: E731  nothing is noted on it
        self.yard.settle(lambda done: queue.dead_letter(taker.got[0].token, why_not, done))

    def seen(self) -> tuple[Any, ...]:
        """What rules saw, and what the copies are made of."""
        (copy,) = self.yard.sub("all").queue.peek(0, 10)
        (changed,) = self.yard.sub("acts").queue.peek(0, 10)
        kept = (
            copy.bare,
            *((e.annotations, e.delivery_annotations, e.flags, e.ttl_ms) for e in (copy, changed)),
        )
        return (*self.facts, kept)


STRAIGHT = (Way.directly, Way.scheduled)
ROUND = (
    *(Way.forwarded, Way.scheduled_and_forwarded),
    *(Way.kept_and_forwarded, Way.dead_lettered_and_forwarded),
)


@pytest.mark.parametrize("notes", NOTES)
@pytest.mark.parametrize("lives", LIVES)
def test_rules_and_copies_are_the_same_whichever_way_a_message_came(
    tmp_path: Path, lives: str, notes: str
) -> None:
    header, times = LIVES[lives]
    typed = {"n": UInt(1), "at": Timestamp(5), "text": "x", "raw": b"y"}
    bare = message("m", group_id="s", correlation_id=UUID(int=1), content_type="a/b", **times)
    late = NOTES[notes] if notes == "for the next hop" else b""  # as the SDK writes them
    payload = header + (b"" if late else NOTES[notes])
    payload += with_application_properties(bare, typed) + late
    found: dict[bool, set[str]] = {False: set(), True: set()}
    for shortens in (False, True):
        source = {"default_ttl": timedelta(minutes=30)} if shortens else {}
        for go in ROUND if shortens else (*STRAIGHT, *ROUND):
            with pytest.MonkeyPatch.context() as patch:
                folder = tmp_path / f"{go.__name__}-{shortens}"
                folder.mkdir()
                way = Way(folder, patch, **source)
                go(way, payload)
                assert len(way.facts) == 1
                found[shortens].add(repr(way.seen()))
                way.yard.close()
    assert len(found[False]) == len(found[True]) == 1
    same = found[False] == found[True]
    assert same is (lives == "a minute"), "half an hour is less than the others"


def test_a_message_is_split_once_between_the_wire_and_the_rules(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sql", "other"):
        yard.subscribe(name, Rule("r", SqlFilter("colour = 'red' AND size > 3")))
    looked: list[tuple[bytes, int]] = []

    def noted(buf: bytes, pos: int) -> tuple[int, int]:
        looked.append((buf, pos))
        return descriptor(buf, pos)

    monkeypatch.setattr("twinbus.amqp.message.descriptor", noted)
    monkeypatch.setattr("twinbus.amqp.sections.descriptor", noted)
    yard.namespace.directory.delete("t/Subscriptions/acting", Answer())  # it writes another message
    yard.namespace.directory.delete("t/Subscriptions/changed", Answer())
    yard.commit()
    for properties in ({"colour": "red", "size": 4}, {}):
        bare = with_application_properties(message(f"m{len(properties)}"), properties)
        payload = header(3_600_000) + ANNOTATIONS + bare
        looked.clear()
        yard.to("t", payload)
        both_sides = 1  # where the head ends and the bare message begins is looked at from both
        assert len(looked) - both_sides == len(list(walk(payload)))
    assert yard.ids(yard.sub("sql").queue) == ["m2"]


def test_a_batch_is_split_once(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [message(str(number)) for number in range(50)]
    batch = batch_of(many)
    looked: list[int] = []

    def noted(buf: bytes, pos: int) -> tuple[int, int]:
        looked.append(pos)
        return descriptor(buf, pos)

    monkeypatch.setattr("twinbus.amqp.message.descriptor", noted)
    monkeypatch.setattr("twinbus.amqp.sections.descriptor", noted)
    assert messages_of(batch) == many
    sections = 1 + len(many)
    head_and_no_body = 3
    assert len(looked) == sections + head_and_no_body
