"""What administrators do."""

from __future__ import annotations

import copy

from twinbus.amqp.lifecycle import LinkState
from twinbus.broker.refusals import DescriptionError
from twinbus.lab.model.client_steps import leave
from twinbus.lab.model.play import Play
from twinbus.lab.model.scenery import RULES, description
from twinbus.lab.model.things import IdealReceiver, Wrong


def delete(play: Play, which: int) -> None:
    """An entity is deleted, with all that is in it, while others use it; and comes again."""
    paths = list(play.model.entities)
    path = paths[which % len(paths)]
    if any(path in (e.forward_to, e.forward_dead_to) for e in play.model.entities.values()):
        return
    play.trace.append(f"delete {path}")
    answers = play.real.do(play.real.directory.delete, path)
    cut = play.model.delete(path)
    play.real.commit()
    play.real.exchange()
    if answers != [None]:
        raise Wrong(f"'{path}' could not be deleted: {answers}")
    cut_off(play, cut, path)
    # A sender's link is to what is gone, and not to what comes in its place.
    inside = (path, path + "/")
    play.links = {k: v for k, v in play.links.items() if not k[1].startswith(inside)}
    doomed = [e for e in play.entities() if e.path == path or e.path.startswith(path + "/")]
    for entity in doomed:
        play.create(entity)


def cut_off(play: Play, receivers: list[IdealReceiver], path: str) -> None:
    play.waiting = [each for each in play.waiting if each.path != path]
    for receiver in [each for each in play.open if each.model in receivers]:
        play.open.remove(receiver)
        if receiver.link.state is LinkState.ATTACHED:
            raise Wrong(f"a receiver of '{receiver.path}' was not told that it is over")


def update(play: Play, which: int, what: int, value: int) -> None:
    paths = list(play.model.entities)
    name, values = play.UPDATES[what % len(play.UPDATES)]
    changes = {name: values[value % len(values)]}
    path = paths[which % len(paths)]
    if changes == {"forward_to": "on"}:
        path = "plain"  # which is where that forwards to: a circle
    entity = play.model.entities[path]
    if entity.kind == "topic" and name not in ("status", "ttl"):
        return
    if name == "status" and entity.kind == "subscription" and changes[name] != "Active":
        changes = {"status": "ReceiveDisabled"} if value % 2 else {"status": "Active"}
    trial = copy.copy(entity)
    for key, each in changes.items():
        setattr(trial, key, each)
    try:
        told = description(trial)
    except DescriptionError:
        return
    if name == "forward_to":  # who received before and what forwards now would race
        while mine := [at for at, each in enumerate(play.open) if each.path == path]:
            leave(play, mine[0])
    play.trace.append(f"update {path} {changes}")
    answers: list[Exception | None] = []
    try:
        play.real.directory.update(path, told, play.real.now, answers.append)
    except DescriptionError:
        return
    cut = play.model.update(path, changes, play.real.now)
    play.real.commit()
    play.real.pump()
    play.real.exchange()
    play.renumber = True
    if cut:  # what sessions held that were ended comes back with the next tick
        play.let_pass(0)
    if not entity.may_receive:
        play.waiting = [each for each in play.waiting if each.path != path]
        entity.box.waiting = 0
    cut_off(play, cut, "")


def rules(play: Play, which: int, rule: int) -> None:
    """A rule comes, or goes."""
    subscriptions = [e for e in play.model.entities.values() if e.kind == "subscription"]
    if not subscriptions:
        return
    entity = subscriptions[which % len(subscriptions)]
    topic, _, name = entity.path.partition("/Subscriptions/")
    wanted = list(RULES)[rule % len(RULES)]
    directory = play.real.directory
    play.trace.append(f"rule {wanted} of {entity.path}")
    if wanted in entity.rules:
        answers = play.real.do(directory.delete_rule, topic, name, wanted)
        del entity.rules[wanted]
    else:
        real, ideal = RULES[wanted]
        answers = play.real.do(directory.create_rule, topic, name, real, play.real.now)
        entity.rules[wanted] = ideal
    play.real.exchange()
    play.same(answers, [None])
