"""A queue over a real store, with a clock that is told the time and commits that are asked for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from twinbus.amqp.message import Message, Properties, application_properties, encode_annotations
from twinbus.amqp.types import Symbol, Timestamp, ULong, encode
from twinbus.auth.access_rules import root_rule
from twinbus.broker.burial import Burial
from twinbus.broker.delivery import payload
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.entry import DEFERRED, Entry
from twinbus.broker.namespace import Namespace
from twinbus.broker.queue import Queue
from twinbus.broker.refusals import (
    LockLostError,
    MessageError,
    MessageNotFoundError,
    QuotaError,
    RequestError,
    StoreError,
)
from twinbus.broker.store import Store

START_MS = 1_700_000_000_000
LOCK_MS = 60_000


def message(
    text: str = "m", *, due_ms: int | None = None, ttl_ms: int | None = None, **properties: Any
) -> bytes:
    """An encoded message with that text for its body and its id."""
    head = b""
    if ttl_ms is not None:
        head += b"\x00\x53\x70" + encode([False, None, ttl_ms])
    if due_ms is not None:
        head += encode_annotations({Symbol("x-opt-scheduled-enqueue-time"): Timestamp(due_ms)})
    properties = {"message_id": text, **properties}
    return head + Properties(**properties).encoded() + b"\x00\x53\x75" + encode(text.encode())


@dataclass
class Got:
    """One delivery."""

    sequence: int
    token: bytes
    until_ms: int
    delivery_count: int
    bare: bytes

    @property
    def text(self) -> str:
        return str(Message.parse(self.bare).properties.message_id)


@dataclass(eq=False)
class Taker:
    """One who receives: takes as many as it wants, and remembers them."""

    wants: int = 0
    deletes: bool = False
    got: list[Got] = field(default_factory=list)
    reserved: int = 0
    lost: RequestError | None = None

    def demand(self) -> int:
        return self.wants - self.reserved

    def reserve(self, count: int) -> None:
        self.reserved += count

    def deliver(self, entry: Entry, token: bytes, locked_until_ms: int) -> None:
        self.wants -= 1
        count = entry.delivery_count
        self.got.append(Got(entry.sequence, token, locked_until_ms, count, entry.bare))

    def lose(self, error: RequestError) -> None:
        self.lost = error


class Answer:
    """What an operation was told: nothing yet, done, or the error."""

    def __init__(self) -> None:
        self.told: list[Exception | None] = []

    def __call__(self, error: Exception | None) -> None:
        self.told.append(error)

    @property
    def done(self) -> bool:
        return self.told == [None]


class Rig:
    """A namespace with one queue, its store on disk, and its commits in the test's hand."""

    def __init__(self, folder: Path, **description: Any) -> None:
        self.path = folder / "messages.db"
        self.now = START_MS
        self._tokens = 0
        self.open()
        self.namespace.directory.create_queue(
            "q", QueueDescription(**description), self.now, Answer()
        )
        self.commit()

    def open(self) -> None:
        self.store = Store(self.path)
        self.namespace = Namespace(
            "test", self.store, [root_rule("key")], new_token=self._new_token
        )

    def _new_token(self) -> bytes:
        self._tokens += 1
        return self._tokens.to_bytes(16)

    def restart(self) -> None:
        """As after kill -9: what was not committed is gone."""
        self.store.close()
        self.open()

    @property
    def queue(self) -> Queue:
        return self.namespace.directory.entity("q").queue

    @property
    def dead(self) -> Queue:
        return self.namespace.directory.entity("q").dead_letters

    def commit(self) -> None:
        while self.store.batch:
            batch = self.store.take_batch()
            self.store.apply(batch)
            self.store.commit()
            self.namespace.committed(batch, None, self.now)

    def fail(self) -> None:
        """The disk refuses what has gathered. A real one would do so in `apply` or `commit`."""
        batch = self.store.take_batch()
        self.store.apply(batch)
        self.store.rollback()
        self.namespace.committed(batch, StoreError("the disk is full", full=True), self.now)

    def tick(self, later_ms: int = 0) -> None:
        self.now += later_ms
        self.namespace.tick(self.now)
        self.commit()

    def send(self, *payloads: bytes) -> list[int]:
        answer = Answer()
        entity = self.namespace.directory.entity("q")
        numbers = self.namespace.send(entity, list(payloads), self.now, answer)
        self.commit()
        assert answer.done
        return numbers

    def taker(self, wants: int = 0, *, deletes: bool = False) -> Taker:
        taker = Taker(wants, deletes)
        self.queue.add_consumer(taker)
        self.pump()
        return taker

    def pump(self) -> None:
        self.namespace.pump_queue(self.queue, self.now)

    def settle(self, operation: Callable[..., None], *args: Any) -> None:
        answer = Answer()
        operation(*args, answer)
        self.commit()
        assert answer.done

    def rows(self, queue: Queue) -> dict[int, tuple[int, int]]:
        """What the disk has of a queue: sequence number -> state, delivery count."""
        found = self.store.query(
            "SELECT id & ((1 << 40) - 1), state, delivery_count FROM message WHERE id >> 40 = ?",
            queue.number,
        )
        return {row[0]: (row[1], row[2]) for row in found}

    def close(self) -> None:
        self.store.close()


@pytest.fixture
def rig(tmp_path: Path) -> Any:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def why(entry: Entry) -> Burial:
    return Burial(entry, "reason", "text")


# ---------------------------------------------------------------- handing out


def test_messages_are_handed_out_in_the_order_of_their_numbers(rig: Rig) -> None:
    assert rig.send(message("a"), message("b")) == [1, 2]
    rig.send(message("c"))
    assert [got.text for got in rig.taker(10).got] == ["a", "b", "c"]


def test_a_message_is_not_handed_out_before_it_is_on_disk(rig: Rig) -> None:
    taker = rig.taker(10)
    answer = Answer()
    entity = rig.namespace.directory.entity("q")
    rig.namespace.send(entity, [message()], rig.now, answer)
    rig.pump()
    assert (taker.got, answer.told) == ([], [])
    rig.commit()
    assert (len(taker.got), answer.done) == (1, True)


def test_a_message_that_the_disk_refused_is_nowhere_and_its_sender_knows(rig: Rig) -> None:
    taker = rig.taker(10)
    answer = Answer()
    entity = rig.namespace.directory.entity("q")
    rig.namespace.send(entity, [message("lost")], rig.now, answer)
    rig.fail()
    assert isinstance(answer.told[0], StoreError)
    assert taker.got == []
    assert (rig.queue.counts.active, rig.queue.counts.bytes) == (0, 0)
    rig.send(message("kept"))
    assert [got.text for got in taker.got] == ["kept"]
    assert rig.queue.counts.active == 1


def test_receivers_take_turns(rig: Rig) -> None:
    one, two = Taker(2), Taker(2)
    rig.queue.add_consumer(one)
    rig.queue.add_consumer(two)
    rig.send(*[message(str(n)) for n in range(4)])
    assert [got.sequence for got in one.got] == [1, 3]
    assert [got.sequence for got in two.got] == [2, 4]


def test_a_lock_keeps_a_message_from_others_until_it_expires(rig: Rig) -> None:
    rig.send(message())
    first = rig.taker(1)
    second = rig.taker(1)
    rig.tick(LOCK_MS - 1)
    assert second.got == []
    rig.tick(1)
    assert [(got.sequence, got.delivery_count) for got in second.got] == [(1, 1)]
    with pytest.raises(LockLostError, match="expired"):
        rig.queue.complete(first.got[0].token, Answer())


def test_a_renewed_lock_lasts_from_the_renewal(rig: Rig) -> None:
    rig.send(message("a"), message("b"))
    taker = rig.taker(2)
    rig.tick(LOCK_MS // 2)
    assert rig.queue.renew(taker.got[0].token, rig.now) == rig.now + LOCK_MS
    taker.wants = 10
    rig.tick(LOCK_MS // 2)
    assert [got.text for got in taker.got] == ["a", "b", "b"]
    rig.tick(LOCK_MS // 2)
    assert [got.text for got in taker.got[3:]] == ["a"]


def test_locked_messages_keep_no_bytes_in_memory(rig: Rig) -> None:
    rig.send(message("x" * 100))
    rig.taker(1)
    (lock,) = rig.queue.locks.values()
    assert (lock.entry.bare, lock.entry.annotations) == (b"", None)


def test_receive_and_delete_hands_out_what_the_disk_has_forgotten(rig: Rig) -> None:
    rig.send(message())
    taker = rig.taker(1, deletes=True)
    assert (taker.got, taker.reserved) == ([], 1)
    rig.commit()
    assert (len(taker.got), taker.reserved) == (1, 0)
    assert rig.rows(rig.queue) == {}
    assert rig.queue.counts.active == 0


def test_receive_and_delete_that_the_disk_refused_is_tried_again(rig: Rig) -> None:
    rig.send(message())
    taker = rig.taker(1, deletes=True)
    rig.fail()
    assert taker.got == []
    assert rig.queue.counts.active == 1
    rig.commit()
    assert [got.sequence for got in taker.got] == [1]


# ---------------------------------------------------------------- settling


def test_a_completed_message_is_gone_when_its_receiver_hears_of_it(rig: Rig) -> None:
    rig.send(message())
    (got,) = rig.taker(1).got
    answer = Answer()
    rig.queue.complete(got.token, answer)
    assert answer.told == []
    with pytest.raises(LockLostError):
        rig.queue.complete(got.token, Answer())
    rig.commit()
    assert answer.done
    assert (rig.rows(rig.queue), rig.queue.counts.total, rig.queue.counts.bytes) == ({}, 0, 0)
    assert not rig.queue.in_use or not rig.queue.locks


def test_a_settlement_that_the_disk_refused_leaves_the_lock_as_it_was(rig: Rig) -> None:
    rig.send(message())
    (got,) = rig.taker(1).got
    for operation in ("complete", "defer"):
        answer = Answer()
        getattr(rig.queue, operation)(got.token, answer)
        rig.fail()
        assert isinstance(answer.told[0], StoreError)
    rig.settle(rig.queue.complete, got.token)
    assert rig.rows(rig.queue) == {}


def test_an_abandoned_message_comes_back_before_younger_ones_and_is_counted(rig: Rig) -> None:
    rig.send(message("a"), message("b"), message("c"))
    taker = rig.taker(1)
    rig.settle(rig.queue.abandon, taker.got[0].token, rig.now)
    taker.wants = 2
    rig.pump()
    assert [(got.text, got.delivery_count) for got in taker.got[1:]] == [("a", 1), ("b", 0)]


def test_a_released_message_comes_back_uncounted(rig: Rig) -> None:
    rig.send(message())
    taker = rig.taker(2)
    rig.queue.release(taker.got[0].token, rig.now, Answer())
    rig.pump()
    assert [got.delivery_count for got in taker.got] == [0, 0]


def test_a_message_delivered_too_often_is_dead_lettered_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_delivery_count=2)
    rig.send(message())
    taker = rig.taker(9)
    rig.settle(rig.queue.abandon, taker.got[0].token, rig.now)
    rig.settle(rig.queue.abandon, taker.got[1].token, rig.now)
    assert len(taker.got) == 2
    (entry,) = rig.dead.peek(1, 10)
    notes = application_properties(entry.bare)
    assert notes["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    assert (entry.dead_source, entry.delivery_count) == ("q", 2)
    assert (rig.queue.counts.total, rig.dead.counts.active) == (0, 1)
    rig.close()


def test_a_dead_letter_has_reason_text_and_the_rest_of_its_message(rig: Rig) -> None:
    rig.send(message("a"))
    (got,) = rig.taker(1).got
    rig.settle(rig.queue.dead_letter, got.token, why)
    (entry,) = rig.dead.peek(1, 10)
    notes = application_properties(entry.bare)
    assert notes == {"DeadLetterReason": "reason", "DeadLetterErrorDescription": "text"}
    assert Message.parse(entry.bare).properties.message_id == "a"
    assert entry.bare.endswith(b"\x00\x53\x75" + encode(b"a"))


def test_changed_properties_are_there_at_the_next_delivery(rig: Rig) -> None:
    rig.send(message("a"))
    taker = rig.taker(2)
    answer = Answer()
    rig.queue.abandon(taker.got[0].token, rig.now, answer, {"seen": 1})
    rig.commit()
    assert application_properties(taker.got[1].bare) == {"seen": 1}
    assert taker.got[1].bare.endswith(b"\x00\x53\x75" + encode(b"a"))


# ---------------------------------------------------------------- deferred


def test_a_deferred_message_comes_by_its_number_and_no_other_way(rig: Rig) -> None:
    rig.send(message("a"), message("b"))
    taker = rig.taker(9)
    rig.settle(rig.queue.defer, taker.got[0].token)
    rig.tick(LOCK_MS)
    assert [got.text for got in taker.got] == ["a", "b", "b"]
    assert (rig.queue.counts.deferred, rig.queue.counts.active) == (1, 1)
    ((entry, token, _),) = rig.queue.receive_deferred(
        [1], rig.now, deletes=False, owner=None, done=Answer()
    )
    assert (entry.sequence, entry.delivery_count) == (1, 1)
    with pytest.raises(MessageNotFoundError, match="number 1 "):
        rig.queue.receive_deferred([1], rig.now, deletes=False, owner=None, done=Answer())
    rig.settle(rig.queue.complete, token)
    assert rig.queue.counts.deferred == 0


def test_deferred_messages_come_all_or_none(rig: Rig) -> None:
    rig.send(message("a"))
    (got,) = rig.taker(1).got
    rig.settle(rig.queue.defer, got.token)
    with pytest.raises(MessageNotFoundError, match="number 7 "):
        rig.queue.receive_deferred([1, 7], rig.now, deletes=False, owner=None, done=Answer())
    answer = Answer()
    rig.queue.receive_deferred([1], rig.now, deletes=True, owner=None, done=answer)
    rig.commit()
    assert answer.done
    assert rig.rows(rig.queue) == {}


def test_a_deferred_message_stays_deferred_when_its_lock_ends(rig: Rig) -> None:
    rig.send(message("a"))
    taker = rig.taker(1)
    rig.settle(rig.queue.defer, taker.got[0].token)
    rig.queue.receive_deferred([1], rig.now, deletes=False, owner=None, done=Answer())
    rig.pump()
    taker.wants = 5
    rig.tick(LOCK_MS)
    assert len(taker.got) == 1
    assert rig.rows(rig.queue) == {1: (DEFERRED, 2)}


@pytest.mark.parametrize("number", [-1, -(1 << 62), 0, 1 << 40, 4 << 40 | 1, (1 << 63) - 1])
def test_a_number_that_no_message_can_have_reaches_no_other_queue(rig: Rig, number: int) -> None:
    """The store keeps all queues in one table: a number must not lead out of its queue's part."""
    directory = rig.namespace.directory
    directory.create_queue("other", QueueDescription(), rig.now, Answer())
    rig.commit()
    other = directory.entity("other")
    rig.send(message("of the one"))
    rig.namespace.send(other, [message("of the other")], rig.now, Answer())
    rig.commit()
    taker = Taker(1)
    other.queue.add_consumer(taker)
    rig.namespace.pump_queue(other.queue, rig.now)
    rig.settle(other.queue.dead_letter, taker.got[0].token, why)
    other.dead_letters.add_consumer(taker)
    taker.wants = 1
    rig.namespace.pump_queue(other.dead_letters, rig.now)
    rig.settle(other.dead_letters.defer, taker.got[1].token)
    assert other.dead_letters.number == rig.queue.number | 4
    assert other.queue.peek(number, 10) == []
    for queue in (rig.queue, other.queue):
        with pytest.raises(MessageNotFoundError):
            queue.receive_deferred([number], rig.now, deletes=True, owner=None, done=Answer())
        with pytest.raises(MessageNotFoundError):
            queue.cancel([number], Answer())


def test_a_peek_from_before_the_first_message_starts_at_the_first(rig: Rig) -> None:
    rig.send(message("a"))
    for start in (-5, 0, 1):
        assert [entry.sequence for entry in rig.queue.peek(start, 10)] == [1]


# ---------------------------------------------------------------- scheduled


def test_a_scheduled_message_appears_at_its_time_with_a_number_of_its_own(rig: Rig) -> None:
    (number,) = rig.send(message("later", due_ms=START_MS + 1_000))
    taker = rig.taker(1)
    rig.tick(999)
    assert (taker.got, rig.queue.counts.scheduled) == ([], 1)
    rig.tick(1)
    assert [got.text for got in taker.got] == ["later"]
    assert taker.got[0].sequence > number
    assert (rig.queue.counts.scheduled, rig.queue.counts.active) == (0, 1)


def test_a_scheduled_message_is_active_once_though_the_disk_refused_at_first(rig: Rig) -> None:
    rig.send(message("later", due_ms=START_MS + 1_000))
    taker = rig.taker(9)
    rig.now += 1_000
    rig.namespace.tick(rig.now)
    rig.namespace.tick(rig.now)
    rig.fail()
    assert (taker.got, rig.queue.counts.scheduled) == ([], 1)
    rig.tick()
    rig.tick()
    assert [got.text for got in taker.got] == ["later"]
    assert (rig.queue.counts.scheduled, rig.queue.counts.active) == (0, 1)


def test_a_cancelled_message_never_appears(rig: Rig) -> None:
    numbers = rig.send(*[message(str(n), due_ms=START_MS + 1_000) for n in range(3)])
    with pytest.raises(MessageNotFoundError, match="99"):
        rig.queue.cancel([numbers[0], 99], Answer())
    rig.settle(rig.queue.cancel, numbers[:2])
    taker = rig.taker(9)
    rig.tick(1_000)
    assert [got.text for got in taker.got] == ["2"]
    assert rig.queue.counts.scheduled == 0


def test_a_message_that_is_being_cancelled_is_neither_sent_nor_cancelled_again(rig: Rig) -> None:
    (number,) = rig.send(message("no", due_ms=START_MS + 1_000))
    taker = rig.taker(9)
    rig.queue.cancel([number], Answer())
    with pytest.raises(MessageNotFoundError):
        rig.queue.cancel([number], Answer())
    rig.tick(1_000)
    assert taker.got == []
    assert (rig.queue.counts.scheduled, rig.queue.counts.active) == (0, 0)


def test_a_message_that_is_becoming_active_can_no_longer_be_cancelled(rig: Rig) -> None:
    (number,) = rig.send(message("on its way", due_ms=START_MS + 1_000))
    taker = rig.taker(9)
    rig.now += 1_000
    rig.namespace.tick(rig.now)
    with pytest.raises(MessageNotFoundError):
        rig.queue.cancel([number], Answer())
    rig.commit()
    assert [got.text for got in taker.got] == ["on its way"]
    assert (rig.queue.counts.scheduled, rig.queue.counts.active) == (0, 1)


def test_a_cancellation_that_the_disk_refused_can_be_asked_for_again(rig: Rig) -> None:
    (number,) = rig.send(message("no", due_ms=START_MS + 1_000))
    rig.queue.cancel([number], Answer())
    rig.fail()
    assert rig.queue.counts.scheduled == 1
    rig.settle(rig.queue.cancel, [number])
    assert rig.queue.counts.scheduled == 0


# ---------------------------------------------------------------- time to live


def test_an_expired_message_is_gone_and_not_handed_out(rig: Rig) -> None:
    rig.send(message("old", ttl_ms=1_000), message("young"))
    rig.now += 1_000
    taker = rig.taker(9)
    rig.commit()
    rig.tick()
    assert [got.text for got in taker.got] == ["young"]
    assert rig.rows(rig.queue).keys() == {2}
    assert (rig.queue.counts.active, rig.dead.counts.active) == (1, 0)


def test_an_expired_message_is_dead_lettered_where_the_queue_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path, dead_lettering_on_expiration=True)
    rig.send(message("old", ttl_ms=1_000))
    rig.tick(1_000)
    (entry,) = rig.dead.peek(1, 10)
    assert application_properties(entry.bare)["DeadLetterReason"] == "TTLExpiredException"
    assert rig.queue.counts.total == 0
    rig.close()


def test_a_message_that_expires_on_the_page_in_memory_dies_once(tmp_path: Path) -> None:
    """The sweep finds it on disk while a receiver without credit has the page read already."""
    rig = Rig(tmp_path, dead_lettering_on_expiration=True)
    rig.send(message("taken"), message("old", ttl_ms=1_000), message("young"))
    taker = rig.taker(1)
    rig.tick(1_000)
    assert rig.dead.counts.active == 1
    taker.wants = 9
    rig.pump()
    rig.commit()
    assert [got.text for got in taker.got] == ["taken", "young"]
    assert (rig.queue.counts.active, rig.dead.counts.active) == (2, 1)
    rig.close()


def test_a_message_that_is_expiring_is_not_expired_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, dead_lettering_on_expiration=True)
    rig.send(message("taken"), message("old", ttl_ms=1_000))
    taker = rig.taker(1)
    rig.now += 1_000
    rig.namespace.tick(rig.now)
    taker.wants = 9
    rig.pump()
    rig.namespace.tick(rig.now)
    rig.commit()
    assert (rig.queue.counts.active, rig.dead.counts.active) == (1, 1)
    rig.close()


def test_a_locked_message_outlives_its_time_until_the_lock_ends(rig: Rig) -> None:
    rig.send(message("old", ttl_ms=1_000))
    taker = rig.taker(1)
    rig.tick(2_000)
    assert rig.queue.counts.active == 1
    rig.settle(rig.queue.complete, taker.got[0].token)
    assert rig.queue.counts.active == 0


def test_the_queue_caps_the_time_to_live(tmp_path: Path) -> None:
    rig = Rig(tmp_path, default_ttl=timedelta(seconds=1))
    rig.send(message("own", ttl_ms=60_000), message("none"))
    rig.tick(1_000)
    assert rig.queue.counts.total == 0
    rig.close()


def test_a_time_to_live_beyond_49_days_is_kept(rig: Rig) -> None:
    """The header's field ends there; longer ones come as an absolute time, and are delivered."""
    day = 86_400_000
    rig.send(message("long", creation_time=START_MS, absolute_expiry_time=START_MS + 100 * day))
    (entry,) = rig.queue.peek(1, 1)
    assert entry.expires_ms == START_MS + 100 * day
    assert payload(entry, 0).endswith(entry.bare)


TOO_LATE = (1 << 63) - 1


@pytest.mark.parametrize(
    "late",
    [
        encode_annotations({Symbol("x-opt-scheduled-enqueue-time"): ULong(2**64 - 1)}) + message(),
        message(due_ms=TOO_LATE, ttl_ms=1_000),
        message(creation_time=0, absolute_expiry_time=TOO_LATE),
        message(creation_time=-TOO_LATE, absolute_expiry_time=TOO_LATE),
    ],
    ids=["due as ulong", "due plus ttl", "expiry", "expiry less creation"],
)
def test_times_that_no_disk_can_hold_fail_the_message_and_nothing_else(
    rig: Rig, late: bytes
) -> None:
    entity = rig.namespace.directory.entity("q")
    with suppress(MessageError):
        rig.namespace.send(entity, [late], rig.now, Answer())
    rig.commit()
    rig.send(message("next"))
    assert "next" in [got.text for got in rig.taker(9).got]


# ---------------------------------------------------------------- limits and restart


def test_a_full_queue_takes_no_more_until_some_are_received(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_size_mb=1)
    for _ in range(6):
        rig.send(message("x" * 100, message_id="m", subject="s" * 200_000))
    with pytest.raises(QuotaError, match="maximum size is 1 MB"):
        rig.send(message())
    taker = rig.taker(1)
    rig.settle(rig.queue.complete, taker.got[0].token)
    rig.send(message())
    rig.close()


def test_a_restart_releases_locks_and_keeps_everything_else(rig: Rig) -> None:
    rig.send(message("a"), message("b"), message("c"), message("d", due_ms=START_MS + 1_000))
    taker = rig.taker(3)
    rig.settle(rig.queue.abandon, taker.got[0].token, rig.now)
    rig.settle(rig.queue.defer, taker.got[1].token)
    before = rig.rows(rig.queue)
    counts = rig.queue.counts
    rig.restart()
    assert (rig.rows(rig.queue), rig.queue.counts) == (before, counts)
    assert rig.send(message("e")) == [5]
    again = rig.taker(9)
    assert [(got.text, got.delivery_count) for got in again.got] == [("a", 1), ("c", 0), ("e", 0)]
    rig.tick(1_000)
    assert [got.text for got in again.got[3:]] == ["d"]


def test_what_was_never_committed_is_not_there_after_a_restart(rig: Rig) -> None:
    rig.send(message("kept"))
    answer = Answer()
    rig.namespace.send(rig.namespace.directory.entity("q"), [message("lost")], rig.now, answer)
    rig.restart()
    assert answer.told == []
    assert [got.text for got in rig.taker(9).got] == ["kept"]


# ---------------------------------------------------------------- against a model

READY, PUT_OFF, DEAD_LETTER = "ready", "deferred", "dead"
MAX_DELIVERIES = 4


@dataclass
class Known:
    """What the model knows of one message."""

    state: str = READY
    count: int = 0


class QueueAgainstModel(RuleBasedStateMachine):
    """Nothing lost, nothing doubled, whatever happens in whatever order.

    The model changes when an operation is answered, so work that waits for the disk may fail or
    vanish in a crash without the model being told.
    """

    @initialize()
    def begin(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.rig = Rig(Path(self._folder.name), max_delivery_count=MAX_DELIVERIES)
        self.taker = self.rig.taker()
        self.model: dict[int, Known] = {}
        self.locks: dict[bytes, int] = {}
        self.busy: set[bytes] = set()
        self.first_seen: list[int] = []
        self.dead = 0

    # -- operations

    @rule(count=st.integers(1, 4))
    def put(self, count: int) -> None:
        numbers: list[int] = []

        def done(error: Exception | None) -> None:
            if error is None:
                self.model.update({number: Known() for number in numbers})

        payloads = [message("m") for _ in range(count)]
        entity = self.rig.namespace.directory.entity("q")
        numbers += self.rig.namespace.send(entity, payloads, self.rig.now, done)

    @rule(count=st.integers(1, 6))
    def deliver(self, count: int) -> None:
        self.taker.wants = count
        self.rig.pump()
        self.taker.wants = 0
        self.take_note()

    def take_note(self) -> None:
        for got in self.taker.got:
            assert self.model[got.sequence].state == READY, "it was settled"
            assert got.sequence not in self.locks.values(), "somebody has it"
            assert got.delivery_count == self.model[got.sequence].count
            self.locks[got.token] = got.sequence
            if got.sequence not in self.first_seen:
                self.first_seen.append(got.sequence)
        self.taker.got.clear()
        assert self.first_seen == sorted(self.first_seen)

    def pick(self, data: st.DataObject) -> tuple[bytes, int] | None:
        free = sorted(token for token in self.locks if token not in self.busy)
        if not free:
            return None
        token = data.draw(st.sampled_from(free))
        return token, self.locks[token]

    def settling(self, token: bytes, change: Callable[[], None]) -> Callable[..., None]:
        self.busy.add(token)

        def done(error: Exception | None) -> None:
            self.busy.discard(token)
            if error is None:
                del self.locks[token]
                change()

        return done

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        if picked := self.pick(data):
            token, number = picked
            self.rig.queue.complete(token, self.settling(token, lambda: self.forget(number)))

    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        if picked := self.pick(data):
            token, number = picked
            done = self.settling(token, lambda: self.returned(number))
            self.rig.queue.abandon(token, self.rig.now, done)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if picked := self.pick(data):
            token, _ = picked
            self.rig.queue.release(token, self.rig.now, self.settling(token, lambda: None))

    @rule(data=st.data())
    def defer(self, data: st.DataObject) -> None:
        if picked := self.pick(data):
            token, number = picked

            def change() -> None:
                self.model[number].state = PUT_OFF
                self.model[number].count += 1

            self.rig.queue.defer(token, self.settling(token, change))

    @rule(data=st.data())
    def dead_letter(self, data: st.DataObject) -> None:
        if picked := self.pick(data):
            token, number = picked
            done = self.settling(token, lambda: self.bury(number))
            self.rig.queue.dead_letter(token, why, done)

    @rule(data=st.data(), deletes=st.booleans())
    def receive_deferred(self, data: st.DataObject, deletes: bool) -> None:
        held = self.locks.values()
        free = [n for n, known in self.model.items() if known.state == PUT_OFF and n not in held]
        if not free or self.busy:
            return
        number = data.draw(st.sampled_from(free))

        def done(error: Exception | None) -> None:
            if error is None and deletes:
                self.forget(number)

        ((_, token, _),) = self.rig.queue.receive_deferred(
            [number], self.rig.now, deletes=deletes, owner=None, done=done
        )
        if deletes:
            self.rig.commit()  # the model has no word for what is neither here nor there
            self.take_note()
        else:
            self.locks[token] = number
            self.rig.namespace.pump_queue(self.rig.queue, self.rig.now)

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        if picked := self.pick(data):
            assert self.rig.queue.renew(picked[0], self.rig.now) == self.rig.now + LOCK_MS

    @rule(seconds=st.integers(1, 70))
    def time_passes(self, seconds: int) -> None:
        self.commit()
        ends = {token: lock.until_ms for token, lock in self.rig.queue.locks.items()}
        assert ends.keys() == self.locks.keys()
        self.rig.tick(seconds * 1_000)
        for token, end in ends.items():
            if end <= self.rig.now:
                self.returned(self.locks.pop(token))
        self.take_note()

    @rule()
    def commit(self) -> None:
        self.rig.commit()
        self.take_note()

    @rule()
    def disk_fails(self) -> None:
        self.rig.fail()
        self.take_note()

    @rule()
    def crash(self) -> None:
        self.rig.restart()
        self.locks.clear()
        self.busy.clear()
        self.taker = self.rig.taker()

    # -- the model

    def forget(self, number: int) -> None:
        del self.model[number]

    def bury(self, number: int) -> None:
        self.forget(number)
        self.dead += 1

    def returned(self, number: int) -> None:
        known = self.model[number]
        known.count += 1
        if known.state == READY and known.count >= MAX_DELIVERIES:
            self.bury(number)

    # -- what must hold

    @invariant()
    def disk_and_counts_are_the_models(self) -> None:
        if not hasattr(self, "rig"):
            return
        states = {READY: 0, PUT_OFF: DEFERRED}
        expected = {n: (states[known.state], known.count) for n, known in self.model.items()}
        assert self.rig.rows(self.rig.queue) == expected
        counts = self.rig.queue.counts
        ready = sum(known.state == READY for known in self.model.values())
        assert (counts.active, counts.deferred) == (ready, len(self.model) - ready)
        assert (counts.bytes == 0) == (not self.model)
        assert self.rig.dead.counts.active == self.dead == len(self.rig.rows(self.rig.dead))

    @precondition(lambda self: hasattr(self, "rig"))
    @rule()
    def everything_can_be_received(self) -> None:
        self.commit()
        self.crash()
        ready = sorted(n for n, known in self.model.items() if known.state == READY)
        self.taker.wants = 1_000
        self.rig.pump()
        self.taker.wants = 0
        assert [got.sequence for got in self.taker.got] == ready
        self.take_note()

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.everything_can_be_received()
            self.rig.close()
            self._folder.cleanup()


TestQueueAgainstModel = QueueAgainstModel.TestCase
TestQueueAgainstModel.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
