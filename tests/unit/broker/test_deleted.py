"""What is deleted is closed from the moment its deletion is asked for, and leaves nothing: no row,
and no number that another could get. If the disk refuses, all is as before."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.bus import Bus, Taker, message

from twinbus.broker.burial import Burial
from twinbus.broker.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.broker.refusals import (
    DescriptionError,
    EntityNotFoundError,
    QuotaError,
    StoreError,
)
from twinbus.broker.rules import Rule, SqlFilter, TrueFilter
from twinbus.broker.schema import LAST_NUMBER
from twinbus.broker.sessions import SessionQueue

ONE = "t/Subscriptions/one"
REFUSAL = StoreError("the disk is full", full=True)
FIRST_RELEASE = Path(__file__).parent / "stores" / "first_release.sql"


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path)
    yield bus
    bus.close()


def quiet(error: Exception | None) -> None:
    """Nobody waits."""


def in_window(bus: Bus, path: str, act: Callable[[], None], *, refused: bool = False) -> None:
    """Do something while a deletion is on its way to the disk: what it adds is the next batch's."""
    bus.directory.delete(path, quiet)
    if refused:
        batch = bus.store.take_batch()
        act()
        bus.store.apply(batch)
        bus.store.rollback()
        bus.tell(batch, REFUSAL)
    else:
        batch = bus.write()
        act()
        bus.tell(batch)
    bus.commit()


def rows(bus: Bus) -> list[int]:
    return [row[0] for row in bus.store.query("SELECT id >> 40 FROM message")]


# ---------------------------------------------------------------- closed


@pytest.mark.parametrize("refused", [False, True])
def test_what_is_published_beside_a_deletion_is_the_subscriptions_if_that_stays(
    bus: Bus, refused: bool
) -> None:
    bus.create_topic("t")
    for name in ("one", "other"):
        bus.subscribe("t", name)
    topic = bus.directory.entity("t")

    def publish() -> None:
        bus.namespace.send(topic, [message("m")], bus.now, quiet)

    in_window(bus, ONE, publish, refused=refused)
    assert bus.wrong() == {}
    assert bus.texts("t/Subscriptions/other") == ["m"]
    if refused:
        assert bus.texts(ONE) == ["m"]
        assert bus.take(ONE).texts == ["m"]
    bus.delete("t")
    assert rows(bus) == []


CLOSED: dict[str, Callable[[Bus, SessionQueue, bytes], Any]] = {
    "send": lambda bus, queue, token: bus.namespace.send(
        bus.directory._entities["q"], [message("late", group_id="s")], bus.now, quiet
    ),
    "schedule": lambda bus, queue, token: bus.namespace.schedule(
        bus.directory._entities["q"], [message("late", group_id="s")], bus.now, quiet
    ),
    "complete": lambda bus, queue, token: queue.complete(token, quiet),
    "abandon": lambda bus, queue, token: queue.abandon(token, bus.now, quiet),
    "release": lambda bus, queue, token: queue.release(token, bus.now, quiet),
    "defer": lambda bus, queue, token: queue.defer(token, quiet),
    "dead-letter": lambda bus, queue, token: queue.dead_letter(
        token, lambda entry: Burial(entry, "why", None), quiet
    ),
    "renew": lambda bus, queue, token: queue.renew(token, bus.now),
    "purge": lambda bus, queue, token: queue.purge(1, bus.now + 1, bus.now, None, quiet),
    "cancel": lambda bus, queue, token: queue.cancel([1], quiet),
    "receive by number": lambda bus, queue, token: queue.receive_deferred(
        [1], bus.now, deletes=True, owner=None, done=quiet
    ),
    "set a session's state": lambda bus, queue, token: queue.set_state("s", b"x", bus.now, quiet),
    "renew a session": lambda bus, queue, token: queue.renew_session("s", bus.now),
    "accept a session": lambda bus, queue, token: queue.accept("s2", Taker(1), bus.now),
    "update": lambda bus, queue, token: bus.directory.update(
        "q", QueueDescription(requires_session=True), bus.now, quiet
    ),
    "delete": lambda bus, queue, token: bus.directory.delete("q", quiet),
    "forward to it": lambda bus, queue, token: bus.directory.create_queue(
        "other", QueueDescription(forward_to="q"), bus.now, quiet
    ),
}


@pytest.mark.parametrize("act", CLOSED)
@pytest.mark.parametrize("later", [False, True], ids=["in its batch", "in the next"])
def test_nobody_may_change_what_is_being_deleted(bus: Bus, act: str, later: bool) -> None:
    bus.create_queue("q", requires_session=True)
    queue = bus.queue("q")
    assert isinstance(queue, SessionQueue)
    payload = message("m", group_id="s")
    bus.do(bus.namespace.send, bus.directory.entity("q"), [payload], bus.now)
    taker = Taker(1)
    queue.accept("s", taker, bus.now)
    bus.namespace.pump_queue(queue, bus.now)
    (token,) = taker.tokens
    bus.directory.delete("q", quiet)
    batch = bus.write() if later else None
    refusal = "deleted|not be found|not there"
    with pytest.raises((EntityNotFoundError, DescriptionError), match=refusal):
        CLOSED[act](bus, queue, token)
    if batch is not None:
        bus.tell(batch)
    bus.commit()
    assert isinstance(taker.lost, EntityNotFoundError)
    assert bus.wrong() == {}
    assert rows(bus) == []
    assert not queue.has_locks


@pytest.mark.parametrize("refused", [False, True])
def test_what_goes_to_an_entity_that_is_being_deleted_is_not_lost(bus: Bus, refused: bool) -> None:
    """Forwarded messages and dead letters stay with who forwards, with the reason."""
    bus.create_queue("target")
    bus.create_queue("source", forward_to="target", forward_dead_letters_to="target")
    bus.create_queue("last-chance", max_delivery_count=1, forward_dead_letters_to="target")
    bus.send("last-chance", "dead")
    (token,) = bus.take("last-chance").tokens

    def act() -> None:
        source = bus.directory.entity("source")
        bus.namespace.send(source, [message("m")], bus.now, quiet)
        bus.queue("last-chance").abandon(token, bus.now, quiet)

    in_window(bus, "target", act, refused=refused)
    assert bus.texts("source/$transfer/$deadletterqueue") == ["m"]
    assert bus.texts("last-chance/$deadletterqueue") == ["dead"]
    assert bus.wrong() == {}


def test_time_passes_over_what_is_being_deleted(bus: Bus) -> None:
    """Locks that end, messages that expire and that fall due, in a topic and its subscription."""
    bus.create_topic("t")
    bus.subscribe("t", "one", max_delivery_count=1, dead_lettering_on_expiration=True)
    bus.send("t", "locked")
    bus.send("t", "short", ttl_ms=5_000)
    topic = bus.directory.entity("t")
    bus.namespace.send_later(topic, [message("later")], bus.now, bus.now + 5_000, quiet)
    bus.commit()
    bus.take(ONE, 1)
    in_window(bus, "t", lambda: bus.tick(10 * 60_000))
    assert rows(bus) == []
    assert bus.wrong() == {}
    bus.tick(10 * 60_000)
    assert not bus.store.batch


def test_a_deletion_that_the_disk_refused_changes_nothing(bus: Bus) -> None:
    bus.create_topic("t")
    bus.subscribe("t", "one", max_delivery_count=1)
    bus.send("t", "a", "b")
    taker = bus.take(ONE, 1)
    topic = bus.directory.entity("t")
    bus.namespace.send_later(topic, [message("later")], bus.now, bus.now + 5_000, quiet)
    bus.commit()

    def act() -> None:
        taker.wants = 2
        bus.tick(10 * 60_000)
        assert taker.texts == ["a"]

    in_window(bus, "t", act, refused=True)
    assert taker.texts == ["a", "b"]
    assert taker.lost is None
    bus.tick(1)
    bus.commit()
    assert taker.texts == ["a", "b", "later"]
    assert bus.texts(ONE + "/$deadletterqueue") == ["a"]
    assert bus.wrong() == {}


def test_what_was_changed_before_a_refused_deletion_is_changed(bus: Bus) -> None:
    """The change is on disk before the deletion is refused: memory must have it too."""
    bus.create_topic("t")
    bus.subscribe("t", "one")
    description = SubscriptionDescription(max_delivery_count=3)
    bus.directory.update(ONE, description, bus.now, quiet)
    bus.directory.create_rule("t", "one", Rule("new", SqlFilter("x = 1")), bus.now, quiet)
    bus.directory.delete_rule("t", "one", "$Default", quiet)
    change = bus.write()
    bus.directory.delete(ONE, quiet)
    bus.tell(change)
    bus.refuse()

    def state() -> tuple[Any, list[str]]:
        rules = [rule.name for rule, _ in bus.directory.page_rules("t", "one", 0, 9)]
        return bus.directory.entity(ONE).description, rules

    assert state() == (description, ["new"])
    bus.reopen()
    assert state() == (description, ["new"])


# ---------------------------------------------------------------- a topic with what is in it


def make(bus: Bus, name: str, answers: list[Any]) -> None:
    bus.directory.create_subscription(
        "t", name, SubscriptionDescription(), Rule("r", TrueFilter()), bus.now, answers.append
    )


@pytest.mark.parametrize("later", [False, True], ids=["in its batch", "in the next"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_subscription_on_its_way_is_deleted_with_its_topic(
    bus: Bus, later: bool, killed: bool
) -> None:
    bus.create_topic("t")
    answers: list[Any] = []
    make(bus, "one", answers)
    creation = bus.write() if later else None
    bus.directory.delete("t", answers.append)
    deletion = bus.write()
    if not killed:
        for batch in (creation, deletion):
            if batch is not None:
                bus.tell(batch)
        assert answers == [None, None]
        assert list(bus.directory.entities()) == []
        bus.commit()
    bus.reopen()
    assert bus.store.query("SELECT path FROM entity") == []
    assert bus.wrong() == {}


def test_a_subscription_on_its_way_stays_if_the_disk_refuses_to_delete_the_topic(bus: Bus) -> None:
    bus.create_topic("t")
    answers: list[Any] = []
    make(bus, "one", answers)
    creation = bus.write()
    bus.directory.delete("t", quiet)
    bus.tell(creation)
    with pytest.raises(EntityNotFoundError):
        bus.directory.entity(ONE)
    bus.refuse()
    assert answers == [None]
    bus.send("t", "m")
    assert bus.texts(ONE) == ["m"]
    bus.reopen()
    assert bus.texts(ONE) == ["m"]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_a_subscription_and_its_topic_deleted_one_after_the_other(
    bus: Bus, first: bool, second: bool
) -> None:
    """Whichever of the two the disk takes: closed until the last answer, then as it is there."""
    bus.create_topic("t")
    bus.subscribe("t", "one")
    bus.send("t", "m")
    entity = bus.directory.entity(ONE)
    bus.directory.delete(ONE, quiet)
    if first:
        batch = bus.write()
        bus.directory.delete("t", quiet)
        bus.tell(batch)
    else:
        batch = bus.store.take_batch()
        bus.directory.delete("t", quiet)
        bus.tell(batch, REFUSAL)
    assert entity.deleted
    assert entity.queue.closed
    if second:
        bus.commit()
    else:
        bus.refuse()
    assert entity.deleted == (first or second)
    left = {each.path for each in bus.directory.entities()}
    assert left == ({"t"} if not second else set()) | ({ONE} if not (first or second) else set())
    assert bus.wrong() == {}
    bus.reopen()
    assert {each.path for each in bus.directory.entities()} == left


# ---------------------------------------------------------------- numbers


def test_a_number_is_never_given_twice(bus: Bus) -> None:
    given = set()
    for round_ in range(4):
        bus.create_queue(f"q{round_}")
        number = bus.directory.entity(f"q{round_}").id
        assert number not in given
        given.add(number)
        bus.delete(f"q{round_}")
        bus.reopen()


def test_the_number_of_a_shared_body_is_never_given_twice(bus: Bus) -> None:
    bus.create_topic("t")
    for name in ("one", "other"):
        bus.subscribe("t", name)
    given = []
    for _ in range(3):
        bus.send("t", "m")
        given += [row[0] for row in bus.store.query("SELECT id FROM body")]
        for name in ("one", "other"):
            (token,) = bus.take(f"t/Subscriptions/{name}").tokens
            bus.do(bus.queue(f"t/Subscriptions/{name}").complete, token)
        bus.reopen()
    assert given == [1, 2, 3]


def test_the_last_number_is_given_and_then_a_queue_is_refused_and_all_goes_on(bus: Bus) -> None:
    last = LAST_NUMBER - LAST_NUMBER % 3 - 3
    with closing(sqlite3.connect(bus.path)) as link:
        link.execute("UPDATE next_number SET entity = ?", (last,))
        link.commit()
    bus.reopen()
    bus.create_queue("last")
    bus.send("last", "m")
    for _ in range(2):
        with pytest.raises(QuotaError, match="begin a new data folder"):
            bus.create_queue("more")
        assert bus.texts("last") == ["m"]
        bus.reopen()
    assert bus.take("last").texts == ["m"]


# ---------------------------------------------------------------- files of before


def restore(path: Path) -> None:
    with closing(sqlite3.connect(path)) as link:
        link.executescript(FIRST_RELEASE.read_text())


def test_a_store_of_the_first_release_opens_with_what_it_had_and_without_its_faults(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    restore(tmp_path / "messages.db")
    with caplog.at_level(logging.WARNING):
        bus = Bus(tmp_path)
    assert bus.wrong() == {}
    assert bus.texts("q") == ["ready", "locked before", "deferred"]
    assert bus.texts("q/$deadletterqueue") == ["dead"]
    assert bus.texts("sessions") == ["in a session"]
    sessions = bus.queue("sessions")
    assert isinstance(sessions, SessionQueue)
    assert sessions.get_state("s1") == b"state"
    assert bus.texts("t/Subscriptions/one") == ["shared", "of nobody"]
    assert bus.texts("t/Subscriptions/one/$deadletterqueue") == ["lost", "low"]
    assert bus.texts("t/Subscriptions/other") == ["shared", "low", "of nobody"]
    assert bus.texts("t/Subscriptions/third") == ["low", "of nobody"]
    kept = bus.store.query("SELECT reason, id >> 40, instr(bare, 'body of'), session FROM aside")
    assert [(reason, number, bool(at), name) for reason, number, at, name in kept] == [
        ("its entity is not there", 39, True, None),
        ("a session's state: its entity is not there", 42, False, "s9"),
        ("its bytes are not in the file", 15, False, None),
        ("bytes of no message", None, True, None),
    ]
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "1 messages of entity 39, which is not there, were set aside",
        "1 session states of entity 42, which is not there: set aside",
        "1 messages have lost their bytes: set aside",
        "1 bodies belong to no message: set aside",
    ]
    caplog.clear()
    bus.reopen()
    assert caplog.records == []
    assert len(bus.store.query("SELECT 1 FROM aside")) == 4
    for path in ("q", "sessions", "t"):
        bus.delete(path)
    assert bus.wrong() == {}
    assert bus.store.query("SELECT * FROM body") == []
    bus.close()


def test_a_store_of_the_first_release_that_has_no_topic_any_more_is_counted_anew(
    tmp_path: Path,
) -> None:
    path = tmp_path / "messages.db"
    restore(path)
    with closing(sqlite3.connect(path)) as link:
        # What its subscriptions shared lies in a queue to which they forwarded.
        (queue,) = link.execute("SELECT id FROM entity WHERE path = 'q'").fetchone()
        link.execute("UPDATE message SET id = (? << 40) + 100 + rowid % 7 WHERE body = 5", (queue,))
        link.execute("DELETE FROM message WHERE body < 5")
        link.execute("DELETE FROM entity WHERE id >= 9")
        link.commit()
    bus = Bus(tmp_path)
    counters = bus.wrong().pop("counters that are wrong")
    assert [row[0] for row in counters] == ["q"]  # this test's doing
    assert bus.wrong().keys() == {"counters that are wrong"}
    bus.delete("q")
    assert bus.wrong() == {}
    assert bus.store.query("SELECT * FROM body") == []
    bus.close()


def test_rows_of_nobody_are_kept_and_never_delivered(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    """As an older release, to which one went back for a while, may leave them."""
    bus.create_topic("t")
    for name in ("one", "other"):
        bus.subscribe("t", name)
    bus.create_queue("q", requires_duplicate_detection=True)
    bus.send("q", "in the queue")
    bus.send("t", "shared")
    queue, one = bus.directory.entity("q").id, bus.directory.entity(ONE).id
    with closing(sqlite3.connect(bus.path)) as link:
        link.execute("DELETE FROM entity WHERE id IN (?, ?)", (queue, one))
        link.commit()
    with caplog.at_level(logging.WARNING):
        bus.reopen()
    assert len(caplog.records) == 4  # messages of two, ids and a rule
    assert bus.wrong() == {}
    assert bus.texts("t/Subscriptions/other") == ["shared"]
    found = bus.store.query("SELECT id >> 40, instr(bare, 'body of') > 0 FROM aside ORDER BY 1")
    assert found == [(queue, 1), (one, 1)] if queue < one else [(one, 1), (queue, 1)]
    bus.create_queue("q")
    assert bus.directory.entity("q").id > max(one, queue)
    assert bus.take("q").texts == []
    assert rows(bus) == [bus.directory.entity("t/Subscriptions/other").id]


def test_a_subscription_whose_topic_is_gone_does_not_keep_the_broker_from_starting(
    bus: Bus,
) -> None:
    bus.create_topic("t")
    for name in ("one", "other"):
        bus.subscribe("t", name)
    bus.send("t", "m")
    with closing(sqlite3.connect(bus.path)) as link:
        link.execute("DELETE FROM entity WHERE path = 't'")
        link.commit()
    bus.reopen()
    assert list(bus.directory.entities()) == []
    assert bus.wrong() == {}
    assert bus.store.query("SELECT * FROM entity") == []
    assert len(bus.store.query("SELECT * FROM aside")) == 2
    bus.create_topic("t")
    bus.subscribe("t", "one")
    assert bus.take(ONE).texts == []


# ---------------------------------------------------------------- many that come and go


@pytest.mark.parametrize("seed", range(4))
def test_publishing_beside_subscriptions_that_come_and_go_leaves_nothing_of_them(
    bus: Bus, seed: int
) -> None:
    """A thousand come and go, received from or not, with each batch on its way while others gather;
    one stays, and has everything."""
    chance = random.Random(seed)
    bus.create_topic("t")
    bus.subscribe("t", "stays")
    topic = bus.directory.entity("t")
    stays: list[str] = []
    sent = made = 0
    for _ in range(250):
        alive = [each.path for each in bus.directory.entities() if each.parent and not each.deleted]
        for _ in range(chance.randrange(8)):
            made += 1
            description = SubscriptionDescription(max_delivery_count=1)
            name = f"n{made}"
            bus.directory.create_subscription("t", name, description, None, bus.now, quiet)
        going = [path for path in alive if not path.endswith("/stays")]
        for path in chance.sample(going, min(len(going), chance.randrange(9))):
            if chance.random() < 0.5:
                bus.take(path, 3, deletes=chance.random() < 0.5)
            bus.directory.delete(path, quiet)
        for _ in range(chance.randrange(4)):
            sent += 1
            bus.namespace.send(topic, [message(f"m{sent}")], bus.now, quiet)
            stays.append(f"m{sent}")
        if not bus.store.batch:
            continue
        if chance.random() < 0.1:
            continue  # one more turn into the same batch
        batch = bus.write()
        for _ in range(chance.randrange(4)):
            sent += 1
            bus.namespace.send(topic, [message(f"m{sent}")], bus.now, quiet)
            stays.append(f"m{sent}")
        bus.tick(chance.choice((1, 1_000, 70_000)))
        bus.tell(batch)
    bus.commit()
    assert made > 500
    assert bus.wrong() == {}
    assert bus.texts("t/Subscriptions/stays")[:1000] == stays[:1000]
    highest = max(row[0] for row in bus.store.query("SELECT id FROM entity"))
    bus.reopen()
    assert bus.store.query("SELECT * FROM aside") == []
    bus.do(bus.directory.create_topic, "new", TopicDescription(), bus.now)
    assert bus.directory.entity("new").id > max(highest, made)
    for path in ("t", "new"):
        bus.delete(path)
    assert rows(bus) == []
    assert bus.store.query("SELECT * FROM body") == []
