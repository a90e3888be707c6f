"""When entities were out, from the marks that their clients left in a ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Mark:
    """A client diverted an entity, or took it home again."""

    entity: str
    client: str
    at: datetime
    diverted: bool


@dataclass(frozen=True, slots=True)
class Outage:
    """When an entity was out, as its clients saw it. ``ended`` is None while one still diverts."""

    entity: str
    began: datetime
    ended: datetime | None
    clients: int


def find_outages(marked: Iterable[Mark]) -> tuple[Outage, ...]:
    """Each client's diversions, and where those of several clients overlap, one outage of them."""
    spans: list[tuple[str, datetime, datetime | None, str]] = []
    ordered = sorted(marked, key=lambda mark: (mark.entity, mark.client, mark.at))
    for (entity, client), group in groupby(ordered, key=lambda mark: (mark.entity, mark.client)):
        began: datetime | None = None
        for mark in group:
            if mark.diverted:
                began = began or mark.at
            elif began is not None:
                spans.append((entity, began, mark.at, client))
                began = None
        if began is not None:
            spans.append((entity, began, None, client))
    return tuple(_merged(spans))


def _merged(spans: list[tuple[str, datetime, datetime | None, str]]) -> list[Outage]:
    found: list[Outage] = []
    clients: set[str] = set()
    for entity, began, ended, client in sorted(spans, key=lambda span: span[:2]):
        last = found[-1] if found else None
        joins = last is not None and last.entity == entity
        if last is not None and joins and (last.ended is None or began <= last.ended):
            clients.add(client)
            until = None if None in (last.ended, ended) else max(last.ended, ended)  # type: ignore[type-var]
            found[-1] = Outage(entity, last.began, until, len(clients))
        else:
            clients = {client}
            found.append(Outage(entity, began, ended, 1))
    return found
