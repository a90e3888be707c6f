"""A stored message as the bytes a receiver gets: its header and annotations written anew, the rest
as it was sent."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from twinbus.amqp import sections
from twinbus.amqp.message import Message, encode_annotations, encode_header
from twinbus.amqp.sections import section
from twinbus.amqp.types import Int, Timestamp, compound, encode_symbol
from twinbus.broker.burial import annotation_fault
from twinbus.broker.entry import SCHEDULED, Entry
from twinbus.broker.stored import unpack_flags

_pack_i64 = struct.Struct(">q").pack
_ANNOTATIONS = section(sections.ANNOTATIONS, b"")
_SEQUENCE = encode_symbol(sections.SEQUENCE_NUMBER) + b"\x81"
_ENQUEUED = encode_symbol(sections.ENQUEUED) + b"\x83"
_ORIGIN = encode_symbol(sections.ORIGIN) + b"\x81"
_LOCKED_UNTIL = encode_symbol(sections.LOCKED_UNTIL) + b"\x83"
_ACTIVE_STATE = encode_symbol(sections.STATE) + b"\x54\x00"
MAX_HEADER_TTL_MS = 2**32 - 1
_TICKS_AT_EPOCH = 621_355_968_000_000_000


def payload(entry: Entry, locked_until_ms: int) -> bytes:
    """The message to send. ``locked_until_ms`` is 0 where there is no lock."""
    durable, priority = unpack_flags(entry.flags)
    # The header's field ends at 49 days; a longer time to live is in the properties as well.
    ttl_ms = None if entry.ttl_ms is None else min(entry.ttl_ms, MAX_HEADER_TTL_MS)
    head = encode_header(durable, priority, ttl_ms, entry.delivery_count)
    plain = (
        entry.annotations is None
        and entry.delivery_annotations is None
        and entry.state == 0
        and entry.dead_source is None
    )
    if plain:
        return head + _plain_annotations(entry, locked_until_ms) + entry.bare
    return head + _annotations(entry, locked_until_ms) + entry.bare


def shown(entry: Entry) -> bytes:
    """The message as a peek sees it. Annotations that cannot be read are left out: peeking changes
    nothing, and only handing such a message out will dead-letter it."""
    if annotation_fault(entry) is not None:
        entry = replace(entry, annotations=None, delivery_annotations=None)
    return payload(entry, 0)


def _plain_annotations(entry: Entry, locked_until_ms: int) -> bytes:
    """What nearly every message gets, put together from pieces."""
    origin = entry.origin_sequence or entry.sequence
    body = (
        _SEQUENCE
        + _pack_i64(entry.sequence)
        + _ENQUEUED
        + _pack_i64(entry.enqueued_ms)
        + _ORIGIN
        + _pack_i64(origin)
        + _ACTIVE_STATE
    )
    if locked_until_ms:
        body += _LOCKED_UNTIL + _pack_i64(locked_until_ms)
        return _ANNOTATIONS + compound(0xC1, 10, body)
    return _ANNOTATIONS + compound(0xC1, 8, body)


def _annotations(entry: Entry, locked_until_ms: int) -> bytes:
    """The sender's own annotations with ours over them."""
    items: dict[Any, Any] = Message(annotations=entry.annotations).annotation_map()
    items[sections.SEQUENCE_NUMBER] = entry.sequence
    items[sections.ENQUEUED] = Timestamp(entry.enqueued_ms)
    items[sections.ORIGIN] = entry.origin_sequence or entry.sequence
    items[sections.STATE] = Int(entry.state)
    if entry.state == SCHEDULED and entry.due_ms is not None:
        items[sections.SCHEDULED] = Timestamp(entry.due_ms)
    if entry.dead_source is not None:
        items[sections.DEAD_SOURCE] = entry.dead_source
    if locked_until_ms:
        items[sections.LOCKED_UNTIL] = Timestamp(locked_until_ms)
    ours = encode_annotations(items)
    if entry.delivery_annotations is None:
        return ours
    return section(sections.DELIVERY_ANNOTATIONS, entry.delivery_annotations) + ours


def ticks(ms: int) -> int:
    """.NET's count of 100 ns since the year 1, which session locks are told in."""
    return ms * 10_000 + _TICKS_AT_EPOCH
