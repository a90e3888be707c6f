"""Packing for the backlog: every message is packed once, however often it is tried."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus import envelope
from twinbus.amqp.batches import BATCH_OVERHEAD, ITEM_OVERHEAD
from twinbus.amqp.message import Properties
from twinbus.amqp.sections import DATA, descriptor, section, walk
from twinbus.amqp.types import encode_binary
from twinbus.paired.transfers import Transfers


def message(size: int, id_: str | None = "m") -> bytes:
    body = random.Random(size).randbytes(size)  # that nobody can compress
    return Properties(message_id=id_).encoded() + section(DATA, encode_binary(body))


@given(st.lists(st.integers(0, 9_000), max_size=12), st.integers(6_000, 20_000))
def test_all_go_in_order_and_no_batch_is_over_the_limit(sizes: list[int], limit: int) -> None:
    messages = [message(size, str(number)) for number, size in enumerate(sizes)]
    transfers, found, total = Transfers("orders", messages), [], 0
    while transfers:
        batches, whole = transfers.next(limit)
        assert whole > 0
        for batch in batches:
            taken = BATCH_OVERHEAD + sum(len(item) + ITEM_OVERHEAD for item in batch)
            assert taken <= limit
        items = [item for batch in batches for item in batch]
        if len(batches) > 1:
            assert whole == 1
            found.append(envelope.assemble(items))
        else:
            found += [envelope.unwrap(item) for item in items]
        transfers.accepted(whole)
        total += whole
    assert total == len(messages)
    assert found == [("orders", each) for each in messages]


def test_a_message_is_split_and_packed_once_however_often_it_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages = [message(4_000, str(number)) for number in range(20)]
    sections = sum(len(list(walk(each))) for each in messages)
    looked: list[int] = []

    def noted(buf: bytes, pos: int) -> tuple[int, int]:
        looked.append(pos)
        return descriptor(buf, pos)

    monkeypatch.setattr("twinbus.amqp.sections.descriptor", noted)
    transfers, rounds = Transfers("orders", messages), 0
    while transfers:
        first = transfers.next(10_000)
        assert transfers.next(10_000) == first, "the first queue has refused it"
        transfers.accepted(first[1])
        rounds += 1
    assert rounds == 10
    assert len(looked) == sections


def test_an_id_that_a_message_was_given_stays_when_another_queue_is_tried() -> None:
    transfers = Transfers("orders", [message(10, None), message(20_000, None)])
    (one,), _ = transfers.next(10_000)
    (again,), whole = transfers.next(10_000)
    assert one == again
    transfers.accepted(whole)
    parts, _ = transfers.next(10_000)
    assert transfers.next(10_000)[0] == parts
    fewer, _ = transfers.next(100_000)
    assert len(parts) > 1
    assert len(fewer) == 1
