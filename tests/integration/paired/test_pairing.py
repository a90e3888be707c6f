"""Setting a pair up, and what it then does, against two real brokers that stay up: both worlds."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)
from azure.servicebus.management import EntityStatus, ServiceBusAdministrationClient
from harness.brokers import KEY, BrokerProcess, certificate
from tests.pairs import Pair, backlog, peek
from tests.syphons import stand_in
from tests.times import is_prompt

from twinbus import FactoryFaultedError, PairingError
from twinbus.failover.states import State
from twinbus.paired.events import BacklogQueueOut, Closed, Faulted

QUEUES: dict[str, dict[str, Any]] = {"orders": {}, "bills": {}, "taken": {}, "idle": {}}
QUEUES["visits"] = {"requires_session": True}
BACKLOG = "x-servicebus-transfer"
# What the documents set of a backlog queue.
TABLE = {
    "max_size_in_megabytes": 5120,
    "max_delivery_count": 2_147_483_647,
    "lock_duration": timedelta(minutes=1),
    "dead_lettering_on_message_expiration": True,
    "enable_batched_operations": True,
}
FOREVER = ("default_message_time_to_live", "auto_delete_on_idle")


def administration(process: BrokerProcess) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        process.connection_string, connection_verify=certificate(process)
    )


async def test_the_missing_backlog_queues_are_created_with_the_properties_of_the_documents_table(
    pair: Pair,
) -> None:
    name = f"fresh-{uuid4().hex[:8]}"
    await pair.open(backlog_queue_count=3, primary_name=name)
    assert pair.options.backlog_queue_count == 3
    with administration(pair.secondary) as admin:
        plain = admin.create_queue(f"{name}-plain")
        made = [queue for queue in admin.list_queues() if queue.name.startswith(f"{name}/")]
        assert sorted(queue.name for queue in made) == [f"{name}/{BACKLOG}/{n}" for n in range(3)]
        for queue in made:
            assert {each: getattr(queue, each) for each in TABLE} == TABLE
            for each in FOREVER:
                assert str(getattr(queue, each)).startswith("10675199 days")
            kept = vars(queue).keys() - TABLE.keys() - {"name", "_internal_qd", *FOREVER}
            assert {each: vars(queue)[each] for each in kept} == {
                each: vars(plain)[each] for each in kept
            }, "all else is as of a queue of which nothing is said"


async def test_queues_that_exist_are_left_alone_whether_extra_or_different(pair: Pair) -> None:
    name = f"kept-{uuid4().hex[:8]}"
    with administration(pair.secondary) as admin:
        admin.create_queue(f"{name}/{BACKLOG}/0", max_delivery_count=7)
        admin.create_queue(f"{name}/{BACKLOG}/7")
        await pair.open(backlog_queue_count=2, primary_name=name)
        assert pair.options.backlog_queue_count == 2
        queues = {queue.name: queue for queue in admin.list_queues()}
    assert queues[f"{name}/{BACKLOG}/0"].max_delivery_count == 7
    assert f"{name}/{BACKLOG}/1" in queues
    assert f"{name}/{BACKLOG}/7" in queues, "an extra queue is still present"
    assert f"{name}/{BACKLOG}/7" not in pair.factory.pairing.diverter.rotation.queues


async def test_the_factory_is_the_sdks_client_and_the_manager_its_administration_client(
    pair: Pair,
) -> None:
    await pair.open(pair=False)
    assert await pair.call(pair.manager.queue_exists, "orders") is False
    asynchronous = pair.kind == "asyncio"
    assert isinstance(pair.factory, AsyncServiceBusClient if asynchronous else ServiceBusClient)
    assert isinstance(
        pair.manager, AsyncAdministrationClient if asynchronous else ServiceBusAdministrationClient
    )


async def test_bad_credentials_raise_when_the_pairing_completes(pair: Pair) -> None:
    await pair.open(pair=False)
    bad = pair.secondary.connection_string.replace("SharedAccessKey=", "SharedAccessKey=bm8")
    manager = pair.module.NamespaceManager.from_connection_string(
        bad, connection_verify=certificate(pair.secondary)
    )
    pair.options.secondary_namespace_manager = manager
    began = time.monotonic()
    with pytest.raises(PairingError, match="needs a key or token with the Manage claim"):
        await pair.call(pair.factory.pair_namespace, pair.options)
    assert is_prompt(began, 2), "at once, not after three attempts"
    assert pair.factory.pairing is None
    await pair.call(manager.close)


async def test_a_second_pairing_is_refused(pair: Pair) -> None:
    await pair.open()
    with pytest.raises(PairingError, match="is paired already"):
        await pair.call(pair.factory.pair_namespace, pair.options)


async def test_code_written_for_the_sdk_works_unchanged_and_the_documents_calls_do_too(
    pair: Pair,
) -> None:
    await pair.open()
    name = f"d-{uuid4().hex}"
    queue = pair.wrapped(pair.factory.create_queue_client("orders"))
    sender = pair.wrapped(pair.factory.create_message_sender("orders"))
    await queue.send(ServiceBusMessage(name))
    await sender.send_messages(ServiceBusMessage(name))
    found: list[str] = []
    while len(found) < 2:
        message = await queue.receive(max_wait_time=5)
        assert message is not None
        await queue.complete(message)
        found += [str(message)] if str(message) == name else []
    await queue.close()
    await sender.close()


# The SDK calls aiohttp in a way that aiohttp would rather not be called.
@pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")
async def test_websockets_and_their_settings_pass_through(pair: Pair) -> None:
    settings = {
        "transport_type": TransportType.AmqpOverWebsocket,
        "connection_verify": certificate(pair.primary),
        "custom_endpoint_address": f"sb://localhost:{pair.primary.port}",
    }
    await pair.open(factory=settings, failover_interval=timedelta(minutes=1))
    async with pair.sender("idle") as sender:
        await sender.send_messages(ServiceBusMessage("over WebSockets"))
        await asyncio.sleep(1.1)
        await sender.send_messages(ServiceBusMessage("again, after a pause"))
    assert not pair.events


async def test_a_credential_instead_of_a_connection_string_passes_through(pair: Pair) -> None:
    await pair.open(pair=False)
    factory = pair.module.MessagingFactory(
        f"localhost:{pair.primary.port}",
        AzureNamedKeyCredential("RootManageSharedAccessKey", KEY),
        use_tls=False,
        retry_total=0,
        user_agent="mine",
    )
    await pair.call(factory.pair_namespace, pair.options)
    async with pair.wrapped(factory.get_queue_sender("idle", client_identifier="me")) as sender:
        await sender.send_messages(ServiceBusMessage("with a credential"))
        assert sender.client_identifier == "me"
    await pair.call(factory.close)


@pytest.mark.quick
async def test_an_entity_that_is_not_found_is_diverted_and_another_is_untouched(
    pair: Pair,
) -> None:
    """Failovers occur on an entity-by-entity basis."""
    name = f"gone-{uuid4().hex[:8]}"
    await pair.open(ping_primary_interval=timedelta(seconds=1))
    async with pair.sender(name) as gone, pair.sender("bills") as there:
        await gone.send_messages(ServiceBusMessage(name, session_id="s"))
        await there.send_messages(ServiceBusMessage(name))
        assert pair.state(name) is State.DIVERTED
        assert pair.state("bills") is State.HEALTHY
        with administration(pair.primary) as admin:
            await asyncio.to_thread(admin.create_queue, name, requires_session=True)
        await pair.until(name, State.HEALTHY)
        await gone.send_messages(ServiceBusMessage("home", session_id="s"))
    found = await peek_session(pair, name)
    assert found == ["home"], "a ping to a session entity is taken, and never delivered"
    assert name in [str(each) for each in await backlog(pair)]


async def test_session_state_is_kept_on_the_primary_alone_through_a_diversion(pair: Pair) -> None:
    """Messages of the session wait in the backlog, which knows no sessions; its state does not."""
    await pair.open(ping_primary_interval=timedelta(minutes=1))
    name, state = uuid4().hex, f"state of {pair.kind}".encode()
    with administration(pair.primary) as admin:
        await asyncio.to_thread(admin.create_queue, name, requires_session=True)
        queue = await asyncio.to_thread(admin.get_queue, name)
        async with pair.sender(name) as sender:
            await sender.send_messages(ServiceBusMessage("home", session_id="s"))
            queue.status = EntityStatus.SEND_DISABLED
            await asyncio.to_thread(admin.update_queue, queue)
            await sender.send_messages(ServiceBusMessage("diverted", session_id="s"))
            assert pair.state(name) is State.DIVERTED
    async with pair.receiver(name, session_id="s") as receiver:
        await receiver.session.set_state(state)
        assert [str(each) for each in await receiver.receive_messages(2, max_wait_time=1)] == [
            "home"
        ]
    client = AsyncServiceBusClient.from_connection_string(pair.primary.connection_string)
    async with client, client.get_queue_receiver(name, session_id="s") as receiver:
        assert await receiver.session.get_state() == state, "what a bare client sees there"
    with administration(pair.secondary) as admin:
        assert not any(queue.requires_session for queue in admin.list_queues())


async def peek_session(pair: Pair, queue: str) -> list[str]:
    client = AsyncServiceBusClient.from_connection_string(pair.primary.connection_string)
    async with client, client.get_queue_receiver(queue, session_id="s") as receiver:
        return [str(each) for each in await receiver.peek_messages(10, sequence_number=1)]


async def test_a_backlog_queue_that_is_gone_leaves_the_rotation(pair: Pair) -> None:
    name = f"rotated-{uuid4().hex[:8]}"
    await pair.open(backlog_queue_count=2, primary_name=name)
    with administration(pair.secondary) as admin:
        await asyncio.to_thread(admin.delete_queue, f"{name}/{BACKLOG}/0")
    for number in range(6):
        async with pair.sender(f"nowhere-{number}") as sender:
            sender_object = getattr(sender, "_inner", sender)
            sender_object._join().sticky = f"{name}/{BACKLOG}/0"
            await sender.send_messages(ServiceBusMessage(str(number)))
    assert len(pair.seen(BacklogQueueOut)) == 1
    found = await peek(pair.secondary.connection_string, f"{name}/{BACKLOG}/1")
    assert [str(each) for each in found] == [str(number) for number in range(6)]


async def test_one_sender_is_used_by_many_at_once(pair: Pair) -> None:
    await pair.open()
    before = len(await peek(pair.primary.connection_string, "orders", 250))
    async with pair.sender("orders") as sender:
        await asyncio.gather(
            *(sender.send_messages(ServiceBusMessage("together")) for _ in range(40))
        )
    async with pair.sender("orders", batch_flush_interval=timedelta(milliseconds=5)) as sender:
        await asyncio.gather(
            *(sender.send_messages(ServiceBusMessage("gathered")) for _ in range(40))
        )
    assert len(await peek(pair.primary.connection_string, "orders", 250)) - before == 80


async def test_closing_one_factory_faults_the_other_after_five_seconds(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an application that hosts the syphon."""
    script = stand_in(tmp_path, "echo the syphon runs", "read end_of_input")
    monkeypatch.setattr("twinbus.paired.syphon_process.sys", SimpleNamespace(executable=script))
    await pair.open(enable_syphon=True)
    seen: list[Any] = []
    pair.backup.add_listener(seen.append)
    async with pair.sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("x"))
    began = time.monotonic()
    await pair.call(pair.factory.close)
    assert len(pair.seen(Closed)) == 1
    assert not pair.backup.is_closed
    while not pair.backup.is_closed:
        assert is_prompt(began, 8)
        await asyncio.sleep(0.05)
    assert 4.5 < time.monotonic() - began < 7
    await asyncio.sleep(0.1)
    assert [type(event) for event in seen] == [Faulted]
    with pytest.raises(
        FactoryFaultedError, match=r"has faulted: its partner .* ended 5 seconds ago"
    ):
        pair.backup.get_queue_sender("orders")


async def test_a_partner_closed_in_time_is_not_faulted_and_nothing_is_left_behind(
    pair: Pair,
) -> None:
    threads = set(threading.enumerate())
    tasks = asyncio.all_tasks()
    await pair.open()
    seen: list[Any] = []
    pair.backup.add_listener(seen.append)
    async with pair.sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("x"))
    await pair.call(pair.factory.close)
    await pair.call(pair.backup.close)
    await pair.call(pair.manager.close)
    assert [type(event) for event in seen] == [Closed]
    end = time.monotonic() + 2
    while left := {
        thread
        for thread in set(threading.enumerate()) - threads
        if not thread.name.startswith(("asyncio_", "ThreadPool"))
    }:
        assert time.monotonic() < end, left
        await asyncio.sleep(0.02)
    assert asyncio.all_tasks() == tasks


async def test_faulting_the_primary_is_seen_by_every_call_and_by_the_partner(pair: Pair) -> None:
    await pair.open()
    async with pair.sender("orders") as sender:
        await pair.call(pair.factory.fault, "the disk is on fire")
        with pytest.raises(FactoryFaultedError, match=r"localhost.*the disk is on fire"):
            await sender.send_messages(ServiceBusMessage("x"))
    with pytest.raises(FactoryFaultedError, match="the disk is on fire"):
        pair.factory.create_queue_client("orders")
    await pair.call(pair.backup.close)
