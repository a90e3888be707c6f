"""What is read off a backlog message before its envelope is opened."""

from __future__ import annotations

from uuid import uuid4

import pytest
from tests.unit.pipeline.backlogs import DATA, UNREADABLE, properties_of

from twinbus import envelope
from twinbus.amqp.types import Symbol, Timestamp, UInt, encode_map
from twinbus.homeward.received import ReceivedMessage
from twinbus.homeward.row import Row

RECEIVED_MS = 1_800_000_000_000


def row_of(message: bytes, **stamps: object) -> Row:
    written = {Symbol(f"x-opt-{name.replace('_', '-')}"): value for name, value in stamps.items()}
    annotations = b"\x00\x53\x72" + encode_map(written) if written else b""
    return Row.of(ReceivedMessage("q", uuid4(), annotations + message, RECEIVED_MS))


def diverted(**aliases: object) -> bytes:
    return properties_of(**{envelope.PATH: "orders", **aliases}) + DATA


def test_it_has_waited_since_it_was_enqueued() -> None:
    came = Timestamp(RECEIVED_MS - 20_000)
    assert row_of(diverted(), enqueued_time=came).waited_ms == 20_000


def test_a_brokers_clock_that_is_ahead_lets_no_message_live_longer() -> None:
    assert row_of(diverted(), enqueued_time=Timestamp(RECEIVED_MS + 5_000)).waited_ms == 0


def test_what_its_broker_wrote_on_it_is_read() -> None:
    until = Timestamp(RECEIVED_MS + 60_000)
    found = row_of(diverted(), sequence_number=7, locked_until=until)
    assert (found.queue, found.number, found.received_ms) == ("q", 7, RECEIVED_MS)
    assert found.locked_until_ms == RECEIVED_MS + 60_000


def test_aliases_are_read_whatever_they_are() -> None:
    found = row_of(diverted(**{envelope.PART_OF: "a", envelope.TIME_TO_LIVE: UInt(9)}))
    assert (found.destination, found.part_of) == ("orders", "a")
    assert row_of(diverted(**{envelope.PATH: 5})).destination == "5"
    assert row_of(DATA).destination is None


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_a_row_all_the_same(name: str) -> None:
    found = row_of(UNREADABLE[name])
    assert (found.destination, found.part_of, found.number, found.waited_ms) == (None, None, 0, 0)
    # So it is renewed before anything is sent.
    assert found.locked_until_ms == found.received_ms


@pytest.mark.parametrize("nonsense", ["soon", 2**63 - 1, None])
def test_stamps_that_make_no_sense_are_none(nonsense: object) -> None:
    value = Timestamp(nonsense) if isinstance(nonsense, int) else nonsense
    found = row_of(diverted(), locked_until=value, enqueued_time=value, sequence_number="one")
    assert (found.locked_until_ms, found.waited_ms, found.number) == (RECEIVED_MS, 0, 0)
