"""The syphon as a process beside the application: `twinbus syphon`, started and ended with it.

A process of its own, because Spark is one: the application that sends gets no Java, no extra
threads, and no share in its troubles. The connection strings go by the environment, where the
process list does not show them. Should the application be killed, the syphon's standard input ends,
and so does the syphon.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final

from twinbus.errors import PairingError

# Exit codes of the command: 2 means that it will never work as it is.
HOPELESS: Final = 2


class SyphonProcess:
    """At most one process at a time."""

    def __init__(
        self, primary: str, secondary: str, queues: Sequence[str], ledger: str | None = None
    ) -> None:
        self._environment = {"TWINBUS_PRIMARY": primary, "TWINBUS_SECONDARY": secondary}
        if ledger is not None:
            self._environment["TWINBUS_LEDGER"] = ledger
        self._queues = list(queues)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> int:
        """Answers its process id."""
        command = [sys.executable, "-m", "twinbus", "syphon", "--with-parent"]
        for queue in self._queues:
            command += ["--queue", queue]
        self._process = subprocess.Popen(  # noqa: S603  our own command
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **self._environment},
            start_new_session=True,  # so that all of it can be ended at once
        )
        return self._process.pid

    def is_started(self) -> bool:
        return self._process is not None

    def ended(self) -> int | None:
        """Its exit code, if it has ended."""
        return None if self._process is None else self._process.poll()

    def ask_to_end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def end(self) -> None:
        """Whatever is left of it, at once. What it had received comes back when its locks end."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def check_syphon(*factories: Any) -> None:
    """Raise PairingError if the syphon cannot run for these factories."""
    if find_spec("pyspark") is None:
        raise PairingError(
            "enable_syphon needs Spark beside the application: pip install 'twinbus[syphon]', or "
            "pair with enable_syphon=False and run `twinbus syphon` elsewhere"
        )
    for factory in factories:
        if factory._connection_string is None:
            raise PairingError(
                f"enable_syphon needs factories made from a connection string, and that of "
                f"{factory.fully_qualified_namespace} was not: pair with enable_syphon=False and "
                "run `twinbus syphon` with a connection string beside the application"
            )
