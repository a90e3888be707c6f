"""A history played on both: the real namespace and the model of Service Bus.

A history is a list of steps, each a name and some numbers. What a number means (which queue, which
of the locks that are held now) is found when the step is played, modulo what there is: so a history
of which steps were taken out is a history too, and can be made shorter (see `shrink`).

After every step all that a client or an administrator could see of the two is compared: answers,
deliveries and what they carry, what is stored where, what still has to come.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from twinbus.amqp.incoming import Confirmation, Delivery, LinkAttached
from twinbus.amqp.lifecycle import LinkState
from twinbus.amqp.link_endpoint import Link
from twinbus.amqp.message import Message as Bytes
from twinbus.broker.inspection import inspect
from twinbus.broker.sessions import SessionQueue
from twinbus.lab.model.real import Caller, Real
from twinbus.lab.model.scenery import (
    PAUSES_MS,
    RULES,
    SESSIONS,
    UPDATES,
    description,
    entities,
)
from twinbus.lab.model.service import Service
from twinbus.lab.model.things import (
    Box,
    IdealEntity,
    IdealLock,
    IdealMessage,
    IdealReceiver,
    NotReady,
    Refused,
    Wrong,
)
from twinbus.lab.model.views import as_kept, as_seen, as_stored, granted, tag_of, visible

# What a client says, which answers how to read the answer; and what it does to the model.
Part = tuple[Callable[[], Callable[[], Any]], Callable[[], Any]]


@dataclass(frozen=True, slots=True)
class Asked:
    """One thing that a client asked for: how to read the answer, what it must be, and what it does
    to the model, whichever that is by then."""

    client: Caller
    answered: Callable[[], Any]
    expected: Any
    ideal: Callable[[], Any]


CLIENTS = 2


COMPARED = 5  # of so many steps, what is stored is compared once: it takes most of the time


REFUSED_BY_DISK = "amqp:internal-error"


UNTOLD = object()  # an answer that nobody was there to hear


LATE, REFUSED, UNREADABLE, CRASHES, CRASHES_LATE = 88, 94, 95, 96, 98


@dataclass(slots=True, eq=False)
class Attached:
    """A receiver that is attached: the client's end, and the model's."""

    peer: int
    link: Link
    path: str
    model: IdealReceiver
    got: dict[int, bytes] = field(default_factory=dict)  # tokens by delivery id


Found = tuple[int, Attached, Delivery, Bytes]


@dataclass(slots=True, eq=False)
class Hopeful:
    """A receiver that asked for any session, and has none yet."""

    peer: int
    link: Link
    path: str
    deletes: bool
    since: int

    @property
    def until(self) -> int:
        return self.since + 60_000


@dataclass(slots=True)
class Played:
    steps: int = 0
    deliveries: int = 0
    crashes: int = 0
    refusals: int = 0
    unread: int = 0

    def add(self, other: Played) -> None:
        self.steps += other.steps
        self.deliveries += other.deliveries
        self.crashes += other.crashes
        self.refusals += other.refusals
        self.unread += other.unread


class Play:
    """One history under way."""

    SECOND_MS = 1_000
    UPDATES = UPDATES

    def __init__(self) -> None:
        self.real: Any = self.begin()
        self.model = Service()
        self.open: list[Attached] = []
        self.waiting: list[Hopeful] = []
        self.tokens: dict[tuple[str, int], bytes] = {}
        self.played = Played()
        self.trace: list[str] = []
        self.tags = 0
        self.together: list[Asked] | None = None
        self.renumber = False  # the order in which what came at once was stored is not told
        for entity in self.entities():
            self.create(entity)
        self.real.connect(CLIENTS)
        self.links: dict[tuple[int, str], Link] = {}

    def begin(self) -> Any:
        return Real()

    def entities(self) -> list[IdealEntity]:
        return entities()

    def seen(self, payload: bytes) -> dict[str, Any]:
        """What a client sees of a message."""
        return as_seen(payload)

    def shown(self, message: IdealMessage, until: int | None) -> dict[str, Any]:
        """What a client must see of it."""
        return visible(message, until)

    def speaker(self, peer: int) -> int:
        """Which client sends."""
        return peer % CLIENTS

    def close(self) -> None:
        self.real.close()

    def settle_up(self) -> None:
        """After a step: what was delivered is judged and, now and then, what is stored."""
        self.played.steps += 1
        self.judge()
        if self.played.steps % COMPARED == 0:
            self._compare()
            self.renumber = False

    def both(
        self,
        outcome: int,
        client: Caller,
        *parts: Part,
    ) -> None:
        """Do something on both and compare what they answer. ``outcome`` is what becomes of it: of
        a hundred, most reach the disk, and others meet one that refuses, or a crash."""
        before = None
        if self.together is None and outcome >= REFUSED:
            before = copy.deepcopy(self.model)
        asked = [Asked(client, real(), self.answer(ideal), ideal) for real, ideal in parts]
        if self.together is None:
            self.reach(outcome, before, asked)
        else:
            self.together += asked
            self.real.say()  # so that the broker hears them in this order

    @staticmethod
    def answer(ideal: Callable[[], Any]) -> Any:
        try:
            return ideal()
        except Refused as refused:
            return refused

    def reach(self, outcome: int, before: Service | None, asked: list[Asked]) -> None:
        """What was asked for reaches the disk, or does not."""
        if outcome == UNREADABLE and before is not None:
            self._unread(before, asked)
            return
        if before is not None:
            self.real.say()
            if outcome < CRASHES:
                self._refused(before, asked)
            else:
                self.crashed(before, committed=outcome >= CRASHES_LATE)
            return
        if outcome >= LATE:
            self.late(PAUSES_MS[outcome % 3])
        self.real.exchange()
        for each in asked:
            self.same(each.answered(), each.expected)

    def late(self, pause: int) -> None:
        """It is on the disk, and time passes before anybody is told."""
        self.real.say()
        batch = self.real.write()
        self.real.now += pause
        self.renumber = True
        self.tick_ideal()
        self.real.tick()
        self.real.tell(batch)
        self.let_pass(0)  # which looks after what was on its way to the disk until now

    def same(self, answer: Any, expected: Any) -> None:
        wanted = str(expected) if isinstance(expected, Refused) else expected
        if answer not in (wanted, UNTOLD):
            raise Wrong(f"the answer was {answer!r}, and should be {wanted!r}")

    def _unread(self, before: Service, asked: list[Asked]) -> None:
        """The disk cannot be read now: who needed that is told so, and has changed nothing."""
        with self.real.unreadable():
            self.real.say()
        self.real.exchange()
        answers = [each.answered() for each in asked]
        if REFUSED_BY_DISK not in answers:
            for each, answer in zip(asked, answers, strict=True):
                self.same(answer, each.expected)
            return
        self.played.unread += 1
        self._adopt_past(before, keep_numbers=False)
        for each, answer in zip(asked, answers, strict=True):
            if answer != REFUSED_BY_DISK:
                self.same(answer, self.answer(each.ideal))

    def _refused(self, before: Service, asked: list[Asked]) -> None:
        if not self.real.refuse():
            self.real.exchange()
            for each in asked:
                self.same(each.answered(), each.expected)
            return
        self.played.refusals += 1
        self.real.exchange()
        for each in asked:
            self._check_refusal(each.answered(), each.expected)
        self._adopt_past(before, keep_numbers=True)

    @staticmethod
    def _check_refusal(answer: Any, expected: Any) -> None:
        """Each is told that the disk refused, but for who is refused for a reason of his own."""
        reasons = (
            REFUSED_BY_DISK,
            str(expected) if isinstance(expected, Refused) else expected,
            UNTOLD,
        )
        if answer not in reasons or answer == "accepted":
            raise Wrong(f"the disk refused, and the answer was {answer!r}")

    def crashed(self, before: Service, *, committed: bool) -> None:
        self.played.crashes += 1
        anything = bool(self.real.store.batch)
        self.real.crash(committed=committed)
        if not (committed and anything):
            self._adopt_past(before, keep_numbers=False)
        self.all_gone()
        self.let_pass(0)

    def _adopt_past(self, past: Service, *, keep_numbers: bool) -> None:
        """The model as it was; what receivers hold is theirs in it by its path."""
        if keep_numbers:
            lasts = {box.path: box.last for box in self.model.boxes()}
            for box in past.boxes():
                box.last = max(box.last, lasts.get(box.path, 0))
        ours = {id(each.model): each for each in self.open}
        index = {
            (box.path, at): receiver
            for box in past.boxes()
            for at, receiver in enumerate(box.receivers)
        }
        for box in self.model.boxes():
            for at, receiver in enumerate(box.receivers):
                if id(receiver) in ours and (box.path, at) in index:
                    ours[id(receiver)].model = index[box.path, at]
        self.model = past

    def all_gone(self) -> None:
        """The process died: no client has a link any more."""
        self.model.restart()
        self.open.clear()
        self.waiting.clear()
        self.links.clear()
        self.tokens.clear()

    def next_tag(self) -> bytes:
        count: int = self.real.count()
        return count.to_bytes(4)

    def grant(self) -> None:
        """Who waits for any session has one by now, if there is one; or has waited too long."""
        for waiting in list(self.waiting):
            client, box = self.real.peers[waiting.peer], self.model.box(waiting.path)
            refusal = client.refusal(waiting.link)
            attached = waiting.link.state is LinkState.ATTACHED and refusal is None
            if not attached and refusal is None:
                continue
            self.waiting.remove(waiting)
            box.waiting -= 1
            if refusal is not None:
                if refusal == "com.microsoft:timeout" and self.real.now < waiting.until:
                    raise Wrong(f"'{waiting.path}' gave up a waiter before its time")
                continue
            session = granted(waiting.link)
            if session != self.model.free_session(waiting.path):
                raise Wrong(f"'{waiting.path}' granted {session}, which was not next")
            receiver = self.model.attach(waiting.path, waiting.deletes, session, self.real.now)
            self.open.append(Attached(waiting.peer, waiting.link, waiting.path, receiver))
            waiting.link.grant(2)
            receiver.credit = 2
            self.real.exchange()

    def held(self) -> list[IdealLock]:
        return [
            message.lock
            for box in self.model.boxes()
            for _, message in sorted(box.messages.items())
            if message.lock is not None
        ]

    def let_pass(self, pause: int) -> None:
        self.real.now += pause
        self.tick_ideal()
        self.real.tick()
        self.real.exchange()
        self.renumber = True

    def tick_ideal(self) -> None:
        for receiver in self.model.tick(self.real.now):
            self.open = [each for each in self.open if each.model is not receiver]

    def create(self, entity: IdealEntity) -> None:
        directory, now = self.real.directory, self.real.now
        if entity.kind == "subscription":
            topic, _, name = entity.path.partition("/Subscriptions/")
            first, *others = entity.rules
            change = directory.create_subscription
            answers = self.real.do(change, topic, name, description(entity), RULES[first][0], now)
            self.real.commit()
            for rule in others:
                answers += self.real.do(directory.create_rule, topic, name, RULES[rule][0], now)
        else:
            kind = directory.create_topic if entity.kind == "topic" else directory.create_queue
            answers = self.real.do(kind, entity.path, description(entity), now)
        self.real.commit()
        if any(answers):
            raise Wrong(f"'{entity.path}' could not be created: {answers}")
        self.model.create(entity)

    def judge(self) -> None:
        """Everything that was delivered might be, and what must be was."""
        self.grant()
        self.model.forward_waiting(self.real.now)
        found: list[Found] = []
        for index, peer in enumerate(self.real.peers):
            mine = {each.link: each for each in self.open if each.peer == index}
            last: dict[Any, int] = {}
            for event in peer.take(Delivery):
                receiver = mine.get(event.link)
                if receiver is None:
                    if event.link.state is LinkState.ATTACHED:
                        raise Wrong("a delivery came on a link that nobody receives on")
                    continue
                message = Bytes.parse(event.payload or b"")
                number = int(message.annotation_map()["x-opt-sequence-number"])
                if number <= last.get(event.link, 0):
                    raise Wrong(f"'{receiver.path}' delivered {number} after {last[event.link]}")
                last[event.link] = number
                found.append((number, receiver, event, message))
            peer.take(LinkAttached)
            peer.take(Confirmation)
            peer.settlements.clear()
        found.sort(key=lambda each: each[0])
        found = self._judged(found)
        while found:
            # What was too old for one receiver is dead now, and so it is ready for another.
            self.model.owed(self.real.now)
            left = self._judged(found)
            if len(left) == len(found):
                self._delivered(*left[0])
            found = left
        missing = self.model.owed(self.real.now)
        if missing:
            raise Wrong("; ".join(missing))

    def _judged(self, found: list[Found]) -> list[Found]:
        """Those of them that cannot have been delivered yet."""
        early = []
        for each in found:
            try:
                self._delivered(*each)
            except NotReady:
                early.append(each)
        return early

    def _delivered(self, number: int, receiver: Attached, event: Delivery, seen: Bytes) -> None:
        self.played.deliveries += 1
        if self.renumber:
            self._align(receiver.model.box, number, tag_of(seen.bare))
        message = self.model.delivered(receiver.model, number, self.real.now)
        until = message.lock.until if message.lock else None
        shown, wanted = self.seen(event.payload or b""), self.shown(message, until)
        if shown != wanted:
            raise Wrong(f"'{receiver.path}' delivered {shown}, which should be {wanted}")
        if not receiver.model.deletes:
            receiver.got[event.delivery_id] = event.tag
            self.tokens[receiver.path, number] = event.tag

    @staticmethod
    def _align(box: Box, number: int, tag: str) -> None:
        """What came at one moment may be numbered in any order: as the delivery says it."""
        there = box.messages.get(number)
        if there is None or there.tag == tag:
            return
        for other in box.messages.values():
            if other.tag == tag and other.lock is None:
                there.number, other.number = other.number, number
                box.messages[number], box.messages[there.number] = other, there
                return

    def _compare(self, *boxes: Box) -> None:
        """What is stored where."""
        for box in boxes or self.model.boxes():
            real = self.real.directory.resolve(box.path)[1]
            counts = real.counts
            seen = (counts.active, counts.deferred, counts.scheduled, counts.bytes)
            if not box.messages and not any(seen):
                continue  # that the rows are as many as are counted is looked at when at rest
            stored = [as_stored(each) for each in real.peek(0, 10_000)]
            ideal = [as_kept(each, box) for _, each in sorted(box.messages.items())]
            if stored != ideal and self.renumber:
                self._take_numbers(box, stored, as_kept)
                ideal = [as_kept(each, box) for _, each in sorted(box.messages.items())]
            if stored != ideal:
                ours = [each for each in ideal if each not in stored]
                theirs = [each for each in stored if each not in ideal]
                raise Wrong(f"'{box.path}' has {theirs}, and should have {ours}")
            wanted = (*(box.count(state) for state in (0, 1, 2)), box.bytes)
            if seen != wanted:
                raise Wrong(f"'{box.path}' counts {seen}, and should count {wanted}")

    @staticmethod
    def _take_numbers(
        box: Box,
        stored: list[tuple[Any, ...]],
        kept: Callable[[IdealMessage, Box], tuple[Any, ...]],
    ) -> None:
        """What came at one moment may be numbered in any order."""
        if sorted(each[0] for each in stored) != sorted(box.messages):
            return
        left = list(box.messages.values())
        numbered: dict[int, IdealMessage] = {}
        for number, *rest in stored:
            match = next((m for m in left if list(kept(m, box)[1:]) == rest), None)
            if match is None:
                return
            left.remove(match)
            numbered[number] = match
        for number, message in numbered.items():
            message.number = number
        box.messages = numbered

    def at_rest(self) -> None:
        """When all has been said, no row is nobody's and all that is kept twice agrees: the check
        that `twinbus broker --check` makes."""
        self.let_pass(1)
        self.judge()
        self._compare()
        for box in self.model.boxes():
            real = self.real.directory.resolve(box.path)[1]
            if isinstance(real, SessionQueue):
                states = {name: real.get_state(name) for name in SESSIONS}
                self.same(states, {name: box.states.get(name) for name in SESSIONS})
        findings = inspect(self.real.store.path).findings
        if findings:
            raise Wrong("; ".join(str(each) for each in findings))
