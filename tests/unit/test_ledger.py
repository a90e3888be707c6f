"""The ledger's writer: what is added is in files that anybody reads, and it is nobody's burden."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow.parquet as pq
import pytest
from tests.times import is_prompt

from twinbus.ledger import (
    FORMAT,
    GATHER_S,
    MARKER,
    MARKS,
    Cause,
    Folder,
    Ledger,
    LedgerError,
    LedgerStatus,
    Operation,
    check_marker,
    schema,
    units,
)

NOON = 1_795_000_000.0  # 2026-11-18T08:26:40Z
DAY = "day=2026-11-18"
ROOT = Path(__file__).parent.parent.parent


def add(ledger: Ledger, *ids: Any, at: float = NOON) -> None:
    ledger.add(
        Operation.SEND,
        Cause.NORMAL,
        "contoso",
        "orders",
        count=len(ids),
        bytes=10 * len(ids),
        units=len(ids),
        message_ids=ids,
        at=at,
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("day=*/*.parquet")):
        found += pq.ParquetFile(path).read().to_pylist()
    return found


def test_a_message_is_charged_once_per_started_64_kb() -> None:
    assert units([0]) == 1
    assert units([65_536]) == 1
    assert units([65_537]) == 2
    assert units([262_144, 1]) == 5


def test_what_is_added_is_in_a_file_of_its_day_when_the_ledger_is_closed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, client="me")
    add(ledger, "a", b"b", UUID(int=7))
    add(ledger, "c", at=NOON + 86_400)
    ledger.close()
    assert json.loads((tmp_path / MARKER).read_text()) == {"format": FORMAT}
    assert [path.parent.name for path in sorted(tmp_path.glob("day=*/*"))] == [
        DAY,
        "day=2026-11-19",
    ]
    first, second = rows(tmp_path)
    assert first["message_ids"] == ["a", "b", str(UUID(int=7))]
    assert first["at"].timestamp() == NOON
    assert (first["client"], first["operation"], first["ok"]) == ("me", "send", True)
    assert (first["count"], first["bytes"], first["units"]) == (3, 30, 3)
    assert second["message_ids"] == ["c"]


def test_how_an_entity_is_is_written_at_once_with_what_waits(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, flush_interval_s=600)
    add(ledger, "a")
    time.sleep(3 * GATHER_S)
    assert not rows(tmp_path), "a send waits for its time"
    began = time.monotonic()
    for mark in sorted(MARKS):
        ledger.add(mark, Cause.NORMAL, "contoso", "orders", count=0, units=0, at=NOON)
    while len(rows(tmp_path)) < 1 + len(MARKS):
        assert is_prompt(began, 10)
        time.sleep(0.02)
    assert len(list(tmp_path.glob("day=*/*"))) == 1, "together"
    ledger.close()


def test_the_columns_are_those_that_are_promised(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    add(ledger, "a")
    ledger.close()
    (path,) = tmp_path.glob("day=*/*.parquet")
    assert pq.ParquetFile(path).schema_arrow.equals(schema(), check_metadata=True)


def as_written_over_time(folder: Path) -> None:
    """Two days, a file of an earlier version, and what a crash left behind."""
    for client, day in (("first", NOON), ("second", NOON + 86_400)):
        ledger = Ledger(folder, client=client)
        add(ledger, "a", at=day)
        add(ledger, "b", "c", at=day)
        ledger.close()
    (old,) = folder.glob(f"{DAY}/*.parquet")
    pq.write_table(pq.ParquetFile(old).read().drop_columns(["kept_by"]), old)
    (folder / DAY / ".first-00000001.parquet.0123abcd").write_bytes(b"PAR1 half of it")


DOCUMENTED = (ROOT / "docs" / "costs.md").read_text()


def test_pandas_reads_the_folder_as_the_document_says(tmp_path: Path) -> None:
    import pandas as pd

    as_written_over_time(tmp_path / "ledger")
    assert "`pandas.read_parquet('ledger')`" in DOCUMENTED
    frame = pd.read_parquet(tmp_path / "ledger")
    days = frame.groupby(frame["day"].astype(str))["units"].sum()
    assert days.to_dict() == {"2026-11-18": 3, "2026-11-19": 3}
    assert [list(each) for each in frame["message_ids"]] == [["a"], ["b", "c"]] * 2


def test_duckdb_reads_the_folder_as_the_document_says(tmp_path: Path) -> None:
    import duckdb

    as_written_over_time(tmp_path / "ledger")
    (call,) = re.findall(r"`(read_parquet\('ledger/.*?\))`", DOCUMENTED)
    source = call.replace("'ledger/", f"'{tmp_path}/ledger/")
    query = (
        "SELECT CAST(day AS VARCHAR), kept_by, sum(units), list_sort(flatten(list(message_ids))) "
        f"FROM {source} GROUP BY ALL ORDER BY ALL"
    )
    found = duckdb.connect().execute(query).fetchall()
    assert found == [
        ("2026-11-18", None, 3, ["a", "b", "c"]),
        ("2026-11-19", "client", 3, ["a", "b", "c"]),
    ]


def test_the_thread_writes_by_itself(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, flush_interval_s=0.01)
    add(ledger, "a")
    end = time.monotonic() + 10
    while not ledger.status.written:
        assert time.monotonic() < end
        time.sleep(0.01)
    ledger.close()


def test_many_threads_add_and_nothing_is_missing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, flush_interval_s=0.001)

    def work(number: int) -> None:
        for index in range(500):
            add(ledger, f"{number}/{index}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.close()
    assert len({row["message_ids"][0] for row in rows(tmp_path)}) == 2000
    assert ledger.status.dropped == 0


def test_a_ledger_that_nobody_adds_to_leaves_nothing_behind(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger").close()
    assert not list(tmp_path.iterdir())


class FullDisk(Folder):
    """A disk that is full for a while."""

    full = True

    def put(self, name: str, content: bytes) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().put(name, content)


def full(ledger: Ledger, folder: Path) -> FullDisk:
    ledger._store = disk = FullDisk(folder)
    return disk


def test_a_full_disk_is_reported_and_what_waits_is_written_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "twinbus.ledger")
    ledger = Ledger(tmp_path, flush_interval_s=60)
    disk = full(ledger, tmp_path)
    add(ledger, "a")
    assert not ledger.flush()
    assert not ledger.flush()
    assert "No space left" in ledger.status.error
    assert [record.getMessage() for record in caplog.records] == [
        f"the ledger at {tmp_path} cannot be written: [Errno 28] No space left on device"
    ]
    disk.full = False
    add(ledger, "b")
    assert ledger.flush()
    assert ledger.status.error == ""
    assert "is written again" in caplog.text
    ledger.close()
    assert [row["message_ids"] for row in rows(tmp_path)] == [["a"], ["b"]]


def test_the_buffer_has_an_end_and_what_is_dropped_is_counted_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(tmp_path, flush_interval_s=60, limit=10)
    full(ledger, tmp_path)
    for number in range(8):
        add(ledger, number)
    assert ledger.status.dropped == 3
    assert ledger.status.waiting == 5
    ledger.flush()
    assert "3 records for the ledger" in caplog.text
    ledger.close()
    assert ledger.status.dropped == 8


def test_a_store_that_hangs_holds_up_neither_add_nor_close(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, flush_interval_s=0.001)
    stuck = threading.Event()
    ledger._store.put = lambda name, content: stuck.wait()  # type: ignore[method-assign,assignment]
    add(ledger, "a")
    time.sleep(0.05)
    began = time.monotonic()
    add(ledger, "b")
    assert is_prompt(began, 0.5)
    ledger.close(timeout_s=0.1)
    assert is_prompt(began, 5)
    stuck.set()


def test_records_of_the_wrong_type_do_not_stop_the_others(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, flush_interval_s=60)
    ledger.add("send", "normal", "contoso", "orders", count="many")  # type: ignore[arg-type]
    ledger.flush()
    add(ledger, "a")
    ledger.close()
    assert [row["message_ids"] for row in rows(tmp_path)] == [["a"]]
    assert (ledger.status.dropped, ledger.status.written) == (1, 1)


def test_a_ledger_of_another_format_is_not_added_to(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text('{"format": 0}')
    ledger = Ledger(tmp_path, flush_interval_s=60)
    add(ledger, "a")
    assert not ledger.flush()
    assert "older format, 0" in ledger.status.error
    ledger.close()
    assert not rows(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}'])
def test_a_marker_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(LedgerError):
        check_marker(text, "there")


def test_without_pyarrow_the_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(LedgerError, match=r"pip install 'twinbus\[ledger\]'"):
        Ledger(tmp_path)


def test_a_url_without_fsspec_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(LedgerError, match="abfs:// needs fsspec"):
        Ledger("abfs://container/ledger")


def test_a_store_that_nobody_knows_is_a_sentence() -> None:
    with pytest.raises(LedgerError, match="cannot be kept at nowhere://"):
        Ledger("nowhere://ledger")


def test_any_store_that_fsspec_knows_will_do() -> None:
    import pandas as pd
    from fsspec.implementations.memory import MemoryFileSystem

    where = f"memory://{uuid4().hex}/ledger"
    for client in ("first", "second"):
        ledger = Ledger(where, client=client)
        add(ledger, client)
        ledger.close()
        assert ledger.status == LedgerStatus(1, 0, 0, "")
    root = where.removeprefix("memory:/")
    marker, *files = sorted(MemoryFileSystem().find(root))
    assert marker == f"{root}/{MARKER}"
    for client, file in zip(("first", "second"), files, strict=True):
        assert re.fullmatch(rf"{root}/{DAY}/{client}-00000000-[0-9a-f]{{32}}\.parquet", file)
    frame = pd.read_parquet(where)
    assert [list(each) for each in frame["message_ids"]] == [["first"], ["second"]]


def test_a_store_that_refuses_is_reported_and_what_it_refused_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    ledger = Ledger(f"ftp://localhost:{port}/ledger", flush_interval_s=0.01)
    add(ledger, "a")
    end = time.monotonic() + 10
    while not ledger.status.error:
        assert time.monotonic() < end
        time.sleep(0.01)
    add(ledger, "b")
    assert ledger.status.waiting
    ledger.close()
    assert "cannot be written" in caplog.text
    assert "2 records for the ledger" in caplog.text
    assert ledger.status.dropped == 2


def test_a_store_that_never_answers_holds_up_neither_add_nor_close() -> None:
    with socket.create_server(("localhost", 0)) as server:
        where = f"ftp://localhost:{server.getsockname()[1]}/ledger"
        ledger = Ledger(where, flush_interval_s=0.001)
        add(ledger, "a")
        called, _ = server.accept()
        with called:  # and says nothing
            began = time.monotonic()
            for number in range(1_000):
                add(ledger, number)
            assert is_prompt(began, 1)
            ledger.close(timeout_s=0.2)
            assert is_prompt(began, 5)
            assert ledger.status.written == 0


def test_a_process_that_forgets_to_close_writes_what_waits_when_it_ends(tmp_path: Path) -> None:
    code = (
        "from twinbus.ledger import Ledger\n"
        f"Ledger({str(tmp_path)!r}).add('send', 'normal', 'contoso', 'orders', message_ids=['a'])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert [row["message_ids"] for row in rows(tmp_path)] == [["a"]]


KEEPS_A_LEDGER = """
import sys
from twinbus.ledger import Ledger
folder, client, name, files = sys.argv[1:]
ledger = Ledger(folder, client=client, flush_interval_s=600)
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(files)):
    ids = [f"{name}/{number}"]
    ledger.add("send", "normal", "contoso", "orders", message_ids=ids, at=1_795_000_000.0)
    assert ledger.flush()
ledger.close()
"""


class Process:
    """One that keeps a ledger, a file a record, once it is let go."""

    def __init__(self, folder: Path, client: str, name: str, files: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", KEEPS_A_LEDGER, str(folder), client, name, str(files)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.wrote = {f"{name}/{number}" for number in range(files)}

    def until_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0


def ids(folder: Path) -> list[str]:
    return sorted(each for row in rows(folder) for each in row["message_ids"])


def test_a_process_started_again_replaces_no_file_of_the_one_before(tmp_path: Path) -> None:
    wrote: set[str] = set()
    for life in ("first", "second"):
        process = Process(tmp_path, "shop", life, 3)
        process.go()
        process.wait()
        wrote |= process.wrote
    assert ids(tmp_path) == sorted(wrote)


def test_two_processes_at_once_under_one_name_keep_all_of_their_records(tmp_path: Path) -> None:
    processes = [Process(tmp_path, "shop", name, 50) for name in ("first", "second")]
    for process in processes:
        process.until_ready()
    for process in processes:
        process.go()
    for process in processes:
        process.wait()
    assert ids(tmp_path) == sorted(processes[0].wrote | processes[1].wrote)


def test_a_forked_child_replaces_no_file_of_its_parent(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "from twinbus.ledger import Ledger\n"
        f"ledger = Ledger({str(tmp_path)!r}, client='shop', flush_interval_s=600)\n"
        "child = not os.fork()\n"
        "name = 'child' if child else 'parent'\n"
        "ledger.add('send', 'normal', 'contoso', 'orders', message_ids=[name])\n"
        "assert ledger.flush()\n"
        "child or os.wait()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert ids(tmp_path) == ["child", "parent"]


def test_a_child_of_a_process_whose_ledger_is_in_use_writes_its_own_records_and_no_others(
    tmp_path: Path,
) -> None:
    code = (
        "import os, sys\n"
        "from twinbus.ledger import Ledger\n"
        f"ledger = Ledger({str(tmp_path)!r}, client='shop', flush_interval_s=600)\n"
        "def add(name):\n"
        "    ledger.add('send', 'normal', 'contoso', 'orders', message_ids=[name])\n"
        "add('parent')\n"
        "for ends in (ledger.close, sys.exit):\n"
        "    with ledger._mutex, ledger._writing:\n"
        "        child = not os.fork()\n"
        "    if child:\n"
        "        add(ends.__name__)\n"
        "        ends()\n"
        "        os._exit(0)\n"
        "    assert os.wait()[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert ids(tmp_path) == ["close", "exit", "parent"]


@pytest.mark.parametrize(
    "clients",
    [
        ("a/b", "a-b"),
        ("shop", "shop"),
        (".shop", "..shop"),
        ("x" * 300, "x" * 301),
        ("\u00e4" * 200,),
    ],
    ids=["of like letters", "alike", "of dots", "too long", "not of ASCII"],
)
def test_whatever_the_clients_are_called_their_records_are_read(
    tmp_path: Path, clients: tuple[str, ...]
) -> None:
    import pandas as pd

    for number, client in enumerate(clients):
        ledger = Ledger(tmp_path, client=client, flush_interval_s=600)
        add(ledger, str(number))
        assert ledger.flush(), ledger.status.error
        ledger.close()
    frame = pd.read_parquet(tmp_path)
    assert sorted(frame["client"]) == sorted(clients)


def test_a_file_whose_writing_was_not_confirmed_is_written_again_under_its_name(
    tmp_path: Path,
) -> None:
    """A store that took it and then said no: its records must not be there twice."""
    ledger = Ledger(tmp_path, client="shop", flush_interval_s=600)
    store = Forgetful(tmp_path)
    ledger._store = store
    add(ledger, "a", at=NOON)
    assert not ledger.flush()
    add(ledger, "b", at=NOON - 86_400)
    assert ledger.flush()
    ledger.close()
    assert ids(tmp_path) == ["a", "b"]


class Forgetful(Folder):
    """Writes the first file of records, and says that it could not."""

    failed = False

    def put(self, name: str, content: bytes) -> None:
        super().put(name, content)
        if name != MARKER and not self.failed:
            self.failed = True
            raise OSError(110, "Connection timed out")


def test_adding_costs_little(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, flush_interval_s=60)
    began = time.perf_counter()
    for _ in range(10_000):
        add(ledger, "a")
    each = (time.perf_counter() - began) / 10_000
    ledger.close()
    assert each < 100e-6, each  # about a microsecond; the rest is for a machine that is busy


@pytest.mark.parametrize("at", [float("nan"), float("inf"), 1e300])
def test_a_record_of_no_time_at_all_is_dropped_and_the_others_are_written(
    tmp_path: Path, at: float
) -> None:
    ledger = Ledger(tmp_path, flush_interval_s=0.01)
    ledger.add("send", "normal", "contoso", "orders", at=at)
    end = time.monotonic() + 10
    while not ledger.status.dropped:
        assert time.monotonic() < end, "waited 10 s for the record to be dropped"
        time.sleep(0.01)
    add(ledger, "a")
    while not ledger.status.written:
        assert time.monotonic() < end, "waited 10 s for the next record to be written"
        time.sleep(0.01)
    ledger.close()
    assert ledger.status == LedgerStatus(1, 0, 1, "")


def test_the_thread_outlives_what_nobody_foresaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise RuntimeError("planted")

    ledger = Ledger(tmp_path, flush_interval_s=0.01)
    end = time.monotonic() + 10
    with monkeypatch.context() as planted:
        planted.setattr(ledger, "_say_dropped", fails)
        add(ledger, "a")
        while "planted" not in ledger.status.error:
            assert time.monotonic() < end, "waited 10 s for the failure to be told"
            time.sleep(0.01)
    add(ledger, "b")
    while ledger.status.written < 2:
        assert time.monotonic() < end, "waited 10 s for the next record to be written"
        time.sleep(0.01)
    assert ledger.status.error == ""
    ledger.close()
    assert "Traceback" in caplog.text


def test_without_a_thread_to_be_had_what_is_added_waits_for_one_and_nobody_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    started, abandoned = (Ledger(tmp_path / name) for name in ("started", "abandoned"))
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", start)
        for ledger in (started, abandoned):
            ledger.add(Operation.SEND, Cause.NORMAL, "contoso", "orders")
            assert "can't start new thread" in ledger.status.error
        abandoned.close()
    started.add(Operation.SEND, Cause.NORMAL, "contoso", "orders")
    started.close()
    assert started.status == LedgerStatus(2, 0, 0, "")
    assert abandoned.status == LedgerStatus(1, 0, 0, "")
