"""A namespace of the lab: a `twinbus broker` process that is killed and comes back as it was."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import ssl
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from twinbus.errors import TwinbusError
from twinbus.processes import LOOK_S, Child, StartError

START_S: Final = 60.0


class NamespaceError(TwinbusError):
    """The broker did not start; the text has what it said."""


class LocalNamespace:
    """One broker process, on the same port and with the same data whenever it is started."""

    def __init__(self, name: str, folder: Path, port: int = 0) -> None:
        self.name = name
        self.folder = folder
        self.port = port
        self.connection_string = ""
        self._child: Child | None = None
        # Made here and given by the environment, so that no process list shows it.
        self._key = secrets.token_urlsafe(24)

    @property
    def certificate(self) -> str:
        return str(self.folder / "certificate.pem")

    @property
    def admin(self) -> str:
        """Where it is managed while its port is closed."""
        lines = (self.folder / "log").read_text().splitlines()
        found = [line for line in lines if "health at" in line]
        return found[-1].split(" at ", 1)[1].removesuffix("/health")

    async def start(self) -> None:
        """Returns when it takes connections."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "twinbus", "broker", "--name", self.name, "--faults"]
        command += ["--port", str(self.port), "--admin-port", "0", "--data", str(self.folder)]
        self._child = Child(command, {"TWINBUS_KEY": self._key}, self.folder / "log")
        self._child.start()
        try:
            while not (line := self._child.ready(START_S)):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(LOOK_S)
        except StartError as error:
            raise NamespaceError(f"the {self.name} namespace did not start: {error}") from error
        self.connection_string = line.split(": ", 1)[1].strip()
        self.port = int(self.connection_string.split(";")[0].rsplit(":", 1)[1].strip("/"))
        await self._show_certificate()

    async def _show_certificate(self) -> None:
        """The broker makes its certificate when somebody first asks for TLS."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        writer.close()
        with suppress(OSError, ssl.SSLError):
            await writer.wait_closed()

    @property
    def pid(self) -> int:
        assert self._child is not None
        assert self._child.pid is not None
        return self._child.pid

    async def kill(self) -> None:
        """kill -9."""
        if self._child is not None:
            await asyncio.to_thread(self._child.end)

    async def findings(self) -> list[str]:
        """What does not hold in its file at this moment, a sentence each."""
        checking = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "twinbus", "broker", "--check", str(self.folder), "--json"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        said, complaint = await checking.communicate()
        if not said:
            return [f"the {self.name} namespace: {complaint.decode().strip()}"]
        return [
            f"the {self.name} namespace: {finding['subject']}: {finding['what']}"
            for namespace in json.loads(said)["namespaces"]
            for finding in namespace["findings"]
        ]

    def freeze(self) -> None:
        """It has its connections and answers nobody."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
