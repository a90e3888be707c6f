"""The format `servicebus`, written: stream and batch; and a bridge from one queue to another."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage
from harness.brokers import BrokerProcess
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.unit.pipeline.backlogs import plain

from twinbus.auth.credentials import Secret
from twinbus.envelope import id_of
from twinbus.sdk.links import Links
from twinbus.spark.sink import UNREADABLE, BatchWriter, SinkError, SinkOptions
from twinbus.spark.source import ServiceBusSource

pytestmark = pytest.mark.timeout(300)
QUEUES: dict[str, dict[str, Any]] = {
    name: {} for name in ("full", "red", "blue", "whole", "from", "to", "streamed", "odd", "rest")
}


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(ServiceBusSource)
    return spark


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(broker.connection_string) as made:
        yield made


def peek(client: ServiceBusClient, queue: str) -> list[ServiceBusReceivedMessage]:
    with client.get_queue_receiver(queue) as receiver:
        return receiver.peek_messages(100, sequence_number=1)


def test_every_column_becomes_a_property(
    session: SparkSession, broker: BrokerProcess, client: ServiceBusClient
) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    row = {
        "body": bytearray(b"hi"),
        "message_id": "m",
        "session_id": "s",
        "correlation_id": "c",
        "content_type": "text/plain",
        "subject": "about",
        "to": "you",
        "reply_to": "me",
        "partition_key": "s",
        "time_to_live_ms": 60_000,
        "scheduled_enqueue_time": later,
        "application_properties": {"colour": "red"},
    }
    schema = (
        "body binary, message_id string, session_id string, correlation_id string, "
        "content_type string, subject string, to string, reply_to string, partition_key string, "
        "time_to_live_ms bigint, scheduled_enqueue_time timestamp, "
        "application_properties map<string,string>"
    )
    frame = session.createDataFrame([tuple(row.values())], schema)
    options = {"connection": broker.connection_string, "entity": "full"}
    frame.write.format("servicebus").mode("append").options(**options).save()
    (found,) = peek(client, "full")
    assert b"".join(found.body) == b"hi"
    assert (found.message_id, found.session_id, found.correlation_id) == ("m", "s", "c")
    assert (found.content_type, found.subject, found.to, found.reply_to) == (
        *("text/plain", "about"),
        *("you", "me"),
    )
    assert (found.partition_key, found.time_to_live) == ("s", timedelta(minutes=1))
    assert found.scheduled_enqueue_time_utc == later
    assert found.application_properties == {b"colour": b"red"}


def test_a_column_says_where_each_row_goes_and_rows_keep_their_order(
    session: SparkSession, broker: BrokerProcess, client: ServiceBusClient
) -> None:
    rows = [("red" if number % 2 else "blue", str(number)) for number in range(20)]
    frame = session.createDataFrame(rows, "entity string, body string").coalesce(1)
    frame.write.format("servicebus").mode("append").option(
        "connection", broker.connection_string
    ).save()
    assert [str(each) for each in peek(client, "red")] == [str(n) for n in range(1, 20, 2)]
    assert [str(each) for each in peek(client, "blue")] == [str(n) for n in range(0, 20, 2)]


def test_an_encoded_message_is_sent_as_it_is(
    session: SparkSession, broker: BrokerProcess, client: ServiceBusClient
) -> None:
    frame = session.createDataFrame([(bytearray(plain("whole", ttl_ms=5000)),)], "message binary")
    options = {"connection": broker.connection_string, "entity": "whole"}
    frame.write.format("servicebus").mode("append").options(**options).save()
    (found,) = peek(client, "whole")
    assert (found.message_id, found.time_to_live) == ("whole", timedelta(seconds=5))


def test_a_stream_is_a_bridge_that_settles_what_it_has_sent(
    session: SparkSession, broker: BrokerProcess, client: ServiceBusClient, tmp_path: Path
) -> None:
    links = Links()
    secret = Secret(broker.connection_string)
    links.sender(secret, "from").send([plain(str(number)) for number in range(10)])
    source = {"connection": broker.connection_string, "queues": "from", "partitions": "1"}
    frame = session.readStream.format("servicebus").options(**source).load()
    query = (
        frame.select("entity", "lock_token", "message")
        .writeStream.format("servicebus")
        .option("connection", broker.connection_string)
        .option("settleConnection", broker.connection_string)
        .option("entity", "to")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    found = links.receiver(secret, "to").peek(100)
    assert [id_of(each) for each in found] == [str(number) for number in range(10)]
    assert links.receiver(secret, "from").peek(100) == []
    links.close()


def test_a_row_that_can_be_no_message_is_set_aside_where_it_came_from_and_the_others_are_sent(
    broker: BrokerProcess, client: ServiceBusClient
) -> None:
    links = Links()
    secret = Secret(broker.connection_string)
    links.sender(secret, "odd").send([plain("bad"), plain("good")])
    bad, good = links.receiver(secret, "odd").take(2)
    rows = {
        "entity": ["odd", "odd"],
        "lock_token": [str(bad.lock_token), str(good.lock_token)],
        "message": [b"\xff" + bad.message, good.message],
    }
    options = SinkOptions(secret, "rest", settle=secret)
    writer = BatchWriter(options)
    assert writer.write(iter([pa.RecordBatch.from_pydict(rows)])).messages == 1
    assert [each.message_id for each in peek(client, "rest")] == ["good"]
    assert peek(client, "odd") == []
    (dead,) = links.receiver(secret, "odd/$DeadLetterQueue").peek(9)
    assert UNREADABLE.encode() in dead
    with pytest.raises(SinkError, match="a row cannot be a message"):
        BatchWriter(SinkOptions(secret, "rest")).write(iter([pa.RecordBatch.from_pydict(rows)]))
    links.close()


@pytest.mark.parametrize(
    ("schema", "options", "words"),
    [
        ("body string", {}, "where to?"),
        ("entity string", {}, "a row needs a column `message` (encoded) or `body`"),
        ("body string", {"entity": "to", "settleConnectionEnv": "X"}, "`entity` and `lock_token`"),
        ("body string", {"entity": "to", "connection": ""}, "give exactly one of the options"),
        ("body int", {"entity": "to"}, "it must be binary or a string"),
        ("body string", {"entity": "nowhere"}, "could not be found"),
    ],
)
def test_rows_that_cannot_be_sent_are_told_in_a_sentence(
    session: SparkSession, broker: BrokerProcess, schema: str, options: dict[str, str], words: str
) -> None:
    value = 7 if "int" in schema else "x"
    frame = session.createDataFrame([(value,)], schema)
    given = {"connection": broker.connection_string, **options}
    with pytest.raises(PySparkException) as caught:
        frame.write.format("servicebus").mode("append").options(**given).save()
    assert words in str(caught.value)
    assert "dGVzdC1rZXk" not in str(caught.value)
