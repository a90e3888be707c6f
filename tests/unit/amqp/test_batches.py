"""Batches: what is put in comes out, no head is longer than the room kept for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus import envelope
from twinbus.amqp.batches import BATCH_OVERHEAD, batch_of, messages_of, size_in_batch
from twinbus.amqp.message import Message, Properties, encode_annotations
from twinbus.amqp.sections import (
    ANNOTATIONS,
    APPLICATION,
    DATA,
    FOOTER,
    PARTITION_KEY,
    PROPERTIES,
    section,
)
from twinbus.amqp.types import CodecError, encode_binary, encode_map

IDS = st.text(max_size=128)
EMPTY = encode_map({})


def message(
    id_: str, session: str | None = None, key: str | None = None, body: bytes = b""
) -> bytes:
    head = b"" if key is None else encode_annotations({PARTITION_KEY: key})
    properties = Properties(message_id=id_, group_id=session).encoded()
    return head + properties + section(DATA, encode_binary(body))


@given(IDS, IDS | st.none(), IDS | st.none(), st.lists(st.binary(max_size=300), max_size=5))
def test_a_batch_has_its_messages_and_the_ids_of_the_first(
    id_: str, session: str | None, key: str | None, bodies: list[bytes]
) -> None:
    many = [message(id_, session, key), *(message("n", body=body) for body in bodies)]
    batch = batch_of(many)
    assert messages_of(batch) == many
    head = Message.parse(batch)
    assert (head.properties.message_id, head.properties.group_id) == (id_, session)
    assert head.annotation_map().get(PARTITION_KEY) == key
    assert envelope.id_of(batch) == id_
    assert len(batch) <= BATCH_OVERHEAD + sum(len(each) + 8 for each in many)


@pytest.mark.parametrize("character", ["a", "\N{LATIN SMALL LETTER E WITH ACUTE}", "\U0010ffff"])
def test_no_head_is_longer_than_the_room_that_is_kept_for_it(character: str) -> None:
    longest = message(character * 128, character * 128, character * 128)
    taken = len(batch_of([longest])) - len(longest) - 8
    assert taken <= BATCH_OVERHEAD
    assert (taken == BATCH_OVERHEAD) is (character == "\U0010ffff")


@pytest.mark.parametrize("size", [0, 255, 256, 70_000])
def test_what_a_message_takes_of_a_batch_is_its_section(size: int) -> None:
    assert size_in_batch(size) == len(section(DATA, encode_binary(bytes(size))))


DATUM = section(DATA, encode_binary(b"one"))
HEAD = Properties("1").encoded()


@pytest.mark.parametrize(
    "batch",
    [
        HEAD + DATUM + DATUM[:-1],
        HEAD + section(DATA, b"\x40"),
        HEAD + HEAD + DATUM,
        DATUM + HEAD,
        DATUM + HEAD + DATUM,
        HEAD + DATUM + section(FOOTER, EMPTY) + DATUM,
        section(ANNOTATIONS, encode_binary(b"no map")) + DATUM,
        HEAD + section(APPLICATION, encode_binary(b"no map")) + DATUM,
        section(PROPERTIES, EMPTY) + DATUM,
        section(0x24, EMPTY) + DATUM,
        b"noise",
    ],
)
def test_a_batch_that_is_no_message_or_out_of_order_is_refused_whole(batch: bytes) -> None:
    with pytest.raises(CodecError):
        messages_of(batch)


def test_what_stands_around_the_messages_of_a_batch_is_let_pass() -> None:
    late = section(0x71, EMPTY)
    tail = section(FOOTER, EMPTY)
    assert messages_of(HEAD + DATUM + DATUM + late + tail) == [b"one", b"one"]
    assert messages_of(HEAD + DATUM + late + DATUM) == [b"one", b"one"]
    assert messages_of(b"") == messages_of(HEAD) == []
