"""A round of the syphon: what the driver orders before it, and what the workers tell it after.

    driver    Destinations.orders(now) --> Orders --> the workers of this round
    workers   Carrier                  --> Tally  --> Destinations.learn(tallies, now)

All of it is values and arithmetic. The clock is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

# A destination that is down is tried again after this long, then twice as long, ...
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 30.0
# Service Bus asks its clients to wait so long when it has said that it is busy.
BUSY_S: Final = 10.0
# A message that was left behind is receivable again when its lock ends, by the broker's clock;
# ours may differ from it by this much.
SKEW_MS: Final = 2_000
# If locks of what was left behind are about to end, a round waits for that, so that those messages
# and what lies behind them go together.
HOLD_ENDS_S: Final = 5.0
# How a destination that was too busy is sent to: half as fast, then a little faster every round.
SLOWER, FASTER = 0.5, 1.25
SLOWEST: Final = 10.0
# A part whose others are missing counts as alone once rounds have seen it for this long, with never
# more than UNSEEN_S between two of them.
ALONE_S: Final = 120.0
UNSEEN_S: Final = 90.0
# A pace that has come up to this slows nothing down any more.
UNHURRIED: Final = 20_000.0


class Outcome(StrEnum):
    """What became of a message in a round."""

    MOVED = "moved"  # it is home, and gone from the backlog
    DUPLICATED = "duplicated"  # it is home, but could not be settled: it will be sent again
    DEAD = "dead-lettered"  # it can never be delivered
    BUSY = "busy"  # its destination asked us to wait
    FAILED = "failed"  # its destination did not take it
    SKIPPED = "skipped"  # it was not tried: its destination is left alone, or it is not its turn
    PARTIAL = "partial"  # it is a part of a message whose other parts were not there


LEFT: Final = frozenset((Outcome.BUSY, Outcome.FAILED, Outcome.SKIPPED, Outcome.PARTIAL))


@dataclass(slots=True)
class Tally:
    """Messages of one queue for one destination that had one outcome."""

    queue: str
    destination: str
    outcome: Outcome
    messages: int = 0
    lowest: int = 0  # the lowest sequence number among them
    highest: int = 0
    until_ms: int = 0  # when the last of their locks ends; 0 if they were given back
    error: str | None = None
    part_of: str | None = None  # of PARTIAL: the message that they are parts of


@dataclass(frozen=True, slots=True)
class Hold:
    """Messages from ``number`` on wait until those left behind are receivable again."""

    number: int
    until_ms: int

    def keeps(self, number: int, received_ms: int) -> bool:
        return number > self.number and received_ms <= self.until_ms + SKEW_MS


@dataclass(frozen=True, slots=True)
class Orders:
    """What the workers of a round go by."""

    skip: frozenset[str] = frozenset()
    holds: Mapping[tuple[str, str], tuple[Hold, ...]] = field(default_factory=dict)
    paces: Mapping[str, float] = field(default_factory=dict)  # messages a second and worker
    pace: float | None = None  # of all destinations together
    deducts: bool = False  # whether time in the backlog counts against the time to live
    # Whether what could not be sent stays locked, so that the next round receives what lies behind
    # it. When nothing moves anyway it is given back, so that it can be received as soon as its
    # destination is back.
    keep: bool = False
    share: int | None = None  # how many rows of a queue a round takes at most
    alone: frozenset[str] = frozenset()  # messages some parts of which are not in the backlog


@dataclass(slots=True)
class _Destination:
    failures: int = 0
    retry_at: float = 0.0
    pace: float | None = None
    error: str | None = None


class Destinations:
    """What is known of each destination: who is down, since when, who is to be spared."""

    def __init__(
        self,
        workers: int = 1,
        rate: float | None = None,
        deducts: bool = False,
        share: int | None = None,
    ) -> None:
        """``share`` is how many messages of a queue a round takes at most."""
        self._share = share
        self._workers = workers
        self._rate = rate
        self._deducts = deducts
        self._known: dict[str, _Destination] = {}
        self._holds: dict[tuple[str, str], list[Hold]] = {}
        self._partial: dict[str, tuple[float, float]] = {}  # seen first, and last
        self._goes_on = False

    def orders(self, now: float) -> Orders:
        return Orders(
            skip=frozenset(self.resting(now)),
            holds={key: tuple(holds) for key, holds in self._holds.items()},
            paces={
                name: each.pace / self._workers
                for name, each in self._known.items()
                if each.pace is not None
            },
            pace=None if self._rate is None else self._rate / self._workers,
            deducts=self._deducts,
            keep=self._goes_on,
            share=self._share,
            alone=frozenset(
                group for group, (first, last) in self._partial.items() if last - first >= ALONE_S
            ),
        )

    def learn(self, tallies: Iterable[Tally], now: float, took_s: float) -> None:
        """Take in what a round came to."""
        tallies = list(tallies)
        self._goes_on = self.goes_on(tallies)
        for name in dict.fromkeys(each.destination for each in tallies):
            mine = [each for each in tallies if each.destination == name]
            self._learn(name, mine, now, took_s)
        self._hold(tallies, now)
        self._see_parts(tallies, now)

    def goes_on(self, tallies: Iterable[Tally]) -> bool:
        """Whether another round at once may move something: something went, or there may be others
        behind what did not."""
        tallies = list(tallies)
        if any(each.outcome not in LEFT for each in tallies):
            return True
        return bool(self._cut_short(tallies))

    def _cut_short(self, tallies: Iterable[Tally]) -> set[str]:
        """The queues that gave their whole share, so that there may be more behind."""
        seen: dict[str, int] = {}
        for each in tallies:
            seen[each.queue] = seen.get(each.queue, 0) + each.messages
        return {
            queue
            for queue, count in seen.items()
            if self._share is not None and count >= self._share
        }

    def wait_s(self, now: float) -> float:
        """How long the next round had better wait for locks that are about to end."""
        resting = set(self.resting(now))
        ends = (
            (hold.until_ms + SKEW_MS + 50) / 1000 - now
            for (_, destination), holds in self._holds.items()
            for hold in holds
            if destination not in resting
        )
        return max((each for each in ends if 0 < each <= HOLD_ENDS_S), default=0.0)

    def _learn(self, name: str, tallies: list[Tally], now: float, took_s: float) -> None:
        known = self._known.setdefault(name, _Destination())
        outcomes = {each.outcome for each in tallies}
        moved = sum(each.messages for each in tallies if each.outcome is Outcome.MOVED)
        if Outcome.BUSY in outcomes:
            known.retry_at = now + BUSY_S
            known.pace = max(SLOWEST, (known.pace or moved / max(took_s, 0.001)) * SLOWER)
        elif Outcome.FAILED in outcomes:
            self.failed(name, now)
        elif moved:
            self.answered(name)
            if known.pace is not None:
                faster = known.pace * FASTER
                known.pace = faster if faster < UNHURRIED else None
        known.error = next((each.error for each in tallies if each.error), known.error)

    def _see_parts(self, tallies: list[Tally], now: float) -> None:
        """A round that did not come to the end of a queue cannot say that a part is alone there."""
        cut_short = self._cut_short(tallies)
        seen = self._partial
        recent = {group: span for group, span in seen.items() if now - span[1] < UNSEEN_S}
        self._partial = recent
        for each in tallies:
            if each.part_of and each.queue not in cut_short:
                recent[each.part_of] = (recent.get(each.part_of, (now, now))[0], now)

    def _hold(self, tallies: Iterable[Tally], now: float) -> None:
        now_ms = int(now * 1000)
        for each in tallies:
            if each.outcome in LEFT and each.until_ms:
                key = (each.queue, each.destination)
                self._holds.setdefault(key, []).append(Hold(each.lowest, each.until_ms))
        for key, holds in list(self._holds.items()):
            self._holds[key] = [hold for hold in holds if now_ms <= hold.until_ms + SKEW_MS]
            if not self._holds[key]:
                del self._holds[key]

    def failed(self, name: str, now: float) -> None:
        """It was tried and did not answer: leave it alone for a while, longer every time."""
        known = self._known.setdefault(name, _Destination())
        known.failures += 1
        pause = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** (known.failures - 1))
        known.retry_at = now + pause

    def answered(self, name: str) -> None:
        """It is there."""
        known = self._known.setdefault(name, _Destination())
        known.failures, known.retry_at, known.error = 0, 0.0, None

    def resting(self, now: float) -> list[str]:
        """Who is left alone now."""
        return [name for name, each in self._known.items() if now < each.retry_at]

    def due(self, now: float) -> list[str]:
        """Who did not answer when last tried, and may be asked again."""
        resting = set(self.resting(now))
        return [name for name in self.down() if name not in resting]

    def down(self) -> dict[str, str]:
        """Who did not answer when last tried, and what was said."""
        return {name: each.error or "" for name, each in self._known.items() if each.failures}

    def next_try(self, now: float) -> float | None:
        """When the next of those that are left alone is due; None if nobody is."""
        times = [each.retry_at for each in self._known.values() if now < each.retry_at]
        return min(times, default=None)
