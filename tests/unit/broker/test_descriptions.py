"""What an entity can be told to be, and how that is kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.auth.access_rules import AccessRule, Claim
from twinbus.broker.descriptions import (
    FOREVER,
    Description,
    QueueDescription,
    Status,
    SubscriptionDescription,
    TopicDescription,
    check_name,
    check_path,
    check_update,
    dead_letter_side,
    from_json,
    to_json,
)
from twinbus.broker.refusals import DescriptionError

DAY = timedelta(days=1)
RULE = AccessRule("rule", "one", "two", frozenset({Claim.SEND, Claim.LISTEN}))


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"lock_duration": timedelta(seconds=4.999)}, "LockDuration"),
        ({"lock_duration": timedelta(minutes=5, seconds=1)}, "LockDuration"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount"),
        ({"max_delivery_count": 2**31}, "MaxDeliveryCount"),
        ({"max_size_mb": 0}, "MaxSizeInMegabytes"),
        ({"default_ttl": timedelta(0)}, "DefaultMessageTimeToLive"),
        ({"auto_delete_on_idle": timedelta(minutes=4)}, "AutoDeleteOnIdle"),
        ({"duplicate_window": timedelta(seconds=19)}, "DuplicateDetectionHistoryTimeWindow"),
        ({"duplicate_window": timedelta(days=8)}, "DuplicateDetectionHistoryTimeWindow"),
        ({"user_metadata": "x" * 1_025}, "UserMetadata"),
        ({"access_rules": (RULE, RULE)}, "same name"),
        ({"access_rules": tuple(replace(RULE, name=str(n)) for n in range(13))}, "at most 12"),
    ],
)
def test_what_no_queue_can_be_is_refused_by_the_name_of_the_property(
    settings: dict[str, Any], word: str
) -> None:
    with pytest.raises(DescriptionError, match=word):
        QueueDescription(**settings)


def test_the_limits_themselves_are_allowed() -> None:
    QueueDescription(lock_duration=timedelta(seconds=5), max_delivery_count=1, max_size_mb=81_920)
    QueueDescription(lock_duration=timedelta(minutes=5), duplicate_window=7 * DAY)
    QueueDescription(default_ttl=timedelta(milliseconds=1), user_metadata="x" * 1_024)


def test_a_topic_cannot_be_closed_for_receiving() -> None:
    with pytest.raises(DescriptionError, match="ReceiveDisabled"):
        TopicDescription(status=Status.RECEIVE_DISABLED)


def test_what_is_fixed_at_creation_cannot_be_updated() -> None:
    old = QueueDescription()
    check_update(old, replace(old, max_delivery_count=3, lock_duration=timedelta(seconds=9)))
    with pytest.raises(DescriptionError, match="requires_session is fixed"):
        check_update(old, replace(old, requires_session=True))


@pytest.mark.parametrize("path", ["orders", "a/b/c", "A.b-c_d~e", "x" * 260, "0"])
def test_paths_that_can_be(path: str) -> None:
    check_path(path)


@pytest.mark.parametrize(
    "path", ["", "/a", "a/", "a//b", "a b", "x" * 261, "$cbs", "a\n", "a?b", "a#b", "\u00e9", "-a"]
)
def test_paths_that_cannot_be(path: str) -> None:
    with pytest.raises(DescriptionError, match="path"):
        check_path(path)


@pytest.mark.parametrize("name", ["", "x" * 51, "a/b", "a b", "a\n"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(DescriptionError, match=r"a rule's name|cannot be a rule's name"):
        check_name(name, "rule")


spans = st.timedeltas(timedelta(minutes=5), timedelta(days=1_000)) | st.just(FOREVER)
names = st.none() | st.text(max_size=50)
received = {
    "default_ttl": spans,
    "auto_delete_on_idle": spans,
    "lock_duration": st.timedeltas(timedelta(seconds=5), timedelta(minutes=5)),
    "requires_session": st.booleans(),
    "max_delivery_count": st.integers(1, 2**31 - 1),
    "forward_to": names,
    "user_metadata": names,
    "status": st.sampled_from(Status),
}
queues = st.builds(
    QueueDescription,
    **received,
    max_size_mb=st.integers(1, 81_920),
    duplicate_window=st.timedeltas(timedelta(seconds=20), timedelta(days=7)),
    access_rules=st.sampled_from([(), (RULE,)]),
)
subscriptions = st.builds(SubscriptionDescription, **received)
topics = st.builds(TopicDescription, default_ttl=spans, user_metadata=names)


@given(queues | subscriptions | topics)
def test_a_description_comes_back_from_the_store_as_it_went_in(description: Description) -> None:
    again = from_json(type(description), to_json(description))
    for name, value in vars(description).items():
        other = getattr(again, name)
        if isinstance(value, timedelta) and value < FOREVER:
            assert abs(other - value) < timedelta(milliseconds=1), name
        else:
            assert other == value, name


def test_a_dead_letter_queue_has_no_sessions_no_expiry_and_no_second_death() -> None:
    of = QueueDescription(
        requires_session=True,
        max_delivery_count=1,
        default_ttl=DAY,
        lock_duration=timedelta(seconds=7),
        forward_to="x",
    )
    side = dead_letter_side(of)
    assert not side.requires_session
    assert side.max_delivery_count == 2**31 - 1
    assert (side.default_ttl, side.forward_to) == (FOREVER, None)
    assert side.lock_duration == timedelta(seconds=7)


def test_what_a_status_lets_through() -> None:
    table = {status: (status.may_send, status.may_receive) for status in Status}
    assert table == {
        Status.ACTIVE: (True, True),
        Status.DISABLED: (False, False),
        Status.SEND_DISABLED: (False, True),
        Status.RECEIVE_DISABLED: (True, False),
    }
