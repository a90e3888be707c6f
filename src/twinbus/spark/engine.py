"""A Spark session: quick to start and quiet on a laptop, the submitter's own under spark-submit.

What Spark's Java writes to the terminal goes to a file instead. What matters of it also reaches the
caller, as an exception.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from twinbus.errors import TwinbusError
from twinbus.spark.archive import using_option
from twinbus.spark.java import find_java

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

# Tasks are tried this often. Plain local[n] gives up at the first failure.
ATTEMPTS: Final = 4
# Of what Java said before it gave up, this much is worth showing.
LAST_WORDS: Final = 500

# True of every job here, on a laptop or on a cluster, unless the submitter says otherwise.
COMMON: Final = {
    # A second copy of a task would receive, send or write a second time.
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # An audit has a group for each window and entity. Beyond so many Spark sorts every message by
    # its group, and the default, 128, is reached within a week.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "50000",
}
# Few partitions start quickly, and Spark joins those that turn out small.
LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "16",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
}
# The second leaves Java the compiler that starts quickest, whose code is too slow for a long run.
SHORT_RUN: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class EngineError(TwinbusError):
    """Spark did not start; the text has its last words."""


def local_master() -> str:
    return f"local[*,{ATTEMPTS}]"


def is_submitted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether spark-submit, or a shell of Spark's, has chosen master and settings already."""
    return "PYSPARK_GATEWAY_PORT" in environment or "PYSPARK_SUBMIT_ARGS" in environment


def settings_for(master: str, log4j2: str, *, short_run: bool) -> dict[str, str]:
    """On a cluster too the driver is a Java of this machine."""
    options = f"-Dlog4j2.configurationFile={log4j2}"
    if short_run:
        options += f" {SHORT_RUN}"
    local = LOCAL if master.startswith("local") else {}
    return {**COMMON, **local, "spark.driver.extraJavaOptions": options}


def spark_session(
    app_name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    short_run: bool = False,
    log: Path | None = None,
) -> SparkSession:
    """The session that is there already, else a new one.

    Without ``master`` it is local, on all cores. Under spark-submit ``master`` is not looked at,
    and ``conf`` gives only what the submitter left open. ``short_run`` is for what lasts seconds.
    ``log`` is the file for what Java says; without one it is gone when the process ends.
    """
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise EngineError(
            f"this needs Spark ({error.name} is missing): pip install 'twinbus[syphon]'"
        ) from error
    # Not getActiveSession(), which knows only those of the thread that asks.
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    if is_submitted():
        return _submitted(app_name, conf or {})
    master = master or local_master()
    log4j2 = str(files("twinbus.spark") / "log4j2.properties")
    settings = settings_for(master, log4j2, short_run=short_run)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return _started(app_name, {**settings, **(conf or {}), "spark.master": master}, log)


def _submitted(app_name: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()
    chosen = SparkConf()
    for key, value in {**COMMON, **conf, "spark.app.name": app_name}.items():
        chosen.setIfMissing(key, value)
    return SparkSession.builder.config(conf=chosen).getOrCreate()


def _started(app_name: str, settings: Mapping[str, str], log: Path | None) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = SparkConf(loadDefaults=False).setAppName(app_name)
    for key, value in {"spark.driver.defaultJavaOptions": using_option(java), **settings}.items():
        chosen.set(key, value)
    with log.open("a+b") if log is not None else tempfile.TemporaryFile() as said:
        gateway = _launched(chosen, said)
    # Spark's own builder lets nobody say where Java may write, so the context is made first.
    context = SparkContext(conf=chosen, gateway=gateway)
    # When Java dies, whoever uses it gets an error. The stack trace that Spark's server for
    # accumulators would print on top of that says nothing more.
    server: Any = context._accumulatorServer
    server.handle_error = lambda request, address: logger.debug("Java is gone", exc_info=True)
    return SparkSession.builder.getOrCreate()


def _launched(conf: SparkConf, said: IO[bytes]) -> object:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    try:
        return launch_gateway(conf, {"stdout": said, "stderr": said})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        said.seek(max(0, said.seek(0, os.SEEK_END) - LAST_WORDS))
        words = " ".join(said.read().decode(errors="replace").split())
        raise EngineError(f"Spark did not start; its last words were: {words}") from error
