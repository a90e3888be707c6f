"""Trouble of every kind, under constant load, for as long as one likes; then the verdict.

    senders (processes) --> a bad network (proxies) --> two namespaces (processes)
    the syphon (a process: a Spark driver, Java, Python workers) moves the backlog home meanwhile
    receivers (tasks of this process) take everything at the primary

What goes wrong is a plan made from a seed (`plan.py`); what is killed is killed, and started again
as a supervisor would. At the end all trouble is over, the senders stop, and everything must be
home: every queue is empty, and nothing that was acknowledged is missing.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

import twinbus
from twinbus.errors import TwinbusError
from twinbus.lab.child_sender import read_journal
from twinbus.lab.faults import FaultClient, FaultError
from twinbus.lab.folder import work_folder
from twinbus.lab.namespaces import LocalNamespace
from twinbus.lab.plan import KINDS, PlannedTrouble, make_plan
from twinbus.lab.proxy import Proxy
from twinbus.lab.rehearsal import Rehearsal, backlog_queues, later, left_in_backlog, start
from twinbus.lab.traffic import Receivers, create, entities, ids_in
from twinbus.lab.verdict import Judgement, judge
from twinbus.processes import LOOK_S, Child

# How long it may take, when all trouble is over, until everything is home.
HOME_S: Final = 300.0
END_S: Final = 20.0
TRIES: Final = 3
AGAIN_S: Final = 0.5
SLOW: Final = {"latency_ms": 150.0, "bandwidth_kbps": 512.0}
MEND: Final = {"latency_ms": 0.0, "bandwidth_kbps": 0.0, "black_hole": False}

End = Callable[[], Awaitable[None]]


class SoakError(TwinbusError):
    """The soak could not be held; the text says what to change."""


@dataclass(frozen=True)
class SoakOptions:
    """How long, and what goes wrong."""

    minutes: float = 3.0
    seed: int = 1
    kinds: tuple[str, ...] = tuple(KINDS)
    senders: int = 4
    pause_s: float = 0.05
    keep: Path | None = None

    def __post_init__(self) -> None:
        if self.minutes <= 0 or not 1 <= self.senders <= 16:
            raise SoakError("a soak needs some minutes, and 1 to 16 senders")

    @property
    def seconds(self) -> float:
        return self.minutes * 60


class Kept:
    """A process that is started again when it ends, as a supervisor does it."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str], log: Path):
        self.name = name
        self.log = log
        self._child = Child(command, environment, log, says=False)
        self._stopping = False
        self._task = asyncio.create_task(self._keep())

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def restarts(self) -> int:
        return max(0, self._child.starts - 1)

    async def _keep(self) -> None:
        while not self._stopping:
            self._child.start()
            while self._child.is_alive():  # noqa: ASYNC110 - it tells nobody when it ends
                await asyncio.sleep(LOOK_S)
            if not self._stopping:
                await asyncio.sleep(AGAIN_S)

    def signal(self, number: signal.Signals) -> None:
        self._child.signal(number)

    async def stop(self) -> None:
        """Ask it to end; what is left of it, or of those before it, is killed after a while."""
        self._stopping = True
        await asyncio.to_thread(self._child.end, END_S)
        await self._task


@dataclass
class Soak(Rehearsal):
    """Trouble that is ``under_way``, by what it befalls."""

    options: SoakOptions
    under_way: dict[str, PlannedTrouble] = field(default_factory=dict, init=False)
    _turns: dict[str, asyncio.Lock] = field(
        default_factory=lambda: {target: asyncio.Lock() for target in KINDS.values()}
    )

    async def run(self) -> dict[str, Any]:
        plan = make_plan(self.options.seed, self.options.seconds, self.options.kinds)
        async with AsyncExitStack() as stack:
            self._folder = work_folder(stack, self.options.keep, "soak")
            await self._open(stack)
            self._enter("under load")
            await self._suffer(plan)
            self._enter("all trouble is over; the senders stop")
            await asyncio.gather(*(each.stop() for each in self._senders))
            self._enter("waiting until everything is home")
            left = await self._come_home()
            verdict = await self._judge()
            findings = await self._findings(self._namespaces.values())
        return self._result(plan, verdict, left, findings)

    # ------------------------------------------------------------ what is kept running

    async def _open(self, stack: AsyncExitStack) -> None:
        self._namespaces = {
            name: LocalNamespace(name, self._folder / name) for name in ("primary", "secondary")
        }
        await start(stack, *self._namespaces.values())
        self._proxies = {
            name: await stack.enter_async_context(Proxy("127.0.0.1", namespace.port))
            for name, namespace in self._namespaces.items()
        }
        await asyncio.to_thread(self._create)
        await self._start_senders(stack)
        receivers = Receivers(self._client, entities(), self.history)
        receivers.start()
        stack.push_async_callback(receivers.stop)
        await self._start_syphon(stack)

    def _create(self) -> None:
        namespace = self._namespaces["primary"]
        with twinbus.NamespaceManager.from_connection_string(
            namespace.connection_string, connection_verify=namespace.certificate
        ) as manager:
            for entity in entities():
                create(manager, entity)

    def _through(self, name: str) -> str:
        """A namespace's connection string that leads through its proxy."""
        text = self._namespaces[name].connection_string
        return re.sub(
            r"(localhost|127\.0\.0\.1):\d+", f"localhost:{self._proxies[name].port}", text
        )

    def _client(self) -> Any:
        from azure.servicebus.aio import ServiceBusClient as Client

        return Client.from_connection_string(self._through("primary"), retry_total=0)

    @property
    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "TWINBUS_PRIMARY": self._through("primary"),
            "TWINBUS_SECONDARY": self._through("secondary"),
            "TWINBUS_CERTIFICATE": self._namespaces["secondary"].certificate,
        }

    async def _start_senders(self, stack: AsyncExitStack) -> None:
        options = self.options
        self._senders = []
        for index in range(options.senders):
            command = (
                *(sys.executable, "-m", "twinbus.lab.child_sender", "--index", str(index)),
                *("--seed", str(options.seed), "--journal", str(self._journal(index))),
                *("--name", self._name, "--pause-s", str(options.pause_s)),
            )
            log = self._folder / f"sender-{index}.log"
            sender = Kept(f"sender {index}", command, self._environment, log)
            stack.push_async_callback(sender.stop)
            self._senders.append(sender)
        for index, sender in enumerate(self._senders):
            await _until_started(sender, partial(_read, self._journal(index)))

    @property
    def _name(self) -> str:
        return f"soak-{self.options.seed}"

    def _journal(self, index: int) -> Path:
        return self._folder / f"sender-{index}.journal"

    async def _start_syphon(self, stack: AsyncExitStack) -> None:
        queues = [part for queue in backlog_queues(self._name) for part in ("--queue", queue)]
        checkpoint = str(self._folder / "checkpoint")
        command = (sys.executable, "-m", "twinbus", "syphon", "--checkpoint", checkpoint, *queues)
        log = self._folder / "syphon.log"
        self._syphon = Kept("syphon", command, self._environment, log)
        stack.push_async_callback(self._syphon.stop)
        await _until_started(self._syphon, lambda: b"the syphon has started" in _read(log))

    # ------------------------------------------------------------ trouble

    async def _suffer(self, plan: Sequence[PlannedTrouble]) -> None:
        began = time.monotonic()
        async with asyncio.TaskGroup() as troubles:
            for trouble in plan:
                await asyncio.sleep(max(0.0, began + trouble.at_s - time.monotonic()))
                troubles.create_task(self._befall(trouble))
            await asyncio.sleep(max(0.0, began + self.options.seconds - time.monotonic()))

    async def _befall(self, trouble: PlannedTrouble) -> None:
        # What was killed may be longer in coming back than was planned.
        async with self._turns[trouble.target]:
            self.timeline.say(str(trouble))
            self.under_way[trouble.target] = trouble
            end = await self._begin(trouble)
            await asyncio.sleep(trouble.lasts_s)
            await end()
            del self.under_way[trouble.target]

    async def _begin(self, trouble: PlannedTrouble) -> End:
        """Break it; answers how to mend it."""
        kind, target = trouble.kind, trouble.target
        if target == "network":
            return self._spoil_network(trouble)
        if target == "sender":
            sender = self._senders[int(trouble.choice * len(self._senders))]
            return _signalled(sender, "kill" if kind.startswith("kill") else "freeze")
        if target == "syphon":
            return self._strike_syphon(trouble)
        namespace = self._namespaces[target]
        if kind.startswith("kill"):
            await namespace.kill()
            return namespace.start
        if kind.startswith("freeze"):
            namespace.freeze()
            return later(namespace.thaw)
        if kind.startswith("disk-full"):
            return _fill_disk(namespace.pid)
        return await self._break(namespace, trouble)

    async def _break(self, namespace: LocalNamespace, trouble: PlannedTrouble) -> End:
        """A fault that the broker has of itself, and that ends by itself."""
        kind = "throttling" if trouble.kind.startswith("throttle") else trouble.kind
        client = FaultClient(namespace.connection_string, namespace.admin)
        try:
            await asyncio.to_thread(client.start, kind, None, trouble.lasts_s)
        except FaultError as error:
            raise SoakError(f"{trouble}: {error}") from error
        return _nothing

    def _spoil_network(self, trouble: PlannedTrouble) -> End:
        proxy = self._proxies["primary" if trouble.choice < 0.7 else "secondary"]
        if trouble.kind == "slow-network":
            proxy.change(**SLOW)
        elif trouble.kind == "black-hole":
            proxy.change(black_hole=True)
        elif trouble.kind == "half-open":
            proxy.half_open()
        else:
            proxy.cut_after(1 + int(trouble.choice * 500))
        return later(lambda: proxy.change(**MEND))

    def _strike_syphon(self, trouble: PlannedTrouble) -> End:
        if trouble.kind == "kill-driver":
            self._syphon.signal(signal.SIGKILL)
            return _nothing
        workers = _python_workers(self._syphon.pid)
        if workers:
            workers[int(trouble.choice * len(workers))].kill()
        else:
            self.timeline.say("there is no Python worker to kill")
        return _nothing

    # ------------------------------------------------------------ the end

    async def _come_home(self) -> dict[str, int]:
        """Wait until every queue is empty, and answer what is not."""
        ends = time.monotonic() + HOME_S
        while True:
            left = await asyncio.to_thread(self._left)
            if not left or time.monotonic() > ends:
                return left
            await asyncio.sleep(0.5)

    def _left(self) -> dict[str, int]:
        """Messages by entity, dead letters among them, where there are any."""
        found: dict[str, int] = {}
        for name in self._namespaces:
            found |= self._left_in(name)
        return {path: count for path, count in found.items() if count}

    def _left_in(self, name: str) -> dict[str, int]:
        namespace = self._namespaces[name]
        with ServiceBusAdministrationClient.from_connection_string(
            namespace.connection_string, connection_verify=namespace.certificate
        ) as manager:
            try:
                queues = list(manager.list_queues_runtime_properties())
                found = {each.name: each.total_message_count or 0 for each in queues}
                for entity in entities() if name == "primary" else ():
                    if entity.subscription is not None:
                        of = manager.get_subscription_runtime_properties(
                            entity.path, entity.subscription
                        )
                        found[entity.path] = of.total_message_count or 0
            except AzureError as error:
                return {f"{name} ({type(error).__name__})": 1}
        return {f"{name} {path}": count for path, count in found.items()}

    async def _judge(self) -> Judgement:
        attempts = [
            attempt
            for index in range(self.options.senders)
            for attempt in read_journal(self._journal(index))
        ]
        waiting, dead = await asyncio.to_thread(self._resting)
        return judge(attempts, self.history.receipts, waiting, dead)

    def _resting(self) -> tuple[list[str], list[str]]:
        """Ids of what is still in a queue, and of what was dead-lettered in the backlog."""
        try:
            secondary = self._namespaces["secondary"].connection_string
            waiting, dead = left_in_backlog(secondary, self._name)
            with self._home() as client:
                for entity in entities():
                    if not entity.sessions:  # a session is held by who receives from it
                        waiting += ids_in(client, entity)
        except ServiceBusError as error:
            raise SoakError(f"what is left could not be looked at: {error}") from error
        return waiting, dead

    def _home(self) -> ServiceBusClient:
        primary = self._namespaces["primary"].connection_string
        return ServiceBusClient.from_connection_string(primary)

    def _result(
        self,
        plan: Sequence[PlannedTrouble],
        verdict: Judgement,
        left: dict[str, int],
        findings: list[str],
    ) -> dict[str, Any]:
        return {
            "seed": self.options.seed,
            "minutes": self.options.minutes,
            **verdict.with_findings(findings),
            "empty": not left,
            "left": left,
            "troubles": len(plan),
            "restarts": {each.name: each.restarts for each in (*self._senders, self._syphon)},
            "timeline": self.timeline.as_json(),
            "took_s": self.timeline.now,
        }


# ---------------------------------------------------------------- processes


async def _until_started(kept: Kept, has_started: Callable[[], object]) -> None:
    while not has_started():
        if kept.restarts >= TRIES:
            said = _read(kept.log).decode(errors="replace").strip().splitlines() or ["no word"]
            raise SoakError(f"the {kept.name} does not start: {said[-1]}")
        await asyncio.sleep(0.2)


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _signalled(kept: Kept, how: str) -> End:
    if how == "kill":
        kept.signal(signal.SIGKILL)
        return _nothing
    frozen = kept.pid
    kept.signal(signal.SIGSTOP)

    def thaw() -> None:
        if frozen is not None and frozen == kept.pid:
            os.kill(frozen, signal.SIGCONT)

    return later(thaw)


def _fill_disk(pid: int) -> End:
    """The system refuses each write to a file of this process, as it does when a disk is full."""
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))
    return later(lambda: resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most)))


def _python_workers(driver: int | None) -> list[psutil.Process]:
    """Of Spark: the processes that its daemon has forked."""
    if driver is None:
        return []
    found = []
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(driver).children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                parent = process.parent()
                if parent is not None and _is_daemon(process) and _is_daemon(parent):
                    found.append(process)
    return sorted(found, key=lambda process: process.pid)


def _is_daemon(process: psutil.Process) -> bool:
    return "twinbus.spark.daemon" in process.cmdline()


async def _nothing() -> None:
    """It ends by itself."""
