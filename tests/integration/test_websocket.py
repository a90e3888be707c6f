"""AMQP inside WebSockets: the real SDK's AmqpOverWebsocket in both kinds, and rough peers."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import websocket
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue, TransportType
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from harness.brokers import BrokerProcess
from tests.integration.administrators import KINDS, admin_port, certificate
from tests.worlds import World, receive_some

_SETTINGS: dict[str, dict[str, Any]] = {
    "settle": {},
    "large": {},
    "sessions": {"requires_session": True},
    "cut": {"lock_duration": 5},
}
QUEUES = {f"{name}-{kind}": settings for name, settings in _SETTINGS.items() for kind in KINDS}


def websocket_world(
    kind: str, broker: BrokerProcess, port: int = 0, text: str = "", **options: Any
) -> World:
    """A client that speaks AMQP over WebSockets over TLS, as behind a firewall."""
    text = re.sub(";UseDevelopmentEmulator=true", "", text or broker.connection_string)
    return World(
        kind,
        text,
        transport_type=TransportType.AmqpOverWebsocket,
        custom_endpoint_address=f"sb://localhost:{port or broker.port}",
        connection_verify=str(certificate(broker)),
        **options,
    )


@pytest.fixture(params=KINDS)
async def world(request: pytest.FixtureRequest, broker: BrokerProcess) -> AsyncIterator[World]:
    world = websocket_world(request.param, broker)
    yield world
    await world.close()


@pytest.mark.quick
async def test_messages_are_sent_received_and_settled(world: World) -> None:
    queue = f"settle-{world.kind}"
    async with world.sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(f"{n}") for n in range(5)])
    async with world.receiver(queue) as receiver:
        zero, one, two, three, four = await receive_some(receiver, 5)
        await receiver.complete_message(zero)
        await receiver.abandon_message(one)
        await receiver.defer_message(two)
        await receiver.dead_letter_message(three, reason="why")
        await receiver.renew_message_lock(four)
        (again,) = await receive_some(receiver, 1)
        assert (str(again), again.delivery_count) == ("1", 1)
        (deferred,) = await receiver.receive_deferred_messages(two.sequence_number)
        for message in (again, deferred, four):
            await receiver.complete_message(message)
        assert await receiver.peek_messages(10, sequence_number=1) == []
    (dead,) = await world.receive(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert (str(dead), dead.dead_letter_reason) == ("3", "why")


async def test_large_messages_and_many_at_once_pass(world: World) -> None:
    queue = f"large-{world.kind}"
    body = bytes(range(256)) * 1_000
    async with world.sender(queue) as sender:
        for _ in range(10):
            await sender.send_messages(ServiceBusMessage(body))
        batch = [ServiceBusMessage(b"y" * 2_000) for _ in range(100)]
        await sender.send_messages(batch)
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(b"x" * 300_000))
    async with world.receiver(queue, prefetch_count=110) as receiver:
        found = await receive_some(receiver, 110, within_s=30)
        for message in found:
            await receiver.complete_message(message)
        assert await receiver.peek_messages(10, sequence_number=1) == []
    bodies = [b"".join(message.body) for message in found]
    assert bodies == [body] * 10 + [b"y" * 2_000] * 100


async def test_sessions_keep_order_and_state(world: World) -> None:
    queue = f"sessions-{world.kind}"
    await world.send(queue, *[ServiceBusMessage(f"{n}", session_id=f"s{n % 2}") for n in range(6)])
    async with world.receiver(queue, session_id="s1") as receiver:
        await receiver.session.set_state(b"state")
        await receiver.session.renew_lock()
        found = await receive_some(receiver, 3)
        for message in found:
            await receiver.complete_message(message)
        assert await receiver.session.get_state() == b"state"
    assert [str(message) for message in found] == ["1", "3", "5"]


async def test_wrong_key_is_refused(broker: BrokerProcess) -> None:
    text = broker.connection_string.replace("SharedAccessKey=", "SharedAccessKey=V1JPTkc")
    for kind in KINDS:
        world = websocket_world(kind, broker, text=text)
        # With an endpoint of one's own, this is what the SDK makes of a token that is refused.
        with pytest.raises(ServiceBusConnectionError):
            await world.send(f"settle-{kind}", ServiceBusMessage("x"))
        await world.close()
    assert broker.log().count("is not signed with a key") >= len(KINDS)


class Wire:
    """A TCP relay that can be cut, with no goodbye to either side."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("localhost", self._to)
        self._writers += [writer, far_writer]
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    def cut(self) -> int:
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.transport.abort()
        return len(writers)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


@asynccontextmanager
async def relayed(broker: BrokerProcess) -> AsyncIterator[tuple[Wire, int]]:
    wire = Wire(broker.port)
    server = await asyncio.start_server(wire.serve, "localhost", 0)
    yield wire, server.sockets[0].getsockname()[1]
    server.close()
    wire.cut()
    await asyncio.sleep(0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_cut_socket_loses_no_message_and_the_client_goes_on(
    broker: BrokerProcess, kind: str
) -> None:
    # The SDK drops a socket that was cut without closing it. With a loop of its own, and swept up
    # at its end, that is not held against whichever test comes next.
    asyncio.run(_cut_and_go_on(broker, kind))
    gc.collect()


async def _cut_and_go_on(broker: BrokerProcess, kind: str) -> None:
    queue = f"cut-{kind}"
    async with relayed(broker) as (wire, port):
        world = websocket_world(kind, broker, port, retry_total=3, retry_backoff_factor=0.1)
        sender, receiver = world.sender(queue), world.receiver(queue)
        await sender.send_messages(ServiceBusMessage("before"))
        (message,) = await receive_some(receiver, 1)
        assert wire.cut() >= 4
        await asyncio.sleep(0.2)
        await sender.send_messages(ServiceBusMessage("after"))
        # The lock outlives the socket by its duration, and then the message comes again.
        found = await receive_some(receiver, 2, within_s=15)
        assert {(str(each), each.delivery_count) for each in found} == {
            ("before", 1),
            ("after", 0),
        }
        for each in found:
            await receiver.complete_message(each)
        with pytest.raises((MessageLockLostError, ServiceBusError)):
            await receiver.complete_message(message)
        assert await receiver.peek_messages(10, sequence_number=1) == []
        await receiver.close()
        await sender.close()
        await world.close()


# --- rough peers --------------------------------------------------------------------------


@contextmanager
def opened(broker: BrokerProcess, path: str = "/$servicebus/websocket") -> Iterator[Any]:
    port = admin_port(broker)
    # A socket of our own: the library forgets to close its own if it is refused or hung up on.
    with socket.create_connection(("localhost", port), timeout=10) as plain:
        link = websocket.create_connection(
            f"ws://localhost:{port}{path}", timeout=10, subprotocols=["AMQPWSB10"], socket=plain
        )
        yield link
        link.close()


def test_plain_websocket_on_the_admin_port_speaks_amqp(broker: BrokerProcess) -> None:
    with opened(broker) as link:
        assert link.getsubprotocol().upper() == "AMQPWSB10"
        # A header in two messages is a header: WebSocket messages are no frames of AMQP.
        link.send_binary(b"AMQP\x00")
        link.send_binary(b"\x01\x00\x00")
        assert link.recv() == b"AMQP\x00\x01\x00\x00"


def test_text_and_nonsense_end_the_socket_and_nothing_else(broker: BrokerProcess) -> None:
    with opened(broker) as link:
        link.send("AMQP")
        assert link.recv() in (b"", "")
    with opened(broker) as link:
        link.send_binary(b"GET / HTTP/1.1\r\n\r\n" * 100)
        while link.recv():
            pass
    with opened(broker) as link:
        link.send_binary(b"")
        link.send_binary(b"AMQP\x00\x01\x00\x00")
        assert link.recv() == b"AMQP\x00\x01\x00\x00"
    assert "Traceback" not in broker.log()


def test_other_paths_take_no_websocket(broker: BrokerProcess) -> None:
    with (
        pytest.raises(websocket.WebSocketBadStatusException, match="403"),
        opened(broker, "/elsewhere"),
    ):
        pass
