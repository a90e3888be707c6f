"""A store, a ledger, a checkpoint of the syphon's and configurations as this version leaves them,
for every later one to open: ``python -m tools.golden 2`` makes tests/golden/2.

Do it whenever one of these formats changes, under a new name. What is there is never made anew:
tests/unit/test_golden.py opens all of it, and finds in it what was put there.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

if __package__ is None or __package__ == "":  # as a script
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.golden.opened import everything
from tests.unit.broker.bus import START_MS, Bus, message

from twinbus.amqp.message import Properties, encode_annotations, encode_header
from twinbus.amqp.sections import SCHEDULED, section
from twinbus.amqp.types import Symbol, Timestamp, UInt, encode, encode_map
from twinbus.auth.access_rules import AccessRule, Claim
from twinbus.broker.burial import Burial
from twinbus.broker.descriptions import Status
from twinbus.broker.expressions import Value
from twinbus.broker.rules import CorrelationFilter, FalseFilter, Rule, SqlFilter, SqlRuleAction
from twinbus.broker.sessions import SessionQueue
from twinbus.ledger import Cause, Ledger, Operation, RecordKeeper

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
DAY_MS = 86_400_000
WHEN = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
VALUES: dict[str, Value] = {
    "text": "a",
    "number": 7,
    "share": 2.5,
    "is": True,
    "id": UUID(int=5),
    "at": WHEN,
}


def whole_message(name: str) -> bytes:
    """With every section, and every kind of value in it."""
    kinds: dict[Any, Any] = {
        "text": "größe",
        "int": 1,
        "long": 1 << 40,
        "uint": UInt(3),
        "float": 0.5,
        "true": True,
        "none": None,
        "uuid": UUID(int=1),
        "at": Timestamp(START_MS),
        "bytes": b"\x00\xff",
    }
    properties = Properties(
        message_id=name,
        user_id=b"me",
        to="there",
        subject="red",
        reply_to="here",
        correlation_id=UUID(int=2),
        content_type="text/plain",
        content_encoding="utf-8",
        absolute_expiry_time=START_MS + 40 * DAY_MS,
        creation_time=START_MS,
        group_id="a group",
        group_sequence=3,
        reply_to_group_id="another",
    )
    return (
        encode_header(True, 9, 40 * DAY_MS, 0)
        + section(0x71, encode_map({Symbol("x-opt-way"): "by sea"}))
        + encode_annotations({Symbol("x-opt-partition-key"): "a group", Symbol("x-own"): 5})
        + properties.encoded()
        + section(0x74, encode_map(kinds))
        + section(0x75, encode(b"body of " + name.encode()))
        + section(0x75, encode(b"and more of it"))
        + section(0x78, encode_map({Symbol("sum"): b"\x01\x02"}))
    )


def later(name: str, days: int, **properties: Any) -> bytes:
    due = encode_annotations({SCHEDULED: Timestamp(START_MS + days * DAY_MS)})
    return due + message(name, **properties)


def _other_bodies() -> Iterator[bytes]:
    """A value and a sequence, where the others have bytes."""
    for name, code in (("value", 0x77), ("sequence", 0x76)):
        body = [f"body of {name}".encode(), 1, "größe"]
        yield Properties(message_id=name).encoded() + section(code, encode(body))


def fill(bus: Bus) -> None:
    _queues(bus)
    _sessions(bus)
    _topics(bus)
    bus.create_queue("once", requires_duplicate_detection=True, duplicate_window=timedelta(days=7))
    bus.send("once", "seen", "seen and gone")
    taker = bus.take("once", 2)
    bus.do(bus.queue("once").complete, taker.tokens[1])
    bus.queue("once").abandon(taker.tokens[0], bus.now, quiet)
    bus.commit()


def quiet(error: Exception | None) -> None:
    """Nobody waits."""


def _put(bus: Bus, path: str, *payloads: bytes) -> None:
    bus.do(bus.namespace.send, bus.directory.entity(path), list(payloads), bus.now)


def _queues(bus: Bus) -> None:
    bus.create_queue("last")
    rule = AccessRule("reader", "cHJpbWFyeQ==", "c2Vjb25k", frozenset({Claim.LISTEN}))
    bus.create_queue(
        "orders/eu",
        default_ttl=timedelta(days=1_000),
        auto_delete_on_idle=timedelta(days=10_000),
        lock_duration=timedelta(seconds=90),
        max_delivery_count=3,
        max_size_mb=2_048,
        enable_partitioning=True,
        enable_batched_operations=False,
        dead_lettering_on_expiration=True,
        user_metadata="notes",
        access_rules=(rule,),
    )
    _put(bus, "orders/eu", whole_message("whole"), message("short-lived", 40 * DAY_MS))
    _put(bus, "orders/eu", *(message(f"{each}") for each in ("put off", "bad", "tried", "spent")))
    _put(bus, "orders/eu", *_other_bodies())
    _put(bus, "orders/eu", later("in a while", 3_650), message("locked"))
    queue = bus.queue("orders/eu")
    tokens = dict(bus.take("orders/eu", 6).got)
    queue.defer(tokens["put off"], quiet, {"why": "later"})
    queue.dead_letter(
        tokens["bad"], lambda entry: Burial(entry, "Bad", "It is bad.", {"by": "me"}), quiet
    )
    queue.abandon(tokens["tried"], bus.now, quiet, {"tries": 1})
    bus.commit()
    bus.create_queue("worn", max_delivery_count=1)
    bus.send("worn", "spent", "left")
    spent = bus.take("worn", 1).tokens[0]
    bus.queue("worn").abandon(spent, bus.now, quiet)
    bus.create_queue("gone")
    bus.create_queue("lost", forward_to="gone")
    bus.delete("gone")
    bus.send("lost", "to nobody")
    bus.create_queue("second", forward_to="last")
    bus.create_queue("first", forward_to="second")
    bus.send("first", "forwarded")
    bus.create_queue("closed", status=Status.SEND_DISABLED, forward_dead_letters_to="last")
    bus.create_queue("empty")


def _sessions(bus: Bus) -> None:
    bus.create_queue("sessions", requires_session=True)
    for name in ("blue", "red"):
        _put(bus, "sessions", *(message(f"{name} {n}", group_id=name) for n in range(2)))
    _put(bus, "sessions", later("blue in a while", 3_650, group_id="blue"))
    queue = bus.queue("sessions")
    assert isinstance(queue, SessionQueue)
    for name in ("blue", "green"):
        bus.do(queue.set_state, name, f"state of {name}".encode(), bus.now)


def _topics(bus: Bus) -> None:
    bus.create_topic("news")
    bus.subscribe("news", "all", max_delivery_count=7)
    none = Rule("none", FalseFilter())
    equal = Rule(
        "equal",
        CorrelationFilter(
            correlation_id="c",
            message_id="m",
            to="t",
            reply_to="r",
            label="red",
            session_id="s",
            reply_to_session_id="rs",
            content_type="ct",
            properties=VALUES,
        ),
    )
    sql = Rule(
        "sql",
        SqlFilter("sys.Label = @wanted AND size > 3 OR EXISTS(hot)", {"wanted": "red"}),
        SqlRuleAction("SET seen = @by; REMOVE hot; SET sys.To = 'there'", {"by": "sql"}),
    )
    failing = Rule("failing", SqlFilter("size / 0 = 1"))
    for name, rules in {"few": [none, equal], "changed": [sql], "failing": [failing]}.items():
        bus.subscribe("news", name)
        for rule in rules:
            bus.do(bus.directory.create_rule, "news", name, rule, bus.now)
        bus.do(bus.directory.delete_rule, "news", name, "$Default")
    bus.subscribe("news", "away", forward_to="last")
    bus.subscribe("news", "in-sessions", requires_session=True)
    hot = section(0x74, encode_map({"hot": 1, "size": 5}))
    head = Properties(message_id="shared", subject="red", group_id="blue").encoded()
    _put(bus, "news", head + hot + section(0x75, encode(b"body of shared")))
    _put(bus, "news", later("news to come", 3_650))
    bus.tick()
    bus.commit()


def make_store(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as where:
        bus = Bus(Path(where))
        fill(bus)
        assert bus.wrong() == {}
        bus.reopen()
        found = everything(bus)
        bus.close()
        with closing(sqlite3.connect(bus.path)) as link:
            lines = list(_pragmas(link)) + list(link.iterdump())
    (folder / "store.sql").write_text("\n".join(lines) + "\n")
    (folder / "store.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def _pragmas(link: sqlite3.Connection) -> Iterator[str]:
    for name in ("application_id", "user_version"):
        yield f"PRAGMA {name} = {link.execute(f'PRAGMA {name}').fetchone()[0]};"


def make_ledger(folder: Path) -> None:
    put = []
    for keeper in RecordKeeper:
        ledger = Ledger(folder / "ledger", client=f"a {keeper}", kept_by=keeper)
        for number, operation in enumerate(Operation):
            record: dict[str, Any] = {
                "operation": operation,
                "cause": list(Cause)[number % len(Cause)],
                "namespace": "home.example",
                "entity": f"orders/{number}",
                "count": number,
                "bytes": 100 * number,
                "units": number + 1,
                "message_ids": [f"m{each}" for each in range(number % 3)],
                "destination": None if number % 2 else "home",
                "ok": number % 5 != 0,
                "at": START_MS / 1000 + 5_000 * number,
            }
            ledger.add(**record)
            put.append({"kept_by": keeper, "client": ledger.client, **record})
        ledger.close()
    (folder / "ledger.json").write_text(json.dumps(put, indent=1) + "\n")


TOML = """\
[[namespace]]
name = "contoso"
port = 6000
admin_port = 6001
key = "c2VjcmV0"

[[namespace.queue]]
name = "orders"
default_ttl = 3600
auto_delete_on_idle = "P30D"
lock_duration = "PT30S"
max_delivery_count = 5
max_size_mb = 2048
requires_session = true
requires_duplicate_detection = true
duplicate_window = "PT20M"
enable_partitioning = true
enable_express = true
enable_batched_operations = false
dead_lettering_on_expiration = true
forward_dead_letters_to = "plain"
status = "SendDisabled"
user_metadata = "notes"

[[namespace.queue]]
name = "plain"

[[namespace.topic]]
name = "news"
support_ordering = false

[[namespace.topic.subscription]]
name = "all"
dead_lettering_on_filter_errors = false
forward_to = "plain"

[[namespace.topic.subscription]]
name = "few"

[[namespace.topic.subscription.rule]]
name = "red"
sql = "color = 'red'"
action = "SET seen = 1"

[[namespace.topic.subscription.rule]]
name = "equal"
correlation = { label = "a", correlation_id = "b", properties = { size = 3 } }

[[namespace]]
name = "fabrikam"
"""
EMULATOR: dict[str, Any] = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "queue.1",
                        "Properties": {
                            "DeadLetteringOnMessageExpiration": True,
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "ForwardDeadLetteredMessagesTo": "",
                            "ForwardTo": "queue.2",
                            "LockDuration": "PT1M",
                            "MaxDeliveryCount": 3,
                            "RequiresDuplicateDetection": True,
                            "RequiresSession": False,
                        },
                    },
                    {"Name": "queue.2", "Properties": {"RequiresSession": True}},
                ],
                "Topics": [
                    {
                        "Name": "topic.1",
                        "Properties": {"DefaultMessageTimeToLive": "PT1H"},
                        "Subscriptions": [
                            {
                                "Name": "subscription.1",
                                "Properties": {"MaxDeliveryCount": 3},
                                "Rules": [
                                    {
                                        "Name": "app-prop-filter-1",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {
                                                "ContentType": "application/text",
                                                "CorrelationId": "id1",
                                                "Label": "subject1",
                                                "MessageId": "msgid1",
                                                "ReplyTo": "someQueue",
                                                "SessionId": "session1",
                                                "To": "xyz",
                                                "Properties": {"prop1": "value1"},
                                            },
                                        },
                                    },
                                    {
                                        "Name": "user-prop-filter-1",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {"SqlExpression": "sys.Label = 'a'"},
                                            "Action": {"SqlExpression": "SET b = 'c'"},
                                        },
                                    },
                                ],
                            },
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


def make_configurations(folder: Path) -> None:
    from tests.golden.opened import configured

    (folder / "broker.toml").write_text(TOML)
    (folder / "emulator.json").write_text(json.dumps(EMULATOR, indent=1) + "\n")
    found = json.dumps(configured(folder), indent=1)
    (folder / "configured.json").write_text(found + "\n")


def make_checkpoint(folder: Path) -> None:
    """What a syphon left that was told to keep it, and had moved something."""
    from tests.syphons import Namespaces, SyphonProcess, backlog_queues

    with tempfile.TemporaryDirectory() as where:
        namespaces = Namespaces(Path(where), {"orders": {}}, backlog_queues(1)).start()
        try:
            namespaces.divert_ids("orders", ["golden"])
            kept = Path(where) / "checkpoint"
            process = SyphonProcess(namespaces, "--once", "--checkpoint", str(kept), name="golden")
            assert process.wait(300) == 0
            process.close()
            shutil.copytree(kept, folder / "checkpoint", ignore=shutil.ignore_patterns("*.crc"))
        finally:
            namespaces.close()


def main() -> int:
    folder = GOLDEN / sys.argv[1]
    folder.mkdir()  # fails if there is one
    make_store(folder)
    make_ledger(folder)
    make_configurations(folder)
    make_checkpoint(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
