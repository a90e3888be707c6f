"""A backlog message as the carrier takes it: what is read off it before its envelope is opened."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from twinbus import envelope
from twinbus.amqp.sections import ENQUEUED, LOCKED_UNTIL, MESSAGE_ID, Sections
from twinbus.homeward.received import ReceivedMessage


class Row(NamedTuple):
    queue: str
    number: int
    token: UUID
    locked_until_ms: int
    received_ms: int
    waited_ms: int
    destination: str | None
    part_of: str | None
    message: bytes
    found: ReceivedMessage | None = None  # where it was read

    @property
    def content(self) -> Sections | bytes:
        """For the envelope: taken apart, if it has been."""
        return (self.found and self.found.sections) or self.message

    @property
    def message_id(self) -> str:
        """For the books; nothing if there is none."""
        return str((self.found and self.found.field(MESSAGE_ID)) or "")

    @classmethod
    def of(cls, found: ReceivedMessage) -> Row:
        assert found.token is not None, "what goes home is under lock"
        received_us = found.received_time
        ends_us, came_us = found.time(LOCKED_UNTIL), found.time(ENQUEUED)
        return cls(
            queue=found.entity,
            number=found.sequence_number or 0,
            token=found.token,
            # Where the end of its lock cannot be read, it is renewed before anything is sent.
            locked_until_ms=(received_us if ends_us is None else ends_us) // 1000,
            received_ms=received_us // 1000,
            # The two times are by two clocks, ours and the broker's. If the broker's is ahead, the
            # message has not waited less than no time, and must not live longer than it was to.
            waited_ms=0 if came_us is None else max(0, (received_us - came_us) // 1000),
            destination=found.alias(envelope.PATH),
            part_of=found.alias(envelope.PART_OF),
            message=found.message,
            found=found,
        )
