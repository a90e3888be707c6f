"""One Java for many commands that use Spark, as spark-submit would give it to them: starting one
takes longer than all that such a command does in a test."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.resources import files
from typing import Any
from unittest import mock

from twinbus.spark.archive import using_option
from twinbus.spark.engine import COMMON, LOCAL, SHORT_RUN
from twinbus.spark.java import find_java


class Gateway:
    """A Java with Spark in it, and at most one context at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        from pyspark.java_gateway import launch_gateway

        java = find_java()
        settings = {**COMMON, **LOCAL, "spark.sql.shuffle.partitions": "2"}
        words = [f"--conf {key}={value}" for key, value in settings.items()]
        log4j2 = files("twinbus.spark") / "log4j2.properties"
        options = f"{using_option(java)} {SHORT_RUN} -Dlog4j2.configurationFile={log4j2}"
        words += ["--master local[2,4]", f'--driver-java-options "{options}"', "pyspark-shell"]
        started = {
            **environment,
            "JAVA_HOME": str(java.home),
            "PYSPARK_SUBMIT_ARGS": " ".join(words),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with mock.patch.dict(os.environ, started):
            self._java: Any = launch_gateway()  # type: ignore[no-untyped-call]
        parameters = self._java.gateway_parameters
        self.environment = {
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": str(parameters.auth_token),
            "PYSPARK_PYTHON": sys.executable,
        }

    def free(self) -> None:
        """End the context that a command has left behind."""
        left = self._java.jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession()
        if left.isDefined() and not left.get().sparkContext().isStopped():
            left.get().stop()

    def close(self) -> None:
        self.free()
        self._java.shutdown()
        self._java.proc.stdin.close()
        self._java.proc.wait(30)
