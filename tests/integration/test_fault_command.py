"""`twinbus fault`, as a user runs it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.brokers import KEY, BrokerProcess
from tests.integration.administrators import admin_port, token

from twinbus.broker.fault_kinds import KINDS


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), {"orders": {}}, extra=("--faults",))
    process.start()
    yield process
    process.close()
    assert "Traceback" not in process.log(), process.log()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("twinbus")), "fault", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert KEY not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_a_fault_is_started_listed_and_cleared(broker: BrokerProcess) -> None:
    there = ("--namespace", broker.connection_string)
    started = run("start", "throttling", "--entity", "orders", "--rate", "5", *there, "--json")
    assert started.returncode == 0, started.stderr
    fault = json.loads(started.stdout)
    assert (fault["kind"], fault["entity"]) == ("throttling", "orders")
    assert fault["settings"] == {"rate": 5.0}
    assert 50 < fault["seconds_left"] <= 60
    listed = run("list", *there)
    assert "throttling" in listed.stdout
    assert "rate=5.0" in listed.stdout
    environment = {"TWINBUS_NAMESPACE": broker.connection_string}
    cleared = run("clear", str(fault["id"]), "--json", **environment)
    assert [each["id"] for each in json.loads(cleared.stdout)] == [fault["id"]]
    assert run("list", **environment).stdout == "no faults\n"


def test_a_namespace_that_is_gone_is_called_back_at_its_admin_address(
    broker: BrokerProcess,
) -> None:
    there = ("--namespace", broker.connection_string)
    assert run("start", "namespace-gone", "--for", "300", *there).returncode == 0
    lost = run("clear", *there)
    assert lost.returncode == 1
    assert "give its admin address" in lost.stderr
    admin = ("--admin", f"http://localhost:{admin_port(broker)}")
    assert run("clear", *there, *admin).returncode == 0
    assert run("list", *there).returncode == 0


def test_every_kind_is_explained_in_a_line() -> None:
    lines = run("kinds").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(KINDS)
    assert [row["kind"] for row in json.loads(run("kinds", "--json").stdout)] == list(KINDS)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("start", "meteor"), "there is no fault 'meteor'; use one of throttling"),
        (("start", "throttling", "--entity", "nowhere"), "could not be found"),
        (("start", "throttling", "--for", "0"), "use a number from 0.1 to 86400"),
        (("start", "throttling", "--delay-s", "1"), "has no setting 'delay_s'; it takes rate"),
        (("list", "--admin", "localhost:5300"), "begins with http:// or https://"),
        (("clear", "77"), "there is no fault 77"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(
    broker: BrokerProcess, arguments: tuple[str, ...], sentence: str
) -> None:
    done = run(*arguments, "--namespace", broker.connection_string)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_namespace_it_asks_for_one() -> None:
    done = run("list", TWINBUS_NAMESPACE="")
    assert done.returncode == 2
    assert "Give --namespace, set TWINBUS_NAMESPACE, or start" in done.stderr


def test_a_broker_without_faults_says_how_to_have_them(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path, {"orders": {}})
    process.start()
    try:
        done = run("start", "throttling", "--namespace", process.connection_string)
        assert done.returncode == 1
        assert "start it with `twinbus broker --faults`" in done.stderr
    finally:
        process.close()


def test_a_restart_clears_all_faults(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path, {"orders": {}}, extra=("--faults",))
    process.start()
    try:
        there = ("--namespace", process.connection_string)
        assert run("start", "throttling", *there).returncode == 0
        assert process.stop() == 0
        process.start()
        assert run("list", *there).stdout == "no faults\n"
    finally:
        process.close()


def test_a_broker_stops_cleanly_while_a_request_is_held(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path, {"orders": {}}, extra=("--faults",))
    process.start()
    try:
        there = ("--namespace", process.connection_string)
        assert run("start", "no-answer", *there).returncode == 0
        head = f"GET /orders HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token(process)}\r\n\r\n"
        with socket.create_connection(("localhost", process.port), timeout=30) as waiting:
            waiting.sendall(head.encode())
            waiting.settimeout(1)
            with pytest.raises(TimeoutError):
                waiting.recv(1)
            assert process.stop() == 0
        assert "Traceback" not in process.log(), process.log()
    finally:
        process.close()


@pytest.mark.parametrize("command", ["start", "list", "clear", "kinds"])
def test_the_help_has_an_example(command: str) -> None:
    assert f"Example: twinbus fault {command}" in " ".join(run(command, "--help").stdout.split())
