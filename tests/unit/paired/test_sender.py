"""The paired sender over a fake link: who is told what, and what goes where."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus.aio import ServiceBusSender as AsyncServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from tests.times import is_prompt
from tests.unit.paired import fakes
from tests.unit.paired.fakes import make_pair, raising
from tests.unit.test_envelope import encoded

import twinbus
from twinbus import BacklogError, FactoryFaultedError
from twinbus.amqp.message import Message, application_properties
from twinbus.classifier import Verdict
from twinbus.failover.states import State
from twinbus.paired.aio import route as route_module
from twinbus.paired.aio.busy import BUSY_S
from twinbus.paired.aio.link import SharedSender
from twinbus.paired.aio.world import World
from twinbus.paired.events import (
    BacklogQueueIn,
    BacklogQueueOut,
    Cleared,
    Diverted,
    MessagesDiverted,
    Pinged,
    Restored,
    Suspected,
)
from twinbus.paired.ping import ping_message

SEND = ServiceBusMessage("x")


def broken() -> ServiceBusConnectionError:
    return ServiceBusConnectionError(message="the line is cut")


async def test_when_the_primary_is_healthy_no_behavior_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch)
    async with primary.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("x", session_id="s", message_id="1"))
    ((host, path, message),) = wire.sent
    assert (host, path, message.properties.group_id) == ("contoso", "orders", "s")
    assert wire.opened == ["orders"], "no link to the secondary"
    await primary.close()


async def test_a_sender_of_a_paired_factory_is_the_sdks_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, primary, _, _ = await make_pair(monkeypatch)
    assert isinstance(primary.get_queue_sender("orders"), AsyncServiceBusSender)
    assert isinstance(primary.get_topic_sender("news"), AsyncServiceBusSender)
    assert issubclass(twinbus.MessageSender, ServiceBusSender)
    await primary.close()


async def test_the_callers_object_keeps_no_id_and_each_send_of_it_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch)
    sender = primary.get_queue_sender("orders")
    message = AmqpAnnotatedMessage(data_body=b"x")
    await sender.send_messages(message)
    await sender.send_messages([message, {"body": "y"}])
    assert message.properties is None
    assert len({each.properties.message_id for each in wire.to("orders")}) == 3
    await primary.close()


async def test_the_diverted_copy_has_the_id_of_the_copy_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the destination can drop one of them, should both arrive."""
    wire, primary, _, _ = await make_pair(monkeypatch, queues=1)
    sender = primary.get_queue_sender("orders")
    tried = []
    original = type(sender)._send

    async def timing_out(self: Any, message: Any, **kwargs: Any) -> None:
        if self.entity_name == "orders":
            tried.append(message._message.properties.message_id)
            raise OperationTimeoutError
        await original(self, message, **kwargs)

    monkeypatch.setattr(SharedSender, "_send", timing_out)
    await sender.send_messages(ServiceBusMessage("x"))
    (diverted,) = wire.to("contoso/x-servicebus-transfer/0")
    assert [diverted.properties.message_id] == tried
    await primary.close()


async def test_two_senders_to_one_queue_agree_at_once_and_another_queue_is_untouched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failure in one entity does not imply a failure in another."""
    wire, primary, _, _ = await make_pair(monkeypatch)
    one, two = primary.get_queue_sender("orders"), primary.get_queue_sender("ORDERS")
    other = primary.get_queue_sender("bills")
    wire.rule = raising(broken(), path="orders")
    await one.send_messages(SEND)
    before = len(wire.opened)
    await two.send_messages(SEND)
    await other.send_messages(SEND)
    assert wire.on("contoso") == ["bills"]
    assert "ORDERS" not in wire.opened[before:]
    assert primary.entity_states() == {"orders": State.DIVERTED, "bills": State.HEALTHY}
    await primary.close()


async def test_future_requests_carry_their_destination_so_that_many_entities_coexist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch, queues=1)
    wire.rule = raising(broken())
    await primary.get_queue_sender("orders").send_messages(SEND)
    await primary.get_topic_sender("news/today").send_messages(SEND)
    found = wire.to("contoso/x-servicebus-transfer/0")
    paths = [application_properties(each.bare)["x-ms-path"] for each in found]
    assert paths == ["orders", "news/today"]
    await primary.close()


async def test_server_busy_waits_ten_seconds_and_sends_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert BUSY_S == 10
    wire, primary, _, _ = await make_pair(monkeypatch, factory={"retry_total": 3})
    waits, tries = [], []

    async def no_time(_: World, seconds: float) -> None:
        waits.append(seconds)

    def busy_twice(_: str, path: str) -> None:
        tries.append(path)
        if len(tries) < 3:
            raise ServiceBusServerBusyError

    monkeypatch.setattr(World, "sleep", no_time)
    wire.rule = busy_twice
    await primary.get_queue_sender("orders").send_messages(SEND)
    assert waits == [10, 10], "and no quicker retries of the SDK's in between"
    assert len(tries) == 3
    assert primary.entity_states() == {"orders": State.HEALTHY}
    await primary.close()


@pytest.mark.parametrize("flush", [None, timedelta(milliseconds=1)])
async def test_a_failed_send_is_classified_once_and_by_the_users_classifier(
    monkeypatch: pytest.MonkeyPatch, flush: timedelta | None
) -> None:
    seen: list[Exception] = []

    def mine(error: Exception) -> Verdict:
        seen.append(error)
        return Verdict.RAISE if isinstance(error, OperationTimeoutError) else Verdict.COUNT

    wire, primary, _, _ = await make_pair(
        monkeypatch, classifier=mine, factory={"batch_flush_interval": flush}
    )
    sender = primary.get_queue_sender("orders")

    def late(host: str, path: str) -> None:
        raise OperationTimeoutError(message="no answer")

    wire.rule = late
    with pytest.raises(OperationTimeoutError):
        await sender.send_messages(SEND)
    assert len(seen) == 1
    assert not sender._running, "its answer may still come"
    assert primary.entity_states() == {"orders": State.HEALTHY}
    wire.rule = raising(TypeError("the default would leave this to the caller"))
    await sender.send_messages(SEND)
    assert len(seen) == 2
    assert primary.entity_states() == {"orders": State.DIVERTED}
    await primary.close()


async def test_a_busy_server_is_waited_for_while_suspect_too_and_diverts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch, failover_interval=timedelta(minutes=1))
    sender = primary.get_queue_sender("orders")
    wire.rule = raising(broken())
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(SEND)
    waits = []
    assert primary.pairing is not None
    suspect = primary.pairing.entity("orders").failover

    async def no_time(_: World, seconds: float) -> None:
        waits.append(seconds)
        assert suspect.state is State.SUSPECT, "busy is neither a failure more nor a success"
        wire.rule = lambda *_: None

    monkeypatch.setattr(World, "sleep", no_time)
    wire.rule = raising(ServiceBusServerBusyError())
    await sender.send_messages(SEND)
    assert waits == [10]
    assert wire.on("contoso") == ["orders"]
    assert wire.on("contoso-backup") == []
    await primary.close()


async def test_server_busy_is_raised_when_the_caller_has_no_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch)
    wire.rule = raising(ServiceBusServerBusyError())
    began = time.monotonic()
    with pytest.raises(ServiceBusServerBusyError):
        await primary.get_queue_sender("orders").send_messages(SEND, timeout=5)
    assert is_prompt(began, 1)
    assert primary.entity_states() == {"orders": State.HEALTHY}
    await primary.close()


@pytest.mark.parametrize(
    "error", [ServiceBusAuthorizationError(), MessageSizeExceededError()], ids=["who", "size"]
)
async def test_unauthorized_and_the_callers_own_mistakes_are_raised_without_failover(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch)
    wire.rule = raising(error)
    with pytest.raises(type(error)):
        await primary.get_queue_sender("orders").send_messages(SEND)
    assert primary.entity_states() == {"orders": State.HEALTHY}
    assert not wire.sent
    await primary.close()


async def test_the_classifier_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(error: Exception) -> Verdict:
        return Verdict.RAISE

    wire, primary, _, _ = await make_pair(monkeypatch, classifier=never)
    wire.rule = raising(broken())
    with pytest.raises(ServiceBusConnectionError):
        await primary.get_queue_sender("orders").send_messages(SEND)
    assert primary.entity_states() == {"orders": State.HEALTHY}
    await primary.close()


async def test_a_success_within_the_interval_clears_the_suspicion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch, failover_interval=timedelta(minutes=1))
    events: list[Any] = []
    primary.add_listener(events.append)
    sender = primary.get_queue_sender("orders")
    wire.rule = raising(broken())
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(SEND)
    assert primary.entity_states() == {"orders": State.SUSPECT}
    wire.rule = lambda *_: None
    await sender.send_messages(SEND)
    assert primary.entity_states() == {"orders": State.HEALTHY}
    assert [type(event) for event in events] == [Suspected, Cleared]
    await primary.close()


async def test_a_backlog_queue_that_fails_leaves_the_rotation_and_all_senders_learn_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch, queues=2)
    events: list[Any] = []
    primary.add_listener(events.append)
    bad, good = "contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1"
    tried: list[str] = []

    def rule(host: str, path: str) -> None:
        tried.append(path)
        if host == "contoso" or path == bad:
            raise broken()

    wire.rule = rule
    senders = [primary.get_queue_sender("orders") for _ in range(12)]
    for sender in senders:
        await sender.send_messages(SEND)
    assert tried.count(bad) == 1, "one sender's failure is enough for all"
    assert tried.count(good) == 12
    assert [event.queue for event in events if isinstance(event, BacklogQueueOut)] == [bad]
    assert primary.pairing is not None
    primary.pairing.diverter.rotation._back_at.clear()
    primary.pairing.diverter.rotation._back_at[bad] = 0.0
    wire.rule = lambda *_: None
    route = senders[0]._join()
    assert route is not None
    route.sticky = bad
    await senders[0].send_messages(SEND)
    assert any(isinstance(event, BacklogQueueIn) for event in events)
    await primary.close()


async def test_all_backlog_queues_failed_raises_with_what_each_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch, queues=3)

    def rule(host: str, path: str) -> None:
        raise ServiceBusConnectionError(message=f"{path} is cut")

    wire.rule = rule
    with pytest.raises(BacklogError) as caught:
        await primary.get_queue_sender("orders").send_messages(SEND)
    assert sorted(caught.value.errors) == [f"contoso/x-servicebus-transfer/{n}" for n in range(3)]
    assert all(queue in str(error) for queue, error in caught.value.errors.items())
    assert "is cut" in str(caught.value)
    await primary.close()


async def test_a_list_goes_on_with_another_queue_where_the_first_left_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one queue has accepted is not sent to the next again."""
    wire, primary, _, _ = await make_pair(monkeypatch, queues=2)
    done: list[str] = []

    def rule(host: str, path: str) -> None:
        if host == "contoso" or (done and done[0] == path):
            raise broken()
        done.append(path)

    wire.rule = rule
    many = [ServiceBusMessage(bytes(100_000), message_id=str(number)) for number in range(2)]
    sender = primary.get_queue_sender("orders")
    many += [ServiceBusMessage(bytes(100_000), message_id="2")]
    ready = [encoded(each) for each in many]
    assert primary.pairing is not None
    route = sender._join()
    assert route is not None
    await primary.pairing.diverter.divert("orders", ready, route.sticky, time.monotonic() + 5)
    assert sorted(each.properties.message_id for _, _, each in wire.sent) == ["0", "1", "2"]
    assert len({path for _, path, _ in wire.sent}) == 2
    await primary.close()


async def test_pings_go_on_every_interval_until_one_succeeds_and_then_all_go_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, options = await make_pair(monkeypatch)
    events: list[Any] = []
    primary.add_listener(events.append)
    options._ping_primary_interval = timedelta(milliseconds=50)
    wire.rule = raising(broken())
    sender = primary.get_queue_sender("orders")
    await sender.send_messages(SEND)
    await asyncio.sleep(0.3)
    failed = [event for event in events if isinstance(event, Pinged)]
    assert len(failed) >= 2
    assert not any(event.succeeded for event in failed)
    wire.rule = lambda *_: None
    await asyncio.sleep(0.2)
    assert primary.entity_states() == {"orders": State.HEALTHY}
    assert sum(isinstance(event, Restored) for event in events) == 1
    pings = [event for event in events if isinstance(event, Pinged)]
    await asyncio.sleep(0.2)
    assert [event for event in events if isinstance(event, Pinged)] == pings, "pings stop"
    await sender.send_messages(SEND)
    ping, message = wire.to("orders")
    assert ping.properties.content_type == "application/vnd.ms-servicebus-ping"
    assert ping.ttl_ms == 1000
    assert ping.properties.group_id, "a session of its own"
    assert message.properties.content_type is None
    assert len(primary._world) == 1, "the one that keeps links warm"
    await primary.close()


async def test_an_operator_can_mark_a_path_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, primary, _, options = await make_pair(monkeypatch)
    wire.rule = raising(broken())
    sender = primary.get_queue_sender("orders")
    await sender.send_messages(SEND)
    wire.rule = lambda *_: None
    options.mark_path_healthy("Orders")
    await sender.send_messages(SEND)
    assert wire.on("contoso") == ["orders"]
    await primary.close()


async def test_the_callers_timeout_is_honoured_and_leaves_time_for_the_backlog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, primary, _, _ = await make_pair(monkeypatch)

    async def hang(self: Any, message: Any, **kwargs: Any) -> None:
        if self.entity_name == "orders":
            await asyncio.sleep(kwargs["timeout"])
            raise OperationTimeoutError

    monkeypatch.setattr(SharedSender, "_send", hang)
    began = time.monotonic()
    await primary.get_queue_sender("orders").send_messages(SEND, timeout=0.8)
    assert 0.35 < time.monotonic() - began < 0.8
    await primary.close()


async def test_a_cancelled_send_leaves_the_sender_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch)
    sender = primary.get_queue_sender("orders")
    wire.rule = lambda *_: asyncio.sleep(60)
    task = asyncio.create_task(sender.send_messages(SEND))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not sender._running, "the link it was on is not used again"
    wire.rule = lambda *_: None
    await sender.send_messages(SEND)
    assert primary.entity_states() == {"orders": State.HEALTHY}
    await primary.close()


async def test_who_waits_behind_a_failing_link_fails_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch, failover_interval=timedelta(minutes=1))
    tries = 0

    async def slow_failure() -> None:
        nonlocal tries
        tries += 1
        await asyncio.sleep(0.2)
        raise broken()

    wire.rule = lambda *_: slow_failure()
    sender = primary.get_queue_sender("orders")
    began = time.monotonic()
    results = await asyncio.gather(
        *(sender.send_messages(SEND) for _ in range(50)), return_exceptions=True
    )
    assert all(isinstance(result, ServiceBusConnectionError) for result in results)
    assert is_prompt(began, 2), "each on its own would take ten seconds together"
    assert tries == 1
    await primary.close()


async def test_an_open_that_fails_does_not_keep_the_sender_from_being_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch)
    original = SharedSender._open

    async def not_found(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.entity_name == "orders":
            raise MessagingEntityNotFoundError
        await original(self, *args, **kwargs)

    monkeypatch.setattr(SharedSender, "_open", not_found)
    async with primary.get_queue_sender("orders") as sender:
        batch = await sender.create_message_batch()
        batch.add_message(SEND)
        await sender.send_messages(batch)
    assert wire.on("contoso") == []
    assert len(wire.on("contoso-backup")) == 1
    await primary.close()


async def test_events_say_what_was_diverted_and_no_key_is_in_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "twinbus.paired")
    wire, primary, _, _ = await make_pair(monkeypatch)
    events: list[Any] = []
    stop = primary.add_listener(events.append)

    def bad_listener(event: Any) -> None:
        raise RuntimeError("a listener's own problem")

    primary.add_listener(bad_listener)
    wire.rule = raising(broken())
    await primary.get_queue_sender("orders").send_messages([SEND, SEND])
    assert [type(event) for event in events] == [Suspected, Diverted, MessagesDiverted]
    assert events[2].messages == 2
    assert events[2].bytes > 0
    assert "'orders' on contoso.servicebus.windows.net is out" in caplog.text
    stop()
    await primary.close()
    assert len(events) == 3
    assert "secret" not in caplog.text + repr(events)


async def test_after_close_every_call_says_which_factory_ended_and_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, primary, secondary, _ = await make_pair(monkeypatch)
    sender = primary.get_queue_sender("orders")
    await primary.close()
    await secondary.close()
    for call in (
        lambda: sender.send_messages(SEND),
        lambda: sender.schedule_messages(SEND, None),  # type: ignore[arg-type]  # not looked at
        lambda: sender.cancel_scheduled_messages(1),
        sender.create_message_batch,
    ):
        with pytest.raises(FactoryFaultedError, match=r"contoso\.servicebus.* was closed"):
            await call()
    with pytest.raises(FactoryFaultedError):
        primary.get_queue_sender("orders")
    with pytest.raises(FactoryFaultedError):
        primary.get_queue_receiver("orders")


async def test_who_is_told_that_the_server_is_busy_waits_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch)
    waiting = asyncio.Event()

    async def long_wait(_: World, seconds: float) -> None:
        await waiting.wait()

    busy = iter([ServiceBusServerBusyError()])

    def once(_: str, __: str) -> None:
        for error in busy:
            raise error

    monkeypatch.setattr(World, "sleep", long_wait)
    wire.rule = once
    sender = primary.get_queue_sender("orders")
    told = asyncio.create_task(sender.send_messages(ServiceBusMessage("1", message_id="1")))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(10):  # for a send that has nothing to wait for
        await sender.send_messages(ServiceBusMessage("2", message_id="2"))
    waiting.set()
    await told
    assert [each.properties.message_id for each in wire.to("orders")] == ["2", "1"]
    await primary.close()


async def test_the_sdks_own_retries_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"retry_total": 2, "retry_backoff_factor": 0.001}
    wire, primary, _, _ = await make_pair(monkeypatch, factory=settings)
    tries = []

    def rule(host: str, path: str) -> None:
        if host == "contoso":
            tries.append(path)
            raise broken()

    wire.rule = rule
    await primary.get_queue_sender("orders").send_messages(SEND)
    assert len(tries) == 3
    assert primary.entity_states() == {"orders": State.DIVERTED}
    await primary.close()


async def test_messages_are_only_received_from_the_primary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And so session state is only ever kept there."""
    wire, primary, _, _ = await make_pair(monkeypatch)
    wire.rule = raising(broken())
    await primary.get_queue_sender("orders").send_messages(SEND)
    for receiver in (
        primary.get_queue_receiver("orders", session_id="s"),
        primary.get_subscription_receiver("news", "mine"),
        primary.create_message_receiver("news/Subscriptions/mine/$DeadLetterQueue"),
    ):
        assert receiver.fully_qualified_namespace == "contoso.servicebus.windows.net"
    await primary.close()


async def test_a_sender_that_is_older_than_the_pairing_is_paired_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch)
    pairing, primary.pairing = primary.pairing, None
    sender = primary.get_queue_sender("orders")
    await sender.send_messages(SEND)
    primary.pairing = pairing
    wire.rule = raising(broken())
    await sender.send_messages(SEND)
    assert len(wire.on("contoso-backup")) == 1
    await primary.close()


async def test_each_diverted_entity_is_pinged_once_per_factory_whoever_sends_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, options = await make_pair(monkeypatch)
    options._ping_primary_interval = timedelta(milliseconds=100)
    wire.rule = raising(broken())
    for path in ("orders", "orders", "orders", "bills"):
        await primary.get_queue_sender(path).send_messages(SEND)
    pings: list[str] = []

    def count(host: str, path: str) -> None:
        if host == "contoso":
            pings.append(path)
            raise broken()

    wire.rule = count
    await asyncio.sleep(0.25)
    assert sorted(pings) == ["bills", "bills", "orders", "orders"]
    await primary.close()


async def test_many_senders_to_one_entity_are_one_ping_an_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However they write its name, and though all of them saw it fail at the same moment."""
    wire, primary, _, options = await make_pair(monkeypatch)
    options._ping_primary_interval = timedelta(milliseconds=20)
    pinged: list[str] = []
    enough = asyncio.Event()

    def count(event: Any) -> None:
        if isinstance(event, Pinged):
            pinged.append(event.entity.lower())
            if pinged.count("bills") == 5:
                enough.set()

    primary.add_listener(count)
    wire.rule = raising(broken())
    names = ["orders", "ORDERS", "Orders"] * 4
    senders = [primary.get_queue_sender(name) for name in names]
    senders.append(primary.get_topic_sender("bills"))
    await asyncio.gather(*(sender.send_messages(SEND) for sender in senders))
    async with asyncio.timeout(30):  # for five pings of the one that a single sender sends to
        await enough.wait()
    assert 1 <= pinged.count("orders") <= 10
    await primary.close()


async def test_each_client_picks_its_backlog_queue_at_random(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixty that pick among three all pick the same once in 10^28."""
    wire, primary, _, _ = await make_pair(monkeypatch, queues=3)
    wire.rule = raising(broken())
    for number in range(30):
        await primary.create_queue_client(f"orders-{number}").send(SEND)
        await primary.create_topic_client(f"news-{number}").send(SEND)
    used = wire.on("contoso-backup")
    assert len(used) == 60
    assert set(used) == {f"contoso/x-servicebus-transfer/{number}" for number in range(3)}
    await primary.close()


async def test_without_a_pairing_a_failure_is_the_callers_and_nothing_is_diverted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Going elsewhere is for those who asked for it."""
    wire, primary, _, _ = await make_pair(monkeypatch)
    pairing, primary.pairing = primary.pairing, None
    wire.rule = raising(broken())
    sender = primary.get_queue_sender("orders")
    for _ in range(3):
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(SEND)
    assert not wire.sent
    primary.pairing = pairing
    await primary.close()


async def test_what_was_diverted_may_arrive_after_what_was_sent_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one session too: the primary takes messages while older ones wait in the backlog."""
    wire, primary, _, options = await make_pair(monkeypatch)
    wire.rule = raising(broken())
    sender = primary.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("x", message_id="1", session_id="s"))
    wire.rule = lambda *_: None
    options.mark_path_healthy("orders")
    await sender.send_messages(ServiceBusMessage("x", message_id="2", session_id="s"))
    assert [each.properties.message_id for each in wire.to("orders")] == ["2"]
    assert len(wire.on("contoso-backup")) == 1, "it waits for the syphon, not for the primary"
    await primary.close()


async def test_a_long_outage_costs_no_more_than_one_link_to_one_backlog_queue_a_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch, queues=10)
    wire.rule = raising(broken())
    sender = primary.get_queue_sender("orders")
    for _ in range(20):
        await sender.send_messages(SEND)
    used = [path for path in wire.opened if path != "orders"]
    assert len(used) == 1, "the queue is random, and then it stays"
    await primary.close()


async def test_what_is_wrong_with_one_message_is_not_shared_with_those_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch)
    refusals = iter([ServiceBusError("bad", condition=b"com.microsoft:argument-error")])

    async def refuse_first() -> None:
        await asyncio.sleep(0.05)
        for error in refusals:
            raise error

    wire.rule = lambda *_: refuse_first()
    sender = primary.get_queue_sender("orders")
    results = await asyncio.gather(
        *(sender.send_messages(SEND) for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(result, ServiceBusError) for result in results) == 1
    assert len(wire.to("orders")) == 4
    await primary.close()


async def test_waiting_for_other_sends_that_succeed_does_not_count_as_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch)
    wire.rule = lambda *_: asyncio.sleep(0.05)
    sender = primary.get_queue_sender("orders")
    results = await asyncio.gather(
        *(sender.send_messages(SEND, timeout=0.5) for _ in range(30)), return_exceptions=True
    )
    assert any(isinstance(result, OperationTimeoutError) for result in results)
    assert any(result is None for result in results)
    assert primary.entity_states() == {"orders": State.HEALTHY}
    await primary.close()


async def test_waiting_behind_a_send_that_gets_no_answer_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, primary, _, _ = await make_pair(monkeypatch)
    sender = primary.get_queue_sender("orders")
    await sender.send_messages(SEND)

    async def hang(self: Any, message: Any, **kwargs: Any) -> None:
        if self.entity_name == "orders":
            await asyncio.sleep(kwargs["timeout"])
            raise OperationTimeoutError

    monkeypatch.setattr(SharedSender, "_send", hang)
    results = await asyncio.gather(
        *(sender.send_messages(SEND, timeout=0.8) for _ in range(10)), return_exceptions=True
    )
    assert results == [None] * 10, "all went to the backlog, in time"
    await primary.close()


async def test_ten_backlog_queues_do_not_leave_each_too_little_time_to_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, primary, _, _ = await make_pair(monkeypatch, queues=10)
    given: list[float] = []

    async def note(self: Any, message: Any, **kwargs: Any) -> None:
        if self.entity_name == "orders":
            raise broken()
        given.append(kwargs["timeout"])
        raise broken()

    monkeypatch.setattr(SharedSender, "_send", note)
    with pytest.raises(BacklogError):
        await primary.get_queue_sender("orders").send_messages(SEND, timeout=8)
    assert len(given) == 10
    assert given[0] > 3
    assert given[1] > 3, "what the first did not use is the next one's"
    await primary.close()


BIG = bytes(2_000_000)


async def many_forms(sender: Any, body: bytes, at: datetime) -> list[Any]:
    """What becomes of a message in every form that the SDK takes."""
    batch: Any = ServiceBusMessageBatch(4_000_000)
    batch.add_message(ServiceBusMessage(body))
    annotated = AmqpAnnotatedMessage(data_body=body)
    calls = [
        sender.send_messages(ServiceBusMessage(body)),
        sender.send_messages({"body": body}),
        sender.send_messages(annotated),
        sender.send_messages([ServiceBusMessage(body)]),
        sender.send_messages({"body": each} for each in (body,)),
        sender.send_messages(batch),
        sender.schedule_messages(ServiceBusMessage(body), at),
        sender.schedule_messages([{"body": body}, annotated], at),
    ]
    return await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize("gathered", [False, True])
async def test_while_diverted_a_message_that_can_never_come_home_is_refused_in_any_form(
    monkeypatch: pytest.MonkeyPatch, gathered: bool
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch, queues=1)
    wire.rule = raising(broken())
    at = datetime.now(UTC) + timedelta(hours=1)
    flush = timedelta(milliseconds=1) if gathered else None
    sender = primary.get_queue_sender("orders", batch_flush_interval=flush)
    await sender.send_messages(SEND)
    outcomes = await many_forms(sender, BIG, at)
    assert [type(each) for each in outcomes] == [MessageSizeExceededError] * len(outcomes)
    assert len(wire.sent) == 1, "nothing of it is in the backlog"
    good, bad = ServiceBusMessage("good"), ServiceBusMessage(BIG)
    told = await asyncio.gather(
        sender.send_messages(good), sender.send_messages(bad), return_exceptions=True
    )
    assert told[0] is None, "what is wrong with one message is not another's fault"
    assert isinstance(told[1], MessageSizeExceededError)
    await primary.close()


async def test_the_limit_while_diverted_is_that_of_the_healthy_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fakes, "LIMIT", 1_048_576)
    wire, primary, _, _ = await make_pair(monkeypatch, queues=1)
    async with primary.get_queue_sender("orders") as old:
        wire.rule = raising(broken())
        await old.send_messages(SEND)
    sender = primary.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage(bytes(1_000_000)))
    batch = await sender.create_message_batch()
    assert batch.max_size_in_bytes == 1_048_576
    with pytest.raises(MessageSizeExceededError, match="1048576"):
        await sender.send_messages(ServiceBusMessage(BIG))
    await primary.close()


async def test_while_diverted_the_session_and_the_content_type_are_looked_at_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch, queues=1)
    sender = primary.get_queue_sender("visits")
    refusal = ServiceBusError("'visits' requires sessions", condition=b"amqp:not-allowed")
    wire.rule = raising(refusal)
    with pytest.raises(ServiceBusError, match="requires sessions"):
        await sender.send_messages(SEND)
    wire.rule = raising(broken())
    await sender.send_messages(ServiceBusMessage("x", session_id="s"))
    other = primary.get_queue_sender("visits")
    with pytest.raises(ServiceBusError, match=r"requires sessions.*amqp:not-allowed"):
        await other.send_messages(SEND)
    with pytest.raises(ServiceBusError, match="content type of pings"):
        await other.send_messages(ping_message())
    assert len(wire.sent) == 1
    await primary.close()


@pytest.mark.parametrize("form", ["dict", "dicts", "annotated", "message", "list", "generator"])
async def test_what_is_scheduled_has_one_id_wherever_it_ends_up(
    monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The request may have been done, and only its answer lost."""
    wire, primary, _, _ = await make_pair(monkeypatch, queues=1)
    asked: list[str] = []

    async def lost(self: Any, mgmt_operation: bytes, message: Any, **kwargs: Any) -> None:
        for each in message["messages"]:
            found = Message.parse(bytes(each["message"])).properties.message_id
            assert found == each["message-id"]
            asked.append(found)
        raise OperationTimeoutError

    monkeypatch.setattr(SharedSender, "_mgmt_request_response", lost)
    forms: dict[str, Callable[[], Any]] = {
        "dict": lambda: {"body": "x"},
        "dicts": lambda: [{"body": "x"}, {"body": "y"}],
        "annotated": lambda: AmqpAnnotatedMessage(data_body=b"x"),
        "message": lambda: ServiceBusMessage("x"),
        "list": lambda: [AmqpAnnotatedMessage(data_body=b"x"), ServiceBusMessage("y")],
        "generator": lambda: ({"body": str(number)} for number in range(3)),
    }
    what = forms[form]()
    sender = primary.get_queue_sender("orders")
    numbers = await sender.schedule_messages(what, datetime.now(UTC) + timedelta(hours=1))
    assert all(number < 0 for number in numbers)
    diverted = wire.to("contoso/x-servicebus-transfer/0")
    assert [each.properties.message_id for each in diverted] == asked
    assert len(numbers) == len(set(asked)) == len(asked)
    await primary.close()


async def test_a_schedule_request_is_the_sdks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent for each kind of message is compared with what the SDK would have built."""
    _, primary, _, _ = await make_pair(monkeypatch)
    sender = primary.get_queue_sender("orders")
    at = datetime.now(UTC) + timedelta(hours=1)
    asked: list[Any] = []

    async def note(self: Any, mgmt_operation: bytes, message: Any, **kwargs: Any) -> list[int]:
        asked.append(message)
        return [7]

    monkeypatch.setattr(SharedSender, "_mgmt_request_response", note)
    build: Any = sender._build_schedule_request
    for message in (
        ServiceBusMessage("x", message_id="1", session_id="s", partition_key="s"),
        ServiceBusMessage("x", message_id="2", time_to_live=timedelta(minutes=5)),
        AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": "3"}),
    ):
        assert await sender.schedule_messages(message, at) == [7]
        plain = message
        if isinstance(message, AmqpAnnotatedMessage):
            plain = ServiceBusMessage(None, message=None, raw_amqp_message=message)
        theirs, _ = build(at, sender._amqp_transport, {}, plain)
        assert asked.pop() == theirs
    assert await sender.schedule_messages([], at) == []
    with pytest.raises(TypeError):
        await sender.schedule_messages(["x"], at)
    with pytest.raises(ValueError, match="timeout"):
        await sender.schedule_messages(SEND, at, timeout=0)
    await primary.close()


async def test_a_send_that_is_cancelled_unanswered_counts_as_a_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(route_module, "UNANSWERED_S", 0.05)
    wire, primary, _, _ = await make_pair(monkeypatch)
    sender = primary.get_queue_sender("orders")
    await sender.send_messages(SEND)

    def silent(host: str, _: str) -> Any:
        return asyncio.sleep(60) if host == "contoso" else None

    wire.rule = silent
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sender.send_messages(SEND), 0.1)
    assert primary.entity_states() == {"orders": State.DIVERTED}
    await asyncio.wait_for(sender.send_messages(SEND), 5)
    assert len(wire.on("contoso-backup")) == 1
    await primary.close()


async def test_so_does_one_that_is_cancelled_while_it_schedules_or_opens_a_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(route_module, "UNANSWERED_S", 0.05)
    _, primary, _, _ = await make_pair(monkeypatch)

    async def silent(self: Any, *_: Any, **__: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(SharedSender, "_open", silent)
    monkeypatch.setattr(SharedSender, "_mgmt_request_response", silent)
    at = datetime.now(UTC) + timedelta(hours=1)
    waits = [
        primary.get_queue_sender("scheduled").schedule_messages(SEND, at),
        primary.get_queue_sender("batches").create_message_batch(),
        primary.get_queue_sender("opened").__aenter__(),
    ]
    for wait in waits:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait, 0.1)
    assert set(primary.entity_states().values()) == {State.DIVERTED}
    await primary.close()


async def test_a_cancelling_that_is_broken_off_leaves_no_half_read_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, primary, _, _ = await make_pair(monkeypatch)
    sender = primary.get_queue_sender("orders")
    dropped: list[object] = []
    monkeypatch.setattr(SharedSender, "drop_link", lambda self: dropped.append(self))

    async def forever(*_: Any, **__: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(AsyncServiceBusSender, "cancel_scheduled_messages", forever)
    task = asyncio.create_task(sender.cancel_scheduled_messages(1))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert dropped == [sender]
    await primary.close()


async def test_a_send_that_is_cancelled_right_away_says_nothing_about_the_entity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert route_module.UNANSWERED_S == 1
    wire, primary, _, _ = await make_pair(monkeypatch)
    sender = primary.get_queue_sender("orders")
    wire.rule = lambda *_: asyncio.sleep(60)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sender.send_messages(SEND), 0.1)
    assert primary.entity_states() == {"orders": State.HEALTHY}
    await primary.close()


async def test_nor_does_one_that_waited_for_the_sends_of_others_or_for_a_busy_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(route_module, "UNANSWERED_S", 0.05)
    wire, primary, _, _ = await make_pair(monkeypatch)
    sender = primary.get_queue_sender("orders")
    wire.rule = lambda *_: asyncio.sleep(0.02)
    others = [asyncio.create_task(sender.send_messages(SEND)) for _ in range(20)]
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sender.send_messages(SEND), 0.1)
    await asyncio.gather(*others)
    wire.rule = raising(ServiceBusServerBusyError())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sender.send_messages(SEND), 0.1)
    assert primary.entity_states() == {"orders": State.HEALTHY}
    await primary.close()


async def pauses_of(
    monkeypatch: pytest.MonkeyPatch, error: Exception, **options: Any
) -> tuple[list[float], list[float]]:
    """How a send goes on that meets nothing but ``error``, on a clock of its own, with the SDK's
    default retries: the pauses, and the time that each attempt was given."""
    clock = SimpleNamespace(now=1000.0)
    pauses: list[float] = []
    given: list[float] = []

    async def no_time(seconds: float) -> None:
        pauses.append(seconds)
        clock.now += seconds

    async def attempt(self: Any, message: Any, **kwargs: Any) -> None:
        if self.entity_name == "orders":
            given.append(kwargs["timeout"])
            if isinstance(error, OperationTimeoutError):
                clock.now += kwargs["timeout"]
            raise error

    _, primary, _, _ = await make_pair(monkeypatch, factory={"retry_total": 3}, **options)
    with monkeypatch.context() as patch:
        patch.setattr(SharedSender, "_send", attempt)
        patch.setattr(time, "monotonic", lambda: clock.now)
        patch.setattr(asyncio, "sleep", no_time)
        with suppress(type(error)):
            await primary.get_queue_sender("orders").send_messages(SEND)
    await primary.close()
    return pauses, given


async def test_with_an_interval_of_zero_the_first_failure_is_soon_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the SDK's pauses of 1.6, 3.2 and 6.4 seconds the first alone ends in time."""
    pauses, given = await pauses_of(monkeypatch, broken())
    assert pauses == [1.6]
    pauses, given = await pauses_of(monkeypatch, OperationTimeoutError())
    assert (pauses, given) == ([], [10])


async def test_as_long_as_failures_are_accepted_the_sdks_retries_are_all_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    minute = timedelta(minutes=1)
    pauses, _ = await pauses_of(monkeypatch, broken(), failover_interval=minute)
    assert pauses == [1.6, 3.2, 6.4]
    _, given = await pauses_of(monkeypatch, OperationTimeoutError(), failover_interval=minute)
    assert given == [55], "all that the send has, but for what the backlog needs"


async def test_the_retry_window_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, _ = await pauses_of(monkeypatch, broken(), retry_window=timedelta(seconds=8))
    assert pauses == [1.6, 3.2]
    pauses, _ = await pauses_of(monkeypatch, broken(), retry_window=timedelta(0))
    assert pauses == []


async def test_a_key_that_is_refused_is_raised_without_another_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for error in (ServiceBusAuthenticationError(), ServiceBusAuthorizationError()):
        minute = timedelta(minutes=1)
        pauses, given = await pauses_of(monkeypatch, error, failover_interval=minute)
        assert (pauses, len(given)) == ([], 1)


async def test_a_token_that_ran_out_on_an_open_link_gets_a_new_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    factory = {"retry_total": 3, "retry_backoff_factor": 0.001}
    wire, primary, _, _ = await make_pair(monkeypatch, factory=factory)
    sender = await primary.get_queue_sender("orders").__aenter__()
    refusals = iter([ServiceBusAuthorizationError()])

    def once(_: str, __: str) -> None:
        for error in refusals:
            raise error

    wire.rule = once
    await sender.send_messages(SEND)
    assert len(wire.to("orders")) == 1
    await primary.close()


async def test_pings_come_every_interval_however_long_they_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, options = await make_pair(monkeypatch)
    wire.rule = raising(broken())
    options._ping_primary_interval = timedelta(milliseconds=500)
    began: list[float] = []
    enough = asyncio.Event()

    async def slow() -> None:
        began.append(time.monotonic())
        if len(began) == 4:
            enough.set()
        await asyncio.sleep(0.45)
        raise broken()

    await primary.get_queue_sender("orders").send_messages(SEND)
    wire.rule = lambda *_: slow()
    async with asyncio.timeout(20):
        await enough.wait()
    assert 1.4 < began[-1] - began[0] < 2.5, "not 2.85: three intervals and what the pings took"
    await primary.close()


async def test_without_a_pairing_too_a_busy_server_has_its_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch, factory={"retry_total": 3})
    primary.pairing = None
    waits: list[float] = []

    async def no_time(_: World, seconds: float) -> None:
        waits.append(seconds)

    def busy_twice(_: str, __: str) -> None:
        if len(waits) < 2:
            raise ServiceBusServerBusyError

    monkeypatch.setattr(World, "sleep", no_time)
    wire.rule = busy_twice
    sender = primary.get_queue_sender("orders")
    await sender.send_messages(SEND)
    assert waits == [10, 10]
    waits.clear()
    with pytest.raises(ServiceBusServerBusyError):
        await sender.send_messages(SEND, timeout=5)
    assert waits == []
    await primary.close()
