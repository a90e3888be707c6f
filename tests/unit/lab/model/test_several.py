"""Bugs that are planted in what is done to several messages at once, and at the edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from twinbus.amqp.link_endpoint import RECEIVER
from twinbus.amqp.session import Session
from twinbus.broker import forwarding, management
from twinbus.broker.directory import Directory
from twinbus.broker.duplicates import Duplicates
from twinbus.broker.entry import DEFERRED
from twinbus.broker.queue import Queue, nothing
from twinbus.broker.refusals import StoreError
from twinbus.broker.store import Store
from twinbus.lab.model.histories import finding, history

LENGTH = 80
MOST_HISTORIES = 400


def a_range_ends_one_too_soon(patch: pytest.MonkeyPatch) -> None:
    on_disposition = Session.on_disposition

    def short(self: Any, values: list[Any]) -> list[Any]:
        events = on_disposition(self, values)
        return events[:-1] if len(events) > 2 and values[0] == RECEIVER else events

    patch.setattr(Session, "on_disposition", short)


def some_of_several_tokens_settle(patch: pytest.MonkeyPatch) -> None:
    def hasty(request: Any, token: bytes) -> Any:
        request.queue.complete(token, nothing)
        return request.namespace.store.submit

    operation, _ = management._DISPOSITIONS["completed"]
    patch.setitem(management._DISPOSITIONS, "completed", (operation, hasty))


def some_of_several_deferred_are_received(patch: pytest.MonkeyPatch) -> None:
    receive = Queue.receive_deferred

    def generous(self: Any, sequences: list[int], now_ms: int, **options: Any) -> Any:
        there = [
            each
            for each in sequences
            if (entry := self._get(each)) and entry.state == DEFERRED and each not in self.taken
        ]
        return receive(self, there or sequences, now_ms, **options)

    patch.setattr(Queue, "receive_deferred", generous)


def a_list_may_have_duplicates(patch: pytest.MonkeyPatch) -> None:
    """Who came with a message is not its duplicate."""
    note = Duplicates.note

    def blind(self: Any, entity: Any, message: Any, seen: bool, now_ms: int, done: Any) -> Any:
        key = entity.id, str(message.properties.message_id)
        if key in self._pending and done is nothing:
            return done
        return note(self, entity, message, seen, now_ms, done)

    patch.setattr(Duplicates, "note", blind)


def a_peek_at_a_session_sees_all(patch: pytest.MonkeyPatch) -> None:
    peek = Queue.peek
    patch.setattr(Queue, "peek", lambda self, start, limit, session=None: peek(self, start, limit))


def it_is_delivered_before_it_is_deleted(patch: pytest.MonkeyPatch) -> None:
    def early(self: Any, entry: Any, consumer: Any) -> None:
        consumer.deliver(entry, self._new_token(), 0)
        self.store.batch.delete(self.number, entry)
        self.store.submit(nothing)

    patch.setattr(Queue, "_hand_for_good", early)


def one_more_hop_is_allowed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forwarding, "MAX_HOPS", 5)


def capitals_name_something_else(patch: pytest.MonkeyPatch) -> None:
    """A dead-letter queue that is spelled otherwise is taken for its owner's."""
    resolve = Directory.resolve

    def exact(self: Any, path: str) -> Any:
        entity, queue = resolve(self, path)
        if path.swapcase() == queue.path:
            return entity, entity.queue
        return entity, queue

    patch.setattr(Directory, "resolve", exact)


def an_odd_property_is_lost(patch: pytest.MonkeyPatch) -> None:
    put = Queue.put

    def tidy(self: Any, entry: Any, done: Any) -> int:
        entry.bare = entry.bare.replace(b"odd 1", b"odd 3")
        return put(self, entry, done)

    patch.setattr(Queue, "put", tidy)


def what_cannot_be_read_is_not_there(patch: pytest.MonkeyPatch) -> None:
    query = Store.query

    def empty(self: Any, sql: str, *values: Any) -> Any:
        try:
            return query(self, sql, *values)
        except StoreError:
            return []

    patch.setattr(Store, "query", empty)


PLANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    a_range_ends_one_too_soon,
    some_of_several_tokens_settle,
    some_of_several_deferred_are_received,
    a_list_may_have_duplicates,
    a_peek_at_a_session_sees_all,
    it_is_delivered_before_it_is_deleted,
    one_more_hop_is_allowed,
    capitals_name_something_else,
    an_odd_property_is_lost,
    what_cannot_be_read_is_not_there,
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(MOST_HISTORIES):
        said = finding(history(seed, LENGTH))
        if said is not None:
            print(f"seed {seed}: {said}")
            return
    pytest.fail(f"{MOST_HISTORIES} histories found nothing")
