"""Batches: many messages in one transfer, which a broker takes whole or not at all.

A batch is itself a message. Its head repeats the first message's id, session and partition key,
which is how a broker that has partitions knows where to put it; each of its data sections has one
encoded message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

from twinbus.amqp.message import Message
from twinbus.amqp.sections import (
    ANNOTATIONS,
    DATA,
    FIELDS,
    GROUP_ID,
    MESSAGE_ID,
    PARTITION_KEY,
    PROPERTIES,
    Sections,
    binary,
    section,
    walk,
)
from twinbus.amqp.types import encode_list, encode_map

# The message format of a transfer that is a batch.
BATCH_FORMAT: Final = 0x80013700
# Service Bus takes so many messages in a batch.
MOST_IN_BATCH: Final = 4_500
# What each message takes besides itself: the head of a data section and a length, of one byte for
# a message of up to 255 bytes, else of four.
SHORT_ITEM_OVERHEAD: Final = 4 + 1
ITEM_OVERHEAD: Final = 4 + 4

_DATA_HEAD = section(DATA, b"\xb0")
_NO_DATA = section(DATA, b"\xa0\x00")
_pack_u32 = struct.Struct(">I").pack


def _head(message_id: Any, session_id: Any, partition_key: Any) -> bytes:
    head = b""
    if partition_key is not None:
        head = section(ANNOTATIONS, encode_map({PARTITION_KEY: partition_key}))
    fields: list[Any] = [None] * FIELDS
    fields[MESSAGE_ID], fields[GROUP_ID] = message_id, session_id
    return head + section(PROPERTIES, encode_list(fields[: GROUP_ID + 1]))


# What a batch takes besides its messages: the longest head there is. Service Bus takes an id, a
# session and a key of 128 characters each, and UTF-8 takes up to four bytes for one of them.
_LONGEST = "\N{GRINNING FACE}" * 128
BATCH_OVERHEAD: Final = len(_head(_LONGEST, _LONGEST, _LONGEST))


def batch_of(messages: Sequence[bytes]) -> bytes:
    """Encoded messages as one batch. Raises CodecError if the first is no message."""
    first = Sections(messages[0])
    fields = first.fields()
    head = _head(fields[MESSAGE_ID], fields[GROUP_ID], first.annotations().get(PARTITION_KEY))
    return head + b"".join(_DATA_HEAD + _pack_u32(len(each)) + each for each in messages)


def messages_of(batch: bytes) -> list[bytes]:
    """The messages of a batch. Raises CodecError unless the batch is a message that can be read."""
    messages, rest, last = [], [], 0
    for code, pos, start, end in walk(batch):
        if code == DATA:
            messages.append(binary(batch, start, end))
        if code != DATA or last != DATA:
            rest.append(_NO_DATA if code == DATA else batch[pos:end])
        last = code
    Message.parse(b"".join(rest))
    return messages


def size_in_batch(size: int) -> int:
    """What a message of so many bytes takes of a batch."""
    return size + (SHORT_ITEM_OVERHEAD if size < 256 else ITEM_OVERHEAD)


def in_transfers(sizes: Sequence[int], limit: int, most: int = MOST_IN_BATCH) -> Iterator[slice]:
    """Consecutive messages of these sizes, in slices that each fit into one transfer."""
    start, size = 0, BATCH_OVERHEAD
    for index, one in enumerate(sizes):
        needed = one + ITEM_OVERHEAD
        if index > start and (size + needed > limit or index - start >= most):
            yield slice(start, index)
            start, size = index, BATCH_OVERHEAD
        size += needed
    if start < len(sizes):
        yield slice(start, len(sizes))
