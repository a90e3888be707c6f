"""Bytes that subscriptions share: each keeps its copy whatever becomes of the others', and the last
one takes the bytes with it."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.bus import Bus, Taker, message

from twinbus.amqp.message import application_properties
from twinbus.broker.burial import Burial
from twinbus.broker.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.broker.entry import Entry
from twinbus.broker.refusals import DescriptionError, RequestError

ONE, OTHER = "t/Subscriptions/one", "t/Subscriptions/other"
DEAD = "/$deadletterqueue"
CHANGES: dict[str, object] = {"seen by": "one"}


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path)
    bus.create_topic("t")
    yield bus
    bus.close()


def quiet(error: Exception | None) -> None:
    """Nobody waits."""


def bodies(bus: Bus) -> list[tuple[int, int]]:
    return bus.store.query("SELECT id, holders FROM body")


def subscribed(bus: Bus, *texts: str, **description: Any) -> None:
    """One, of that description, and another, both with these messages."""
    bus.subscribe("t", "one", **description)
    bus.subscribe("t", "other")
    bus.send("t", *texts)


def is_well(bus: Bus, *texts: str) -> None:
    """The other has all its messages, and will have them after a restart."""
    assert bus.wrong() == {}
    bus.reopen()
    assert bus.wrong() == {}
    assert bus.texts(OTHER) == list(texts)
    assert bus.take(OTHER).texts == list(texts)


# ---------------------------------------------------------------- settled with changes


def test_abandoned_with_changes_on_the_last_delivery_leaves_the_other_its_copy(bus: Bus) -> None:
    subscribed(bus, "m", max_delivery_count=1)
    (token,) = bus.take(ONE).tokens
    bus.do(lambda done: bus.queue(ONE).abandon(token, bus.now, done, CHANGES))
    (dead,) = bus.queue(ONE + DEAD).peek(0, 9)
    assert application_properties(dead.bare)["seen by"] == "one"
    is_well(bus, "m")


def test_abandoned_with_changes_after_it_expired_leaves_the_other_its_copy(bus: Bus) -> None:
    bus.subscribe("t", "one", dead_lettering_on_expiration=True)
    bus.subscribe("t", "other")
    bus.send("t", "short", ttl_ms=1_000)
    bus.send("t", "long")
    token = bus.take(ONE, 1).tokens[0]
    other = bus.take(OTHER, 1)
    assert other.texts == ["short"]
    bus.now += 2_000
    bus.do(lambda done: bus.queue(ONE).abandon(token, bus.now, done, CHANGES))
    assert bus.wrong() == {}
    assert bus.texts(OTHER) == ["short", "long"]
    (dead,) = bus.queue(ONE + DEAD).peek(0, 9)
    assert application_properties(dead.bare)["seen by"] == "one"


def test_abandoned_with_changes_into_forwarded_dead_letters_leaves_the_other_its_copy(
    bus: Bus,
) -> None:
    bus.create_queue("morgue")
    subscribed(bus, "m", max_delivery_count=1, forward_dead_letters_to="morgue")
    (token,) = bus.take(ONE).tokens
    bus.do(lambda done: bus.queue(ONE).abandon(token, bus.now, done, CHANGES))
    (dead,) = bus.queue("morgue").peek(0, 9)
    assert application_properties(dead.bare)["seen by"] == "one"
    is_well(bus, "m")


def test_dead_letters_forwarded_to_a_topic_leave_the_other_its_copy(bus: Bus) -> None:
    bus.create_topic("morgue")
    bus.subscribe("morgue", "a")
    bus.subscribe("morgue", "b")
    subscribed(bus, "m", max_delivery_count=1, forward_dead_letters_to="morgue")
    (token,) = bus.take(ONE).tokens
    bus.do(lambda done: bus.queue(ONE).abandon(token, bus.now, done, CHANGES))
    assert bus.texts("morgue/Subscriptions/a") == ["m"]
    bus.delete("morgue")
    is_well(bus, "m")


def test_deferred_with_changes_and_then_deleted_leaves_the_other_its_copy(bus: Bus) -> None:
    subscribed(bus, "m")
    (token,) = bus.take(ONE).tokens
    bus.do(lambda done: bus.queue(ONE).defer(token, done, CHANGES))
    assert bus.wrong() == {}
    bus.do(
        lambda done: bus.queue(ONE).receive_deferred(
            [1], bus.now, deletes=True, owner=None, done=done
        )
    )
    is_well(bus, "m")


@pytest.mark.parametrize("settling", ["abandon", "defer"])
def test_a_change_that_the_disk_refused_is_not_counted(bus: Bus, settling: str) -> None:
    """What memory believed then must not matter later: the share is given up once, and it is."""
    subscribed(bus, "m")
    queue = bus.queue(ONE)
    (token,) = bus.take(ONE, 1).tokens
    if settling == "abandon":
        queue.abandon(token, bus.now, quiet, CHANGES)
    else:
        queue.defer(token, quiet, CHANGES)
    bus.refuse()
    assert bus.wrong() == {}
    bus.do(queue.complete, token)
    assert bodies(bus) == [(1, 1)]
    (token,) = bus.take(OTHER).tokens
    bus.do(bus.queue(OTHER).complete, token)
    assert bodies(bus) == []
    assert bus.wrong() == {}


# ---------------------------------------------------------------- while it is deleted


Act = Callable[[Bus, Any, list[bytes]], None]

ACTS: dict[str, tuple[dict[str, Any], Act]] = {
    "completed": ({}, lambda bus, queue, tokens: queue.complete(tokens[0], quiet)),
    "abandoned with changes": (
        {},
        lambda bus, queue, tokens: queue.abandon(tokens[0], bus.now, quiet, CHANGES),
    ),
    "deferred with changes": (
        {},
        lambda bus, queue, tokens: queue.defer(tokens[0], quiet, CHANGES),
    ),
    "given up": (
        {"max_delivery_count": 1},
        lambda bus, queue, tokens: queue.abandon(tokens[0], bus.now, quiet),
    ),
    "dead-lettered": (
        {},
        lambda bus, queue, tokens: queue.dead_letter(
            tokens[0], lambda entry: Burial(entry, "why", None), quiet
        ),
    ),
    "its locks expire": (
        {"max_delivery_count": 1},
        lambda bus, queue, tokens: bus.tick(10 * 60_000),
    ),
    "expired": ({}, lambda bus, queue, tokens: bus.tick(2 * 3600_000)),
    "purged": ({}, lambda bus, queue, tokens: queue.purge(10, bus.now + 1, bus.now, None, quiet)),
    "received and deleted": (
        {},
        lambda bus, queue, tokens: bus.namespace.pump_queue(queue, bus.now),
    ),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("later", [False, True], ids=["in its batch", "in the next"])
def test_what_is_settled_while_its_subscription_is_deleted_is_counted_once(
    bus: Bus, act: str, later: bool
) -> None:
    description, settle = ACTS[act]
    subscribed(bus, *"abc", **description)
    bus.send("t", "short", ttl_ms=3600_000)
    tokens = bus.take(ONE, 2).tokens
    queue = bus.queue(ONE)
    if act == "received and deleted":
        bus.take(ONE, 0, deletes=True).wants = 2
    bus.directory.delete(ONE, quiet)
    batch = bus.write() if later else None
    with suppress(RequestError):  # it is closed; what matters is what is counted
        settle(bus, queue, tokens)
    if batch is not None:
        bus.tell(batch)
    bus.commit()
    assert bus.wrong() == {}
    assert [text for text in bus.texts(OTHER) if text != "short"] == list("abc")


def test_what_is_forwarded_while_its_subscription_is_deleted_is_counted_once(bus: Bus) -> None:
    bus.create_queue("q")
    subscribed(bus, *"abc")
    bus.directory.update(ONE, SubscriptionDescription(forward_to="q"), bus.now, quiet)
    batch = bus.write()
    bus.directory.delete(ONE, quiet)
    deletion = bus.write()
    bus.tell(batch)
    bus.tell(deletion)
    bus.commit()
    is_well(bus, *"abc")


def test_a_message_twice_in_one_queue_is_counted_twice_when_that_is_deleted(bus: Bus) -> None:
    bus.create_queue("q")
    bus.subscribe("t", "one", forward_to="q")
    bus.subscribe("t", "two", forward_to="q")
    bus.subscribe("t", "other")
    bus.send("t", "m")
    assert bodies(bus) == [(1, 3)]
    for name in ("one", "two"):
        bus.delete(f"t/Subscriptions/{name}")
    bus.delete("q")
    assert bodies(bus) == [(1, 1)]
    is_well(bus, "m")


def test_a_subscription_whose_deletion_the_disk_refused_has_its_messages(bus: Bus) -> None:
    subscribed(bus, "m")
    (token,) = bus.take(ONE).tokens
    bus.directory.delete(ONE, quiet)
    bus.refuse()
    assert bus.texts(ONE) == ["m"]
    bus.do(bus.queue(ONE).complete, token)
    assert bodies(bus) == [(1, 1)]
    is_well(bus, "m")


@pytest.mark.parametrize("committed", [False, True])
def test_a_kill_in_the_middle_of_a_settlement_counts_it_whole_or_not_at_all(
    bus: Bus, committed: bool
) -> None:
    subscribed(bus, "m", max_delivery_count=1)
    (token,) = bus.take(ONE).tokens
    bus.queue(ONE).abandon(token, bus.now, quiet, CHANGES)
    bus.store.apply(bus.store.take_batch())
    if committed:
        bus.store.commit()
    bus.reopen()
    assert bus.texts(ONE) == ([] if committed else ["m"])
    assert bodies(bus) == [(1, 2 - committed)]
    is_well(bus, "m")


# ---------------------------------------------------------------- bytes that are lost


def lose_bytes(bus: Bus, text: bytes) -> None:
    """As a damaged file has it: a row whose bytes are nowhere."""
    with closing(sqlite3.connect(bus.path)) as link:
        link.execute("DELETE FROM body WHERE instr(bare, ?)", (text,))
        link.commit()


def test_a_row_that_has_lost_its_bytes_is_set_aside_and_all_else_goes_on(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    bus.create_queue("q")
    bus.send("q", "elsewhere", ttl_ms=60_000)
    subscribed(bus, *"abc")
    lose_bytes(bus, b"body of b")
    taker = bus.take(ONE, 100)
    assert taker.texts == ["a", "c"]
    assert bus.texts(OTHER) == ["a", "c"]
    assert taker.lost is None
    with caplog.at_level(logging.ERROR):
        bus.tick(10 * 60_000)
    bus.commit()
    assert bus.texts("q") == []  # the clock of the namespace goes on
    assert bus.wrong() == {}
    found = bus.store.query("SELECT id & 255, reason, bare FROM aside")
    assert found == [(2, "its bytes are not in the file", None)] * 2
    # And no later message gets into its place.
    bus.send("t", "d")
    assert taker.texts[-1] == "d"
    assert bus.take(ONE).texts == []


@pytest.mark.parametrize("how", ["complete", "abandon", "defer", "give up", "its lock ends"])
def test_bytes_that_are_lost_while_somebody_holds_the_message_stop_nobody(
    bus: Bus, how: str
) -> None:
    subscribed(bus, *"abc", max_delivery_count=1 if how == "give up" else 10)
    queue = bus.queue(ONE)
    tokens = bus.take(ONE, 2).tokens
    lose_bytes(bus, b"body of b")
    if how == "complete":
        bus.do(queue.complete, tokens[1])
    elif how in ("abandon", "give up"):
        bus.do(queue.abandon, tokens[1], bus.now)
    elif how == "defer":
        bus.do(lambda done: queue.defer(tokens[1], done, CHANGES))
    bus.tick(10 * 60_000)
    bus.commit()
    bus.tick(1)
    bus.commit()
    assert bus.texts(OTHER) == ["a", "c"]
    assert bus.take(ONE).texts[-1] == "c"
    assert "b" not in bus.texts(ONE)
    bus.tick(1)
    bus.commit()
    assert bus.wrong() == {}


def test_a_page_of_messages_without_bytes_does_not_hide_those_behind_it(bus: Bus) -> None:
    subscribed(bus, *(f"lost {n}" for n in range(600)), "kept")
    lose_bytes(bus, b"body of lost")
    assert bus.take(ONE).texts == ["kept"]
    bus.tick()
    bus.commit()
    assert bus.texts(OTHER) == ["kept"]
    bus.tick()
    bus.commit()
    assert bus.wrong() == {}


# ---------------------------------------------------------------- anything, by a seed


class Random:
    """Does anything that clients may, the disk included, in an order that a seed says."""

    def __init__(self, bus: Bus, seed: int) -> None:
        self.bus = bus
        self.random = random.Random(seed)
        self.count = 0
        self.made = 0
        self.in_flight: Any = None
        bus.create_queue("q")
        bus.create_queue("s", requires_session=False, dead_lettering_on_expiration=True)

    def step(self) -> None:
        acts = [self.publish, self.settle, self.disk] * 3 + [self.receive] * 2
        acts += [self.subscribe, self.delete, self.recreate, self.pass_time, self.purge]
        with suppress(RequestError, DescriptionError):
            self.random.choice(acts)()

    def publish(self) -> None:
        self.count += 1
        ttl_ms = self.random.choice((None, None, 5_000))
        path = self.random.choice(("t", "t", "t", "u", "q"))
        entity = self.bus.directory.entity(path)
        self.bus.namespace.send(entity, [message(f"m{self.count}", ttl_ms)], self.bus.now, quiet)

    def subscribe(self) -> None:
        self.made += 1
        description = SubscriptionDescription(
            max_delivery_count=self.random.choice((1, 2, 10)),
            dead_lettering_on_expiration=self.random.random() < 0.5,
            forward_to=self.random.choice((None, None, None, "q", "s", "u")),
            forward_dead_letters_to=self.random.choice((None, None, "q", "u")),
        )
        topic = self.random.choice(("t", "t", "u"))
        if topic == "u":
            description = SubscriptionDescription(max_delivery_count=1)
        self.bus.directory.create_subscription(
            topic, f"n{self.made}", description, None, self.bus.now, quiet
        )

    def queues(self) -> list[Any]:
        return [queue for entity in self.bus.directory.entities() for queue in entity.queues]

    def receive(self) -> None:
        queue = self.random.choice(self.queues())
        taker = Taker(self.random.randrange(1, 5), self.random.random() < 0.3)
        queue.add_consumer(taker)
        self.bus.namespace.pump_queue(queue, self.bus.now)

    def settle(self) -> None:
        held = [(queue, token) for queue in self.queues() for token in queue.locks]
        if not held:
            return
        queue, token = self.random.choice(held)
        changes = self.random.choice((None, CHANGES))
        now = self.bus.now

        def burial(entry: Entry) -> Burial:
            return Burial(entry, "why", None, dict(changes or {}))

        self.random.choice(
            (
                lambda: queue.complete(token, quiet),
                lambda: queue.abandon(token, now, quiet, changes),
                lambda: queue.abandon(token, now, quiet, changes),
                lambda: queue.defer(token, quiet, changes),
                lambda: queue.dead_letter(token, burial, quiet),
                lambda: queue.release(token, now, quiet),
            )
        )()

    def purge(self) -> None:
        queue = self.random.choice(self.queues())
        queue.purge(3, self.bus.now + 1, self.bus.now, None, quiet)

    def delete(self) -> None:
        entities = list(self.bus.directory.entities())
        subscriptions = [entity.path for entity in entities if entity.parent is not None]
        others = ["u", "q"] if self.random.random() < 0.2 else []
        if subscriptions or others:
            self.bus.directory.delete(self.random.choice(subscriptions + others), quiet)

    def recreate(self) -> None:
        if self.random.random() < 0.5:
            self.bus.directory.create_queue("q", QueueDescription(), self.bus.now, quiet)
        else:
            self.bus.directory.create_topic("u", TopicDescription(), self.bus.now, quiet)

    def pass_time(self) -> None:
        self.bus.tick(self.random.choice((1, 1_000, 6_000, 70_000)))

    def disk(self) -> None:
        """A batch goes to the disk, or comes back from it, or is refused; or the broker dies."""
        bus = self.bus
        if self.in_flight is not None:
            batch, self.in_flight = self.in_flight, None
            bus.tell(batch)
        elif bus.store.batch:
            fate = self.random.random()
            if fate < 0.15:
                bus.refuse()
            elif fate < 0.2:
                bus.store.apply(bus.store.take_batch())
                bus.reopen()
            else:
                self.in_flight = bus.write()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_done_the_file_is_sound_after_each_step(bus: Bus, seed: int) -> None:
    actor = Random(bus, seed)
    for number in range(300):
        actor.step()
        assert (number, bus.wrong()) == (number, {})
    if actor.in_flight is not None:
        bus.tell(actor.in_flight)
    bus.commit()
    bus.reopen()
    assert bus.wrong() == {}
    assert bus.store.query("SELECT * FROM aside") == []
    for entity in list(bus.directory.entities()):
        if entity.parent is None:
            bus.delete(entity.path)
    assert bus.store.query("SELECT count(*) FROM message") == [(0,)]
    assert bodies(bus) == []
