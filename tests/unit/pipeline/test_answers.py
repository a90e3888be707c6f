"""What the SDK's errors mean to the way home."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from tests.unit.pipeline.backlogs import Backlog

from twinbus.homeward.answers import SETTLING_ATTEMPTS, asked, settled
from twinbus.homeward.carrier import BusyError, RefusedError, UnavailableError

MEANINGS: list[tuple[Exception, type[Exception]]] = [
    (ServiceBusServerBusyError(message="wait"), BusyError),
    (ServiceBusAuthenticationError(message="a key"), UnavailableError),
    (ServiceBusAuthorizationError(message="a right"), UnavailableError),
    (ServiceBusConnectionError(message="cut"), UnavailableError),
    (OperationTimeoutError(message="late"), UnavailableError),
    (MessagingEntityDisabledError(message="off"), UnavailableError),
    (MessagingEntityNotFoundError(message="none"), UnavailableError),
    (MessageSizeExceededError(message="too large"), RefusedError),
    (ServiceBusError("no", condition=b"amqp:not-allowed"), RefusedError),
    (ServiceBusError("who knows"), UnavailableError),
    (ValueError("no address"), RefusedError),
]


@pytest.mark.parametrize(("error", "meaning"), MEANINGS)
def test_an_error_is_one_of_three(error: Exception, meaning: type[Exception]) -> None:
    def act() -> None:
        raise error

    with pytest.raises(meaning) as told:
        asked(act)
    assert type(told.value) is meaning
    assert told.value.__cause__ is error
    assert "\n" not in str(told.value)


def test_an_answer_is_handed_on() -> None:
    assert asked(lambda: 7) == 7


@pytest.mark.parametrize("failures", range(SETTLING_ATTEMPTS + 1))
def test_a_settlement_without_an_answer_is_tried_again_for_a_while(failures: int) -> None:
    tokens, clock = [uuid4(), uuid4()], Backlog()
    left = [ServiceBusError("no answer")] * failures

    def settle(some: Sequence[UUID]) -> list[UUID]:
        if left:
            raise left.pop()
        return [some[0]]

    began = clock.now
    gave_up = failures == SETTLING_ATTEMPTS
    assert settled(tokens, settle, clock) == (tokens if gave_up else tokens[:1])
    pauses = [500, 1_000, 2_000][:failures]
    assert clock.now - began == sum(pauses)
