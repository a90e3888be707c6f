"""A real primary, really killed and really stopped, with sends going on: both worlds."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError
from tests.pairs import Pair, backlog, peek, properties, two_brokers
from tests.times import is_prompt

from twinbus import BacklogError, PairingError, envelope
from twinbus.failover.states import State
from twinbus.paired.events import Diverted, Pinged, Restored, Suspected

WORLDS = pytest.mark.parametrize("kind", ["asyncio", "blocking"])
QUEUES: dict[str, dict[str, Any]] = {
    "orders": {},
    "bills": {},
    "visits": {"requires_session": True},
}


@WORLDS
async def test_upon_failure_the_sender_diverts_and_starts_pings_and_comes_home(
    kind: str, tmp_path: Path
) -> None:
    async with two_brokers(tmp_path, QUEUES) as (primary, secondary):
        pair = await Pair(kind, primary, secondary).open()
        async with pair.sender("orders") as sender, pair.sender("orders") as other:
            await sender.send_messages(ServiceBusMessage("home 1"))
            primary.kill()
            await sender.send_messages(ServiceBusMessage("diverted 1", session_id="s"))
            assert pair.state("orders") is State.DIVERTED
            began = time.monotonic()
            await other.send_messages(ServiceBusMessage("diverted 2"))
            assert is_prompt(began, 1), "the other sender knows without trying"
            assert [str(each) for each in await backlog(pair)] == ["diverted 1", "diverted 2"]
            primary.start()
            await pair.until("orders", State.HEALTHY)
            await sender.send_messages(ServiceBusMessage("home 2"))
            await other.send_messages(ServiceBusMessage("home 3"))
        found = await peek(primary.connection_string, "orders")
        assert [str(each) for each in found] == ["home 1", "home 2", "home 3"]
        kinds = [type(event) for event in pair.events]
        assert kinds[:2] == [Suspected, Diverted]
        assert pair.seen(Pinged)[-1].succeeded
        assert len(pair.seen(Restored)) == 1
        pings = len(pair.seen(Pinged))
        await asyncio.sleep(1.5)
        assert len(pair.seen(Pinged)) == pings, "pings stop"
        await pair.close()


@WORLDS
async def test_a_primary_that_says_nothing_is_diverted_by_timeout(
    kind: str, tmp_path: Path
) -> None:
    async with two_brokers(tmp_path, QUEUES) as (primary, secondary):
        pair = await Pair(kind, primary, secondary).open()
        async with pair.sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("before"))
            os.kill(primary.pid, signal.SIGSTOP)
            try:
                began = time.monotonic()
                await sender.send_messages(ServiceBusMessage("during", message_id="1"), timeout=8)
                assert is_prompt(began, 9)
                assert pair.state("orders") is State.DIVERTED
            finally:
                os.kill(primary.pid, signal.SIGCONT)
            assert [str(each) for each in await backlog(pair)] == ["during"]
            await pair.until("orders", State.HEALTHY, within_s=25)
            await sender.send_messages(ServiceBusMessage("after"))
        await pair.close()


@WORLDS
async def test_a_link_that_died_in_a_quiet_period_is_replaced_before_the_send(
    kind: str, tmp_path: Path
) -> None:
    """No failure is seen, and no back-off waited for: the SDK alone would take seconds."""
    async with two_brokers(tmp_path, QUEUES) as (primary, secondary):
        pair = await Pair(kind, primary, secondary).open(
            factory={"retry_total": 3}, failover_interval=timedelta(minutes=1)
        )
        async with pair.sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("before"))
            await asyncio.to_thread(primary.kill)
            await asyncio.to_thread(primary.start)
            await asyncio.sleep(1.1)
            began = time.monotonic()
            await sender.send_messages(ServiceBusMessage("after"))
            took = time.monotonic() - began
        assert not pair.events
        assert took < 1.5, "what opening a link takes"
        assert len(await peek(primary.connection_string, "orders")) == 2
        await pair.close()


@WORLDS
async def test_failures_within_the_interval_reach_the_caller(kind: str, tmp_path: Path) -> None:
    interval = timedelta(seconds=3)
    async with two_brokers(tmp_path, QUEUES) as (primary, secondary):
        pair = await Pair(kind, primary, secondary).open(failover_interval=interval)
        async with pair.sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("before"))
            primary.kill()
            with pytest.raises(ServiceBusError):
                await sender.send_messages(ServiceBusMessage("lost to the caller"))
            assert pair.state("orders") is State.SUSPECT
            await pair.until("orders", State.DIVERTED)
            began = time.monotonic()
            await sender.send_messages(ServiceBusMessage("diverted"))
            assert is_prompt(began, 0.5), "the link to the backlog was opened meanwhile"
        suspected, diverted = pair.seen(Suspected)[0], pair.seen(Diverted)[0]
        assert 2.9 < diverted.at - suspected.at < 5
        assert [str(each) for each in await backlog(pair)] == ["diverted"]
        await pair.close()


@WORLDS
async def test_every_kind_of_message_is_diverted_and_unwraps_to_what_was_sent(
    kind: str, tmp_path: Path
) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    async with two_brokers(tmp_path, QUEUES) as (primary, secondary):
        pair = await Pair(kind, primary, secondary).open()
        primary.kill()
        async with pair.sender("orders") as sender:
            full = ServiceBusMessage(
                b"full",
                session_id="s1",
                message_id="m1",
                time_to_live=timedelta(minutes=5),
                scheduled_enqueue_time_utc=at,
                application_properties={"colour": "red"},
            )
            await sender.send_messages(full)
            await sender.send_messages([ServiceBusMessage("l1"), ServiceBusMessage("l2")])
            batch = await sender.create_message_batch()
            inner = batch._inner if hasattr(batch, "_inner") else batch
            inner.add_message(ServiceBusMessage("b1"))
            await sender.send_messages(inner)
            await sender.send_messages(AmqpAnnotatedMessage(value_body={"a": [1, None]}))
            numbers = await sender.schedule_messages(ServiceBusMessage("later"), at)
            assert all(number < 0 for number in numbers)
            with pytest.raises(PairingError, match="has no sequence number"):
                await sender.cancel_scheduled_messages(numbers)
            await sender.send_messages([])
            incompressible = os.urandom(261_900)
            await sender.send_messages(ServiceBusMessage(incompressible, message_id="big"))
            await sender.send_messages(ServiceBusMessage(b"x" * 261_900))
        found = await backlog(pair)
        await pair.close()
        first = found[0]
        assert properties(first) == {
            "colour": "red",
            "x-ms-path": "orders",
            "x-ms-sessionid": "s1",
            "x-ms-timetolive": 300_000,
            "x-ms-scheduledenqueuetimeutc": int(at.timestamp() * 1000),
            "x-ms-absoluteexpirytime": properties(first)["x-ms-absoluteexpirytime"],
        }
        assert (first.session_id, first.time_to_live, first.scheduled_enqueue_time_utc) == (
            (None,) * 3
        )
        assert first.message_id == "m1"
        assert all(each.message_id for each in found), "ids are assigned"
        assert [str(each) for each in found[1:4]] == ["l1", "l2", "b1"]
        assert found[4].raw_amqp_message.body == {b"a": [1, None]}
        assert "x-ms-scheduledenqueuetimeutc" in properties(found[5])
        parts, squeezed = found[6:8], found[8]
        assert [envelope.part_of(properties(each))[1:] for each in parts] == [(0, 2), (1, 2)]  # type: ignore[index]  # both are parts
        body = envelope.join_bodies(properties(parts[0]), [b"".join(each.body) for each in parts])
        assert incompressible in body
        assert properties(squeezed)["x-ms-encoding"] == "zlib"
        assert b"x" * 261_900 in envelope.join_bodies(
            properties(squeezed), [b"".join(squeezed.body)]
        )


@WORLDS
async def test_when_no_backlog_queue_takes_it_the_error_has_what_each_said(
    kind: str, tmp_path: Path
) -> None:
    async with two_brokers(tmp_path, QUEUES) as (primary, secondary):
        pair = await Pair(kind, primary, secondary).open(backlog_queue_count=2)
        async with pair.sender("orders") as sender:
            primary.kill()
            secondary.kill()
            with pytest.raises(BacklogError, match="none of 2 backlog queues") as caught:
                await sender.send_messages(ServiceBusMessage("nowhere to go"))
            assert len(caught.value.errors) == 2
            assert isinstance(caught.value, ServiceBusError)
            secondary.start()
            await sender.send_messages(ServiceBusMessage("there again"))
        assert len(await backlog(pair, 2)) == 1
        await pair.close()


@WORLDS
async def test_many_share_a_sender_through_an_outage_and_nothing_is_lost(
    kind: str, tmp_path: Path
) -> None:
    """Forty at once on one sender, the primary killed in the middle, and brought back."""
    async with two_brokers(tmp_path, QUEUES) as (primary, secondary):
        pair = await Pair(kind, primary, secondary).open()
        sent: set[str] = set()
        running = True

        async def work(sender: Any, name: int) -> None:
            number = 0
            while running:
                number += 1
                await sender.send_messages(ServiceBusMessage(b"", message_id=f"{name}-{number}"))
                sent.add(f"{name}-{number}")
                await asyncio.sleep(0.02)

        async with pair.sender("orders") as sender:
            jobs = [asyncio.create_task(work(sender, name)) for name in range(20)]
            await asyncio.sleep(1)
            await asyncio.to_thread(primary.kill)
            await asyncio.sleep(2)
            await asyncio.to_thread(primary.start)
            await pair.until("orders", State.HEALTHY)
            await asyncio.sleep(1)
            running = False
            await asyncio.gather(*jobs)
        await pair.close()
        home = await everything(primary.connection_string, "orders")
        waiting = await everything(secondary.connection_string, "localhost/x-servicebus-transfer/0")
        assert sent <= home | waiting
        assert home
        assert waiting


async def everything(connection_string: str, queue: str) -> set[str]:
    import azure.servicebus.aio as sdk

    client = sdk.ServiceBusClient.from_connection_string(connection_string)
    found: set[str] = set()
    number = 1
    async with client, client.get_queue_receiver(queue) as receiver:
        while True:
            page = await receiver.peek_messages(250, sequence_number=number)
            if not page:
                return found
            found |= {str(each.message_id) for each in page}
            number = (page[-1].sequence_number or 0) + 1
