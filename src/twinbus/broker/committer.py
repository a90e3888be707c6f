"""Group commit: while one batch is being made durable, the next one gathers.

The rows are written on the event loop's thread, where it costs microseconds; only the commit,
which waits for the disk with the interpreter's lock released, goes to a thread of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from twinbus.broker.batch import Batch
from twinbus.broker.namespace import Namespace
from twinbus.broker.queue import Done
from twinbus.broker.refusals import StoreError
from twinbus.broker.store import Store
from twinbus.budget import MAX_STORING, Budget


class Committer:
    """Takes a namespace's batches to its store, one after the other."""

    def __init__(self, namespace: Namespace, clock: Callable[[], int], budget: Budget) -> None:
        self.namespace = namespace
        self._clock = clock
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"commit-{namespace.name}")
        self._running = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._in_flight = 0
        self._paused: list[Callable[[], None]] = []
        namespace.store.on_change = self._request
        if namespace.store.batch:
            self._request()

    @property
    def is_overloaded(self) -> bool:
        self._budget.storing = self._in_flight + self.namespace.store.batch.size
        return self._budget.storing > MAX_STORING

    def when_relieved(self, callback: Callable[[], None]) -> None:
        self._paused.append(callback)

    async def drain(self) -> None:
        """Wait until everything that was asked for is on disk."""
        while self._running:
            await self._idle.wait()

    async def close(self) -> None:
        await self.drain()
        self._thread.shutdown()
        self.namespace.store.close()

    def _request(self) -> None:
        if not self._running:
            self._running = True
            self._idle.clear()
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        store = self.namespace.store
        batch = store.take_batch()
        self._in_flight = batch.size
        trouble, commit_now = self.namespace.trouble, store.commit
        try:
            if trouble is not None:
                commit_now = partial(_commit_late, store, trouble.commit_delay_s())
            store.apply(batch)
            commit = self._loop.run_in_executor(self._thread, commit_now)
        except Exception as error:  # noqa: BLE001 - whatever it is, its senders are told
            self._finish(batch, error)
        else:
            commit.add_done_callback(partial(self._committed, batch))

    def _committed(self, batch: Batch, commit: asyncio.Future[None]) -> None:
        self._finish(batch, commit.exception())

    def _finish(self, batch: Batch, error: BaseException | None) -> None:
        """Whatever the end of a batch was, its senders are told and the next one has its turn."""
        health, name = self.namespace.health, self.namespace.name
        self._in_flight = 0
        self._budget.storing = self.namespace.store.batch.size
        if error is None:
            health.well("store", name)
        else:
            health.failed("store", name, error)
            health.attempt("rollback", name, self.namespace.store.rollback)
        if error is not None and not isinstance(error, StoreError):  # what nobody foresaw
            error = StoreError(f"the store failed: {error!r}")
        health.attempt("commit", name, self.namespace.committed, batch, error, self._clock())
        paused, self._paused = self._paused, []
        for resume in paused:
            health.attempt("reading", name, resume)
        if self.namespace.store.batch:
            self._loop.call_soon(self._write)
        else:
            self._running = False
            self._idle.set()


def _commit_late(store: Store, delay_s: float) -> None:
    time.sleep(delay_s)
    store.commit()


def committing(change: Callable[[Done], None]) -> asyncio.Future[None]:
    """Make a change. What is answered is done when it is on disk, or raises what refused it."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if future.done():
            return  # whoever waited went away; the change stands
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    change(done)
    return future
