"""Bugs, planted on purpose, to show that the simulator finds such.

Each is a variant of a real part that does one thing wrong. A checker that has never caught anything
may be one that cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from twinbus import envelope
from twinbus.broker.entity import Entity
from twinbus.broker.lock import Consumer
from twinbus.broker.namespace import Namespace
from twinbus.broker.queue import Done, Queue, nothing
from twinbus.broker.sessions import SessionLock
from twinbus.broker.window import Window
from twinbus.envelope import pack  # the one that ships, whatever stands in its place meanwhile
from twinbus.failover.states import Failover, State
from twinbus.homeward import carrier
from twinbus.homeward.carrier import Carrier, Parcel
from twinbus.homeward.row import Row
from twinbus.lab.simulation.application import Pack
from twinbus.lab.simulation.node import MakesNamespace
from twinbus.lab.simulation.way_home import MakesCarrier
from twinbus.paired.bookkeeper import Bookkeeper


class Bug(StrEnum):
    NONE = "none"  # everything as it is
    SETTLE_FIRST = "settle-before-send"  # the syphon completes a message, then sends it home
    FORGET_ALIAS = "forget-an-alias"  # a diverted message does not remember its session
    ACKNOWLEDGE_FIRST = "acknowledge-before-commit"  # the broker says yes before the disk does
    RESTORE_ANYWAY = "restore-after-failed-ping"  # an entity is healthy whatever a ping says
    OVERTAKE = "overtake"  # the syphon does not mind what was left behind
    ONE_TOO_MANY = "exceed-credit"  # a queue hands out one message more than was asked for
    OUTLIVE = "outlive-a-lock"  # a lock ends a minute late
    CANCEL_NOTHING = "cancel-nothing"  # a cancelled message comes all the same
    LOSE_RECORD = "lose-a-record"  # of messages that are diverted together one is in the ledger
    HURRY = "hurry-parts"  # a part is dead-lettered before its others can have come


class SettlesFirst(Carrier):
    """What is not home yet is gone from the backlog."""

    def _try(self, destination: str, parcels: list[Parcel]) -> None:
        self._settle(parcels)
        super()._try(destination, parcels)


class Overtakes(Carrier):
    """A message goes though one before it did not, and though that one is still locked."""

    def _may_go(self, parcel: Parcel) -> bool:
        return parcel.destination not in self._orders.skip or super()._may_go(parcel)

    def _renewed(self, parcels: list[Parcel]) -> list[Parcel]:
        self._behind.clear()
        return super()._renewed(parcels)

    def _try(self, destination: str, parcels: list[Parcel]) -> None:
        super()._try(destination, parcels)
        self._down.clear()


class Hurries(Carrier):
    """A part whose others are not there counts as alone at once."""

    def _set_aside(self, rows: list[Row]) -> None:
        alone = frozenset((rows[0].part_of or "",))
        self._orders = replace(self._orders, alone=alone)
        super()._set_aside(rows)


def forgetful_pack(message: bytes, path: str, limit: int = envelope.DEFAULT_LIMIT) -> list[bytes]:
    forgotten = frozenset((envelope.SESSION_ID,))
    return [envelope.unstamped(each, forgotten) for each in pack(message, path, limit)]


class AcknowledgesFirst(Namespace):
    def send(self, entity: Entity, payloads: list[bytes], now_ms: int, done: Done) -> list[int]:
        numbers = super().send(entity, payloads, now_ms, nothing)
        done(None)
        return numbers


class RestoresAnyway(Failover):
    __slots__ = ()

    def ping_failed(self) -> tuple[State, ...]:
        self.state = State.HEALTHY
        return (State.HEALTHY,)


def generous_serve(
    self: Queue,
    consumer: Consumer,
    window: Window,
    now_ms: int,
    owner: SessionLock | None = None,
    *,
    once: bool = False,
) -> bool:
    while consumer.demand() >= 0:
        entry = self.take(window, now_ms)
        if entry is None:
            return False
        self.hand(entry, consumer, now_ms, owner)
        if once:
            return True
    return False


expire_locks = Queue.expire_locks


def late_expire_locks(self: Queue, now_ms: int) -> None:
    expire_locks(self, now_ms - 60_000)


def cancel_nothing(self: Queue, sequences: list[int], done: Done) -> None:
    done(None)


diverted = Bookkeeper.diverted


def diverted_in_part(
    self: Bookkeeper,
    namespace: str,
    queue: str,
    path: str,
    batches: Sequence[Sequence[bytes]],
    ids: Sequence[Any],
) -> None:
    diverted(self, namespace, queue, path, batches, ids[:1])


@dataclass(frozen=True)
class Parts:
    """What a world is made of."""

    carrier: MakesCarrier = Carrier
    pack: Pack = envelope.pack
    namespace: MakesNamespace = Namespace
    failover: Callable[[float], Failover] = Failover
    patches: tuple[tuple[Any, str, Any], ...] = ()  # what has another thing under a name


PARTS: dict[Bug, Parts] = {
    Bug.NONE: Parts(),
    Bug.SETTLE_FIRST: Parts(carrier=SettlesFirst),
    Bug.FORGET_ALIAS: Parts(pack=forgetful_pack),
    Bug.ACKNOWLEDGE_FIRST: Parts(namespace=AcknowledgesFirst),
    Bug.RESTORE_ANYWAY: Parts(failover=RestoresAnyway),
    Bug.OVERTAKE: Parts(carrier=Overtakes),
    Bug.ONE_TOO_MANY: Parts(patches=((Queue, "serve", generous_serve),)),
    Bug.OUTLIVE: Parts(patches=((Queue, "expire_locks", late_expire_locks),)),
    Bug.CANCEL_NOTHING: Parts(patches=((Queue, "cancel", cancel_nothing),)),
    Bug.LOSE_RECORD: Parts(patches=((Bookkeeper, "diverted", diverted_in_part),)),
    Bug.HURRY: Parts(carrier=Hurries, patches=((carrier, "PARTS_MS", 0),)),
}
