"""`twinbus broker` as a user runs it: what it prints, how soon it is ready, and how it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from harness.raw import Raw, kilobyte_message
from tests.ports import free_ports
from tests.times import slowness

TWINBUS = str(Path(sys.executable).with_name("twinbus"))
READY_S = 4.0  # what is promised is about a second, on a machine at rest
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "TWINBUS_KEY"}


class Running:
    """A broker that has said where it is."""

    def __init__(self, process: subprocess.Popen[str], lines: list[str], ready_s: float) -> None:
        self.process = process
        self.strings = dict(line.split(": ", 1) for line in lines)
        self.ready_s = ready_s

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@contextmanager
def running(*arguments: str, namespaces: int = 1, **environment: str) -> Iterator[Running]:
    started = time.monotonic()
    process = subprocess.Popen(
        [TWINBUS, "broker", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **environment},
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(namespaces)]
        yield Running(process, lines, time.monotonic() - started)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def send_and_receive(connection_string: str, queue: str) -> None:
    raw = Raw(connection_string)
    assert raw.send(queue, iter([kilobyte_message(1)]), 1) == 1
    assert raw.receive(queue, 1, 1) == 1
    raw.close()


# ---------------------------------------------------------------- as it should be


def test_it_is_ready_within_seconds_and_says_how_to_reach_it(tmp_path: Path) -> None:
    port, admin = free_ports(2)
    before = slowness()
    with running(
        *("--name", "contoso", "--port", str(port), "--admin-port", str(admin)),
        *("--queue", "orders", "--queue", "invoices", "--data", str(tmp_path / "data")),
        TWINBUS_KEY="c2VjcmV0LWtleQ==",
    ) as broker:
        slower = max(before, slowness())
        print(f"ready in {broker.ready_s:.2f} s, on a machine {slower:.1f} times slower")
        assert broker.ready_s < READY_S * slower
        assert broker.strings["contoso"] == (
            f"Endpoint=sb://localhost:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
            "SharedAccessKey=c2VjcmV0LWtleQ==;UseDevelopmentEmulator=true"
        )
        with urllib.request.urlopen(f"http://localhost:{admin}/health", timeout=10) as answer:
            assert answer.status == 200
            assert json.load(answer)["namespace"] == "contoso"
        with (
            ServiceBusClient.from_connection_string(broker.strings["contoso"]) as client,
            client.get_queue_sender("orders") as sender,
            client.get_queue_receiver("orders") as receiver,
        ):
            sender.send_messages(ServiceBusMessage("hello"))
            (message,) = receiver.receive_messages(1, max_wait_time=10)
            assert str(message) == "hello"
            receiver.complete_message(message)
        command = Path(f"/proc/{broker.process.pid}/cmdline").read_bytes()
        assert b"c2VjcmV0" not in command
        code, _, _ = broker.stop()
        assert code == 0


def test_it_is_quiet_when_all_is_well(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with running("--port", "0", "--admin-port", "0", "--queue", "q", "--data", data) as broker:
        (connection_string,) = broker.strings.values()
        for _ in range(3):
            send_and_receive(connection_string, "q")
        code, out, err = broker.stop(signal.SIGTERM)
    assert (code, out) == (0, "")
    assert all("health at http://localhost:" in line for line in err.splitlines()), err


def test_several_namespaces_live_apart_in_one_process(tmp_path: Path) -> None:
    ports = [str(port) for port in free_ports(4)]
    arguments = ["--data", str(tmp_path / "data"), "--queue", "q"]
    for name, port, admin in (("one", *ports[:2]), ("two", *ports[2:])):
        arguments += ["--name", name, "--port", port, "--admin-port", admin]
    with running(*arguments, namespaces=2) as broker:
        assert broker.strings.keys() == {"one", "two"}
        keys = {text.split("SharedAccessKey=")[1].split(";")[0] for text in broker.strings.values()}
        assert len(keys) == 2
        one, two = Raw(broker.strings["one"]), Raw(broker.strings["two"])
        assert one.send("q", iter([kilobyte_message(1)]), 1) == 1
        assert two.send("q", iter([kilobyte_message(2), kilobyte_message(3)]), 1) == 2
        assert two.receive("q", 2, 10) == 2
        assert one.receive("q", 1, 10) == 1
        one.close()
        two.close()
        assert broker.stop()[0] == 0


def test_a_file_declares_namespaces_and_queues_once(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    text = """
        [[namespace]]
        name = "first"
        port = 0
        admin_port = 0
        [[namespace.queue]]
        name = "target"
        [[namespace.queue]]
        name = "orders"
        forward_to = "target"
        lock_duration = "PT30S"
        [[namespace]]
        name = "second"
        port = 0
        admin_port = 0
        key = "b3duLWtleQ=="
    """
    config.write_text(text)
    arguments = ("--config", str(config), "--data", str(tmp_path / "data"))
    for _ in range(2):  # what is declared and there already is left as it is
        with running(*arguments, namespaces=2) as broker:
            assert "SharedAccessKey=b3duLWtleQ==;" in broker.strings["second"]
            raw = Raw(broker.strings["first"])
            assert raw.send("orders", iter([kilobyte_message(1)]), 1) == 1
            assert raw.receive("target", 1, 1) == 1
            raw.close()
            assert broker.stop()[0] == 0


def test_loopback_is_the_only_address_unless_told(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with running("--port", "0", "--admin-port", "0", "--data", data) as broker:
        listening = listening_addresses(broker.process.pid)
        assert len(listening) == 2
        assert set(listening) == {"0100007F"}  # 127.0.0.1, as /proc writes it
        assert broker.stop()[0] == 0


def listening_addresses(pid: int) -> list[str]:
    links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    found = {}
    for _ in range(5):  # sockets that come and go while the table is read make it skip lines
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    found[fields[9]] = fields[1].split(":")[0]
    return list(found.values())


# ---------------------------------------------------------------- as it should not be

GOOD = '[[namespace]]\nname = "n"\nport = 0\nadmin_port = 0\n'


def refuse(folder: Path, *arguments: str) -> str:
    """Run a command that must be refused; answers its one sentence."""
    done = subprocess.run(
        [TWINBUS, "broker", "--data", str(folder / "data"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--name", "a b"], ["a b", "name"]),
        (["--name", ".."], [".."]),
        (["--name", "x" * 51], ["50"]),
        (["--name", "a", "--name", "A"], ["twice"]),
        (["--name", "a", "--name", "b", "--port", "5001"], ["2 --name", "1 --port"]),
        (["--port", "70000"], ["70000"]),
        (["--port", "5001", "--admin-port", "5001"], ["5001"]),
        (["--port", "many"], ["--port"]),
        (["--queue", "/bad/"], ["/bad/"]),
        (["--config", "nowhere.toml"], ["nowhere.toml", "No such file"]),
        (["--tls-cert", "cert.pem"], ["--tls-cert and --tls-key go together"]),
        (["--tls-cert", "no.pem", "--tls-key", "no.key"], ["no.pem", "cannot be used"]),
        (["--host", "256.1.1.1", "--port", "0"], ["256.1.1.1"]),
        (["--host", "192.0.2.1", "--port", "0"], ["192.0.2.1"]),
        (["--data", "/proc/nothing"], ["/proc/nothing"]),
        (["--no-such-option"], ["--no-such-option"]),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    said = refuse(tmp_path, *arguments)
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[namespace]\n", ["is not TOML"]),
        (GOOD + "prot = 1", ["prot"]),
        (GOOD.replace("port = 0", "port = 'x'", 1), ["port", "'x'"]),
        (GOOD + "queue = 'q'", ["queue"]),
        (
            GOOD + "[[namespace.queue]]\nname = 'q'\nlock_duration = 'soon'",
            ["lock_duration", "soon"],
        ),
        (GOOD + "[[namespace.queue]]\nname = 'q'\nforward_to = 'none'", ["none"]),
        (GOOD + "[[namespace.queue]]\nname = 'q'\nforward_to = 'q'", ["circle"]),
    ],
)
def test_a_bad_file_is_refused_with_the_key_named(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    (tmp_path / "bad.toml").write_text(text)
    said = refuse(tmp_path, "--config", str(tmp_path / "bad.toml"))
    for word in words:
        assert word in said


def test_a_taken_port_is_refused_and_leaves_nothing_running(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        free = str(free_ports(1)[0])
        for arguments in (
            ["--port", port, "--admin-port", "0"],
            ["--port", free, "--admin-port", port],
            *[["--name", "a", "--name", "b", "--port", free, "--port", port]],
        ):
            if "b" in arguments:
                arguments += ["--admin-port", "0", "--admin-port", "0"]
            said = refuse(tmp_path, *arguments)
            assert f"cannot listen on 127.0.0.1:{port}" in said
    with socket.create_server(("127.0.0.1", int(free))):
        pass  # it is free again
