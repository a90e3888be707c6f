"""What an entity is told to be: the properties of queues, topics and subscriptions.

Values are checked on construction, so a description that exists is one that can be served. Each
knows how to become JSON, which is how the store keeps it.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

from twinbus.auth.access_rules import AccessRule, Claim
from twinbus.broker.refusals import DescriptionError

FOREVER = timedelta.max
MAX_PATH = 260
MAX_NAME = 50
MAX_METADATA = 1_024
MAX_INT = 2**31 - 1

_PATH = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._~/-]*[A-Za-z0-9._~-])?")
_NAME = re.compile(r"[A-Za-z0-9._$-]+")


class Status(StrEnum):
    ACTIVE = "Active"  # sends and receives
    DISABLED = "Disabled"  # neither
    SEND_DISABLED = "SendDisabled"  # receives only
    RECEIVE_DISABLED = "ReceiveDisabled"  # sends only

    @property
    def may_send(self) -> bool:
        return self in (Status.ACTIVE, Status.RECEIVE_DISABLED)

    @property
    def may_receive(self) -> bool:
        return self in (Status.ACTIVE, Status.SEND_DISABLED)


def check_path(path: str) -> None:
    """Raise unless this can be the path of a queue or topic."""
    if not path or len(path) > MAX_PATH:
        raise DescriptionError(
            f"an entity's path has 1 to {MAX_PATH} characters; this one has {len(path)}"
        )
    if not _PATH.fullmatch(path) or "//" in path:
        raise DescriptionError(
            f"'{path[:80]}' cannot be an entity's path: use letters, digits, '.', '-', '_', '~' "
            "and '/', with no '/' at either end"
        )


def check_name(name: str, what: str) -> None:
    """Raise unless this can be the name of a subscription or rule."""
    if not name or len(name) > MAX_NAME:
        raise DescriptionError(
            f"a {what}'s name has 1 to {MAX_NAME} characters; this one has {len(name)}"
        )
    if not _NAME.fullmatch(name):
        raise DescriptionError(
            f"'{name}' cannot be a {what}'s name: use letters, digits, '.', '-', '_' and '$'"
        )


def _check_between(
    value: timedelta, low: timedelta, high: timedelta, what: str, unless_forever: bool = False
) -> None:
    if unless_forever and value >= FOREVER:
        return
    if not low <= value <= high:
        raise DescriptionError(f"{what} must be between {low} and {high}; it is {value}")


MINUTE = timedelta(minutes=1)
_MIN_IDLE = 5 * MINUTE


@dataclass(frozen=True, kw_only=True)
class _Common:
    """What queues, topics and subscriptions share."""

    _immutable: ClassVar[tuple[str, ...]] = ()

    default_ttl: timedelta = FOREVER
    auto_delete_on_idle: timedelta = FOREVER
    enable_batched_operations: bool = True
    status: Status = Status.ACTIVE
    user_metadata: str | None = None

    def __post_init__(self) -> None:
        _check_between(
            self.default_ttl, timedelta(milliseconds=1), FOREVER, "DefaultMessageTimeToLive", True
        )
        _check_between(self.auto_delete_on_idle, _MIN_IDLE, FOREVER, "AutoDeleteOnIdle", True)
        if self.user_metadata is not None and len(self.user_metadata) > MAX_METADATA:
            raise DescriptionError(
                f"UserMetadata has at most {MAX_METADATA} characters; "
                f"this has {len(self.user_metadata)}"
            )


@dataclass(frozen=True, kw_only=True)
class _Sized(_Common):
    """What queues and topics share besides."""

    max_size_mb: int = 1_024
    requires_duplicate_detection: bool = False
    duplicate_window: timedelta = 10 * MINUTE
    enable_partitioning: bool = False
    enable_express: bool = False
    access_rules: tuple[AccessRule, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        window = self.duplicate_window
        _check_between(
            window,
            timedelta(seconds=20),
            timedelta(days=7),
            "DuplicateDetectionHistoryTimeWindow",
        )
        if not 1 <= self.max_size_mb <= 81_920:
            raise DescriptionError(
                f"MaxSizeInMegabytes must be between 1 and 81920; it is {self.max_size_mb}"
            )
        if len(self.access_rules) > 12:
            raise DescriptionError("an entity has at most 12 authorization rules")
        if len({rule.name for rule in self.access_rules}) < len(self.access_rules):
            raise DescriptionError("two authorization rules of the entity have the same name")


@dataclass(frozen=True, kw_only=True)
class _Received(_Common):
    """What one can receive from: queues and subscriptions."""

    lock_duration: timedelta = MINUTE
    requires_session: bool = False
    dead_lettering_on_expiration: bool = False
    max_delivery_count: int = 10
    forward_to: str | None = None
    forward_dead_letters_to: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_between(self.lock_duration, timedelta(seconds=5), 5 * MINUTE, "LockDuration")
        if not 1 <= self.max_delivery_count <= MAX_INT:
            raise DescriptionError(
                f"MaxDeliveryCount must be between 1 and {MAX_INT}; it is {self.max_delivery_count}"
            )

    @property
    def targets(self) -> list[str]:
        """Where it forwards its messages, or its dead letters."""
        targets = (self.forward_to, self.forward_dead_letters_to)
        return [target for target in targets if target is not None]


@dataclass(frozen=True, kw_only=True)
class QueueDescription(_Received, _Sized):
    """A queue."""

    _immutable = ("enable_partitioning", "requires_session", "requires_duplicate_detection")


@dataclass(frozen=True, kw_only=True)
class TopicDescription(_Sized):
    """A topic."""

    support_ordering: bool = True

    _immutable = ("enable_partitioning", "requires_duplicate_detection")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.status is Status.RECEIVE_DISABLED:
            raise DescriptionError(f"a topic cannot have the status {self.status}")


@dataclass(frozen=True, kw_only=True)
class SubscriptionDescription(_Received):
    """A subscription of a topic."""

    dead_lettering_on_filter_errors: bool = True

    _immutable = ("requires_session",)


Description = QueueDescription | TopicDescription | SubscriptionDescription
D = TypeVar("D", bound=_Common)


def check_update(old: D, new: D) -> None:
    """Raise if an update would change what is fixed at creation."""
    for name in old._immutable:
        if getattr(old, name) != getattr(new, name):
            raise DescriptionError(
                f"{name} is fixed when the entity is created; delete it and create it anew"
            )


def to_json(description: Description) -> str:
    # Not asdict, which copies deeply what is never changed.
    values = {field.name: getattr(description, field.name) for field in fields(description)}
    for name, value in values.items():
        if isinstance(value, timedelta):
            values[name] = None if value >= FOREVER else value / timedelta(milliseconds=1)
    if "access_rules" in values:
        values["access_rules"] = [
            {**asdict(rule), "claims": sorted(rule.claims)} for rule in values["access_rules"]
        ]
    return json.dumps(values)


def from_json(kind: type[D], text: str) -> D:
    values: dict[str, Any] = json.loads(text)
    for field in fields(kind):
        value = values.get(field.name)
        if isinstance(field.default, timedelta) and field.name in values:
            values[field.name] = FOREVER if value is None else timedelta(milliseconds=value)
    values["status"] = Status(values["status"])
    if "access_rules" in values:
        values["access_rules"] = tuple(
            AccessRule(**{**rule, "claims": frozenset(map(Claim, rule["claims"]))})
            for rule in values["access_rules"]
        )
    return kind(**values)


def dead_letter_side(description: QueueDescription | SubscriptionDescription) -> QueueDescription:
    """How an entity's dead-letter queue behaves: no sessions, no expiry, no dead letters."""
    return replace(
        QueueDescription(),
        lock_duration=description.lock_duration,
        max_delivery_count=MAX_INT,
        max_size_mb=81_920,
    )
