"""A whole outage, rehearsed: nothing lost, proved.

    two namespaces, senders, receivers --> all is well
    the primary is killed (or whatever --faults says) --> sends divert, pings begin
    the primary is back --> sends go home, the Spark syphon moves the backlog home
    everything is received --> the verdict, the audit, the bill

Namespaces are processes; what is killed is killed. Everybody keeps a ledger, and the verdict comes
from two sides: from what senders and receivers saw, and from the audit of that ledger.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.management import EntityStatus

import twinbus
import twinbus.aio
from twinbus.auth.credentials import Secret
from twinbus.errors import TwinbusError
from twinbus.lab.faults import FaultClient, FaultError
from twinbus.lab.folder import work_folder
from twinbus.lab.namespaces import LocalNamespace
from twinbus.lab.rehearsal import Rehearsal, backlog_queues, later, left_in_backlog, pair, start
from twinbus.lab.traffic import Destination, Receivers, Senders, create, entities
from twinbus.lab.verdict import Judgement, judge
from twinbus.ledger import Ledger
from twinbus.paired.events import Diverted, MessagesDiverted, PairingEvent, Restored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.syphon.query import Syphon

# Faults that are not a broker's own.
KILL, FREEZE, DISABLE = "kill", "freeze", "disable"
# Shorter names for those that a newcomer would look for.
ALIASES: Final = {"throttle": "throttling", "gone": "namespace-gone"}
# An outage lasts as long as its share of the messages takes, and no longer than this.
OUTAGE_S: Final = 120.0
SETTLE_S: Final = 90.0


class DrillError(TwinbusError):
    """The drill could not be held; the text says what to change."""


@dataclass(frozen=True)
class DrillOptions:
    """What is rehearsed."""

    messages: int = 600
    senders: int = 4
    seed: int = 1
    faults: tuple[str, ...] = (KILL,)
    primary: str | None = None
    secondary: str | None = None
    primary_port: int = 0
    secondary_port: int = 0
    keep: Path | None = None
    pause_s: float = 0.02
    certificates: tuple[str, ...] = ()  # to trust: the primary's first, the secondary's last

    def __post_init__(self) -> None:
        if (self.primary is None) != (self.secondary is None):
            raise DrillError("give both --primary and --secondary, or neither for local ones")
        if self.messages < 8 or self.senders < 1:
            raise DrillError("a drill needs at least 8 messages and a sender")
        if self.primary is not None and set(self.faults) - {DISABLE}:
            raise DrillError(
                f"namespaces that are not ours cannot be killed or broken; --faults {DISABLE} "
                "makes the entities of the drill refuse messages for a while"
            )


@dataclass
class Drill(Rehearsal):
    """How much was diverted is counted as it happens."""

    options: DrillOptions
    diverted: int = field(default=0, init=False)
    syphon: Syphon | None = field(default=None, init=False)

    def states(self) -> dict[str, str]:
        factory = getattr(self, "_factory", None)
        found = {} if factory is None else factory.entity_states()
        return {path: state.name.lower() for path, state in sorted(found.items())}

    @property
    def moved(self) -> int:
        return 0 if self.syphon is None else self.syphon.progress.snapshot().moved

    # ------------------------------------------------------------ from beginning to end

    async def run(self) -> dict[str, Any]:
        async with AsyncExitStack() as stack:
            folder = work_folder(stack, self.options.keep, "drill")
            self._ledger = Ledger(folder / "ledger", flush_interval_s=2)
            stack.callback(self._ledger.close)
            spark = asyncio.create_task(asyncio.to_thread(_spark))
            stack.push_async_callback(_stop_spark, spark)
            await self._open(stack, folder)
            await self._rehearse(stack)
            self.timeline.say("Spark is ready" if spark.done() else "waiting for Spark")
            await self._bring_home(await spark)
            await self._receive_all()
            verdict = await self._judge()
            self._ledger.close()
            self._enter("making the audit and the bill")
            reports = await asyncio.to_thread(_reports, spark.result(), folder / "ledger")
            findings = await self._findings(self._ours)
        return self._result(verdict, findings, *reports)

    # ------------------------------------------------------------ what is rehearsed with

    async def _open(self, stack: AsyncExitStack, folder: Path) -> None:
        options = self.options
        self._local: LocalNamespace | None = None
        self._ours: tuple[LocalNamespace, ...] = ()
        if options.primary is not None and options.secondary is not None:
            self._primary, self._secondary = options.primary, options.secondary
            given = options.certificates or (None,)
            trusted = given[0], given[-1]
        else:
            trusted = await self._start_namespaces(stack, folder)
        self._entities = entities(_prefix(options))
        trust = {} if trusted[0] is None else {"connection_verify": trusted[0]}
        manager = stack.enter_context(
            twinbus.NamespaceManager.from_connection_string(self._primary, **trust)
        )
        for entity in self._entities:
            await asyncio.to_thread(create, manager, entity)
            if options.primary is not None:
                stack.callback(_remove, manager, entity)
        self._home_manager = manager
        await self._pair(stack, trusted[1])
        self._start_traffic(stack)

    async def _start_namespaces(
        self, stack: AsyncExitStack, folder: Path
    ) -> tuple[str | None, str | None]:
        made = (
            LocalNamespace("primary", folder / "primary", self.options.primary_port),
            LocalNamespace("secondary", folder / "secondary", self.options.secondary_port),
        )
        await start(stack, *made)
        self._local, self._ours = made[0], made
        self._primary, self._secondary = (each.connection_string for each in made)
        return made[0].certificate, made[1].certificate

    async def _pair(self, stack: AsyncExitStack, certificate: str | None) -> None:
        self._name = f"drill-{self.options.seed}"
        self._factory = await pair(
            stack,
            self._primary,
            self._secondary,
            self._name,
            certificate=certificate,
            give_up_s=10,
            ledger=self._ledger,
            hear=self._hear,
        )

    def _start_traffic(self, stack: AsyncExitStack) -> None:
        def client() -> Any:
            make = twinbus.aio.MessagingFactory.from_connection_string
            return make(self._primary, retry_total=0, ledger=self._ledger)

        receivers = Receivers(client, self._entities, self.history)
        receivers.start()
        stack.push_async_callback(receivers.stop)
        self._senders = Senders(
            self._factory, self._entities, self.history, self.options.seed, self.options.senders
        )

    def _hear(self, event: PairingEvent) -> None:
        if isinstance(event, MessagesDiverted):
            self.diverted += event.messages
        elif isinstance(event, Diverted | Restored):
            self.timeline.say(str(event))

    # ------------------------------------------------------------ the outage

    async def _rehearse(self, stack: AsyncExitStack) -> None:
        parts = len(self.options.faults)
        share = self.options.messages // (2 + 2 * parts)
        await self._phase("all is well", self.options.messages - share * (1 + 2 * parts))
        for fault in self.options.faults:
            end = await self._begin(fault)
            await self._phase(f"{fault}: the primary is out", share * 2)
            await end()
        await self._restored()
        await self._phase("the primary is back", share)

    async def _phase(self, name: str, messages: int) -> None:
        self._enter(name)
        await self._senders.send(messages, self.options.pause_s)

    async def _begin(self, fault: str) -> Callable[[], Any]:
        """Break it; answers how to mend it."""
        self.timeline.say(f"{fault} begins")
        if fault == DISABLE:
            await asyncio.to_thread(_set_status, self._home_manager, self._entities, False)
            return lambda: asyncio.to_thread(_set_status, self._home_manager, self._entities, True)
        assert self._local is not None
        if fault == KILL:
            await self._local.kill()
            return self._local.start
        if fault == FREEZE:
            self._local.freeze()
            return later(self._local.thaw)
        return await self._broken(self._local, ALIASES.get(fault, fault))

    async def _broken(self, namespace: LocalNamespace, kind: str) -> Callable[[], Any]:
        client = FaultClient(namespace.connection_string, namespace.admin)
        try:
            made = await asyncio.to_thread(client.start, kind, None, OUTAGE_S)
        except FaultError as error:
            known = f"{KILL}, {FREEZE}, {DISABLE}, and those of `twinbus fault kinds`"
            raise DrillError(f"--faults {kind}: {error} There are {known}.") from error
        return lambda: asyncio.to_thread(client.clear, made.id)

    async def _restored(self) -> None:
        """Wait until the pings have found every entity."""
        self._enter("waiting for the pings")
        await _until(lambda: not set(self.states().values()) - {"healthy"})

    # ------------------------------------------------------------ home

    async def _bring_home(self, spark: SparkSession) -> None:
        from twinbus.syphon.query import Syphon, SyphonOptions

        self._enter("the syphon moves the backlog home")
        options = SyphonOptions(
            Secret(self._primary),
            Secret(self._secondary),
            tuple(backlog_queues(self._name)),
            ledger=self._ledger.where,
        )
        self.syphon = Syphon(spark, options)
        empty = await asyncio.to_thread(self.syphon.drain)
        self.timeline.say("the backlog is empty" if empty else "the backlog is not empty")

    async def _receive_all(self) -> None:
        self._enter("waiting for the receivers")
        await _until(lambda: not self.history.missing())

    async def _judge(self) -> Judgement:
        waiting, dead = await asyncio.to_thread(left_in_backlog, self._secondary, self._name)
        self.timeline.say("the verdict")
        return judge(self.history.attempts, self.history.receipts, waiting, dead)

    def _result(
        self, verdict: Judgement, findings: list[str], audit: dict[str, Any], bill: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "seed": self.options.seed,
            **verdict.with_findings(findings),
            "diverted": self.diverted,
            "moved": self.moved,
            "refused": self.history.refused,
            "timeline": self.timeline.as_json(),
            "took_s": self.timeline.now,
            "audit": audit,
            "bill": bill,
        }


# ---------------------------------------------------------------- entities


def _prefix(options: DrillOptions) -> str:
    """On namespaces that are not ours, a name that cannot be anybody else's."""
    if options.primary is None:
        return ""
    return f"twinbus-drill-{options.seed}-{random.randrange(1 << 32):x}-"  # noqa: S311  a name


def _remove(manager: Any, entity: Destination) -> None:
    with suppress(ResourceNotFoundError):
        if entity.subscription is None:
            manager.delete_queue(entity.path)
        else:
            manager.delete_topic(entity.path)


def _set_status(manager: Any, entities: Sequence[Destination], active: bool) -> None:
    status = EntityStatus.ACTIVE if active else EntityStatus.SEND_DISABLED
    for entity in entities:
        if entity.subscription is None:
            queue = manager.get_queue(entity.path)
            queue.status = status
            manager.update_queue(queue)
        else:
            topic = manager.get_topic(entity.path)
            topic.status = status
            manager.update_topic(topic)


async def _until(condition: Callable[[], bool]) -> None:
    """Wait for it, but not for ever: if it does not come true, the verdict will say so."""
    ends = time.monotonic() + SETTLE_S
    while not condition():
        if time.monotonic() > ends:
            return
        await asyncio.sleep(0.1)


# ---------------------------------------------------------------- Spark


def _spark() -> SparkSession:
    from twinbus.spark.engine import spark_session
    from twinbus.syphon.query import SETTINGS

    return spark_session("twinbus drill", conf=SETTINGS, short_run=True)


async def _stop_spark(starting: asyncio.Task[SparkSession]) -> None:
    """Whatever became of the drill, no Java is left."""
    with suppress(Exception):
        spark = await starting
        await asyncio.to_thread(spark.stop)


def _reports(spark: SparkSession, ledger: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The audit and the bill of the drill's own ledger."""
    from twinbus.accounts.audit import as_dict as audit_dict
    from twinbus.accounts.audit import make_audit
    from twinbus.accounts.bill import as_dict as bill_dict
    from twinbus.accounts.bill import make_bill
    from twinbus.accounts.prices import read_tier
    from twinbus.accounts.report import to_json
    from twinbus.accounts.tables import find

    found = find(spark, str(ledger))
    # All receivers keep the ledger, so it is not enough that the primary took a message.
    audit = audit_dict(make_audit(spark, found, must_be_received=True))
    bill = make_bill(spark, found, read_tier("standard"))
    made = audit, bill_dict(bill, bill.lines.toArrow())
    plain: tuple[dict[str, Any], dict[str, Any]] = tuple(json.loads(to_json(each)) for each in made)
    return plain
