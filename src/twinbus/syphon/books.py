"""What the syphon does, written into a ledger: in each of its processes, at the end of each task.

Spark ends its Python workers without a word, so nothing is left to be written later.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from azure.servicebus import parse_connection_string

from twinbus import envelope
from twinbus.auth.credentials import Secret
from twinbus.client_errors import EnvelopeError
from twinbus.homeward.row import Row
from twinbus.ledger import Cause, Ledger, Operation, units


class _Known(NamedTuple):
    """What is known of a message under lock."""

    message_id: str
    destination: str | None
    size: int


_UNKNOWN = _Known("", None, 0)
_ledgers: dict[tuple[int, str], Ledger] = {}


def ledger_at(where: str | None) -> Ledger | None:
    """This process's own ledger there. A forked child begins one of its own."""
    if where is None:
        return None
    key = (os.getpid(), where)
    if key not in _ledgers:
        _ledgers[key] = Ledger(where)
    return _ledgers[key]


def host_of(secret: Secret) -> str:
    return parse_connection_string(secret.reveal()).fully_qualified_namespace


class Books:
    """Of one task, between two namespaces. Without a ledger it does nothing."""

    def __init__(self, where: str | None, primary: Secret, secondary: Secret) -> None:
        self._ledger = ledger_at(where)
        self._primary, self._secondary = host_of(primary), host_of(secondary)
        self._rows: dict[UUID, _Known] = {}

    def received(self, rows: Iterable[Row]) -> None:
        if self._ledger is None:
            return
        by_queue: dict[str, list[UUID]] = {}
        for row in rows:
            by_queue.setdefault(row.queue, []).append(row.token)
            known = _Known(_id_of(row.message), row.destination, len(row.message))
            self._rows[row.token] = known
        for queue, tokens in by_queue.items():
            self._away(Operation.RECEIVE, queue, tokens)

    def settled(
        self, operation: Operation, queue: str, tokens: Sequence[UUID], lost: Sequence[UUID]
    ) -> None:
        done = set(lost)
        self._away(operation, queue, [token for token in tokens if token not in done])

    def sent(self, destination: str, messages: Sequence[bytes]) -> None:
        if self._ledger is None:
            return
        sizes = [len(message) for message in messages]
        self._ledger.add(
            Operation.SEND,
            Cause.HOME_SEND,
            self._primary,
            destination,
            count=len(messages),
            bytes=sum(sizes),
            units=units(sizes),
            message_ids=[_id_of(message) for message in messages],
        )

    def _away(self, operation: Operation, queue: str, tokens: Sequence[UUID]) -> None:
        """A record for each destination: the audit asks where a message belongs."""
        if self._ledger is None:
            return
        by_destination: dict[str | None, list[_Known]] = {}
        for token in tokens:
            known = self._rows.get(token, _UNKNOWN)
            by_destination.setdefault(known.destination, []).append(known)
        for destination, some in by_destination.items():
            sizes = [known.size for known in some] if operation is Operation.RECEIVE else []
            self._ledger.add(
                operation,
                Cause.BACKLOG_RECEIVE,
                self._secondary,
                queue,
                count=len(some),
                bytes=sum(sizes),
                units=units(sizes) if sizes else len(some),
                message_ids=[known.message_id for known in some],
                destination=destination,
            )

    def close(self) -> None:
        self._rows.clear()
        if self._ledger is not None:
            self._ledger.flush()


def idle(where: str | None, secondary: Secret, queue: str) -> None:
    """The syphon asked, and nothing was there; or only the sign that something is."""
    ledger = ledger_at(where)
    if ledger is not None:
        ledger.add(Operation.EMPTY_RECEIVE, Cause.SYPHON_IDLE, host_of(secondary), queue)
        ledger.flush()


def _id_of(message: bytes) -> str:
    try:
        return str(envelope.id_of(message) or "")
    except EnvelopeError:
        return ""
