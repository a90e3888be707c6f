"""What a pair did is in its ledger, record by record, in both worlds."""

from __future__ import annotations

import asyncio
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.management import ServiceBusAdministrationClient
from harness.brokers import certificate
from tests.pairs import Pair
from tests.times import is_prompt

from twinbus import PairingError
from twinbus.failover.states import State
from twinbus.ledger import MARKS, Ledger

QUEUES: dict[str, dict[str, Any]] = {"orders": {}, "quick": {}}


def records(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("day=*/*.parquet")):
        found += pq.ParquetFile(path).read().to_pylist()
    return found


def of(rows: list[dict[str, Any]], *operations: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["operation"] in operations]


async def test_sends_receives_and_settlements_are_recorded_with_ids_and_sizes(
    pair: Pair, tmp_path: Path
) -> None:
    await pair.open(factory={"ledger": tmp_path})
    host = pair.factory.fully_qualified_namespace
    async with pair.sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage(b"x" * 100, message_id="one"))
        await sender.send_messages(ServiceBusMessage(b"y" * 70_000, message_id="two"))
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        batch = await sender.create_message_batch()
        batch.add_message(ServiceBusMessage("c"))
        await sender.send_messages(batch)
        soon = datetime.now(UTC) + timedelta(hours=1)
        numbers = await sender.schedule_messages(ServiceBusMessage("later"), soon)
        await sender.cancel_scheduled_messages(numbers)
    got: list[str] = []
    async with pair.receiver("orders", max_wait_time=2) as receiver:
        while len(got) < 5:
            for message in await receiver.receive_messages(10, max_wait_time=5):
                got.append(message.message_id)
                if message.message_id == "one":
                    await receiver.renew_message_lock(message)
                await receiver.complete_message(message)
        assert await receiver.receive_messages(1, max_wait_time=0.2) == []
    await pair.call(pair.factory.close)
    rows = records(tmp_path)
    sent = of(rows, "send")
    assert [(row["count"], row["units"]) for row in sent[:3]] == [(1, 1), (1, 2), (2, 2)]
    assert sent[0]["message_ids"] == ["one"]
    assert sent[0]["bytes"] == 100
    assert {(row["namespace"], row["entity"], row["cause"], row["ok"]) for row in sent} == {
        (host, "orders", "normal", True)
    }
    ids = {each for row in sent for each in row["message_ids"]}
    assert ids == set(got)
    assert {each for row in of(rows, "receive") for each in row["message_ids"]} == ids
    assert {each for row in of(rows, "complete") for each in row["message_ids"]} == ids
    (scheduled,) = of(rows, "schedule")
    assert len(scheduled["message_ids"][0]) == 36
    assert len(of(rows, "empty_receive")) >= 1
    assert len(of(rows, "renew")) == 1
    listed = [row for row in of(rows, "manage") if row["entity"] == "$Resources/queues"]
    assert len(listed) == 1
    assert [row["entity"] for row in of(rows, "manage")].count("orders") == 1  # the cancelling


async def test_a_diversion_its_pings_and_its_end_are_recorded(pair: Pair, tmp_path: Path) -> None:
    path = f"late-{uuid4().hex[:8]}"
    await pair.open(factory={"ledger": tmp_path})
    primary, secondary = (each.fully_qualified_namespace for each in (pair.factory, pair.backup))
    async with pair.sender(path) as sender:
        await sender.send_messages(
            [ServiceBusMessage("a", message_id="one"), ServiceBusMessage("b", message_id="two")]
        )
        assert pair.state(path) is State.DIVERTED
        with ServiceBusAdministrationClient.from_connection_string(
            pair.primary.connection_string, connection_verify=certificate(pair.primary)
        ) as admin:
            admin.create_queue(path)
        await pair.until(path, State.HEALTHY)
        await sender.send_messages(ServiceBusMessage("c", message_id="three"))
    await pair.call(pair.factory.close)
    rows = records(tmp_path)
    (diverted,) = [row for row in rows if row["cause"] == "backlog_send"]
    assert diverted["message_ids"] == ["one", "two"]
    assert (diverted["count"], diverted["units"], diverted["ok"]) == (2, 2, True)
    assert diverted["namespace"] == secondary
    assert diverted["entity"] == "localhost/x-servicebus-transfer/0"
    assert diverted["destination"] == path
    tried = [row for row in of(rows, "send") if not row["ok"]]
    assert {each for row in tried for each in row["message_ids"]} <= {"one", "two"}
    assert all(row["units"] == 0 for row in tried)
    pings = of(rows, "ping")
    assert [(row["units"], row["cause"]) for row in pings if row["ok"]] == [(1, "ping")]
    assert pings[-1]["ok"]
    marks = [(row["operation"], row["namespace"]) for row in of(rows, *MARKS)]
    assert marks == [("suspect", primary), ("divert", primary), ("restore", primary)]
    (last,) = [row for row in of(rows, "send") if row["message_ids"] == ["three"]]
    assert (last["cause"], last["ok"], last["entity"]) == ("normal", True, path)


async def test_receiving_and_deleting_is_one_charge_and_counts_as_completed(
    pair: Pair, tmp_path: Path
) -> None:
    with Shared(tmp_path) as ledger:
        await pair.open(pair=False, factory={"ledger": ledger})
        async with pair.sender("quick") as sender:
            await sender.send_messages(ServiceBusMessage("a", message_id="one"))
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        async with pair.receiver("quick", receive_mode=mode) as receiver:
            assert len(await receiver.receive_messages(1, max_wait_time=5)) == 1
        await pair.call(pair.factory.close)
        assert ledger.status.waiting, "a ledger that was handed in is not closed by the factory"
    rows = records(tmp_path)
    assert [(row["operation"], row["units"]) for row in of(rows, "receive", "complete")] == [
        ("receive", 1),
        ("complete", 0),
    ]


class Shared:
    """A ledger of the test's own."""

    def __init__(self, where: str | Path, flush_interval_s: float = 600) -> None:
        self.ledger = Ledger(where, flush_interval_s=flush_interval_s)

    def __enter__(self) -> Ledger:
        return self.ledger

    def __exit__(self, *error: object) -> None:
        self.ledger.close(timeout_s=1)


async def test_a_ledger_that_cannot_be_written_fails_no_send(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    await pair.open(pair=False, factory={"ledger": tmp_path / "file" / "ledger"})
    async with pair.sender("quick") as sender:
        await sender.send_messages(ServiceBusMessage("a"))
        pair.factory.ledger.flush()
        await sender.send_messages(ServiceBusMessage("b"))
    assert pair.factory.ledger.status.error


async def test_a_store_that_refuses_or_never_answers_fails_and_delays_no_send(pair: Pair) -> None:
    with socket.create_server(("localhost", 0)) as refusing:
        closed = refusing.getsockname()[1]
    with socket.create_server(("localhost", 0)) as silent:
        for port in (closed, silent.getsockname()[1]):
            with Shared(f"ftp://localhost:{port}/ledger", flush_interval_s=0.01) as ledger:
                await pair.open(pair=False, factory={"ledger": ledger})
                async with pair.sender("quick") as sender:
                    await sender.send_messages(ServiceBusMessage("first opens the link"))
                    await asyncio.sleep(0.1)  # so that the thread is with the store
                    began = time.monotonic()
                    for _ in range(20):
                        await sender.send_messages(ServiceBusMessage("a"))
                    assert is_prompt(began, 10)
                await pair.close()
                assert ledger.status.written == 0
                assert bool(ledger.status.error) == (port == closed)


async def test_a_ledger_nowhere_is_refused(pair: Pair) -> None:
    with pytest.raises(PairingError, match="where is the ledger"):
        await pair.open(factory={"ledger": ""})
