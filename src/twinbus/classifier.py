"""What a failed send means: is it the entity's fault, the caller's, or a matter of waiting?

Timeouts, broken connections and entities that cannot take messages count towards failover. Bad
credentials do not: they say that the client is set up wrongly, and would fail on the secondary for
the same reason. A busy server asks for ten seconds, not for another server. What is wrong with the
message itself is the caller's to put right.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from twinbus.errors import TwinbusError


class Verdict(Enum):
    COUNT = "count"  # towards failover
    WAIT = "wait"  # then send again
    RAISE = "raise"  # the caller's


Classifier = Callable[[Exception], Verdict]

_COUNT = (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusCommunicationError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusQuotaExceededError,
    OSError,  # TimeoutError is one
)
_RAISE = (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    MessageSizeExceededError,
    TwinbusError,
)
# Conditions of errors that have no class of their own, and that a message or a caller provoked.
_CALLERS_CONDITIONS = (
    "amqp:not-allowed",
    "amqp:not-implemented",
    "amqp:invalid-field",
    "amqp:decode-error",
    "amqp:precondition-failed",
    "com.microsoft:argument-error",
    "com.microsoft:argument-out-of-range",
)


def classify(error: Exception) -> Verdict:
    """The default. Give a function of your own to the options to decide otherwise."""
    if isinstance(error, ServiceBusServerBusyError):
        return Verdict.WAIT
    if isinstance(error, _RAISE):
        return Verdict.RAISE
    if isinstance(error, _COUNT):
        return Verdict.COUNT
    if isinstance(error, ServiceBusError):
        condition = str(getattr(error, "_condition", "") or "")
        return Verdict.RAISE if condition in _CALLERS_CONDITIONS else Verdict.COUNT
    return Verdict.RAISE


class Judge:
    """Asks a classifier once of each error, however many want to know what it said."""

    __slots__ = ("_classifier", "_last")

    def __init__(self, classifier: Classifier = classify) -> None:
        self._classifier = classifier
        self._last: tuple[Exception, Verdict] | None = None

    def of(self, error: Exception) -> Verdict:
        last = self._last
        if last is None or last[0] is not error:
            last = self._last = (error, self._classifier(error))
        return last[1]
