"""The proxy: bytes over real sockets, and the real SDK through it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from harness.brokers import BrokerProcess
from tests.times import is_prompt
from tests.worlds import World

from twinbus.lab.proxy import Conditions, Proxy, _reset

_KINDS = ("asyncio", "blocking")
_NAMES = ("late", "narrow", "hole", "cut", "half", "frame", "tls")
QUEUES: dict[str, dict[str, Any]] = {f"{name}-{kind}": {} for name in _NAMES for kind in _KINDS}
QUEUES["command"] = {}


# --- bytes ------------------------------------------------------------------------------------


class Far:
    """The far side: keeps what it gets, and says it back if it echoes."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.ends: list[str] = []
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                self.got += data
                writer.write(data)
            self.ends.append("closed")
        except ConnectionError:
            self.ends.append("reset")
        finally:
            writer.close()

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()


@asynccontextmanager
async def line(**conditions: Any) -> AsyncIterator[tuple[Far, Proxy, Any, Any]]:
    """A client's two streams, through a proxy to a far side that echoes."""
    far = Far()
    await far.start()
    async with Proxy("127.0.0.1", far.port, conditions=Conditions(**conditions)) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        yield far, proxy, reader, writer
        writer.close()
    far.stop()


async def until(condition: Any) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_bytes_pass_unchanged_and_so_does_the_end() -> None:
    sent = os.urandom(3_000_000)
    async with line() as (far, _, reader, writer):
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        writer.write_eof()
        assert await reader.read() == b""
        assert (bytes(far.got), far.ends) == (sent, ["closed"])


async def test_latency_is_added_each_way_and_does_not_limit_how_much_passes() -> None:
    async with line(latency_ms=300) as (_, proxy, reader, writer):
        began = time.monotonic()
        for _ in range(50):
            writer.write(bytes(1_000))
            await asyncio.sleep(0)
        await reader.readexactly(50_000)
        assert 0.6 <= time.monotonic() - began < 10, "not 50 times as much"
        proxy.change(latency_ms=0)
        began = time.monotonic()
        writer.write(b"x")
        await reader.readexactly(1)
        assert is_prompt(began, 0.6)


async def test_bandwidth_limits_how_much_passes_in_a_second() -> None:
    async with line(bandwidth_kbps=80) as (_, _, reader, writer):
        began = time.monotonic()
        writer.write(bytes(10_000))
        await reader.readexactly(10_000)
        assert time.monotonic() - began >= 0.9, "80 kilobits are 10,000 bytes"


async def test_nothing_leaves_a_black_hole_until_it_ends_and_then_nothing_is_missing() -> None:
    async with line() as (far, proxy, reader, writer):
        proxy.change(black_hole=True)
        writer.write(b"held")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.5)
        assert far.got == b""
        proxy.change(black_hole=False)
        assert await reader.readexactly(4) == b"held"


async def test_a_cut_resets_both_sides() -> None:
    async with line() as (far, proxy, reader, writer):
        writer.write(b"x")
        await reader.readexactly(1)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        await until(lambda: far.ends == ["reset"])
        await until(lambda: proxy.connection_count == 0)


async def test_a_cut_after_so_many_bytes_delivers_those_and_no_more() -> None:
    async with line() as (far, proxy, reader, writer):
        writer.write(b"x")
        await reader.readexactly(1)
        proxy.cut_after(10)
        writer.write(bytes(25))
        with pytest.raises(ConnectionError):
            await reader.readexactly(25)
        await until(lambda: far.ends == ["closed"])
        assert len(far.got) == 11


async def test_a_half_open_connection_is_gone_on_one_side_and_silent_on_the_other() -> None:
    async with line() as (far, proxy, reader, writer):
        writer.write(b"x")
        await reader.readexactly(1)
        proxy.half_open()
        await until(lambda: far.ends == ["reset"])
        writer.write(bytes(10_000))
        await writer.drain()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.5)
        assert len(far.got) == 1
        writer.close()
        await until(lambda: proxy.connection_count == 0)


async def test_a_far_side_that_is_not_there_is_a_reset() -> None:
    async with Proxy("127.0.0.1", 1) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()


async def test_a_reset_of_the_far_side_is_a_reset_for_the_client() -> None:
    async def resetting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        _reset(writer)

    server = await asyncio.start_server(resetting, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Proxy("127.0.0.1", port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()
        await until(lambda: proxy.connection_count == 0)
    server.close()


async def test_each_connection_is_cut_at_its_own_time() -> None:
    async with line(cut_after_s=0.5) as (_, proxy, reader, writer):
        writer.write(b"x")
        await reader.readexactly(1)
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        await until(lambda: proxy.connection_count == 0)


def test_conditions_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="latency_ms is -1; it cannot be below 0"):
        Conditions(latency_ms=-1)


# --- the SDK ----------------------------------------------------------------------------------


@pytest.fixture
async def proxy(broker: BrokerProcess) -> AsyncIterator[Proxy]:
    async with Proxy("127.0.0.1", broker.port) as proxy:
        yield proxy


def through(broker: BrokerProcess, port: int) -> str:
    """The broker's connection string, by way of another port."""
    return broker.connection_string.replace(f"localhost:{broker.port}", f"localhost:{port}")


@pytest.fixture(params=_KINDS)
async def world(
    request: pytest.FixtureRequest, broker: BrokerProcess, proxy: Proxy
) -> AsyncIterator[World]:
    world = World(request.param, through(broker, proxy.port))
    yield world
    proxy.change(black_hole=False, latency_ms=0, bandwidth_kbps=0)
    proxy.cut()  # what is half open would make the SDK wait for an answer when it closes
    await world.close()


async def test_the_sdk_works_over_a_slow_and_narrow_line(world: World, proxy: Proxy) -> None:
    queue = f"late-{world.kind}"
    async with world.sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("quick"))
        proxy.change(latency_ms=250, bandwidth_kbps=400)
        began = time.monotonic()
        await sender.send_messages(ServiceBusMessage(bytes(10_000)))
        assert time.monotonic() - began >= 0.7
        proxy.change(latency_ms=0, bandwidth_kbps=0)
    assert len(await world.receive(queue, 2)) == 2


async def test_a_send_into_a_black_hole_times_out_and_may_have_arrived(
    world: World, proxy: Proxy
) -> None:
    queue = f"hole-{world.kind}"
    async with world.sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        proxy.change(black_hole=True)
        with pytest.raises(OperationTimeoutError):
            await sender.send_messages(ServiceBusMessage("into the hole"), timeout=1)
        proxy.change(black_hole=False)
    assert str((await world.peek(queue))[0]) == "before"


async def test_a_cut_connection_is_a_connection_error_and_the_next_send_gets_through(
    world: World, proxy: Proxy
) -> None:
    queue = f"cut-{world.kind}"
    async with world.sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        proxy.cut()
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("x"))
        await sender.send_messages(ServiceBusMessage("after"))
    assert [str(each) for each in await world.peek(queue)] == ["before", "after"]


async def test_a_frame_that_is_cut_in_the_middle_is_no_message(
    world: World, proxy: Proxy, broker: BrokerProcess
) -> None:
    queue = f"frame-{world.kind}"
    async with world.sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        proxy.cut_after(5_000)
        with pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage(bytes(20_000)))
        await sender.send_messages(ServiceBusMessage("after"))
    assert [str(each) for each in await world.peek(queue)] == ["before", "after"]


async def test_on_a_half_open_connection_a_send_times_out(world: World, proxy: Proxy) -> None:
    queue = f"half-{world.kind}"
    async with world.sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        proxy.half_open()
        with pytest.raises(OperationTimeoutError):
            await sender.send_messages(ServiceBusMessage("x"), timeout=1)
        proxy.cut()
    assert [str(each) for each in await world.peek(queue)] == ["before"]


@pytest.mark.parametrize("kind", _KINDS)
async def test_tls_passes_through(kind: str, broker: BrokerProcess, proxy: Proxy) -> None:
    """As it would to Azure: the certificate is the far side's, and the proxy sees bytes."""
    world = World(
        kind,
        broker.connection_string.replace(";UseDevelopmentEmulator=true", ""),
        custom_endpoint_address=f"sb://localhost:{proxy.port}",
        connection_verify=str(broker.folder / "data" / "certificate.pem"),
    )
    await world.send(f"tls-{kind}", ServiceBusMessage("x"))
    assert len(await world.receive(f"tls-{kind}")) == 1
    await world.close()


# --- the command ------------------------------------------------------------------------------


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("twinbus")), "proxy", *arguments]


def test_the_command_carries_bytes_until_it_is_stopped(broker: BrokerProcess) -> None:
    process = subprocess.Popen(
        command("--to", f"localhost:{broker.port}", "--latency-ms", "100"),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        told = process.stdout.readline()
        found = re.fullmatch(rf"localhost:(\d+) leads to localhost:{broker.port}\n", told)
        assert found is not None, told
        text = through(broker, int(found[1]))
        with (
            ServiceBusClient.from_connection_string(text) as client,
            client.get_queue_sender("command") as sender,
        ):
            began = time.monotonic()
            sender.send_messages(ServiceBusMessage("x"))
            assert time.monotonic() - began >= 0.2
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        process.stdout.close()


@pytest.mark.parametrize(
    ("arguments", "sentence", "code"),
    [
        (("--to", "localhost"), "give a host and a port, as localhost:5672", 2),
        (("--to", "localhost:http"), "give a host and a port, as localhost:5672", 2),
        (("--to", "localhost:1", "--host", "192.0.2.1"), "cannot listen on 192.0.2.1", 1),
    ],
)
def test_a_mistake_is_a_sentence(arguments: tuple[str, ...], sentence: str, code: int) -> None:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
