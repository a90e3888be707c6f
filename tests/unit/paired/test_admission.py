"""What an entity would refuse, as far as it is known."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from twinbus.classifier import Verdict, classify
from twinbus.paired.admission import Admission, TierLimits
from twinbus.paired.outgoing import IdentifyingTransport, Outgoing, OutgoingBatch, outgoing
from twinbus.paired.ping import ping_message

NO_SESSION = ServiceBusError(
    "The SessionId was not set on a message, and it cannot be sent to the entity.",
    condition=b"amqp:not-allowed",
)


def ready(message: Any) -> Outgoing | OutgoingBatch:
    made = outgoing(message, IdentifyingTransport, {})
    assert made is not None
    return made


def sized(encoded_bytes: int) -> Outgoing | OutgoingBatch:
    """A message of so many bytes on the wire."""
    empty = len(ready(ServiceBusMessage(bytes(1_000), message_id="1")).encoded()[0]) - 1_000
    made = ready(ServiceBusMessage(bytes(encoded_bytes - empty), message_id="1"))
    assert len(made.encoded()[0]) == encoded_bytes
    return made


def test_an_entity_that_was_never_seen_is_taken_to_be_of_the_standard_tier() -> None:
    admission = Admission(TierLimits())
    admission.check("orders", sized(262_144))
    with pytest.raises(MessageSizeExceededError, match=r"'orders' has 262145.*limit is 262144"):
        admission.check("orders", sized(262_145))


def test_the_limit_is_the_one_last_seen_on_the_entitys_link() -> None:
    admission = Admission(TierLimits())
    admission.announced(1_048_576, 1_048_576)
    admission.check("orders", sized(1_000_000))
    admission.announced(300_000, 262_144)
    admission.check("orders", sized(300_000))
    with pytest.raises(MessageSizeExceededError):
        admission.check("orders", sized(300_001))


def test_an_unseen_entity_has_the_limit_of_its_namespaces_tier() -> None:
    """The smallest: one of them may have been allowed more."""
    tier = TierLimits()
    Admission(tier).announced(1_048_576, 1_048_576)
    Admission(tier).announced(104_857_600, 1_048_576)
    admission = Admission(tier)
    admission.check("orders", sized(1_048_576))
    with pytest.raises(MessageSizeExceededError):
        admission.check("orders", sized(1_048_577))


def test_a_list_is_refused_in_the_sdks_words() -> None:
    admission = Admission(TierLimits())
    hundred = [ServiceBusMessage(bytes(100_000)) for _ in range(3)]
    admission.check("orders", ready(hundred[:2]))
    with pytest.raises(MessageSizeExceededError, match="Batch has reached its size limit: 262144"):
        admission.check("orders", ready(hundred))


@pytest.mark.parametrize("key", [1, None])
def test_what_no_broker_can_read_is_refused(key: Any) -> None:
    odd = ready(ServiceBusMessage("x", application_properties={key: "a"}))
    with pytest.raises(ServiceBusError, match=r"'orders' cannot be read.*argument-error") as caught:
        Admission(TierLimits()).check("orders", odd)
    assert type(caught.value) is ServiceBusError
    assert classify(caught.value) is Verdict.RAISE


@pytest.mark.parametrize("name", ["message_id", "group_id"])
def test_an_id_that_is_too_long_is_refused(name: str) -> None:
    admission = Admission(TierLimits())
    admission.check(
        "orders", ready(AmqpAnnotatedMessage(data_body=b"", properties={name: "x" * 128}))
    )
    long = ready(AmqpAnnotatedMessage(data_body=b"", properties={name: "x" * 129}))
    with pytest.raises(ServiceBusError, match=r"at most 128.*argument-error") as caught:
        admission.check("orders", long)
    assert classify(caught.value) is Verdict.RAISE


def test_a_message_that_would_be_taken_for_a_ping_is_refused() -> None:
    with pytest.raises(ServiceBusError, match="content type of pings") as caught:
        Admission(TierLimits()).check("orders", ready([ServiceBusMessage("x"), ping_message()]))
    assert classify(caught.value) is Verdict.RAISE


def test_an_entity_that_once_asked_for_a_session_id_is_not_sent_a_message_without() -> None:
    admission = Admission(TierLimits())
    without, with_one = ready({"body": "x"}), ready({"body": "x", "session_id": "s"})
    admission.check("visits", without)
    admission.refused(without, NO_SESSION)
    admission.check("visits", with_one)
    with pytest.raises(ServiceBusError, match=r"'visits' requires sessions.*not-allowed") as caught:
        admission.check("visits", without)
    assert classify(caught.value) is Verdict.RAISE
    admission.took(with_one)
    assert admission.needs_session
    admission.took(without)
    admission.check("visits", without)


def test_another_refusal_or_of_a_message_with_a_session_says_nothing_about_sessions() -> None:
    admission = Admission(TierLimits())
    without, with_one = ready({"body": "x"}), ready({"body": "x", "session_id": "s"})
    admission.refused(with_one, NO_SESSION)
    admission.refused(without, ServiceBusError("no such session", condition=b"amqp:not-found"))
    admission.refused(without, ServiceBusError("no", condition=b"amqp:not-allowed"))
    assert not admission.needs_session
