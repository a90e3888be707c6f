"""Sessions: one holder at a time, in order, with a lock and a state."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.bench.counting import database_steps
from tests.unit.broker.test_queue import LOCK_MS, START_MS, Answer, Rig, Taker, message

from twinbus.broker.refusals import (
    LockLostError,
    NotAllowedError,
    SessionLostError,
    SessionTakenError,
)
from twinbus.broker.sessions import SessionLock, SessionQueue, Waiter


class SessionRig(Rig):
    """The rig of a queue, with sessions."""

    @property
    def sessions(self) -> SessionQueue:
        queue = self.queue
        assert isinstance(queue, SessionQueue)
        return queue

    def put(self, *texts: str) -> None:
        """Each text starts with its session's name: "a1" is a message of "a"."""
        self.send(*[message(text, group_id=text[0]) for text in texts])

    def accept(self, name: str, wants: int = 100) -> tuple[SessionLock, Taker]:
        taker = Taker(wants)
        session = self.sessions.accept(name, taker, self.now)
        self.pump()
        return session, taker


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[SessionRig]:
    rig = SessionRig(tmp_path, requires_session=True)
    yield rig
    rig.close()


def texts(taker: Taker) -> list[str]:
    return [got.text for got in taker.got]


def test_a_session_has_its_own_messages_in_order(rig: SessionRig) -> None:
    rig.put("a1", "b1", "a2", "b2")
    _, a = rig.accept("a")
    _, b = rig.accept("b")
    rig.put("a3")
    assert (texts(a), texts(b)) == (["a1", "a2", "a3"], ["b1", "b2"])


def test_a_message_without_a_session_is_refused(rig: SessionRig) -> None:
    with pytest.raises(NotAllowedError, match="session id"):
        rig.send(message("none"))
    assert rig.queue.counts.total == 0


def test_a_session_has_one_holder(rig: SessionRig) -> None:
    rig.accept("a")
    with pytest.raises(SessionTakenError, match="'a' of 'q'"):
        rig.accept("a")


def test_the_next_session_is_the_one_that_has_waited_longest(rig: SessionRig) -> None:
    rig.put("b1", "a1", "c1")
    names = []
    for _ in range(3):
        session = rig.sessions.accept_next(Taker(), rig.now)
        assert session is not None
        names.append(session.id)
    assert names == ["b", "a", "c"]
    assert rig.sessions.accept_next(Taker(), rig.now) is None


def test_a_free_session_is_found_behind_any_number_of_messages_of_taken_ones(
    rig: SessionRig,
) -> None:
    rig.put(*[f"{'ab'[n % 2]}{n}" for n in range(1_200)], "z1")
    rig.accept("a", 0)
    rig.accept("b", 0)
    found = rig.sessions.accept_next(Taker(), rig.now)
    assert found is not None
    assert found.id == "z"


def test_whoever_waits_gets_the_first_session_that_has_a_message(rig: SessionRig) -> None:
    taker = Taker(5)
    granted: list[SessionLock] = []
    rig.sessions.wait(Waiter(taker, granted.append))
    rig.put("n1")
    assert [session.id for session in granted] == ["n"]
    assert texts(taker) == ["n1"]


def test_whoever_waits_is_not_given_a_session_whose_messages_are_on_their_way_out(
    rig: SessionRig,
) -> None:
    rig.put("a1", "b1")
    session, taker = rig.accept("a")
    rig.queue.complete(taker.got[0].token, Answer())
    rig.sessions.close_session(session, rig.now)
    granted: list[SessionLock] = []
    rig.sessions.wait(Waiter(Taker(5), granted.append))
    rig.pump()
    rig.sessions.wait(Waiter(Taker(5), granted.append))
    rig.pump()
    assert [session.id for session in granted] == ["b"]
    rig.commit()
    rig.put("a2")
    assert [session.id for session in granted] == ["b", "a"]


def test_whoever_waits_is_given_a_session_whose_messages_the_disk_would_not_let_go(
    rig: SessionRig,
) -> None:
    rig.put("a1")
    session, taker = rig.accept("a")
    rig.queue.complete(taker.got[0].token, Answer())
    rig.sessions.close_session(session, rig.now)
    granted: list[SessionLock] = []
    waiting = Taker(5)
    rig.sessions.wait(Waiter(waiting, granted.append))
    rig.pump()
    assert granted == []
    rig.fail()
    rig.tick()
    rig.tick()
    assert [session.id for session in granted] == ["a"]
    assert texts(waiting) == ["a1"]


def test_whoever_stopped_waiting_gets_nothing(rig: SessionRig) -> None:
    granted: list[SessionLock] = []
    waiter = Waiter(Taker(5), granted.append)
    rig.sessions.wait(waiter)
    rig.sessions.stop_waiting(waiter)
    rig.put("n1")
    assert granted == []


def test_a_closed_session_goes_with_its_messages_counted_to_the_next_holder(
    rig: SessionRig,
) -> None:
    rig.put("a1", "a2")
    session, first = rig.accept("a")
    rig.settle(rig.queue.complete, first.got[0].token)
    rig.sessions.close_session(session, rig.now)
    rig.commit()
    _, second = rig.accept("a")
    assert [(got.text, got.delivery_count) for got in second.got] == [("a2", 1)]
    with pytest.raises(LockLostError):
        rig.queue.complete(first.got[1].token, Answer())


def test_a_session_that_expires_tells_its_holder_and_is_free(rig: SessionRig) -> None:
    rig.put("a1")
    _, first = rig.accept("a")
    rig.tick(LOCK_MS)
    assert isinstance(first.lost, SessionLostError)
    with pytest.raises(SessionLostError, match="Accept the session again"):
        rig.sessions.renew_session("a", rig.now)
    _, second = rig.accept("a")
    assert texts(second) == ["a1"]


def test_renewing_a_session_renews_the_locks_of_its_messages(rig: SessionRig) -> None:
    rig.put("a1")
    _, taker = rig.accept("a")
    rig.tick(LOCK_MS - 1)
    assert rig.sessions.renew_session("a", rig.now) == rig.now + LOCK_MS
    rig.tick(LOCK_MS - 1)
    assert taker.lost is None
    rig.settle(rig.queue.complete, taker.got[0].token)


def test_a_session_whose_end_the_disk_refused_is_still_handed_on(rig: SessionRig) -> None:
    rig.put("a1")
    session, _ = rig.accept("a")
    rig.sessions.close_session(session, rig.now)
    rig.fail()
    _, second = rig.accept("a")
    assert second.got == []
    rig.tick()
    assert [(got.text, got.delivery_count) for got in second.got] == [("a1", 1)]
    assert rig.queue.counts.active == 1


def test_a_settlement_under_way_when_the_session_closes_counts(rig: SessionRig) -> None:
    rig.put("a1", "a2")
    session, taker = rig.accept("a")
    answer = Answer()
    rig.queue.complete(taker.got[0].token, answer)
    rig.sessions.close_session(session, rig.now)
    _, second = rig.accept("a")
    rig.commit()
    assert answer.done
    assert texts(second) == ["a2"]


def test_a_deferred_message_of_a_session_is_locked_with_it(rig: SessionRig) -> None:
    rig.put("a1")
    session, taker = rig.accept("a")
    rig.settle(rig.queue.defer, taker.got[0].token)
    rig.now += 1_000
    ((_, token, until_ms),) = rig.queue.receive_deferred(
        [1], rig.now, deletes=False, owner=session, done=Answer()
    )
    assert until_ms == session.until_ms == START_MS + LOCK_MS
    rig.settle(rig.queue.complete, token)
    assert rig.queue.counts.total == 0


def test_a_state_is_kept_until_it_is_taken_away(rig: SessionRig) -> None:
    assert rig.sessions.get_state("a") is None
    rig.settle(rig.sessions.set_state, "a", b"one", rig.now)
    rig.settle(rig.sessions.set_state, "a", b"two", rig.now)
    rig.restart()
    assert rig.sessions.get_state("a") == b"two"
    assert rig.sessions.get_state("b") is None
    rig.settle(rig.sessions.set_state, "a", None, rig.now)
    assert rig.sessions.get_state("a") is None


def test_a_restart_frees_sessions_and_keeps_their_order(rig: SessionRig) -> None:
    rig.put("a1", "a2")
    rig.accept("a")
    rig.restart()
    rig.put("a3")
    _, taker = rig.accept("a")
    assert texts(taker) == ["a1", "a2", "a3"]


def test_sessions_are_listed_page_by_page(rig: SessionRig) -> None:
    rig.put("c1", "a1", "b1", "a2")
    assert rig.sessions.list_sessions(None, 0, 2) == ["a", "b"]
    assert rig.sessions.list_sessions(None, 2, 2) == ["c"]
    rig.settle(rig.sessions.set_state, "b", b"x", rig.now)
    assert rig.sessions.list_sessions(rig.now - 1, 0, 10) == ["b"]
    assert rig.sessions.list_sessions(rig.now, 0, 10) == []


def test_many_sessions_come_and_go_with_nothing_lost_or_doubled(tmp_path: Path) -> None:
    rig = SessionRig(
        tmp_path, requires_session=True, lock_duration=timedelta(seconds=30), max_delivery_count=99
    )
    names = "abcdefghij"
    rig.put(*[f"{name}{n}" for n in range(20) for name in names])
    done: dict[str, list[str]] = {name: [] for name in names}
    for turn in range(60):
        session = rig.sessions.accept_next(Taker(3), rig.now)
        if session is None:
            break
        rig.pump()
        taker = session.consumer
        assert isinstance(taker, Taker)
        for got in taker.got[:2]:
            rig.settle(rig.queue.complete, got.token)
            done[session.id].append(got.text)
        if turn % 3 == 0:
            rig.tick(30_000)
        else:
            rig.sessions.close_session(session, rig.now)
            rig.commit()
    left = {entry.sequence for entry in rig.queue.peek(1, 1_000)}
    settled = sum(map(len, done.values()))
    assert len(left) + settled == 200 == rig.queue.counts.active + settled
    for name, seen in done.items():
        assert seen == [f"{name}{n}" for n in range(len(seen))]
    rig.close()


def test_the_next_session_is_found_without_walking_past_what_was_deferred(tmp_path: Path) -> None:
    """Counted in SQLite's own steps: of 2,000 deferred ones there are no more than of 20."""
    (tmp_path / "few").mkdir()
    (tmp_path / "many").mkdir()
    assert steps_behind(2_000, tmp_path / "many") == steps_behind(20, tmp_path / "few")


def steps_behind(deferred: int, folder: Path) -> int:
    """What it takes SQLite to find the next session, by age and by name."""
    rig = SessionRig(folder, requires_session=True)
    rig.put(*[f"a{number}" for number in range(deferred)], "b1", "c1")
    rig.store._writer.execute("UPDATE message SET state = 1 WHERE session = 'a'")

    def find() -> None:
        rig.sessions.accept_next(Taker(), rig.now)
        assert rig.store.next_session(rig.queue.number, "") == "b"

    steps = database_steps([rig.store._reader], find)
    assert list(rig.sessions.sessions) == ["b"]
    rig.close()
    return steps


def test_a_file_without_the_indexes_of_sessions_gets_them(tmp_path: Path) -> None:
    rig = SessionRig(tmp_path, requires_session=True)
    rig.put("a1")
    for name in ("message_ready", "message_ready_session"):
        rig.store._writer.execute(f"DROP INDEX {name}")
    rig.restart()
    _, taker = rig.accept("a")
    assert texts(taker) == ["a1"]
    assert list(rig.sessions._free_sessions()) == []
    rig.close()
