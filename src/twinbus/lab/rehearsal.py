"""What a drill and a soak have in common: two namespaces, who was seen to do what, and when.

Either is run once, and may be looked at meanwhile.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import twinbus
import twinbus.aio
from twinbus import SendAvailabilityPairedNamespaceOptions
from twinbus.auth.credentials import Secret
from twinbus.envelope import queue_path
from twinbus.lab.namespaces import LocalNamespace
from twinbus.lab.timeline import Timeline
from twinbus.lab.traffic import Observed
from twinbus.ledger import Ledger
from twinbus.operate.waiting import waiting_ids

BACKLOG_QUEUES: Final = 4


@dataclass
class Rehearsal(ABC):
    """Its ``phase`` is what goes on now, for a person to read."""

    phase: str = field(default="starting two namespaces", init=False)
    history: Observed = field(default_factory=Observed, init=False)
    timeline: Timeline = field(default_factory=Timeline, init=False)

    @abstractmethod
    async def run(self) -> dict[str, Any]:
        """From beginning to end; answers what `--json` prints."""

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.timeline.say(phase)

    async def _findings(self, namespaces: Iterable[LocalNamespace]) -> list[str]:
        self._enter("checking the namespaces' files")
        return [line for each in namespaces for line in await each.findings()]


async def start(stack: AsyncExitStack, *namespaces: LocalNamespace) -> None:
    """All at once; none outlives the rehearsal."""
    for namespace in namespaces:
        stack.push_async_callback(namespace.kill)
    await asyncio.gather(*(namespace.start() for namespace in namespaces))


def later(act: Callable[[], Any]) -> Callable[[], Awaitable[None]]:
    """For who awaits what ends a trouble."""

    async def acted() -> None:
        act()

    return acted


async def pair(
    stack: AsyncExitStack,
    primary: str,
    secondary: str,
    name: str,
    *,
    certificate: str | None,
    give_up_s: float,
    ledger: Ledger | None = None,
    hear: Callable[[Any], None] = lambda event: None,
) -> twinbus.aio.MessagingFactory:
    """A factory that diverts at the first failure and asks every second whether it may return."""
    make = twinbus.aio.MessagingFactory.from_connection_string
    trust = {} if certificate is None else {"connection_verify": certificate}
    factory = make(primary, retry_total=0, ledger=ledger)
    backup = make(secondary, retry_total=1, ledger=ledger)
    manager = twinbus.aio.NamespaceManager.from_connection_string(secondary, **trust)
    for each in (manager, backup, factory):
        stack.push_async_callback(each.close)
    factory.add_listener(hear)
    await factory.pair_namespace(
        SendAvailabilityPairedNamespaceOptions(
            manager,
            backup,
            backlog_queue_count=BACKLOG_QUEUES,
            failover_interval=timedelta(0),
            ping_primary_interval=timedelta(seconds=1),
            operation_timeout=timedelta(seconds=give_up_s),
            primary_name=name,
        )
    )
    return factory


def backlog_queues(name: str) -> list[str]:
    return [queue_path(name, index) for index in range(BACKLOG_QUEUES)]


def left_in_backlog(secondary: str, name: str) -> tuple[list[str], list[str]]:
    """Ids of what waits in the backlog, and of what was set aside there."""
    waiting: list[str] = []
    dead: list[str] = []
    for _, message_id, is_dead in waiting_ids(Secret(secondary), backlog_queues(name)):
        (dead if is_dead else waiting).append(message_id)
    return waiting, dead
