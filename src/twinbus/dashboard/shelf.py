"""The ledger's folder, read a little at a time: only files that were not there before.

Files never change once they are there, so a name that was read is done with. Only this month and
the last week are looked at. Days before yesterday get a late record now and then, and are looked at
once a minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus.accounts.journey import Step
from twinbus.dashboard.chronicle import Chronicle
from twinbus.ledger import MARKER, LedgerError, check_marker

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("twinbus.dashboard")

WEEK: Final = timedelta(days=7)
OLD_DAYS_S: Final = 60.0
# A search that takes longer answers with what it has found, and says how far it got.
SEARCH_S: Final = 20.0
_COLUMNS: Final = [
    *("at", "client", "namespace", "entity", "operation", "cause", "ok", "count", "units"),
    "destination",
]
_STEP: Final = ["at", "client", "namespace", "entity", "operation", "cause", "ok", "destination"]


@dataclass(frozen=True, slots=True)
class Journey:
    """``looked_at`` of ``files`` were gone through, the newest first."""

    steps: tuple[Step, ...]
    looked_at: int
    files: int


class Books:
    """One ledger. Not for two threads at once, but for ``journey``."""

    def __init__(self, root: Path, chronicle: Chronicle) -> None:
        self.root = root
        self.chronicle = chronicle
        self.problem = ""  # why nothing can be read, if so
        self.torn = 0
        self._read: dict[str, set[str]] = {}
        self._looked_at_old = 0.0

    def refresh(self, now: float) -> int:
        """Fold in what is new; answers how many files that were."""
        self.problem = _problem(self.root)
        if self.problem:
            return 0
        first = _first_day(now)
        count = 0
        for day, path in self._new(first, now):
            self._fold(day, path)
            count += 1
        for day in [day for day in self._read if day < first]:
            del self._read[day]
        if count:
            self.chronicle.forget_days_before(first)
        return count

    def _new(self, first: str, now: float) -> Iterator[tuple[str, Path]]:
        """In an order in which each client's files come as it wrote them."""
        recent = _day(now - 86_400)
        everything = now - self._looked_at_old >= OLD_DAYS_S
        if everything:
            self._looked_at_old = now
        for folder in sorted(self.root.glob("day=*")):
            day = folder.name.removeprefix("day=")
            if day < first or (day < recent and not everything):
                continue
            known = self._read.setdefault(day, set())
            for path in sorted(folder.glob("*.parquet")):
                if path.name not in known and path.name[0] not in "._":
                    known.add(path.name)
                    yield day, path

    def _fold(self, day: str, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            self.chronicle.add(day, pq.read_table(path, columns=_COLUMNS, partitioning=None))
        except (pa.ArrowException, OSError):
            self.torn += 1
        except Exception:  # of a shape that a ledger's has not; the others are read
            log.exception("%s is in the ledger's folder and cannot be read", path)
            self.torn += 1

    # -- one message

    def journey(self, message_id: str) -> Journey:
        """Every record that names it. Nothing is kept for this: the files are gone through."""
        files = sorted(
            (path for path in self.root.glob("day=*/*.parquet") if path.name[0] not in "._"),
            key=lambda path: (path.parent.name, path.name),
            reverse=True,
        )
        ends = time.monotonic() + SEARCH_S
        steps: list[Step] = []
        looked_at = 0
        for path in files:
            if time.monotonic() > ends:
                break
            steps += _steps(path, message_id)
            looked_at += 1
        steps.sort(key=lambda step: step.at)
        return Journey(tuple(steps), looked_at, len(files))


def _steps(path: Path, message_id: str) -> list[Step]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        ids = pq.read_table(path, columns=["message_ids"], partitioning=None)["message_ids"]
        ids = ids.combine_chunks()
        hits = pc.equal(pc.list_flatten(ids), message_id)
        if not pc.any(hits).as_py():
            return []
        rows = pc.unique(pc.list_parent_indices(ids).filter(hits))
        found: pa.Table = pq.read_table(path, columns=_STEP, partitioning=None).take(rows)
    except (pa.ArrowException, OSError):
        return []
    return [_step(row) for row in found.to_pylist()]


def _step(row: dict[str, Any]) -> Step:
    return Step(**{**row, "at": row["at"].astimezone(UTC)})


def _problem(root: Path) -> str:
    """Why this cannot be read, in a sentence."""
    marker = root / MARKER
    if not marker.is_file():
        return "There is no ledger yet. It begins with the first client that keeps one here."
    try:
        check_marker(marker.read_text(errors="replace"), root.name)
    except LedgerError as error:
        return str(error)
    return ""


def _first_day(now: float) -> str:
    """From where on the bill and the time line are of interest."""
    today = datetime.fromtimestamp(now, UTC).date()
    return min(today.replace(day=1), today - WEEK).isoformat()


def _day(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).date().isoformat()
