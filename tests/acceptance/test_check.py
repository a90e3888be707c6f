"""`twinbus broker --check` and `--repair`, on what real brokers leave."""

from __future__ import annotations

import itertools
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from azure.core.exceptions import AzureError
from azure.servicebus.management import ServiceBusAdministrationClient
from harness.brokers import BrokerProcess, certificate
from harness.raw import Raw, kilobyte_message
from tests.acceptance.test_durability import drain

from twinbus.amqp.incoming import Delivery, Settlement
from twinbus.amqp.link_endpoint import RECEIVER, SENDER
from twinbus.amqp.performatives import Accepted
from twinbus.broker.inspection import inspect, stores

TWINBUS = str(Path(sys.executable).with_name("twinbus"))
QUEUES: dict[str, dict[str, Any]] = {"orders": {}}
ROUNDS = 3
PAUSE_S = 0.005  # or one who comes would wait behind all that is published


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TWINBUS, "broker", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path, QUEUES)
    broker.start()
    yield broker
    broker.close()


def data(broker: BrokerProcess) -> Path:
    return broker.folder / "data"


def file(broker: BrokerProcess) -> Path:
    (path,) = stores(data(broker))
    return path


def change(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as link:
        link.execute(sql)


class Load:
    """Publishes, receives, and subscribes and leaves again, until the broker is killed."""

    def __init__(self, broker: BrokerProcess, numbers: Iterator[int]) -> None:
        """``numbers`` are those of the messages, which no other load may use."""
        self.received = self.left = 0
        self.acknowledged: list[int] = []
        self._numbers = numbers
        self.ended: list[Exception] = []
        self._broker = broker
        works = (self._publish, self._publish, self._receive, self._come_and_go)
        self._threads = [threading.Thread(target=self._until_killed, args=[w]) for w in works]
        for thread in self._threads:
            thread.start()

    def _until_killed(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, AzureError) as error:  # as it must be, once the broker is killed
            self.ended.append(error)

    def _publish(self) -> None:
        raw = Raw(self._broker.connection_string)
        link = raw.attach(SENDER, "news")
        while True:
            waits = [next(self._numbers) for _ in range(10)]
            for number in waits:
                link.send(kilobyte_message(number), number.to_bytes(4), settled=False)
            while waits:
                for event in raw.step():
                    if isinstance(event, Settlement):
                        assert isinstance(event.state, Accepted)
                        number = int.from_bytes(event.tag)
                        waits.remove(number)
                        self.acknowledged.append(number)
            time.sleep(PAUSE_S)

    def _receive(self) -> None:
        raw = Raw(self._broker.connection_string)
        link = raw.attach(RECEIVER, "news/Subscriptions/stays")
        session = raw.session
        assert session is not None
        while True:
            if link.credit < 50:
                link.grant(100)
            for event in raw.step():
                if isinstance(event, Delivery):
                    number = event.delivery_id
                    session.dispose(number, number, Accepted(), settled=True)
                    self.received += 1

    def _come_and_go(self) -> None:
        with administrator(self._broker) as admin:
            while True:
                name = f"comes-{time.monotonic_ns()}"  # one may be left from before the last kill
                admin.create_subscription("news", name)
                admin.delete_subscription("news", name)
                self.left += 1

    def wait(self, count: int) -> None:
        end = time.monotonic() + 60
        while self.left < count or self.received < 50:
            assert not self.ended, self.ended
            assert time.monotonic() < end, (len(self.acknowledged), self.received, self.left)
            time.sleep(0.01)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a client goes on without its broker"


def administrator(broker: BrokerProcess) -> Any:
    return ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=certificate(broker), retry_total=0
    )


@pytest.mark.timeout(300)
def test_nothing_is_found_and_a_bystander_has_all_when_subscribers_come_and_go_in_a_kill(
    broker: BrokerProcess,
) -> None:
    with administrator(broker) as admin:
        admin.create_topic("news")
        admin.create_subscription("news", "stays")
        admin.create_subscription("news", "waits")
    random, numbers, acknowledged = Random(24), itertools.count(), set[int]()
    for _ in range(ROUNDS):
        load = Load(broker, numbers)
        load.wait(random.randrange(3, 8))
        alive = inspect(file(broker))
        broker.kill()
        load.join()
        acknowledged.update(load.acknowledged)
        killed = inspect(file(broker))
        assert (alive.findings, killed.findings) == ([], [])
        assert killed.counts["messages"] > 0
        broker.start()
        again = inspect(file(broker))
        assert (again.findings, again.counts["messages"]) == ([], killed.counts["messages"])
    taken = drain(broker, "news/Subscriptions/waits")
    assert len(taken) == len(set(taken)), "something came twice"
    assert acknowledged <= set(map(int, taken)), "the bystander lacks what was acknowledged"
    assert inspect(file(broker)).findings == []


def test_the_command_finds_nothing_beside_a_broker_and_after_it(broker: BrokerProcess) -> None:
    served = run("--check", data(broker))
    assert (served.returncode, served.stderr) == (0, "")
    assert (
        served.stdout
        == f"{file(broker)}: nothing found (1 entity, 0 messages, 0 bytes, 0 bodies)\n"
    )
    broker.kill()
    assert run("--check", data(broker)).stdout == served.stdout
    told = json.loads(run("--check", data(broker), "--json").stdout)
    assert told == {
        "holds": True,
        "namespaces": [
            {
                "namespace": "contoso",
                "file": str(file(broker)),
                "findings": [],
                "mended": [],
                "counts": {"entities": 1, "messages": 0, "bytes": 0, "bodies": 0},
            }
        ],
    }


def test_the_command_finds_mends_and_finds_no_more(broker: BrokerProcess) -> None:
    broker.stop()
    change(file(broker), "UPDATE entity SET active = 3 WHERE path = 'orders'")
    found = run("--check", data(broker))
    assert found.returncode == 1
    assert found.stdout == (
        "contoso: orders: active is 3 and must be 0; --repair counts again\n"
        f"{file(broker)}: 1 finding (1 entity, 0 messages, 0 bytes, 0 bodies)\n"
    )
    told = json.loads(run("--check", data(broker), "--json").stdout)
    assert not told["holds"]
    assert told["namespaces"][0]["findings"] == [
        {
            "check": "counters",
            "subject": "orders",
            "what": "active is 3 and must be 0",
            "do": "--repair counts again",
        }
    ]
    mended = run("--check", data(broker), "--repair")
    assert mended.returncode == 0
    assert mended.stdout.startswith("contoso: mended: orders: active is 3 and must be 0\n")
    assert run("--check", data(broker)).returncode == 0
    broker.start()


def test_nothing_is_mended_while_a_broker_serves(broker: BrokerProcess) -> None:
    refused = run("--check", data(broker), "--repair")
    assert refused.returncode == 2
    assert "was left as it is: another broker is using" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--repair",), "--repair goes with --check"),
        (("--check", "nowhere"), "there is no folder nowhere"),
        (("--check", "."), "no namespace has its file under"),
        (("--check", ".", "--port", "0"), "--check serves nothing: leave out --port"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.damages
def test_a_file_that_is_no_store_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "contoso").mkdir()
    (tmp_path / "contoso" / "messages.db").write_bytes(b"garbage" * 1_000)
    done = run("--check", tmp_path)
    assert done.returncode == 1
    assert "contoso: the file: SQLite cannot read it: file is not a database" in done.stdout
