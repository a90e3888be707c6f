"""A broker's own ledger, against what the real SDK did and against what its client recorded."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from harness.brokers import BrokerProcess
from pyspark.sql import SparkSession
from tests.integration.administrators import Administrator
from tests.pairs import Pair
from tests.times import is_prompt
from typer.testing import CliRunner, Result

from twinbus.cli import app

Tally = Counter[tuple[str, str]]


class Brokers:
    """A primary and a secondary that keep the same ledger, as their clients do."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger"
        queues: dict[str, dict[str, Any]] = {
            "orders": {},
            "quick": {},
            "relay": {"forward_to": "orders"},
            "by-session": {"requires_session": True},
            "impatient": {"max_delivery_count": 2},
            "strict": {"forward_to": "by-session"},
            "perishable": {"dead_lettering_on_expiration": True},
        }
        extra = ("--ledger", str(self.ledger))
        self.processes = []
        for name, declared in (("primary", queues), ("secondary", {})):
            (folder / name).mkdir()
            self.processes.append(BrokerProcess(folder / name, declared, extra=extra))

    def stop(self) -> None:
        """As an operator would, so that all that waits is written."""
        for process in self.processes:
            if process.process is not None:
                assert process.stop() == 0
                assert "Traceback" not in process.log(), process.log()

    def rows(self, kept_by: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for path in sorted(self.ledger.glob("day=*/*.parquet")):
            found += pq.ParquetFile(path).read().to_pylist()
        return [row for row in found if row["kept_by"] == kept_by]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path)
    for process in made.processes:
        process.start()
    yield made
    for process in made.processes:
        process.close()


def sums(rows: list[dict[str, Any]], column: str) -> Tally:
    found: Tally = Counter()
    for row in rows:
        if row["ok"] and row["operation"] not in ("divert", "restore"):
            found[row["operation"], row["entity"].lower()] += row[column]
    return found


def ids(rows: list[dict[str, Any]], operation: str) -> list[str]:
    named = [row["message_ids"] for row in rows if row["operation"] == operation and row["ok"]]
    return sorted(each for some in named for each in some)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(
        app, [str(each) for each in arguments], env={"TWINBUS_SECONDARY": "", "TWINBUS_LEDGER": ""}
    )


async def said(*arguments: object, code: int = 0) -> dict[str, Any]:
    done = await asyncio.to_thread(run, *arguments, "--json")
    assert done.exit_code == code, done.output
    document: dict[str, Any] = json.loads(done.output)
    return document


async def _receive(receiver: Any, count: int) -> list[Any]:
    found: list[Any] = []
    end = time.monotonic() + 20
    while len(found) < count:
        assert time.monotonic() < end
        found += await receiver.receive_messages(count - len(found), max_wait_time=5)
    return found


async def _traffic(pair: Pair) -> None:
    """One of everything, with the real SDK."""
    async with pair.sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage(b"x" * 100, message_id="small"))
        await sender.send_messages(ServiceBusMessage(b"y" * 70_000, message_id="large"))
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        soon = datetime.now(UTC) + timedelta(hours=1)
        later = [ServiceBusMessage("c"), ServiceBusMessage("d")]
        numbers = await sender.schedule_messages(later, soon)
        await sender.cancel_scheduled_messages(numbers)
    async with pair.receiver("orders") as receiver:
        one, two, three, four = await _receive(receiver, 4)
        await receiver.renew_message_lock(one)
        await receiver.complete_message(one)
        await receiver.dead_letter_message(two)
        await receiver.defer_message(three)
        (deferred,) = await receiver.receive_deferred_messages(three.sequence_number)
        await receiver.complete_message(deferred)
        await receiver.abandon_message(four)
        (again,) = await _receive(receiver, 1)
        await receiver.complete_message(again)
        assert await receiver.peek_messages(5) == []
        assert await receiver.receive_messages(1, max_wait_time=0.2) == []
    async with pair.sender("quick") as sender:
        await sender.send_messages(ServiceBusMessage("d", message_id="quick"))
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with pair.receiver("quick", receive_mode=mode) as receiver:
        await _receive(receiver, 1)


COUNTS: Tally = Counter(
    {
        ("send", "orders"): 4,
        ("schedule", "orders"): 2,
        ("manage", "orders"): 2,  # cancelling, peeking
        ("receive", "orders"): 6,
        ("renew", "orders"): 1,
        ("complete", "orders"): 3,
        ("dead_letter", "orders"): 1,
        ("defer", "orders"): 1,
        ("abandon", "orders"): 1,
        ("empty_receive", "orders"): 1,
        ("send", "quick"): 1,
        ("receive", "quick"): 1,
        ("complete", "quick"): 1,
    }
)
# A large message is charged twice, wherever it passes; deleting while receiving is free.
UNITS: Tally = COUNTS + Counter({("send", "orders"): 1, ("receive", "orders"): 1})
del UNITS["complete", "quick"]


@pytest.mark.parametrize("kind", ["asyncio", "blocking"])
async def test_the_broker_counts_what_the_client_did_and_a_bill_counts_it_once(
    spark: SparkSession, brokers: Brokers, kind: str
) -> None:
    pair = await Pair(kind, *brokers.processes).open(pair=False, factory={"ledger": brokers.ledger})
    await _traffic(pair)
    await pair.close()
    brokers.stop()
    views = {keeper: brokers.rows(keeper) for keeper in ("client", "broker")}
    for rows in views.values():
        assert sums(rows, "count") == COUNTS
        assert +sums(rows, "units") == UNITS
    for operation in ("send", "receive", "complete", "dead_letter", "defer", "abandon", "schedule"):
        assert ids(views["broker"], operation) == ids(views["client"], operation), operation
    assert {row["namespace"] for row in views["broker"]} == {"contoso"}

    bills = {
        keeper: await said("cost", "--ledger", brokers.ledger, "--kept-by", keeper)
        for keeper in views
    }
    unsaid = await said("cost", "--ledger", brokers.ledger)
    assert unsaid == bills["client"]
    for bill in bills.values():
        assert bill["operations"] == sum(UNITS.values())
    view = ("audit", "--ledger", brokers.ledger, "--received", "--kept-by")
    for keeper in views:
        audit = await said(*view, keeper, code=1)
        counts = {name: audit[name] for name in ("accepted", "ok", "dead", "lost", "duplicated")}
        # What was scheduled and cancelled nobody received, and cancelling is no evidence.
        assert counts == {"accepted": 7, "ok": 4, "dead": 1, "lost": 2, "duplicated": 0}


async def test_what_went_to_the_backlog_is_known_by_the_broker_of_the_backlog(
    spark: SparkSession, brokers: Brokers
) -> None:
    pair = await Pair("asyncio", *brokers.processes).open(factory={"ledger": brokers.ledger})
    async with pair.sender("nowhere") as sender:
        await sender.send_messages(ServiceBusMessage("a", message_id="away"))
    async with pair.sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("b", message_id="home"))
    await pair.close()
    brokers.stop()
    (diverted,) = [row for row in brokers.rows("broker") if row["cause"] == "backlog_send"]
    assert diverted["entity"] == "localhost/x-servicebus-transfer/0"
    assert (diverted["destination"], diverted["message_ids"]) == ("nowhere", ["away"])
    found = await said("audit", "--ledger", brokers.ledger, "--kept-by", "broker", code=1)
    assert (found["accepted"], found["ok"], found["lost"]) == (2, 1, 1)
    assert [row["message_id"] for row in found["questionable"]] == ["away"]


async def test_forwarding_and_managing_are_recorded_by_the_broker_alone(
    spark: SparkSession, brokers: Brokers
) -> None:
    primary = brokers.processes[0]
    admin = Administrator("asyncio", primary)
    await admin.get_queue("relay")
    await admin.close()
    pair = await Pair("asyncio", *brokers.processes).open(pair=False)
    async with pair.sender("relay") as sender:
        await sender.send_messages(ServiceBusMessage("a", message_id="passed on"))
    async with pair.receiver("orders") as receiver:
        await receiver.complete_message((await _receive(receiver, 1))[0])
    await pair.close()
    brokers.stop()
    rows = brokers.rows("broker")
    (forward,) = [row for row in rows if row["operation"] == "forward"]
    assert (forward["entity"], forward["destination"]) == ("relay", "orders")
    assert (forward["message_ids"], forward["units"]) == (["passed on"], 1)
    assert sums(rows, "count") == {
        ("manage", "relay"): 1,
        ("send", "relay"): 1,
        ("forward", "relay"): 1,
        ("receive", "orders"): 1,
        ("complete", "orders"): 1,
    }
    alone = await asyncio.to_thread(run, "cost", "--ledger", brokers.ledger)
    assert alone.exit_code == 2
    assert "only brokers kept the ledger" in alone.output
    assert "--kept-by broker" in alone.output
    steps = await said("trace", "passed on", "--ledger", brokers.ledger)
    assert [each["step"] for each in steps["steps"]] == [
        "sent to relay",
        "forwarded from relay to orders",
        "received from orders",
        "completed at orders",
    ]


async def test_what_the_broker_gives_up_is_recorded_free_of_charge_and_found_dead(
    spark: SparkSession, brokers: Brokers
) -> None:
    pair = await Pair("asyncio", *brokers.processes).open(
        pair=False, factory={"ledger": brokers.ledger}
    )
    async with pair.sender("impatient") as sender:
        await sender.send_messages(ServiceBusMessage("a", message_id="poison"))
    async with pair.receiver("impatient") as receiver:
        for _ in range(2):
            await receiver.abandon_message((await _receive(receiver, 1))[0])
    async with pair.sender("strict") as sender:
        await sender.send_messages(ServiceBusMessage("b", message_id="nowhere to go"))
    soon = timedelta(milliseconds=200)
    async with pair.sender("perishable") as sender:
        await sender.send_messages(ServiceBusMessage("c", message_id="old", time_to_live=soon))
    await asyncio.sleep(2)
    await pair.close()
    brokers.stop()
    dead = [row for row in brokers.rows("broker") if row["operation"] == "dead_letter"]
    assert {(row["entity"], *row["message_ids"], row["units"]) for row in dead} == {
        ("impatient", "poison", 0),
        ("strict", "nowhere to go", 0),
        ("perishable", "old", 0),
    }
    found = await said("audit", "--ledger", brokers.ledger, "--received", "--kept-by", "broker")
    assert (found["accepted"], found["dead"], found["lost"]) == (3, 3, 0)
    steps = await said("trace", "poison", "--ledger", brokers.ledger)
    by_broker = [each["step"] for each in steps["steps"] if each["namespace"] == "contoso"]
    assert by_broker[-2:] == ["abandoned at impatient", "dead-lettered at impatient"]


async def test_a_ledger_that_cannot_be_written_fails_no_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    where = str(tmp_path / "file" / "ledger")
    broker = BrokerProcess(tmp_path, {"orders": {}}, extra=("--ledger", where))
    broker.start()
    pair = await Pair("asyncio", broker, broker).open(pair=False)
    async with pair.sender("orders") as sender:
        await sender.send_messages([ServiceBusMessage("a")] * 100)
    async with pair.receiver("orders") as receiver:
        for message in await _receive(receiver, 100):
            await receiver.complete_message(message)
    await pair.close()
    began = time.monotonic()
    assert broker.stop() == 0
    assert is_prompt(began, 10)
    assert "the ledger at" in broker.log()
    assert "records for the ledger" in broker.log()
    assert "Traceback" not in broker.log()


def test_a_ledger_nowhere_is_a_sentence(tmp_path: Path) -> None:
    done = run("broker", "--data", tmp_path, "--port", 0, "--admin-port", 0, "--ledger", "")
    assert done.exit_code == 2
    assert "where is the ledger" in done.output
