"""What receivers say of what they got, on a link or by a token."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

from twinbus.amqp.incoming import Confirmation
from twinbus.amqp.link_endpoint import RECEIVER, Link
from twinbus.amqp.performatives import encode_disposition
from twinbus.amqp.types import Array, encode
from twinbus.lab.model import things as model
from twinbus.lab.model.client_steps import send, sender
from twinbus.lab.model.play import CLIENTS, LATE, REFUSED, UNTOLD, Asked, Play
from twinbus.lab.model.real import Caller
from twinbus.lab.model.request_steps import ask
from twinbus.lab.model.things import DEAD, TRANSFER, IdealLock, Refused, Unanswered, Wrong
from twinbus.lab.model.views import condition_of, outcome_of


def settle(play: Play, outcome: int, which: int, how: int, change: int) -> None:
    """What a receiver says of a message, on its link or, where that is gone, by its token."""
    held = play.held()
    if not held:
        return
    lock = held[which % len(held)]
    path, number = lock.box.path, lock.message.number
    changes = {"c": change} if change % 3 == 0 else {}
    act = ("complete", "abandon", "defer", "dead_letter", "release")[how % 5]
    if act == "release" and (play.together is not None or outcome >= LATE):
        act = "abandon"  # to release needs no disk, so it is not held up by what does
    token = play.tokens.get((path, number))
    receiver = next((each for each in play.open if token in each.got.values()), None)
    play.trace.append(f"{act} {number} of {path}")
    if receiver is None:
        settle_by_token(play, outcome, lock, act, changes)
        return
    delivery = next(key for key, found in receiver.got.items() if found == token)
    state = outcome_of(act, changes)
    client = play.real.peers[receiver.peer]

    def real() -> Callable[[], Any]:
        frame = encode_disposition(RECEIVER, delivery, delivery, False, encode(state))
        client.amqp.write_frame(receiver.link.session.channel, frame)
        return lambda: confirmed(client, receiver.link, delivery)

    def ideal() -> str:
        settle_ideal(play, path, number, act, changes)
        return "accepted" if act != "dead_letter" else ""

    play.renumber = True
    play.both(outcome, client, (real, ideal))
    receiver.got.pop(delivery, None)


def settle_ideal(play: Play, path: str, number: int, act: str, changes: dict[str, Any]) -> None:
    now, lock = play.real.now, play.model.find(path, number)
    if act == "complete":
        play.model.complete(lock)
    elif act == "abandon":
        play.model.abandon(lock, changes, now)
    elif act == "defer":
        play.model.defer(lock, changes)
    elif act == "release":
        play.model.release(lock, now)
    else:
        play.model.dead_letter(lock, "because", "of this", changes)


def confirmed(client: Caller, link: Link, delivery: int) -> Any:
    found = [e for e in client.heard_of(Confirmation) if e.first <= delivery <= e.last]
    if not found and client.refusal(link) is not None:
        return UNTOLD  # the session's lock is lost, and with it the link
    if len(found) != 1:
        raise (Wrong if found else Unanswered)(f"a settlement was answered {len(found)} times")
    return condition_of(found[0].state)


def settle_by_token(
    play: Play, outcome: int, lock: IdealLock, act: str, changes: dict[str, Any]
) -> None:
    path, number = lock.box.path, lock.message.number
    token = play.tokens.get((path, number))
    if token is None or lock.session is not None or play.together is not None:
        return
    status = {
        "complete": "completed",
        "abandon": "abandoned",
        "defer": "defered",
        "dead_letter": "suspended",
        "release": "abandoned",
    }[act]
    body: dict[str, Any] = {
        "disposition-status": status,
        "lock-tokens": Array([UUID(bytes_le=token)], 0x98),
    }
    if changes:
        body["properties-to-modify"] = dict(changes)
    if act == "dead_letter":
        body |= {"deadletter-reason": "because", "deadletter-description": "of this"}
    act = "abandon" if act == "release" else act
    play.renumber = True

    def settled() -> dict[str, Any]:
        settle_ideal(play, path, number, act, changes)
        return {}

    ask(play, outcome, path, "update-disposition", body, settled)


def stale(play: Play, which: int) -> None:
    """A token whose lock is gone settles nothing."""
    gone = [
        key
        for key in play.tokens
        if key[0].split(DEAD)[0].split(TRANSFER)[0] in play.model.entities
        and play.tokens[key]
        not in {play.tokens.get((k.box.path, k.message.number)) for k in play.held()}
    ]
    if not gone:
        return
    path, number = gone[which % len(gone)]
    body = {
        "disposition-status": "completed",
        "lock-tokens": Array([UUID(bytes_le=play.tokens[path, number])], 0x98),
    }

    def ideal() -> Any:
        raise Refused(model.LOST)

    ask(play, 0, path, "update-disposition", body, ideal)


def together(play: Play, outcome: int, seed: int, count: int) -> None:
    """Several clients do something before the disk has any of it."""
    rng = random.Random(seed)  # noqa: S311 - not a secret
    for path, entity in play.model.entities.items():
        if entity.may_send:
            for peer in range(CLIENTS):
                sender(play, peer, path)
    before = copy.deepcopy(play.model) if outcome >= REFUSED else None
    asked: list[Asked] = []
    play.together = asked
    try:
        for _ in range(2 + count % 4):
            if rng.random() < 0.6:
                send(play, 0, *(rng.randrange(100) for _ in range(4)))
            else:
                settle(play, 0, *(rng.randrange(100) for _ in range(3)))
    finally:
        play.together = None
    play.reach(outcome, before, asked)
