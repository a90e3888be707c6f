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

from twinbus.ledger.record import (
    FORMAT,
    MARKER,
    MARKS,
    UNIT_BYTES,
    Cause,
    LedgerError,
    Operation,
    RecordKeeper,
    schema,
    units,
)
from twinbus.ledger.record import RecordKeeper as Keeper
from twinbus.ledger.storage import Folder, check_marker
from twinbus.ledger.writer import FLUSH_INTERVAL_S, GATHER_S, LIMIT, Ledger, LedgerStatus
from twinbus.ledger.writer import LedgerStatus as Status

__all__ = [
    "FLUSH_INTERVAL_S",
    "FORMAT",
    "GATHER_S",
    "LIMIT",
    "MARKER",
    "MARKS",
    "UNIT_BYTES",
    "Cause",
    "Folder",
    "Keeper",
    "Ledger",
    "LedgerError",
    "LedgerStatus",
    "Operation",
    "RecordKeeper",
    "Status",
    "check_marker",
    "schema",
    "units",
]
