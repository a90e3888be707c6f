"""What clients do on their links, and the passing of time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from twinbus.amqp.incoming import Delivery, LinkDetached
from twinbus.amqp.lifecycle import LinkState
from twinbus.amqp.link_endpoint import RECEIVER, SENDER, Link
from twinbus.lab.model import things as model
from twinbus.lab.model.drafts import draft
from twinbus.lab.model.play import CLIENTS, Attached, Hopeful, Part, Play
from twinbus.lab.model.real import Caller
from twinbus.lab.model.scenery import HOSTILE, JUMPS_MS, PAUSES_MS, SESSIONS
from twinbus.lab.model.things import IdealMessage, Refused, Unanswered, Wrong
from twinbus.lab.model.views import SESSION_FILTER, condition_of


def send(play: Play, outcome: int, peer: int, which: int, count: int, kind: int) -> None:
    paths = [e.path for e in play.model.entities.values() if e.kind != "subscription"]
    path = paths[which % len(paths)]
    peer = play.speaker(peer)
    link = sender(play, peer, path)
    if link is None:
        return
    made = [draft(play, kind + number * 7) for number in range(1 + count % 3)]
    play.trace.append(f"send {[m.tag for m, _ in made]} to {path}")
    now = play.real.now
    client = play.real.peers[peer]

    def part(message: IdealMessage, payload: bytes) -> Part:
        def real() -> Callable[[], Any]:
            sent = link.send(payload, play.next_tag(), settled=False)
            return lambda: answer_to(client, link, sent)

        def ideal() -> str:
            play.model.send(path, [message.fresh()], now)
            return "accepted"

        return real, ideal

    play.both(outcome, client, *(part(*each) for each in made))


def answer_to(client: Caller, link: Link, sent: int) -> str:
    """What a sender hears of a transfer: once."""
    if client.refusal(link) is not None:
        return str(client.refusal(link))
    told = [e.state for e in client.settlements if e.link is link and e.delivery_id == sent]
    if len(told) != 1:
        raise (Wrong if told else Unanswered)(
            f"a transfer to '{link.name}' was answered {len(told)} times"
        )
    return condition_of(told[0])


def sender(play: Play, peer: int, path: str) -> Link | None:
    link = play.links.get((peer, path))
    if link is not None and link.state is LinkState.ATTACHED:
        return link
    if play.together is not None:  # to attach takes exchanges, which are not to come in between
        return None
    client: Caller = play.real.peers[peer]
    link = client.attach(SENDER, path)
    refusal = client.refusal(link)
    entity = play.model.entities.get(path)
    wanted = None
    if entity is None:
        wanted = model.NOTHING
    elif not entity.may_send:
        wanted = model.DISABLED
    play.same(refusal, wanted)
    if refusal is not None:
        return None
    play.links[peer, path] = link
    return link


def receive(play: Play, peer: int, which: int, mode: int, wanted: int) -> None:
    """A new receiver, which wants some at once."""
    if len(play.open) >= 8:
        leave(play, which)
    boxes = [box.path for box in play.model.boxes()]
    full = [box.path for box in play.model.boxes() if any(True for _ in box.messages)]
    boxes = full if full and which % 4 else boxes
    path = boxes[which % len(boxes)]
    box = play.model.box(path)
    deletes = mode % 5 == 0
    session = SESSIONS[mode % 3] if box.has_sessions or mode % 17 == 0 else None
    if session is not None and mode % 4:
        session = play.model.free_session(path) or session
    play.trace.append(f"receive from {path} {session} deletes={deletes}")
    client = play.real.peers[peer % CLIENTS]
    any_session = box.has_sessions and mode % 7 == 6 and box.owner.may_receive
    filters = {SESSION_FILTER: None if any_session else session} if session else None
    link = client.attach(
        *(RECEIVER, path),
        filter=filters,
        snd_settle_mode=1 if deletes else 0,
        rcv_settle_mode=0 if deletes else 1,
    )
    if any_session:
        play.waiting.append(Hopeful(peer % CLIENTS, link, path, deletes, play.real.now))
        box.waiting += 1
        play.grant()
        return
    try:
        receiver = play.model.attach(path, deletes, session, play.real.now)
    except Refused as refused:
        play.same(client.refusal(link), str(refused))
        client.take(LinkDetached)
        return
    play.same(client.refusal(link), None)
    play.open.append(Attached(peer % CLIENTS, link, path, receiver))
    credit(play, len(play.open) - 1, wanted)


def credit(play: Play, which: int, most: int) -> None:
    if not play.open:
        return
    receiver = play.open[which % len(play.open)]
    wanted = 1 + most % 4 if most % 9 else 0
    receiver.model.credit = wanted
    play.trace.append(f"credit {wanted} at {receiver.path}")
    receiver.link.grant(wanted)
    play.real.exchange()


def drain(play: Play, which: int) -> None:
    """All the credit that is left comes back."""
    if not play.open:
        return
    receiver = play.open[which % len(play.open)]
    receiver.link.grant(receiver.model.credit, drain=True)
    play.real.exchange()
    play.judge()
    receiver.model.credit = 0
    if receiver.link.credit:
        raise Wrong(f"a drain of '{receiver.path}' left {receiver.link.credit} credit")


def lose(play: Play, outcome: int, which: int, most: int) -> None:
    """A crash before what a receiver deletes is deleted, or behind that and before it is sent."""
    deleting = [each for each in play.open if each.model.deletes]
    if not deleting:
        return
    receiver = deleting[which % len(deleting)]
    box, session = receiver.model.box, receiver.model.session
    before, wanted = copy.deepcopy(play.model), 1 + most % 4
    play.trace.append(f"lose {wanted} of {receiver.path}")
    receiver.link.grant(wanted)
    play.real.say()
    client = play.real.peers[receiver.peer]
    client.pass_on()
    if client.take(Delivery):
        raise Wrong(f"'{receiver.path}' delivered what the disk has not deleted yet")
    for each in list(box.ready(None if session is None else session.id)):
        if each.is_late(play.real.now):
            play.model.expire(box, each)
        elif wanted:
            wanted -= 1
            del box.messages[each.number]
        else:
            break
    play.crashed(before, committed=outcome % 2 == 0)


def leave(play: Play, which: int) -> None:
    if not play.open:
        return
    receiver = play.open.pop(which % len(play.open))
    play.trace.append(f"leave {receiver.path}")
    receiver.link.detach()
    gone(play, receiver)
    play.real.exchange()


def gone(play: Play, receiver: Attached) -> None:
    play.model.detach(receiver.model, play.real.now)
    play.renumber = True


def disconnect(play: Play, peer: int) -> None:
    peer %= CLIENTS
    play.trace.append(f"client {peer} disconnects")
    for receiver in [each for each in play.open if each.peer == peer]:
        play.open.remove(receiver)
        gone(play, receiver)
    for waiting in [each for each in play.waiting if each.peer == peer]:
        play.waiting.remove(waiting)
        play.model.box(waiting.path).waiting -= 1
    play.links = {key: link for key, link in play.links.items() if key[0] != peer}
    play.real.reconnect(peer)
    play.real.exchange()


def hostile(play: Play, peer: int, which: int, kind: int) -> None:
    """Bytes that are no message: refused, and nothing has changed."""
    paths = [e.path for e in play.model.entities.values() if e.may_send]
    if not paths:
        return
    link = sender(play, peer % CLIENTS, paths[which % len(paths)])
    if link is None:
        return
    client = play.real.peers[peer % CLIENTS]
    sent = link.send(HOSTILE[kind % len(HOSTILE)], play.next_tag(), settled=False)
    play.real.exchange()
    play.same(answer_to(client, link, sent), model.BAD)


def wait(play: Play, outcome: int, which: int) -> None:
    pause = PAUSES_MS[which % len(PAUSES_MS)]
    if which % 16 == 15:  # somebody sets the machine's clock
        pause = JUMPS_MS[outcome % 2]
        for peer in range(CLIENTS if pause > 0 else 0):  # who is silent for so long is closed
            disconnect(play, peer)
    if pause < 0 and play.model.has_ids_between(play.real.now + pause, play.real.now):
        return  # whether an id is forgotten yet is left to the service
    play.trace.append(f"wait {pause} ms")
    if outcome < 97:
        play.let_pass(pause)
        return
    play.real.now += pause
    before = copy.deepcopy(play.model)
    play.tick_ideal()
    play.real.tick()
    play.crashed(before, committed=outcome >= 98)
