"""The faults a namespace can be told to have: which kinds there are, and which are on.

Pure: told the time, knowing nothing of sockets or links. `trouble` asks here what to do, and does
it. A fault ends by itself; none survives a restart.

Throttling, and partitions. A partitioned entity is sixteen fragments, each on a node of its own,
which is throttled by itself. A message's fragment comes from its session id, else its partition
key, else its message id. What throttles the entity throttles a quarter of its fragments, which ones
by the fault's number, each with credits of its own; the others have no limit. What belongs to no
message (a link, a receive, a request) finds a fragment that is well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any
from zlib import crc32

from twinbus.broker.refusals import BUSY, ArgumentError, TroubledError

MIN_S, MAX_S = 0.1, 86_400.0
DEFAULT_S = 60.0
FRAGMENTS = 16
THROTTLED = 4  # of an entity's fragments
# Where an act is done: on a fragment, on any of them, or (None) on an entity that is of one piece.
Fragment = int | None
ANY_FRAGMENT = -1
MAX_FAULTS = 1_000


class Act(Enum):
    SEND = auto()  # a message in, or a link for that
    RECEIVE = auto()  # a message out, a look at one, or a link for that
    MANAGE = auto()  # entities and rules: create, retrieve, update, delete


EVERY_ACT = frozenset(Act)
CONDITIONS = (
    "amqp:internal-error",
    "amqp:not-found",
    "amqp:resource-limit-exceeded",
    "amqp:unauthorized-access",
    "com.microsoft:entity-disabled",
    "com.microsoft:timeout",
    BUSY,
)


@dataclass(frozen=True)
class Range:
    """What a setting may be: a number of seconds, or of credits a second."""

    default: float
    low: float
    high: float

    def check(self, name: str, value: Any) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not self.low <= value <= self.high:
            raise ArgumentError(
                f"{name} is {value!r}; use a number from {self.low:g} to {self.high:g}"
            )
        return float(value)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Choice:
    """What a setting may be: one of these words, of which the first is the default."""

    words: tuple[str, ...]

    @property
    def default(self) -> str:
        return self.words[0]

    def check(self, name: str, value: Any) -> str:
        if value not in self.words:
            raise ArgumentError(f"{name} is {value!r}; use one of {', '.join(self.words)}")
        return str(value)

    def __str__(self) -> str:
        return " | ".join(self.words)


@dataclass(frozen=True)
class Kind:
    """One way to be in trouble."""

    name: str
    text: str
    refuses: frozenset[Act] = frozenset()
    condition: str = ""
    per_entity: bool = True
    settings: Mapping[str, Range | Choice] = field(default_factory=dict)


_REFUSED = {"condition": Choice(CONDITIONS)}
KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "throttling",
            "Requests over `rate` credits a second are told that the server is busy; 0: all are.",
            EVERY_ACT,
            BUSY,
            settings={"rate": Range(0, 0, 1_000_000)},
        ),
        Kind(
            "sends-refused",
            "No message can be sent: links and messages are refused with `condition`.",
            frozenset({Act.SEND}),
            settings=_REFUSED,
        ),
        Kind(
            "receives-refused",
            "No message can be received: links are ended and refused with `condition`.",
            frozenset({Act.RECEIVE}),
            settings=_REFUSED,
        ),
        Kind(
            "management-refused",
            "Entities and rules cannot be created, retrieved, updated or deleted.",
            frozenset({Act.MANAGE}),
            "amqp:internal-error",
        ),
        Kind(
            "unreachable",
            "Nobody gets through: links, or a namespace's connections, are ended and refused.",
            EVERY_ACT,
            "amqp:link:detach-forced",
        ),
        Kind("no-answer", "Nothing is done and nothing is said, so that operations time out."),
        Kind("answers-lost", "Everything is done, and committed, but the answer never comes."),
        Kind(
            "slow-store",
            "Each commit takes `delay_s` longer.",
            per_entity=False,
            settings={"delay_s": Range(1, 0.001, 60)},
        ),
        Kind("failing-store", "Each commit fails, so that nothing is stored.", per_entity=False),
        Kind(
            "node-restart",
            "The node behind it restarts: links are ended, locks are lost, new links time out.",
            EVERY_ACT,
            "com.microsoft:timeout",
        ),
        Kind(
            "store-and-forward",
            "Messages are accepted, and appear `delay_s` later: at most 15 minutes, says Azure.",
            settings={"delay_s": Range(900, 0.1, 900)},
        ),
        Kind(
            "connections-cut",
            "Connections break without a word, now and every `every_s`.",
            settings={"every_s": Range(1, 0.25, 3_600)},
        ),
        Kind(
            "namespace-gone",
            "Its port is closed. It comes back with everything that was in it.",
            frozenset({Act.MANAGE}),
            "amqp:connection:forced",
            per_entity=False,
        ),
    )
}


@dataclass(slots=True, eq=False)
class ActiveFault:
    """One fault, from its start to its end."""

    id: int
    kind: Kind
    entity: str | None
    began_ms: int
    ends_ms: int
    settings: dict[str, Any]
    again_ms: int = 0  # when it strikes again, if it does that
    # What was left of each fragment's credits, and when that was.
    _credits: dict[Fragment, tuple[float, int]] = field(default_factory=dict)

    def covers(self, path: str) -> bool:
        """Whether it concerns this path: its entity, or what lies in it."""
        if self.entity is None:
            return True
        wanted, path = self.entity.lower(), path.lower()
        # Another entity's path may begin with this one's and a slash.
        return path == wanted or path.startswith((f"{wanted}/$", f"{wanted}/subscriptions"))

    def refuses(self, act: Act, cost: int, now_ms: int, fragment: Fragment = None) -> bool:
        if act not in self.kind.refuses:
            return False
        if self.kind.condition != BUSY:
            return True
        return self.throttles(fragment) and not self._spend(cost, now_ms, fragment)

    def throttles(self, fragment: Fragment) -> bool:
        """Whether what is done there counts. An entity of one piece is throttled as a whole."""
        if fragment is None:
            return True
        return fragment != ANY_FRAGMENT and (fragment - self.id) % FRAGMENTS < THROTTLED

    def _spend(self, cost: int, now_ms: int, fragment: Fragment) -> bool:
        """Take credits, if there are as many. They come back by the second and are not saved up."""
        rate = float(self.settings["rate"])
        left, since_ms = self._credits.get(fragment, (0.0, now_ms - 1_000))
        left = min(rate, left + rate * (now_ms - since_ms) / 1_000)
        enough = left >= cost
        self._credits[fragment] = (left - cost if enough else left, now_ms)
        return enough

    def error(self, path: str) -> TroubledError:
        condition = self.settings.get("condition") or self.kind.condition
        text = f"'{path}' is in trouble: a fault '{self.kind.name}' was started. Clear it, or wait."
        if condition == BUSY:
            text = (
                "The request was terminated because the entity is being throttled. "
                f"Error code: 50009. Please wait 2 seconds and try again. Fault: '{path}'."
            )
        return TroubledError(text, condition)

    def as_json(self, now_ms: int) -> dict[str, Any]:
        return {
            "id": self.id,
            "kind": self.kind.name,
            "entity": self.entity,
            "seconds_left": round(max(0, self.ends_ms - now_ms) / 1_000, 3),
            "settings": self.settings,
        }


class Faults:
    """Those that are on."""

    def __init__(self) -> None:
        self._on: dict[int, ActiveFault] = {}
        self._next_id = 1

    def __bool__(self) -> bool:
        return bool(self._on)

    def __iter__(self) -> Iterator[ActiveFault]:
        return iter(list(self._on.values()))

    def start(
        self,
        kind: str,
        entity: str | None,
        seconds: Any,
        settings: Mapping[str, Any],
        now_ms: int,
    ) -> ActiveFault:
        """Raises ArgumentError, with nothing changed."""
        known = KINDS.get(kind)
        if known is None:
            raise ArgumentError(f"there is no fault '{kind}'; use one of {', '.join(KINDS)}")
        if entity is not None and not known.per_entity:
            raise ArgumentError(f"'{kind}' is a whole namespace's trouble; leave out the entity")
        lasting = Range(DEFAULT_S, MIN_S, MAX_S).check("seconds", seconds)
        if len(self._on) >= MAX_FAULTS:
            raise ArgumentError(f"there are {MAX_FAULTS} faults; clear some first")
        checked = _checked(known, settings)
        fault = ActiveFault(
            self._next_id, known, entity, now_ms, now_ms + int(lasting * 1_000), checked
        )
        self._on[fault.id] = fault
        self._next_id += 1
        return fault

    def clear(self, fault_id: int | None) -> list[ActiveFault]:
        """End one, or all of them. Raises ArgumentError."""
        if fault_id is None:
            cleared, self._on = list(self._on.values()), {}
            return cleared
        if fault_id not in self._on:
            raise ArgumentError(f"there is no fault {fault_id}; it may have ended by itself")
        return [self._on.pop(fault_id)]

    def expire(self, now_ms: int) -> list[ActiveFault]:
        """Take out those whose time is over."""
        over = [fault for fault in self._on.values() if fault.ends_ms <= now_ms]
        for fault in over:
            del self._on[fault.id]
        return over

    def find(self, kind: str, path: str) -> ActiveFault | None:
        return next((f for f in self._on.values() if f.kind.name == kind and f.covers(path)), None)

    def refusal(
        self, act: Act, path: str, cost: int, now_ms: int, fragment: Fragment = None
    ) -> TroubledError | None:
        """Why this is not done, if it is not. A link costs nothing, a message 1."""
        for fault in self._on.values():
            if fault.covers(path) and fault.refuses(act, cost, now_ms, fragment):
                return fault.error(path)
        return None


def fragment_of(session: Any, partition_key: Any, message_id: Any) -> int:
    """Where a partitioned entity keeps a message: what belongs together lies together."""
    keys = (key for key in (session, partition_key, message_id) if key is not None)
    key = next(keys, "")
    return crc32(key if isinstance(key, bytes) else str(key).encode(errors="replace")) % FRAGMENTS


def _checked(kind: Kind, settings: Mapping[str, Any]) -> dict[str, Any]:
    for name in settings:
        if name not in kind.settings:
            taken = ", ".join(kind.settings) or "none"
            raise ArgumentError(f"'{kind.name}' has no setting '{name}'; it takes {taken}")
    return {
        name: allowed.check(name, settings.get(name, allowed.default))
        for name, allowed in kind.settings.items()
    }
