"""What became of the messages: the words of Jepsen's queue checker, asked of a history.

A history is who attempted to send what, whether that was acknowledged, what was delivered and in
which order, and what still lies somewhere at the end. ``judge`` counts:

    attempted      sends that were begun
    acknowledged   attempted, and the sender was told that it is safe
    ok             attempted and delivered
    waiting        attempted, not delivered, and still in a queue
    dead_lettered  attempted, not delivered, and set aside with a reason
    lost           acknowledged, and none of these three
    duplicated     delivered more than once by the same entity
    recovered      never acknowledged, and delivered all the same
    unexpected     delivered, and never attempted
    out_of_order   delivered for the first time after a later one of its session

Recovered is no fault: an answer that was lost on its way says nothing about the message. Nor is
it one to be duplicated where the destination does not detect duplicates, or out of order where no
order was promised; so ``holds`` asks for neither, and who was promised more looks at the counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

# Of a million lost messages the first few say as much as all.
MOST_IDS: Final = 20


@dataclass(frozen=True, slots=True)
class Attempt:
    """A send that was begun. ``number`` grows with every send of one sender."""

    id: str
    entity: str
    session: str | None
    number: int
    acknowledged: bool


@dataclass(frozen=True, slots=True)
class Receipt:
    """A delivery, as the receiver saw it."""

    id: str
    entity: str
    session: str | None


@dataclass(frozen=True, slots=True)
class CountedIds:
    """How many, and which: the first ``MOST_IDS`` of them."""

    count: int = 0
    ids: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.count > 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """A history in ten counts."""

    attempted: CountedIds
    acknowledged: CountedIds
    ok: CountedIds
    waiting: CountedIds
    dead_lettered: CountedIds
    lost: CountedIds
    duplicated: CountedIds
    recovered: CountedIds
    unexpected: CountedIds
    out_of_order: CountedIds

    @property
    def holds(self) -> bool:
        """Nothing that was acknowledged is gone, and nothing came from nowhere."""
        return not self.lost and not self.unexpected

    def as_json(self) -> dict[str, Any]:
        """Counts by name, and under ``ids`` which messages the faults among them are about."""
        counts: dict[str, Any] = {each.name: getattr(self, each.name).count for each in _COUNTS}
        ids = {name: list(getattr(self, name).ids) for name in _FAULTS if getattr(self, name)}
        return {"holds": self.holds, **counts, "ids": ids}

    def with_findings(self, findings: Sequence[str]) -> dict[str, Any]:
        """The same beside what does not hold in a namespace's file, which is as bad."""
        holds = self.holds and not findings
        return {**self.as_json(), "holds": holds, "findings": list(findings)}

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, each.name).count} {_word(each.name)}" for each in _COUNTS)


_COUNTS: Final = fields(Judgement)
_FAULTS: Final = ("lost", "duplicated", "recovered", "unexpected", "out_of_order")


def judge(
    attempted: Iterable[Attempt],
    delivered: Iterable[Receipt],
    waiting: Iterable[str],
    dead: Iterable[str],
) -> Judgement:
    """Deliveries come in the order in which they were received; ``waiting`` and ``dead`` are ids.

    An id that was attempted several times is one message: acknowledged if one attempt was, and as
    old as the first.
    """
    attempts = _by_id(attempted)
    delivered = list(delivered)
    # Dictionaries, not sets: the ids of a verdict come in the same order in every process.
    seen = dict.fromkeys(each.id for each in delivered)
    acknowledged = {each.id: None for each in attempts.values() if each.acknowledged}
    rests = {id_: None for id_ in waiting if id_ in attempts and id_ not in seen}
    buried = {id_: None for id_ in dead if id_ in attempts and id_ not in seen and id_ not in rests}
    firsts, again = _told_apart(delivered)
    return Judgement(
        attempted=_count(attempts),
        acknowledged=_count(acknowledged),
        ok=_count(id_ for id_ in seen if id_ in attempts),
        waiting=_count(rests),
        dead_lettered=_count(buried),
        lost=_count(
            id_
            for id_ in acknowledged
            if id_ not in seen and id_ not in rests and id_ not in buried
        ),
        duplicated=_count(again),
        recovered=_count(id_ for id_ in seen if id_ in attempts and id_ not in acknowledged),
        unexpected=_count(id_ for id_ in seen if id_ not in attempts),
        out_of_order=_count(_late(firsts, attempts)),
    )


def _by_id(attempted: Iterable[Attempt]) -> dict[str, Attempt]:
    attempts: dict[str, Attempt] = {}
    for each in attempted:
        before = attempts.get(each.id)
        if before is None:
            attempts[each.id] = each
        elif each.acknowledged and not before.acknowledged:
            attempts[each.id] = Attempt(
                before.id, before.entity, before.session, before.number, acknowledged=True
            )
    return attempts


def _told_apart(delivered: Iterable[Receipt]) -> tuple[list[Receipt], dict[str, None]]:
    """First deliveries, and the ids of those that came again.

    Two subscriptions of a topic each deliver a message once, which makes nobody a duplicate.
    """
    firsts: dict[tuple[str, str], Receipt] = {}
    again: dict[str, None] = {}
    for each in delivered:
        key = (each.entity, each.id)
        if key in firsts:
            again[each.id] = None
        else:
            firsts[key] = each
    return list(firsts.values()), again


def _late(firsts: Iterable[Receipt], attempts: dict[str, Attempt]) -> Iterable[str]:
    highest: dict[tuple[str, str | None], int] = {}
    for each in firsts:
        attempt = attempts.get(each.id)
        if attempt is None:
            continue
        key = (each.entity, each.session)
        if attempt.number < highest.get(key, attempt.number):
            yield each.id
        else:
            highest[key] = attempt.number


def _count(ids: Iterable[str]) -> CountedIds:
    ids = list(ids)
    return CountedIds(len(ids), tuple(ids[:MOST_IDS]))


def _word(name: str) -> str:
    return name.replace("_", "-") if name == "dead_lettered" else name.replace("_", " ")
