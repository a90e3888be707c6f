"""`enable_syphon=True`: the syphon lives and dies with the factory."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from azure.servicebus import ServiceBusMessage
from tests.pairs import Pair, backlog, peek, two_brokers
from tests.times import is_prompt

from twinbus.paired.events import SyphonEnded, SyphonStarted

QUEUES: dict[str, dict[str, Any]] = {"orders": {}}
WORLDS = pytest.mark.parametrize("kind", ["asyncio", "blocking"])


async def until(condition: Any, within_s: float) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


def group(pid: int) -> list[int]:
    """Who is in the process group of the syphon."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


@pytest.mark.timeout(300)
async def test_what_was_diverted_comes_home_by_itself_though_the_syphon_is_killed(
    tmp_path: Path,
) -> None:
    async with two_brokers(tmp_path, QUEUES) as (primary, secondary):
        pair = await Pair("asyncio", primary, secondary).open(enable_syphon=True)
        async with pair.sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("direct"))
            primary.kill()
            await sender.send_messages(ServiceBusMessage("diverted"))
        os.killpg(pair.seen(SyphonStarted)[0].pid, signal.SIGKILL)
        await until(lambda: len(pair.seen(SyphonStarted)) == 2, 30)
        assert "exit code -9" in pair.seen(SyphonEnded)[0].error
        primary.start()
        end = time.monotonic() + 120
        while len(found := await peek(primary.connection_string, "orders")) < 2:
            assert time.monotonic() < end
            await asyncio.sleep(0.5)
        assert [str(each) for each in found] == ["direct", "diverted"]
        assert await backlog(pair) == []
        pid = pair.seen(SyphonStarted)[1].pid
        began = time.monotonic()
        await pair.close()
        assert is_prompt(began, 5)
        await until(lambda: not group(pid), 5)


@WORLDS
async def test_closing_the_factory_ends_the_syphon_within_five_seconds(
    kind: str, tmp_path: Path
) -> None:
    async with two_brokers(tmp_path, QUEUES) as (primary, secondary):
        pair = await Pair(kind, primary, secondary).open(enable_syphon=True)
        await until(lambda: pair.seen(SyphonStarted), 10)
        pid = pair.seen(SyphonStarted)[0].pid
        assert psutil.pid_exists(pid)
        keys = [part for part in primary.connection_string.split(";") if "Key=" in part]
        assert not any(key in " ".join(psutil.Process(pid).cmdline()) for key in keys)
        began = time.monotonic()
        await pair.call(pair.factory.close)
        assert is_prompt(began, 5)
        await until(lambda: not group(pid), 5)  # what was killed takes a moment to be gone
        await pair.close()


@WORLDS
async def test_a_factory_that_faults_takes_the_syphon_along(kind: str, tmp_path: Path) -> None:
    async with two_brokers(tmp_path, QUEUES) as (primary, secondary):
        pair = await Pair(kind, primary, secondary).open(enable_syphon=True)
        await until(lambda: pair.seen(SyphonStarted), 10)
        pid = pair.seen(SyphonStarted)[0].pid
        await pair.call(pair.backup.close)  # and nobody closes the primary's
        await until(lambda: pair.factory.is_closed, 8)
        await until(lambda: not group(pid), 5)
        await pair.close()
