"""A history played on a broker process and on the model, with kill -9 at any moment.

The steps are those that are played in memory. Time is the machine's, so that whatever depends on it
is made to last for hours, and nothing is said of when something was. What a client had asked for
when the process was killed, and had no answer to, may have been done or not: it is found out by
looking at all that is there afterwards, which must be what the model holds if it does what was
answered and, of what each client asked for besides, one thing after the other up to some point.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Iterator, Sequence
from inspect import signature
from typing import Any

from twinbus.amqp.incoming import Delivery
from twinbus.amqp.types import Int
from twinbus.lab.model import histories
from twinbus.lab.model.histories import Step
from twinbus.lab.model.play import CLIENTS, REFUSED, Asked, Play, Played
from twinbus.lab.model.scenery import SESSIONS, UPDATES, entities
from twinbus.lab.model.service import Service
from twinbus.lab.model.things import (
    Box,
    IdealEntity,
    IdealMessage,
    IdealReceiver,
    Unanswered,
    Wrong,
)
from twinbus.lab.model.views import as_seen, visible
from twinbus.lab.model.wire import RealProcess

# What is about short times, and what needs a commit to be in the right moment.
LEFT_OUT = ("wait", "renew", "renew_session", "lose")
KILLS = 84  # of a hundred outcomes, from which on
PAUSES_S = (0.0, 0.0003, 0.001, 0.003)
_TIMES = ("x-opt-enqueued-time", "x-opt-locked-until")
_HOUR_S = 3_600
_LOCK_MS = 300_000
NONE = object()
Peeked = dict[str, list[tuple[Any, ...]]]


class ProcessPlay(Play):
    SECOND_MS = 1_000 * _HOUR_S
    UPDATES = tuple(
        (name, tuple(v and v * _HOUR_S for v in values) if name == "ttl" else values)
        for name, values in UPDATES
        if name != "lock_ms"
    )

    def __init__(self, planted: str = "") -> None:
        self._planted = planted
        super().__init__()

    def begin(self) -> Any:
        return RealProcess(self._planted)

    def entities(self) -> list[IdealEntity]:
        """Those of the other histories, in no hurry. Which of two clients was first would decide
        who is refused by a queue that is full, and is not told."""
        found = [each for each in entities() if each.path != "little"]
        for each in found:
            each.lock_ms = _LOCK_MS
            each.ttl = each.ttl and each.ttl * _HOUR_S
            each.window_ms = each.window_ms and each.window_ms * _HOUR_S
        return found

    def seen(self, payload: bytes) -> dict[str, Any]:
        return _untimed(as_seen(payload))

    def shown(self, message: IdealMessage, until: int | None) -> dict[str, Any]:
        return _untimed(visible(message, until))

    def speaker(self, peer: int) -> int:
        return 0 if self.together is not None else super().speaker(peer)

    def reach(self, outcome: int, before: Service | None, asked: list[Asked]) -> None:
        if before is None:
            super().reach(0, None, asked)
        else:
            self.killed(before, asked, PAUSES_S[outcome % len(PAUSES_S)])

    def late(self, pause: int) -> None:
        """No step asks for it: what becomes of each is drawn by `killing`, and when a process tells
        of its commit is its own affair."""
        raise NotImplementedError

    def _compare(self, *boxes: Box) -> None:
        """What is stored is looked at after each kill, and at the end."""

    def at_rest(self) -> None:
        self.judge()
        self.killed(copy.deepcopy(self.model), [], 0.0)
        complaints = self.real.complaints()
        if complaints:
            raise Wrong(f"it logged {complaints[:3]}")

    # -- kill -9

    def killed(self, before: Service, asked: list[Asked], pause_s: float) -> None:
        self.played.crashes += 1
        self.real.say()
        time.sleep(pause_s)
        self.real.kill()
        answers = [_heard(each) for each in asked]
        for each, answer in zip(asked, answers, strict=True):
            if answer is not NONE:
                self.same(answer, each.expected)
        gone = self._received_and_deleted()
        self.real.start()
        self.real.connect(CLIENTS)
        there, states = self._peeked(before), self._states(before)
        for path, number, tag in gone:
            if any(each[0] == number and each[1]["tag"] == tag for each in there[path]):
                raise Wrong(f"'{path}' has {number} again, which it deleted and delivered")
        wrong: list[str] = []
        for candidate in self._possible(before, asked, answers):
            wrong.append(self._difference(candidate, there, states))
            if not wrong[-1]:
                self.model = candidate
                self.all_gone()
                self.renumber = False
                return
        raise Wrong(f"after the kill {min(wrong, key=len)}")

    def _received_and_deleted(self) -> list[tuple[str, int, str]]:
        deleting = {each.link: each.path for each in self.open if each.model.deletes}
        found = []
        for peer in self.real.peers:
            for event in peer.take(Delivery):
                if event.link in deleting:
                    seen = as_seen(event.payload or b"")
                    number = seen["x-opt-sequence-number"]
                    found.append((deleting[event.link], number, seen["tag"]))
        return found

    def _possible(
        self, before: Service, asked: Sequence[Asked], answers: Sequence[Any]
    ) -> Iterator[Service]:
        """What there may be now, that in which most was done first."""
        clients = list(dict.fromkeys(each.client for each in asked))
        mine = [[at for at, each in enumerate(asked) if each.client is one] for one in clients]
        cuts = itertools.product(*(range(len(each), -1, -1) for each in mine))
        for cut in sorted(cuts, key=sum, reverse=True):
            done = {at for own, most in zip(mine, cut, strict=True) for at in own[:most]}
            # A refusal is answered at once, and says nothing of what was asked before it.
            told = [at for at, answer in enumerate(answers) if not _is_refusal(answer)]
            if any(answers[at] is not NONE and at not in done for at in told):
                continue
            self.model = copy.deepcopy(before)
            for at in sorted(done):
                self.answer(asked[at].ideal)
            yield from _without_lost(self.model)

    # -- looking

    def _peeked(self, model: Service) -> Peeked:
        """All that is there, by the messages' numbers."""
        client = self.real.peers[0]
        left = {box.path: 1 for box in model.boxes()}
        found: Peeked = {box.path: [] for box in model.boxes()}
        while left:
            nodes = dict(zip(left, client.nodes(f"{p}/$management" for p in left), strict=True))
            for path, (requests, _) in nodes.items():
                body = {"from-sequence-number": left[path], "message-count": Int(250)}
                client.request(requests, {"operation": "com.microsoft:peek-message"}, body)
            self.real.exchange()
            for path, (_, replies) in nodes.items():
                ((values, answer),) = client.answers(replies)
                del left[path]
                if values["statusCode"] == 200:
                    page = [as_seen(each["message"]) for each in answer["messages"]]
                    found[path] += [_numbered(each) for each in page]
                    left[path] = found[path][-1][0] + 1
        return found

    def _states(self, model: Service) -> dict[tuple[str, str], Any]:
        client, found = self.real.peers[0], {}
        for box in model.boxes():
            for session in SESSIONS if box.has_sessions else ():
                requests, replies = client.node(f"{box.path}/$management")
                operation = {"operation": "com.microsoft:get-session-state"}
                client.request(requests, operation, {"session-id": session})
                self.real.exchange()
                ((_, answer),) = client.answers(replies)
                found[box.path, session] = answer["session-state"]
        return found

    def _difference(self, model: Service, there: Peeked, states: dict[Any, Any]) -> str:
        found = []
        for box in model.boxes():
            if self.renumber:
                self._take_numbers(box, there[box.path], _kept)
            ideal = [_kept(each, box) for _, each in sorted(box.messages.items())]
            if ideal != there[box.path]:
                ours = [each for each in ideal if each not in there[box.path]]
                theirs = [each for each in there[box.path] if each not in ideal]
                found.append(f"'{box.path}' has {theirs}, and should have {ours}")
            for session in SESSIONS if box.has_sessions else ():
                state = states[box.path, session]
                if state != box.states.get(session):
                    found.append(f"session {session} of '{box.path}' has the state {state!r}")
        return "; ".join(found)


def killing(seed: int, length: int) -> list[Step]:
    """A history in which the process is killed now and then, and whenever several ask at once."""
    steps = []
    for name, *numbers in histories.history(seed, length, LEFT_OUT):
        if "outcome" in signature(histories.STEPS[name][1]).parameters:
            kills = name == "together" or numbers[0] >= KILLS
            numbers[0] = REFUSED + numbers[0] % 6 if kills else 0
        steps.append((name, *numbers))
    return steps


def finding(steps: Sequence[Step], counts: Played | None = None, planted: str = "") -> str | None:
    return histories.finding(steps, counts, lambda: ProcessPlay(planted))


def _heard(each: Asked) -> Any:
    """Its answer, or NONE if there was none."""
    try:
        return each.answered()
    except Unanswered:
        return NONE


def _is_refusal(answer: Any) -> bool:
    each = answer if isinstance(answer, list) else [answer]
    return bool(each) and all(isinstance(a, str) and ":" in a for a in each)


def _without_lost(model: Service) -> Iterator[Service]:
    """What went to who receives and deletes is gone, whether it was received or not."""
    deleting = [
        (box.path, at, each.credit)
        for box in model.boxes()
        for at, each in enumerate(box.receivers)
        if each.deletes and each.credit and any(_ready(box, each))
    ]
    for lost in itertools.product(*(range(credit + 1) for _, _, credit in deleting)):
        left = copy.deepcopy(model) if any(lost) else model
        for (path, at, _), count in zip(deleting, lost, strict=True):
            box = left.box(path)
            for each in list(itertools.islice(_ready(box, box.receivers[at]), count)):
                del box.messages[each.number]
        yield left


def _ready(box: Box, receiver: IdealReceiver) -> Iterator[IdealMessage]:
    return box.ready(None if receiver.session is None else receiver.session.id)


def _untimed(seen: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in seen.items() if name not in _TIMES}


def _numbered(seen: dict[str, Any]) -> tuple[Any, ...]:
    """Its number, and what else a peek shows of it."""
    rest = _untimed(seen)
    number = rest.pop("x-opt-sequence-number")
    if rest["x-opt-enqueue-sequence-number"] == number:  # where it is now is where it came
        del rest["x-opt-enqueue-sequence-number"]
    return number, rest


def _kept(message: IdealMessage, _: Box) -> tuple[Any, ...]:
    return _numbered(visible(message, None))
