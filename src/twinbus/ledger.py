"""The ledger: what was done, as append-only records, for the bill and the audit.

Theory of operation. ``add`` puts a tuple into a buffer and returns; that is all that happens on the
path of a message. A thread wakes every ``flush_interval_s``, or when many rows wait, and writes
what it finds as one Parquet file a day:

    <ledger>/_ledger.json                          {"format": 1}
    <ledger>/day=2026-11-18/<client>-<number>-<unique>.parquet

The day is that of the record's own time, in UTC. A local file is written under a name that readers
skip, brought to disk, and renamed: it is there whole or not at all. Any other store gets it in one
piece through ``fsspec``. Nobody ever writes under a name that another has used: a client may be
called as it was yesterday, or as another process is, and few stores refuse to replace a file.

A store that fails is tried again at the next interval, with the rows that wait. The buffer has an
end: what no longer fits is dropped, counted and said. Nothing here ever makes a caller wait for a
store or raises to it. A process that is killed loses what was not yet written; one that is forked
begins with an empty buffer and a thread of its own.

This is a leaf: it imports nobody of ours but the root of errors, so that anybody may keep a ledger.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4
from weakref import WeakSet

from twinbus.errors import TwinbusError

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = 1
MARKER: Final = "_ledger.json"
UNIT_BYTES: Final = 65_536

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

# The columns after ``client``'s place, in the order of the schema.
Row = tuple[Any, ...]
_IDS: Final = 9


class LedgerError(TwinbusError):
    """A ledger cannot be kept, or cannot be read; the text says why and what to do."""


class Operation(StrEnum):
    """What was done."""

    SEND = "send"
    RECEIVE = "receive"  # messages that came
    EMPTY_RECEIVE = "empty_receive"  # a receive that returned nothing, which counts too
    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead_letter"
    RENEW = "renew"  # of a lock
    PING = "ping"
    SCHEDULE = "schedule"
    MANAGE = "manage"  # any other request: peeking, cancelling, listing, creating
    FORWARD = "forward"
    SUSPECT = "suspect"  # not billed: an entity failed, and the failover interval runs
    CLEAR = "clear"  # not billed: it took a message again before that was over
    DIVERT = "divert"  # not billed: from now on an entity's sends go to the backlog
    RESTORE = "restore"  # not billed: and from now on home again


# How an entity is, as its senders see it: free of charge, and written at once.
MARKS: Final = frozenset({Operation.SUSPECT, Operation.CLEAR, Operation.DIVERT, Operation.RESTORE})


class Cause(StrEnum):
    """Why it was done. The last four are what the documents charge a diverted message."""

    NORMAL = "normal"
    PING = "ping"
    SYPHON_IDLE = "syphon_idle"  # the syphon asked, and nothing was there
    BACKLOG_SEND = "backlog_send"
    BACKLOG_RECEIVE = "backlog_receive"
    HOME_SEND = "home_send"
    HOME_RECEIVE = "home_receive"


class Keeper(StrEnum):
    """Who kept a record. The same operation may be recorded at both of its ends."""

    CLIENT = "client"  # who asked for it: a factory, or the syphon
    BROKER = "broker"  # who served it


def units(sizes: Sequence[int]) -> int:
    """What messages of these sizes are charged: one each per started 64 KB."""
    if not sizes or max(sizes) <= UNIT_BYTES:  # nearly always, and this is done for every send
        return len(sizes)
    return sum(max(1, -(-size // UNIT_BYTES)) for size in sizes)


@dataclass(frozen=True, slots=True)
class Status:
    """How a ledger is doing. ``error`` is the store's, while it does not take what waits."""

    written: int
    waiting: int
    dropped: int
    error: str


def schema() -> pa.Schema:
    """The columns of format 1."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("client", pa.string(), nullable=False),
            pa.field("namespace", pa.string(), nullable=False),
            pa.field("entity", pa.string(), nullable=False),
            pa.field("operation", pa.string(), nullable=False),
            pa.field("cause", pa.string(), nullable=False),
            pa.field("ok", pa.bool_(), nullable=False),
            pa.field("count", pa.int64(), nullable=False),
            pa.field("bytes", pa.int64(), nullable=False),
            pa.field("units", pa.int64(), nullable=False),
            pa.field("message_ids", pa.list_(pa.field("element", pa.string())), nullable=False),
            pa.field("destination", pa.string()),
            # Not in ledgers of earlier versions, which only clients kept.
            pa.field("kept_by", pa.string(), nullable=False),
        ],
        metadata={"twinbus.ledger": str(FORMAT)},
    )


class Ledger:
    """Records of one process. Any thread may add; ``close`` writes what waits."""

    def __init__(
        self,
        where: str | os.PathLike[str],
        *,
        client: str | None = None,
        kept_by: Keeper = Keeper.CLIENT,
        flush_interval_s: float = FLUSH_INTERVAL_S,
        limit: int = LIMIT,
    ) -> None:
        """``where`` is a local folder or any URL that ``fsspec`` knows."""
        self.where = os.fspath(where)
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self.client = client or (name if kept_by is Keeper.CLIENT else f"{kept_by}-{name}")
        self.kept_by = kept_by
        self._store = _store(self.where)
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
            days = _by_day(rows)
            self._drop(days.pop("", []))
            try:
                for day in list(days):
                    self._write(day, days[day])
                    self._done(days.pop(day))
            except Exception as error:  # noqa: BLE001  whatever the store's library raises
                self._keep([row for of_day in days.values() for row in of_day], error)
                return False
            if self._error and rows:
                _LOGGER.warning("the ledger at %s is written again", self.where)
                self._error = ""
            self._say_dropped()
            return True

    def _write(self, day: str, rows: list[Row]) -> None:
        try:
            content = _parquet(rows, self.client, self.kept_by)
        except Exception:  # such rows would be in the way of all others, for ever
            _LOGGER.exception("%d records for the ledger are not of its types", len(rows))
            with self._mutex:
                self._dropped += len(rows)
                self._written -= len(rows)
            return
        if not self._files:
            self._store.mark()
        self._store.put(f"day={day}/{self._name(day)}", content)
        del self._names[day]
        self._files += 1

    def _name(self, day: str) -> str:
        """The next file's. One that a store took without saying so is written again, and must keep
        its name, lest its records be there twice."""
        unique = f"{_file_name(self.client)}-{self._files:08d}-{uuid4().hex}.parquet"
        return self._names.setdefault(day, unique)

    def _done(self, rows: list[Row]) -> None:
        with self._mutex:
            self._weight -= sum(1 + len(row[_IDS]) for row in rows)
            self._written += len(rows)

    def _drop(self, rows: list[Row]) -> None:
        """Those of a time that no calendar has would be in the way of all others, for ever."""
        with self._mutex:
            self._dropped += len(rows)
            self._weight -= sum(1 + len(row[_IDS]) for row in rows)

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
    def status(self) -> Status:
        """How many records are written, wait and were dropped, and what the store says."""
        with self._mutex:
            return Status(self._written, len(self._rows), self._dropped, self._error)

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


def _by_day(rows: list[Row]) -> dict[str, list[Row]]:
    days: dict[str, list[Row]] = {}
    known: dict[float, str] = {}
    for row in rows:
        number = row[0] // 86_400
        day = known.get(number)
        if day is None:
            day = known[number] = _day(row[0])
        days.setdefault(day, []).append(row)
    return days


def _day(at: float) -> str:
    """The date, or nothing if there is no such day."""
    try:
        return datetime.fromtimestamp(at, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return ""


def _parquet(rows: list[Row], client: str, kept_by: str) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    at, namespace, entity, operation, cause, ok, count, size, charged, ids, destination = zip(
        *rows, strict=True
    )
    columns: list[Sequence[Any]] = [
        [int(moment * 1e6) for moment in at],
        [client] * len(rows),
        namespace,
        entity,
        operation,
        cause,
        ok,
        count,
        size,
        charged,
        _lists(ids),
        destination,
        [kept_by] * len(rows),
    ]
    layout = schema()
    arrays = [pa.array(column, kind) for column, kind in zip(columns, layout.types, strict=True)]
    sink = pa.BufferOutputStream()
    # Ids are all different: to look for those that repeat would be most of the work.
    repeating = [name for name in layout.names if name != "message_ids"]
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=layout),
        sink,
        compression="zstd",
        use_dictionary=repeating,
    )
    return bytes(sink.getvalue())


def _lists(ids: Sequence[Sequence[Any]]) -> pa.ListArray:
    """Lists of texts. Arrow makes them of one flat list in half the time."""
    import pyarrow as pa

    flat = list(chain.from_iterable(ids))
    try:
        texts = pa.array(flat, pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # AMQP has four kinds of ids, and one is usual
        texts = pa.array([_text(each) for each in flat], pa.string())
    ends = accumulate(map(len, ids), initial=0)
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), texts)


def _text(message_id: Any) -> str:
    """An id as its receiver will see it; AMQP has four kinds."""
    if isinstance(message_id, bytes):
        return message_id.decode("utf-8", "replace")
    return str(message_id)


def _file_name(client: str) -> str:
    """As much of it as every store takes. What begins with a dot would be no record to readers."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-.") else "-" for c in client)
    return plain.lstrip(".")[:NAME_CHARS]


# ---------------------------------------------------------------- where it goes


def _store(where: str) -> Folder | Remote:
    try:
        # Asked for now: later there is nobody to tell.
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise LedgerError(
            f"a ledger needs more packages ({error.name}): pip install 'twinbus[ledger]'"
        ) from error
    pa.array([])  # loads the rest of it, which it could not do while the process ends
    if not where:
        raise LedgerError("where is the ledger? Give a folder or a URL")
    if "://" not in where:
        return Folder(Path(where))
    scheme, _, rest = where.partition("://")
    return Folder(Path(rest)) if scheme == "file" else Remote(where)


def check_marker(text: str, where: str) -> None:
    """Raise unless ``text`` is the marker of a ledger of this format."""
    try:
        number = json.loads(text)["format"]
    except (ValueError, TypeError, KeyError):
        raise LedgerError(f"{where} is not a ledger: its {MARKER} cannot be read") from None
    if number != FORMAT:
        age = "an older" if isinstance(number, int) and number < FORMAT else "a newer"
        raise LedgerError(
            f"the ledger {where} is of {age} format, {number}; this version of Twinbus keeps "
            f"format {FORMAT}: start a new folder, and read this one with the version that wrote it"
        )


class Folder:
    """A local folder. A file is there whole or not at all, whatever happens to the machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def mark(self) -> None:
        marker = self._root / MARKER
        if marker.exists():
            check_marker(marker.read_text(), str(self._root))
        else:
            self.put(MARKER, json.dumps({"format": FORMAT}).encode())

    def put(self, name: str, content: bytes) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Spark, DuckDB and pandas pass over names that begin with a dot.
        unfinished = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


class Remote:
    """Any store that ``fsspec`` knows. Object stores show a file only when it is complete."""

    def __init__(self, url: str) -> None:
        scheme = url.partition("://")[0]
        try:
            import fsspec

            fsspec.get_filesystem_class(scheme)
        except ImportError as error:
            raise LedgerError(
                f"a ledger at {scheme}:// needs fsspec and the package for that store, as in: "
                "pip install fsspec adlfs"
            ) from error
        except ValueError as error:
            raise LedgerError(f"a ledger cannot be kept at {scheme}://: {error}") from error
        self._url = url.rstrip("/")
        self._fsspec: Any = fsspec

    def mark(self) -> None:
        files, root = self._fsspec.core.url_to_fs(self._url)
        if files.exists(f"{root}/{MARKER}"):
            check_marker(files.cat_file(f"{root}/{MARKER}").decode(), self._url)
        else:
            self.put(MARKER, json.dumps({"format": FORMAT}).encode())

    def put(self, name: str, content: bytes) -> None:
        files, root = self._fsspec.core.url_to_fs(self._url)
        path = f"{root}/{name}"
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        files.pipe_file(path, content)
