"""A message of the simulation: what an application sends, and how a receiver sees it."""

from __future__ import annotations

from dataclasses import dataclass

from twinbus.amqp.message import (
    Message,
    Properties,
    application_properties,
    encode_annotations,
    encode_header,
)
from twinbus.amqp.sections import APPLICATION, DATA, SCHEDULED, Sections, section
from twinbus.amqp.types import Timestamp, encode_binary, encode_map
from twinbus.lab.simulation.node import HandedOut
from twinbus.lab.simulation.topology import LIVES_MS, NORTH

STAMP = "stamp"  # what a receiver changes


@dataclass(frozen=True, slots=True)
class Letter:
    """What was sent, and ought to be received."""

    id: str
    entity: str
    session: str | None
    number: int  # the how-manieth of its sender
    ttl_ms: int | None
    due_ms: int | None
    is_scheduled: bool  # by a request
    colour: str  # an application property
    body: bytes

    def encoded(self) -> bytes:
        head = b"" if self.ttl_ms is None else encode_header(False, None, self.ttl_ms, 0)
        if self.due_ms is not None:
            head += encode_annotations({SCHEDULED: Timestamp(self.due_ms)})
        properties = Properties(message_id=self.id, group_id=self.session).encoded()
        colour = section(APPLICATION, encode_map({"colour": self.colour}))
        return head + properties + colour + section(DATA, encode_binary(self.body))

    def differs(self, delivery: HandedOut, *, deducts: bool) -> str | None:
        """What is not as it was sent. A syphon that deducts leaves less time to live."""
        found = Message.parse(delivery.message)
        north = delivery.path == NORTH
        lives_ms = min(self.ttl_ms or LIVES_MS, LIVES_MS) if north else self.ttl_ms
        if found.properties.group_id != self.session:
            return f"its session is {found.properties.group_id}, not {self.session}"
        ttl_ms = delivery.ttl_ms
        shorter = deducts and ttl_ms is not None and 0 < ttl_ms <= (lives_ms or 0)
        if ttl_ms != lives_ms and not shorter:
            return f"its time to live is {ttl_ms}, not {lives_ms}"
        properties = application_properties(delivery.bare)
        properties.pop(STAMP, None)
        if properties != {"colour": self.colour} | (
            {"mark": "north", "RuleName": "red"} if north else {}
        ):
            return f"its properties are {properties}"
        if Sections(delivery.bare).body != section(DATA, encode_binary(self.body)):
            return "its body is another"
        if self.due_ms is not None and delivery.enqueued_ms < self.due_ms:
            return f"it came {self.due_ms - delivery.enqueued_ms} ms before its time"
        return None


def id_of(delivery: HandedOut) -> str:
    return str(Message.parse(delivery.message).properties.message_id)
