"""Messages as they are sent, drawn by a number."""

from __future__ import annotations

from twinbus.lab.model.play import Play
from twinbus.lab.model.real import encoded
from twinbus.lab.model.scenery import ODD, SESSIONS, TTLS_S
from twinbus.lab.model.things import IdealMessage


def draft(play: Play, kind: int) -> tuple[IdealMessage, bytes]:
    play.tags += 1
    tag = f"m{play.tags}"
    message_id = None if kind % 5 == 0 else tag if kind % 3 else f"id-{kind % 4}"
    session = (None, *SESSIONS)[kind % 4] if kind % 8 else None
    ttl_s = TTLS_S[kind % len(TTLS_S)]
    ttl = None if ttl_s is None else ttl_s * play.SECOND_MS
    due = play.real.now + 2 * play.SECOND_MS * (1 + kind % 3) if kind % 11 == 3 else None
    properties = {"a": kind % 6} if kind % 2 else {}
    made = IdealMessage(tag, message_id, session, 0, ttl, properties, play.real.now)
    made.due = due
    made.mark = kind if kind % 4 == 2 else None
    if kind % 10 == 6:
        made.mark = ODD[kind % len(ODD)]
        made.properties[f"odd {kind % 3}"] = ODD[kind * 7 % len(ODD)]
    made.priority = kind % 9 if kind % 7 == 1 else None
    return made, bytes_of(made)


def bytes_of(message: IdealMessage) -> bytes:
    payload = encoded(
        message.tag,
        message_id=message.message_id,
        session=message.session,
        ttl=message.ttl,
        due=message.due,
        mark=message.mark,
        priority=message.priority,
        properties=dict(message.properties),
        filler=200_000 if message.mark in (22, 68, 114) else 0,
    )
    message.size = len(payload)
    return payload
