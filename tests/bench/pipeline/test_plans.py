"""What Spark plans for a bill and an audit: how often rows are moved, and which columns are read.

Moving rows between tasks is what a bill of many records costs; a plan that does it once more, or
reads the ids of all messages to count them, is as slow as it looks, on any machine.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from tests.unit.accounts.ledgers import Book

from twinbus.accounts import audit
from twinbus.accounts import bill as cost
from twinbus.accounts.tables import find, read


def records(spark: SparkSession, folder: Path) -> DataFrame:
    with Book(folder) as book:
        book.send("11-18 08:00", "1", "2")
        book.complete("11-18 08:01", "1", "2")
    return read(spark, find(spark, str(folder)))


def plan(made: DataFrame) -> str:
    return str(made._jdf.queryExecution().executedPlan().toString())


def moves(made: DataFrame) -> int:
    return plan(made).count("Exchange hashpartitioning")


def test_the_lines_of_a_bill_are_shuffled_once(spark: SparkSession, tmp_path: Path) -> None:
    made = cost.lines(records(spark, tmp_path))
    assert moves(made) == 1
    assert "message_ids" not in plan(made), "a bill has no use for them, and they are most of it"


def test_the_messages_of_an_audit_are_shuffled_once(spark: SparkSession, tmp_path: Path) -> None:
    evidence = audit.events(records(spark, tmp_path)).select(*audit.ROW)
    assert moves(audit.messages(evidence)) == 1


def test_a_shuffle_too_many_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    made = cost.lines(records(spark, tmp_path).repartition("client"))
    assert moves(made) == 2
