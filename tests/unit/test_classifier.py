"""Which failures count, which wait, which are the caller's."""

from __future__ import annotations

import pytest
from azure.servicebus import exceptions as sdk

from twinbus.classifier import Judge, Verdict, classify
from twinbus.client_errors import PairingError


@pytest.mark.parametrize(
    "error",
    [
        sdk.OperationTimeoutError(),
        TimeoutError(),
        sdk.ServiceBusConnectionError(),
        sdk.ServiceBusCommunicationError(),
        sdk.MessagingEntityDisabledError(),
        sdk.MessagingEntityNotFoundError(),
        sdk.ServiceBusQuotaExceededError(),
        ConnectionResetError(),
        sdk.ServiceBusError("Handler failed: something in the library"),
        sdk.ServiceBusError("broken", condition=b"amqp:internal-error"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_timeout_or_a_failure_that_does_not_pass_by_itself_counts(error: Exception) -> None:
    assert classify(error) is Verdict.COUNT


@pytest.mark.parametrize(
    "error",
    [sdk.ServiceBusAuthenticationError(), sdk.ServiceBusAuthorizationError()],
    ids=lambda error: type(error).__name__,
)
def test_unauthorized_does_not_cause_failover(error: Exception) -> None:
    assert classify(error) is Verdict.RAISE


def test_server_busy_does_not_cause_failover() -> None:
    assert classify(sdk.ServiceBusServerBusyError()) is Verdict.WAIT


@pytest.mark.parametrize(
    "error",
    [
        sdk.MessageSizeExceededError(),
        ValueError("no such thing"),
        TypeError("not a message"),
        PairingError("ours"),
        sdk.ServiceBusError("no", condition=b"com.microsoft:argument-error"),
        sdk.ServiceBusError("no", condition=b"amqp:not-allowed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_wrong_with_the_message_is_the_callers(error: Exception) -> None:
    assert classify(error) is Verdict.RAISE


def test_a_judge_asks_once_of_each_error_and_again_of_the_next() -> None:
    asked: list[Exception] = []

    def classifier(error: Exception) -> Verdict:
        asked.append(error)
        return Verdict.RAISE if isinstance(error, ValueError) else Verdict.COUNT

    judge, first, second = Judge(classifier), ValueError(), KeyError()
    assert [judge.of(each) for each in (first, first, second)] == [
        *(Verdict.RAISE, Verdict.RAISE),
        Verdict.COUNT,
    ]
    assert asked == [first, second]
