"""Concurrent single sends in one AMQP batch, each caller with its own outcome."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
)
from tests.unit.paired.fakes import make_pair, raising

from twinbus import PairingError
from twinbus.client_errors import BacklogError
from twinbus.paired.aio.gatherer import Gatherer
from twinbus.paired.aio.link import SharedSender
from twinbus.paired.aio.world import World
from twinbus.paired.outgoing import IdentifyingTransportAsync, single

FLUSH = {"batch_flush_interval": timedelta(milliseconds=20)}


async def test_concurrent_single_sends_go_out_as_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch, factory=FLUSH)
    sender = primary.get_queue_sender("orders")
    await asyncio.gather(
        *(sender.send_messages(ServiceBusMessage("x", message_id=str(n))) for n in range(100))
    )
    assert wire.transfers == [("contoso", "orders", 100)]
    assert [each.properties.message_id for each in wire.to("orders")] == [
        str(n) for n in range(100)
    ]
    await primary.close()


async def test_a_batch_that_would_be_too_big_is_several(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch, factory=FLUSH)
    sender = primary.get_queue_sender("orders")
    await asyncio.gather(
        *(sender.send_messages(ServiceBusMessage(bytes(100_000))) for _ in range(5))
    )
    assert [count for _, _, count in wire.transfers] == [2, 2, 1]
    await primary.close()


async def test_only_the_guilty_messages_caller_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch, factory=FLUSH)
    sender = primary.get_queue_sender("orders")
    original = SharedSender._send

    async def picky(self: Any, message: Any, **kwargs: Any) -> None:
        if any(b"bad" in each for each in message.encoded()):
            raise MessageSizeExceededError
        await original(self, message, **kwargs)

    monkeypatch.setattr(SharedSender, "_send", picky)
    results = await asyncio.gather(
        *(sender.send_messages(ServiceBusMessage(body)) for body in ("good", "bad", "fine")),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [
        type(None),
        MessageSizeExceededError,
        type(None),
    ]
    assert len(wire.sent) == 2
    await primary.close()


async def test_a_failed_batch_fails_every_caller_or_is_diverted_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for interval, wanted in (
        (timedelta(minutes=1), ServiceBusConnectionError),
        (timedelta(0), None),
    ):
        wire, primary, _, _ = await make_pair(
            monkeypatch, factory=FLUSH, failover_interval=interval
        )
        wire.rule = raising(ServiceBusConnectionError())
        sender = primary.get_queue_sender("orders")
        results = await asyncio.gather(
            *(sender.send_messages(ServiceBusMessage("x")) for _ in range(10)),
            return_exceptions=True,
        )
        assert [type(each) for each in results] == [wanted or type(None)] * 10
        assert len(wire.on("contoso-backup")) == (0 if wanted else 10)
        await primary.close()


@pytest.mark.parametrize(
    "error", [BacklogError("nobody took it", {}), ServiceBusAuthorizationError(message="no")]
)
async def test_what_is_no_single_messages_fault_is_not_tried_again_one_by_one(
    error: Exception,
) -> None:
    """With two namespaces out, each caller would wait for all those before it."""
    attempts = []

    async def deliver(ready: Any, _: float | None) -> None:
        attempts.append(len(ready.encoded()))
        raise error

    world = World()
    gatherer = Gatherer(deliver, 0.01, 262_144, world)
    message = single(ServiceBusMessage("x"), IdentifyingTransportAsync, {})
    results = await asyncio.gather(
        *(gatherer.send(message, None) for _ in range(10)), return_exceptions=True
    )
    assert results == [error] * 10
    assert attempts == [10]
    await world.stop()


async def test_a_callers_timeout_and_cancel_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, primary, _, _ = await make_pair(
        monkeypatch, factory={"batch_flush_interval": timedelta(milliseconds=100)}
    )
    sender = primary.get_queue_sender("orders")
    cancelled = asyncio.create_task(sender.send_messages(ServiceBusMessage("cancelled")))
    hasty = asyncio.create_task(sender.send_messages(ServiceBusMessage("hasty"), timeout=0.01))
    patient = asyncio.create_task(sender.send_messages(ServiceBusMessage("patient")))
    await asyncio.sleep(0.02)
    cancelled.cancel()
    results = await asyncio.gather(cancelled, hasty, patient, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert isinstance(results[1], OperationTimeoutError)
    assert results[2] is None
    assert len(wire.sent) == 1, "who gave up in time is not sent"
    await primary.close()


async def test_closing_sends_what_was_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, primary, _, _ = await make_pair(
        monkeypatch, factory={"batch_flush_interval": timedelta(seconds=5)}
    )
    sender = primary.get_queue_sender("orders")
    job = asyncio.create_task(sender.send_messages(ServiceBusMessage("x")))
    await asyncio.sleep(0.01)
    await sender.close()
    await job
    assert len(wire.sent) == 1
    await primary.close()


async def test_an_interval_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PairingError, match="batch_flush_interval is"):
        await make_pair(monkeypatch, factory={"batch_flush_interval": timedelta(minutes=1)})
