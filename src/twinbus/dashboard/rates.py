"""The last minutes as series for charts: counters into rates, once a second. Pure."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from twinbus.dashboard.readings import Reading

KEPT: Final = 300  # points, one a second
SERIES: Final = ("arrived", "diverted", "home", "backlog")

Point = float | None


class Rates:
    """Where a namespace does not answer there is a gap, not a zero."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}
        self._times: deque[float] = deque(maxlen=KEPT)
        self._points: dict[str, deque[Point]] = {name: deque(maxlen=KEPT) for name in SERIES}

    def add(self, at: float, primary: Reading | None, secondary: Reading | None) -> None:
        arrived = diverted = home = backlog = None
        if primary is not None:
            arrived = primary.total("messages_in_total", primary.sent_to.values())
        if secondary is not None:
            queues = secondary.backlog.values()
            diverted = secondary.total("messages_in_total", queues)
            home = secondary.total("completed_total", queues)
            backlog = secondary.total("active_messages", queues)
        self._times.append(at)
        for name, count in (("arrived", arrived), ("diverted", diverted), ("home", home)):
            self._points[name].append(self._rate(name, at, count))
        self._points["backlog"].append(backlog)

    def _rate(self, name: str, at: float, count: float | None) -> Point:
        before = self._last.get(name)
        if count is None:
            return None
        self._last[name] = (at, count)
        if before is None or at <= before[0]:
            return None
        # A counter that fell has started anew with its process: all that it shows is new.
        gained = count - before[1] if count >= before[1] else count
        return round(gained / (at - before[0]), 2)

    def as_json(self) -> dict[str, Any]:
        return {"times": list(self._times), **{name: list(self._points[name]) for name in SERIES}}

    def now(self, name: str, over: int = 5) -> float | None:
        """The mean of the last points: one second alone says little."""
        known = [point for point in list(self._points[name])[-over:] if point is not None]
        return round(sum(known) / len(known), 1) if known else None
