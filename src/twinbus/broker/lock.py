"""Who receives, and the right to settle a message that comes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from twinbus.broker.entry import Entry
from twinbus.broker.refusals import RequestError
from twinbus.broker.window import Window


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
    owner: Holder | None = None
    busy: bool = False  # its settlement is on the way to the disk
    ref: MessageRef | None = None  # if a ledger is kept


class Holder(Protocol):
    """A session that holds locks; the lock ends when the session's does."""

    until_ms: int
    window: Window
    tokens: set[bytes]
