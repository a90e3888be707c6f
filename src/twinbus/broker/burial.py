"""A message on its way to a dead-letter queue, and the reasons that are ours to give."""

from __future__ import annotations

from dataclasses import dataclass, field

from twinbus.amqp.message import Message, application_properties, with_application_properties
from twinbus.amqp.types import CodecError, encode_map
from twinbus.broker.entry import Entry
from twinbus.broker.refusals import ArgumentError

Changes = dict[str, object]

EXPIRED = ("TTLExpiredException", "The message expired and was dead lettered.")
MAX_DELIVERIES = "MaxDeliveryCountExceeded"
UNREADABLE = "UnreadableMessage"


@dataclass(slots=True)
class Burial:
    """A message on its way to a dead-letter queue, and why."""

    entry: Entry
    reason: str | None
    description: str | None
    properties: Changes = field(default_factory=dict)
    is_asked: bool = False  # by a receiver, whose settlement it is

    def notes(self) -> Changes:
        """What is written on the message."""
        notes = dict(self.properties)
        if self.reason is not None:
            notes["DeadLetterReason"] = self.reason
        if self.description is not None:
            notes["DeadLetterErrorDescription"] = self.description
        return notes


def unreadable(error: CodecError) -> tuple[str, str]:
    """Why a message is given up that was stored before its bytes were looked into."""
    return UNREADABLE, f"The message cannot be read: {error}."


def unconsumed(count: int) -> tuple[str, str]:
    """Why a message is given up that was handed out so often, and never completed."""
    return MAX_DELIVERIES, f"Message could not be consumed after {count} delivery attempts."


def annotation_fault(entry: Entry) -> CodecError | None:
    """What is wrong with a message's annotations, for nothing else of it is decoded as it is
    handed out."""
    if entry.annotations is None and entry.delivery_annotations is None:
        return None
    try:
        Message(
            annotations=entry.annotations, delivery_annotations=entry.delivery_annotations
        ).check_annotations()
    except CodecError as error:
        return error
    return None


def check_changes(changes: Changes, path: str) -> None:
    """Raise unless a receiver's changes can be written on a message."""
    try:
        encode_map(changes)
    except CodecError as error:
        raise ArgumentError(
            f"The properties for a message of '{path}' cannot be encoded: {error}"
        ) from error


def change(entry: Entry, changes: Changes) -> tuple[str, str] | None:
    """Write changes on a message, or answer why it is given up instead."""
    try:
        items = {**application_properties(entry.bare), **changes}
        entry.bare = with_application_properties(entry.bare, items)
    except CodecError as error:
        return unreadable(error)
    return None
