"""A broker process to measure, in a folder of its own that is removed afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinbus.broker.server import Broker

ROOT = Path(__file__).resolve().parent.parent
KEY = "YmVuY2g="


def announce(broker: Broker) -> None:
    """Print what `Measured` reads: the connection string and the admin port."""
    ((name, text),) = broker.connection_strings().items()
    print(f"{name}: {text}")
    print(f"{name}: health at http://localhost:{broker.admin_ports[0]}/health", file=sys.stderr)
    sys.stdout.flush()


class Measured:
    """`with Measured(config=...) as broker`: a broker process, its memory and its CPU time."""

    def __init__(self, config: str | None = None, *, stored: bool = True) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="twinbus-bench-")
        folder = Path(self._folder.name)
        self._environment = {**os.environ, "TWINBUS_KEY": KEY, "PYTHONPATH": str(ROOT)}
        if stored:
            (folder / "broker.toml").write_text(config or _one_queue())
            self._command = [str(Path(sys.executable).with_name("twinbus")), "broker"]
            self._command += ["--config", str(folder / "broker.toml"), "--data", str(folder)]
        else:
            self._command = [sys.executable, "-m", "bench.unstored", str(folder), KEY, "q"]

    def __enter__(self) -> Measured:
        started = time.perf_counter()
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the broker did not start: {self._process.stderr.read()}")
        self.connection_string = line.split(": ", 1)[1].strip()
        self.admin = self._process.stderr.readline().split(" at ")[1].strip().rsplit("/", 1)[0]
        with urllib.request.urlopen(f"{self.admin}/health", timeout=10):
            self.ready_s = time.perf_counter() - started
        return self

    def __exit__(self, *error: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=60)
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        return self._process.pid

    def address(self, queue: str) -> str:
        return queue

    def rss_mb(self) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the kernel tells no VmRSS")

    def cpu_s(self) -> float:
        return cpu_s(self.pid)


def cpu_s(pid: int) -> float:
    """CPU time of a process's threads so far, of those that are still there. By the scheduler's
    clock: the one of /proc/PID/stat ticks a hundred times a second."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # it has just ended
            total += int(path.read_text().split()[0])
    return total / 1e9


def _one_queue() -> str:
    return namespace_toml('[[namespace.queue]]\nname = "q"\nmax_size_mb = 81920\n')


def namespace_toml(entities: str) -> str:
    return f'[[namespace]]\nname = "bench"\nport = 0\nadmin_port = 0\n{entities}'
