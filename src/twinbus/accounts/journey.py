"""The journey of one message: every record that names it, in the order of their times.

Clocks that differ may disturb that order. What has the same time is in the order of a message's
life, so that it does not matter who looked, in which order of files.

``journey`` looks with Spark, ``look_through`` without: of a ledger on this machine with no more
than SMALL_FILES files and SMALL_BYTES bytes, which it goes through in some seconds, it is the
quicker one. Both tell the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus.ledger import Cause, LedgerError, Operation
from twinbus.ledger.reader import read_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SMALL_FILES: Final = 5_000
SMALL_BYTES: Final = 256 << 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Step:
    at: datetime
    client: str
    namespace: str
    entity: str
    operation: str
    cause: str
    ok: bool
    destination: str | None

    @property
    def sentence(self) -> str:
        said = _SAID.get((self.operation, self.cause)) or _SAID.get((self.operation, ""))
        text = (said or f"{self.operation} at {{entity}}").format(
            entity=self.entity, home=self.destination or self.entity
        )
        return text if self.ok else f"{text}, which failed"

    @property
    def order(self) -> tuple[Any, ...]:
        known = ((self.operation, self.cause), (self.operation, ""))
        stage = min((_STAGES[each] for each in known if each in _STAGES), default=len(_STAGES))
        place = (self.namespace, self.entity, self.destination or "", self.client)
        return self.at, stage, self.operation, self.cause, self.ok, *place


# In the order of a message's life.
_SAID: Final[dict[tuple[str, str], str]] = {
    (Operation.SEND, Cause.NORMAL): "sent to {entity}",
    (Operation.SCHEDULE, ""): "scheduled on {entity}",
    (Operation.SEND, Cause.BACKLOG_SEND): "diverted to the backlog queue {entity}, for {home}",
    (Operation.RECEIVE, Cause.BACKLOG_RECEIVE): "taken from the backlog queue {entity}",
    (Operation.SEND, Cause.HOME_SEND): "sent home to {entity}",
    (Operation.COMPLETE, Cause.BACKLOG_RECEIVE): "settled in the backlog queue {entity}",
    (Operation.FORWARD, ""): "forwarded from {entity} to {home}",
    (Operation.RECEIVE, ""): "received from {entity}",
    (Operation.RENEW, ""): "its lock renewed at {entity}",
    (Operation.ABANDON, ""): "abandoned at {entity}",
    (Operation.DEFER, ""): "deferred at {entity}",
    (Operation.COMPLETE, ""): "completed at {entity}",
    (Operation.DEAD_LETTER, ""): "dead-lettered at {entity}",
}
_STAGES: Final = {key: place for place, key in enumerate(_SAID)}
_COLUMNS: Final = [each.name for each in fields(Step)]


@dataclass(frozen=True, slots=True)
class Journey:
    """``looked_at`` of ``files`` were gone through."""

    steps: tuple[Step, ...]
    looked_at: int
    files: int


def is_small(files: Sequence[Path]) -> bool:
    """Whether these are gone through sooner than Spark has started and done it."""
    few = len(files) <= SMALL_FILES
    return few and sum(path.stat().st_size for path in files) <= SMALL_BYTES


def look_through(files: Sequence[Path], message_id: str, within_s: float = math.inf) -> Journey:
    """The records of these files, as far as one gets in that time."""
    ends = time.monotonic() + within_s
    rows: list[dict[str, Any]] = []
    looked_at = 0
    for path in files:
        if time.monotonic() > ends:
            break
        with suppress(LedgerError):  # it is torn, or not of a ledger
            rows += _records(path, message_id)
        looked_at += 1
    return Journey(tuple(_steps(rows)), looked_at, len(files))


def _records(path: Path, message_id: str) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = read_file(path, ["message_ids"])["message_ids"].combine_chunks()
    hits = pc.equal(pc.list_flatten(ids), message_id)
    if not pc.any(hits).as_py():
        return []
    rows = pc.unique(pc.list_parent_indices(ids).filter(hits))
    found = read_file(path, _COLUMNS).take(rows)
    at = found["at"].cast(pa.int64())
    told: list[dict[str, Any]] = found.set_column(0, "at", at).to_pylist()
    return told


def journey(records: DataFrame, message_id: str) -> list[Step]:
    """The same of records that Spark reads."""
    from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

    found = records.where(F.array_contains("message_ids", message_id)).select(
        # As a number: Python would be handed the time of its own zone, without saying so.
        F.unix_micros("at").alias("at"),
        *_COLUMNS[1:],
    )
    return _steps(row.asDict() for row in found.collect())


def _steps(rows: Iterable[dict[str, Any]]) -> list[Step]:
    made = (Step(**{**row, "at": _EPOCH + timedelta(microseconds=row["at"])}) for row in rows)
    return sorted(made, key=lambda step: step.order)
