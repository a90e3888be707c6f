"""Processes: started, waited for until they are ready, heard, started again, ended.

A `Child` is one that is looked after. Others outlive the command which started them; a `Record` is
how they are found again. A pid alone names nobody: it is given to a stranger as soon as its process
has ended. So a record has the moment at which the process began besides, as the machine tells it.
Where that is another, or cannot be told, the process is not ours and is left alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

# A broker is ready in about a second; a machine under load may need many.
START_S: Final = 30.0
# What a broker that was asked to end may take to finish what it writes.
END_S: Final = 10.0
LOOK_S: Final = 0.02
# How much of a log is read for the last line of it.
LAST_WORDS: Final = 65_536


class StartError(Exception):
    """It ended, or said nothing; the text is the last that it said."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept of a process; ``facts`` are its starter's."""

    pid: int
    began: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_running(self) -> bool:
        return self.began != "" and began(self.pid) == self.began


def began(pid: int) -> str:
    """When a process began, in the machine's words; empty if it has ended."""
    try:
        # The name is in brackets and may itself have brackets and spaces in it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, ValueError):
        return "" if Path("/proc/self/stat").exists() else _began_elsewhere(pid)
    # One that was killed and that nobody has asked about stays in the table, as a zombie.
    return "" if fields[0] in "ZX" else f"{boot}+{fields[19]}"


def _began_elsewhere(pid: int) -> str:
    """On a machine without /proc."""
    asked = ("ps", "-o", "stat=,lstart=", "-p", str(pid))
    done = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603  a number
    state, _, moment = done.stdout.strip().partition(" ")
    return "" if done.returncode or state.startswith("Z") else moment.strip()


# ---------------------------------------------------------------- what is kept


def read(path: Path) -> Record | None:
    """None if there is none, or none that can be read."""
    try:
        found = json.loads(path.read_text())
        return Record(int(found["pid"]), str(found["began"]), dict(found["facts"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def keep(path: Path, record: Record) -> None:
    write_private(path, json.dumps(asdict(record), indent=2) + "\n")


def write_private(path: Path, text: str) -> None:
    """For its owner's eyes, and whole or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as to:
            to.write(text)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


# ---------------------------------------------------------------- begin and end


class Child:
    """A command, and at most one process of it at a time, which may be started again.

    What it says on its standard output is asked for a line at a time, without waiting, so that any
    kind of loop can look after it. What it says besides goes to its log, if it has one. Each
    process has a session of its own: neither Ctrl-C nor a terminal that closes ends it, and what it
    has started in turn ends with it.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path | None = None,
        *,
        says: bool = True,
        with_parent: bool = False,
    ) -> None:
        """Without ``says`` its output is for the log too. ``with_parent``: its input is open for as
        long as we live."""
        self.starts = 0
        self._command = list(command)
        self._environment = dict(environment)
        self._log = log
        self._says = says
        self._with_parent = with_parent
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: list[int] = []
        self._said = b""
        self._log_from = 0
        self._began = 0.0

    def start(self) -> int:
        """Answers its process id."""
        if self._process is not None:
            _hang_up(self._process)
        self._said = b""
        with ExitStack() as opened:
            log = None
            if self._log is not None:
                log = opened.enter_context(self._log.open("ab"))
                self._log_from = log.tell()
            self._process = subprocess.Popen(  # noqa: S603  our own program
                self._command,
                stdin=subprocess.PIPE if self._with_parent else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self._says else log,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )
        if self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)
        self._groups.append(self._process.pid)
        self._began = time.monotonic()
        self.starts += 1
        return self._process.pid

    def is_started(self) -> bool:
        return self._process is not None

    def is_alive(self) -> bool:
        return self.is_started() and self.ended() is None

    @property
    def pid(self) -> int | None:
        """None if there is no process now."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def said(self) -> str:
        """Its first line, as soon as that is whole. Never waits."""
        process = self._process  # which somebody else may end meanwhile
        if process is not None and process.stdout is not None:
            with suppress(ValueError):  # it is closed
                while piece := process.stdout.read():
                    self._said += piece
        line, ends, _ = self._said.decode(errors="replace").partition("\n")
        return line.strip() if ends else ""

    def ready(self, within_s: float = START_S) -> str:
        """As ``said``. Raises StartError, with nothing left of it, where it never will be ready."""
        has_ended = self.ended() is not None  # asked first: what it said was before its end
        line = self.said()
        if line:
            return line
        if has_ended:
            last_words = self._last_words()
            self.end()
            raise StartError(last_words)
        if time.monotonic() - self._began > within_s:
            self.end()
            raise StartError(f"it was not ready after {within_s:.0f} s; its log is {self._log}")
        return ""

    def first_line(self) -> str:
        """Waits until it is ready, and listens to it no longer. Raises StartError."""
        while not (line := self.ready()):
            time.sleep(LOOK_S)
        if self._process is not None:
            _hang_up(self._process)
        return line

    def ended(self) -> int | None:
        """Its exit code, if it has ended."""
        process = self._process
        return None if process is None else process.poll()

    def signal(self, number: signal.Signals) -> None:
        process = self._process
        if process is not None:
            process.send_signal(number)

    def ask_to_end(self) -> None:
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # it may be frozen

    def end(self, within_s: float = 0.0) -> None:
        """Whatever is left of it and of those before it, at once: or after it was asked, and had so
        long to end by itself."""
        if within_s:
            self.ask_to_end()
            deadline = time.monotonic() + within_s
            while self.is_alive() and time.monotonic() < deadline:
                time.sleep(LOOK_S)
        process, self._process = self._process, None
        groups, self._groups = self._groups, []
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        if process is not None:
            process.wait()
            _hang_up(process)

    def record(self, **facts: Any) -> Record:
        assert self._process is not None
        return Record(self._process.pid, began(self._process.pid), facts)

    def _last_words(self) -> str:
        if self._log is None:
            return "it said nothing"
        with self._log.open("rb") as file:
            file.seek(max(self._log_from, file.seek(0, os.SEEK_END) - LAST_WORDS))
            said = file.read().decode(errors="replace").strip().splitlines()
        return said[-1].removeprefix("twinbus: ") if said else "it said nothing"


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def end(records: Sequence[Record]) -> None:
    """Ask all of them to end, wait, and kill those that do not."""
    for record in records:
        _signal(record, signal.SIGTERM)
    deadline = time.monotonic() + END_S
    while any(record.is_running for record in records) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    for record in records:
        _signal(record, signal.SIGKILL)


def _signal(record: Record, number: signal.Signals) -> None:
    if record.is_running:
        with suppress(ProcessLookupError):
            os.kill(record.pid, number)
