"""What a seed means: how many of whom there are, how they work, and what goes wrong when."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from twinbus import envelope
from twinbus.lab.simulation.topology import DESTINATIONS, PRIMARY

# Faults begin in the first of these, and all have ended by the second.
TROUBLE_MS: Final = 45_000
HEALED_MS: Final = 110_000

# A large message goes through a small limit in several parts.
LARGE: Final = 8_000
SMALL: Final = 6_000
FULL: Final = 262_144


@dataclass(frozen=True)
class PlannedFault:
    """Something that goes wrong for a while."""

    kind: str
    target: str
    at_ms: int
    for_ms: int


GENTLE = (  # those that leave the secondary and its syphon alone
    "primary-crash",
    "primary-cut",
    "primary-answers-lost",
    "primary-commits-fail",
    "primary-slow",
    "entity-busy",
    "entity-disabled",
    "entity-not-found",
    "entity-changed",
)
ROUGH = (
    "secondary-crash",
    "secondary-cut",
    "secondary-answers-lost",
    "secondary-commits-fail",
    "secondary-slow",
    "queue-disabled",
    "queue-busy",
    "syphon-crash",
)


@dataclass(frozen=True)
class SeedPlan:
    """What a seed means."""

    orderly: bool
    queues: tuple[str, ...]
    interval_s: float
    ping_ms: int
    limit: int
    senders: int
    applications: int
    letters: int
    whims: float  # how likely a receiver is to do something else than complete
    retries: float  # how likely an application is to send again what failed
    syphons: int
    share: int
    bite: int
    workers: int
    deducts: bool
    skews_ms: tuple[int, int, int]
    crashes: float
    stalls: float
    faults: tuple[PlannedFault, ...]


def plan_of(rng: random.Random) -> SeedPlan:
    orderly = rng.random() < 0.5
    queues = tuple(envelope.queue_path(PRIMARY, n) for n in range(rng.choice((1, 2, 3))))
    limit = rng.choice((FULL, FULL, FULL, SMALL))
    skew = 800 if orderly else 5_000
    return SeedPlan(
        orderly=orderly,
        queues=queues,
        interval_s=rng.choice((0.0, 0.0, 2.0, 10.0)),
        ping_ms=rng.choice((3_000, 8_000, 15_000)),
        limit=limit,
        senders=rng.randint(2, 4),
        applications=rng.randint(1, 2),
        letters=rng.randint(4, 12),
        whims=rng.choice((0.0, 0.2, 0.5)),
        retries=rng.choice((0.0, 0.7)),
        syphons=1 if orderly else rng.choice((1, 1, 2)),
        # The syphon never takes less; only where nothing is in parts does less make a point.
        share=100 if limit == SMALL else rng.choice((3, 10, 5_000)),
        bite=rng.choice((2, 5, 500)),
        workers=rng.choice((1, 2)),
        deducts=rng.random() < 0.2,
        skews_ms=(rng.randint(-skew, skew), rng.randint(-skew, skew), rng.randint(-skew, skew)),
        crashes=0.0 if orderly else rng.choice((0.0, 0.3)),
        stalls=0.0 if orderly else rng.choice((0.0, 0.0, 0.3)),
        faults=tuple(_fault(rng, queues, orderly) for _ in range(rng.randint(2, 7))),
    )


def _fault(rng: random.Random, queues: tuple[str, ...], orderly: bool) -> PlannedFault:
    kind = rng.choice(GENTLE if orderly else GENTLE + ROUGH)
    target = ""
    if kind.startswith("entity"):
        target = rng.choice(DESTINATIONS)
    elif kind.startswith("queue"):
        target = rng.choice(queues)
    elif kind.endswith(("cut", "lost", "slow")):
        # One client's way, or everybody's.
        gentle = ("", "", "app0", "receiver")
        target = rng.choice(gentle if orderly else (*gentle, "syphon0"))
    return PlannedFault(kind, target, rng.randint(0, TROUBLE_MS), rng.randint(1_000, 60_000))
