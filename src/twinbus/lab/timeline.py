"""What happened, and when, since the beginning."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened."""

    at_s: float
    what: str


@dataclass
class Timeline:
    """Moments in a row; ``tell`` hears of each as it comes."""

    moments: list[Moment] = field(default_factory=list)
    tell: Callable[[Moment], None] = lambda moment: None
    _began: float = field(default_factory=time.monotonic)

    @property
    def now(self) -> float:
        return round(time.monotonic() - self._began, 2)

    def say(self, what: str) -> None:
        moment = Moment(self.now, what)
        self.moments.append(moment)
        self.tell(moment)

    def as_json(self) -> list[dict[str, Any]]:
        return [{"at_s": each.at_s, "what": each.what} for each in self.moments]
