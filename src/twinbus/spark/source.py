"""Reading Service Bus from Spark: the source of the format ``servicebus``.

    spark.readStream.format("servicebus").option("connection", ...).option("queues", "a, b").load()

A row is a message under lock (see ``columns`` for the schema). The offset is a mere tick: what has
been processed is what has been settled, and only the broker knows that. So a checkpoint holds
nothing worth keeping, and a micro-batch that is run again reads whatever is there then.

    driver:  latestOffset   sleeps until a queue has a message, then says "tick"
             partitions     spreads the queues that are awake over a few tasks
    worker:  read           takes what is there now, in bites, and gives it to Spark
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from azure.servicebus import ServiceBusReceiveMode
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from twinbus.auth.credentials import Secret, secret_from
from twinbus.errors import TwinbusError, first_line
from twinbus.homeward.bites import ROWS_A_QUEUE, bites, spread
from twinbus.homeward.received import ReceivedMessage
from twinbus.sdk.links import links
from twinbus.sdk.raw import RawReceiver
from twinbus.spark import sink
from twinbus.spark.columns import COLUMNS, arrow_schema, ddl, record_batch
from twinbus.spark.kept import idle
from twinbus.spark.machine import MachineTimes
from twinbus.spark.troubles import Troubles
from twinbus.spark.watch import LONG_POLL_S, Line, Watch

log = logging.getLogger("twinbus.syphon")

FORMAT: Final = "servicebus"
TIMES: Final = MachineTimes()
# latestOffset says "nothing yet" this often, so that a query can be stopped while it waits.
SLICE_S: Final = 2.0
# With trigger(availableNow=True): a queue that is silent for this long is empty.
SILENCE_S: Final = 1.0


class OptionError(TwinbusError):
    """An option of the data source is missing or makes no sense."""


@dataclass(frozen=True)
class SourceOptions:
    """The options of a source, checked."""

    secret: Secret
    queues: tuple[str, ...]
    rows_a_queue: int = ROWS_A_QUEUE
    partitions: int = 2
    long_poll_s: float = LONG_POLL_S
    delete: bool = False
    ledger: str | None = None
    troubles: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        given = {name.lower(): value for name, value in options.items()}
        queues = tuple(name.strip() for name in given.get("queues", "").split(",") if name.strip())
        if not queues:
            raise OptionError('which queues? Give .option("queues", "orders, payments")')
        mode = given.get("receivemode", "peekLock")
        if mode.lower() not in ("peeklock", "receiveanddelete"):
            raise OptionError(f"receiveMode is {mode!r}; it is peekLock or receiveAndDelete")
        return cls(
            secret_from(options),
            queues,
            int(_number(given, "maxrowsperqueue", ROWS_A_QUEUE)),
            int(_number(given, "partitions", os.cpu_count() or 2)),
            _number(given, "longpoll", LONG_POLL_S),
            mode.lower() == "receiveanddelete",
            given.get("ledger"),
            given.get("troubles"),
        )


def _number(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0
    if value <= 0:
        raise OptionError(f"{name} is {text!r}; give a number above zero")
    return value


class ServiceBusSource(DataSource):
    """Service Bus for Spark: source and sink, stream and batch."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ddl()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(SourceOptions.of(self.options), _columns(schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(SourceOptions.of(self.options), _columns(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        return sink.stream_writer(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return sink.batch_writer(self.options, schema)


def _columns(schema: StructType) -> list[str]:
    names = [field.name for field in schema.fields]
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise OptionError(f"there is no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    return names


@dataclass
class Queues(InputPartition):
    """What one task reads."""

    paths: tuple[str, ...]


class _Reading:
    """Taking what is there now, in a task."""

    def __init__(self, options: SourceOptions, columns: list[str]) -> None:
        self.options = options
        self.columns = columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Queues)
        schema = arrow_schema(self.columns)
        options = self.options
        settings = _settings(options)
        taps = {
            path: LinkTap(path, links().receiver(options.secret, path, **settings))
            for path in partition.paths
        }
        for rows in bites(taps, options.rows_a_queue, TIMES, _silent):
            yield record_batch(rows, schema)


class LinkTap:
    """Receives from one queue over its link."""

    def __init__(self, path: str, link: RawReceiver) -> None:
        self._path = path
        self._link = link
        self.ask, self.let_go = link.ask, link.let_go

    def answer(self, count: int) -> list[ReceivedMessage]:
        taken, now_ms = self._link.answer(count), TIMES.now_ms()
        return [
            ReceivedMessage(self._path, each.lock_token, each.message, now_ms) for each in taken
        ]


def _silent(path: str, error: Exception) -> None:
    """A queue that does not answer has nothing for this batch; the watch will ask again."""
    log.warning("could not receive from %s: %s", path, first_line(error))


def _settings(options: SourceOptions) -> dict[str, Any]:
    if options.delete:
        return {"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE}
    return {}


def _partitions(options: SourceOptions, queues: Sequence[str]) -> list[Queues]:
    return [Queues(paths) for paths in spread(queues, options.partitions)]


class BatchReader(_Reading, DataSourceReader):
    """``spark.read``: what is there now."""

    def partitions(self) -> Sequence[InputPartition]:
        return _partitions(self.options, self.options.queues)


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``: what is there now, and what comes."""

    def __init__(self, options: SourceOptions, columns: list[str]) -> None:
        super().__init__(options, columns)
        self._watch: Watch | None = None
        self._awake: dict[int, list[str]] = {}
        self._wait_s = SLICE_S

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._wait_s = SILENCE_S

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"tick": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        watch = self._watching()
        awake = watch.wait(self._wait_s)
        if not awake:
            return start
        watch.let_go(awake)
        tick = start["tick"] + 1
        self._awake = {tick: awake}
        return {"tick": tick}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        if start == end:
            return []
        # A batch that a former run left behind is read from all queues: nobody remembers which.
        awake = self._awake.get(end["tick"], self.options.queues)
        return _partitions(self.options, awake)

    def stop(self) -> None:
        links().close()

    def _watching(self) -> Watch:
        if self._watch is None:
            # Under lock in receiveAndDelete too: the message that wakes us is given back.
            lines: dict[str, Line] = {
                queue: links().receiver(self.options.secret, queue) for queue in self.options.queues
            }
            asked = partial(idle, self.options.ledger, self.options.secret)
            told = Troubles(self.options.troubles).tell
            self._watch = Watch(lines, self.options.long_poll_s, asked, told)
        return self._watch
