"""Queues with sessions: messages with one session id go, in order, to one receiver at a time.

A session is held by a lock of its own; the locks of its messages end with it. Sessions that nobody
holds cost no memory: which ones have messages is asked of the store, the oldest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from twinbus.broker.entry import Entry
from twinbus.broker.lock import Consumer, MessageLock
from twinbus.broker.queue import Done, Queue
from twinbus.broker.refusals import SessionLostError, SessionTakenError
from twinbus.broker.window import Window
from twinbus.health import each

# How many of the oldest messages are looked at for a free session before the index is walked.
_OLDEST = 500


@dataclass(slots=True, eq=False)
class SessionLock:
    """A session that somebody holds. It has the locks of its messages, which end with it."""

    id: str
    consumer: Consumer
    until_ms: int
    window: Window
    tokens: set[bytes] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Waiter:
    """One who waits for any session to come free."""

    consumer: Consumer
    granted: Callable[[SessionLock], None]


class SessionQueue(Queue):
    """A queue that is received from session by session."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sessions: dict[str, SessionLock] = {}
        self.waiters: list[Waiter] = []

    # -- holding a session

    def accept(self, session_id: str, consumer: Consumer, now_ms: int) -> SessionLock:
        """Hold the session of that name, whether or not it has messages."""
        self.check_open()
        if session_id in self.sessions:
            raise SessionTakenError(
                f"The requested session '{session_id}' of '{self.path}' cannot be accepted. "
                "It may be locked by another receiver."
            )

        return self._hold(session_id, consumer, now_ms, self._window_of(session_id))

    def accept_next(self, consumer: Consumer, now_ms: int) -> SessionLock | None:
        """Hold the free session whose message has waited longest, if there is one."""
        for session_id in self._free_sessions():
            window = self._window_of(session_id)
            entry = window.next()
            if entry is not None:  # else all that it has is on its way out of the queue
                window.give_back(entry.sequence)
                return self._hold(session_id, consumer, now_ms, window)
        return None

    def _window_of(self, session_id: str) -> Window:
        load = partial(self.store.load_session, self.number, session_id)
        return Window(load, self._get, self.taken, self.last_sequence)

    def _hold(
        self, session_id: str, consumer: Consumer, now_ms: int, window: Window
    ) -> SessionLock:
        self.check_open()
        session = SessionLock(session_id, consumer, now_ms + self._lock_ms, window)
        self.sessions[session_id] = session
        return session

    def wait(self, waiter: Waiter) -> None:
        self.waiters.append(waiter)

    def stop_waiting(self, waiter: Waiter) -> None:
        if waiter in self.waiters:
            self.waiters.remove(waiter)

    def _free_sessions(self) -> Iterator[str]:
        for session_id in self.store.oldest_sessions(self.number, _OLDEST):
            if session_id not in self.sessions:
                yield session_id
        # All of the oldest are taken: step from name to name. Each step finds a free session or
        # one that is held, so there are no more steps than sessions held.
        candidate = self.store.next_session(self.number, "")
        while candidate is not None:
            if candidate not in self.sessions:
                yield candidate
            candidate = self.store.next_session(self.number, candidate)

    def renew_session(self, session_id: str, now_ms: int) -> int:
        session = self.session(session_id)
        session.until_ms = now_ms + self._lock_ms
        for token in session.tokens:
            self.locks[token].until_ms = session.until_ms
        return session.until_ms

    def session(self, session_id: str) -> SessionLock:
        self.check_open()
        session = self.sessions.get(session_id)
        if session is None:
            raise SessionLostError(
                f"The session lock on '{session_id}' of '{self.path}' has expired. "
                "Accept the session again."
            )
        return session

    def close_session(self, session: SessionLock, now_ms: int) -> None:
        """Let the session go. What was received and not settled counts as a delivery."""
        if self.sessions.get(session.id) is not session:
            return
        del self.sessions[session.id]
        self.wake()
        self._take_back_all([self.locks[token] for token in session.tokens], now_ms)

    def _take_back_all(self, locks: list[MessageLock], now_ms: int) -> None:
        """If that fails, of one or by the disk, `expire_locks` tries again."""
        each(partial(self.take_back, now_ms=now_ms), [lock for lock in locks if not lock.busy])

    def expire_locks(self, now_ms: int) -> None:
        if self.closed:
            return
        late = [session for session in self.sessions.values() if session.until_ms <= now_ms]
        each(partial(self._expire, now_ms=now_ms), late)
        # When its session closed, the disk refused or the queue was closed: try again, or it
        # would stay locked.
        holder = self.sessions.get
        left = [
            lock
            for lock in self.locks.values()
            if lock.owner is not holder(lock.entry.session or "")
        ]
        self._take_back_all(left, now_ms)

    def _expire(self, session: SessionLock, now_ms: int) -> None:
        try:
            self.close_session(session, now_ms)
        finally:
            session.consumer.lose(
                SessionLostError(f"The session lock on '{session.id}' has expired.")
            )

    @property
    def has_locks(self) -> bool:
        return bool(self.sessions or self.locks)

    def dismissed(self) -> list[Consumer]:
        consumers: list[Consumer] = [session.consumer for session in self.sessions.values()]
        consumers += [waiter.consumer for waiter in self.waiters]
        self.sessions.clear()
        self.waiters.clear()
        return consumers

    @property
    def in_use(self) -> bool:
        return bool(self.sessions or self.waiters or self.locks)

    # -- messages

    def arrive(self, entry: Entry) -> None:
        session = self.sessions.get(entry.session or "")
        if session is not None:
            session.window.arrive(entry, wanted=True)
        if session is not None or self.waiters:
            self.wake()

    def come_back(self, entry: Entry) -> None:
        # To whoever holds the session now; if nobody does, the disk has it for the next holder.
        session = self.sessions.get(entry.session or "")
        if session is not None:
            session.window.give_back(entry.sequence)
        self.wake()

    def pump(self, now_ms: int) -> None:
        if self.closed:
            return
        try:
            self._serve_waiters(now_ms)
        finally:
            each(partial(self._serve_session, now_ms=now_ms), list(self.sessions.values()))

    def _serve_session(self, session: SessionLock, now_ms: int) -> None:
        self.serve(session.consumer, session.window, now_ms, session)

    def _serve_waiters(self, now_ms: int) -> None:
        while self.waiters:
            session = self.accept_next(self.waiters[0].consumer, now_ms)
            if session is None:
                return
            self.waiters.pop(0).granted(session)

    # -- state

    def get_state(self, session_id: str) -> bytes | None:
        return self.store.session_state(self.number, session_id)

    def set_state(self, session_id: str, state: bytes | None, now_ms: int, done: Done) -> None:
        self.check_open()
        self.store.batch.set_state(self.number, session_id, state, now_ms)
        self.store.submit(done)

    def list_sessions(self, updated_since_ms: int | None, skip: int, top: int) -> list[str]:
        """Sessions that have messages, or only those whose state changed since a moment."""
        if updated_since_ms is None:
            return self.store.sessions(self.number, skip, top)
        return self.store.sessions_changed(self.number, updated_since_ms, skip, top)
