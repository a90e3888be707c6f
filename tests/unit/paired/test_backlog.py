"""The rotation of backlog queues, on a clock that stands still."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.envelope import is_backlog_path, namespace_name, queue_path
from twinbus.failover.rotation import Rotation

QUEUES = [queue_path("contoso", index) for index in range(10)]


def test_the_first_backlog_queue_of_contoso_is_named_as_documented() -> None:
    assert queue_path("contoso", 0) == "contoso/x-servicebus-transfer/0"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("contoso.servicebus.windows.net", "contoso"),
        ("localhost:5672", "localhost"),
        ("contoso", "contoso"),
    ],
)
def test_the_namespace_is_the_first_dns_label(host: str, name: str) -> None:
    assert namespace_name(host) == name


def test_a_backlog_path_is_told_from_others() -> None:
    assert is_backlog_path("contoso/x-servicebus-transfer/12")
    assert not is_backlog_path("contoso/x-servicebus-transfer/orders")
    assert not is_backlog_path("orders")


def test_a_random_backlog_queue_is_selected() -> None:
    rotation = Rotation(QUEUES, 60, random.Random(1))
    assert {rotation.pick(0) for _ in range(300)} == set(QUEUES)


def test_a_sender_stays_with_its_queue() -> None:
    rotation = Rotation(QUEUES, 60)
    assert all(rotation.order(QUEUES[3], 0)[0] == QUEUES[3] for _ in range(50))


def test_a_queue_that_fails_is_pulled_from_the_rotation_for_all_senders() -> None:
    rotation = Rotation(QUEUES, 60)
    assert rotation.failed(QUEUES[3], 0)
    assert rotation.is_out(QUEUES[3], 59)
    assert rotation.order(QUEUES[3], 59)[-1] == QUEUES[3], "it is the last resort"
    assert all(rotation.pick(59) != QUEUES[3] for _ in range(100))


def test_a_queue_returns_after_a_while() -> None:
    rotation = Rotation(QUEUES, 60)
    rotation.failed(QUEUES[3], 0)
    assert rotation.order(QUEUES[3], 60)[0] == QUEUES[3]


def test_failing_and_working_again_are_each_told_once() -> None:
    rotation = Rotation(QUEUES, 60)
    assert [rotation.failed(QUEUES[0], now) for now in (0, 1, 2)] == [True, False, False]
    assert [rotation.succeeded(QUEUES[0]) for _ in range(2)] == [True, False]


def test_with_one_queue_only_that_queue_can_ever_be_used() -> None:
    rotation = Rotation(QUEUES[:1], 60)
    rotation.failed(QUEUES[0], 0)
    assert rotation.order(QUEUES[0], 1) == QUEUES[:1]


@given(
    failures=st.lists(st.tuples(st.sampled_from(QUEUES), st.integers(0, 100))), now=st.integers()
)
def test_every_queue_is_in_the_order_once_and_those_in_rotation_come_first(
    failures: list[tuple[str, int]], now: int
) -> None:
    rotation = Rotation(QUEUES, 60)
    for queue, at in failures:
        rotation.failed(queue, at)
    order = rotation.order(QUEUES[0], now)
    assert sorted(order) == sorted(QUEUES)
    outs = [rotation.is_out(queue, now) for queue in order]
    assert outs == sorted(outs)
