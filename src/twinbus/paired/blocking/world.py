"""What the shell needs of its world: locks, signals, promises, jobs. This is the threads'.

The names are those of ``twinbus.paired.aio.world``.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

_LOGGER = logging.getLogger("twinbus.paired")


class Lock:
    """One at a time, for those who will wait only so long."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, timeout: float | None) -> bool:
        return self._lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout))

    def release(self) -> None:
        self._lock.release()


Signal = threading.Event


class Promise:
    """The outcome of something that another job does: nothing, or an error."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: Future[None] = Future()

    def resolve(self, error: BaseException | None = None) -> None:
        if self._future.done():
            return
        if error is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(error)

    def give_up(self) -> bool:
        """Nobody waits any longer; true if it was in time."""
        return self._future.cancel()

    @property
    def given_up(self) -> bool:
        return self._future.cancelled()

    def outcome(self, timeout: float | None) -> None:
        """Wait. TimeoutError if it takes too long, or whatever the promise was resolved with."""
        try:
            self._future.result(timeout)
        except FutureTimeoutError as error:
            raise TimeoutError from error
        except CancelledError as error:
            raise TimeoutError from error


class Crew:
    """Jobs in the background that end when their owner does.

    A thread cannot be cancelled: a job that waits must wait for a signal its owner sets first.
    """

    def __init__(self) -> None:
        self._jobs: set[threading.Thread] = set()
        self._mutex = threading.Lock()

    def start(self, name: str, job: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(
            target=self._run, args=(job, *args), name=f"twinbus {name}", daemon=True
        )
        with self._mutex:
            self._jobs.add(thread)
        thread.start()

    def _run(self, job: Callable[..., None], *args: Any) -> None:
        try:
            job(*args)
        except Exception:
            _LOGGER.exception("a background job failed")
        finally:
            with self._mutex:
                self._jobs.discard(threading.current_thread())

    def stop(self) -> None:
        """Wait until all are gone, and those that they started to clean up."""
        while jobs := self._others():
            for job in jobs:
                job.join()

    def _others(self) -> list[threading.Thread]:
        with self._mutex:
            return [job for job in self._jobs if job is not threading.current_thread()]

    def __len__(self) -> int:
        return len(self._jobs)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def aside(act: Callable[[], object]) -> None:
    """Do what may take a while. A thread holds up nobody else."""
    act()


def has_news(handler: Any) -> bool:
    """Whether the peer sent something, or hung up, while nobody was reading."""
    sock = getattr(handler._connection._transport, "sock", None)
    if not isinstance(sock, socket.socket):  # a WebSocket: its library reads for us
        return False
    try:
        return bool(select.select([sock], [], [], 0)[0])
    except (OSError, ValueError):
        return True


def has_hung_up(handler: Any) -> bool:
    sock = getattr(handler._connection._transport, "sock", None)
    if not isinstance(sock, socket.socket):
        return False
    try:
        if not select.select([sock], [], [], 0)[0]:
            return False
        return hasattr(sock, "pending") is False and sock.recv(1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):
        return True


def end_keep_alive(handler: Any) -> None:
    """A thread cannot be cancelled; this one sees within a second that it is over."""


def hang_up(connection: Any) -> None:
    """The SDK leaves a socket open whose connection broke down."""
    sock = getattr(connection._transport, "sock", None)
    if isinstance(sock, socket.socket):
        sock.close()
