"""A port that is given a factory of clients, and knows nothing of what they are."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.echoes import WAYS, ask, echoes

from twinbus.serving import port as port_module


@pytest.mark.parametrize("way", WAYS)
async def test_a_client_of_any_kind_is_served(way: str, tmp_path: Path) -> None:
    async with echoes(tmp_path) as port:
        heard = await ask(port, way, tmp_path)
    assert heard == b"A WORD" or (way == "HTTP" and heard.endswith(b"over HTTP"))


def test_a_port_needs_no_broker(tmp_path: Path) -> None:
    """In an interpreter in which nothing else was imported."""
    command = [sys.executable, "-m", "harness.echoes", str(tmp_path)]
    told = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert told["heard"][:-1] == ["A WORD"] * 4
    assert "twinbus.serving.port" in told["modules"]
    assert not [name for name in told["modules"] if name.startswith("twinbus.broker")]


async def test_a_client_that_fails_is_told_so_and_closed_and_it_is_noted(tmp_path: Path) -> None:
    async with echoes(tmp_path) as port:
        assert await ask(port, "plain", tmp_path, b"fail") == b"failed"
        (failure,) = port._health.failures
        assert (failure.what, failure.entity) == ("connections", "echoes")
        assert await ask(port, "plain", tmp_path) == b"A WORD"


async def test_who_is_connected_is_told_the_time_and_goodbye(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_module, "TICK_S", 0.01)
    async with echoes(tmp_path) as port:
        reader, writer = await asyncio.open_connection("localhost", port.address.port)
        writer.write(b"x")
        assert await reader.read(1) == b"X"
        (client,) = port.clients
        await _until(lambda: client.ticks > 1)
    assert await reader.read() == b"closed"
    await _until(lambda: not client.is_connected)
    assert not port.peers
    writer.close()


async def test_nobody_is_read_from_while_the_gate_is_shut(tmp_path: Path) -> None:
    waiting: list[Callable[[], None]] = []

    class Gate:
        is_overloaded = False

        def when_relieved(self, callback: Callable[[], None]) -> None:
            waiting.append(callback)

    async with echoes(tmp_path) as port:
        gate = port.gate = Gate()
        reader, writer = await asyncio.open_connection("localhost", port.address.port)
        gate.is_overloaded = True
        writer.write(b"a")
        assert await reader.read(1) == b"A"
        writer.write(b"b")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)
        gate.is_overloaded = False
        for resume in waiting:
            resume()
        assert await reader.read(1) == b"B"
        writer.close()


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited 5 s")
