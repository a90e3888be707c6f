"""A record of the ledger: what was done, why, and who kept it; and records as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Final

from twinbus.errors import TwinbusError

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = 1
MARKER: Final = "_ledger.json"
UNIT_BYTES: Final = 65_536

# The columns after ``client``'s place, in the order of the schema.
Row = tuple[Any, ...]


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


class RecordKeeper(StrEnum):
    """Who kept a record. The same operation may be recorded at both of its ends."""

    CLIENT = "client"  # who asked for it: a factory, or the syphon
    BROKER = "broker"  # who served it


def units(sizes: Sequence[int]) -> int:
    """What messages of these sizes are charged: one each per started 64 KB."""
    if not sizes or max(sizes) <= UNIT_BYTES:  # nearly always, and this is done for every send
        return len(sizes)
    return sum(max(1, -(-size // UNIT_BYTES)) for size in sizes)


def need_arrow() -> None:
    """Raise, with a sentence, if what reads and writes records is not here."""
    try:
        import pyarrow
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise LedgerError(
            f"a ledger needs more packages ({error.name}): pip install 'twinbus[ledger]'"
        ) from error


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


def by_day(rows: list[Row]) -> dict[str, list[Row]]:
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


def to_parquet(rows: list[Row], client: str, kept_by: str) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    at, *others = zip(*rows, strict=True)
    layout = schema()
    columns: list[Any] = [
        [int(moment * 1e6) for moment in at],
        [client] * len(rows),
        *others,
        [kept_by] * len(rows),
    ]
    ids = layout.get_field_index("message_ids")
    columns[ids] = _lists(columns[ids])
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
