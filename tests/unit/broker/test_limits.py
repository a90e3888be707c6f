"""What a user counts on to the number: hops, counts of what came, a disk that fails altogether."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from tests.unit.broker.bus import Bus, message

from twinbus.amqp.message import application_properties
from twinbus.amqp.types import Timestamp
from twinbus.broker.expressions import MessageProperties
from twinbus.broker.queue import nothing
from twinbus.broker.refusals import MessageError, SqlError
from twinbus.broker.rules import Rule, SqlFilter, SqlRuleAction
from twinbus.broker.sessions import SessionQueue, Waiter


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path)
    yield bus
    bus.close()


def chain(bus: Bus, queues: int) -> list[str]:
    """Queues of which each forwards to the next; the first one comes first."""
    names = [f"q{number}" for number in range(queues)]
    for name, following in reversed(list(zip(names, [*names[1:], None], strict=True))):
        bus.create_queue(name, forward_to=following)
    return names


def test_a_message_goes_on_four_times_and_not_a_fifth(bus: Bus) -> None:
    first, second, *_, fifth, last = chain(bus, 6)
    bus.send(second, "four")
    assert bus.texts(last) == ["four"]
    bus.send(first, "five")
    assert bus.texts(last) == ["four"]
    assert bus.texts(f"{fifth}/$deadletterqueue") == ["five"]


def test_each_message_is_counted_once_wherever_it_comes(bus: Bus) -> None:
    chain(bus, 2)
    bus.create_topic("t")
    bus.subscribe("t", "one")
    for path in ("q0", "t"):
        bus.send(path, "a", "b", "c")
    for path in ("q0", "q1", "t", "t/Subscriptions/one"):
        assert bus.queue(path).totals.messages_in == 3, path
    taker = bus.take("q1", 2)
    bus.do(bus.queue("q1").complete, taker.tokens[0])
    totals = bus.queue("q1").totals
    assert (totals.messages_in, totals.completed, totals.dead_lettered) == (3, 1, 0)


def test_after_a_disk_that_cannot_even_go_back_there_is_another_connection(bus: Bus) -> None:
    bus.create_queue("q")
    bus.store._writer.close()
    bus.store.rollback()
    bus.send("q", "after")
    assert bus.texts("q") == ["after"]


def test_an_action_may_write_a_time_on_a_message(bus: Bus) -> None:
    bus.create_topic("t")
    path = bus.subscribe("t", "one")
    when = datetime(2024, 2, 29, 12, 30, 0, 5_000, UTC)
    rule = Rule("r", SqlFilter("1 = 1"), SqlRuleAction("SET at = @when", {"@when": when}))
    bus.do(bus.directory.create_rule, "t", "one", rule, bus.now)
    bus.do(bus.directory.delete_rule, "t", "one", "$Default")
    bus.send("t", "a")
    (entry,) = bus.queue(path).peek(0, 10)
    at = application_properties(entry.bare)["at"]
    assert (type(at), at) == (Timestamp, int(when.timestamp() * 1000))


def test_a_queue_with_a_receiver_is_not_idle_though_nothing_comes(bus: Bus) -> None:
    for path in ("watched", "left"):
        bus.create_queue(path, auto_delete_on_idle=timedelta(minutes=5))
    bus.tick()
    bus.take("watched")
    for _ in range(6):
        bus.tick(60_000)
        bus.commit()
    assert [entity.path for entity in bus.directory.entities()] == ["watched"]


def test_a_rule_that_is_changed_is_there_and_after_a_restart_too(bus: Bus) -> None:
    bus.create_topic("t")
    path = bus.subscribe("t", "one")
    bus.do(bus.directory.update_rule, "t", "one", Rule("$Default", SqlFilter("1 = 0")), bus.now)
    bus.send("t", "not wanted")
    bus.do(bus.directory.update_rule, "t", "one", Rule("$Default", SqlFilter("1 = 1")), bus.now)
    bus.send("t", "wanted")
    bus.reopen()
    bus.send("t", "wanted still")
    assert bus.texts(path) == ["wanted", "wanted still"]


@pytest.mark.parametrize("too_long", ["message id", "session id"])
def test_either_id_may_be_too_long(bus: Bus, too_long: str) -> None:
    bus.create_queue("q")
    text, session = ("a" * 129, "s") if too_long == "message id" else ("a", "s" * 129)
    entity = bus.directory.entity("q")
    with pytest.raises(MessageError, match="at most 128"):
        bus.namespace.send(entity, [message(text, group_id=session)], bus.now, nothing)
    bus.do(bus.namespace.send, entity, [message("a" * 128, group_id="s" * 128)], bus.now)


def test_a_duplicate_is_counted_once_on_its_way_to_the_disk_and_afterwards(bus: Bus) -> None:
    bus.create_queue("q", requires_duplicate_detection=True)
    bus.send("q", "a", "a")
    bus.send("q", "a")
    assert bus.queue("q").totals.duplicates_dropped == 2
    assert bus.texts("q") == ["a"]


def test_a_queue_for_whose_sessions_somebody_waits_is_in_use(bus: Bus) -> None:
    bus.create_queue("q", requires_session=True)
    queue = bus.queue("q")
    assert isinstance(queue, SessionQueue)
    assert not queue.in_use
    waiter = cast(Waiter, object())
    queue.wait(waiter)
    assert queue.in_use
    queue.stop_waiting(waiter)
    assert not queue.in_use


@pytest.mark.parametrize("condition", ["1 + size AND a = 1", "5 OR a = 1"])
def test_what_is_joined_must_be_a_condition_on_the_left_too(condition: str) -> None:
    with pytest.raises(SqlError):
        SqlFilter(condition)


def test_nothing_is_like_no_pattern_at_all_and_no_error() -> None:
    assert SqlFilter("missing LIKE five").matches(MessageProperties({}, {"five": 5})) is None
