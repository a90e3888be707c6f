"""`twinbus syphon` as a process between two brokers, for tests: filled, watched, killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import psutil
from azure.servicebus.management import ServiceBusAdministrationClient
from harness.brokers import BrokerProcess, certificate

from tests.integration.test_metrics import metrics
from tests.unit.pipeline.backlogs import plain
from twinbus import envelope
from twinbus.amqp.batches import in_transfers
from twinbus.auth.credentials import Secret
from twinbus.homeward.received import ReceivedMessage
from twinbus.sdk.links import Links

START_S = 400.0
LIMIT = 262_144
TWINBUS = str(Path(sys.executable).with_name("twinbus"))
T = TypeVar("T")


def backlog_path(index: int) -> str:
    return envelope.queue_path("localhost", index)


def backlog_queues(count: int, **settings: Any) -> dict[str, dict[str, Any]]:
    """As pairing makes them."""
    made = {"max_delivery_count": 2_147_483_647, **settings}
    return {backlog_path(index): dict(made) for index in range(count)}


def until(ask: Callable[[], T], wanted: Callable[[T], bool], within_s: float = 180) -> T:
    """The answer, as soon as it is what is wanted."""
    end = time.monotonic() + within_s
    while True:
        found = ask()
        if wanted(found):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.05)


class Namespaces:
    """A primary and a secondary, and what is in them."""

    def __init__(
        self, folder: Path, home: dict[str, dict[str, Any]], backlog: dict[str, dict[str, Any]]
    ) -> None:
        self.folder = folder
        for name in ("primary", "secondary"):
            (folder / name).mkdir()
        self.primary = BrokerProcess(folder / "primary", home)
        self.secondary = BrokerProcess(folder / "secondary", backlog)
        self.backlog = tuple(backlog)
        self.links = Links()

    def start(self) -> Namespaces:
        with ThreadPoolExecutor() as pool:
            list(pool.map(BrokerProcess.start, (self.primary, self.secondary)))
        return self

    def close(self) -> None:
        self.links.close()
        for broker in (self.primary, self.secondary):
            broker.close()

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "TWINBUS_PRIMARY": self.primary.connection_string,
            "TWINBUS_SECONDARY": self.secondary.connection_string,
        }

    @property
    def _home(self) -> Secret:
        return Secret(self.primary.connection_string)

    @property
    def _away(self) -> Secret:
        return Secret(self.secondary.connection_string)

    def divert(self, destination: str, messages: Iterable[bytes], queue: int = 0) -> None:
        """Put messages into the backlog as a paired sender does, in their order."""
        packed = [part for each in messages for part in envelope.pack(each, destination)]
        self.put(packed, queue)

    def divert_ids(self, destination: str, ids: Iterable[str], queue: int = 0) -> None:
        self.divert(destination, [plain(each) for each in ids], queue)

    def put(self, messages: Sequence[bytes], queue: int = 0) -> None:
        sender = self.links.sender(self._away, backlog_path(queue))
        for part in in_transfers([len(each) for each in messages], LIMIT):
            sender.send(messages[part])

    def at_home(self, path: str) -> list[bytes]:
        """All messages of a queue or subscription, with the bytes that a receiver would get."""
        return self._all(self._home, path)

    def home_ids(self, path: str) -> list[str]:
        return [str(envelope.id_of(each)) for each in self.at_home(path)]

    def left(self) -> int:
        return sum(len(self._all(self._away, queue)) for queue in self.backlog)

    def dead(self, queue: int = 0) -> list[bytes]:
        return self._all(self._away, backlog_path(queue) + "/$DeadLetterQueue")

    def _all(self, secret: Secret, path: str) -> list[bytes]:
        found: list[bytes] = []
        line = self.links.receiver(secret, path)
        number = 1
        while page := line.peek(250, number):
            found += page
            number = sequence_number(page[-1]) + 1
        return found

    def until_empty(self, within_s: float = 300) -> None:
        until(self.left, lambda left: left == 0, within_s)

    def administrator(self) -> ServiceBusAdministrationClient:
        """Of the primary."""
        return ServiceBusAdministrationClient.from_connection_string(
            self.primary.connection_string, connection_verify=certificate(self.primary)
        )

    def metrics(self, broker: BrokerProcess, entity: str) -> dict[str, int]:
        certificate(broker)
        return metrics(broker, entity)


def sequence_number(message: bytes) -> int:
    return ReceivedMessage("", None, message, 0).sequence_number or 0


class SyphonProcess:
    """`twinbus syphon` in a process group of its own, as a terminal has it."""

    def __init__(self, namespaces: Namespaces, *arguments: str, name: str = "syphon") -> None:
        self._log = namespaces.folder / f"{name}-{time.monotonic_ns()}.log"
        self._out = self._log.with_suffix(".out")
        with self._log.open("wb") as log, self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [TWINBUS, "syphon", *arguments],
                stdout=out,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=namespaces.environment,
                start_new_session=True,
            )
        self.family: dict[int, psutil.Process] = {}

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def out(self) -> str:
        return self._out.read_text()

    def until_started(self) -> SyphonProcess:
        until(self._has_started, bool, START_S)
        return self

    def _has_started(self) -> bool:
        assert self.process.poll() is None, self.log
        return "the syphon has started" in self.log

    @property
    def url(self) -> str:
        found = re.search(r"progress at (http://[\d.]+:\d+)/progress", self.log)
        assert found, self.log
        return found[1]

    def progress(self) -> Any:
        return json.loads(self.page("/progress"))

    def page(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    # ------------------------------------------------------------ its processes

    def relatives(self) -> list[psutil.Process]:
        """All processes that it started, as far as they were ever seen."""
        try:
            for each in psutil.Process(self.process.pid).children(recursive=True):
                self.family[each.pid] = each
        except psutil.NoSuchProcess:
            pass
        return [each for each in self.family.values() if each.is_running()]

    def workers(self) -> list[psutil.Process]:
        """The Python processes in which Spark's tasks run."""
        found = []
        for each in self.relatives():
            try:
                parent = each.parent()
                if parent and _is_daemon(each) and _is_daemon(parent):
                    found.append(each)
            except psutil.Error:
                continue
        return found

    # ------------------------------------------------------------ its end

    def wait(self, within_s: float = 500) -> int:
        return self.process.wait(within_s)

    def interrupt(self) -> int:
        """What Ctrl-C does: everyone in the group hears it."""
        self.relatives()
        os.killpg(self.process.pid, signal.SIGINT)
        return self.wait(60)

    def terminate(self) -> int:
        self.relatives()
        self.process.terminate()
        return self.wait(60)

    def kill(self) -> None:
        """kill -9 of the driver, its Java included."""
        relatives = self.relatives()
        self.process.kill()
        self.process.wait(30)
        for each in relatives:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(relatives, 30)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for each in self.relatives():
            each.kill()


def _is_daemon(process: psutil.Process) -> bool:
    return any(word.endswith(".daemon") for word in process.cmdline())


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number:04}" for number in range(count)]


# ---------------------------------------------------------------- a process in its place


def stand_in(folder: Path, *lines: str) -> str:
    """What stands for `python -m twinbus syphon`, where it matters only that a process begins, says
    something and ends."""
    script = folder / "syphon.sh"
    script.write_text("\n".join(("#!/bin/sh", *lines, "")))
    script.chmod(0o755)
    return str(script)
