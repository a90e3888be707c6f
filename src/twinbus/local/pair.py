"""Two namespaces and a dashboard on this machine: up, down, and how they are.

    .twinbus/connections.env      how to reach them; there while they are up
    .twinbus/primary, secondary   their messages, which stay
    .twinbus/ledger               what those who keep it there have done
    .twinbus/run                  who runs, logs, and a lock: one command at a time

Each part is a process of its own, so that one can be killed and the others live. Whatever cannot be
started is said, and what was started for it is ended again.
"""

from __future__ import annotations

import fcntl
import secrets
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from twinbus import processes
from twinbus.errors import TwinbusError
from twinbus.local import connections
from twinbus.local.connections import Connections
from twinbus.processes import Child, StartError

PRIMARY, SECONDARY, DASHBOARD = PARTS = ("primary", "secondary", "dashboard")
NAMESPACES: Final = (PRIMARY, SECONDARY)
PORT: Final = 5672
ADMIN_PORT: Final = 5300
DASHBOARD_PORT: Final = 5380
_ANY_PORTS: Final = "`twinbus up --port 0 --admin-port 0 --dashboard-port 0` takes any that is free"


class PairError(TwinbusError):
    """It cannot be done; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """How a pair is to be. A port of 0 is any that is free; None the last one, or the usual."""

    port: int | None = None
    admin_port: int | None = None
    dashboard_port: int | None = None
    queues: tuple[str, ...] = ()
    faults: bool = False
    dashboard: bool = True


@dataclass(frozen=True, slots=True)
class Part:
    """One of the processes. ``known`` tells one that died from one that was never started."""

    name: str
    running: bool
    known: bool
    pid: int | None
    facts: dict[str, Any]

    @property
    def state(self) -> str:
        return "up" if self.running else "ended unasked" if self.known else "down"


class LocalPair:
    """That of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run = folder / "run"

    # -- looking

    def parts(self) -> list[Part]:
        found = []
        for name in PARTS:
            record = processes.read(self._path(name))
            running = record is not None and record.is_running
            facts = {} if record is None else record.facts
            pid = record.pid if record is not None and running else None
            found.append(Part(name, running, record is not None, pid, facts))
        return found

    def connections(self) -> Connections:
        return connections.read(self.folder)

    def log(self, name: str) -> Path:
        return self._run / f"{name}.log"

    def _path(self, name: str) -> Path:
        return self._run / f"{name}.json"

    # -- up

    def up(self, wishes: Wishes) -> list[str]:
        """Start what does not run; answers the names of what was started. Raises PairError."""
        with self._alone():
            before = {part.name: part for part in self.parts()}
            started: dict[str, Child] = {}
            try:
                self._start_namespaces(wishes, before, started)
                if wishes.dashboard and not before[DASHBOARD].running:
                    self._start_dashboard(wishes, before[DASHBOARD], started)
            except BaseException:
                self._undo(started, before)
                raise
            return list(started)

    def _start_namespaces(
        self, wishes: Wishes, before: dict[str, Part], started: dict[str, Child]
    ) -> None:
        facts: dict[str, dict[str, Any]] = {}
        taken = {port for part in before.values() if part.running for port in _ports(part.facts)}
        for index, name in enumerate(NAMESPACES):
            if before[name].running:
                continue
            facts[name] = _choose(wishes, index, before[name], taken)
            started[name] = self._start_broker(name, facts[name])
        for name, made in facts.items():
            line = self._ready(name, started[name])
            made["connection_string"] = line.partition(": ")[2]
            processes.keep(self._path(name), started[name].record(**made))
        self._connect()

    def _start_broker(self, name: str, facts: dict[str, Any]) -> Child:
        command = [sys.executable, "-m", "twinbus", "broker", "--name", name]
        command += ["--port", str(facts["port"]), "--admin-port", str(facts["admin_port"])]
        command += ["--data", str(self.folder)]
        command += [part for queue in facts["queues"] for part in ("--queue", queue)]
        command += ["--faults"] if facts["faults"] else []
        child = Child(command, {}, self.log(name))
        child.start()
        return child

    def _connect(self) -> None:
        """Say how they are reached. The facts have the keys, so their files are private too."""
        facts = {part.name: part.facts for part in self.parts()}
        first, second = (facts[name] for name in NAMESPACES)
        connections.write(
            self.folder,
            Connections(
                primary=first["connection_string"],
                secondary=second["connection_string"],
                primary_admin=f"http://localhost:{first['admin_port']}",
                secondary_admin=f"http://localhost:{second['admin_port']}",
                certificate=str((self.folder / "certificate.pem").absolute()),
                ledger=str((self.folder / "ledger").absolute()),
            ),
        )

    def _start_dashboard(self, wishes: Wishes, before: Part, started: dict[str, Child]) -> None:
        taken: set[int] = set()
        port = _port(wishes.dashboard_port, 0, before.facts.get("port"), DASHBOARD_PORT, taken)
        token = secrets.token_urlsafe(24)
        command = [sys.executable, "-m", "twinbus", "dashboard", "--port", str(port)]
        # By the environment, which no process list shows.
        environment = {**self.connections().environment(), "TWINBUS_DASHBOARD_TOKEN": token}
        started[DASHBOARD] = Child(command, environment, self.log(DASHBOARD))
        started[DASHBOARD].start()
        url = self._ready(DASHBOARD, started[DASHBOARD]).partition(": ")[2]
        record = started[DASHBOARD].record(port=port, url=url)
        processes.keep(self._path(DASHBOARD), record)

    def _ready(self, name: str, child: Child) -> str:
        try:
            return child.first_line()
        except StartError as error:
            hint = f"; {_ANY_PORTS}" if "cannot listen" in str(error) else ""
            raise PairError(f"the {name} did not start: {error}{hint}") from error

    def _undo(self, started: dict[str, Child], before: dict[str, Part]) -> None:
        """As if nothing had been asked, but for what had died before: that is still said."""
        for name, child in started.items():
            child.end()
            if not before[name].known:
                self._path(name).unlink(missing_ok=True)
        if not any(part.running for part in before.values()):
            (self.folder / connections.FILE).unlink(missing_ok=True)

    # -- down

    def down(self) -> list[str]:
        """End what runs; answers its names. What was sent stays."""
        with self._alone():
            running = {part.name: part for part in self.parts() if part.running}
            records = [processes.read(self._path(name)) for name in running]
            processes.end([record for record in records if record is not None])
            for name in PARTS:
                self._path(name).unlink(missing_ok=True)
            (self.folder / connections.FILE).unlink(missing_ok=True)
            return list(running)

    # -- one at a time

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            self._run.mkdir(parents=True, exist_ok=True)
            # Keys are in here, and messages: nothing of it belongs into somebody's repository.
            (self.folder / ".gitignore").write_text("*\n")
            lock = (self._run / "lock").open("w")
        except OSError as error:
            raise PairError(
                f"the folder {self.folder} cannot be used: {error.strerror}; name another with "
                f"--folder or {connections.FOLDER_VARIABLE}"
            ) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _choose(wishes: Wishes, index: int, before: Part, taken: set[int]) -> dict[str, Any]:
    """What a namespace is started with. One that died comes back where its clients look for it."""
    facts: dict[str, Any] = {
        "queues": list(wishes.queues) if index == 0 else [],
        "faults": wishes.faults or bool(before.facts.get("faults")),
    }
    for name, wish, usual in (
        ("port", wishes.port, PORT),
        ("admin_port", wishes.admin_port, ADMIN_PORT),
    ):
        facts[name] = _port(wish, index, before.facts.get(name), usual, taken)
        taken.add(facts[name])
    return facts


def _port(wish: int | None, index: int, last: int | None, usual: int, taken: set[int]) -> int:
    if wish is None:
        return last or usual + index
    return wish + index if wish else _free_port(taken)


def _ports(facts: dict[str, Any]) -> Sequence[int]:
    return [facts[name] for name in ("port", "admin_port") if name in facts]


def _free_port(taken: set[int]) -> int:
    while True:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port: int = server.getsockname()[1]
        if port not in taken:
            return port
