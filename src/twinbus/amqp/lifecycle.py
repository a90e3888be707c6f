"""What a connection and a link go through, each as a table: which step leads where.

Only this file changes a state. A step that has no place in a state raises and leaves it as it was:
that is never the peer's doing, whose missteps are answered before they get here, but ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeVar


class Phase(Enum):
    HEADER = "header"  # waiting for the peer's protocol header
    SASL = "sasl"  # exchanging SASL frames
    OPENING = "opening"  # headers exchanged, the peer's open is awaited
    OPEN = "open"  # sessions, links and transfers
    CLOSED = "closed"  # a close went out or came in; nothing more is taken in


class PhaseStep(Enum):
    SASL_HEADER = "sasl header"  # the peer wants to say who it is
    SASL_DONE = "sasl outcome"  # and has; protocol headers follow, once more
    AMQP_HEADER = "amqp header"
    OPEN_CAME = "open came"
    OVER = "close"  # went out, to say goodbye or to say what is wrong


class LinkState(Enum):
    ATTACHING = "attaching"  # one side has sent its attach
    ATTACHED = "attached"  # both have
    DETACHING = "detaching"  # we sent our detach and wait for theirs
    DETACHED = "detached"  # over


class LinkStep(Enum):
    ATTACH_SENT = "attach sent"  # we accept what the peer asked for
    ATTACH_CAME = "attach came"  # the peer answers what we asked for
    DETACH_SENT = "detach sent"
    DETACH_CAME = "detach came"


class MisstepError(RuntimeError):
    """The table has no such step in this state: we have lost track."""


PHASES: Final[dict[Phase, dict[PhaseStep, Phase]]] = {
    Phase.HEADER: {
        PhaseStep.SASL_HEADER: Phase.SASL,
        PhaseStep.AMQP_HEADER: Phase.OPENING,
        PhaseStep.OVER: Phase.CLOSED,
    },
    Phase.SASL: {PhaseStep.SASL_DONE: Phase.HEADER, PhaseStep.OVER: Phase.CLOSED},
    Phase.OPENING: {PhaseStep.OPEN_CAME: Phase.OPEN, PhaseStep.OVER: Phase.CLOSED},
    Phase.OPEN: {PhaseStep.OVER: Phase.CLOSED},
    Phase.CLOSED: {},
}

# The answer to an attach of ours may come when we have already thought better of it.
LINK_STATES: Final[dict[LinkState, dict[LinkStep, LinkState]]] = {
    LinkState.ATTACHING: {
        LinkStep.ATTACH_SENT: LinkState.ATTACHED,
        LinkStep.ATTACH_CAME: LinkState.ATTACHED,
        LinkStep.DETACH_SENT: LinkState.DETACHING,
        LinkStep.DETACH_CAME: LinkState.DETACHED,
    },
    LinkState.ATTACHED: {
        LinkStep.DETACH_SENT: LinkState.DETACHING,
        LinkStep.DETACH_CAME: LinkState.DETACHED,
    },
    LinkState.DETACHING: {
        LinkStep.ATTACH_CAME: LinkState.DETACHING,
        LinkStep.DETACH_CAME: LinkState.DETACHED,
    },
    LinkState.DETACHED: {},
}

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


def _after(table: Mapping[S, Mapping[E, S]], state: S, step: E) -> S:
    after = table[state].get(step)
    if after is None:
        raise MisstepError(f"'{step.value}' has no place where it is {state.value}")
    return after


class ConnectionLife:
    """The part of a connection that knows how far it has come."""

    __slots__ = ("phase",)

    def __init__(self) -> None:
        self.phase = Phase.HEADER

    def follow(self, step: PhaseStep) -> None:
        self.phase = _after(PHASES, self.phase, step)


class LinkLife:
    """The part of a link that knows how far it has come."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = LinkState.ATTACHING

    def follow(self, step: LinkStep) -> None:
        self.state = _after(LINK_STATES, self.state, step)
