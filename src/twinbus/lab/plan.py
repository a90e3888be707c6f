"""What goes wrong in a soak, and when: all of it chosen by a seed before it begins."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from twinbus.errors import TwinbusError

# What each kind of trouble befalls. Two at once never befall the same.
KINDS: Final = {
    "kill-primary": "primary",
    "kill-secondary": "secondary",
    "freeze-primary": "primary",
    "freeze-secondary": "secondary",
    "throttle-primary": "primary",
    "throttle-secondary": "secondary",
    "answers-lost": "primary",
    "node-restart": "primary",
    "disk-full-primary": "primary",
    "disk-full-secondary": "secondary",
    "slow-network": "network",
    "black-hole": "network",
    "half-open": "network",
    "cut-network": "network",
    "kill-driver": "syphon",
    "kill-worker": "syphon",
    "kill-sender": "sender",
    "freeze-sender": "sender",
}
# Time in seconds: from one trouble to the next, and how long one lasts.
GAP: Final = (1.0, 5.0)
LASTS: Final = (2.0, 12.0)
# A driver takes its time to be back, and killing it again before says nothing new.
SYPHON_LASTS: Final = (20.0, 30.0)
QUIET_FIRST_S: Final = 5.0


class PlanError(TwinbusError):
    """No such trouble, or no time for any."""


@dataclass(frozen=True, slots=True)
class PlannedTrouble:
    """One thing that goes wrong for a while. ``choice`` picks among several that it may befall."""

    at_s: float
    kind: str
    lasts_s: float
    choice: float

    @property
    def target(self) -> str:
        return KINDS[self.kind]

    def __str__(self) -> str:
        return f"{self.kind} for {self.lasts_s:.1f} s"


def make_plan(
    seed: int, seconds: float, kinds: Sequence[str] = tuple(KINDS)
) -> list[PlannedTrouble]:
    """The same for the same seed, time and kinds. All is over at the end."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        named = f"'{unknown[0]}' is no trouble of a soak" if unknown else "no trouble is named"
        raise PlanError(f"{named}; there are {', '.join(KINDS)}")
    chance = random.Random(seed)  # noqa: S311  troubles, not secrets
    free_at = dict.fromkeys(KINDS.values(), 0.0)
    plan: list[PlannedTrouble] = []
    at_s = QUIET_FIRST_S
    while at_s < seconds:
        kind = chance.choice(list(kinds))
        target = KINDS[kind]
        between = SYPHON_LASTS if target == "syphon" else LASTS
        trouble = PlannedTrouble(
            round(at_s, 2), kind, round(chance.uniform(*between), 2), chance.random()
        )
        ends = trouble.at_s + trouble.lasts_s
        if free_at[target] <= at_s and ends <= seconds:
            plan.append(trouble)
            free_at[target] = ends + 1.0
        at_s += chance.uniform(*GAP)
    return plan
