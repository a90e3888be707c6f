"""What is planted in a broker process, to see that the histories with kills would find it."""

from __future__ import annotations

import time
from typing import Any

from twinbus.broker.batch import Batch
from twinbus.broker.namespace import Namespace
from twinbus.broker.store import Store
from twinbus.lab.model.wire import BARRIER

_SLOW_S = 0.005


def answers_before_the_commit() -> None:
    """A disk that takes its time, and a broker that does not wait for it."""
    send, commit = Namespace.send, Store.commit

    def early(self: Any, entity: Any, payloads: Any, now_ms: int, done: Any) -> list[int]:
        if entity.path == BARRIER:  # by which the histories know that all is done
            return send(self, entity, payloads, now_ms, done)
        numbers = send(self, entity, payloads, now_ms, lambda _: None)
        done(None)
        return numbers

    def late(self: Any) -> None:
        time.sleep(_SLOW_S)
        commit(self)

    Namespace.send = early  # type: ignore[method-assign]
    Store.commit = late  # type: ignore[method-assign]


def what_is_completed_stays() -> None:
    """On the disk, of which nobody reads what a window has in memory."""
    apply = Store.apply

    def forgetful(self: Any, batch: Batch) -> None:
        if len(batch.deletes) == 1:
            batch.deletes.clear()
        apply(self, batch)

    Store.apply = forgetful  # type: ignore[method-assign]


def what_is_stored_is_not_what_was_sent() -> None:
    """Rows are whole and their counts agree; as long as nobody has died, memory has the truth."""
    apply = Store.apply

    def garbled(self: Any, batch: Batch) -> None:
        rows = batch.plain_inserts
        rows[:] = [(*row[:3], row[3].replace(b"m", b"n")) for row in rows]
        others = batch.inserts
        others[:] = [(*row[:-1], row[-1] and row[-1].replace(b"m", b"n")) for row in others]
        apply(self, batch)

    Store.apply = garbled  # type: ignore[method-assign]
