"""What one entity, one message or one receiver has wrong keeps no other from being looked after.

Something is planted on a real object, so that it raises what nobody foresaw; beside it is a queue
whose receiver must not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.test_queue import LOCK_MS, Answer, Rig, Taker, message

from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.entity import Entity
from twinbus.broker.queue import Queue
from twinbus.broker.sessions import Waiter

SOON_MS = 1_000
RETRY_MS = 10_000


class PlantedError(Exception):
    """Nobody expects this one."""


def fails(*_: Any, **__: Any) -> Any:
    raise PlantedError("planted")


class Pair(Rig):
    """The queue `q`, which is in trouble, and `well`, which is not."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for path, settings in (
            ("well", {}),
            ("forwarding", {"forward_to": "q"}),
            ("idle", {"auto_delete_on_idle": timedelta(minutes=5)}),
            ("busy", {"auto_delete_on_idle": timedelta(minutes=5)}),
        ):
            self.create(path, QueueDescription(**settings))

    def create(self, path: str, description: QueueDescription) -> None:
        answer = Answer()
        self.namespace.directory.create_queue(path, description, self.now, answer)
        self.commit()
        assert answer.done

    def entity(self, path: str) -> Entity:
        return self.namespace.directory.entity(path)

    def of(self, path: str) -> Queue:
        return self.entity(path).queue

    def put(self, path: str, *payloads: bytes) -> None:
        answer = Answer()
        self.namespace.send(self.entity(path), list(payloads), self.now, answer)
        self.commit()
        assert answer.done

    def receive(self, path: str, wants: int) -> Taker:
        taker = Taker(wants)
        self.of(path).add_consumer(taker)
        self.namespace.pump_queue(self.of(path), self.now)
        return taker

    def failing(self) -> set[tuple[str, str]]:
        return {(each.what, each.entity) for each in self.namespace.health.failures}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.close()


# ---------------------------------------------------------------- time


def test_locks_of_others_end_and_their_messages_come_back(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("q", "well"):
        pair.put(path, message())
        pair.receive(path, 1)
    monkeypatch.setattr(pair.of("q"), "expire_locks", fails)
    second = pair.receive("well", 1)
    pair.tick(LOCK_MS)
    assert [got.text for got in second.got] == ["m"]
    assert ("locks", "q") in pair.failing()


def test_one_lock_that_cannot_end_keeps_no_other_of_its_queue(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.put("q", message("bad"), message("good"))
    bad, _ = pair.receive("q", 2).got
    abandon = pair.of("q").abandon

    def fails_once(token: bytes, *rest: Any) -> None:
        if token == bad.token:
            pair.store.batch.delete(pair.of("q").number, pair.of("q").locks[token].entry)
            fails()
        abandon(token, *rest)

    monkeypatch.setattr(pair.of("q"), "abandon", fails_once)
    second = pair.receive("q", 2)
    pair.tick(LOCK_MS)
    assert [got.text for got in second.got] == ["good"]
    assert set(pair.rows(pair.of("q"))) == {1, 2}, "what failed half-way is not done by half"


@pytest.mark.parametrize("path", ["q", "well"])
def test_what_falls_due_elsewhere_appears(
    pair: Pair, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the two is looked at first."""
    other = {"q": "well", "well": "q"}[path]
    for each in (path, other):
        pair.put(each, message("later", due_ms=pair.now + SOON_MS))
    taker = pair.receive(other, 1)
    with monkeypatch.context() as planted:
        planted.setattr(pair.of(path), "put", fails)
        pair.tick(SOON_MS)
    assert [got.text for got in taker.got] == ["later"]
    assert ("schedule", path) in pair.failing()
    assert pair.rows(pair.of(path)) == {1: (2, 0)}, "it is still scheduled"
    again = pair.receive(path, 1)
    pair.tick(RETRY_MS)
    assert [got.text for got in again.got] == ["later"], "it appears when that is mended"
    pair.tick(RETRY_MS)
    assert pair.namespace._housekeeping._stuck == {}


def test_a_thousand_that_cannot_appear_do_not_hide_one_that_can(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(11):
        pair.put("q", *[message(due_ms=pair.now + SOON_MS) for _ in range(100)])
    pair.put("well", message("good", due_ms=pair.now + SOON_MS))
    taker = pair.receive("well", 1)
    monkeypatch.setattr(pair.of("q"), "put", fails)
    pair.tick(SOON_MS)
    pair.tick(250)
    assert [got.text for got in taker.got] == ["good"]


def test_what_expires_elsewhere_is_dead_lettered(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.create("buries", QueueDescription(dead_lettering_on_expiration=True))
    for path in ("q", "buries"):
        pair.put(path, message("old", ttl_ms=SOON_MS))
    monkeypatch.setattr(pair.of("q"), "expire_stored", fails)
    pair.tick(SOON_MS)
    assert len(pair.rows(pair.entity("buries").dead_letters)) == 1
    assert ("expiry", "q") in pair.failing()


def test_an_idle_queue_is_deleted_although_another_cannot_be(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = pair.namespace.directory.delete

    def fails_for_idle(path: str, done: Callable[..., None]) -> None:
        fails() if path == "idle" else delete(path, done)

    monkeypatch.setattr(pair.namespace.directory, "delete", fails_for_idle)
    pair.tick()
    pair.tick(600_000)
    left = {entity.path for entity in pair.namespace.directory.entities()}
    assert {"q", "well", "idle"} <= left
    assert "busy" not in left
    assert ("housekeeping", "idle") in pair.failing()


def test_it_is_well_again_when_it_works_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.put("q", message())
    pair.receive("q", 1)
    with monkeypatch.context() as planted:
        planted.setattr(pair.of("q"), "expire_locks", fails)
        for _ in range(4):
            pair.tick(LOCK_MS)
        (failure,) = pair.namespace.health.failures
        assert (failure.what, failure.entity, failure.times) == ("locks", "q", 4)
        assert failure.error == "PlantedError: planted"
    pair.tick(250)
    assert pair.failing() == set()


def test_a_ledger_that_cannot_be_kept_stops_no_clock(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.put("well", message("later", due_ms=pair.now + SOON_MS))
    with monkeypatch.context() as planted:
        planted.setattr(pair.namespace.books, "post", fails)
        pair.tick(SOON_MS)
    assert [got.text for got in pair.receive("well", 1).got] == ["later"]
    assert ("ledger", "test") in pair.failing()


# ---------------------------------------------------------------- handing out


@pytest.mark.parametrize("method", ["demand", "deliver"])
def test_a_receiver_that_fails_keeps_nothing_from_the_others(
    pair: Pair, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, fellow, other = Taker(10), Taker(10), Taker(10)
    monkeypatch.setattr(broken, method, fails)
    for taker, path in ((broken, "q"), (fellow, "q"), (other, "well")):
        pair.of(path).add_consumer(taker)
    pair.put("q", *[message(str(number)) for number in range(6)])
    pair.put("well", message("w"))
    assert [got.text for got in other.got] == ["w"]
    if method == "demand":
        assert [got.text for got in fellow.got] == list("012345")
    else:
        assert [got.text for got in fellow.got] == list("12345")
        assert len(pair.of("q").locks) == 6, "what it failed to take is given to it by its lock"
    assert ("delivery", "q") in pair.failing()
    pair.of("q").remove_consumer(broken)
    pair.tick(LOCK_MS)
    assert "0" in [got.text for got in fellow.got]


def test_a_receiver_of_a_session_that_fails_keeps_nothing_from_other_sessions(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.create("sessions", QueueDescription(requires_session=True))
    queue: Any = pair.of("sessions")
    broken, well = Taker(5), Taker(5)
    monkeypatch.setattr(broken, "deliver", fails)
    for name, taker in (("a", broken), ("b", well)):
        queue.accept(name, taker, pair.now)
    pair.put("sessions", message("1", group_id="a"), message("2", group_id="b"))
    assert [got.text for got in well.got] == ["2"]
    assert ("delivery", "sessions") in pair.failing()


def test_one_who_waits_for_a_session_and_fails_keeps_nothing_from_who_has_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.create("sessions", QueueDescription(requires_session=True))
    queue: Any = pair.of("sessions")
    well = Taker(5)
    queue.accept("b", well, pair.now)
    queue.wait(Waiter(Taker(1), fails))
    pair.put("sessions", message("1", group_id="a"), message("2", group_id="b"))
    assert [got.text for got in well.got] == ["2"]
    assert ("delivery", "sessions") in pair.failing()


def test_a_queue_that_fails_is_tried_again_with_the_next_tick(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.put("q", message())
    with monkeypatch.context() as planted:
        planted.setattr(pair.of("q"), "take", fails)
        taker = pair.receive("q", 1)
        assert taker.got == []
    pair.tick(250)
    assert len(taker.got) == 1


def test_a_session_that_cannot_be_let_go_keeps_no_other(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.create("sessions", QueueDescription(requires_session=True))
    queue: Any = pair.of("sessions")
    one, two = Taker(5), Taker(5)
    for name, taker in (("a", one), ("b", two)):
        queue.accept(name, taker, pair.now)
    monkeypatch.setattr(one, "lose", fails)
    pair.tick()
    pair.namespace.pump_queue(queue, pair.now)
    pair.tick(LOCK_MS)
    assert two.lost is not None
    assert queue.sessions == {}


# ---------------------------------------------------------------- the commit, and forwarding


def test_one_who_cannot_be_told_of_a_commit_keeps_nobody_else_from_it(pair: Pair) -> None:
    told = Answer()
    taker = pair.receive("well", 1)
    pair.store.submit(fails)
    pair.namespace.send(pair.entity("well"), [message("good")], pair.now, told)
    pair.commit()
    assert told.done
    assert [got.text for got in taker.got] == ["good"]
    assert ("answers", "test") in pair.failing()


def test_a_message_that_cannot_be_forwarded_stays_and_the_others_go_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.create("source", QueueDescription())
    pair.put("source", *[message(str(number)) for number in range(250)])
    place = pair.namespace.place

    def fails_for_one(entity: Entity, entry: Any, letter: Any, *rest: Any) -> int:
        if letter.properties.message_id == "7":
            fails()
        return place(entity, entry, letter, *rest)

    monkeypatch.setattr(pair.namespace, "place", fails_for_one)
    answer = Answer()
    pair.namespace.directory.update("source", QueueDescription(forward_to="well"), pair.now, answer)
    pair.commit()
    pair.tick(250)
    assert len(pair.rows(pair.of("well"))) == 249
    assert set(pair.rows(pair.of("source"))) == {8}, "it is not completed and gone"
    assert ("delivery", "source") in pair.failing()


def test_forwarding_goes_on_however_many_have_failed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are under way at once: what failed is under way no longer."""
    pair.create("source", QueueDescription())
    pair.put("source", *[message(str(number)) for number in range(150)])
    with monkeypatch.context() as planted:
        planted.setattr(pair.namespace.forwarding, "forward", fails)
        answer = Answer()
        pair.namespace.directory.update(
            "source", QueueDescription(forward_to="well"), pair.now, answer
        )
        pair.commit()
        for _ in range(150):
            pair.tick(1)
    for _ in range(3):
        pair.tick(LOCK_MS)
    assert len(pair.rows(pair.of("well"))) == 150
