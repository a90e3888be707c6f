"""Hostile messages against a namespace: what is taken can go every way there is, what is refused
changes nothing.

Messages of every shape are damaged in the ways below, INPUTS times a run.

    TWINBUS_FUZZ_SEED=7 pytest tests/unit/broker/test_message_fuzz.py      other inputs
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from tests.unit.broker.test_admission import DATA, GOOD_MAPS, UNREADABLE_MAPS, Yard, section
from tests.unit.broker.test_queue import Answer, Taker

from twinbus.amqp.decoding import decode_foreign, ends_simple_map
from twinbus.amqp.message import (
    Message,
    Properties,
    application_properties,
    encode_annotations,
    with_application_properties,
)
from twinbus.amqp.types import (
    Array,
    Byte,
    Char,
    CodecError,
    Described,
    Float,
    Int,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    encode,
    encode_map,
)
from twinbus.broker.delivery import payload
from twinbus.broker.descriptions import QueueDescription, TopicDescription
from twinbus.broker.entry import SCHEDULED, Entry
from twinbus.broker.queue import Queue
from twinbus.broker.refusals import RequestError
from twinbus.broker.rules import CorrelationFilter, Rule, SqlFilter, SqlRuleAction
from twinbus.lab.simulation.node import Disk

INPUTS = 2_400  # whole messages
MAPS = 20_000  # maps alone
GROUP = 60  # that many are sent, and then go all ways together
SEED = int(os.environ.get("TWINBUS_FUZZ_SEED", "20261119"))
HOUR_MS = 3_600_000

VALUES: dict[Any, Any] = {
    "text": "größe", "symbol": Symbol("s"), "char": Char("c"), "yes": True, "no": None,
    "long": -(2**60), "ulong": ULong(2**64 - 1), "int": Int(-5), "byte": Byte(-1), "ub": UByte(9),
    "uint": UInt(7), "float": Float(0.5), "double": 1e300, "time": Timestamp(2**62),
    "id": UUID(int=5), "bytes": b"\xff\x00", "list": [1, "two", [None]], "map": {"k": {"l": 1}},
    "array": Array([1, 2], 0x81), "described": Described(Symbol("x:y"), ["z"]),
    "composite": Described(ULong(0x28), [1, 2]), "color": "red",
}  # fmt: skip
WHOLE = Properties(
    "id", b"user", "to", "subject", "reply", UUID(int=1), "text/plain", "gzip",
    1_700_000_500_000, 1_700_000_000_000, "group", 3, "reply group",
)  # fmt: skip
FRONT = section(0x70, encode([True, UByte(4), UInt(3_600_000)]))
DELIVERY = section(0x71, encode({Symbol("d"): 1}))
NOTES = encode_annotations({Symbol("x-opt-partition-key"): "p", Symbol("mine"): [1, 2]})
FOOT = section(0x78, encode({Symbol("f"): b"sum"}))
BODIES = (DATA, DATA + DATA, section(0x77, encode({"a": 1})), section(0x76, encode([1])), b"")
CORPUS = [
    *(WHOLE.encoded() + section(0x74, each) + DATA for each in GOOD_MAPS.values()),
    *(WHOLE.encoded() + section(0x74, each) + DATA for each in UNREADABLE_MAPS.values()),
    *(
        head + with_application_properties(properties + body, VALUES) + foot
        for head in (b"", FRONT, FRONT + DELIVERY + NOTES)
        for properties in (WHOLE.encoded(), Properties("id").encoded(), b"")
        for body, foot in zip(BODIES, (b"", FOOT, FOOT, b"", b""), strict=True)
    ),
]
BYTES = bytes(
    (0, 1, 2, 0x40, 0x45, 0x53, 0x56, 0x73, 0x80, 0x83, 0xA1, 0xA3, 0xB1, 0xC1, 0xE0, 0xFF)
)


def damaged(random: Random, whole: bytes) -> bytes:
    raw = bytearray(whole)
    for _ in range(random.randint(0, 3)):
        at = random.randrange(len(raw) + 1)
        match random.randrange(5):
            case 0:
                raw[at : at + 1] = bytes((random.choice(BYTES),))
            case 1:
                raw[at : at + 1] = bytes((random.randrange(256),))
            case 2:
                del raw[at : at + random.randint(1, 3)]
            case 3:
                raw[at:at] = random.randbytes(random.randint(1, 3))
            case 4:
                other = random.choice(CORPUS)
                start = random.randrange(len(other) + 1)
                raw[at : at + 8] = other[start : start + 8]
    return bytes(raw)


class Reader(Taker):
    """One who receives, and reads what it gets as a client would."""

    def deliver(self, entry: Entry, token: bytes, locked_until_ms: int) -> None:
        found = Message.parse(payload(entry, locked_until_ms))
        encode_map(application_properties(found.bare))
        super().deliver(entry, token, locked_until_ms)


class Maze(Yard):
    """Queues and a topic through which a message goes every way; on a disk in memory."""

    def open(self) -> None:
        super().open()
        self.store.close()
        self.store = self.namespace.store = Disk()
        kind = type(self.namespace)
        self.namespace = kind("test", self.store, [], new_token=self._new_token)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.make("bus", TopicDescription())
        self.make("end", QueueDescription())
        actions = "SET seen = color; SET sys.Label = sys.ContentType; SET sys.MessageId = newid()"
        rules = {
            "everything": Rule("r"),
            "coloured": Rule("r", CorrelationFilter(properties={"color": "red"})),
            "acting": Rule("r", SqlFilter("1 = 1"), SqlRuleAction(actions)),
            "later": Rule(
                "r",
                SqlFilter("sys.TimeToLive IS NULL OR sys.PartitionKey LIKE '%' OR text > 'a'"),
                SqlRuleAction("SET sys.PartitionKey = 'q'; REMOVE color; SET long = long - 1"),
            ),
        }
        for name, rule in rules.items():
            self.subscribe(name, rule, topic="bus", dead_lettering_on_filter_errors=True)
        self.subscribe("on", Rule("r"), topic="bus", forward_to="end")
        self.make(
            "work",
            QueueDescription(
                max_delivery_count=2,
                dead_lettering_on_expiration=True,
                forward_dead_letters_to="bus",
            ),
        )
        self.make(
            "short",
            QueueDescription(default_ttl=timedelta(minutes=1), dead_lettering_on_expiration=True),
        )

    def queues(self) -> Iterator[Queue]:
        for entity in self.namespace.directory.entities():
            yield from entity.queues

    def go_all_ways(self) -> None:
        """Delivered, abandoned with changes until it is a dead letter, which goes to the topic."""
        self.peek()
        work = self.entity("work").queue
        for _ in range(2):
            taker = self.take(work)
            for got in taker.got:
                work.abandon(got.token, self.now, Answer(), {"k": 1, "l": [1, {"m": None}]})
            self.commit()
            work.remove_consumer(taker)
        self.tick(HOUR_MS)  # what is in `short` has expired
        self.tick(1)
        self.peek()
        self.namespace.directory.update("q", QueueDescription(forward_to="bus"), self.now, Answer())
        self.commit()
        self.tick(HOUR_MS)
        self.peek()
        self.namespace.directory.update("q", QueueDescription(), self.now, Answer())
        self.commit()

    def take(self, queue: Queue, *, deletes: bool = False) -> Taker:
        taker = Reader(10_000, deletes)
        queue.add_consumer(taker)
        self.namespace.pump_queue(queue, self.now)
        self.commit()
        return taker

    def peek(self) -> None:
        for queue in self.queues():
            for entry in queue.peek(0, 1000):
                found = Message.parse(payload(entry, self.now))
                encode_map(application_properties(found.bare))

    def clear(self) -> None:
        """Take all out, each by its own way, until nothing is left."""
        for queue in self.queues():
            waiting = [each for each in queue.peek(0, 1000) if each.state == SCHEDULED]
            if waiting:
                queue.cancel([each.sequence for each in waiting], Answer())
                self.commit()
            queue.remove_consumer(self.take(queue, deletes=True))
        left = self.store.query("SELECT count(*) FROM message")[0][0]
        assert left == 0
        assert self.store.query("SELECT count(*) FROM body")[0][0] == 0


def test_what_is_taken_goes_all_ways_and_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    random = Random(SEED)
    maze = Maze(tmp_path)
    taken = refused = 0
    for start in range(0, INPUTS, GROUP):
        before = maze.state()
        for number in range(start, start + GROUP):
            raw = damaged(random, random.choice(CORPUS))
            note = f"TWINBUS_FUZZ_SEED={SEED}, input {number}: {raw.hex()}"
            for path in ("q", "work", "short", "t", "bus"):
                try:
                    maze.namespace.send(maze.entity(path), [raw], maze.now, Answer())
                except RequestError:
                    refused += 1
                    if maze.store.batch:
                        pytest.fail(f"refused, but something stays: {note}")
                else:
                    taken += 1
                    before = {}
                    maze.commit()
            if before:
                assert maze.state() == before, note
            before = maze.state() if number % 10 == 0 else {}
        try:
            maze.go_all_ways()
            maze.clear()
        except Exception as error:
            error.add_note(f"TWINBUS_FUZZ_SEED={SEED}, inputs from {start}")
            raise
    maze.close()
    assert taken > INPUTS
    assert refused > INPUTS


def test_a_map_that_is_found_simple_is_one_that_can_be_decoded() -> None:
    random = Random(SEED)
    flat = {key: value for key, value in VALUES.items() if not isinstance(value, list | dict)}
    maps = [*GOOD_MAPS.values(), *UNREADABLE_MAPS.values(), encode({"a": 1, "b": "x"})]
    maps.append(encode({key: flat[key] for key in list(flat)[:9]}))
    simple = 0
    for number in range(MAPS):
        raw = damaged(random, random.choice(maps))
        end = ends_simple_map(raw, 0)
        try:
            value, decoded_end = decode_foreign(raw, 0)
        except CodecError:
            assert end is None, (number, raw)
            continue
        encode(value)  # whatever was read can be written
        if end is not None:
            simple += 1
            assert isinstance(value, dict)
            assert end == decoded_end
            assert all(isinstance(key, str) for key in value)
    assert simple > MAPS // 50
