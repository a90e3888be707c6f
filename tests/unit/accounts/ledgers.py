"""Ledgers made by hand, for tests: the real writer, with times of the test's choosing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from twinbus.ledger import Keeper, Ledger

PRIMARY, SECONDARY = "contoso.example.net", "fabrikam.example.net"
BACKLOG = "contoso/x-servicebus-transfer/0"


def at(text: str) -> float:
    """``"11-18 08:00"``, in 2026 and UTC."""
    return datetime.strptime(f"2026-{text}", "%Y-%m-%d %H:%M").replace(tzinfo=UTC).timestamp()


class Book:
    """One writer's ledger."""

    def __init__(self, folder: Path, client: str = "me", kept_by: Keeper = Keeper.CLIENT) -> None:
        self.ledger = Ledger(folder, client=client, kept_by=kept_by, flush_interval_s=600)

    def __enter__(self) -> Book:
        return self

    def __exit__(self, *error: object) -> None:
        self.ledger.close()
        assert not self.ledger.status.error

    def send(self, when: str, *ids: str, entity: str = "orders", **more: Any) -> None:
        self._add("send", "normal", PRIMARY, entity, when, ids, **more)

    def divert(self, when: str, *ids: str, entity: str = "orders") -> None:
        self._add("send", "backlog_send", SECONDARY, BACKLOG, when, ids, destination=entity)

    def syphon(self, when: str, *ids: str, entity: str = "orders") -> None:
        """Receive from the backlog, send home, settle."""
        self._add("receive", "backlog_receive", SECONDARY, BACKLOG, when, ids, destination=entity)
        self._add("send", "home_send", PRIMARY, entity, when, ids)
        self._add("complete", "backlog_receive", SECONDARY, BACKLOG, when, ids, destination=entity)

    def receive(self, when: str, *ids: str, entity: str = "orders") -> None:
        self._add("receive", "normal", PRIMARY, entity, when, ids)

    def complete(self, when: str, *ids: str, entity: str = "orders") -> None:
        self._add("complete", "normal", PRIMARY, entity, when, ids)

    def consume(self, when: str, *ids: str, entity: str = "orders") -> None:
        self.receive(when, *ids, entity=entity)
        self.complete(when, *ids, entity=entity)

    def dead_letter(self, when: str, *ids: str, entity: str = "orders") -> None:
        self._add("dead_letter", "normal", PRIMARY, entity, when, ids)

    def turn(self, when: str, operation: str, entity: str = "orders") -> None:
        self._add(operation, "normal", PRIMARY, entity, when, (), count=0, units=0)

    def plain(self, when: str, operation: str, cause: str, count: int) -> None:
        self._add(operation, cause, PRIMARY, "orders", when, (), count=count, units=count)

    def _add(
        self,
        operation: str,
        cause: str,
        namespace: str,
        entity: str,
        when: str,
        ids: Sequence[str],
        **more: Any,
    ) -> None:
        values: dict[str, Any] = {
            "count": len(ids),
            "units": len(ids),
            "bytes": 100 * len(ids),
            "message_ids": ids,
            "at": at(when),
            **more,
        }
        self.ledger.add(operation, cause, namespace, entity, **values)
