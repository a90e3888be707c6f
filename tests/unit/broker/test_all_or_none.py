"""A send that raises has changed nothing, in memory or on disk, whatever raises, wherever in a list
it stands, and however the messages come in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness.conversations import NOW, Conversation
from tests.unit.broker.snapshot import snapshot
from tests.unit.broker.test_admission import NOISE, UNREADABLE_MAPS, Yard, around, section
from tests.unit.broker.test_queue import Answer, message

from twinbus.amqp.lifecycle import LinkState
from twinbus.amqp.link_endpoint import RECEIVER
from twinbus.amqp.performatives import Source, Target
from twinbus.amqp.types import Described, ULong, encode
from twinbus.broker import publishing
from twinbus.broker.client_links import SESSION_FILTER
from twinbus.broker.descriptions import QueueDescription, Status, TopicDescription
from twinbus.broker.entity import Entity
from twinbus.broker.management import OPERATIONS, serve
from twinbus.broker.refusals import RefusalError, StoreError
from twinbus.broker.requests import Request

PATHS = ("q", "once", "onward", "t", "visits")
LATER_MS = 60_000

Way = Callable[[Yard, Entity, list[bytes]], None]


def _send(yard: Yard, entity: Entity, payloads: list[bytes]) -> None:
    yard.namespace.send(entity, payloads, yard.now, Answer())


def _schedule(yard: Yard, entity: Entity, payloads: list[bytes]) -> None:
    yard.namespace.schedule(entity, payloads, yard.now, Answer())


def _send_later(yard: Yard, entity: Entity, payloads: list[bytes]) -> None:
    yard.namespace.send_later(entity, payloads, yard.now, yard.now + LATER_MS, Answer())


def _request(yard: Yard, entity: Entity, payloads: list[bytes]) -> None:
    body = {"messages": [{"message": payload} for payload in payloads]}
    request = Request(yard.namespace, entity, entity.queue, yard.now, body, lambda reply: None)
    OPERATIONS["com.microsoft:schedule-message"][1](request)


WAYS = {"send": _send, "schedule": _schedule, "later": _send_later, "request": _request}
BAD = {
    "too large": lambda: message("b" * 300_000),
    "an id that is too long": lambda: message("i" * 129),
    "a session id that is too long": lambda: message("m", group_id="s" * 129),
    "a time after all time": lambda: message("m", due_ms=253_402_300_800_000, group_id="s"),
    "not a message": lambda: NOISE,
    "a header that is none": lambda: section(0x70, encode("header")) + message("m"),
    "an id that is a list": lambda: section(0x73, encode([["id"]])),
    "a creation that no clock reaches": lambda: section(
        0x73, encode(["id", *[None] * 8, ULong(2**63)])
    ),
    "properties that are noise": lambda: around("m", UNREADABLE_MAPS["noise"]),
    "a footer that is noise": lambda: around("m", UNREADABLE_MAPS["noise"], 0x78),
    "annotations that are noise": lambda: around("m", UNREADABLE_MAPS["noise"], 0x72),
    "a body that ends too soon": lambda: message("m")[:-1],
}


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    """The yard, a queue that detects duplicates, one with sessions, and a chain of forwarding."""
    yard = Yard(tmp_path)
    yard.make("once", QueueDescription(requires_duplicate_detection=True))
    yard.make("visits", QueueDescription(requires_session=True))
    yard.make("u", TopicDescription())
    yard.subscribe("last", topic="u", forward_to="beside")
    yard.make("onward", QueueDescription(forward_to="t", default_ttl=timedelta(hours=1)))
    yard.subscribe("onward", forward_to="u")
    yard.taker(0)
    for path in PATHS:
        yard.to(path, message("there already", group_id="s"))
    yard.now += 1_000
    # Some of it is on its way to the disk, and must be there as it was.
    for path in PATHS:
        yard.namespace.send(
            yard.entity(path), [message("on its way", group_id="s")], yard.now, Answer()
        )
    yield yard
    yard.store.close()


def changes_nothing(yard: Yard, entity: Entity, act: Callable[[], None]) -> None:
    before, at_ms = snapshot(yard.namespace), yard.now
    yard.now += 1_000
    with pytest.raises(RefusalError):
        act()
    yard.now = at_ms
    after = snapshot(yard.namespace)
    assert {name: after.get(name) for name in before} == before
    assert after.keys() == before.keys()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", BAD)
def test_a_message_that_cannot_be_taken_changes_nothing(yard: Yard, kind: str, way: str) -> None:
    good = [message(name, group_id="s") for name in ("one", "on its way", "there already")]
    bad = BAD[kind]()
    for path in PATHS:
        entity = yard.entity(path)
        for payloads in ([bad], *([*good[:at], bad, *good[at:]] for at in range(4))):
            changes_nothing(yard, entity, lambda: WAYS[way](yard, entity, payloads))  # noqa: B023


@pytest.mark.parametrize("way", WAYS)
def test_a_list_of_no_messages_changes_nothing(yard: Yard, way: str) -> None:
    for path in PATHS:
        entity = yard.entity(path)
        changes_nothing(yard, entity, lambda: WAYS[way](yard, entity, []))  # noqa: B023


@pytest.mark.parametrize("way", WAYS)
def test_a_message_without_a_session_changes_nothing_where_one_is_required(
    yard: Yard, way: str
) -> None:
    entity = yard.entity("visits")
    good = message("one", group_id="s")
    for payloads in ([message("bad")], [good, message("bad")], [message("bad"), good]):
        changes_nothing(yard, entity, lambda: WAYS[way](yard, entity, payloads))  # noqa: B023


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", ["disabled", "full", "deleted"])
@pytest.mark.parametrize("path", ["q", "t"])
def test_an_entity_that_takes_nothing_is_as_it_was(
    yard: Yard, path: str, state: str, way: str
) -> None:
    yard.commit()
    entity, directory = yard.entity(path), yard.namespace.directory
    if state == "disabled":
        kind: Any = QueueDescription if path == "q" else TopicDescription
        more = {"requires_duplicate_detection": True} if path == "t" else {}
        description = kind(status=Status.SEND_DISABLED, **more)
        directory.update(path, description, yard.now, Answer())
        yard.commit()
    elif state == "full":
        entity.max_bytes = 1
    else:
        directory.delete(path, Answer())
    payloads = [message("one"), message("two")]
    changes_nothing(yard, entity, lambda: WAYS[way](yard, entity, payloads))


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_sent_to_a_subscription(yard: Yard, way: str) -> None:
    entity = yard.sub("all")
    changes_nothing(yard, entity, lambda: WAYS[way](yard, entity, [message("one")]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("path", ["once", "t"])
def test_a_disk_that_cannot_be_read_leaves_a_list_as_it_was(
    yard: Yard, path: str, at: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["one", "two", "three"]
    query = yard.store.query

    def fails(sql: str, *values: Any) -> Any:
        if names[at] in values:
            raise StoreError("the disk cannot be read")
        return query(sql, *values)

    monkeypatch.setattr(yard.store, "query", fails)
    entity = yard.entity(path)
    payloads = [message(name) for name in names]
    changes_nothing(yard, entity, lambda: WAYS[way](yard, entity, payloads))


def test_nothing_is_read_once_a_list_is_being_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even by the first message whose bytes several subscriptions share: a disk that refused
    that would leave a part of the list."""
    yard = Yard(tmp_path)
    yard.make("u", TopicDescription())
    for name in ("one", "two"):
        yard.subscribe(name, topic="u")
    yard.restart()

    def fails(sql: str, *values: Any) -> Any:
        raise StoreError("the disk cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(yard.store, "query", fails)
        answer = Answer()
        yard.namespace.send(yard.entity("u"), [message("a"), message("b")], yard.now, answer)
    yard.commit()
    assert answer.done
    for name in ("one", "two"):
        assert yard.ids(yard.namespace.directory.subscription("u", name).queue) == ["a", "b"]
    yard.store.close()


def test_what_an_action_fails_at_is_its_subscriptions_alone(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is: the copies that came before it have been placed by then."""

    def fails(*args: Any) -> Any:
        raise ArithmeticError("nobody foresaw this")

    yard.commit()
    monkeypatch.setattr(publishing, "rewrite", fails)
    red = around("m", encode({"color": "red"}))
    assert yard.to("t", red, message("after")).done
    assert yard.ids(yard.sub("all").queue)[-2:] == ["m", "after"]
    assert yard.ids(yard.sub("red").queue) == ["m"]
    assert yard.ids(yard.sub("acting").queue) == []


def test_what_is_refused_is_no_use_of_an_entity(tmp_path: Path) -> None:
    """Which would keep one that nobody can use from being deleted when it is idle."""
    talk = Conversation(tmp_path)
    entity = talk.namespace.directory.entity("orders")
    entity.accessed_ms = 0
    cbs: Any = SimpleNamespace(require=lambda path, claim: None)
    replies: list[int] = []

    def ask(name: str, body: Any) -> int:
        values = {"operation": f"com.microsoft:{name}"}
        told = lambda properties, body: replies.append(properties["statusCode"])  # noqa: E731
        serve(talk.namespace, cbs, "orders", values, body, lambda: NOW, told)
        return replies[-1]

    assert ask("schedule-message", {"messages": [{"message": NOISE}]}) == 400
    assert ask("peek-message", {}) == 400
    source = Source("orders", filter={SESSION_FILTER: Described(SESSION_FILTER, "s")})
    link = talk.session.attach("refused", RECEIVER, source=source, target=Target("orders"))
    talk.exchange()
    assert link.state is not LinkState.ATTACHED
    assert entity.accessed_ms == 0
    assert ask("peek-message", {"from-sequence-number": 0, "message-count": 1}) == 204
    assert entity.accessed_ms == NOW
