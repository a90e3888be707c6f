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


@dataclass(frozen=True, slots=True)
class Letter:
    """What was sent, and ought to be received."""

    id: str
    entity: str
    session: str | None
    number: int  # the how-manieth of its sender
    ttl_ms: int | None
    due_ms: int | None
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
        if found.properties.group_id != self.session:
            return f"its session is {found.properties.group_id}, not {self.session}"
        ttl_ms = delivery.ttl_ms
        shorter = deducts and ttl_ms is not None and 0 < ttl_ms <= (self.ttl_ms or 0)
        if ttl_ms != self.ttl_ms and not shorter:
            return f"its time to live is {ttl_ms}, not {self.ttl_ms}"
        if application_properties(delivery.bare) != {"colour": self.colour}:
            return f"its properties are {application_properties(delivery.bare)}"
        if Sections(delivery.bare).body != section(DATA, encode_binary(self.body)):
            return "its body is another"
        if self.due_ms is not None and delivery.enqueued_ms < self.due_ms:
            return f"it came {self.due_ms - delivery.enqueued_ms} ms before its time"
        return None


def id_of(delivery: HandedOut) -> str:
    return str(Message.parse(delivery.message).properties.message_id)
