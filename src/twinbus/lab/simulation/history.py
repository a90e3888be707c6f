"""What is written down while a world runs, and what is read from it in the end.

The notes are the checker's input (``verdict``), and whatever else was promised. ``breaches`` are
the promises that were not kept, each a sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from twinbus import envelope
from twinbus.amqp.message import Message, application_properties
from twinbus.broker.burial import EXPIRED, MAX_DELIVERIES
from twinbus.broker.entry import Entry
from twinbus.lab.simulation.clock import START_MS, Clock
from twinbus.lab.simulation.letter import STAMP, Letter, id_of
from twinbus.lab.simulation.node import HandedOut, Node
from twinbus.lab.simulation.records import Deed, Records, disagreements
from twinbus.lab.simulation.seed import SeedPlan
from twinbus.lab.simulation.topology import DETECTING, MOST_DELIVERIES, NORTH, SUBSCRIPTIONS, WEST
from twinbus.lab.verdict import Attempt, Judgement, Receipt, judge
from twinbus.ledger import Cause, Operation


@dataclass(slots=True)
class Fate:
    """What a delivered message's receivers were told."""

    ended: str = ""  # how, if that was acknowledged
    returns: int = 0  # that were acknowledged, and count as deliveries
    is_deferred: bool = False
    stamps: tuple[int, ...] = ()  # any of these it may have; the first was acknowledged


@dataclass(frozen=True, slots=True)
class Piece:
    """Which letter a backlog message is, or is a part of."""

    letter: Letter
    is_whole: bool


class History:
    """The notes of one world."""

    def __init__(self, clock: Clock, plan: SeedPlan) -> None:
        self.trace: list[str] = []
        self.breaches: list[str] = []
        self.pieces: dict[str, Piece] = {}  # by the id that the message has in the backlog
        self.homecomings: list[tuple[str, str]] = []  # destination and id
        self._clock = clock
        self._plan = plan
        self._letters: dict[str, Letter] = {}
        self._attempts: list[tuple[Letter, bool]] = []
        self._deliveries: list[HandedOut] = []
        self._numbers: dict[tuple[str, str, str], int] = {}  # by queue, destination and id
        self._pinged_at: dict[str, int] = {}
        self._fates: dict[tuple[int, int], Fate] = {}
        self.records = Records()
        self.busy: set[str] = set()
        self._happened: Counter[Deed] = Counter()
        self._stored: Counter[str] = Counter()  # pieces that a backlog queue took, and said so
        self._groups: dict[tuple[str, ...], Letter] = {}  # by the pieces that it went in
        self._taken_back: dict[str, bool] = {}  # cancelled, and whether that was acknowledged
        self._aside: list[HandedOut] = []  # dead-lettered by receivers, who were told so

    # ------------------------------------------------------------ what happens

    def tell(self, who: str, what: str) -> None:
        self.trace.append(f"{(self._clock.now - START_MS) / 1000:9.3f}  {who}: {what}")

    def attempted(self, letters: Sequence[Letter], *, acknowledged: bool) -> None:
        self._attempts += [(letter, acknowledged) for letter in letters]

    def written(self, letter: Letter) -> None:
        self._letters[letter.id] = letter

    def sent(self, path: str, messages: list[bytes], operation: Operation = Operation.SEND) -> None:
        """Who sent them was told that they are home."""
        for each in messages:
            self._happened[operation, Cause.NORMAL, path, str(envelope.id_of(each))] += 1

    def stored(self, queue: str, messages: list[bytes]) -> None:
        """Who diverted them was told that they are in the backlog."""
        self._stored.update(str(envelope.id_of(each)) for each in messages)

    def cancelling(self, letter: Letter) -> None:
        self._taken_back.setdefault(letter.id, False)

    def kept(self, letter: Letter) -> None:
        """A cancellation was refused, so nothing was changed."""
        if not self._taken_back[letter.id]:
            del self._taken_back[letter.id]

    def cancelled(self, letter: Letter) -> None:
        self.tell(letter.entity, f"has {letter.id} no longer, which was cancelled")
        self._taken_back[letter.id] = True

    def diverted(self, letter: Letter, parts: list[bytes]) -> None:
        ids = tuple(str(envelope.id_of(part)) for part in parts)
        self._groups[ids] = letter
        for id_ in ids:
            self.pieces[id_] = Piece(letter, len(parts) == 1)

    def arrived(self, queue: str, messages: list[bytes], numbers: list[int]) -> None:
        for message, number in zip(messages, numbers, strict=True):
            piece = self.pieces[str(envelope.id_of(message))]
            letter = piece.letter
            self.tell(queue, f"has {letter.id} for {letter.entity} as {number}")
            if piece.is_whole:
                self._numbers.setdefault((queue, letter.entity, letter.id), number)

    def refused(self, letter: Letter) -> None:
        if self._plan.orderly:
            self.breaches.append(f"{letter.id} was refused though the secondary was well")

    def pinged(self, entity: str) -> None:
        self._pinged_at[entity] = self._clock.now

    def restored(self, entity: str, since_ms: int) -> None:
        if self._pinged_at.get(entity, 0) < since_ms:
            self.breaches.append(f"{entity} was restored by a ping that it never took")

    def brought(self, destination: str, ids: Sequence[str]) -> None:
        """A syphon was told that they are home."""
        for each in ids:
            self._happened[Operation.SEND, Cause.HOME_SEND, destination, each] += 1

    def came_home(self, destination: str, ids: Sequence[str]) -> None:
        self.tell(destination, f"has {', '.join(ids)} from the backlog")
        self.homecomings += [(destination, id_) for id_ in ids]

    def received(self, delivery: HandedOut) -> None:
        id_ = id_of(delivery)
        again = delivery.key in self._fates
        self.tell(delivery.path, f"delivers {id_} as {delivery.number}{' again' * again}")
        fate = self._fates.setdefault(delivery.key, Fate())
        stamp = application_properties(delivery.bare).get(STAMP, 0)
        if fate.ended:
            self.breach(f"{id_} came again though it was told that {fate.ended} was done")
        if fate.is_deferred and not delivery.deferred:
            self.breach(f"{id_} came though it was deferred")
        if not fate.returns <= delivery.count <= delivery.before:
            told = f"not between {fate.returns} and {delivery.before}"
            self.breach(f"{id_} counts {delivery.count} deliveries, {told}")
        if stamp not in (fate.stamps or (0,)):
            self.breach(f"{id_} has the stamp {stamp}, not one of {fate.stamps}")
        if not again:
            self._deliveries.append(delivery)
        letter = self._letters.get(id_)
        wrong = letter and letter.differs(delivery, deducts=self._plan.deducts)
        if wrong:
            self.breach(f"{id_} was altered: {wrong}")

    def settling(self, act: str, some: Sequence[HandedOut], stamp: int) -> None:
        names = ", ".join(f"{id_of(each)} as {each.number}" for each in some)
        self.tell(some[0].path, f"is asked to {act} {names}")
        if act in ("abandon", "defer"):
            for each in some:
                fate = self._fates[each.key]
                fate.stamps = (*(fate.stamps or (0,)), stamp)

    def settled(self, act: str, delivery: HandedOut, stamp: int) -> None:
        """Its receiver was told so."""
        fate = self._fates[delivery.key]
        if act in ("complete", "dead-letter"):
            fate.ended = act
            if act == "dead-letter":
                self._aside.append(delivery)
        else:
            fate.returns += 1
            fate.is_deferred |= act == "defer"
            fate.stamps = fate.stamps[fate.stamps.index(stamp) :]

    def breach(self, what: str) -> None:
        self.tell("promise", f"not kept: {what}")
        self.breaches.append(what)

    # ------------------------------------------------------------ what came of it

    def judge(self, nodes: Iterable[Node]) -> Judgement:
        """Ask the checker, and note every promise that was not kept."""
        nodes = [node for node in nodes if node.is_up]
        attempts = [
            copy
            for letter, safe in self._attempts
            for copy in _copies(letter, safe and letter.id not in self._taken_back)
        ]
        receipts = [_receipt(each) for each in self._deliveries]
        waiting = [id_ for node in nodes for id_ in self._ids(node.contents(dead=False))]
        dead = [id_ for node in nodes for id_ in self._ids(node.contents(dead=True))]
        verdict = judge(attempts, receipts, waiting, dead)
        safe = {each.id for each in attempts if each.acknowledged}
        seen = {each.id for each in receipts}
        once = [each for each in receipts if each.entity.split("/")[0] in DETECTING]
        self._breach("lost", verdict.lost.ids)
        self._breach("unexpected", verdict.unexpected.ids)
        self._breach("still waiting", verdict.waiting.ids)
        given_up = {id_ for node in nodes for id_ in self._ids(node.contents(dead=True), fair=True)}
        self._breach(
            *("dead-lettered", (id_ for id_ in dead if id_ in safe - seen and id_ not in given_up))
        )
        gone = {id_ for id_, is_told in self._taken_back.items() if is_told}
        came = dict.fromkeys(id_ for each in self._deliveries if (id_ := id_of(each)) in gone)
        self._breach("cancelled, and delivered", came)
        aside = (_copy_id(id_of(each), each.path) for each in self._aside)
        self._breach("not set aside", (id_ for id_ in aside if id_ not in dead))
        self._breach("duplicated", judge(attempts, once, (), ()).duplicated.ids)
        if self._plan.orderly:
            self._breach("out of order", self._overtaken())
        for node in nodes:
            self._breach("miscounted", node.drift())
            self._breach("left over", node.left_over())
        for ids, letter in self._groups.items():
            deed = (Operation.SEND, Cause.BACKLOG_SEND, letter.entity, letter.id)
            self._happened[deed] += min(self._stored[id_] for id_ in ids)
        told = ((letter.entity, letter.id) for letter, is_safe in self._attempts if is_safe)
        torn = self._plan.crashes > 0 or any("syphon" in each.kind for each in self._plan.faults)
        self.breaches += disagreements(self.records, self._happened, told, torn=torn)
        return verdict

    def _breach(self, what: str, which: Iterable[str]) -> None:
        named = ", ".join(which)
        if named:
            self.breaches.append(f"{what}: {named}")

    def _overtaken(self) -> tuple[str, ...]:
        """Those that came home after one that lay behind them in the same queue. To the checker
        a queue is a session, and a place in it a number."""
        attempts = [
            Attempt(f"{id_} of {queue}", destination, queue, number, acknowledged=False)
            for (queue, destination, id_), number in self._numbers.items()
        ]
        receipts = [
            Receipt(f"{id_} of {queue}", destination, queue)
            for destination, id_ in self.homecomings
            for queue in self._plan.queues
            if (queue, destination, id_) in self._numbers
        ]
        return judge(attempts, receipts, (), ()).out_of_order.ids

    def _ids(self, contents: list[tuple[str, Entry]], *, fair: bool = False) -> Iterator[str]:
        """The letters that these are, or are parts of; of a topic's, the copy that it is. Or only
        those that a subscription was right to give up."""
        for path, entry in contents:
            if fair and not _rightly_dead(path, entry):
                continue
            id_ = str(Message.parse(entry.bare).properties.message_id)
            if envelope.PATH not in application_properties(entry.bare):
                yield _copy_id(id_, path)
            else:
                letter = self.pieces[id_].letter
                yield from (copy.id for copy in _copies(letter, acknowledged=True))


def _rightly_dead(path: str, entry: Entry) -> bool:
    reason = application_properties(entry.bare).get("DeadLetterReason")
    often = entry.delivery_count >= MOST_DELIVERIES
    return (path == WEST and reason == MAX_DELIVERIES and often) or (
        path == NORTH and reason == EXPIRED[0]
    )


def _copies(letter: Letter, acknowledged: bool) -> list[Attempt]:
    """A letter to a topic is one for each subscription."""
    paths: Sequence[str] = (letter.entity,)
    if letter.entity == "news":
        paths = [path for path in SUBSCRIPTIONS if path != NORTH or letter.colour == "red"]
    return [
        Attempt(_copy_id(letter.id, path), path, letter.session, letter.number, acknowledged)
        for path in paths
    ]


def _copy_id(id_: str, path: str) -> str:
    return f"{id_}@{path.rsplit('/', 1)[1]}" if path in SUBSCRIPTIONS else id_


def _receipt(delivery: HandedOut) -> Receipt:
    return Receipt(_copy_id(id_of(delivery), delivery.path), delivery.path, delivery.session)
