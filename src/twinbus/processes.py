"""Processes that outlive the command which started them, and how they are found again.

A pid alone names nobody: it is given to a stranger as soon as its process has ended. So a record
has the moment at which the process began besides, as the machine tells it. Where that is another,
or cannot be told, the process is not ours and is left alone.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

# A broker is ready in about a second; a machine under load may need many.
START_S: Final = 30.0
# What a broker that was asked to end may take to finish what it writes.
END_S: Final = 10.0


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


class Starting:
    """A process that has been started and has not yet said that it is ready."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._said = errors.tell()
            # A session of its own: neither Ctrl-C nor a terminal that closes ends it.
            self._process = subprocess.Popen(  # noqa: S603  our own program
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def first_line(self, within_s: float = START_S) -> str:
        """What it says when it is ready. Raises StartError."""
        out = self._process.stdout
        assert out is not None
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            line = out.readline().decode().strip() if selector.select(within_s) else None
        if line is None:
            self.kill()
            raise StartError(f"it was not ready after {within_s:.0f} s; its log is {self._log}")
        if not line:
            self._process.wait()
            raise StartError(self._last_words())
        out.close()
        return line

    def record(self, **facts: Any) -> Record:
        return Record(self._process.pid, began(self._process.pid), facts)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _last_words(self) -> str:
        with self._log.open("rb") as file:
            file.seek(self._said)
            said = file.read().decode(errors="replace").strip().splitlines()
        return said[-1].removeprefix("twinbus: ") if said else "it said nothing"


def end(records: Sequence[Record]) -> None:
    """Ask all of them to end, wait, and kill those that do not."""
    for record in records:
        _signal(record, signal.SIGTERM)
    deadline = time.monotonic() + END_S
    while any(record.is_running for record in records) and time.monotonic() < deadline:
        time.sleep(0.02)
    for record in records:
        _signal(record, signal.SIGKILL)


def _signal(record: Record, number: signal.Signals) -> None:
    if record.is_running:
        with suppress(ProcessLookupError):
            os.kill(record.pid, number)
