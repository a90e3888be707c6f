"""The syphon as a process, between two brokers that are processes: one that runs all the time."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.management import EntityStatus
from hypothesis import HealthCheck, Phase, given, settings
from tests.syphons import (
    TWINBUS,
    Namespaces,
    SyphonProcess,
    backlog_path,
    backlog_queues,
    names,
    until,
)
from tests.unit.pipeline.backlogs import plain, properties_of
from tests.unit.test_envelope import messages as any_messages

from twinbus import envelope
from twinbus.amqp.message import Message
from twinbus.amqp.sections import Sections
from twinbus.amqp.types import Symbol, Timestamp, encode_list, encode_map

# One syphon serves these tests, in one worker, in this order.
pytestmark = [pytest.mark.xdist_group("syphon"), pytest.mark.timeout(420)]

LONG_POLL_S = 2
HOME: dict[str, dict[str, Any]] = {
    "orders": {"requires_duplicate_detection": True},
    "bills": {},
    "visits": {"requires_session": True},
    "types": {},
    "limited": {},
    "down": {},
}


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces]:
    backlog = backlog_queues(3)
    # What is left behind in this one is receivable again after seconds, not after a minute.
    backlog[backlog_path(2)]["lock_duration"] = "PT5S"
    made = Namespaces(tmp_path_factory.mktemp("syphon"), HOME, backlog)
    yield made.start()
    made.close()


@pytest.fixture(scope="module")
def syphon(namespaces: Namespaces) -> Iterator[SyphonProcess]:
    """Started, and warm: it has moved a message."""
    made = SyphonProcess(namespaces, "--long-poll", str(LONG_POLL_S), "--http-port", "0")
    namespaces.divert_ids("bills", ["warm"], 0)
    namespaces.divert_ids("bills", ["warm too"], 1)
    made.until_started()
    until(lambda: len(namespaces.home_ids("bills")), lambda count: count == 2, 100)
    yield made
    made.close()


def test_a_message_is_home_within_seconds_of_its_coming(
    syphon: SyphonProcess, namespaces: Namespaces
) -> None:
    took = []
    for number in range(3):
        began = time.monotonic()
        namespaces.divert_ids("orders", [f"soon-{number}"], number % 3)
        until(lambda: namespaces.home_ids("orders")[-1:], lambda ids: ids == [f"soon-{number}"])  # noqa: B023
        took.append(time.monotonic() - began)
    assert min(took) < 3, took


def test_while_it_idles_it_asks_once_a_queue_and_long_poll_and_rests(
    syphon: SyphonProcess, namespaces: Namespaces
) -> None:
    namespaces.until_empty()
    time.sleep(LONG_POLL_S)  # what was received last ends with the next long poll
    everyone = [psutil.Process(syphon.process.pid), *syphon.relatives()]

    def asked() -> int:
        found = [namespaces.metrics(namespaces.secondary, queue) for queue in namespaces.backlog]
        return sum(each["receive_requests_total"] for each in found)

    def busy_s() -> float:
        times = [each.cpu_times() for each in everyone if each.is_running()]
        return sum(each.user + each.system for each in times)

    requests, used, began = asked(), busy_s(), time.monotonic()
    time.sleep(4 * LONG_POLL_S)
    passed = time.monotonic() - began
    polls = passed / LONG_POLL_S + 1
    assert asked() - requests <= polls * len(namespaces.backlog)
    assert (busy_s() - used) / passed < 0.2


@pytest.fixture(scope="module")
def many() -> list[bytes]:
    """Messages of every AMQP type in every place."""
    found: list[bytes] = []

    @settings(
        max_examples=120,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(any_messages())
    def collect(message: bytes) -> None:
        found.append(message)

    collect()
    return found


def test_every_amqp_type_comes_home_as_it_was_sent(
    syphon: SyphonProcess, namespaces: Namespaces, many: list[bytes]
) -> None:
    """The bare message, byte by byte. Those with annotations that mean something to a broker, as
    times and sessions, are the next test's."""
    packed, expected = [], []
    for message in many:
        annotations = Sections(message).annotations()
        if not any("x-opt" in str(key) for key in annotations):
            packed += envelope.pack(message, "types")
            expected.append(Message.parse(message).bare)
    assert len(expected) > 30
    namespaces.put(packed, 1)
    found = until(lambda: namespaces.at_home("types"), lambda home: len(home) >= len(expected), 30)
    assert [Message.parse(each).bare for each in found] == expected
    assert namespaces.dead(1) == []


def scheduled(message_id: str, at: datetime) -> bytes:
    """A message that lives for an hour."""
    time_ms = Timestamp(int(at.timestamp() * 1000))
    annotations = encode_map({Symbol("x-opt-scheduled-enqueue-time"): time_ms})
    header, rest = plain(message_id, ttl_ms=3_600_000).split(b"\x00\x53\x73", 1)
    return header + b"\x00\x53\x72" + annotations + b"\x00\x53\x73" + rest


def in_session(message_id: str, session_id: str) -> bytes:
    fields = [message_id, *[None] * 9, session_id]
    return b"\x00\x53\x73" + encode_list(fields) + b"\x00\x53\x75\xa0\x01x"


def test_topics_sessions_schedules_and_times_to_live_are_restored(
    syphon: SyphonProcess, namespaces: Namespaces
) -> None:
    with namespaces.administrator() as administrator:
        administrator.create_topic("events")
        administrator.create_subscription("events", "audit")
    past = datetime.now(UTC) - timedelta(hours=1)
    later = datetime.now(UTC) + timedelta(hours=1)
    namespaces.divert("events", [plain("to a topic")])
    namespaces.divert("limited", [scheduled("overdue", past), scheduled("later", later)])
    namespaces.divert("visits", [in_session(str(n), "ab"[n % 2]) for n in range(6)])
    namespaces.until_empty(30)
    home = ServiceBusClient.from_connection_string(namespaces.primary.connection_string)
    with home:
        with home.get_subscription_receiver("events", "audit", max_wait_time=10) as receiver:
            assert next(receiver).message_id == "to a topic"
        with home.get_queue_receiver("limited", max_wait_time=10) as receiver:
            overdue = next(receiver)
            assert overdue.message_id == "overdue"
            assert overdue.time_to_live == timedelta(hours=1)
            waits = receiver.peek_messages(5, sequence_number=1)[-1]
            assert waits.message_id == "later"
            assert waits.scheduled_enqueue_time_utc is not None
            assert abs(waits.scheduled_enqueue_time_utc - later) < timedelta(seconds=1)
        for session, ids in (("a", ["0", "2", "4"]), ("b", ["1", "3", "5"])):
            with home.get_queue_receiver("visits", session_id=session) as receiver:
                received = receiver.receive_messages(3, max_wait_time=5)
                assert [each.message_id for each in received] == ids


def test_a_message_in_parts_is_put_together(syphon: SyphonProcess, namespaces: Namespaces) -> None:
    body = random.Random(1).randbytes(261_900)
    namespaces.divert("types", [plain("in parts", body), plain("squeezed", b"x" * 261_900)])
    found = until(
        lambda: namespaces.at_home("types")[-2:],
        lambda home: [envelope.id_of(each) for each in home] == ["in parts", "squeezed"],
    )
    assert body in found[0]


def test_what_can_never_be_delivered_is_set_aside_and_redriven(
    syphon: SyphonProcess, namespaces: Namespaces
) -> None:
    wrong = properties_of(x_ms_path="orders", x_ms_sessionid=7)
    body = b"\x00\x53\x75\xa0\x01x"
    namespaces.put([plain("stray"), b"\x00\x53\x73\xc0\x08\x01\xa1\x05wrong" + wrong + body])
    namespaces.divert_ids("visits", ["has no session"])
    found = until(namespaces.dead, lambda dead: len(dead) == 3, 60)
    texts = b"".join(found)
    for words in (b"TwinbusEnvelope", b"no x-ms-path", b"x-ms-sessionid", b"RefusedByDestination"):
        assert words in texts
    # They are set aside in the middle of a round, and counted at its end.
    before = until(lambda: syphon.progress()["dead_lettered"], lambda dead: dead >= 3)
    done = subprocess.run(
        [TWINBUS, "backlog", "redrive", "--primary-name", "localhost", "--json"],
        env=namespaces.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["total"] == 3
    until(lambda: syphon.progress()["dead_lettered"], lambda dead: dead == before + 3)
    assert len(until(namespaces.dead, lambda dead: len(dead) == 3)) == 3


def test_others_flow_past_a_destination_that_is_down_and_its_own_come_home_in_order(
    syphon: SyphonProcess, namespaces: Namespaces
) -> None:
    with namespaces.administrator() as administrator:
        queue = administrator.get_queue("down")
        queue.status = EntityStatus.SEND_DISABLED
        administrator.update_queue(queue)
        namespaces.divert_ids("down", names("d", 20), 2)
        until(lambda: syphon.progress()["destinations"].get("down", {}).get("failed"), bool, 30)
        # Nothing moves now. One for another destination does not wait for that.
        began = time.monotonic()
        namespaces.divert_ids("orders", ["past"], 2)
        until(lambda: namespaces.home_ids("orders")[-1], lambda last: last == "past", 30)
        took = time.monotonic() - began
        for number in range(20):
            namespaces.divert_ids("down", [f"e-{number:04}"], 2)
            namespaces.divert_ids("orders", [f"o-{number:04}"], 2)
        orders = names("o", 20)
        until(lambda: namespaces.home_ids("orders")[-20:], lambda last: last == orders, 30)
        assert namespaces.home_ids("down") == []
        assert "down" in syphon.page("/metrics")
        queue.status = EntityStatus.ACTIVE
        administrator.update_queue(queue)
    namespaces.until_empty(100)
    assert namespaces.home_ids("down") == names("d", 20) + names("e", 20)
    assert took < 10, took


def test_progress_is_told_to_http_prometheus_and_the_log(
    syphon: SyphonProcess, namespaces: Namespaces
) -> None:
    total = len(namespaces.home_ids("bills")) + 5
    namespaces.divert_ids("bills", names("told", 5))

    def bills() -> Any:
        return syphon.progress()["destinations"]["bills"]

    found = until(bills, lambda count: count["moved"] == total and count["left"] == 0, 30)
    assert (found["failed"], found["dead_lettered"], found["duplicates"]) == (0, 0, 0)
    text = syphon.page("/metrics")
    line = 'twinbus_syphon_moved_total{destination="bills"} ' + str(found["moved"])
    assert line in text
    assert re.search(r'twinbus_syphon_left{destination="bills"} 0', text)
    until(lambda: syphon.log, lambda log: f"bills: {found['moved']} moved" in log, 30)
    key = namespaces.primary.connection_string.split("SharedAccessKey=")[1].split(";")[0]
    assert key not in syphon.log


def test_ctrl_c_ends_it_and_leaves_no_process_behind(
    syphon: SyphonProcess, namespaces: Namespaces
) -> None:
    relatives = syphon.relatives()
    assert relatives
    assert syphon.interrupt() == 0, syphon.log
    _, alive = psutil.wait_procs(relatives, 20)
    assert not alive
    assert "messages went home" in syphon.out
    assert "Traceback" not in syphon.log
    assert namespaces.left() == 0


# ---------------------------------------------------------------- without Spark: told at once


def run(namespaces: Namespaces, *arguments: str, **environment: str) -> Any:
    return subprocess.run(
        [TWINBUS, "syphon", *arguments],
        env={**namespaces.environment, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_makes_no_sense_is_refused_with_a_sentence(namespaces: Namespaces) -> None:
    for arguments, words in (
        (("--rate", "-1"), "rate is -1.0"),
        (("--primary-name", "nobody"), "no backlog queue of a primary called nobody"),
        (("--primary", "x"), "--primary is not a connection string"),
        (("--queue", "x", "--backlog-queue-count", "2"), "not both"),
    ):
        done = run(namespaces, *arguments)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_a_secondary_that_does_not_answer_is_said(namespaces: Namespaces) -> None:
    nowhere = re.sub(r":\d+;", ":1;", namespaces.secondary.connection_string, count=1)
    done = run(namespaces, TWINBUS_SECONDARY=nowhere)
    assert done.returncode == 1
    assert "the secondary did not answer" in done.stderr
    assert os.path.basename(TWINBUS) in done.stderr
