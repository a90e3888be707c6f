"""Gathers the single sends of one sender that come within a moment into one AMQP batch.

Each caller gets the outcome of its own message. A batch that is refused for something that may be
one message's fault is sent again one by one, so that only the guilty one's caller hears of it.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.classifier import Verdict, classify
from twinbus.paired.aio.world import Crew, Promise, sleep
from twinbus.paired.outgoing import (
    BATCH_OVERHEAD,
    ITEM_OVERHEAD,
    Outgoing,
    OutgoingBatch,
    batch_of,
)

Deliver = Callable[[Outgoing | OutgoingBatch, float | None], Awaitable[None]]
# Service Bus takes 4,500 messages in a batch; this leaves room, and keeps a retry small.
MOST = 1000


class _Waiting:
    __slots__ = ("message", "promise", "timeout")

    def __init__(self, message: Outgoing, timeout: float | None) -> None:
        self.message = message
        self.timeout = timeout
        self.promise = Promise()


class Gatherer:
    def __init__(self, deliver: Deliver, interval_s: float, limit_bytes: int, crew: Crew) -> None:
        self._deliver = deliver
        self._interval_s = interval_s
        self._limit_bytes = limit_bytes - BATCH_OVERHEAD
        self._crew = crew
        self._waiting: list[_Waiting] = []
        self._flushing = False
        self._mutex = threading.Lock()

    async def send(self, message: Outgoing, timeout: float | None) -> None:
        mine = _Waiting(message, timeout)
        with self._mutex:
            self._waiting.append(mine)
            start, self._flushing = not self._flushing, True
        if start:
            self._crew.start("batch flush", self._flush)
        try:
            await mine.promise.outcome(timeout)
        except TimeoutError as error:
            raise OperationTimeoutError(message="Send operation timed out") from error

    async def close(self) -> None:
        """Nothing is kept back: what waits is sent by the flush that is under way."""
        with self._mutex:
            waiting, self._waiting = self._waiting, []
        if waiting:
            await self._send_all(waiting)

    async def _flush(self) -> None:
        while True:
            await sleep(self._interval_s)
            with self._mutex:
                waiting, self._waiting = self._waiting, []
                if not waiting:
                    self._flushing = False
                    return
            await self._send_all(waiting)

    async def _send_all(self, waiting: list[_Waiting]) -> None:
        chunk: list[_Waiting] = []
        size = 0
        for each in waiting:
            if each.promise.given_up:
                continue
            needed = len(each.message.encoded()[0]) + ITEM_OVERHEAD
            if chunk and (size + needed > self._limit_bytes or len(chunk) == MOST):
                await self._send_chunk(chunk)
                chunk, size = [], 0
            chunk.append(each)
            size += needed
        if chunk:
            await self._send_chunk(chunk)

    async def _send_chunk(self, chunk: list[_Waiting]) -> None:
        if len(chunk) == 1:
            await self._send_one(chunk[0])
            return
        times = [each.timeout for each in chunk if each.timeout is not None]
        try:
            await self._deliver(
                batch_of([each.message for each in chunk]), max(times) if times else None
            )
        except Exception as error:  # noqa: BLE001  it is the callers', through their promises
            if classify(error) is Verdict.RAISE:
                for each in chunk:
                    await self._send_one(each)
            else:
                _resolve(chunk, error)
        except BaseException:
            _resolve(chunk, OperationTimeoutError(message="The sender was closed."))
            raise
        else:
            _resolve(chunk, None)

    async def _send_one(self, each: _Waiting) -> None:
        try:
            await self._deliver(each.message, each.timeout)
        except Exception as error:  # noqa: BLE001  it is the caller's, through its promise
            each.promise.resolve(error)
        except BaseException:
            each.promise.resolve(OperationTimeoutError(message="The sender was closed."))
            raise
        else:
            each.promise.resolve()


def _resolve(chunk: list[_Waiting], error: BaseException | None) -> None:
    for each in chunk:
        each.promise.resolve(error)
