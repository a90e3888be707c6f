"""The Spark session of the command line, and what is left to the submitter."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from twinbus.cli import app
from twinbus.spark.engine import EngineError, is_submitted, settings_for, spark_session

NAMESPACE = (
    "Endpoint=sb://{}.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"
)

TALKATIVE = """
from twinbus.spark.engine import spark_session
spark = spark_session("quiet", master="local[1,4]", short_run=True)
print(spark.range(5).count(), spark.conf.get("spark.sql.session.timeZone"))
"""
HEAPLESS = """#!/bin/sh
[ "$1" = -version ] && echo 'openjdk version "17.0.1"' || { echo 'no room for a heap' >&2; exit 1; }
"""


def test_the_session_is_local_bound_to_loopback_and_retries(spark: SparkSession) -> None:
    context = spark.sparkContext
    assert context.master == "local[2,4]"
    assert context.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert context.getConf().get("spark.speculation") == "false"


def test_a_session_that_is_there_is_used_by_every_thread(spark: SparkSession) -> None:
    assert spark_session("another") is spark
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(spark_session, "another").result() is spark


def test_python_workers_run_the_same_python(spark: SparkSession) -> None:
    def whoami(_: object) -> object:
        return sys.executable

    assert spark.sparkContext.parallelize([1]).map(whoami).collect() == [sys.executable]


def test_spark_submit_and_its_shells_have_chosen_already() -> None:
    assert is_submitted({"PYSPARK_GATEWAY_PORT": "1"})
    assert is_submitted({"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell"})
    assert not is_submitted({})


@pytest.mark.timeout(300)
def test_nothing_of_sparks_own_reaches_the_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TALKATIVE], capture_output=True, text=True, check=True, timeout=280
    )
    assert (done.stdout, done.stderr) == ("5 UTC\n", "")


def test_a_java_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(HEAPLESS)
    java.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", TALKATIVE],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
    )
    assert "EngineError: Spark did not start; its last words were: no room for" in done.stderr


@pytest.mark.parametrize(("options", "is_short"), [([], False), (["--once"], True)])
def test_only_a_syphon_that_ends_has_the_compiler_for_a_short_run(
    options: list[str], is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def session(*_: object, short_run: bool, **__: object) -> None:
        asked.append(short_run)
        raise EngineError("no Spark today")

    monkeypatch.setattr("twinbus.spark.engine.spark_session", session)
    pair = [("--primary", "home"), ("--secondary", "away")]
    arguments = [f"{name}={NAMESPACE.format(host)}" for name, host in pair]
    done = CliRunner().invoke(app, ["syphon", "--queue=q", *arguments, *options])
    assert "no Spark today" in done.stderr
    assert asked == [is_short]


@pytest.mark.parametrize("is_short", [False, True])
def test_javas_quickest_compiler_is_for_short_runs(is_short: bool) -> None:
    options = settings_for("local[2]", "log", short_run=is_short)["spark.driver.extraJavaOptions"]
    assert ("-XX:TieredStopAtLevel=1" in options) == is_short
