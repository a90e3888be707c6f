"""Writing a ledger: a buffer that never makes anybody wait, and a thread that empties it."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4
from weakref import WeakSet

from twinbus.ledger.record import MARKS, RecordKeeper, Row, by_day, to_parquet
from twinbus.ledger.storage import store_at

FLUSH_INTERVAL_S: Final = 30.0
FLUSH_ROWS: Final = 50_000
# What is written at once waits so long for company: who watches sees it within a second, and a
# thousand entities that fail together make one file.
GATHER_S: Final = 0.5
# Rows and message ids that may wait, about 100 bytes each.
LIMIT: Final = 500_000
# Of a client's name in those of its files, which may be of 255 bytes in all.
NAME_CHARS: Final = 100
# What closing may wait for a store.
CLOSE_S: Final = 10.0

_LOGGER = logging.getLogger("twinbus.ledger")
_IDS: Final = 9


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """How a ledger is doing. ``error`` is the store's, while it does not take what waits."""

    written: int
    waiting: int
    dropped: int
    error: str


class Ledger:
    """Records of one process. Any thread may add; ``close`` writes what waits."""

    def __init__(
        self,
        where: str | os.PathLike[str],
        *,
        client: str | None = None,
        kept_by: RecordKeeper = RecordKeeper.CLIENT,
        flush_interval_s: float = FLUSH_INTERVAL_S,
        limit: int = LIMIT,
    ) -> None:
        """``where`` is a local folder or any URL that ``fsspec`` knows."""
        self.where = os.fspath(where)
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self.client = client or (name if kept_by is RecordKeeper.CLIENT else f"{kept_by}-{name}")
        self.kept_by = kept_by
        self._store = store_at(self.where)
        self._interval_s = flush_interval_s
        self._limit = limit
        self._closed = False
        self._begin()
        _LEDGERS.add(self)

    def _begin(self) -> None:
        """With nothing added yet: when it is made, and again in a process that was forked. What
        waits there is the parent's, who writes it; the thread is the parent's too."""
        self._rows: list[Row] = []
        self._weight = 0
        self._written = 0
        self._dropped = 0
        self._said_dropped = 0
        self._error = ""
        self._files = 0
        self._names: dict[str, str] = {}  # by day, of the files that are being written
        self._mutex = threading.Lock()  # guards the buffer; held for moments
        self._writing = threading.Lock()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    # -- the hot path

    def add(
        self,
        operation: str,
        cause: str,
        namespace: str,
        entity: str,
        *,
        count: int = 1,
        bytes: int = 0,  # noqa: A002  the column's name
        units: int = 1,
        message_ids: Sequence[Any] = (),
        destination: str | None = None,
        ok: bool = True,
        at: float | None = None,
    ) -> None:
        """Record it. Never waits for the store, never raises."""
        row = (
            time.time() if at is None else at,
            namespace,
            entity,
            operation,
            cause,
            ok,
            count,
            bytes,
            units,
            message_ids,
            destination,
        )
        weight = 1 + len(message_ids)
        with self._mutex:
            if self._closed or self._weight + weight > self._limit:
                self._dropped += 1
                return
            self._rows.append(row)
            self._weight += weight
            urgent = len(self._rows) >= FLUSH_ROWS or operation in MARKS
        if self._thread is None:
            self._start()
        if urgent:
            self._wake.set()

    # -- the thread

    def _start(self) -> None:
        with self._mutex:
            if self._thread is not None or self._closed:
                return
            # A daemon, so that a store that hangs does not keep the process from ending.
            thread = threading.Thread(target=self._run, name="twinbus ledger", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # there is none to be had; the next record tries again
                self._error = str(error)
                return
            self._thread = thread
        atexit.register(self.close)

    def _run(self) -> None:
        while not self._closed:
            if self._wake.wait(self._interval_s):
                self._ended.wait(GATHER_S)
            self._wake.clear()
            self._flush_whatever_comes()
        self._flush_whatever_comes()

    def _flush_whatever_comes(self) -> None:
        """The thread is the only one there is: what nobody foresaw must not end it."""
        try:
            self.flush()
        except Exception as error:
            _LOGGER.exception("the ledger at %s failed", self.where)
            self._error = repr(error)

    def flush(self) -> bool:
        """Write what waits; true if nothing is left. The store may make this wait."""
        with self._writing:
            with self._mutex:
                rows, self._rows = self._rows, []
            days = by_day(rows)
            # Those of a time that no calendar has would be in the way of all others, for ever.
            self._let_go(days.pop("", []), written=False)
            try:
                for day in list(days):
                    written = self._write(day, days[day])
                    self._let_go(days.pop(day), written=written)
            except Exception as error:  # noqa: BLE001  whatever the store's library raises
                self._keep([row for of_day in days.values() for row in of_day], error)
                return False
            if self._error and rows:
                _LOGGER.warning("the ledger at %s is written again", self.where)
                self._error = ""
            self._say_dropped()
            return True

    def _write(self, day: str, rows: list[Row]) -> bool:
        try:
            content = to_parquet(rows, self.client, self.kept_by)
        except Exception:  # such rows, too, would be in the way
            _LOGGER.exception("%d records for the ledger are not of its types", len(rows))
            return False
        if not self._files:
            self._store.mark()
        self._store.put(f"day={day}/{self._name(day)}", content)
        del self._names[day]
        self._files += 1
        return True

    def _name(self, day: str) -> str:
        """The next file's. One that a store took without saying so is written again, and must keep
        its name, lest its records be there twice."""
        unique = f"{_file_name(self.client)}-{self._files:08d}-{uuid4().hex}.parquet"
        return self._names.setdefault(day, unique)

    def _let_go(self, rows: list[Row], *, written: bool) -> None:
        with self._mutex:
            self._weight -= sum(1 + len(row[_IDS]) for row in rows)
            self._written += len(rows) if written else 0
            self._dropped += 0 if written else len(rows)

    def _keep(self, rows: list[Row], error: Exception) -> None:
        with self._mutex:
            self._rows = rows + self._rows
        if not self._error:
            _LOGGER.warning("the ledger at %s cannot be written: %s", self.where, error)
        self._error = str(error) or type(error).__name__
        self._say_dropped()

    def _say_dropped(self) -> None:
        lost = self._dropped - self._said_dropped
        if lost:
            self._said_dropped += lost
            _LOGGER.warning("%d records for the ledger at %s were dropped", lost, self.where)

    # -- from outside

    @property
    def status(self) -> LedgerStatus:
        """How many records are written, wait and were dropped, and what the store says."""
        with self._mutex:
            return LedgerStatus(self._written, len(self._rows), self._dropped, self._error)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write what waits, but wait for the store no longer than this. Then no more is taken."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        if self._thread is None:
            if self._rows:  # there never was a thread to be had
                self._flush_whatever_comes()
            return
        self._ended.set()
        self._wake.set()
        self._thread.join(timeout_s)
        with self._mutex:
            left, self._rows = len(self._rows), []
            self._dropped += left
        self._say_dropped()
        if self._thread.is_alive():
            _LOGGER.warning("the ledger at %s was still being written", self.where)


_LEDGERS: Final[WeakSet[Ledger]] = WeakSet()


def _begin_again() -> None:
    for ledger in list(_LEDGERS):
        ledger._begin()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_begin_again)


def _file_name(client: str) -> str:
    """As much of it as every store takes. What begins with a dot would be no record to readers."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-.") else "-" for c in client)
    return plain.lstrip(".")[:NAME_CHARS]
