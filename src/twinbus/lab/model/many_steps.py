"""What clients do to several messages at once, and what is done to all of them or to none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from twinbus.amqp.batches import BATCH_FORMAT, batch_of
from twinbus.amqp.link_endpoint import RECEIVER
from twinbus.amqp.message import Message as Bytes
from twinbus.amqp.performatives import encode_disposition
from twinbus.amqp.types import Array, encode
from twinbus.lab.model import things as model
from twinbus.lab.model.client_steps import answer_to, sender
from twinbus.lab.model.drafts import bytes_of, draft
from twinbus.lab.model.play import Part, Play
from twinbus.lab.model.request_steps import ask
from twinbus.lab.model.settling_steps import confirmed, settle_ideal
from twinbus.lab.model.things import LOST, IdealMessage, Refused
from twinbus.lab.model.views import outcome_of, tag_of

ACTS = ("complete", "abandon", "defer", "dead_letter")


def batch(play: Play, outcome: int, peer: int, which: int, count: int, kind: int) -> None:
    """Several messages in one transfer, of which some may have one id."""
    paths = [e.path for e in play.model.entities.values() if e.kind != "subscription"]
    path = paths[which % len(paths)]
    peer = play.speaker(peer)
    link = sender(play, peer, path)
    if link is None:
        return
    made = several(play, count, kind)
    client, now = play.real.peers[peer], play.real.now
    play.trace.append(f"send {[m.tag for m in made]} to {path} in a batch")

    def real() -> Callable[[], Any]:
        payload = batch_of([bytes_of(each) for each in made])
        sent = link.send(payload, play.next_tag(), settled=False, message_format=BATCH_FORMAT)
        return lambda: answer_to(client, link, sent)

    def ideal() -> str:
        play.model.send(path, [each.fresh() for each in made], now)
        return "accepted"

    play.both(outcome, client, (real, ideal))


def several(play: Play, count: int, kind: int) -> list[IdealMessage]:
    made = [draft(play, kind + number * 7)[0] for number in range(2 + count % 2)]
    if count % 3 == 0:
        made[1].message_id = made[0].message_id
    for each in made:
        bytes_of(each)
    return made


def schedule(play: Play, outcome: int, which: int, count: int, kind: int) -> None:
    """Several messages for later, by one request."""
    paths = [e.path for e in play.model.entities.values() if e.kind != "subscription"]
    path, now = paths[which % len(paths)], play.real.now
    made = several(play, count, kind)
    for at, each in enumerate(made):
        each.due = now + play.SECOND_MS * (1 + (kind + at) % 8)
    asked = [{"message-id": each.tag, "message": bytes_of(each)} for each in made]
    play.trace.append(f"schedule {[each.tag for each in made]} at {path}")
    ask(
        play,
        *(outcome, path, "schedule-message", {"messages": asked}),
        lambda: {"sequence-numbers": play.model.send(path, [m.fresh() for m in made], now)},
    )


def settle_range(play: Play, outcome: int, peer: int, count: int, how: int) -> None:
    """One word about all that a client got, up to some delivery, on whichever of its links."""
    mine = [each for each in play.open if each.peer == play.open[peer % len(play.open)].peer]
    numbers = {token: place for place, token in play.tokens.items()}
    got = {
        key: (each, token) for each in mine for key, token in each.got.items() if token in numbers
    }
    chosen = sorted(got)[: 1 + count % 4]
    if not chosen:
        return
    act, client = ACTS[how % len(ACTS)], play.real.peers[mine[0].peer]
    play.trace.append(f"{act} {[numbers[got[key][1]] for key in chosen]}")
    state = encode(outcome_of(act, {}))

    def part(delivery: int) -> Part:
        path, number = numbers[got[delivery][1]]
        lock = play.model.box(path).messages.get(number)
        is_held = lock is not None and lock.lock is not None

        def real() -> Callable[[], Any]:
            if delivery == chosen[0]:
                frame = encode_disposition(RECEIVER, chosen[0], chosen[-1], False, state)
                client.amqp.write_frame(client.session.channel, frame)
            return lambda: confirmed(client, got[delivery][0].link, delivery)

        def ideal() -> str:
            if not is_held:
                raise Refused(LOST)
            settle_ideal(play, path, number, act, {})
            return "accepted" if act != "dead_letter" else ""

        return real, ideal

    play.renumber = True
    play.both(outcome, client, *(part(each) for each in chosen))
    for key in chosen:
        got[key][0].got.pop(key, None)


def settle_tokens(play: Play, outcome: int, which: int, count: int, how: int) -> None:
    """By several tokens of one entity. If one of them is of no lock, nothing has changed."""
    held = [each for each in play.held() if each.session is None]
    if not held:
        return
    path = held[which % len(held)].box.path
    found = [each.message.number for each in held if each.box.path == path][: 1 + count % 4]
    tokens = [UUID(bytes_le=play.tokens[path, number]) for number in found]
    act = ACTS[how % len(ACTS)]
    wrong = count % 3 == 0
    if wrong:
        tokens.append(UUID(int=7))
    status = {"complete": "completed", "abandon": "abandoned", "defer": "defered"}
    body: dict[str, Any] = {
        "disposition-status": status.get(act, "suspended"),
        "lock-tokens": Array(tokens, 0x98),
        "deadletter-reason": "because",
        "deadletter-description": "of this",
    }
    play.trace.append(f"{act} {found} of {path} by tokens, {wrong=}")

    def ideal() -> dict[str, Any]:
        if wrong:
            raise Refused(LOST)
        for number in found:
            settle_ideal(play, path, number, act, {})
        return {}

    play.renumber = True
    ask(play, outcome, path, "update-disposition", body, ideal)


def deferred(play: Play, outcome: int, which: int, count: int, deletes: int) -> None:
    """Several that were put aside, by their numbers; if one is not there, none of them."""
    boxes = [
        box for box in play.model.boxes() if not box.has_sessions and box.count(model.DEFERRED)
    ]
    if not boxes:
        return
    box, now = boxes[which % len(boxes)], play.real.now
    there = [n for n, each in sorted(box.messages.items()) if each.state == model.DEFERRED]
    numbers = there[: 1 + count % 4] + ([there[-1] + 1_000] if count % 3 == 0 else [])
    path, and_delete = box.path, deletes % 3 == 0
    body = {
        "sequence-numbers": Array(numbers, 0x81),
        "receiver-settle-mode": 0 if and_delete else 1,
    }

    def ideal() -> Any:
        found = play.model.receive_deferred(path, numbers, and_delete, None, now)
        return [each.tag for each in found]

    def read(answer: Any) -> Any:
        if not and_delete:
            for number, each in zip(numbers, answer["messages"], strict=True):
                play.tokens[path, number] = each["lock-token"].bytes_le
        return [tag_of(Bytes.parse(each["message"]).bare) for each in answer["messages"]]

    play.trace.append(f"receive deferred {numbers} of {path}")
    ask(play, outcome, path, "receive-by-sequence-number", body, ideal, read)
