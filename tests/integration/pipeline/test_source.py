"""The format `servicebus`, read: stream and batch, as anybody would from Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusError
from harness.brokers import BrokerProcess
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from tests.unit.pipeline.backlogs import ODD, STRANGE, UNREADABLE, otherwise, plain

from twinbus.auth.credentials import Secret
from twinbus.envelope import id_of
from twinbus.sdk.links import Links
from twinbus.spark.columns import COLUMNS
from twinbus.spark.source import ServiceBusSource

pytestmark = pytest.mark.timeout(300)
QUEUES: dict[str, dict[str, Any]] = {
    name: {} for name in ("batch", "subset", "one", "two", "deleted", "empty", "limited", "odd")
}


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(ServiceBusSource)
    return spark


@pytest.fixture
def links() -> Iterator[Links]:
    made = Links()
    yield made
    made.close()


def send(links: Links, broker: BrokerProcess, queue: str, *ids: str) -> None:
    secret = Secret(broker.connection_string)
    links.sender(secret, queue).send([plain(each, each.encode()) for each in ids])


def left(links: Links, broker: BrokerProcess, queue: str) -> list[str]:
    line = links.receiver(Secret(broker.connection_string), queue)
    return [str(id_of(each)) for each in line.peek(100)]


def read(session: SparkSession, broker: BrokerProcess, queues: str, **options: str) -> DataFrame:
    given = {"connection": broker.connection_string, "queues": queues, **options}
    return session.read.format("servicebus").options(**given).load()


def streamed(frame: DataFrame, checkpoint: Path) -> list[Row]:
    """Everything that is there now, in one run. Each batch is looked at once: to evaluate it again
    would be to receive again."""
    found: list[Row] = []
    query = (
        frame.writeStream.foreachBatch(lambda rows, batch: found.extend(rows.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return found


@pytest.mark.quick
def test_a_batch_reads_what_is_there_under_lock(
    session: SparkSession, broker: BrokerProcess, links: Links
) -> None:
    send(links, broker, "batch", "a", "b", "c")
    frame = read(session, broker, "batch")
    assert frame.columns == list(COLUMNS)
    rows = frame.collect()
    assert [(row.message_id, bytes(row.body)) for row in rows] == [
        ("a", b"a"),
        ("b", b"b"),
        ("c", b"c"),
    ]
    assert {row.entity for row in rows} == {"batch"}
    assert all(row.locked_until > row.received_time for row in rows)
    assert left(links, broker, "batch") == ["a", "b", "c"]
    assert read(session, broker, "batch").collect() == [], "they are locked"
    tokens = [row.lock_token for row in rows]
    assert len(set(tokens)) == 3


def test_a_schema_names_the_columns_that_are_wanted(
    session: SparkSession, broker: BrokerProcess, links: Links
) -> None:
    send(links, broker, "subset", "a")
    given = {"connection": broker.connection_string, "queues": "subset"}
    frame = session.read.format("servicebus").schema("body binary, entity string")
    (row,) = frame.options(**given).load().collect()
    assert row.asDict() == {"body": bytearray(b"a"), "entity": "subset"}


def test_a_stream_reads_several_queues_each_in_order(
    session: SparkSession, broker: BrokerProcess, links: Links, tmp_path: Path
) -> None:
    send(links, broker, "one", "1", "2", "3")
    send(links, broker, "two", "4", "5")
    given = {"connection": broker.connection_string, "queues": "one, two", "longPoll": "5"}
    frame = session.readStream.format("servicebus").options(**given).load()
    rows = streamed(frame.select("entity", "message_id"), tmp_path)
    assert [row.message_id for row in rows if row.entity == "one"] == ["1", "2", "3"]
    assert [row.message_id for row in rows if row.entity == "two"] == ["4", "5"]


def test_receive_and_delete_takes_them_away(
    session: SparkSession, broker: BrokerProcess, links: Links, tmp_path: Path
) -> None:
    send(links, broker, "deleted", "1", "2", "3")
    given = {
        "connection": broker.connection_string,
        "queues": "deleted",
        "receiveMode": "receiveAndDelete",
    }
    frame = session.readStream.format("servicebus").options(**given).load()
    assert len(streamed(frame.select("message_id"), tmp_path)) == 3
    assert left(links, broker, "deleted") == []


def test_a_batch_takes_no_more_of_a_queue_than_it_is_told(
    session: SparkSession, broker: BrokerProcess, links: Links
) -> None:
    send(links, broker, "limited", *map(str, range(10)))
    assert len(read(session, broker, "limited", maxRowsPerQueue="4").collect()) == 4


def test_one_that_cannot_be_read_keeps_no_other_from_being_read(
    session: SparkSession, broker: BrokerProcess, links: Links
) -> None:
    sender = links.sender(Secret(broker.connection_string), "odd")
    took = 0
    all_of_them = {**ODD, **UNREADABLE, **STRANGE}
    for name, message in all_of_them.items():
        with suppress(ServiceBusError):  # what the broker does not let in cannot lie there
            sender.send([message])
            took += 1
        sender.send([otherwise(plain(name), named=took % 2 == 0)])
    rows = read(session, broker, "odd").collect()
    ids = [row.message_id for row in rows if row.message_id in all_of_them]
    assert ids == [*all_of_them]
    assert len(rows) == len(ids) + took
    assert all(row.lock_token and row.sequence_number for row in rows)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queues": ""}, "which queues"),
        ({"receiveMode": "peek"}, "receiveMode is 'peek'; it is peekLock or receiveAndDelete"),
        ({"maxRowsPerQueue": "many"}, "maxrowsperqueue is 'many'; give a number above zero"),
        ({"longPoll": "-1"}, "longpoll is '-1'; give a number above zero"),
        ({"connectionEnv": "NOWHERE"}, "give exactly one of the options"),
        ({"connection": "Endpoint=sb://x"}, "connection is not a connection string"),
        ({"connection": ""}, "give exactly one of the options"),
        ({"connection": "", "connectionEnv": "NOT_SET"}, "variable NOT_SET, which is not set"),
        ({"connection": "", "connectionProvider": "nowhere:at_all"}, "it must be module:function"),
    ],
)
def test_an_option_that_makes_no_sense_is_told_in_a_sentence(
    session: SparkSession, broker: BrokerProcess, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        read(session, broker, **{"queues": "empty", **options}).collect()
    assert words in str(caught.value)
    assert "dGVzdC1rZXk" not in str(caught.value)


def test_a_column_that_is_not_there_is_told(session: SparkSession, broker: BrokerProcess) -> None:
    given = {"connection": broker.connection_string, "queues": "empty"}
    with pytest.raises(PySparkException, match="there is no column 'colour'"):
        session.read.format("servicebus").schema("colour string").options(**given).load().collect()
