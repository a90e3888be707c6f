"""Put, kill -9, restart, ask: what was acknowledged is there once, what was settled is gone.

TWINBUS_KILL_SEED=7 pytest tests/acceptance/test_durability.py     other moments to kill at
"""

from __future__ import annotations

import hashlib
import os
import resource
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import ServiceBusError
from harness.brokers import BrokerProcess
from harness.raw import Raw

from twinbus.amqp.incoming import Confirmation, Delivery, Settlement
from twinbus.amqp.link_endpoint import RECEIVER, SENDER
from twinbus.amqp.message import Message, Properties
from twinbus.amqp.performatives import Accepted

SEED = int(os.environ.get("TWINBUS_KILL_SEED", str(time.time_ns() % 1_000_000)))
ROUNDS = 4
SENDERS = 4
QUEUES: dict[str, dict[str, Any]] = {"q": {}, "s": {"requires_session": True}, "other": {}}


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of the test's own, to be killed."""
    broker = BrokerProcess(tmp_path, QUEUES)
    broker.start()
    yield broker
    broker.close()
    assert "Traceback" not in broker.log(), broker.log()


def message_of(name: str) -> bytes:
    return (
        Properties(message_id=name).encoded() + b"\x00\x53\x75\xb0\x00\x00\x04\x00" + b"y" * 1_024
    )


def name_of(event: Delivery) -> str:
    assert event.payload is not None
    return str(Message.parse(event.payload).properties.message_id)


class Sender(threading.Thread):
    """Sends numbered messages as fast as they are taken, until the broker dies."""

    def __init__(self, connection_string: str, name: str, outstanding: int) -> None:
        super().__init__(daemon=True)
        self.label = name
        self.sent = 0
        self.acknowledged: list[int] = []
        self._outstanding = outstanding
        self._raw = Raw(connection_string)

    def run(self) -> None:
        try:
            self._send()
        except OSError:
            pass  # the broker was killed
        finally:
            self._raw.socket.close()

    def _send(self) -> None:
        link = self._raw.attach(SENDER, "q")
        while True:
            while self.sent - len(self.acknowledged) < self._outstanding and link.can_send:
                payload = message_of(f"{self.label}-{self.sent}")
                link.send(payload, self.sent.to_bytes(4), settled=False)
                self.sent += 1
            for event in self._raw.step():
                if isinstance(event, Settlement):
                    assert isinstance(event.state, Accepted)
                    self.acknowledged.append(int.from_bytes(event.tag))


class Completer(threading.Thread):
    """Receives and completes until the broker dies. Knows what was confirmed to it."""

    def __init__(self, connection_string: str) -> None:
        super().__init__(daemon=True)
        self.received: dict[int, str] = {}
        self.confirmed: set[str] = set()
        self._raw = Raw(connection_string)

    def run(self) -> None:
        try:
            self._receive()
        except OSError:
            pass  # the broker was killed
        finally:
            self._raw.socket.close()

    def _receive(self) -> None:
        link = self._raw.attach(RECEIVER, "q", settle_second=True)
        session = self._raw.session
        assert session is not None
        link.grant(100)
        while True:
            for event in self._raw.step():
                if isinstance(event, Delivery):
                    number = event.delivery_id
                    self.received[number] = name_of(event)
                    session.dispose(number, number, Accepted(), settled=False)
                elif isinstance(event, Confirmation):
                    assert isinstance(event.state, Accepted)
                    for number in range(event.first, event.last + 1):
                        self.confirmed.add(self.received[number])
            if link.credit < 50:
                link.grant(100)


def drain(broker: BrokerProcess, queue: str, quiet_s: float = 1.5) -> list[str]:
    """The names of everything that is there, in order, received and deleted."""
    raw = Raw(broker.connection_string)
    link = raw.attach(RECEIVER, queue, settle_second=True)
    session = raw.session
    assert session is not None
    link.grant(500)
    raw.socket.settimeout(quiet_s)
    names = []
    try:
        while True:
            for event in raw.step():
                if isinstance(event, Delivery):
                    names.append(name_of(event))
                    number = event.delivery_id
                    session.dispose(number, number, Accepted(), settled=False)
            if link.credit < 250:
                link.grant(500)
    except TimeoutError:
        pass
    raw.close()
    return names


# ---------------------------------------------------------------- kill -9


def test_every_acknowledged_message_is_there_once_and_in_order(mortal: BrokerProcess) -> None:
    print(f"TWINBUS_KILL_SEED={SEED}")
    random = Random(SEED)
    for turn in range(ROUNDS):
        senders = [
            Sender(mortal.connection_string, f"{turn}.{n}", random.choice((1, 20, 300)))
            for n in range(SENDERS)
        ]
        for sender in senders:
            sender.start()
        time.sleep(random.uniform(0.2, 1.0))
        mortal.kill()
        for sender in senders:
            sender.join(20)
        mortal.start()
        names = drain(mortal, "q")
        acknowledged = sum(len(sender.acknowledged) for sender in senders)
        assert acknowledged > 0
        print(f"round {turn}: {acknowledged} acknowledged, {len(names)} there")
        assert len(names) == len(set(names)), "a message is there twice"
        for sender in senders:
            prefix = f"{sender.label}-"
            there = [int(n.removeprefix(prefix)) for n in names if n.startswith(prefix)]
            assert there == sorted(there), "the order of one sender is not kept"
            assert set(sender.acknowledged) <= set(there), "an acknowledged message is lost"
            assert max(there, default=0) < sender.sent


@pytest.mark.quick
def test_a_confirmed_completion_never_comes_back(mortal: BrokerProcess) -> None:
    print(f"TWINBUS_KILL_SEED={SEED}")
    random = Random(SEED)
    filler = Raw(mortal.connection_string)
    total = 12_000
    filler.send("q", (message_of(f"{n}") for n in range(total)), 500)
    filler.socket.close()
    confirmed: set[str] = set()
    for _ in range(3):
        completers = [Completer(mortal.connection_string) for _ in range(2)]
        for completer in completers:
            completer.start()
        while not confirmed and not any(completer.confirmed for completer in completers):
            time.sleep(0.01)  # on a busy machine it takes a while before any has come so far
        time.sleep(random.uniform(0.1, 0.4))
        mortal.kill()
        for completer in completers:
            completer.join(20)
            assert not confirmed & set(completer.received.values()), "a settled one came back"
        confirmed |= completers[0].confirmed | completers[1].confirmed
        mortal.start()
    assert confirmed
    left = drain(mortal, "q")
    assert len(left) == len(set(left))
    assert not confirmed & set(left)
    print(f"{len(confirmed)} confirmed, {len(left)} left")


def test_everything_a_queue_knows_survives_a_kill(mortal: BrokerProcess) -> None:
    """Locks end at once; all else is as it was: counts, numbers, deferred, scheduled, sessions."""
    soon = datetime.now(UTC) + timedelta(seconds=4)
    with ServiceBusClient.from_connection_string(mortal.connection_string) as client:
        with client.get_queue_sender("q") as sender:
            sender.send_messages([ServiceBusMessage(name) for name in "abcdef"])
            (due,) = sender.schedule_messages([ServiceBusMessage("due")], soon)
            (far,) = sender.schedule_messages([ServiceBusMessage("far")], soon + timedelta(hours=1))
        with client.get_queue_sender("s") as sender:
            for n in range(3):
                sender.send_messages(ServiceBusMessage(f"s{n}", session_id="one"))
        receiver = client.get_queue_receiver("q")
        locked: list[Any] = []
        while len(locked) < 6:
            locked += receiver.receive_messages(6 - len(locked), max_wait_time=5)
        by_name = {str(each): each for each in locked}
        receiver.complete_message(by_name["a"])
        receiver.abandon_message(by_name["b"])
        receiver.defer_message(by_name["c"])
        receiver.dead_letter_message(by_name["d"], reason="r", error_description="t")
        session = client.get_queue_receiver("s", session_id="one")
        (first,) = session.receive_messages(1, max_wait_time=5)
        session.complete_message(first)
        session.session.set_state(b"half way")
        mortal.kill()
    time.sleep(max(0.0, (soon - datetime.now(UTC)).total_seconds() + 0.5))
    mortal.start()
    with ServiceBusClient.from_connection_string(mortal.connection_string) as client:
        with client.get_queue_receiver("q", receive_mode=ServiceBusReceiveMode.PEEK_LOCK) as again:
            started = time.monotonic()
            found: list[Any] = []
            while len(found) < 4 and time.monotonic() < started + 20:
                found += again.receive_messages(10, max_wait_time=2)
            facts = {str(each): (each.sequence_number, each.delivery_count) for each in found}
            assert facts.keys() == {"b", "e", "f", "due"}
            assert facts["b"] == (by_name["b"].sequence_number, 1)
            assert facts["e"][0] == by_name["e"].sequence_number
            assert facts["e"][1] in (0, 1)  # the delivery at the crash may count or not
            assert facts["due"][0] > far
            (deferred,) = again.receive_deferred_messages(by_name["c"].sequence_number)
            assert str(deferred) == "c"
            peeked = {
                each.sequence_number: each for each in again.peek_messages(50, sequence_number=1)
            }
            assert str(peeked[far]) == "far"
            assert due not in peeked
        with client.get_queue_sender("q") as sender:
            sender.cancel_scheduled_messages(far)
            sender.send_messages(ServiceBusMessage("next"))
        with client.get_queue_receiver("q") as again:
            (newest,) = again.receive_messages(1, max_wait_time=5)
            assert newest.sequence_number > facts["due"][0]
        with client.get_queue_receiver("q", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            (letter,) = dead.receive_messages(1, max_wait_time=5)
            assert (str(letter), letter.dead_letter_reason) == ("d", "r")
        with client.get_queue_receiver("s", session_id="one") as session:
            assert session.session.get_state() == b"half way"
            rest: list[Any] = []
            while len(rest) < 2:
                rest += session.receive_messages(2 - len(rest), max_wait_time=5)
            assert [str(each) for each in rest] == ["s1", "s2"]


# ---------------------------------------------------------------- a disk that refuses


@contextmanager
def refusing_disk(broker: BrokerProcess) -> Iterator[None]:
    """No file of the broker may be written beyond 8 KB: every write of its store fails."""
    soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (8_192, hard))
    try:
        yield
    finally:
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_refuses_is_told_to_the_client_and_costs_nothing_acknowledged(
    mortal: BrokerProcess,
) -> None:
    client = ServiceBusClient.from_connection_string(mortal.connection_string, retry_total=0)
    with client, client.get_queue_sender("q") as sender, client.get_queue_receiver("q") as receiver:
        sender.send_messages([ServiceBusMessage(f"{n}") for n in range(3)])
        held: list[Any] = []
        while len(held) < 3:
            held += receiver.receive_messages(3 - len(held), max_wait_time=5)
        with refusing_disk(mortal):
            with pytest.raises(ServiceBusError, match="Nothing was changed; try again"):
                sender.send_messages(ServiceBusMessage("refused"))
            with pytest.raises(ServiceBusError):
                receiver.complete_message(held[0])
            with pytest.raises(ServiceBusError, match="Nothing was changed; try again"):
                sender.schedule_messages(
                    ServiceBusMessage("refused"), datetime.now(UTC) + timedelta(hours=1)
                )
            assert len(receiver.peek_messages(10, sequence_number=1)) == 3
        sender.send_messages(ServiceBusMessage("taken"))
        receiver.complete_message(held[1])
        (next_one,) = receiver.receive_messages(1, max_wait_time=5)
        assert str(next_one) == "taken"
        names = [str(each) for each in receiver.peek_messages(10, sequence_number=1)]
        assert names == ["0", "2", "taken"]
    mortal.kill()
    mortal.start()
    client = ServiceBusClient.from_connection_string(mortal.connection_string)
    with client, client.get_queue_receiver("q") as receiver:
        names = [str(each) for each in receiver.peek_messages(10, sequence_number=1)]
        assert names == ["0", "2", "taken"]
    log = mortal.log()
    assert "store of 'contoso' fails" in log
    assert "store of 'contoso' is well again" in log


def test_a_disk_that_comes_and_goes_under_load_loses_nothing_acknowledged(
    mortal: BrokerProcess,
) -> None:
    raw = Raw(mortal.connection_string)
    link = raw.attach(SENDER, "q")
    accepted: set[int] = set()
    rejected = sent = 0
    switch = refusing_disk(mortal)
    for turn in range(20):
        if turn % 4 == 1:
            switch = refusing_disk(mortal)
            switch.__enter__()
        for _ in range(50):
            link.send(message_of(f"{sent}"), sent.to_bytes(4), settled=False)
            sent += 1
        while len(accepted) + rejected < sent:
            for event in raw.step():
                if isinstance(event, Settlement):
                    if isinstance(event.state, Accepted):
                        accepted.add(int.from_bytes(event.tag))
                    else:
                        rejected += 1
        if turn % 4 == 3:
            switch.__exit__(None, None, None)
    raw.close()
    assert rejected >= 50
    assert len(accepted) >= 50
    mortal.kill()
    mortal.start()
    names = drain(mortal, "q")
    assert {int(name) for name in names} == accepted
    assert len(names) == len(accepted)


# ---------------------------------------------------------------- files and folders


def start_in(data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Start a broker that is expected to refuse."""
    command = [str(Path(sys.executable).with_name("twinbus")), "broker", "--data", str(data)]
    command += ["--name", "contoso", "--port", "0", "--admin-port", "0", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as link:
        link.execute("CREATE TABLE mine (x)")
    link.close()


def from_the_future(path: Path) -> None:
    with sqlite3.connect(path) as link:
        link.execute("PRAGMA user_version = 99")
    link.close()


def garbage(path: Path) -> None:
    for side in ("-wal", "-shm"):
        path.with_name(path.name + side).unlink(missing_ok=True)
    path.write_bytes(b"this is no database " * 100)


@pytest.mark.damages
def test_a_file_that_cannot_be_read_is_refused_with_a_sentence_and_left_alone(
    tmp_path: Path,
) -> None:
    broker = BrokerProcess(tmp_path, QUEUES)
    broker.start()
    assert broker.stop() == 0
    path = tmp_path / "data" / "contoso" / "messages.db"
    empty = tmp_path / "empty" / "contoso"
    empty.mkdir(parents=True)
    for spoil, at, words in (
        (from_the_future, path, "has format version 99; this program reads version 1"),
        (foreign, empty / "messages.db", "not a Twinbus store"),
        (garbage, path, "cannot be opened as a Twinbus store"),
    ):
        spoil(at)
        before = hashlib.sha256(at.read_bytes()).digest()
        refused = start_in(at.parent.parent)
        assert refused.returncode == 2
        assert words in refused.stderr
        assert str(at) in refused.stderr
        assert "Traceback" not in refused.stderr
        assert hashlib.sha256(at.read_bytes()).digest() == before


def test_a_folder_belongs_to_one_broker(mortal: BrokerProcess) -> None:
    refused = start_in(mortal.folder / "data")
    assert refused.returncode == 2
    assert "another broker is using" in refused.stderr
    assert "Traceback" not in refused.stderr
    raw = Raw(mortal.connection_string)
    assert raw.send("q", iter([message_of("still here")]), 1) == 1
    raw.close()


def test_ctrl_c_ends_cleanly_with_everything_there(mortal: BrokerProcess) -> None:
    raw = Raw(mortal.connection_string)
    raw.send("q", (message_of(f"{n}") for n in range(500)), 100)
    receiving = Raw(mortal.connection_string)
    receiving.attach(RECEIVER, "q", settle_second=True).grant(100)
    receiving.flush()
    with ServiceBusClient.from_connection_string(mortal.connection_string) as client:
        with client.get_queue_sender("s") as sender:
            sender.send_messages(ServiceBusMessage("x", session_id="one"))
        session = client.get_queue_receiver("s", session_id="one")
        session.receive_messages(1, max_wait_time=5)
        sender_thread = Sender(mortal.connection_string, "live", 50)
        sender_thread.start()
        time.sleep(0.3)
        assert mortal.stop() == 0
        sender_thread.join(20)
    raw.socket.close()
    receiving.socket.close()
    assert "Traceback" not in mortal.log()
    assert "Error" not in mortal.log()
    mortal.start()
    names = drain(mortal, "q")
    assert {f"{n}" for n in range(500)} <= set(names)
    assert {f"live-{n}" for n in sender_thread.acknowledged} <= set(names)
    assert len(names) == len(set(names))


def test_a_generated_key_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TWINBUS_KEY"}
    command = [str(Path(sys.executable).with_name("twinbus")), "broker", "--name", "contoso"]
    command += ["--port", "0", "--admin-port", "0", "--data", str(tmp_path / "data")]
    keys = []
    for _ in range(2):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.terminate()
            assert process.wait(30) == 0
        keys.append(line.split("SharedAccessKey=")[1].split(";")[0])
    assert keys[0] == keys[1]
    assert len(keys[0]) == 44
    path = tmp_path / "data" / "contoso" / "key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == keys[0]
