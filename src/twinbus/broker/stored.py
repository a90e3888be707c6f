"""A stored message looked into again: as the message that was sent, and as a dead letter.

Both work for whatever lies in a store. What a broker takes in it can read (see `namespace`), but an
older one took messages whose bytes nobody had looked into. What of such a message cannot be read is
an application property of its dead letter, or its body; nothing is thrown away.
"""

from __future__ import annotations

from dataclasses import replace

from twinbus.amqp.message import (
    Message,
    application_properties,
    legible,
    with_application_properties,
)
from twinbus.amqp.sections import ANNOTATIONS, DELIVERY_ANNOTATIONS, section
from twinbus.amqp.types import CodecError
from twinbus.broker.burial import Burial, Changes
from twinbus.broker.entry import ACTIVE, Entry

UNREADABLE_SECTIONS = "UnreadableSections"
_RAW = (("delivery_annotations", DELIVERY_ANNOTATIONS), ("annotations", ANNOTATIONS))


def message_of(entry: Entry) -> Message:
    """The message with its annotations and its time to live. Raises CodecError."""
    message = Message.parse(entry.bare)
    message.durable, message.priority = unpack_flags(entry.flags)
    message.ttl_ms = entry.ttl_ms
    message.delivery_annotations = entry.delivery_annotations
    message.annotations = entry.annotations
    message.check_annotations()
    return message


def dead_letter(burial: Burial, source: str) -> Entry:
    """The message as it lies in the dead-letter queue."""
    entry, notes = burial.entry, burial.notes()
    try:
        message_of(entry)
    except CodecError:
        entry, notes = _legible(entry, notes)
    bare = entry.bare
    if notes:
        bare = with_application_properties(bare, {**application_properties(bare), **notes})
    return replace(
        entry,
        state=ACTIVE,
        expires_ms=None,
        due_ms=None,
        session=None,
        origin_sequence=entry.origin_sequence or entry.sequence or None,
        dead_source=source,
        body=None,
        bare=bare,
    )


def _legible(entry: Entry, notes: Changes) -> tuple[Entry, Changes]:
    """The same message, fit to be read, and with its notes those sections that are not."""
    entry, lost = replace(entry), b""
    for name, code in _RAW:
        raw = getattr(entry, name)
        try:
            Message(**{name: raw}).check_annotations()
        except CodecError:
            lost += section(code, raw)
            setattr(entry, name, None)
    try:
        Message.parse(entry.bare)
    except CodecError:
        entry.bare, unread = legible(entry.bare)
        lost += unread
    return entry, {**notes, UNREADABLE_SECTIONS: lost} if lost else notes


def pack_flags(durable: bool, priority: int | None) -> int:
    """A header's durable and priority in one number."""
    return int(durable) | (0 if priority is None else priority + 1 << 1)


def unpack_flags(flags: int) -> tuple[bool, int | None]:
    priority = flags >> 1
    return bool(flags & 1), priority - 1 if priority else None
