"""Brokers that start at once: what they need is loaded here, and each is a process forked off.

    python -m twinbus.lab.model.launcher FOLDER [MODULE:FUNCTION]

A line on the standard input starts one; its first line on the standard output is where it listens.
The function, of a test, plants something in it. Whoever has started this kills the broker, and all
is over when the input ends.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import uvloop

from twinbus.broker.config import NamespaceConfig
from twinbus.broker.server import Broker, BrokerConfig, run
from twinbus.lab.model.real import KEY


def serve(folder: Path) -> None:
    """As `twinbus broker` does."""

    def tell(broker: Broker) -> None:
        where = {"port": broker.hosts[0].port.address.port, "admin": broker.admin_ports[0]}
        sys.stdout.write(json.dumps({"pid": os.getpid(), **where}) + "\n")
        sys.stdout.flush()

    namespaces = [NamespaceConfig("home", port=0, admin_port=0)]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(BrokerConfig(namespaces, folder, key=KEY), tell))


def main(folder: str, planted: str = "") -> None:
    logging.basicConfig(level=logging.WARNING)
    if planted:
        module, _, function = planted.partition(":")
        getattr(importlib.import_module(module), function)()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    pid = 0
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            serve(Path(folder))
            return
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
