"""The syphon as a process beside the application: `twinbus syphon`, started and ended with it.

A process of its own, because Spark is one: the application that sends gets no Java, no extra
threads, and no share in its troubles. The connection strings go by the environment, where the
process list does not show them. Should the application be killed, the syphon's standard input ends,
and so does the syphon. On its standard output it says one line: that it runs, or why it does not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final

from azure.servicebus import TransportType

from twinbus.client_errors import PairingError
from twinbus.processes import Child

# Exit codes of the command: 2 means that it will never work as it is.
HOPELESS: Final = 2
# What it says when it runs; anything else is the reason why it does not.
RUNS: Final = "the syphon runs"


class SyphonProcess(Child):
    """At most one process at a time."""

    def __init__(
        self, primary: str, secondary: str, queues: Sequence[str], ledger: str | None = None
    ) -> None:
        environment = {"TWINBUS_PRIMARY": primary, "TWINBUS_SECONDARY": secondary}
        if ledger is not None:
            environment["TWINBUS_LEDGER"] = ledger
        command = [sys.executable, "-m", "twinbus", "syphon", "--with-parent"]
        for queue in queues:
            command += ["--queue", queue]
        super().__init__(command, environment, with_parent=True)


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
