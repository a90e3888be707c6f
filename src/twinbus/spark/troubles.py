"""What the source has trouble with, told to the driver.

Spark runs a source in a Python process of its own, whose log nobody sees. So it notes in a file
which queues do not answer, and the driver, on the same machine, reads it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path


class Troubles:
    """By queue, what it said. Without a file nothing is noted."""

    def __init__(self, where: str | None) -> None:
        self._path = None if where is None else Path(where)
        self._now: dict[str, str] = {}

    def tell(self, queue: str, trouble: str | None) -> None:
        """``trouble`` is None when it is over."""
        if trouble is None:
            self._now.pop(queue, None)
        else:
            self._now[queue] = trouble
        if self._path is not None:
            # A disk that is full must not end the source.
            with suppress(OSError):
                beside = self._path.with_suffix(".new")
                beside.write_text(json.dumps(self._now))
                beside.replace(self._path)


def read(path: Path) -> dict[str, str]:
    """What was told last; nothing if there is no such file."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
