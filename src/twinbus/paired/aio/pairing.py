"""A primary and its secondary, paired: who is out, who is asked, who goes where.

The states and the rotation are ``failover``'s; this is what acts on them. There is a job
for an entity only while it is in trouble: it waits out the failover interval, then pings.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any
from weakref import WeakSet

from twinbus.failover.rotation import Rotation
from twinbus.failover.states import Failover, State
from twinbus.paired.admission import Admission, TierLimits
from twinbus.paired.aio.diverter import Diverter
from twinbus.paired.aio.link import EntityLink, Side
from twinbus.paired.aio.pinger import Pinger
from twinbus.paired.aio.world import Signal, World
from twinbus.paired.bookkeeper import KEEPS_NOTHING, Bookkeeper
from twinbus.paired.events import Cleared, Diverted, Pinged, Restored, Suspected
from twinbus.paired.options import SendAvailabilityPairedNamespaceOptions
from twinbus.paired.telemetry import Announcer

# How often links are looked after.
KEEP_WARM_S = 30.0


class WatchedEntity:
    """A queue or topic of the primary, as all senders of the factory see it."""

    __slots__ = ("admission", "failover", "path", "troubled", "watch")

    def __init__(self, path: str, interval_s: float, admission: Admission) -> None:
        self.path = path
        self.admission = admission
        self.failover = Failover(interval_s)
        # Set when its job should look again; None while no job runs.
        self.troubled: Signal | None = None
        # Which job that is.
        self.watch: object = None


class Pairing:
    def __init__(
        self,
        primary: Side,
        secondary: Side,
        options: SendAvailabilityPairedNamespaceOptions,
        queues: list[str],
        announcer: Announcer,
        world: World,
        books: Bookkeeper = KEEPS_NOTHING,
    ) -> None:
        self.options = options
        retry_s = options.backlog_retry_interval.total_seconds()
        rotation = Rotation(queues, retry_s, world.chance)
        self.diverter = Diverter(secondary, rotation, announcer, world, books)
        self._books = books
        self._namespace = primary.host
        self._pinger = Pinger(primary, world)
        self._announce = announcer.announce
        self.world = world
        self._entities: dict[str, WatchedEntity] = {}
        self._admissions: dict[str, Admission] = {}
        self._tier = TierLimits()
        self._closing = False
        self._stopping = world.signal()
        self._warming = False  # while a job keeps links warm
        self._senders: WeakSet[EntityLink] = WeakSet()
        # Guards the states; held for moments, never while waiting, so one kind serves both worlds.
        self._mutex = threading.Lock()

    def entity(self, path: str) -> WatchedEntity:
        """Paths are not case-sensitive."""
        key = path.lower()
        entity = self._entities.get(key)
        if entity is None:
            interval_s = self.options.failover_interval.total_seconds()
            entity = self._entities.setdefault(
                key, WatchedEntity(path, interval_s, self.admission(path))
            )
        return entity

    def admission(self, path: str) -> Admission:
        """What is known of an entity, whether or not anybody sends to it."""
        return self._admissions.setdefault(path.lower(), Admission(self._tier))

    def states(self) -> dict[str, State]:
        """Every entity that was sent to, and how it is."""
        return {entity.path: entity.failover.state for entity in list(self._entities.values())}

    def join(self, sender: EntityLink) -> WatchedEntity:
        """A sender of the factory is paired from now on, and kept warm."""
        with self._mutex:
            self._senders.add(sender)
            start = not self._warming and not self._closing
            self._warming = self._warming or start
        if start:
            self.world.start("keeper", self._keep_warm, ended=self._cools_down)
        return self.entity(sender.entity_name)

    # -- what senders report

    def is_diverted(self, entity: WatchedEntity) -> bool:
        if entity.failover.state is State.HEALTHY:
            return False
        with self._mutex:
            entered = entity.failover.look(self.world.now())
        self._entered(entity, entered, "")
        if entity.troubled is None:  # its job was cancelled, or there was no thread for it
            self._attend(entity)
        return entity.failover.state is State.DIVERTED

    def failed(self, entity: WatchedEntity, began: float, error: Exception, sticky: str) -> None:
        """A send that began at ``began`` failed for a reason that counts."""
        with self._mutex:
            entered = entity.failover.failed(self.world.now(), began)
        self._entered(entity, entered, str(error))
        if entity.failover.state is State.SUSPECT and self.diverter.is_cold(sticky):
            self.world.start("backlog warm-up", self.diverter.warm, sticky)

    def succeeded(self, entity: WatchedEntity) -> None:
        with self._mutex:
            entered = entity.failover.succeeded()
        self._entered(entity, entered, "")

    def mark_path_healthy(self, path: str) -> None:
        entity = self.entity(path)
        with self._mutex:
            was = entity.failover.state
            entered = entity.failover.mark_healthy(self.world.now())
        self._entered(entity, entered, "", was)

    # -- what follows from a state

    def _entered(
        self,
        entity: WatchedEntity,
        states: tuple[State, ...],
        error: str,
        was: State = State.SUSPECT,
    ) -> None:
        for state in states:
            where: dict[str, Any] = {
                "at": self.world.date(),
                "namespace": self._namespace,
                "entity": entity.path,
            }
            if state is State.SUSPECT:
                self._announce(Suspected(**where, error=error))
            elif state is State.DIVERTED:
                self._announce(Diverted(**where))
            else:
                self._announce(Restored(**where) if was is State.DIVERTED else Cleared(**where))
            self._books.turned(entity.path, state, was)
        if states:
            self._attend(entity)

    def _attend(self, entity: WatchedEntity) -> None:
        """See to it that a job is awake for an entity in trouble."""
        with self._mutex:
            if entity.troubled is not None:
                entity.troubled.set()
                return
            if self._closing or entity.failover.state is State.HEALTHY:
                return
            entity.troubled, entity.watch = self.world.signal(), object()
            ended = partial(self._unattended, entity, entity.watch)
        self.world.start(f"watch on {entity.path}", self._watch, entity, ended=ended)

    def _unattended(self, entity: WatchedEntity, watch: object) -> None:
        """Its job is no more. If it should be, the next send starts another."""
        with self._mutex:
            if entity.watch is watch:
                entity.troubled = entity.watch = None

    async def _watch(self, entity: WatchedEntity) -> None:
        ping_at: float | None = None
        while True:
            with self._mutex:
                if self._closing or entity.failover.state is State.HEALTHY:
                    entity.troubled = None
                    return
                entity.troubled = awake = self.world.signal()
                state = entity.failover.state
                pause = entity.failover.diverts_at - self.world.now()
            if state is State.SUSPECT:
                await awake.wait(max(0.0, pause))
                self.is_diverted(entity)
                ping_at = None
                continue
            # From the beginning of one to that of the next, however long an entity that is out
            # takes to say so.
            now, interval_s = self.world.now(), self.options.ping_primary_interval.total_seconds()
            ping_at = now + interval_s if ping_at is None else max(now, ping_at)
            if not await awake.wait(ping_at - now):
                ping_at += interval_s
                await self.world.attempt("a ping", entity.path, self._ping, entity)

    async def _keep_warm(self) -> None:
        """The service closes a link that was quiet for ten minutes. Open it before it is needed."""
        while not await self._stopping.wait(KEEP_WARM_S):
            await self._warm_all(list(self._senders))

    def _cools_down(self) -> None:
        """The next sender that joins starts another."""
        self._warming = False

    async def _warm_all(self, senders: list[EntityLink]) -> None:
        for sender in senders:
            path = sender.entity_name
            if self.entity(path).failover.state is State.HEALTHY:
                await self.world.attempt("keeping a link warm", path, sender.keep_warm)

    async def _ping(self, entity: WatchedEntity) -> None:
        error = await self._pinger.ping(entity.path)
        self._books.pinged(entity.path, ok=error is None)
        with self._mutex:
            if self._closing or entity.failover.state is not State.DIVERTED:
                return  # marked healthy meanwhile
            if error is None:
                entered = entity.failover.ping_succeeded(self.world.now())
            else:
                entered = entity.failover.ping_failed()
        self._announce(
            Pinged(
                at=self.world.date(),
                namespace=self._namespace,
                entity=entity.path,
                succeeded=error is None,
                error=str(error or ""),
            )
        )
        self._entered(entity, entered, "", State.DIVERTED)
        if entered:
            mine = [each for each in list(self._senders) if self.entity(each.entity_name) is entity]
            await self._warm_all(mine)

    def stop(self) -> None:
        """No more pings, from now on."""
        with self._mutex:
            self._closing = True
            self._stopping.set()
            for entity in self._entities.values():
                if entity.troubled is not None:
                    entity.troubled.set()
