"""The journey of one message: with Spark and without, the same."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.unit.accounts.ledgers import PRIMARY, SECONDARY, Book, at

from twinbus.accounts import journey as module
from twinbus.accounts.journey import Step, is_small, journey, look_through
from twinbus.accounts.tables import find, read
from twinbus.ledger import Cause, Operation, RecordKeeper
from twinbus.ledger.reader import data_files


def with_spark(spark: SparkSession, folder: Path, message_id: str) -> list[Step]:
    return journey(read(spark, find(spark, str(folder), None)), message_id)


def without(folder: Path, message_id: str) -> list[Step]:
    return list(look_through(data_files(folder), message_id).steps)


def test_a_random_ledger_tells_the_same_journeys_both_ways(
    spark: SparkSession, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    ids = [f"m{number}" for number in range(6)]
    for number in range(6):
        keeper = RecordKeeper.BROKER if number % 3 == 2 else RecordKeeper.CLIENT
        with Book(tmp_path, f"client-{number}", keeper) as book:
            for _ in range(60):
                book.ledger.add(
                    dice.choice(list(Operation)),
                    dice.choice(list(Cause)),
                    dice.choice([PRIMARY, SECONDARY]),
                    dice.choice(["orders", "news/subscriptions/a"]),
                    message_ids=dice.choices(ids, k=dice.randrange(4)),
                    destination=dice.choice([None, "orders"]),
                    ok=dice.random() < 0.8,
                    # Few moments, so that many have the same.
                    at=at(f"11-1{dice.randrange(5, 9)} 08:0{dice.randrange(4)}") + 1e-6,
                )
    for path in (data_files(tmp_path)[0], data_files(tmp_path)[-1]):
        table = pq.ParquetFile(path).read()
        for name, us in (("late", 2**62), ("early", -(2**62)), ("none", None)):
            times = pa.array([us] * len(table), pa.int64()).cast(pa.timestamp("us", "UTC"))
            column = table.schema.get_field_index("at")
            changed = table.set_column(column, "at", times).drop_columns(["kept_by"])
            pq.write_table(changed, path.with_name(f"{name}.parquet"))
    data_files(tmp_path)[0].with_name("torn.parquet").write_bytes(b"PAR1 and no more")
    for message_id in (*ids, "nobody"):
        found = without(tmp_path, message_id)
        assert found == with_spark(spark, tmp_path, message_id), (seed, message_id)
        assert [step.at for step in found] == sorted(step.at for step in found)
    assert without(tmp_path, "m1")


def test_what_has_the_same_time_is_in_the_order_of_a_messages_life(tmp_path: Path) -> None:
    with Book(tmp_path, "z") as first, Book(tmp_path, "a") as second:
        second.complete("11-18 08:00", "1")
        second.receive("11-18 08:00", "1")
        first.syphon("11-18 08:00", "1")
        first.divert("11-18 08:00", "1")
    assert [(step.operation, step.cause) for step in without(tmp_path, "1")] == [
        ("send", "backlog_send"),
        ("receive", "backlog_receive"),
        ("send", "home_send"),
        ("complete", "backlog_receive"),
        ("receive", "normal"),
        ("complete", "normal"),
    ]


def test_what_is_small_is_counted_in_files_and_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Book(tmp_path) as book:
        book.send("11-18 08:00", "1")
        book.send("11-17 08:00", "2")
    files = data_files(tmp_path)
    assert is_small(files)
    with monkeypatch.context() as fewer:
        fewer.setattr(module, "SMALL_FILES", 1)
        assert not is_small(files)
    monkeypatch.setattr(module, "SMALL_BYTES", sum(path.stat().st_size for path in files) - 1)
    assert not is_small(files)


def test_a_small_ledger_is_traced_without_spark(tmp_path: Path) -> None:
    with Book(tmp_path) as book:
        book.send("11-18 08:00", "home")
    code = (
        "import sys; from twinbus.cli import main; sys.argv = ['twinbus', *sys.argv[1:]]\n"
        "try: main()\n"
        "finally: assert not {'pyspark', 'py4j'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, "trace", "home", "--ledger", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sent to orders" in done.stdout
