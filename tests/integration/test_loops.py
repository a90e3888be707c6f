"""The broker's loops, with something planted that nobody foresaw: the real SDK beside it goes on.

The broker runs in this process, so that a method of a real object can be made to raise.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError
from harness.brokers import KEY
from harness.raw import Raw
from tests.worlds import World, receive_some

from twinbus.amqp.link_endpoint import RECEIVER
from twinbus.broker.config import NamespaceConfig
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.host import Host
from twinbus.broker.server import Broker, BrokerConfig
from twinbus.serving.peer import SocketPeer


class PlantedError(Exception):
    """Nobody expects this one."""


def fails(*_: Any, **__: Any) -> Any:
    raise PlantedError("planted")


class House:
    """A broker in this process, and a client that behaves well."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.text = broker.connection_strings()["contoso"]
        self.client = World("asyncio", self.text)

    @property
    def host(self) -> Host:
        return self.broker.hosts[0]

    async def health(self) -> tuple[int, dict[str, Any]]:
        url = f"http://localhost:{self.broker.admin_ports[0]}/health"
        async with httpx.AsyncClient() as client:
            answer = await client.get(url, timeout=30)
        return answer.status_code, json.loads(answer.text)

    async def failing(self, what: str) -> dict[str, Any]:
        """What is told of this kind of work, as soon as it is told."""
        found: dict[str, Any] = {}

        async def is_told() -> bool:
            status, told = await self.health()
            for each in told.get("failing", []):
                if each["what"] == what:
                    assert (status, told["status"]) == (503, "failing")
                    found.update(each)
            return bool(found)

        await until(is_told, f"{what} to fail on /health")
        return found

    async def healthy(self) -> None:
        async def is_well() -> bool:
            return await self.health() == (200, {"status": "healthy", "namespace": "contoso"})

        await until(is_well, "/health to be well again")

    async def passes(self, text: str) -> None:
        """A message goes through, sent and received and settled."""
        await self.client.send("well", ServiceBusMessage(text))
        assert [str(each) for each in await self.client.receive("well")] == [text]


def is_closed(guest: socket.socket) -> bool:
    """Whether its peer ends it, and does not leave it to wait."""
    try:
        return guest.recv(1) == b""
    except ConnectionResetError:
        return True


async def until(condition: Callable[[], Any], what: str) -> None:
    for _ in range(600):
        if await condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"waited 30 s for {what}")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    queues = {"q": QueueDescription(), "well": QueueDescription()}
    namespace = NamespaceConfig("contoso", 0, 0, queues=queues)
    broker = Broker(BrokerConfig([namespace], tmp_path, key=KEY))
    await broker.start()
    house = House(broker)
    yield house
    await house.client.close()
    await broker.stop()


@pytest.mark.parametrize("method", ["apply", "commit"])
async def test_a_commit_that_fails_as_nobody_foresaw_is_told_and_the_next_goes_on(
    house: House, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = house.host.namespace.store
    async with house.client.sender("q") as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        with monkeypatch.context() as planted:
            planted.setattr(store, method, fails)
            for _ in range(2):
                with pytest.raises(ServiceBusError, match="Nothing was changed; try again"):
                    await asyncio.wait_for(sender.send_messages(ServiceBusMessage("x")), 20)
            told = await house.failing("store")
            assert (told["entity"], told["times"]) == ("contoso", 2)
            assert told["error"] == "PlantedError: planted"
            assert told["since"] <= told["last"]
        await sender.send_messages(ServiceBusMessage("after"))
    await house.healthy()
    found = await house.client.receive("q", 2)
    assert [str(each) for each in found] == ["before", "after"]
    await house.passes("x")


async def test_a_store_that_cannot_even_roll_back_is_opened_anew(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = house.host.namespace.store
    async with house.client.sender("q") as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        with monkeypatch.context() as planted:
            planted.setattr(store, "_connect", fails)
            store._writer.close()
            with pytest.raises(ServiceBusError):
                await asyncio.wait_for(sender.send_messages(ServiceBusMessage("x")), 20)
            await house.failing("rollback")
        with pytest.raises(ServiceBusError):  # after which there is a new connection
            await asyncio.wait_for(sender.send_messages(ServiceBusMessage("x")), 20)
        await sender.send_messages(ServiceBusMessage("after"))
    await house.healthy()
    assert [str(each) for each in await house.client.receive("q", 2)] == ["before", "after"]


async def test_a_connection_that_cannot_be_served_keeps_no_other_from_the_port(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as planted:
        planted.setattr(house.host.port, "protocol_for", fails)
        with socket.create_connection(("127.0.0.1", house.host.port.address.port)) as guest:
            guest.sendall(b"AMQP\x00\x01\x00\x00")
            guest.settimeout(30)
            assert await asyncio.to_thread(is_closed, guest)
    told = await house.failing("connections")
    assert told["times"] == 1
    assert "Traceback" in caplog.text
    await house.passes("x")


async def test_a_connection_that_cannot_be_taken_keeps_no_other_from_the_port(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spawn(work: Coroutine[Any, Any, None]) -> None:
        work.close()
        fails()

    with monkeypatch.context() as planted:
        planted.setattr(house.host.port, "_spawn", spawn)
        with socket.create_connection(("127.0.0.1", house.host.port.address.port)) as guest:
            guest.settimeout(30)
            assert await asyncio.to_thread(is_closed, guest)
        await house.failing("accepting")
    await house.passes("x")
    await house.healthy()


async def test_a_client_that_fails_by_our_fault_is_closed_and_the_others_stay(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the sweep that ends idle links, and tells the time to every connection."""
    async with house.client.receiver("well") as receiver, house.client.sender("well") as sender:
        await sender.send_messages(ServiceBusMessage("1"))
        assert len(await receive_some(receiver, 1)) == 1
        mine = list(house.host.port.peers)
        other = World("asyncio", house.text)
        async with other.sender("q") as theirs:
            await theirs.send_messages(ServiceBusMessage("x"))
            for peer in house.host.port.peers:
                if peer not in mine:
                    monkeypatch.setattr(peer.client, "tick", fails)
            await house.failing("connections")
        await other.close()

        async def is_gone() -> bool:
            return list(house.host.port.peers) == mine

        await until(is_gone, "the connection that fails to be closed")
        await sender.send_messages(ServiceBusMessage("2"))
        assert [str(each) for each in await receive_some(receiver, 1)] == ["2"]


async def test_one_that_cannot_be_written_to_is_closed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = World("asyncio", house.text)
    async with other.sender("q") as sender:
        await sender.send_messages(ServiceBusMessage("x"))
        (peer,) = house.host.port.peers
        assert isinstance(peer, SocketPeer)
        monkeypatch.setattr(peer.client, "data_to_send", fails)
        with pytest.raises(ServiceBusError):
            await asyncio.wait_for(sender.send_messages(ServiceBusMessage("y")), 20)
        await house.failing("connections")
    await other.close()
    await house.passes("x")


async def test_the_same_of_one_that_came_by_websocket(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = house.text.replace(";UseDevelopmentEmulator=true", "")
    port = house.host.port.address.port
    other = World(
        "blocking",
        text,
        transport_type=TransportType.AmqpOverWebsocket,
        custom_endpoint_address=f"sb://localhost:{port}",
        connection_verify=str(house.broker.config.data / "certificate.pem"),
    )
    async with other.sender("q") as sender:
        await sender.send_messages(ServiceBusMessage("x"))
        (peer,) = house.host.port.peers
        monkeypatch.setattr(peer.client, "data_to_send", fails)
        with pytest.raises(ServiceBusError):
            await asyncio.wait_for(sender.send_messages(ServiceBusMessage("y")), 20)
        await house.failing("connections")

        async def is_gone() -> bool:
            return peer not in house.host.port.peers

        await until(is_gone, "the connection that fails to be closed")
    await other.close()
    await house.passes("x")


async def test_a_receiver_that_cannot_say_goodbye_takes_no_other_with_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both links were one connection's: the second would be delivered to for ever."""
    raw = await asyncio.to_thread(Raw, house.text)
    for path in ("q", "well"):
        await asyncio.to_thread(raw.attach, RECEIVER, path)
    find = house.host.namespace.directory.entity
    (first,), others = find("q").queue.consumers, find("well").queue.consumers
    monkeypatch.setattr(first, "close", fails)
    raw.socket.close()

    async def is_gone() -> bool:
        return not others

    await until(is_gone, "the second receiver to be let go")
    await house.failing("goodbye")
    await house.passes("x")


async def test_time_goes_on_whatever_one_tick_meets(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as planted:
        planted.setattr(house.host.namespace, "tick", fails)
        told = await house.failing("time")
        assert told["entity"] == "contoso"
    await house.healthy()
    await house.passes("x")
