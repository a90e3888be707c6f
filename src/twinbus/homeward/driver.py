"""The syphon's driver: a round, and a pause when nothing moves.

    round:   wait for locks that are about to end --> orders --> the workers carry --> learn
    glance:  wait --> is one that was down back? has a message come that no round has seen?

Rounds follow one another as long as something moves. When nothing does, glances follow, and nothing
is received, until a destination is back, something new has come, or the pause is over.

Whom it asks, and its clocks, are its world's: Spark and the SDK, or a simulator. A step asks first
and learns last, so one that is cut short while it asks has changed nothing and can be made again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from twinbus.homeward.carrier import UnavailableError
from twinbus.homeward.rounds import LEFT, Destinations, Orders, Tally
from twinbus.homeward.times import Times

# A round in which nothing moved is followed by a pause of at most this long, in which destinations
# that are down are asked whether they are back. It also ends when a new message comes, which may be
# for a destination that is well.
PAUSE_S: Final = 30.0
GLANCE_S: Final = 1.0
LOCKED_S: Final = 2.0


class DriverWorld(Times, Protocol):
    """Where a driver lives."""

    def carry(self, orders: Orders) -> list[Tally]:
        """The workers' part of a round."""

    def limit(self, destination: str) -> int:
        """As a ``Post`` has it: an answer of any kind shows that the destination is there."""

    def has_after(self, queue: str, number: int) -> bool:
        """Whether a queue has a message behind a sequence number, locked or not."""


@dataclass(frozen=True, slots=True)
class Round:
    """What came of one."""

    tallies: list[Tally]
    took_s: float

    @property
    def moved(self) -> bool:
        return any(each.outcome not in LEFT for each in self.tallies)


class Driver:
    """One syphon's, for as long as it lives."""

    def __init__(self, destinations: Destinations, queues: Iterable[str]) -> None:
        self._destinations = destinations
        self._highest = dict.fromkeys(queues, 0)  # the last sequence number that a round has seen
        self._pause_ends = 0.0  # 0 if there is no pause

    @property
    def is_pausing(self) -> bool:
        """Whether a glance is next, and not a round."""
        return self._pause_ends > 0

    def round(self, world: DriverWorld) -> Round:
        known = self._destinations
        wait_s = known.wait_s(_now(world))
        if wait_s:
            world.sleep(wait_s)
        began = world.elapsed_s()
        tallies = world.carry(known.orders(_now(world)))
        made = Round(tallies, world.elapsed_s() - began)
        for each in tallies:
            self._highest[each.queue] = max(each.highest, self._highest.get(each.queue, 0))
        known.learn(tallies, _now(world), made.took_s)
        pauses = tallies and not known.goes_on(tallies)
        self._pause_ends = _now(world) + PAUSE_S if pauses else 0.0
        return made

    def glance(self, world: DriverWorld) -> None:
        """See whether the pause is over: whether those that are down are back, or something new
        is there."""
        known, now = self._destinations, _now(world)
        due = known.next_try(now)
        if due is None:
            # Nobody is down; messages wait for others before them, whose locks must end.
            world.sleep(LOCKED_S)
            self._pause_ends = 0.0
            return
        world.sleep(min(due - now, GLANCE_S))
        down = known.due(_now(world))
        away = [(name, _now(world)) for name in down if not _is_back(world, name)]
        is_over = len(away) < len(down) or self._has_new(world)
        for name, when in away:
            known.failed(name, when)
        if is_over or _now(world) >= self._pause_ends:
            self._pause_ends = 0.0

    def _has_new(self, world: DriverWorld) -> bool:
        """Whether a message has come that no round has seen yet."""
        try:
            return any(world.has_after(*each) for each in self._highest.items())
        except Exception:  # noqa: BLE001  whatever it is, the next round will meet it
            return False


def _is_back(world: DriverWorld, destination: str) -> bool:
    try:
        world.limit(destination)
    except UnavailableError:
        return False
    except Exception:  # noqa: BLE001  it answers; what it says, the next round will hear
        return True
    return True


def _now(world: DriverWorld) -> float:
    return world.now_ms() / 1000
