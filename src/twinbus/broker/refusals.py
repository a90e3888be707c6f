"""What a client is told instead of getting what it asked for: a class a kind.

A refusal goes out in three ways and says the same in each: over AMQP its ``condition`` ends a link
or rejects a message, over ``$management`` its ``status`` and ``condition`` are the answer's, and
over HTTP its ``status`` is the response's. Which status goes with which condition is not ours to
choose: it is what Azure answers, and SDKs act on it.

The text is for a person. It says what happened, to which entity, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from twinbus.errors import TwinbusError

BUSY = "com.microsoft:server-busy"


class RefusalError(TwinbusError):
    """The root of all of them. Whatever was asked for, nothing was changed."""

    condition: str = "amqp:internal-error"
    status: int = 500
    headers: Mapping[str, str] = {}

    def told(self) -> str:
        """What the client reads."""
        return str(self)


class StoreError(RefusalError):
    """The disk refused. ``full`` tells whether room would help."""

    def __init__(self, text: str, *, full: bool = False) -> None:
        super().__init__(text)
        self.full = full
        if full:
            self.condition = "amqp:resource-limit-exceeded"
        self.status = 507 if full else 503

    def told(self) -> str:
        return f"{self}. Nothing was changed; try again."


class FormatError(StoreError):
    """The file is not ours, or of a version that this program does not know."""


class RequestError(RefusalError):
    """It cannot be done, because of what was asked or because of what is there."""


class EntityNotFoundError(RequestError):
    condition, status = "amqp:not-found", 404


class EntityExistsError(RequestError):
    condition, status = "com.microsoft:entity-already-exists", 409


class EntityDisabledError(RequestError):
    condition, status = "com.microsoft:entity-disabled", 400


class EntityChangedError(RequestError):
    """It is no longer what the client has read, and wants to change."""

    condition, status = "com.microsoft:precondition-failed", 412


class NotAllowedError(RequestError):
    """Not with an entity of this kind, or not the way it is described."""

    condition, status = "amqp:not-allowed", 400


class MethodError(NotAllowedError):
    """There is no such method of HTTP here; the header names those there are."""

    status = 405

    def __init__(self, text: str, allowed: str) -> None:
        super().__init__(text)
        self.headers = {"Allow": allowed}


class QuotaError(RequestError):
    condition, status = "amqp:resource-limit-exceeded", 403


class TooLargeError(RequestError):
    condition, status = "amqp:link:message-size-exceeded", 403


class BodyTooLargeError(TooLargeError):
    """Of a request over HTTP, whose connection ends, as the rest of the body is not read."""

    status = 413
    headers = {"Connection": "close"}  # noqa: RUF012 - as above


class ArgumentError(RequestError):
    """What was asked for makes no sense, whatever is there."""

    condition, status = "com.microsoft:argument-error", 400


class MessageError(ArgumentError):
    """The message itself cannot be taken, or the request."""


class DescriptionError(ArgumentError):
    """A description says something that no entity can be."""


class AtomError(ArgumentError):
    """The body is not the Atom entry it should be."""


class RuleError(ArgumentError):
    """A filter, an action or a rule that cannot be, or that clashes with another."""


class SqlError(ArgumentError):
    """Text that is not a filter or an action, and where it stops being one."""

    def __init__(self, message: str, text: str, position: int) -> None:
        line = text.count("\n", 0, position) + 1
        column = position - (text.rfind("\n", 0, position) + 1) + 1
        super().__init__(f"line {line}, column {column}: {message}")
        self.message = message
        self.position = position


class UnauthorizedError(RequestError):
    condition, status = "amqp:unauthorized-access", 401


class MessageNotFoundError(RequestError):
    condition, status = "com.microsoft:message-not-found", 404


class LockLostError(RequestError):
    condition, status = "com.microsoft:message-lock-lost", 410


class SessionLostError(RequestError):
    condition, status = "com.microsoft:session-lock-lost", 410


class SessionTakenError(RequestError):
    condition, status = "com.microsoft:session-cannot-be-locked", 410


class TimedOutError(RequestError):
    condition, status = "com.microsoft:timeout", 408


class IdleLinkError(RequestError):
    condition, status = "amqp:link:detach-forced", 503


class TroubledError(RequestError):
    """What a client is told while a fault is on, as if it had happened."""

    status = 503
    _statuses: ClassVar[Mapping[str, int]] = {
        BUSY: 429,
        **{
            kind.condition: kind.status
            for kind in (EntityNotFoundError, EntityDisabledError, QuotaError, UnauthorizedError)
        },
    }

    def __init__(self, text: str, condition: str) -> None:
        super().__init__(text)
        self.condition = condition
        self.status = self._statuses.get(condition, self.status)
