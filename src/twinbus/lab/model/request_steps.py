"""What clients ask of ``$management``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from twinbus.amqp.lifecycle import LinkState
from twinbus.amqp.message import Message as Bytes
from twinbus.amqp.types import Array, Int, Timestamp
from twinbus.lab.model import things as model
from twinbus.lab.model.drafts import bytes_of, draft
from twinbus.lab.model.play import UNREADABLE, Play
from twinbus.lab.model.scenery import SESSIONS
from twinbus.lab.model.things import Unanswered, Wrong
from twinbus.lab.model.views import tag_of


def ask(
    play: Play,
    outcome: int,
    path: str,
    operation: str,
    body: dict[str, Any],
    ideal: Callable[[], Any],
    read: Callable[[Any], Any] = lambda body: body,
) -> None:
    """A request to ``$management``, and its answer: the body, or the condition."""
    client = play.real.peers[0]
    requests, replies = client.node(f"{path}/$management")
    if requests.state is not LinkState.ATTACHED or replies.state is not LinkState.ATTACHED:
        client.forget_node(f"{path}/$management")
        return

    def real() -> Callable[[], Any]:
        client.request(requests, {"operation": f"com.microsoft:{operation}"}, body)

        def answered() -> Any:
            found = client.answers(replies)
            if len(found) != 1:
                raise (Wrong if found else Unanswered)(
                    f"{operation} was answered {len(found)} times"
                )
            values, answer = found[0]
            if values["statusCode"] == 204:
                return None
            if values["statusCode"] != 200:
                return str(values.get("errorCondition"))
            return read(answer)

        return answered

    play.both(outcome, client, (real, ideal))


def renew(play: Play, which: int) -> None:
    held = [lock for lock in play.held() if lock.session is None]
    if not held:
        return
    lock = held[which % len(held)]
    token = play.tokens[lock.box.path, lock.message.number]
    body = {"lock-tokens": Array([UUID(bytes_le=token)], 0x98)}
    now = play.real.now
    ask(
        play,
        *(0, lock.box.path, "renew-lock", body),
        lambda: {"expirations": [play.model.renew(lock, now)]},
    )


def schedule(play: Play, outcome: int, which: int, kind: int, later: int) -> None:
    paths = [e.path for e in play.model.entities.values() if e.kind != "subscription"]
    path = paths[which % len(paths)]
    message, _ = draft(play, kind)
    message.due = play.real.now + play.SECOND_MS * (1 + later % 8)
    payload = bytes_of(message)
    now = play.real.now
    play.trace.append(f"schedule {message.tag} at {path}")
    ask(
        play,
        *(outcome, path, "schedule-message"),
        {"messages": [{"message-id": message.tag, "message": payload}]},
        lambda: {"sequence-numbers": play.model.send(path, [message.fresh()], now)},
    )


def cancel(play: Play, outcome: int, which: int, wrong: int) -> None:
    scheduled = [
        (box.path, number)
        for box in play.model.boxes()
        for number, each in sorted(box.messages.items())
        if each.state == model.SCHEDULED
    ]
    if not scheduled:
        return
    path, number = scheduled[which % len(scheduled)]
    numbers = [number, number + 1_000] if wrong % 5 == 0 else [number]
    ask(
        play,
        *(outcome, path, "cancel-scheduled-message"),
        {"sequence-numbers": Array(numbers, 0x81)},
        lambda: play.model.cancel(path, numbers),
    )


def deferred(play: Play, outcome: int, which: int, deletes: int) -> None:
    deferred = [
        (box, each)
        for box in play.model.boxes()
        for _, each in sorted(box.messages.items())
        if each.state == model.DEFERRED and not box.has_sessions
    ]
    if not deferred:
        return
    box, message = deferred[which % len(deferred)]
    number, now = message.number, play.real.now
    body = {
        "sequence-numbers": Array([number], 0x81),
        "receiver-settle-mode": 0 if deletes % 3 == 0 else 1,
    }

    def ideal() -> Any:
        found = play.model.receive_deferred(box.path, [number], deletes % 3 == 0, None, now)
        return [each.tag for each in found]

    def read(answer: Any) -> Any:
        for each in answer["messages"]:
            if deletes % 3:
                play.tokens[box.path, number] = each["lock-token"].bytes_le
        return [tag_of(Bytes.parse(each["message"]).bare) for each in answer["messages"]]

    play.trace.append(f"receive deferred {number} of {box.path}")
    ask(play, outcome, box.path, "receive-by-sequence-number", body, ideal, read)


def peek(play: Play, which: int, start: int, session: int) -> None:
    boxes = [box for box in play.model.boxes() if box.has_sessions or session % 2 == 0]
    boxes = boxes or list(play.model.boxes())
    box = boxes[which % len(boxes)]
    body: dict[str, Any] = {
        "from-sequence-number": start % 4,
        "message-count": Int(1 + start % 7),
    }
    wanted = SESSIONS[session % 3] if box.has_sessions and session % 2 else None
    if wanted:
        body["session-id"] = wanted
    seen = [
        each
        for number, each in sorted(box.messages.items())
        if number >= start % 4
        and (wanted is None or (each.session == wanted and each.state != model.SCHEDULED))
    ][: 1 + start % 7]

    def read(answer: Any) -> Any:
        return [play.seen(each["message"]) for each in answer["messages"]]

    ask(
        play,
        *(UNREADABLE if session % 10 == 9 else 0, box.path, "peek-message", body),
        lambda: [play.shown(each, None) for each in seen] or None,
        read,
    )


def purge(play: Play, outcome: int, which: int, most: int, back: int) -> None:
    boxes = [b for b in play.model.boxes() if not (b is b.owner.box and b.owner.forward_to)]
    box = boxes[which % len(boxes)]
    before = play.real.now - (0, 3 * play.SECOND_MS)[back % 2]
    body = {"message-count": Int(1 + most % 4), "enqueued-time-utc": Timestamp(before)}
    now = play.real.now
    play.renumber = True
    ask(
        play,
        *(outcome, box.path, "batch-delete-messages", body),
        lambda: play.model.purge(box.path, 1 + most % 4, before, now) or None,
        lambda answer: answer["message-count"],
    )


def state(play: Play, outcome: int, which: int, value: int) -> None:
    held = [each for each in play.open if each.model.session is not None]
    if not held:
        return
    path = held[which % len(held)].path
    session = held[which % len(held)].model.session
    assert session is not None
    state = None if value % 2 else bytes([value % 250])
    body = {"session-id": session.id, "session-state": state}
    ask(
        play,
        *(outcome, path, "set-session-state", body),
        lambda: play.model.set_state(path, session.id, state),
    )


def read_state(play: Play, which: int, name: int) -> None:
    rooms = [box for box in play.model.boxes() if box.has_sessions]
    box = rooms[which % len(rooms)] if rooms else None
    if box is None:
        return
    session = SESSIONS[name % 3]
    ask(
        play,
        *(0, box.path, "get-session-state", {"session-id": session}),
        lambda: {"session-state": box.states.get(session)},
    )


def renew_session(play: Play, which: int, name: int) -> None:
    rooms = [box for box in play.model.boxes() if box.has_sessions]
    if not rooms:
        return
    path, session = rooms[which % len(rooms)].path, SESSIONS[name % 3]
    now = play.real.now
    ask(
        play,
        *(0, path, "renew-session-lock", {"session-id": session}),
        lambda: {"expiration": play.model.renew_session(path, session, now)},
    )


def sessions(play: Play, which: int, most: int) -> None:
    """Which sessions have messages."""
    rooms = [box for box in play.model.boxes() if box.has_sessions]
    if not rooms:
        return
    box = rooms[which % len(rooms)]
    there = {m.session for m in box.messages.values() if m.state != model.SCHEDULED}
    body = {
        "last-updated-time": Timestamp(253_402_300_800_000),
        "skip": Int(0),
        "top": Int(1 + most % 4),
    }
    names = sorted(str(each) for each in there)[: 1 + most % 4]
    ask(
        play,
        *(0, box.path, "get-message-sessions", body),
        lambda: names or None,
        lambda answer: list(answer["sessions-ids"]),
    )
