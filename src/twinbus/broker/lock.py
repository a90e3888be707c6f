"""Who receives, and the right to settle a message that comes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from twinbus.broker.entry import Entry
from twinbus.broker.refusals import RequestError

if TYPE_CHECKING:
    from twinbus.broker.sessions import SessionLock


class Consumer(Protocol):
    """One who receives. ``deletes`` is receive-and-delete; otherwise peek-lock."""

    deletes: bool

    def demand(self) -> int:
        """How many messages it would take now."""

    def reserve(self, count: int) -> None:
        """So many are on their way (or, if negative, are not after all)."""

    def deliver(self, entry: Entry, token: bytes, locked_until_ms: int) -> None:
        """Take one."""

    def lose(self, error: RequestError) -> None:
        """There will be no more, and this is why."""


class MessageRef(NamedTuple):
    """Which message it is and, if that is elsewhere, where it belongs: for a ledger."""

    message_id: Any
    destination: str | None


@dataclass(slots=True, eq=False)
class MessageLock:
    """Somebody's right to settle one message."""

    token: bytes
    entry: Entry
    until_ms: int
    owner: SessionLock | None = None
    busy: bool = False  # its settlement is on the way to the disk
    ref: MessageRef | None = None  # if a ledger is kept
