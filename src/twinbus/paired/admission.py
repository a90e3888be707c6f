"""What an entity takes, as far as it is known: what it would refuse is refused while it is out.

A diverted message that its entity will not take can never come home: it would be dead-lettered
there, or wait in the backlog for ever, after its sender was told that all is well. So a diverted
send is held to what the entity said while it was healthy: the limits on its link, and whether it
requires sessions. What it never said is taken to be as on the Standard tier.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from twinbus import envelope
from twinbus.client_errors import EnvelopeError
from twinbus.paired.outgoing import Outgoing, OutgoingBatch
from twinbus.paired.ping import CONTENT_TYPE

# Of a message id and of a session id.
MAX_ID: Final = 128
_NOT_ALLOWED: Final = "amqp:not-allowed"
_ARGUMENT: Final = "com.microsoft:argument-error"


class Limits(NamedTuple):
    """In bytes, as a link announces them."""

    message: int
    batch: int


STANDARD: Final = Limits(262_144, 262_144)


class TierLimits:
    """The smallest limits that any entity of a namespace announced: those of its tier."""

    __slots__ = ("limits",)

    def __init__(self) -> None:
        self.limits: Limits | None = None

    def note(self, limits: Limits) -> None:
        self.limits = limits if self.limits is None else min(self.limits, limits)


class Admission:
    """Of one entity. Never waits, asks nobody."""

    __slots__ = ("_limits", "_tier", "needs_session")

    def __init__(self, tier: TierLimits) -> None:
        self._tier = tier
        self._limits: Limits | None = None
        self.needs_session = False

    @property
    def limits(self) -> Limits:
        """The last that its link announced; else its namespace's, else the Standard tier's."""
        return self._limits or self._tier.limits or STANDARD

    def announced(self, message: int, batch: int) -> None:
        """A link to the entity was opened."""
        self._limits = Limits(message, batch)
        self._tier.note(self._limits)

    def refused(self, ready: Outgoing | OutgoingBatch, error: Exception) -> None:
        """The healthy entity did not take it, and said why."""
        if getattr(error, "_condition", None) == _NOT_ALLOWED and "session" in str(error).lower():
            self.needs_session = self.needs_session or _lacks_session(ready)

    def took(self, ready: Outgoing | OutgoingBatch) -> None:
        """The healthy entity took it. One that was made anew may need sessions no longer."""
        if self.needs_session:
            self.needs_session = not _lacks_session(ready)

    def check(self, path: str, ready: Outgoing | OutgoingBatch) -> None:
        """Raise what the healthy entity would, in the form in which the SDK would have it."""
        limits = self.limits
        if isinstance(ready, OutgoingBatch):
            ready.check_fits(limits.batch)
        for message in ready.encoded():
            self._check_one(path, message, limits.message)

    def _check_one(self, path: str, message: bytes, limit: int) -> None:
        if len(message) > limit:
            raise MessageSizeExceededError(
                message=f"The message for '{path}' has {len(message)} bytes; the limit is {limit}.",
                condition="amqp:link:message-size-exceeded",
            )
        try:
            properties = envelope.properties_of(message)
            # It will have to come home like this: whatever would keep it away is found out now.
            envelope.unwrap(envelope.wrap(message, path))
        except EnvelopeError as error:
            raise ServiceBusError(
                f"The message for '{path}' cannot be read: {error}", condition=_ARGUMENT
            ) from error
        for name in (properties.message_id, properties.session_id):
            if name is not None and len(str(name)) > MAX_ID:
                raise ServiceBusError(
                    f"A message id and a session id have at most {MAX_ID} characters each; the "
                    f"message for '{path}' has more.",
                    condition=_ARGUMENT,
                )
        if properties.content_type == CONTENT_TYPE:
            raise ServiceBusError(
                f"'{CONTENT_TYPE}' is the content type of pings, which are never delivered: the "
                f"message for '{path}' would be lost. Give it another.",
                condition=_NOT_ALLOWED,
            )
        if self.needs_session and properties.session_id is None:
            raise ServiceBusError(
                f"'{path}' requires sessions: set a session id on the message.",
                condition=_NOT_ALLOWED,
            )


def _lacks_session(ready: Outgoing | OutgoingBatch) -> bool:
    return any(envelope.properties_of(each).session_id is None for each in ready.encoded())
