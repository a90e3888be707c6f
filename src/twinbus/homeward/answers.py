"""What the SDK's errors mean to the way home: the one place where they are told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from uuid import UUID

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from twinbus.classifier import Verdict, classify
from twinbus.errors import first_line
from twinbus.homeward.carrier import BusyError, RefusedError, UnavailableError
from twinbus.homeward.times import Times

T = TypeVar("T")

# A settlement that gets no answer is tried again: its messages are home, and would go once more.
SETTLING_ATTEMPTS: Final = 4
SETTLING_PAUSE_S: Final = 0.5


def asked(act: Callable[[], T]) -> T:
    """Ask a destination. Raises one of the carrier's three errors."""
    try:
        return act()
    except ServiceBusError as error:
        raise _translation(error) from error
    except ValueError as error:  # the SDK can make no address of such a name
        raise RefusedError(first_line(error)) from error


def _translation(error: ServiceBusError) -> Exception:
    text = first_line(error)
    verdict = classify(error)
    if verdict is Verdict.WAIT:
        return BusyError(text)
    if isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError):
        return UnavailableError(text)  # a message waits until the key is put right
    if verdict is Verdict.RAISE or isinstance(error, MessageSizeExceededError):
        return RefusedError(text)
    return UnavailableError(text)


def settled(
    tokens: Sequence[UUID], settle: Callable[[Sequence[UUID]], list[UUID]], times: Times
) -> list[UUID]:
    """Settle. Answers those that could not be: their lock was lost, or the secondary is."""
    for attempt in range(SETTLING_ATTEMPTS):
        try:
            return settle(tokens)
        except ServiceBusError:
            if attempt + 1 < SETTLING_ATTEMPTS:
                times.sleep(SETTLING_PAUSE_S * 2**attempt)
    return list(tokens)
