"""The syphon: a Spark query that moves the backlog home.

    servicebus source --> a round a micro-batch: carry --> tallies
         ^                                                   |
         |  waits for messages     Driver, Progress  <-------+

A round is one Spark job over the rows of one micro-batch; its only result is what became of them.
The driver (see ``homeward.driver``) keeps what is known of each destination and gives the next
round its orders. Nothing else is kept: the broker knows what is still to do, so a syphon may be
killed at any moment, and a checkpoint may be deleted.
"""

from __future__ import annotations

import logging
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from twinbus.auth.credentials import Secret
from twinbus.client_errors import ClientError, EnvelopeError
from twinbus.envelope import home_of, part_of
from twinbus.errors import first_line
from twinbus.homeward.bites import BITE, ROWS_A_QUEUE
from twinbus.homeward.carrier import NOWHERE
from twinbus.homeward.driver import Driver
from twinbus.homeward.received import ReceivedMessage, enqueued_us
from twinbus.homeward.rounds import FIRST_RETRY_S, LAST_RETRY_S, Destinations, Orders, Tally
from twinbus.sdk.links import Links
from twinbus.spark import troubles
from twinbus.spark.columns import ddl
from twinbus.spark.source import FORMAT, ServiceBusSource
from twinbus.spark.watch import LONG_POLL_S
from twinbus.syphon.post import BACKLOG_COLUMNS, TALLY_DDL, SdkWorld, carry, tallies_of
from twinbus.syphon.progress import Listener, Progress, Snapshot

log = logging.getLogger("twinbus.syphon")

# With a rate, a round reads no more than this many seconds' worth.
ROUND_S: Final = 10.0
# But never less of a queue than this: the parts of a message must be read in one round to meet.
LEAST_ROWS: Final = 100
# What was left behind is receivable after a minute. If nothing has moved for longer, nothing will.
PATIENCE_S: Final = 100.0
# A round that is under way when the syphon is stopped has this long to end.
STOP_S: Final = 3.0
# With --once the syphon gives up after so many failures of the query in a row.
MOST_FAILURES: Final = 3
# How often it is then asked whether the backlog is empty.
LOOK_S: Final = 0.25
# How often the backlog is counted while messages move.
COUNT_S: Final = 10.0
# Of each queue, so many messages are looked at to see where they belong.
LOOKED_AT: Final = 250


TimeToLive = Literal["whole", "remaining"]

# What a session for the syphon is to be started with.
SETTINGS: Final = {"spark.python.daemon.module": "twinbus.spark.daemon"}


_PYTHONS_LAST_LINE: Final = re.compile(r"\w[\w.]*(Error|Exception): ")

# What is raised on this side of a Java that has ended.
GONE: Final = (Py4JError, OSError)


class SyphonError(ClientError):
    """The syphon has ended, and not because it was asked to."""


@dataclass(frozen=True)
class SyphonOptions:
    """What to move, and how."""

    primary: Secret
    secondary: Secret
    queues: tuple[str, ...]
    checkpoint: Path | str | None = None
    rate: float | None = None
    time_to_live: TimeToLive = "whole"
    long_poll_s: float = LONG_POLL_S
    partitions: int | None = None
    ledger: str | None = None

    def __post_init__(self) -> None:
        if not self.queues:
            raise SyphonError("there is no backlog queue to move anything from")
        if self.rate is not None and self.rate <= 0:
            raise SyphonError(f"the rate is {self.rate}; give messages a second, above zero")
        if self.time_to_live not in ("whole", "remaining"):
            raise SyphonError(f"ttl is {self.time_to_live!r}; it is whole or remaining")


class Syphon:
    """One query. ``start``, then ``stop``; or ``drain``, which ends when the backlog is empty."""

    def __init__(
        self,
        spark: SparkSession,
        options: SyphonOptions,
        tell: Callable[[Snapshot], None] = lambda snapshot: None,
    ) -> None:
        self.progress = Progress()
        self._spark = spark
        self._options = options
        self._workers = options.partitions or max(1, spark.sparkContext.defaultParallelism)
        self._share = self._rows_a_queue()
        self._destinations = Destinations(
            min(self._workers, len(options.queues)),
            options.rate,
            options.time_to_live == "remaining",
            self._share,
        )
        self._driver = Driver(self._destinations, options.queues)
        self._listener = Listener(self.progress, tell, self.look)
        self._query: StreamingQuery | None = None
        self._stopping = threading.Event()
        self._busy = threading.Lock()
        self._first: int | None = None
        self._moved_at = time.monotonic()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._failures = 0  # of the query, since a round has last come to its end
        self._began = time.monotonic()
        self._again_at: float | None = None
        self._looked_at = time.monotonic()
        # Of the thread that drains, and of Spark's, which calls for rounds and listeners.
        self._own_links, self._round_links = Links(), Links()

    # ------------------------------------------------------------ from outside

    def start(self) -> None:
        """Move whatever comes, from now on."""
        self._spark.dataSource.register(ServiceBusSource)
        threading.Thread(target=self._warm_up, daemon=True).start()
        self._spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", BITE)
        self._spark.streams.addListener(self._listener)
        self._begin()

    def _begin(self) -> None:
        self._began = time.monotonic()
        self._query = (
            self._backlog()
            .writeStream.foreachBatch(self._round)
            .queryName("syphon")
            .option("checkpointLocation", self._checkpoint())
            .start()
        )

    def stop(self, within_s: float = STOP_S) -> None:
        """End the query, after the round that is under way if that does not take too long.

        What a round that was cut short has received comes back when its locks end.
        """
        self._stopping.set()
        query, self._query = self._query, None
        if query is None:
            return
        in_time = self._busy.acquire(timeout=within_s)
        try:
            with _java_may_be_gone():
                query.stop()
                self._spark.streams.removeListener(self._listener)
        finally:
            if in_time:
                self._busy.release()
            self._own_links.close()
            self._round_links.close()
            if self._folder is not None:
                self._folder.cleanup()

    def quit(self) -> None:
        """End Spark too."""
        with _java_may_be_gone():
            self._spark.stop()

    def check(self, *, most_failures: int | None = None) -> None:
        """Begin the query again if it has failed, sooner or later. Raise SyphonError if Spark has
        ended, or if no round has come to its end in so many attempts."""
        if self._query is None:
            return
        self._tell_silent("queues", troubles.read(self._own / "troubles"))
        try:
            if self._again_at is None:
                self._see(self._query.exception(), most_failures)
            elif time.monotonic() >= self._again_at:
                self._again_at = None
                self.progress.restarted()
                self._begin()
        except GONE as error:
            raise SyphonError("the syphon has failed: its Spark has ended") from error
        except SyphonError:
            raise
        except Exception as error:  # noqa: BLE001  Spark would not begin; it may, later
            self._see(error, most_failures)

    def _see(self, failure: Exception | None, most: int | None) -> None:
        if failure is None:
            if time.monotonic() - self._began > LAST_RETRY_S:
                self._is_well()
            return
        self._failures += 1
        if self._failures == most or self._spark.sparkContext._jsc.sc().isStopped():
            raise SyphonError(f"the syphon has failed: {_said(failure)}") from failure
        pause = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(self._failures - 1, 10))
        self._again_at = time.monotonic() + pause
        said = f"the query failed and begins again in {pause:g} s: {_said(failure)}"
        self.progress.trouble("query", {"the syphon": said})

    def _is_well(self) -> None:
        """A round has come to its end, or the query has run for long."""
        self._failures = 0
        self.progress.trouble("query", {})

    def drain(self, patience_s: float = PATIENCE_S, stopped: threading.Event | None = None) -> bool:
        """Start, move everything home, and stop. False if something stays that does not move, or
        if ``stopped`` was set."""
        stopped = stopped or threading.Event()
        self.start()
        try:
            while not stopped.wait(LOOK_S):
                self.check(most_failures=MOST_FAILURES)
                if self._is_empty():
                    return True
                if self._stands_still(patience_s):
                    break
            return False
        finally:
            self.stop()
            self._count(self._own_links)
            self._own_links.close()

    def down(self) -> dict[str, str]:
        """The destinations that do not take messages, and what they say."""
        return self._destinations.down()

    def look(self) -> None:
        """Count what is in the backlog, by destination; exact where a queue has few messages."""
        with self._busy:
            self._count(self._round_links)

    def _count(self, kept: Links) -> None:
        found: dict[str, int] = {}
        total, exact = 0, True
        silent: dict[str, str] = {}
        came: list[int] = []
        for queue in self._options.queues:
            try:
                messages = kept.receiver(self._options.secondary, queue).peek(LOOKED_AT)
            except Exception as error:  # noqa: BLE001  one queue's trouble is not the others'
                silent[queue] = first_line(error)
                continue
            total += len(messages)
            exact = exact and len(messages) < LOOKED_AT
            came += [at for each in messages[:1] if (at := enqueued_us(each)) is not None]
            for message in messages:
                destination = _destination(message)
                if destination is not None:
                    found[destination] = found.get(destination, 0) + 1
        oldest = min(came) / 1e6 if came else None
        self._tell_silent("look", silent)
        self.progress.look(found, total, exact=exact and not silent, oldest=oldest)

    def _tell_silent(self, kind: str, silent: Mapping[str, str]) -> None:
        told = {each: f"the secondary does not answer: {said}" for each, said in silent.items()}
        self.progress.trouble(kind, told)

    # ------------------------------------------------------------ the query

    def _backlog(self) -> DataFrame:
        options = self._options
        reader = self._spark.readStream.format(FORMAT).schema(ddl(BACKLOG_COLUMNS))
        if options.ledger is not None:
            reader = reader.option("ledger", options.ledger)
        return (
            reader.option("connection", options.secondary.reveal())
            .option("queues", ",".join(options.queues))
            .option("troubles", str(self._own / "troubles"))
            .option("partitions", self._workers)
            .option("maxRowsPerQueue", self._share)
            .option("longPoll", options.long_poll_s)
            .load()
        )

    def _warm_up(self) -> None:
        """Have Spark start its Python workers now, while it prepares the query, and not then."""
        try:
            self._spark.range(1).mapInArrow(_unchanged, "id bigint").collect()
        except Exception:
            # If Spark does not work, the query will say so; and Spark may be ending already.
            log.debug("the warm-up did not work", exc_info=True)

    def _rows_a_queue(self) -> int:
        rate, queues = self._options.rate, len(self._options.queues)
        if rate is None:
            return ROWS_A_QUEUE
        return max(LEAST_ROWS, min(ROWS_A_QUEUE, int(rate * ROUND_S / queues)))

    def _checkpoint(self) -> str:
        """A new one for each attempt, unless it was given: an old one may be what is wrong."""
        given = self._options.checkpoint
        attempt = self.progress.snapshot().restarts
        return str(self._own / f"checkpoint-{attempt}" if given is None else given)

    @property
    def _own(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="twinbus-syphon-")
        return Path(self._folder.name)

    def _round(self, rows: DataFrame, batch: int) -> None:
        if self._stopping.is_set():
            return
        if self._first is None:
            self._first = batch  # Spark may take long to start; only now does patience begin
        world = SdkWorld(
            *(self._options.primary, self._options.secondary, self._round_links, self._stopping),
            partial(self._carried, rows),
        )
        with self._busy:
            try:
                made = self._driver.round(world)
            except Exception:
                if self._stopping.is_set():
                    return  # cut short
                raise
            self._is_well()
            self.progress.learn(made.tallies, made.took_s)
            if time.monotonic() - self._looked_at > COUNT_S:
                self._looked_at = time.monotonic()
                self._count(self._round_links)
        if batch == self._first or made.moved:
            self._moved_at = time.monotonic()
        while self._driver.is_pausing and not self._stopping.is_set():
            self._driver.glance(world)

    def _carried(self, rows: DataFrame, orders: Orders) -> list[Tally]:
        """The one action of a micro-batch: to evaluate the rows twice would be to receive twice."""
        task = partial(
            carry,
            ledger=self._options.ledger,
            primary=self._options.primary,
            secondary=self._options.secondary,
            orders=orders,
        )
        return tallies_of(rows.mapInArrow(task, TALLY_DDL).toArrow().to_pylist())

    def _stands_still(self, patience_s: float) -> bool:
        """Whether nothing has moved for so long, though there were rounds."""
        tried = self.progress.snapshot().rounds > 0 and not self._busy.locked()
        return tried and time.monotonic() - self._moved_at > patience_s

    def _is_empty(self) -> bool:
        """Whether nothing is in any backlog queue, locked or not, and no round is under way."""
        if not self._busy.acquire(blocking=False):
            return False
        try:
            return not any(
                self._own_links.receiver(self._options.secondary, queue).peek(1)
                for queue in self._options.queues
            )
        except Exception:  # noqa: BLE001  not known to be empty; the next look may say
            return False
        finally:
            self._busy.release()


def _destination(message: bytes) -> str | None:
    """Where it belongs; None for the second and later parts of a message."""
    properties = ReceivedMessage("", None, message, 0).application_properties or {}
    try:
        part = part_of(properties)
        return None if part is not None and part[1] else home_of(properties).path
    except EnvelopeError:
        return NOWHERE


def _said(failure: Exception) -> str:
    """Of an error that came by way of Java, what Python said at the end of its trace."""
    lines = (line.strip() for line in str(failure).splitlines())
    said = [line for line in lines if _PYTHONS_LAST_LINE.match(line)]
    return said[-1] if said else first_line(failure)


@contextmanager
def _java_may_be_gone() -> Iterator[None]:
    """Whoever ends a whole group of processes ends Java before us; then there is nothing to end."""
    try:
        yield
    except GONE:
        log.debug("Spark had ended already", exc_info=True)


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches
