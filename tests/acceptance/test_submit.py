"""The bill under spark-submit, as on a cluster: its master, its settings, our functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
from tests.unit.accounts.ledgers import Book

import twinbus
from twinbus.spark.java import find_java

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
MAIN = Path(twinbus.__file__).with_name("__main__.py")


def test_the_bill_runs_under_spark_submit_with_the_submitters_settings(tmp_path: Path) -> None:
    with Book(tmp_path / "ledger") as book:
        book.send("11-18 08:00", "a", "b", "c")
    done = subprocess.run(
        [
            str(SUBMIT),
            "--master",
            "local[1]",
            "--conf",
            "spark.sql.session.timeZone=Asia/Tokyo",
            "--conf",
            "spark.eventLog.enabled=true",
            "--conf",
            f"spark.eventLog.dir={tmp_path}",
            "--conf",
            "spark.eventLog.rolling.enabled=false",
            "--conf",
            "spark.eventLog.compress=false",
            str(MAIN),
            "cost",
            "--master",
            "spark://nowhere:7077",
            "--ledger",
            f"file://{tmp_path / 'ledger'}",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=350,
        env={
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["operations"] == 3
    assert document["by_day"] == {"2026-11-18": {"units": 3, "cost": 0.0}}
    (log,) = [each for each in tmp_path.rglob("*") if each.name.startswith("local-")]
    said = log.read_text(errors="replace")
    assert '"spark.master":"local[1]"' in said
    assert '"spark.sql.session.timeZone":"Asia/Tokyo"' in said
