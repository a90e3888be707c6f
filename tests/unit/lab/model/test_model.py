"""The namespace against a model of Service Bus; and the model against bugs that are planted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from twinbus.broker import bodies
from twinbus.broker.batch import Batch
from twinbus.broker.client_links import Receiver
from twinbus.broker.duplicates import Duplicates
from twinbus.broker.entry import SCHEDULED
from twinbus.broker.namespace import Namespace
from twinbus.broker.queue import Queue, nothing
from twinbus.lab.model.histories import finding, history
from twinbus.lab.model.play import Played
from twinbus.lab.model.shrink import as_test, shortest

LENGTH = 80
# With each of the bugs it was a few dozen at most.
MOST_HISTORIES = 400


@pytest.mark.parametrize("seed", range(60))
def test_whatever_clients_do_the_namespace_does_what_the_model_does(seed: int) -> None:
    counts = Played()
    said = finding(history(seed, LENGTH), counts)
    assert said is None, (
        f"{said}\n\n{as_test(f'seed_{seed}', shortest(history(seed, LENGTH)), said)}"
    )
    assert counts.steps == LENGTH


def test_the_histories_have_everything_in_them() -> None:
    """A model that is never asked anything finds nothing."""
    counts = Played()
    for seed in range(60, 120):
        assert finding(history(seed, LENGTH), counts) is None
    assert counts.deliveries > 300
    assert counts.crashes > 30
    assert counts.refusals > 5
    assert counts.unread > 5


# ---------------------------------------------------------------- planted bugs

Plant = Callable[[pytest.MonkeyPatch], None]


def a_body_is_released_twice(patch: pytest.MonkeyPatch) -> None:
    release = bodies.release

    def twice(link: Any, runs: Any) -> None:
        runs = list(runs)
        release(link, runs)
        release(link, runs)

    patch.setattr("twinbus.broker.store.bodies.release", twice)


def a_duplicate_is_never_answered(patch: pytest.MonkeyPatch) -> None:
    note = Duplicates.note

    def silent(self: Any, entity: Any, message: Any, *rest: Any) -> Any:
        if (entity.id, str(message.properties.message_id)) in self._pending:
            return None
        return note(self, entity, message, *rest)

    patch.setattr(Duplicates, "note", silent)


def one_more_than_the_credit_is_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Receiver, "demand", lambda self: self.link.credit - self._reserved + 1)


def a_lock_outlives_its_time(patch: pytest.MonkeyPatch) -> None:
    expire = Queue.expire_locks
    patch.setattr(Queue, "expire_locks", lambda self, now_ms: expire(self, now_ms - 3_000))


def what_expires_is_answered_before_the_disk_has_it(patch: pytest.MonkeyPatch) -> None:
    finish = Queue._finish

    def early(self: Any, lock: Any, done: Any, *, comes_back: bool) -> None:
        if lock.entry.expires_ms is not None:
            done(None)
            done = nothing
        finish(self, lock, done, comes_back=comes_back)

    patch.setattr(Queue, "_finish", early)


def what_is_scheduled_loses_its_annotations(patch: pytest.MonkeyPatch) -> None:
    put = Queue.put

    def forgetful(self: Any, entry: Any, done: Any) -> int:
        if entry.state == SCHEDULED:
            entry.annotations = None
        return put(self, entry, done)

    patch.setattr(Queue, "put", forgetful)


def a_subscription_s_ceiling_is_over_the_topic_s(patch: pytest.MonkeyPatch) -> None:
    from twinbus.broker import namespace

    capped = namespace._capped

    def highest(description: Any, ttl_ms: int | None) -> int | None:
        ceiling = capped(description, None)
        return ttl_ms if ttl_ms is not None else ceiling

    patch.setattr(namespace, "_capped", highest)


def the_rows_of_a_session_are_kept(patch: pytest.MonkeyPatch) -> None:
    set_state = Batch.set_state

    def kept(self: Any, entity: int, session: str, state: bytes | None, now_ms: int) -> None:
        if state is not None:
            set_state(self, entity, session, state, now_ms)

    patch.setattr(Batch, "set_state", kept)


def it_is_answered_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    send = Namespace.send

    def early(self: Any, entity: Any, payloads: Any, now_ms: int, done: Any) -> list[int]:
        numbers = send(self, entity, payloads, now_ms, nothing)
        done(None)
        return numbers

    patch.setattr(Namespace, "send", early)


PLANTS: list[Plant] = [
    a_body_is_released_twice,
    a_duplicate_is_never_answered,
    one_more_than_the_credit_is_delivered,
    a_lock_outlives_its_time,
    what_expires_is_answered_before_the_disk_has_it,
    what_is_scheduled_loses_its_annotations,
    a_subscription_s_ceiling_is_over_the_topic_s,
    the_rows_of_a_session_are_kept,
    it_is_answered_before_the_commit,
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(MOST_HISTORIES):
        said = finding(history(seed, LENGTH))
        if said is not None:
            print(f"seed {seed}: {said}")
            return
    pytest.fail(f"{MOST_HISTORIES} histories found nothing")
