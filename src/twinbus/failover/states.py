"""The state of one entity: is it sent to, watched, or gone around?

Theory of operation. An entity (a queue or topic of the primary) is HEALTHY until a send to it
fails for a reason that counts. It is then SUSPECT for the failover interval: sends still go to it,
and one that succeeds makes it HEALTHY again. If the interval passes without a success it is
DIVERTED: sends go to the backlog, and pings to the entity, until one gets through.

    HEALTHY --failed--> SUSPECT --interval passed--> DIVERTED
       ^                   |                            |
       +----- succeeded ---+                            |
       +------------------- ping succeeded -------------+

``TRANSITIONS`` is all there is to it; only ``Failover`` follows it, and an event that is not in the
table raises and changes nothing. Time is an argument. With an interval of zero the first failure
diverts: SUSPECT is entered and left within one call.

Room is left for one more state. An ordered pairing would go from DIVERTED to a state of coming
home when a ping succeeds and stay there, still diverting, until nothing is left in the backlog.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    HEALTHY = "healthy"  # sends go to the primary
    SUSPECT = "suspect"  # sends go to the primary, and the failover interval runs
    DIVERTED = "diverted"  # sends go to the backlog, pings to the primary


class Event(Enum):
    FAILED = "failed"  # a send failed for a reason that counts
    SUCCEEDED = "succeeded"  # the primary took a message
    INTERVAL_PASSED = "interval passed"  # no success since the first failure, for long enough
    PING_FAILED = "ping failed"  # the entity is still out
    PING_SUCCEEDED = "ping succeeded"  # the entity takes messages again
    MARKED_HEALTHY = "marked healthy"  # an operator says so


class IllegalEventError(RuntimeError):
    """The table has no such event in this state: the caller has lost track."""


# A send that began before the entity was diverted may end after: its outcome changes nothing then,
# because only a ping that was sent while diverted says how the entity is now.
TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    State.HEALTHY: {
        Event.SUCCEEDED: State.HEALTHY,
        Event.FAILED: State.SUSPECT,
        Event.MARKED_HEALTHY: State.HEALTHY,
    },
    State.SUSPECT: {
        Event.SUCCEEDED: State.HEALTHY,
        Event.FAILED: State.SUSPECT,
        Event.INTERVAL_PASSED: State.DIVERTED,
        Event.MARKED_HEALTHY: State.HEALTHY,
    },
    State.DIVERTED: {
        Event.SUCCEEDED: State.DIVERTED,
        Event.FAILED: State.DIVERTED,
        Event.PING_FAILED: State.DIVERTED,
        Event.PING_SUCCEEDED: State.HEALTHY,
        Event.MARKED_HEALTHY: State.HEALTHY,
    },
}

_NEVER = float("-inf")


class Failover:
    """One entity's state. Every method takes the time in seconds and returns the states it entered,
    which is empty when nothing changed."""

    __slots__ = ("_interval_s", "_restored_at", "_suspect_at", "state")

    def __init__(self, interval_s: float) -> None:
        self.state = State.HEALTHY
        self._interval_s = interval_s
        self._suspect_at = _NEVER
        self._restored_at = _NEVER

    def failed(self, now: float, began: float) -> tuple[State, ...]:
        """A send that began at ``began`` failed. One that began before the entity was restored says
        nothing about how it is now."""
        if self.is_stale(began):
            return ()
        if self.state is State.HEALTHY:
            self._suspect_at = now
        return self._follow(Event.FAILED) + self.look(now)

    def succeeded(self) -> tuple[State, ...]:
        return self._follow(Event.SUCCEEDED)

    def look(self, now: float) -> tuple[State, ...]:
        """Let time have its effect."""
        if self.state is State.SUSPECT and now >= self.diverts_at:
            return self._follow(Event.INTERVAL_PASSED)
        return ()

    def ping_succeeded(self, now: float) -> tuple[State, ...]:
        return self._restored(Event.PING_SUCCEEDED, now)

    def ping_failed(self) -> tuple[State, ...]:
        return self._follow(Event.PING_FAILED)

    def mark_healthy(self, now: float) -> tuple[State, ...]:
        return self._restored(Event.MARKED_HEALTHY, now)

    def is_stale(self, began: float) -> bool:
        """Whether a send from ``began`` was under way when the entity was last restored."""
        return began < self._restored_at

    @property
    def diverts_at(self) -> float:
        """When the interval of a suspect ends."""
        return self._suspect_at + self._interval_s

    def _restored(self, event: Event, now: float) -> tuple[State, ...]:
        entered = self._follow(event)
        if entered:
            self._restored_at = now
        return entered

    def _follow(self, event: Event) -> tuple[State, ...]:
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise IllegalEventError(
                f"'{event.value}' cannot happen to an entity that is {self.state.value}"
            )
        if after is self.state:
            return ()
        self.state = after
        return (after,)
