"""The audit of a real pair, with a look into its real backlog."""

from __future__ import annotations

import asyncio
import json
from os import urandom
from pathlib import Path
from uuid import uuid4

from azure.servicebus import ServiceBusMessage
from harness.brokers import KEY, certificate
from pyspark.sql import SparkSession
from tests.pairs import Pair, two_brokers
from typer.testing import CliRunner

from twinbus.aio import NamespaceManager
from twinbus.cli import app


async def test_what_waits_in_the_backlog_is_peeked_by_the_audit_parts_and_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    async with two_brokers(tmp_path, {}) as brokers:
        pair = await Pair("asyncio", *brokers).open(
            factory={"ledger": ledger}, primary_name=f"audited-{uuid4().hex[:8]}"
        )
        whole = ServiceBusMessage(urandom(261_000), message_id="in parts")
        async with pair.sender(f"missing-{uuid4().hex[:8]}") as sender:
            await sender.send_messages(ServiceBusMessage("a", message_id="small"))
            await sender.send_messages(whole)
        await pair.close()
        secret = pair.secondary.connection_string
        arguments = ["audit", "--ledger", str(ledger), "--json"]
        peeking = ["--peek", secret, "--certificate", certificate(pair.secondary)]
        done = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, *peeking])
        assert done.exit_code == 0, done.output
        found = json.loads(done.output)
        assert (found["accepted"], found["waiting"], found["lost"]) == (2, 2, 0)
        assert KEY not in done.output
        (still_out,) = found["outages"]
        assert still_out["ended"] is None
        unpeeked = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        assert unpeeked.exit_code == 1
        assert json.loads(unpeeked.output)["lost"] == 2


async def test_what_the_service_gave_up_at_home_is_peeked_at_the_primary(
    spark: SparkSession, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    declared = {"orders": {"max_delivery_count": 1}}
    async with two_brokers(tmp_path, declared) as brokers:
        trust = certificate(brokers[0])
        async with NamespaceManager.from_connection_string(
            brokers[0].connection_string, connection_verify=trust
        ) as manager:
            await manager.create_topic("events")
            await manager.create_subscription("events", "all", max_delivery_count=1)
        pair = await Pair("asyncio", *brokers).open(pair=False, factory={"ledger": ledger})
        client = pair.factory
        for sender, receiver, name in (
            (pair.sender("orders"), pair.receiver("orders"), "poison"),
            (
                client.get_topic_sender("events"),
                client.get_subscription_receiver("events", "all"),
                "poison for some",
            ),
        ):
            async with sender, receiver:
                await sender.send_messages(ServiceBusMessage("a", message_id=name))
                (message,) = await receiver.receive_messages(1, max_wait_time=10)
                await receiver.abandon_message(message)
        await pair.close()
        arguments = ["audit", "--ledger", str(ledger), "--received", "--json"]
        peeking = ["--peek-primary", pair.primary.connection_string, "--certificate", trust]
        alone = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        done = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, *peeking])
    assert json.loads(alone.output)["ok"] == 2
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["accepted"], found["dead"], found["ok"]) == (2, 2, 0)
    dead = {(row["entity"], row["message_id"]) for row in found["questionable"]}
    assert dead == {("orders", "poison"), ("events", "poison for some")}
    assert KEY not in done.output
