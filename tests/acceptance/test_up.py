"""`twinbus up`, `down` and `status` as a user runs them: real processes, real kills."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from tests.times import slowness

TWINBUS = str(Path(sys.executable).with_name("twinbus"))
ANY_PORTS = ("--port", "0", "--admin-port", "0", "--dashboard-port", "0")
READY_S = 3.0
OURS = ("TWINBUS_PRIMARY", "TWINBUS_SECONDARY", "TWINBUS_FOLDER", "TWINBUS_KEY", "TWINBUS_LEDGER")
ENVIRONMENT = {name: text for name, text in os.environ.items() if name not in OURS}

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """The command, in a folder of its own. Whatever a test leaves running is ended."""

    def called(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [TWINBUS, *arguments],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    yield called
    called("down")
    assert not leftovers(tmp_path)


def leftovers(folder: Path) -> list[int]:
    """Processes that are in that folder."""
    return [
        process.pid
        for process in psutil.process_iter(["cwd", "status"])
        if process.info["cwd"] == str(folder) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def status(run: Run, code: int = 0) -> dict[str, Any]:
    parts: dict[str, Any] = json.loads(run("status", "--json", code=code).stdout)["parts"]
    return parts


def addresses(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def send(connection_string: str, text: str) -> float:
    """Answers when it was done; closing takes the SDK half a second more."""
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage(text))
        return time.monotonic()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=10)


# ---------------------------------------------------------------- as it should be


@pytest.mark.timeout(400)
def test_the_first_send_is_within_three_seconds_of_up(run: Run) -> None:
    """On a machine that does nothing else; how busy this one is is measured, and taken off."""
    took = []
    for number in range(4):
        busy, began = slowness(), time.monotonic()
        found = addresses(run("up", *ANY_PORTS, "--queue", "orders"))
        whole = send(found["primary"], f"coffee {number}") - began
        run("down")
        busy = (busy + slowness()) / 2
        print(f"from up to the first send: {whole:.2f} s, on a machine {busy:.1f} times slower")
        took.append(whole / busy)
        if whole < READY_S:
            break
    assert min(took) < READY_S


def test_up_says_how_to_reach_both_and_other_commands_find_them(run: Run, tmp_path: Path) -> None:
    found = addresses(run("up", *ANY_PORTS, "--queue", "orders"))
    assert list(found) == ["primary", "secondary", "dashboard"]
    file = tmp_path / ".twinbus" / "connections.env"
    assert file.stat().st_mode & 0o777 == 0o600
    script = f'. {file}; printf \'%s\\n%s\' "$TWINBUS_PRIMARY" "$TWINBUS_SECONDARY"'
    read = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert read.stdout.splitlines() == [found["primary"], found["secondary"]]
    assert "the namespaces can be paired" in run("check", "--entity", "orders").stdout
    assert "0 messages wait in 10 backlog queues" in run("backlog").stdout
    assert "not enabled" in run("fault", "list", code=1).stderr


def test_no_key_is_in_a_process_list_or_a_log(run: Run, tmp_path: Path) -> None:
    found = addresses(run("up", *ANY_PORTS))
    secrets = [re.findall("SharedAccessKey=([^;]+)", found[name])[0] for name in list(found)[:2]]
    secrets.append(found["dashboard"].partition("token=")[2])
    assert all(len(secret) > 20 for secret in secrets)
    shown = [part for part in status(run).values() if part["running"]]
    texts = [Path(f"/proc/{part['pid']}/cmdline").read_text() for part in shown]
    texts += [path.read_text() for path in (tmp_path / ".twinbus" / "run").glob("*.log")]
    assert len(texts) == 6
    assert not [text for text in texts for secret in secrets if secret in text]
    readable = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_mode & 4]
    assert not [path for path in readable for s in secrets if s.encode() in path.read_bytes()]


def test_what_was_sent_survives_down_and_up(run: Run) -> None:
    first = addresses(run("up", *ANY_PORTS, "--queue", "orders"))
    send(first["primary"], "one coffee")
    assert "ended primary, secondary, dashboard" in run("down").stdout
    second = addresses(run("up", *ANY_PORTS))
    key = "SharedAccessKey=[^;]+"
    assert re.findall(key, first["primary"]) == re.findall(key, second["primary"])
    with (
        ServiceBusClient.from_connection_string(second["primary"]) as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        assert str(message) == "one coffee"


def test_a_second_up_says_so_and_changes_nothing(run: Run) -> None:
    first = run("up", *ANY_PORTS)
    before = status(run)
    again = run("up", *ANY_PORTS)
    assert "up already" in again.stderr
    assert again.stdout == first.stdout
    assert status(run) == before


def test_faults_are_there_only_if_asked_for(run: Run) -> None:
    run("up", *ANY_PORTS, "--no-dashboard", "--faults")
    assert json.loads(run("fault", "list", "--json").stdout) == []
    run("fault", "start", "namespace-gone")
    # Its port is closed now, and yet it is found: by its admin address.
    assert json.loads(run("fault", "clear", "--json").stdout)[0]["kind"] == "namespace-gone"


# ---------------------------------------------------------------- as it should not be


def test_a_broker_that_was_killed_is_said_and_comes_back_on_its_port(run: Run) -> None:
    found = addresses(run("up", *ANY_PORTS, "--queue", "orders"))
    before = status(run)
    kill(before["primary"]["pid"])
    assert status(run, code=1)["primary"]["state"] == "ended unasked"
    assert "`twinbus up` starts it again" in run("status", code=1).stderr
    again = run("up")
    assert "started primary; the rest was up already" in again.stderr
    assert addresses(again) == found
    after = status(run)
    assert after["secondary"] == before["secondary"]
    send(found["primary"], "after all")


def test_a_strangers_process_is_left_alone(run: Run, tmp_path: Path) -> None:
    run("up", *ANY_PORTS, "--no-dashboard")
    record = tmp_path / ".twinbus" / "run" / "primary.json"
    told = json.loads(record.read_text())
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        ours = told["pid"]
        record.write_text(json.dumps({**told, "pid": stranger.pid}))
        assert status(run, code=1)["primary"]["running"] is False
        assert run("down").stdout == "ended secondary\n"
        assert stranger.poll() is None
        os.kill(ours, signal.SIGTERM)
    finally:
        stranger.kill()
        stranger.wait()


def test_a_record_that_cannot_be_read_is_no_record(run: Run, tmp_path: Path) -> None:
    run("up", *ANY_PORTS, "--no-dashboard")
    run("down")
    (tmp_path / ".twinbus" / "run" / "primary.json").write_text('{"pid": "x"')
    run("up", *ANY_PORTS, "--no-dashboard")
    assert status(run)["primary"]["running"]


def test_a_port_that_is_taken_is_a_sentence_and_nothing_is_left(run: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for option in ("--port", "--admin-port", "--dashboard-port"):
            others = [part for part in ANY_PORTS if part.startswith("--") and part != option]
            rest = [part for name in others for part in (name, "0")]
            done = run("up", option, str(port), *rest, code=2)
            assert f"127.0.0.1:{port}" in done.stderr
            assert "--port 0" in done.stderr
            assert done.stdout == ""
            assert not leftovers(tmp_path)
            assert not (tmp_path / ".twinbus" / "connections.env").exists()
            assert status(run, code=1)["primary"]["state"] == "down"


def test_with_nothing_up_commands_say_what_to_do(run: Run, tmp_path: Path) -> None:
    assert "`twinbus up`" in run("status", code=1).stderr
    assert "`twinbus up`" in run("backlog", code=2).stderr
    assert run("down").stdout == "nothing was up\n"
    assert not (tmp_path / ".twinbus").exists()


def test_a_folder_that_cannot_be_used_is_a_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be used" in run("up", "--folder", "file/in", code=2).stderr


def test_the_certificate_of_the_pair_is_not_used_for_others(run: Run, tmp_path: Path) -> None:
    """Another namespace is trusted as if no pair ran here."""
    run("up", *ANY_PORTS, "--no-dashboard")
    other = "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b"
    (tmp_path / ".twinbus" / "certificate.pem").unlink()  # reading it would be an error
    done = run("backlog", "--secondary", other, code=1)
    assert "the secondary did not answer" in done.stderr
