# Generated from ../aio/gatherer.py by tools/unasync.py; change that file, not this one.
"""Gathers the single sends of one sender that come within a moment into one AMQP batch.

Each caller gets the outcome of its own message. A batch that is refused for something that may be
one message's fault is sent again one by one, so that only the guilty one's caller hears of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)

from twinbus.amqp.batches import in_transfers
from twinbus.classifier import Classifier, Verdict, classify
from twinbus.client_errors import BacklogError, FactoryFaultedError
from twinbus.paired.blocking.world_blocking import Promise, World
from twinbus.paired.outgoing import Outgoing, OutgoingBatch, is_encodable

Deliver = Callable[[Outgoing | OutgoingBatch, float | None], None]
# Service Bus takes 4,500 messages in a batch; this leaves room, and keeps a retry small.
MOST = 1000
_OF_ALL = (
    BacklogError,
    FactoryFaultedError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)


class _Waiting:
    __slots__ = ("message", "promise", "size", "timeout")

    def __init__(self, message: Outgoing, timeout: float | None) -> None:
        self.message = message
        self.size = len(message.encoded()[0])
        self.timeout = timeout
        self.promise = Promise()


class Gatherer:
    def __init__(
        self,
        deliver: Deliver,
        interval_s: float,
        limit_bytes: int,
        world: World,
        verdict_of: Classifier = classify,
    ) -> None:
        self._verdict_of = verdict_of
        self._deliver = deliver
        self._interval_s = interval_s
        self._limit_bytes = limit_bytes
        self._world = world
        self._waiting: list[_Waiting] = []
        self._flush_job: object = None  # which flush is under way
        self._mutex = threading.Lock()

    def send(self, message: Outgoing, timeout: float | None) -> None:
        if not is_encodable(message):  # its caller hears what is wrong with it, and nobody else
            self._deliver(message, timeout)
            return
        mine = _Waiting(message, timeout)
        with self._mutex:
            self._waiting.append(mine)
            start = self._flush_job is None
            if start:
                self._flush_job = object()
            ended = partial(self._flush_ended, self._flush_job)
        if start and not self._world.start("batch flush", self._flush, ended=ended):
            self.close()  # nobody else would send what waits
        try:
            mine.promise.outcome(timeout)
        except TimeoutError as error:
            raise OperationTimeoutError(message="Send operation timed out") from error

    def close(self) -> None:
        """Nothing is kept back: what waits is sent by the flush that is under way."""
        with self._mutex:
            waiting, self._waiting = self._waiting, []
        if waiting:
            self._send_all(waiting)

    def _flush(self) -> None:
        while True:
            self._world.sleep(self._interval_s)
            with self._mutex:
                waiting, self._waiting = self._waiting, []
                if not waiting:
                    self._flush_job = None
                    return
            self._send_all(waiting)

    def _flush_ended(self, job: object) -> None:
        """The next send starts another, whatever became of this one."""
        with self._mutex:
            if self._flush_job is job:
                self._flush_job = None

    def _send_all(self, waiting: list[_Waiting]) -> None:
        """However it ends, everybody hears."""
        try:
            sizes = [each.size for each in waiting]
            for part in in_transfers(sizes, self._limit_bytes, MOST):
                chunk = [each for each in waiting[part] if not each.promise.given_up]
                if chunk:
                    self._send_chunk(chunk)
        except Exception as error:  # noqa: BLE001  it is the callers', through their promises
            _resolve(waiting, error)
        except BaseException:
            _resolve(waiting, OperationTimeoutError(message="The sender was closed."))
            raise

    def _send_chunk(self, chunk: list[_Waiting]) -> None:
        if len(chunk) == 1:
            self._send_one(chunk[0])
            return
        times = [each.timeout for each in chunk if each.timeout is not None]
        try:
            self._deliver(
                OutgoingBatch.of([each.message for each in chunk]), max(times) if times else None
            )
        except Exception as error:  # noqa: BLE001  it is the callers', through their promises
            if self._may_be_of_one(error):
                for each in chunk:
                    self._send_one(each)
            else:
                _resolve(chunk, error)
        else:
            _resolve(chunk, None)

    def _send_one(self, each: _Waiting) -> None:
        try:
            self._deliver(each.message, each.timeout)
        except Exception as error:  # noqa: BLE001  it is the caller's, through its promise
            each.promise.resolve(error)
        else:
            each.promise.resolve()

    def _may_be_of_one(self, error: Exception) -> bool:
        """Whether the other messages may do better without the one that it is about. That neither
        namespace takes any, or that the key is bad, each of them would only wait to hear again."""
        return self._verdict_of(error) is Verdict.RAISE and not isinstance(error, _OF_ALL)


def _resolve(chunk: list[_Waiting], error: BaseException | None) -> None:
    for each in chunk:
        each.promise.resolve(error)
