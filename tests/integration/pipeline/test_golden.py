"""A checkpoint that an earlier version's syphon left: a query goes on from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from harness.brokers import BrokerProcess
from pyspark.sql import SparkSession
from tests.integration.pipeline.test_source import send, streamed

from twinbus.sdk.links import Links
from twinbus.spark.source import ServiceBusSource

KEPT = sorted((Path(__file__).parents[2] / "golden").glob("*/checkpoint"))
QUEUES: dict[str, dict[str, Any]] = {"backlog": {}}


@pytest.mark.parametrize("kept", KEPT, ids=lambda each: each.parts[-2])
def test_a_query_goes_on_from_a_checkpoint(
    kept: Path, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    spark.dataSource.register(ServiceBusSource)
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(kept, checkpoint)
    known = {path.name for path in (checkpoint / "commits").iterdir()}
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    links = Links()
    send(links, broker, "backlog", "a", "b")
    links.close()
    reader = spark.readStream.format("servicebus").option("queues", "backlog")
    frame = reader.option("connection", broker.connection_string).load()
    assert {row.message_id for row in streamed(frame, checkpoint)} == {"a", "b"}
    assert {path.name for path in (checkpoint / "commits").iterdir()} > known
    assert json.loads((checkpoint / "metadata").read_text())["id"] == query
