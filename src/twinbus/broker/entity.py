"""A queue, topic or subscription: what it is told to be, and the queues behind it."""

from __future__ import annotations

from dataclasses import dataclass, field

from twinbus.broker.descriptions import (
    FOREVER,
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.queue import Queue
from twinbus.broker.refusals import NotAllowedError
from twinbus.broker.rules import RuleIndex

DEAD_LETTERS = "$deadletterqueue"
TRANSFER_DEAD_LETTERS = "$transfer/$deadletterqueue"
SUBSCRIPTIONS = "Subscriptions"
# An entity has three numbers in the store: its own, its dead-letter queue's, and that of the
# messages it could not forward.
DEAD, TRANSFER, NUMBERS = 1, 2, 3

KINDS: dict[str, type[QueueDescription] | type[TopicDescription] | type[SubscriptionDescription]]
KINDS = {
    "queue": QueueDescription,
    "topic": TopicDescription,
    "subscription": SubscriptionDescription,
}


@dataclass(slots=True, eq=False)
class Topic:
    """What a topic has besides: its subscriptions and the index over their rules."""

    subscriptions: dict[str, Entity] = field(default_factory=dict)
    index: RuleIndex = field(default_factory=RuleIndex)
    created_ms: dict[tuple[str, str], int] = field(default_factory=dict)
    bytes: int = 0


@dataclass(slots=True, eq=False)
class Entity:
    """A queue, topic or subscription, with the queues behind it.

    A topic's own queue holds what is scheduled; the rest is with its subscriptions.
    """

    id: int
    kind: str
    path: str
    description: Description
    created_ms: int
    updated_ms: int
    accessed_ms: int
    queue: Queue
    dead_letters: Queue
    transfer_dead_letters: Queue
    parent: Entity | None = None
    topic: Topic | None = None
    deletions: int = 0  # asked for and not refused: its own, and its topic's

    # What every send asks, worked out once.
    may_send: bool = field(init=False)
    max_bytes: int = field(init=False)
    detects_duplicates: bool = field(init=False)
    needs_session: bool = field(init=False)
    is_plain: bool = field(init=False)  # a queue that stores messages just as they are sent

    def __post_init__(self) -> None:
        self.describe(self.description)
        for queue in self.queues:
            queue.entity = self

    def describe(self, description: Description) -> None:
        self.description = description
        sized = None if isinstance(description, SubscriptionDescription) else description
        self.may_send = sized is not None and sized.status.may_send
        self.max_bytes = sized.max_size_mb << 20 if sized else 0
        self.detects_duplicates = sized is not None and sized.requires_duplicate_detection
        self.needs_session = (
            isinstance(description, QueueDescription) and description.requires_session
        )
        self.is_plain = (
            isinstance(description, QueueDescription)
            and description.forward_to is None
            and not description.requires_session
            and description.default_ttl >= FOREVER
        )

    def close(self, deletions: int) -> None:
        """Another deletion is on its way to the disk or, if negative, was refused there.

        Nobody may add to it or take from it from the first on, or what they do would outlive it.
        """
        self.deletions += deletions
        for queue in self.queues:
            queue.closed = self.deleted

    @property
    def deleted(self) -> bool:
        return self.deletions > 0

    @property
    def bytes(self) -> int:
        """What its messages take, those of a topic's subscriptions included."""
        return self.topic.bytes if self.topic else self.queue.counts.bytes

    @property
    def queues(self) -> tuple[Queue, Queue, Queue]:
        return self.queue, self.dead_letters, self.transfer_dead_letters

    def is_idle(self, now_ms: int, since_ms: int) -> bool:
        """Whether nobody has used it for as long as it allows.

        ``since_ms`` is when this broker began: while there was none, nobody could use it.
        """
        if self.deleted or self.description.auto_delete_on_idle >= FOREVER:
            return False
        if self.queue.counts.scheduled or any(queue.in_use for queue in self.queues):
            self.accessed_ms = now_ms
        used_ms = max(self.accessed_ms, self.updated_ms, since_ms)
        return now_ms - used_ms >= self.description.auto_delete_on_idle.total_seconds() * 1000

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2] if self.parent else self.path

    @property
    def received(self) -> QueueDescription | SubscriptionDescription:
        """The description of something that can be received from."""
        if isinstance(self.description, TopicDescription):
            raise NotAllowedError(
                f"'{self.path}' is a topic; receive from one of its subscriptions."
            )
        return self.description

    @property
    def sized(self) -> QueueDescription | TopicDescription:
        """The description of something that can be sent to."""
        if isinstance(self.description, SubscriptionDescription):
            raise NotAllowedError(f"'{self.path}' is a subscription; send to its topic.")
        return self.description
