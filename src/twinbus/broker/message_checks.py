"""What must hold of the messages in a namespace's file, and of what is counted of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from twinbus.amqp.message import Message
from twinbus.amqp.types import CodecError
from twinbus.broker.findings import ALL, ASIDE, REPAIR, Finding, Flaw, Flaws, Look, nobodys
from twinbus.broker.schema import SEQUENCE_BITS

MASK: Final = (1 << SEQUENCE_BITS) - 1

_SIDE: Final = "place.kind IN ('dead', 'transfer')"
FLAWS: Final = (
    Flaw("nobody", "of no entity", ASIDE, "place.id IS NULL"),
    Flaw("state", "neither active, deferred nor scheduled", sql="state NOT IN (0, 1, 2)"),
    Flaw("due", "scheduled for no time", sql="state = 2 AND due_ms IS NULL"),
    Flaw("due", "due at a time and not scheduled", sql="state != 2 AND due_ms IS NOT NULL"),
    Flaw("due", "scheduled among dead letters", sql=f"state = 2 AND {_SIDE}"),
    Flaw("due", "ready in a topic, which nobody receives", sql="state != 2 AND kind = 'topic'"),
    Flaw("expiry", "expiring by no time to live", sql="expires_ms > 0 AND ttl_ms IS NULL"),
    Flaw("expiry", "expiring before the time to appear", sql="state = 2 AND expires_ms < due_ms"),
    Flaw("expiry", "expiring among dead letters", sql=f"expires_ms > 0 AND {_SIDE}"),
    Flaw("session", "in no session", sql="state != 2 AND sessions AND session IS NULL"),
    Flaw("session", "in a session, where none are", sql="NOT sessions AND session IS NOT NULL"),
    Flaw("bytes", "without bytes", ASIDE, "message.bare IS NULL AND body.id IS NULL"),
    Flaw("bytes", "with bytes twice", sql="message.bare IS NOT NULL AND body IS NOT NULL"),
    Flaw("sequence", "of a number that is never given", sql=f"message.id & {MASK} = 0"),
    Flaw("size", "with a size or a count below 0", sql="min(size, delivery_count, hops) < 0"),
)
_FLAWS: Final = " | ".join(
    f"CASE WHEN {each.sql} THEN {1 << index} ELSE 0 END" for index, each in enumerate(FLAWS)
)
_WALK: Final = f"""
SELECT message.id, place.path, {_FLAWS}, size, session, message.delivery_annotations, annotations,
    coalesce(message.bare, body.bare)
FROM message LEFT JOIN body ON body.id = message.body LEFT JOIN place ON place.id = message.id >> 40
ORDER BY message.id
"""


def find_messages(look: Look) -> Iterator[Finding]:
    found = Flaws("message")
    look.counts |= {"messages": 0, "bytes": 0}
    for key, path, flaws, size, *content in look.ask(_WALK):
        subject = path or nobodys(key >> SEQUENCE_BITS)
        if not look.counts["messages"] % 10_000:
            look.say(subject, look.counts["messages"])
        look.counts["messages"] += 1
        look.counts["bytes"] += size
        for index, flaw in enumerate(FLAWS) if flaws else ():
            if flaws >> index & 1:
                found.add(subject, flaw, key & MASK)
        unreadable = _unreadable(*content)
        if unreadable is not None:
            found.add(subject, unreadable, key & MASK)
    yield from found.findings()


def _unreadable(
    session: str | None, delivery: bytes | None, annotations: bytes | None, bare: bytes | None
) -> Flaw | None:
    """Why a message cannot be delivered as it lies there."""
    if bare is None:
        return None  # that is a flaw of its own
    try:
        message = Message.parse(bare)
        for section in (delivery, annotations):
            if section is not None:
                Message(annotations=section).annotation_map()
    except CodecError as error:
        return Flaw("unreadable", f"that cannot be read: {error}")
    if session is not None and message.properties.group_id != session:
        return Flaw("session", "in another session than the bytes say")
    return None


# ---------------------------------------------------------------- what is counted

_SHARED: Final = (
    "SELECT body, count(*) AS holders, min(id) AS first FROM message WHERE body IS NOT NULL "
    "GROUP BY body"
)
_COUNTERS: Final = ("active", "deferred", "scheduled", "bytes")


def _in(entity: str) -> str:
    return f"message.id BETWEEN {entity} << 40 AND ({entity} + 1 << 40) - 1"


def _counted(entity: str) -> str:
    """What an entity's counters must be. What is not active or deferred counts as scheduled."""
    return (
        "SELECT coalesce(sum(state = 0), 0), coalesce(sum(state = 1), 0), "
        "coalesce(sum(state NOT IN (0, 1)), 0), coalesce(sum(size), 0) FROM message "
        f"WHERE {_in(entity)}"
    )


_HIGHEST: Final = f"coalesce((SELECT max(id) & {MASK} FROM message WHERE {_in('entity.id')}), 0)"


def find_bodies(look: Look) -> Iterator[Finding]:
    found = Flaws("shared body")
    of_nobody = Flaw("holders", "that no message has", ASIDE)
    (look.counts["bodies"],) = look.ask("SELECT count(*) FROM body").fetchone()
    for number, said, there, path in look.ask(
        f"SELECT body.id, body.holders, shared.holders, place.path FROM body "
        f"LEFT JOIN ({_SHARED}) AS shared ON shared.body = body.id "
        "LEFT JOIN place ON place.id = shared.first >> 40 "
        "WHERE body.holders IS NOT shared.holders"
    ):
        if there is None:
            found.add(ALL, of_nobody, number)
            continue
        what = f"counted for {said} messages and shared by {there}"
        found.add(path or ALL, Flaw("holders", what, f"{REPAIR} counts again"), number)
    yield from found.findings()


def find_counters(look: Look) -> Iterator[Finding]:
    names = ", ".join(_COUNTERS)
    for number, path, *said in look.ask(
        f"SELECT id, path, {names} FROM entity WHERE ({names}) IS NOT ({_counted('entity.id')})"
    ):
        there = look.ask(_counted("?1"), number).fetchone()
        pairs = zip(_COUNTERS, said, there, strict=True)
        what = ", ".join(f"{name} is {a} and must be {b}" for name, a, b in pairs if a != b)
        yield Finding("counters", path, what, f"{REPAIR} counts again")
    for path, said, there in look.ask(
        f"SELECT path, last_sequence, {_HIGHEST} AS highest FROM entity "
        "WHERE last_sequence < highest"
    ):
        what = f"{said} is the last number it gave, and it has a message of the number {there}"
        yield Finding("counters", path, what, f"{REPAIR} goes on from there")


def mend_counters(link: sqlite3.Connection) -> None:
    link.execute(
        f"UPDATE entity SET ({', '.join(_COUNTERS)}) = ({_counted('entity.id')}), "
        f"last_sequence = max(last_sequence, {_HIGHEST})"
    )
