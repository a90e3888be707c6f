"""What the syphon does, written into a ledger: in each of its processes, at the end of each task.

Spark ends its Python workers without a word, so nothing is left to be written later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from twinbus.auth.credentials import Secret
from twinbus.homeward.carrier import Parcel
from twinbus.homeward.row import Row
from twinbus.ledger import Cause, Operation, units
from twinbus.spark.kept import host_of, ledger_at


class _Known(NamedTuple):
    """What is known of a message under lock."""

    message_id: str
    destination: str | None
    size: int


_UNKNOWN = _Known("", None, 0)


class NoBooks:
    """Those of who has no ledger."""

    def received(self, rows: Iterable[Row]) -> None:
        """These are under lock now."""

    def sent(self, destination: str, parcels: Sequence[Parcel]) -> None:
        """They are home."""

    def settled(
        self, operation: Operation, queue: str, tokens: Sequence[UUID], lost: Sequence[UUID]
    ) -> None:
        """All of these but the lost."""

    def close(self) -> None:
        """The task is over."""


NO_BOOKS: Final = NoBooks()


class Books(NoBooks):
    """Of one task, between two namespaces."""

    def __init__(self, where: str, primary: Secret, secondary: Secret) -> None:
        self._ledger = ledger_at(where)
        self._primary, self._secondary = host_of(primary), host_of(secondary)
        self._rows: dict[UUID, _Known] = {}

    def received(self, rows: Iterable[Row]) -> None:
        by_queue: dict[str, list[UUID]] = {}
        for row in rows:
            by_queue.setdefault(row.queue, []).append(row.token)
            known = _Known(row.message_id, row.destination, len(row.message))
            self._rows[row.token] = known
        for queue, tokens in by_queue.items():
            self._away(Operation.RECEIVE, queue, tokens)

    def settled(
        self, operation: Operation, queue: str, tokens: Sequence[UUID], lost: Sequence[UUID]
    ) -> None:
        done = set(lost)
        self._away(operation, queue, [token for token in tokens if token not in done])

    def sent(self, destination: str, parcels: Sequence[Parcel]) -> None:
        sizes = [len(parcel.message) for parcel in parcels]
        self._ledger.add(
            Operation.SEND,
            Cause.HOME_SEND,
            self._primary,
            destination,
            count=len(parcels),
            bytes=sum(sizes),
            units=units(sizes),
            message_ids=[str(parcel.message_id or "") for parcel in parcels],
        )

    def _away(self, operation: Operation, queue: str, tokens: Sequence[UUID]) -> None:
        """A record for each destination: the audit asks where a message belongs."""
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
        self._ledger.flush()
