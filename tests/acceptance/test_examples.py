"""The programs in examples/, run as a user runs them, with the primary killed in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from harness.brokers import BrokerProcess
from tests.blocks import ROOT
from tests.syphons import Namespaces, SyphonProcess, backlog_queues

EXAMPLES = ROOT / "examples"
SERVICE = EXAMPLES / "order_service"
SETUP = SERVICE / "setup.py"

pytestmark = pytest.mark.timeout(300)


class Program:
    """An example that runs, and what it has said so far."""

    def __init__(self, script: Path, environment: dict[str, str], folder: Path) -> None:
        self._out = folder / f"{script.stem}.out"
        self._err = folder / f"{script.stem}.err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(script)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                text=True,
                cwd=folder,
                env=environment,
            )

    @property
    def said(self) -> list[str]:
        return self._out.read_text().splitlines()

    def until(self, words: str, times: int = 1, within_s: float = 60) -> None:
        end = time.monotonic() + within_s
        while sum(words in line for line in self.said) < times:
            state = (self.process.poll(), self.said, self._err.read_text())
            assert self.process.poll() is None, state
            assert time.monotonic() < end, state
            time.sleep(0.05)

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """Ctrl-C, and it ends in good order."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(60)
        assert code == 0, self._err.read_text()
        assert "Traceback" not in self._err.read_text()
        assert self.said[-1] == "closed"

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        assert self.process.stdin is not None
        self.process.stdin.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Namespaces]:
    made = Namespaces(tmp_path, {}, backlog_queues(2)).start()
    yield made
    made.close()


def environment(shop: Namespaces, managed: BrokerProcess) -> dict[str, str]:
    """As a user sets it; the certificate is that of the broker whose entities are managed."""
    return {
        **shop.environment,
        "TWINBUS_CERTIFICATE": str(managed.folder / "data" / "certificate.pem"),
        "TWINBUS_LEDGER": str(shop.folder / "ledger"),
    }


def run(script: Path, shop: Namespaces, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(script), *words],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=environment(shop, shop.primary if script == SETUP else shop.secondary),
        cwd=shop.folder,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_the_order_service_takes_orders_through_an_outage_and_serves_all_of_them(
    shop: Namespaces,
) -> None:
    assert "the shop is set up" in run(SETUP, shop)
    counter = Program(SERVICE / "counter.py", environment(shop, shop.secondary), shop.folder)
    kitchen = Program(SERVICE / "kitchen.py", environment(shop, shop.secondary), shop.folder)
    syphon = None
    try:
        counter.until("open")
        kitchen.until("cooking")
        for drink in ("coffee", "lemonade"):
            counter.type(drink)
        kitchen.until("served", 2)

        shop.primary.kill()
        for drink in ("tea", "water", "cocoa"):
            counter.type(drink)
        counter.until("while orders is diverted", 3)

        shop.primary.start()
        counter.type("milk")
        counter.until("accepted order-6")
        syphon = SyphonProcess(shop, "--once", "--ledger", str(shop.folder / "ledger"))
        assert syphon.wait() == 0, syphon.log
        kitchen.until("served", 6)
        counter.stop()
        kitchen.stop()
    finally:
        for each in (counter, kitchen, syphon):
            if each is not None:
                each.close()
    served = {line.removeprefix("served ") for line in kitchen.said if line.startswith("served")}
    assert served == {
        "order-1 (coffee) hot",
        "order-2 (lemonade) cold",
        "order-3 (tea) hot",
        "order-4 (water) cold",
        "order-5 (cocoa) hot",
        "order-6 (milk) cold",
    }
    assert shop.left() == 0
    assert ids_of(shop, cause="backlog_send") >= {"order-3", "order-4", "order-5"}
    assert ids_of(shop, operation="complete", entity="orders") == {
        f"order-{n}" for n in range(1, 7)
    }


def ids_of(shop: Namespaces, **wanted: str) -> set[str]:
    """The messages that the ledger has records of, of this kind."""
    table = ds.dataset(shop.folder / "ledger", format="parquet", partitioning="hive").to_table()
    rows = table.to_pylist()
    return {
        message_id
        for row in rows
        if all(row[name] == value for name, value in wanted.items())
        for message_id in row["message_ids"]
    }


def test_the_blocking_script_sends_before_and_in_an_outage(shop: Namespaces) -> None:
    run(SETUP, shop)
    script = EXAMPLES / "blocking_script.py"
    assert run(script, shop, "coffee").splitlines() == ["coffee: accepted, orders is healthy"]
    shop.primary.kill()
    assert run(script, shop, "tea", "milk").splitlines() == [
        "tea: accepted, orders is diverted",
        "milk: accepted, orders is diverted",
    ]
    assert shop.left() == 2
    shop.primary.start()
    assert len(shop.at_home("orders")) == 1


def test_the_telemetry_example_prints_the_spans_and_counters_of_an_outage(shop: Namespaces) -> None:
    run(SETUP, shop)
    shop.primary.kill()
    printed = run(EXAMPLES / "telemetry.py", shop)
    documents = list(documents_in(printed))
    spans = {each["name"]: each for each in documents if "context" in each}
    assert {"take an order", "twinbus divert", "twinbus ping"} <= spans.keys()
    order, divert = spans["take an order"], spans["twinbus divert"]
    assert divert["parent_id"] == order["context"]["span_id"]
    assert divert["context"]["trace_id"] == order["context"]["trace_id"]
    found = {
        metric["name"]: [point["value"] for point in metric["data"]["data_points"]]
        for document in documents
        for resource in document.get("resource_metrics", [])
        for scope in resource["scope_metrics"]
        for metric in scope["metrics"]
    }
    assert found["twinbus.paired.diverted.messages"] == [1]
    assert found["twinbus.paired.entities.diverted"] == [1]


def documents_in(text: str) -> Iterator[dict[str, Any]]:
    """The console exporters print one JSON object after the other."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        found, at = decoder.raw_decode(text, at)
        while text[at : at + 1].isspace():
            at += 1
        yield found


def test_every_example_is_described_and_run() -> None:
    described = (EXAMPLES / "README.md").read_text()
    tested = Path(__file__).read_text()
    for script in EXAMPLES.rglob("*.py"):
        assert script.name in described or script.name in ("pair.py", "stopping.py"), script
        if script.name not in ("pair.py", "stopping.py"):
            assert script.name in tested, script
