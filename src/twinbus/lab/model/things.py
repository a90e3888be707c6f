"""What there is in Service Bus: messages in boxes, who holds and receives them, and entities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2
DEAD, TRANSFER = "/$deadletterqueue", "/$transfer/$deadletterqueue"
NOTHING = "amqp:not-found"
LOST = "com.microsoft:message-lock-lost"
SESSION_LOST = "com.microsoft:session-lock-lost"
TAKEN = "com.microsoft:session-cannot-be-locked"
MISSING = "com.microsoft:message-not-found"
NOT_ALLOWED = "amqp:not-allowed"
BAD = "com.microsoft:argument-error"
DISABLED = "com.microsoft:entity-disabled"
EXISTS = "com.microsoft:entity-already-exists"
FULL = "amqp:resource-limit-exceeded"


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """What Service Bus says no to, by AMQP's name for why. Nothing has changed."""


class Wrong(Exception):  # noqa: N818 - the finding itself
    """The real one did what must not be."""


class Unanswered(Wrong):
    """Nothing has come yet."""


class NotReady(Wrong):
    """A delivery of what could not be delivered."""


@dataclass(slots=True)
class IdealMessage:
    """One message in one place. Times are milliseconds."""

    tag: str  # in its body: which of all messages that were sent it is
    message_id: str | None  # None if the service gave it one
    session: str | None
    size: int
    ttl: int | None
    properties: dict[str, Any]
    enqueued: int
    mark: Any = None  # an annotation of the sender's own
    priority: int | None = None
    expires: int | None = None
    due: int | None = None
    number: int = 0
    state: int = ACTIVE
    count: int = 0  # deliveries that came to nothing
    origin: int | None = None  # the number that it had where it was first
    dead_source: str | None = None
    hops: int = 0
    lock: IdealLock | None = None

    def fresh(self) -> IdealMessage:
        """As it is sent: whoever takes it in keeps one of his own."""
        return replace(self, properties=dict(self.properties))

    def is_late(self, now: int) -> bool:
        return self.expires is not None and self.expires <= now


@dataclass(slots=True, eq=False)
class IdealLock:
    """The right to settle a message, which its receiver knows by a token."""

    box: Box
    message: IdealMessage
    until: int
    session: IdealSession | None


@dataclass(slots=True, eq=False)
class IdealReceiver:
    """Who receives from a box; in a box with sessions, from one session."""

    box: Box
    deletes: bool
    credit: int = 0
    session: IdealSession | None = None


@dataclass(slots=True, eq=False)
class IdealSession:
    id: str
    until: int
    receiver: IdealReceiver


@dataclass(slots=True, eq=False)
class Box:
    """What can be received from: a queue, a subscription, or what is dead of one."""

    path: str
    owner: IdealEntity
    messages: dict[int, IdealMessage] = field(default_factory=dict)
    last: int = 0
    kept: int = 0  # the last number that reached the disk
    receivers: list[IdealReceiver] = field(default_factory=list)
    sessions: dict[str, IdealSession] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)
    waiting: int = 0  # those who want any session that comes free

    @property
    def has_sessions(self) -> bool:
        return self is self.owner.box and self.owner.requires_session

    def next(self) -> int:
        """A number that no message here had."""
        self.last += 1
        self.kept = self.last
        return self.last

    def take(self, message: IdealMessage) -> IdealMessage:
        """Give it the next number."""
        message.number = self.next()
        self.messages[message.number] = message
        return message

    def ready(self, session: str | None = None) -> Iterator[IdealMessage]:
        """Who is next, and who after that."""
        for number in sorted(self.messages):
            each = self.messages[number]
            mine = not self.has_sessions or each.session == session
            if each.state == ACTIVE and each.lock is None and mine:
                yield each

    def count(self, state: int) -> int:
        return sum(each.state == state for each in self.messages.values())

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.messages.values())


@dataclass(slots=True)
class IdealRule:
    """A filter as a function and, if there is an action, what it sets and removes."""

    matches: Callable[[IdealMessage], bool]
    sets: dict[str, Any] | None = None
    removes: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class IdealEntity:
    """A queue, a topic or a subscription, as it was described."""

    path: str
    kind: str
    status: str = "Active"
    requires_session: bool = False
    lock_ms: int = 60_000
    max_deliveries: int = 10
    ttl: int | None = None
    dead_letters_expired: bool = False
    forward_to: str | None = None
    forward_dead_to: str | None = None
    window_ms: int | None = None  # of duplicate detection, if there is any
    max_bytes: int = 1 << 30
    rules: dict[str, IdealRule] = field(default_factory=dict)
    subscriptions: list[str] = field(default_factory=list)
    box: Box = field(init=False)
    dead: Box = field(init=False)
    transfer: Box = field(init=False)
    seen: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.box = Box(self.path, self)
        self.dead = Box(self.path + DEAD, self)
        self.transfer = Box(self.path + TRANSFER, self)

    @property
    def boxes(self) -> tuple[Box, Box, Box]:
        return self.box, self.dead, self.transfer

    @property
    def may_send(self) -> bool:
        return self.kind != "subscription" and self.status in ("Active", "ReceiveDisabled")

    @property
    def may_receive(self) -> bool:
        return self.status in ("Active", "SendDisabled")
