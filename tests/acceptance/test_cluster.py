"""The syphon, the bill and the audit on a cluster of processes; and under spark-submit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from tests.ports import free_ports
from tests.syphons import Namespaces, SyphonProcess, backlog_queues, names, until
from tests.unit.accounts.ledgers import Book

import twinbus
from twinbus.spark.java import find_java

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(420)]

SPARK = Path(pyspark.__file__).parent
HOME: dict[str, dict[str, Any]] = {
    "orders": {"requires_duplicate_detection": True},
    "submitted": {"requires_duplicate_detection": True},
}
RATE, COUNT = 30, 300


class Cluster:
    """A standalone master and two workers, of one core each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        self.master = ""

    def run(self, *arguments: object, code: int = 0) -> dict[str, Any]:
        """A command with its driver here and its tasks on the workers; what it says as JSON."""
        command = (sys.executable, "-m", "twinbus", *map(str, arguments), "--master", self.master)
        done = subprocess.run(
            [*command, "--json"], env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def start(self) -> Cluster:
        (port,) = free_ports(1)
        log = self._start("master.Master", "--port", str(port), "--webui-port", "0")
        until(log.read_text, lambda text: "New state: ALIVE" in text, 240)
        self.master = f"spark://127.0.0.1:{port}"
        room = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
        logs = [
            self._start("worker.Worker", *room, "--work-dir", str(self.folder / name), self.master)
            for name in ("one", "two")
        ]
        for each in logs:
            until(each.read_text, lambda text: "Successfully registered" in text, 240)
        return self

    def _start(self, kind: str, *arguments: str) -> Path:
        log = self.folder / f"{len(self.processes)}.log"
        command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        with log.open("wb") as file:
            self.processes.append(
                subprocess.Popen(
                    [*command, "--host", "127.0.0.1", *arguments],
                    env=self.environment,
                    stdout=file,
                    stderr=file,
                )
            )
        return log

    def executors(self) -> list[psutil.Process]:
        return [
            child
            for worker in self.processes[1:]
            for child in psutil.Process(worker.pid).children(recursive=True)
            if any("CoarseGrainedExecutorBackend" in word for word in _command(child))
        ]

    def close(self) -> None:
        for process in reversed(self.processes):
            children = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            process.wait(30)
            for child in children:
                if child.is_running():
                    child.kill()


def _command(process: psutil.Process) -> list[str]:
    """Nothing for one that ended while it was looked at."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces]:
    backlog = backlog_queues(2, lock_duration="PT5S")
    made = Namespaces(tmp_path_factory.mktemp("cluster"), HOME, backlog)
    yield made.start()
    made.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("spark"))
    try:
        yield made.start()
    finally:
        made.close()


def test_an_executor_killed_in_mid_drain_on_a_cluster_loses_nothing(
    namespaces: Namespaces, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in (0, 1):
        namespaces.divert_ids("orders", names(str(queue), COUNT // 2), queue)
    syphon = None
    try:
        monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        arguments = ("--master", cluster.master, "--once", "--rate", str(RATE), "--json")
        syphon = SyphonProcess(namespaces, *arguments)
        until(lambda: len(namespaces.home_ids("orders")), lambda home: home > 0, 600)
        executors = cluster.executors()
        assert len(executors) == 2
        executors[0].kill()
        assert len(namespaces.home_ids("orders")) < COUNT, "it was killed in the middle"
        assert syphon.wait(180) == 0, syphon.log
        assert '"empty": true' in syphon.out
        assert namespaces.left() == 0
        found = namespaces.home_ids("orders")
        assert sorted(found) == sorted(names("0", COUNT // 2) + names("1", COUNT // 2))
    finally:
        if syphon is not None:
            syphon.close()


def test_a_bill_and_an_audit_on_a_cluster_say_what_they_say_here(
    cluster: Cluster, tmp_path: Path
) -> None:
    ledger, state = tmp_path / "ledger", tmp_path / "state"
    with Book(ledger) as book:
        book.send("11-17 08:00", "a", "b", "c")
    with Book(ledger, client="another") as book:
        book.consume("11-18 09:00", "a", "b", "c")
        book.divert("11-18 09:00", "d")
    kept = ("--ledger", ledger, "--state")
    bill = cluster.run("cost", *kept, state / "cost")
    days = {day: of["units"] for day, of in bill["by_day"].items()}
    assert days == {"2026-11-17": 3, "2026-11-18": 7}
    audit = cluster.run("audit", *kept, state / "audit", "--received", code=1)
    assert (audit["accepted"], audit["ok"], audit["lost"]) == (4, 3, 1)
    assert [row["message_id"] for row in audit["questionable"]] == ["d"]
    # What the executors kept, the next run reads, wherever it runs.
    assert {path.name for path in (state / "cost").glob("day=*")} == {f"day={day}" for day in days}


def test_spark_submit_runs_the_package_itself(namespaces: Namespaces) -> None:
    namespaces.divert_ids("submitted", names("s", 20))
    main = Path(twinbus.__file__).parent / "__main__.py"
    settings = ("spark.driver.bindAddress=127.0.0.1", "spark.ui.enabled=false")
    done = subprocess.run(
        [
            *(str(SPARK / "bin" / "spark-submit"), "--master", "local[2,4]"),
            *(word for setting in settings for word in ("--conf", setting)),
            *(str(main), "syphon", "--once"),
        ],
        env={
            **namespaces.environment,
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "20 messages went home" in done.stdout
    assert namespaces.home_ids("submitted") == names("s", 20)
    for broker in (namespaces.primary, namespaces.secondary):
        key = re.findall(r"SharedAccessKey=([^;]+)", broker.connection_string)[0]
        assert key not in done.stdout + done.stderr
