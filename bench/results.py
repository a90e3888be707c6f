"""What a benchmark yields, and how it is kept: plain values, one JSON file a part.

A part yields `Figure`s, `Curve`s and `Note`s. They are saved one by one as they come, so that a
part that fails or runs out of time keeps what it had, and a page can be written again without
measuring again.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(".bench")


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing measured some times, and what others did in the same run."""

    name: str
    unit: str
    values: Sequence[float]
    how: str
    peers: Mapping[str, Sequence[float]] = field(default_factory=dict)
    more_is_better: bool = True
    goal: str = ""
    met: bool | None = None
    wall: str = ""  # what holds it back; shown where it is behind a peer or misses its goal

    def ratios(self, peer: str) -> list[float]:
        """Round by round, so that what else the machine did fell on both; above 1 we are ahead."""
        pairs = list(zip(self.values, self.peers[peer], strict=False))
        if self.more_is_better:
            return [ours / theirs for ours, theirs in pairs if theirs]
        return [theirs / ours for ours, theirs in pairs if ours]

    def ratio(self, peer: str) -> float:
        return statistics.median(self.ratios(peer) or [float("nan")])

    @property
    def is_behind(self) -> bool:
        return self.met is False or any(self.ratio(peer) < 1 for peer in self.peers)


class Due(StrEnum):
    """What a curve ought to look like."""

    FLAT = "flat"  # the cost does not depend on the size
    LINE = "line"  # a + b * size
    NONE = "none"  # neither


@dataclass(frozen=True, slots=True)
class Curve:
    """Something measured at several sizes or loads; each point some times."""

    name: str  # of the picture's file
    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, Sequence[float]]]]
    how: str
    due: Due = Due.NONE
    reason: str = ""  # why it is not what is due, where it is not
    log_y: bool = False
    log_x: bool = True


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph or a table of its own, in Markdown: a profile, mostly."""

    title: str
    text: str


Result = Figure | Curve | Note


class State(StrEnum):
    RUNNING = "running"  # or it was killed, and could not say so
    DONE = "done"  # all was measured
    FAILED = "failed"  # it raised
    LATE = "out of time"  # it was ended at its time limit


@dataclass(slots=True)
class Outcome:
    """A part's results, and how it went."""

    part: str
    command: str
    title: str = ""
    cut: str = ""  # what a full measurement would have had more of
    began: str = ""
    took_s: float = 0.0
    state: State = State.RUNNING
    error: str = ""
    figures: list[Figure] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def add(self, result: Result) -> None:
        if isinstance(result, Figure):
            self.figures.append(result)
        elif isinstance(result, Curve):
            self.curves.append(result)
        else:
            self.notes.append(result)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.part}.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self), indent=1))
        fresh.replace(path)


def load(path: Path) -> Outcome:
    values: dict[str, Any] = json.loads(path.read_text())
    values["state"] = State(values["state"])
    values["figures"] = [Figure(**each) for each in values["figures"]]
    values["curves"] = [Curve(**{**each, "due": Due(each["due"])}) for each in values["curves"]]
    values["notes"] = [Note(**each) for each in values["notes"]]
    return Outcome(**values)
