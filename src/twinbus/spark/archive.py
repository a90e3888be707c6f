"""Java's archive of Spark's classes: recorded once, and every later start is seconds quicker.

``python -m twinbus.spark.archive`` records it, by running a little of everything and ending;
``engine`` uses it where it is there. Java itself checks that an archive fits it and the jars, and
goes on without where it does not, so nothing depends on this but time.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus.spark.java import Java, cache_folder, find_java

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

RECORDING_S: Final = 120


def archive_path(java: Java) -> Path:
    """Where the archive for this Java and this Spark is, or would be."""
    import pyspark

    about = f"{java.home} {java.version} {pyspark.__version__} {pyspark.__file__}"
    return cache_folder() / f"spark-{hashlib.sha256(about.encode()).hexdigest()[:16]}.jsa"


def using_option(java: Java) -> str:
    """Java's option to use the archive; nothing if there is none."""
    path = archive_path(java)
    return f'"-XX:SharedArchiveFile={path}"' if path.is_file() else ""


def record() -> Path:
    """Make the archive; answers where it is."""
    from pyspark import SparkContext

    from twinbus.spark.engine import spark_session

    path = archive_path(find_java())
    if path.is_file():
        return path
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        written = Path(folder) / path.name
        recording = {"spark.driver.defaultJavaOptions": f'"-XX:ArchiveClassesAtExit={written}"'}
        spark = spark_session("recording", conf=recording, short_run=True)
        _exercise(spark, folder)
        gateway: Any = SparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(RECORDING_S)
        if written.is_file():
            os.replace(written, path)
    return path


def _exercise(spark: SparkSession, folder: str) -> None:
    """Touch what the syphon, the bill and the audit touch."""

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    rows = spark.range(1000).selectExpr("id", "id % 7 AS kind", "CAST(id AS STRING) AS text")
    rows.write.parquet(f"{folder}/rows")
    read = spark.read.parquet(f"{folder}/rows")
    read.groupBy("kind").count().join(read, "kind").collect()

    def each(batch: DataFrame, number: int) -> None:
        batch.mapInArrow(same, batch.schema).toArrow()

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = stream.writeStream.foreachBatch(each).start()
    while query.isActive and query.lastProgress is None:
        query.awaitTermination(1)
    query.stop()


if __name__ == "__main__":
    sys.stdout.write(f"recorded {record()}\n")
