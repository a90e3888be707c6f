"""A ledger's folder, read a little at a time: only files that were not there before.

Files never change once they are there, so a name that was read is done with. Only this month and
the last week are looked at. Days before yesterday get a late record now and then, and are looked at
once a minute. Read is what clients and the syphon recorded, as for the bill: brokers that keep the
same ledger record the same operations once more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from twinbus.accounts.journey import Journey, look_through
from twinbus.dashboard.chronicle import Chronicle
from twinbus.ledger import MARKER, LedgerError, RecordKeeper, check_marker
from twinbus.ledger.reader import data_files, day_folders, files_of, read_file

log = logging.getLogger("twinbus.dashboard")

WEEK: Final = timedelta(days=7)
OLD_DAYS_S: Final = 60.0
# A search that takes longer answers with what it has found, and says how far it got.
SEARCH_S: Final = 20.0
_COLUMNS: Final = [
    *("at", "client", "namespace", "entity", "operation", "cause", "ok", "count", "units"),
    "destination",
]


class LedgerFollower:
    """Of one ledger, or of none. Not for two threads at once, but for ``journey``."""

    def __init__(self, root: Path | None, chronicle: Chronicle) -> None:
        self.root = root
        self.chronicle = chronicle
        self.problem = "" if root else "No ledger was given."  # why nothing can be read, if so
        self.torn = 0
        self._read: dict[str, set[str]] = {}
        self._looked_at_old = 0.0

    def refresh(self, now: float) -> int:
        """Fold in what is new; answers how many files that were."""
        if self.root is None:
            return 0
        self.problem = _problem(self.root)
        if self.problem:
            return 0
        first = _first_day(now)
        count = 0
        for day, path in self._new(self.root, first, now):
            self._fold(day, path)
            count += 1
        for day in [day for day in self._read if day < first]:
            del self._read[day]
        if count:
            self.chronicle.forget_days_before(first)
        return count

    def _new(self, root: Path, first: str, now: float) -> Iterator[tuple[str, Path]]:
        recent = _day(now - 86_400)
        everything = now - self._looked_at_old >= OLD_DAYS_S
        if everything:
            self._looked_at_old = now
        for folder in day_folders(root):
            day = folder.name.removeprefix("day=")
            if day < first or (day < recent and not everything):
                continue
            known = self._read.setdefault(day, set())
            for path in files_of(folder):
                if path.name not in known:
                    known.add(path.name)
                    yield day, path

    def _fold(self, day: str, path: Path) -> None:
        try:
            self.chronicle.add(day, read_file(path, _COLUMNS, RecordKeeper.CLIENT))
        except LedgerError:
            self.torn += 1
        except Exception:  # of a shape that a ledger's has not; the others are read
            log.exception("%s is in the ledger's folder and cannot be read", path)
            self.torn += 1

    def journey(self, message_id: str) -> Journey:
        """Of one message, the newest files first. Nothing is kept for this."""
        files = [] if self.root is None else data_files(self.root)
        return look_through(files[::-1], message_id, SEARCH_S)


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
