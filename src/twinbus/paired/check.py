"""Tries a pairing step by step and says what works. The only messages it sends are pings, which are
never delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from azure.servicebus.exceptions import MessagingEntityNotFoundError

from twinbus.errors import TwinbusError, first_line
from twinbus.paired.blocking.factory_blocking import MessagingFactory
from twinbus.paired.blocking.link_blocking import side_of
from twinbus.paired.blocking.manager_blocking import NamespaceManager
from twinbus.paired.blocking.pinger_blocking import Pinger
from twinbus.paired.blocking.world_blocking import World
from twinbus.paired.options import SendAvailabilityPairedNamespaceOptions

# No entity has this name; that the primary says so shows that it is there and knows us.
NOWHERE = "twinbus-check-no-such-entity"


@dataclass(frozen=True, slots=True)
class Tried:
    what: str
    ok: bool
    detail: str


def check(
    primary: MessagingFactory,
    secondary: MessagingFactory,
    manager: NamespaceManager,
    entities: list[str],
    backlog_queue_count: int,
) -> Iterator[Tried]:
    """Each step as it is done."""
    world = World()
    home, away = (Pinger(side_of(each, world), world) for each in (primary, secondary))
    yield _reachable(home, primary.fully_qualified_namespace)
    for entity in entities:
        yield _pinged(home, entity, f"'{entity}' on the primary takes messages")
    options = SendAvailabilityPairedNamespaceOptions(
        manager, secondary, backlog_queue_count, timedelta(minutes=1)
    )
    paired = _done("the namespaces can be paired", lambda: primary.pair_namespace(options))
    yield paired
    if paired.ok and primary.pairing is not None:
        made = options.backlog_queue_count
        yield Tried(
            "the backlog queues are there",
            made == backlog_queue_count,
            f"{made} of {backlog_queue_count}",
        )
        for queue in primary.pairing.diverter.rotation.queues:
            yield _pinged(away, queue, f"{queue} takes messages")
    world.stop()


def _reachable(pinger: Pinger, host: str) -> Tried:
    error = pinger.ping(NOWHERE)
    ok = error is None or isinstance(error, MessagingEntityNotFoundError)
    return Tried("the primary answers", ok, host if ok else first_line(error))


def _pinged(pinger: Pinger, path: str, what: str) -> Tried:
    error = pinger.ping(path)
    return Tried(what, error is None, "a ping got through" if error is None else first_line(error))


def _done(what: str, act: Callable[[], None]) -> Tried:
    try:
        act()
    except TwinbusError as error:
        return Tried(what, False, first_line(error))
    return Tried(what, True, "")
