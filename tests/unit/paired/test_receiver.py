"""A ping never reaches the application, even if a server delivers one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusReceiver
from tests.unit.paired.fakes import CONNECTION

from twinbus.aio import MessageReceiver, MessagingFactory
from twinbus.paired.entity_path import EntityPath, parse_path
from twinbus.paired.ping import CONTENT_TYPE, is_ping, ping_message


def message(content_type: str | None) -> Any:
    return SimpleNamespace(content_type=content_type)


PING, REAL = message(CONTENT_TYPE), message(None)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> MessageReceiver:
    factory = MessagingFactory.from_connection_string(CONNECTION.format("contoso"))
    receiver = factory.get_queue_receiver("orders")
    pages = [[PING], [PING, REAL], []]
    completed: list[Any] = []

    async def receive(self: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return pages.pop(0)

    async def complete(self: Any, each: Any) -> None:
        completed.append(each)

    async def following(self: Any) -> Any:
        return [PING, REAL][len(completed)]

    def iterate(self: Any) -> AsyncIterator[Any]:
        async def each() -> AsyncIterator[Any]:
            for one in (PING, REAL, PING):
                yield one

        return each()

    monkeypatch.setattr(ServiceBusReceiver, "receive_messages", receive)
    monkeypatch.setattr(ServiceBusReceiver, "peek_messages", receive)
    monkeypatch.setattr(ServiceBusReceiver, "complete_message", complete)
    monkeypatch.setattr(ServiceBusReceiver, "__anext__", following)
    monkeypatch.setattr(ServiceBusReceiver, "__aiter__", iterate)
    receiver.completed = completed  # type: ignore[attr-defined]  # for the tests to look at
    return receiver


async def test_a_receiver_never_hands_out_a_ping(receiver: MessageReceiver) -> None:
    assert await receiver.receive_messages(5, max_wait_time=5) == [REAL]
    assert receiver.completed == [PING, PING]  # type: ignore[attr-defined]  # see above


async def test_a_ping_that_cannot_be_completed_costs_no_message(
    receiver: MessageReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def complete(self: Any, each: Any) -> None:
        raise ClientAuthenticationError("the token is no good any longer")

    monkeypatch.setattr(ServiceBusReceiver, "complete_message", complete)
    assert await receiver.receive_messages(5, max_wait_time=5) == [REAL]


async def test_iterating_skips_pings(receiver: MessageReceiver) -> None:
    assert [each async for each in receiver] == [REAL]


async def test_next_skips_pings(receiver: MessageReceiver) -> None:
    assert await receiver.__anext__() is REAL


async def test_peeking_skips_pings(receiver: MessageReceiver) -> None:
    assert await receiver.peek_messages(5) == []


def test_a_ping_is_empty_with_its_content_type_and_lives_one_second() -> None:
    ping = ping_message()
    assert b"".join(ping.body) == b""
    assert ping.content_type == "application/vnd.ms-servicebus-ping"
    assert ping.time_to_live is not None
    assert ping.time_to_live.total_seconds() == 1
    assert is_ping(ping)
    assert ping.session_id != ping_message().session_id


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("orders", EntityPath("orders")),
        ("a/b/c", EntityPath("a/b/c")),
        ("news/Subscriptions/mine", EntityPath("news", "mine")),
        ("orders/$DeadLetterQueue", EntityPath("orders", None, ServiceBusSubQueue.DEAD_LETTER)),
        (
            "news/subscriptions/mine/$Transfer/$DeadLetterQueue",
            EntityPath("news", "mine", ServiceBusSubQueue.TRANSFER_DEAD_LETTER),
        ),
    ],
)
def test_a_receivers_path_is_understood(path: str, place: EntityPath) -> None:
    assert parse_path(path) == place
