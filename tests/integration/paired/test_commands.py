"""`twinbus backlog` and `twinbus check`, as a user runs them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from harness.brokers import BrokerProcess, certificate
from tests.pairs import ZERO

import twinbus

QUEUES: dict[str, dict[str, Any]] = {"orders": {}}
QUEUES_AWAY: dict[str, dict[str, Any]] = {"mine": {}}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("twinbus")), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def settings(primary: BrokerProcess, secondary: BrokerProcess) -> dict[str, str]:
    return {
        "TWINBUS_PRIMARY": primary.connection_string,
        "TWINBUS_SECONDARY": secondary.connection_string,
        "TWINBUS_CERTIFICATE": certificate(secondary),
    }


def divert(primary: BrokerProcess, secondary: BrokerProcess) -> None:
    make = twinbus.MessagingFactory.from_connection_string
    with (
        make(primary.connection_string, retry_total=0) as factory,
        make(secondary.connection_string) as backup,
        twinbus.NamespaceManager.from_connection_string(
            secondary.connection_string, connection_verify=certificate(secondary)
        ) as manager,
    ):
        factory.pair_namespace(
            twinbus.SendAvailabilityPairedNamespaceOptions(manager, backup, 2, ZERO)
        )
        with factory.get_queue_sender("gone") as sender:
            sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
            sender.send_messages(ServiceBusMessage(os.urandom(262_000)))
        with factory.get_topic_sender("lost") as sender:
            sender.send_messages(ServiceBusMessage("c"))


def test_backlog_lists_what_waits_by_queue_and_destination(
    brokers: tuple[BrokerProcess, BrokerProcess],
) -> None:
    divert(*brokers)
    done = run("backlog", "--json", **settings(*brokers))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert [name.split("/", 1)[1] for name in found["queues"]][:2] == [
        "x-servicebus-transfer/0",
        "x-servicebus-transfer/1",
    ]
    counts: dict[str, int] = {}
    for row in found["waiting"]:
        counts[row["destination"]] = counts.get(row["destination"], 0) + row["messages"]
        assert row["oldest"]
    assert counts == {"gone": 3, "lost": 1}, "a message in parts is one message"
    assert sum(row["bytes"] for row in found["waiting"]) > 262_000
    plain = run("backlog", **settings(*brokers))
    assert "4 messages wait in" in plain.stdout
    assert "gone" in plain.stdout


def test_check_says_what_works(brokers: tuple[BrokerProcess, BrokerProcess]) -> None:
    done = run("check", "--entity", "orders", "--backlog-queue-count", "2", **settings(*brokers))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok     the primary answers" in done.stdout
    assert "ok     'orders' on the primary takes messages" in done.stdout
    assert "x-servicebus-transfer/1 takes messages" in done.stdout


def test_check_says_what_does_not_and_exits_1(
    brokers: tuple[BrokerProcess, BrokerProcess],
) -> None:
    done = run(
        *("check", "--json", "--entity", "nowhere", "--backlog-queue-count", "1"),
        **settings(*brokers),
    )
    assert done.returncode == 1
    steps = json.loads(done.stdout)["steps"]
    assert [step["ok"] for step in steps][:3] == [True, False, True]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["backlog"], "Give --secondary, set TWINBUS_SECONDARY, or start"),
        (["backlog", "--secondary", "nonsense"], "--secondary is not a connection string"),
        (["check", "--secondary", "nonsense"], "Give --primary, set TWINBUS_PRIMARY, or start"),
    ],
)
def test_a_users_mistake_is_a_sentence_and_exit_code_2(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


NOWHERE = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=c2VjcmV0;"
    "UseDevelopmentEmulator=true"
)


def test_a_syphon_that_cannot_reach_its_secondary_says_so_on_the_terminal(
    brokers: tuple[BrokerProcess, BrokerProcess],
) -> None:
    ours, its = os.openpty()
    command = [str(Path(sys.executable).with_name("twinbus")), "syphon", "--queue", "a/b/0"]
    environment = {"TWINBUS_PRIMARY": brokers[0].connection_string, "TWINBUS_SECONDARY": NOWHERE}
    process = subprocess.Popen(
        command,
        stderr=its,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    os.close(its)
    said = b""
    try:
        while b"the secondary does not answer" not in said:
            assert select.select([ours], [], [], 60)[0], said
            said += os.read(ours, 4096)
        assert process.poll() is None, "it goes on"
        assert b"c2VjcmV0" not in said
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)


def test_a_secondary_that_is_not_there_is_a_sentence_and_exit_code_1() -> None:
    done = run("backlog", "--secondary", NOWHERE)
    assert done.returncode == 1
    assert "the secondary did not answer" in done.stderr
    assert "c2VjcmV0" not in done.stderr
    assert "Traceback" not in done.stderr
