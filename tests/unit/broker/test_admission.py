"""Admit, then change: what is taken in can be read by every later step, what cannot is refused with
nothing changed, and what lay in the store before that was asked is set aside and blocks nothing."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.unit.broker.snapshot import snapshot
from tests.unit.broker.test_queue import Answer, Rig, Taker, message, why

from twinbus.amqp.message import (
    Message,
    Properties,
    application_properties,
    with_application_properties,
)
from twinbus.amqp.types import Symbol, Timestamp, UInt, ULong, encode
from twinbus.broker.burial import UNREADABLE, Burial
from twinbus.broker.delivery import payload
from twinbus.broker.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.broker.entity import Entity
from twinbus.broker.inspection import inspect
from twinbus.broker.management import OPERATIONS
from twinbus.broker.queue import Queue
from twinbus.broker.refusals import (
    ArgumentError,
    LockLostError,
    MessageError,
    NotAllowedError,
    StoreError,
)
from twinbus.broker.requests import Request
from twinbus.broker.rules import CorrelationFilter, Rule, SqlFilter, SqlRuleAction
from twinbus.broker.sessions import SessionQueue

MINUTE_MS = 60_000
DATA = b"\x00\x53\x75\xa0\x04body"
NOISE = b"\xff" * 8


def section(code: int, value: bytes) -> bytes:
    return bytes((0x00, 0x53, code)) + value


def around(name: str, value: bytes, code: int = 0x74) -> bytes:
    """A message of that id with one more section, of which only the bytes are given."""
    head, tail = (b"", DATA) if code != 0x78 else (b"", b"")
    properties = Properties(message_id=name).encoded()
    more = section(code, value)
    if code < 0x73:
        return more + properties + DATA
    return head + properties + (more + tail if code < 0x78 else DATA + more)


UNREADABLE_MAPS = {
    "0xff inside": b"\xc1\x09\x02\xa1\x01k\xa1\x03\xff\xff\xff",
    "noise": b"\xc1\x09\x02" + NOISE,
    "a number for a key": encode({5: "five"}),
    "null for a key": encode({None: "none"}),
    "a key without a value": b"\xc1\x04\x01\xa1\x01k",
    "more than its size": b"\xc1\x05\x02\xa1\x01k\xa1\x00",
    "too many elements": b"\xc1\x06\x04\xa1\x01k\xa1\x00",
    "a list": encode(["k", "v"]),
    "a text": encode("properties"),
    "no boolean": b"\xc1\x06\x02\xa1\x01k\x56\x02",
    "no type": b"\xc1\x05\x02\xa1\x01k\x46",
    "a symbol that is not ASCII": b"\xc1\x08\x02\xa1\x01k\xa3\x02\xc3\xa9",
    "a list inside that is noise": b"\xc1\x09\x02\xa1\x01k\xc0\x03\x01\xff\xff",
}
GOOD_MAPS = {
    "null": b"\x40",
    "empty": b"\xc1\x01\x00",
    "wide": b"\xd1" + (4 + 5).to_bytes(4) + (2).to_bytes(4) + b"\xa1\x01k\xa1\x00",
    "symbols": encode({Symbol("k"): Symbol("v")}),
    "lists and maps": encode({"k": [1, {"x": None}, UInt(7)]}),
    "a described value": encode({"k": 1})[:1] + b"\x09\x02\xa1\x01k\x00\x53\x28\x52\x01",
    "a wide text": b"\xc1\x0b\x02\xa1\x01k\xb1\x00\x00\x00\x02ok",
}
NAMES = {
    0x70: b"amqp:header:list",
    0x72: b"amqp:message-annotations:map",
    0x73: b"amqp:properties:list",
    0x74: b"amqp:application-properties:map",
    0x75: b"amqp:data:binary",
    0x78: b"amqp:footer:map",
}
FORMS: dict[str, Callable[[int], bytes]] = {
    "small": lambda code: bytes((0x00, 0x53, code)),
    "eight bytes": lambda code: b"\x00\x80" + code.to_bytes(8),
    "by name": lambda code: b"\x00\xa3" + bytes((len(NAMES[code]),)) + NAMES[code],
    "by a wide name": lambda code: b"\x00\xb3" + len(NAMES[code]).to_bytes(4) + NAMES[code],
}

_OF_TIME = re.compile(r"\._(next_housekeeping_ms|stuck|began_ms)\b")


class Yard(Rig):
    """The rig of a queue, with a topic that detects duplicates, and a queue beside it."""

    def __init__(self, folder: Path, **description: Any) -> None:
        super().__init__(folder, **description)
        self.make("beside", QueueDescription())
        self.make("t", TopicDescription(requires_duplicate_detection=True))
        self.subscribe("all")
        self.subscribe("red", Rule("r", CorrelationFilter(properties={"color": "red"})))
        self.subscribe(
            "acting", Rule("r", SqlFilter("color = 'red'"), SqlRuleAction("SET size = 1"))
        )

    def make(self, path: str, description: Any) -> Entity:
        create: Any = self.namespace.directory.create_queue
        if isinstance(description, TopicDescription):
            create = self.namespace.directory.create_topic
        create(path, description, self.now, Answer())
        self.commit()
        return self.namespace.directory.entity(path)

    def subscribe(
        self, name: str, rule: Rule | None = None, *, topic: str = "t", **settings: Any
    ) -> None:
        self.namespace.directory.create_subscription(
            topic, name, SubscriptionDescription(**settings), rule, self.now, Answer()
        )
        self.commit()

    def entity(self, path: str) -> Entity:
        return self.namespace.directory.entity(path)

    def sub(self, name: str) -> Entity:
        return self.namespace.directory.subscription("t", name)

    def to(self, path: str, *payloads: bytes) -> Answer:
        answer = Answer()
        self.namespace.send(self.entity(path), list(payloads), self.now, answer)
        self.commit()
        return answer

    def ids(self, queue: Queue) -> list[Any]:
        """What lies in a queue, by a peek."""
        return [
            Message.parse(payload(entry, 0)).properties.message_id for entry in queue.peek(0, 1000)
        ]

    def notes(self, queue: Queue) -> list[dict[str, Any]]:
        return [application_properties(entry.bare) for entry in queue.peek(0, 1000)]

    def spoil(self, queue: Queue, **columns: Any) -> None:
        """Give what lies in a queue bytes of another time, when nobody looked into them."""
        link = sqlite3.connect(self.path)
        with link:
            for name, value in columns.items():
                statement = f"UPDATE message SET {name} = ? WHERE id >> 40 = ?"
                link.execute(statement, (value, queue.number))
        link.close()

    def state(self) -> dict[str, Any]:
        """All that the disk and the memory know, but what a look at the clock leaves behind."""
        found = snapshot(self.namespace)
        return {name: each for name, each in found.items() if not _OF_TIME.search(name)}


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.store.close()


# ---------------------------------------------------------------- refused with nothing changed


@pytest.mark.parametrize("kind", UNREADABLE_MAPS)
@pytest.mark.parametrize("path", ["q", "t"])
def test_unreadable_properties_are_refused_and_their_id_is_not_remembered(
    yard: Yard, path: str, kind: str
) -> None:
    before = yard.state()
    with pytest.raises(MessageError, match="cannot be read") as refused:
        yard.to(path, around("same", UNREADABLE_MAPS[kind]))
    assert refused.value.condition == "com.microsoft:argument-error"
    assert yard.state() == before
    good = Properties(message_id="same").encoded()
    good = with_application_properties(good + DATA, {"color": "red"})
    assert yard.to(path, good).done
    if path == "t":
        assert [yard.ids(yard.sub(name).queue) for name in ("all", "red", "acting")] == [
            ["same"]
        ] * 3


@pytest.mark.parametrize("code", [0x71, 0x72, 0x78], ids=["delivery", "message", "footer"])
@pytest.mark.parametrize("value", [b"\xc1\x09\x02" + NOISE, encode("text"), encode(["k", "v"])])
def test_other_maps_of_a_message_are_read_too(yard: Yard, code: int, value: bytes) -> None:
    before = yard.state()
    with pytest.raises(MessageError, match="cannot be read"):
        yard.to("q", around("bad", value, code))
    assert yard.state() == before


@pytest.mark.parametrize("kind", GOOD_MAPS)
def test_properties_of_every_form_are_taken_and_can_be_changed(yard: Yard, kind: str) -> None:
    assert yard.to("q", around("good", GOOD_MAPS[kind])).done
    assert yard.to("t", around("good", GOOD_MAPS[kind])).done
    assert yard.ids(yard.sub("all").queue) == ["good"]
    taker = yard.taker(1)
    yard.settle(
        lambda token, done: yard.queue.abandon(token, yard.now, done, {"more": 1}),
        taker.got[0].token,
    )
    (notes,) = yard.notes(yard.queue)
    assert notes == {**application_properties(around("good", GOOD_MAPS[kind])), "more": 1}


@pytest.mark.parametrize("form", FORMS)
def test_descriptors_of_every_form_are_read(yard: Yard, form: str) -> None:
    name = FORMS[form]
    annotations = encode({Symbol("x-opt-partition-key"): "p"})
    sent = (
        *(name(0x70), encode([True, None, 60_000])),
        *(name(0x72), annotations),
        *(name(0x73), encode(["good"])),
        *(name(0x74), encode({"color": "red"})),
        *(name(0x75), b"\xa0\x04body"),
        *(name(0x78), encode({Symbol("f"): 1})),
    )
    assert yard.to("t", b"".join(sent)).done
    assert yard.ids(yard.sub("red").queue) == ["good"]
    assert yard.notes(yard.sub("acting").queue) == [{"color": "red", "size": 1, "RuleName": "r"}]


def test_of_a_refused_batch_nothing_stays(yard: Yard) -> None:
    before = yard.state()
    for path in ("q", "t"):
        with pytest.raises(MessageError):
            yard.to(path, message("one"), around("two", UNREADABLE_MAPS["0xff inside"]))
        with pytest.raises(MessageError):
            yard.namespace.schedule(
                yard.entity(path),
                [message("one", due_ms=yard.now + 1), around("two", encode({5: 5}))],
                yard.now,
                Answer(),
            )
    assert yard.state() == before
    assert yard.to("t", message("one"), message("two")).done
    assert yard.ids(yard.sub("all").queue) == ["one", "two"]


def test_a_batch_that_the_disk_cannot_answer_for_leaves_nothing(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, query = yard.state(), yard.store.query

    def fails_on_two(sql: str, *values: Any) -> Any:
        if "two" in values:
            raise StoreError("the disk cannot be read")
        return query(sql, *values)

    monkeypatch.setattr(yard.store, "query", fails_on_two)
    with pytest.raises(StoreError):
        yard.namespace.send(yard.entity("t"), [message("one"), message("two")], yard.now, Answer())
    monkeypatch.undo()
    assert yard.state() == before
    assert yard.to("t", message("one"), message("two")).done
    assert yard.ids(yard.sub("all").queue) == ["one", "two"]


@pytest.mark.parametrize(
    "given",
    [
        {"creation_time": ULong(2**64 - 1)},
        {"absolute_expiry_time": ULong(2**63)},
    ],
)
def test_a_moment_that_no_clock_reaches_is_refused(yard: Yard, given: dict[str, ULong]) -> None:
    fields: list[Any] = ["id", *[None] * 7, given.get("absolute_expiry_time")]
    fields.append(given.get("creation_time"))
    with pytest.raises(MessageError, match="cannot be read"):
        yard.to("q", section(0x73, encode(fields)) + DATA)


def test_a_content_type_that_is_a_text_survives_a_change(yard: Yard) -> None:
    fields = ["id", *[None] * 5, "größe"]
    body = with_application_properties(section(0x73, encode(fields)) + DATA, {"color": "red"})
    assert yard.to("t", body).done
    (copy,) = yard.sub("acting").queue.peek(0, 10)
    assert Message.parse(copy.bare).properties.content_type == "größe"
    without_id = section(0x73, encode([None, *fields[1:]])) + DATA
    assert yard.to("q", without_id).done


# ---------------------------------------------------------------- rules that go wrong


@pytest.mark.parametrize(
    "action",
    [
        SqlRuleAction("SET at = @at", {"@at": datetime(2030, 1, 1)}),
        SqlRuleAction("SET sys.TimeToLive = sys.TimeToLive - @day", {"@day": timedelta(days=1)}),
        SqlRuleAction("SET sys.TimeToLive = @long", {"@long": timedelta(days=999_999_999)}),
        SqlRuleAction("SET sys.ContentType = 'größe'"),
    ],
    ids=["a moment without a zone", "a negative time", "a long time", "no symbol"],
)
def test_what_an_action_makes_can_be_handed_out(yard: Yard, action: SqlRuleAction) -> None:
    yard.subscribe("odd", Rule("odd", SqlFilter("1 = 1"), action))
    assert yard.to("t", message("m", ttl_ms=60_000)).done
    queue = yard.sub("odd").queue
    taker = Taker(10)
    queue.add_consumer(taker)
    yard.namespace.pump_queue(queue, yard.now)
    yard.tick(1)
    for each in (*queue.peek(0, 10), *yard.sub("odd").dead_letters.peek(0, 10)):
        Message.parse(payload(each, 0))
    assert yard.ids(yard.sub("all").queue) == ["m"]


def test_a_rule_that_fails_in_a_way_nobody_thought_of_is_a_filter_error(yard: Yard) -> None:
    yard.subscribe("failing", Rule("odd", SqlFilter("1 = 1")), dead_lettering_on_filter_errors=True)
    ((rule, _),) = yard.namespace.directory.page_rules("t", "failing", 0, 10)
    assert isinstance(rule.filter, SqlFilter)

    def broken(message: Any, parameters: Any) -> bool:
        raise RecursionError("too deep")

    object.__setattr__(rule.filter.parsed, "_evaluate", broken)
    assert yard.to("t", message("m")).done
    assert yard.ids(yard.sub("all").queue) == ["m"]
    (notes,) = yard.notes(yard.sub("failing").dead_letters)
    assert notes["DeadLetterErrorDescription"] == "rule odd: too deep"


# ---------------------------------------------------------------- what was there before

BAD = Properties(message_id="old").encoded() + section(0x74, UNREADABLE_MAPS["0xff inside"]) + DATA
OLD = {
    "0xff inside": BAD,
    "a number for a key": Properties(message_id="old").encoded()
    + section(0x74, encode({5: "five"}))
    + DATA,
    "no message at all": NOISE,
    "properties that are no list": section(0x73, encode("text")) + DATA,
}


def set_aside(yard: Yard, queue: Queue, old: bytes) -> None:
    """It lies there, readable, with its reason and all of its bytes."""
    (entry,) = queue.peek(0, 10)
    found = Message.parse(payload(entry, 0))
    notes = application_properties(found.bare)
    assert notes["DeadLetterReason"] == UNREADABLE
    assert "cannot be read" in notes["DeadLetterErrorDescription"]
    if old.endswith(DATA) and old is not OLD["properties that are no list"]:
        assert found.properties.message_id == "old"
        assert found.bare.endswith(DATA)
        assert notes["UnreadableSections"] in old
    else:
        assert found.bare.endswith(old)


@pytest.mark.parametrize("kind", OLD)
def test_one_that_falls_due_stops_no_clock(yard: Yard, kind: str) -> None:
    yard.send(message("bad", due_ms=yard.now + MINUTE_MS))
    yard.spoil(yard.queue, bare=OLD[kind])
    yard.to("beside", message("good", due_ms=yard.now + MINUTE_MS))
    yard.to("t", message("published", due_ms=yard.now + MINUTE_MS))
    yard.tick(MINUTE_MS)
    yard.tick(MINUTE_MS)
    assert yard.ids(yard.entity("beside").queue) == ["good"]
    assert yard.ids(yard.sub("all").queue) == ["published"]
    set_aside(yard, yard.dead, OLD[kind])
    assert (yard.queue.counts.scheduled, yard.rows(yard.queue), yard.queue.taken) == (0, {}, {})


def test_one_that_falls_due_in_a_topic_is_with_each_subscription(yard: Yard) -> None:
    yard.to("t", message("bad", due_ms=yard.now + MINUTE_MS))
    yard.spoil(yard.entity("t").queue, bare=BAD)
    yard.to("beside", message("good", due_ms=yard.now + MINUTE_MS))
    yard.tick(MINUTE_MS)
    assert yard.ids(yard.entity("beside").queue) == ["good"]
    for name in ("all", "red", "acting"):
        set_aside(yard, yard.sub(name).dead_letters, BAD)
    assert yard.rows(yard.entity("t").queue) == {}


@pytest.mark.parametrize("kind", OLD)
def test_one_in_a_queue_that_begins_to_forward_is_not_gone(yard: Yard, kind: str) -> None:
    yard.send(message("first"))
    yard.spoil(yard.queue, bare=OLD[kind])
    yard.send(message("second"))
    yard.namespace.directory.update("q", QueueDescription(forward_to="t"), yard.now, Answer())
    yard.commit()
    assert yard.ids(yard.sub("all").queue) == ["second"]
    set_aside(yard, yard.dead, OLD[kind])
    assert (yard.queue.counts.active, yard.rows(yard.queue)) == (0, {})


@pytest.mark.parametrize("kind", OLD)
@pytest.mark.parametrize("forwarded", [False, True])
def test_one_that_is_given_up_is_a_dead_letter(yard: Yard, kind: str, forwarded: bool) -> None:
    """It expires, is delivered too often, or its receiver rejects it."""
    aims: Any = {"forward_dead_letters_to": "t"} if forwarded else {}
    source = yard.make(
        "given-up",
        QueueDescription(
            dead_lettering_on_expiration=True,
            max_delivery_count=1,
            default_ttl=timedelta(minutes=5),
            **aims,
        ),
    )
    for act in ("expire", "abandon", "reject"):
        yard.to("given-up", message(act))
        yard.spoil(source.queue, bare=OLD[kind])
        taker = Taker(1)
        if act == "expire":
            yard.tick(5 * MINUTE_MS)
            continue
        source.queue.add_consumer(taker)
        yard.namespace.pump_queue(source.queue, yard.now)
        if act == "abandon":
            yard.settle(
                lambda token, done: source.queue.abandon(token, yard.now, done),
                taker.got[0].token,
            )
        else:
            yard.settle(
                lambda token, done: source.queue.dead_letter(token, why, done),
                taker.got[0].token,
            )
        source.queue.remove_consumer(taker)
    where = yard.sub("all").queue if forwarded else source.dead_letters
    reasons = [notes["DeadLetterReason"] for notes in yard.notes(where)]
    assert reasons == ["TTLExpiredException", "MaxDeliveryCountExceeded", "reason"]
    assert (source.queue.counts.active, yard.rows(source.queue)) == (0, {})


def test_one_that_is_abandoned_with_changes_is_set_aside(yard: Yard) -> None:
    yard.send(message("bad"))
    yard.spoil(yard.queue, bare=BAD)
    taker = yard.taker(1)
    yard.settle(
        lambda token, done: yard.queue.abandon(token, yard.now, done, {"k": 1}),
        taker.got[0].token,
    )
    set_aside(yard, yard.dead, BAD)
    assert yard.rows(yard.queue) == {}


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("column", ["annotations", "delivery_annotations"])
def test_one_that_cannot_be_handed_out_throws_nobody_out(
    yard: Yard, column: str, deletes: bool
) -> None:
    yard.send(message("bad"))
    yard.spoil(yard.queue, **{column: b"\xc1\x09\x02" + NOISE})
    yard.send(message("good"))
    taker = yard.taker(10, deletes=deletes)
    yard.commit()
    assert [got.text for got in taker.got] == ["good"]
    (entry,) = yard.dead.peek(0, 10)
    notes = application_properties(Message.parse(payload(entry, 0)).bare)
    assert notes["DeadLetterReason"] == UNREADABLE
    assert NOISE in notes["UnreadableSections"]


def test_one_whose_annotations_are_noise_can_be_peeked_at(yard: Yard) -> None:
    yard.send(message("bad"))
    yard.spoil(yard.queue, annotations=b"\xc1\x09\x02" + NOISE)
    yard.send(message("good"))
    replies: list[Any] = []
    body = {"from-sequence-number": 0, "message-count": 10}
    request = Request(yard.namespace, yard.entity("q"), yard.queue, yard.now, body, replies.append)
    OPERATIONS["com.microsoft:peek-message"][1](request)
    (reply,) = replies
    shown = [Message.parse(each["message"]) for each in reply.body["messages"]]
    assert [each.properties.message_id for each in shown] == ["bad", "good"]


def test_deferred_ones_are_set_aside_before_they_are_locked(yard: Yard) -> None:
    yard.send(message("bad"), message("good"))
    taker = yard.taker(2)
    for got in taker.got:
        yard.settle(yard.queue.defer, got.token)
    yard.spoil(yard.queue, annotations=b"\xc1\x09\x02" + NOISE)
    link = sqlite3.connect(yard.path)
    with link:
        link.execute("UPDATE message SET annotations = NULL WHERE id & 0xffff = 2")
    link.close()
    for deletes in (True, False):
        with pytest.raises(Exception, match="does not exist"):
            yard.queue.receive_deferred(
                [2, 1], yard.now, deletes=deletes, owner=None, done=Answer()
            )
        yard.commit()
    assert yard.ids(yard.dead) == ["bad"]
    assert [
        e.sequence
        for e, _, _ in yard.queue.receive_deferred(
            [2], yard.now, deletes=False, owner=None, done=Answer()
        )
    ] == [2]


# ---------------------------------------------------------------- several at once


def test_changes_that_have_no_encoding_are_refused_and_the_lock_stands(yard: Yard) -> None:
    yard.send(message("m"))
    taker = yard.taker(1)
    token, before = taker.got[0].token, yard.state()
    odd: dict[str, object] = {"k": 2**70}
    acts: tuple[Callable[[], None], ...] = (
        lambda: yard.queue.abandon(token, yard.now, Answer(), odd),
        lambda: yard.queue.defer(token, Answer(), odd),
        lambda: yard.queue.dead_letter(
            token, lambda entry: Burial(entry, None, None, odd), Answer()
        ),
    )
    for act in acts:
        with pytest.raises(ArgumentError, match="cannot be encoded"):
            act()
        assert yard.state() == before
    yard.settle(yard.queue.complete, token)


def request(yard: Yard, name: str, body: dict[str, Any]) -> list[Any]:
    replies: list[Any] = []
    made = Request(yard.namespace, yard.entity("q"), yard.queue, yard.now, body, replies.append)
    OPERATIONS[f"com.microsoft:{name}"][1](made)
    return replies


def uuids(*tokens: bytes) -> list[Any]:
    return [UUID(bytes_le=token) for token in tokens]


def test_of_several_locks_that_are_renewed_one_lost_renews_none(yard: Yard) -> None:
    yard.send(message("a"), message("b"))
    taker = yard.taker(2)
    yard.settle(yard.queue.complete, taker.got[1].token)
    yard.now += 1_000
    until = yard.queue.locks[taker.got[0].token].until_ms
    with pytest.raises(LockLostError):
        request(yard, "renew-lock", {"lock-tokens": uuids(*(got.token for got in taker.got))})
    assert yard.queue.locks[taker.got[0].token].until_ms == until


@pytest.mark.parametrize("status", ["suspended", "abandoned", "defered"])
def test_of_several_settlements_that_the_disk_cannot_read_none_is_made(
    yard: Yard, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard.send(message("a"), message("b"))
    taker = yard.taker(2)
    before, get = yard.state(), yard.store.get

    def fails_on_two(entity: int, sequence: int) -> Any:
        if sequence == 2:
            raise StoreError("the disk cannot be read")
        return get(entity, sequence)

    body = {
        "lock-tokens": uuids(*(got.token for got in taker.got)),
        "disposition-status": status,
        "properties-to-modify": {"k": 1},
    }
    monkeypatch.setattr(yard.store, "get", fails_on_two)
    with pytest.raises(StoreError):
        request(yard, "update-disposition", body)
    monkeypatch.undo()
    assert yard.state() == before
    assert not any(lock.busy for lock in yard.queue.locks.values())
    replies = request(yard, "update-disposition", body)
    yard.commit()
    assert [reply.status for reply in replies] == [200]


@pytest.mark.parametrize("act", ["expire", "bury", "purge"])
def test_a_disk_that_cannot_be_read_leaves_nothing_half_done(
    yard: Yard, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    description = QueueDescription(
        dead_lettering_on_expiration=True, max_delivery_count=1, default_ttl=timedelta(minutes=5)
    )
    queue = yard.make("short", description).queue
    yard.to("short", message("a"), message("b"))

    def fails(*args: Any) -> Any:
        raise StoreError("the disk cannot be read")

    taker = Taker(0)
    queue.add_consumer(taker)
    before = yard.state()
    if act == "expire":
        monkeypatch.setattr(yard.store, "get", fails)
        with suppress(StoreError):  # who is told of it is not what this is about
            yard.namespace.tick(yard.now + 5 * MINUTE_MS)
        monkeypatch.undo()
        assert yard.state() == before
        yard.tick(6 * MINUTE_MS)
        assert sorted(yard.ids(yard.entity("short").dead_letters)) == ["a", "b"]
    elif act == "bury":
        taker.wants = 2
        yard.namespace.pump_queue(queue, yard.now)
        before = yard.state()
        monkeypatch.setattr(yard.store, "get", fails)
        with pytest.raises(StoreError):
            queue.abandon(taker.got[0].token, yard.now, Answer(), {"k": 1})
        with pytest.raises(StoreError):
            queue.abandon(taker.got[0].token, yard.now, Answer())
        monkeypatch.undo()
        assert yard.state() == before
    else:
        load = yard.store.load

        def second_page_fails(entity: int, after: int, limit: int, most: int) -> Any:
            if after:
                raise StoreError("the disk cannot be read")
            return load(entity, 0, 1, most)

        monkeypatch.setattr(yard.store, "load", second_page_fails)
        with pytest.raises(StoreError):
            queue.purge(10, yard.now + 1, yard.now, None, Answer())
        monkeypatch.undo()
        taker.wants = 2
        yard.namespace.pump_queue(queue, yard.now)
        assert [got.text for got in taker.got] == ["a", "b"]


# ---------------------------------------------------------------- deleted in batches


def deletion(yard: Yard, **more: Any) -> dict[str, Any]:
    return {"message-count": UInt(10), "enqueued-time-utc": Timestamp(yard.now + 1), **more}


def test_what_has_expired_meanwhile_is_not_deleted_a_second_time(yard: Yard) -> None:
    yard.taker(1)  # so that a page of the queue is in memory
    yard.send(message("first"), message("a", ttl_ms=1_000), message("b", ttl_ms=1_000))
    yard.send(message("last"))
    yard.tick(2_000)
    replies = request(yard, "batch-delete-messages", deletion(yard))
    yard.commit()
    assert [reply.body for reply in replies] == [{"message-count": 1}]
    assert yard.queue.counts.total == len(yard.ids(yard.queue)) == 1
    assert not inspect(yard.path).findings


def test_nothing_is_deleted_behind_the_back_of_who_holds_a_session(tmp_path: Path) -> None:
    yard = Yard(tmp_path, requires_session=True)
    yard.send(*(message(name, group_id="s") for name in "abc"))
    yard.restart()
    queue = yard.queue
    assert isinstance(queue, SessionQueue)
    one = {**deletion(yard), "message-count": UInt(1)}
    with pytest.raises(NotAllowedError):
        request(yard, "batch-delete-messages", one)
    taker = Taker(3)
    queue.accept("s", taker, yard.now)
    yard.namespace.pump_queue(queue, yard.now)
    assert [got.text for got in taker.got] == ["a", "b", "c"]
    with pytest.raises(NotAllowedError):
        request(yard, "batch-delete-messages", deletion(yard))
    for got in taker.got:
        yard.settle(queue.complete, got.token)
    assert not inspect(yard.path).findings
    assert queue.counts.total == 0
    yard.store.close()
