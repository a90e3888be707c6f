"""The syphon as a process beside the application: `twinbus syphon`, started and ended with it.

A process of its own, because Spark is one: the application that sends gets no Java, no extra
threads, and no share in its troubles. The connection strings go by the environment, where the
process list does not show them. Should the application be killed, the syphon's standard input ends,
and so does the syphon. On its standard output it says one line: that it runs, or why it does not.
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

from azure.servicebus import TransportType

from twinbus.client_errors import PairingError

# Exit codes of the command: 2 means that it will never work as it is.
HOPELESS: Final = 2
# What it says when it runs; anything else is the reason why it does not.
RUNS: Final = "the syphon runs"


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
        self._said = b""

    def start(self) -> int:
        """Answers its process id."""
        command = [sys.executable, "-m", "twinbus", "syphon", "--with-parent"]
        for queue in self._queues:
            command += ["--queue", queue]
        self._said = b""
        self._process = subprocess.Popen(  # noqa: S603  our own command
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **self._environment},
            start_new_session=True,  # so that all of it can be ended at once
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        return self._process.pid

    def is_started(self) -> bool:
        return self._process is not None

    def is_alive(self) -> bool:
        return self.is_started() and self.ended() is None

    def said(self) -> str:
        """What it has said so far: nothing, RUNS, or why it does not. Never waits."""
        process = self._process  # which somebody else may end meanwhile
        if process is not None and process.stdout is not None:
            with suppress(ValueError):  # it is closed
                while piece := process.stdout.read():
                    self._said += piece
        line, ends, _ = self._said.decode(errors="replace").partition("\n")
        return line if ends else ""

    def ended(self) -> int | None:
        """Its exit code, if it has ended."""
        process = self._process
        return None if process is None else process.poll()

    def ask_to_end(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()

    def end(self) -> None:
        """Whatever is left of it, at once. What it had received comes back when its locks end."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for end in (process.stdin, process.stdout):
            if end is not None:
                end.close()


# How a factory was told to reach its namespace: of this its connection string knows nothing.
_ROUTES: Final = (
    "custom_endpoint_address",
    "connection_verify",
    "ssl_context",
    "http_proxy",
)


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
        if route := _route(factory):
            raise PairingError(
                f"enable_syphon cannot take over the {route} of the factory of "
                f"{factory.fully_qualified_namespace}: the syphon has its connection string and no "
                "more. Pair with enable_syphon=False, and run `twinbus syphon` where the namespace "
                "is reached without"
            )


def _route(factory: Any) -> str:
    """What the factory's connections need beside the connection string."""
    config = factory._config
    for name in _ROUTES:
        if getattr(config, name, None) is not None:
            return name
    return "" if config.transport_type is TransportType.Amqp else "transport_type"
