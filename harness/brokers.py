"""A broker as a process of its own: started, killed, started again."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from twinbus.broker.inspection import inspect, stores

KEY = "dGVzdC1rZXk="
START_S = 20


def toml_value(value: Any) -> str:
    return json.dumps(value)


def write_config(path: Path, name: str, port: int, queues: dict[str, dict[str, Any]]) -> None:
    lines = ["[[namespace]]", f'name = "{name}"', f"port = {port}", "admin_port = 0"]
    for queue, settings in queues.items():
        lines += ["[[namespace.queue]]", f'name = "{queue}"']
        lines += [f"{key} = {toml_value(value)}" for key, value in settings.items()]
    path.write_text("\n".join(lines))


class BrokerProcess:
    """`twinbus broker` with the queues of a test."""

    def __init__(
        self, folder: Path, queues: dict[str, dict[str, Any]], *, extra: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder
        self.queues = queues
        self.extra = extra
        self.port = 0
        self.admin_port = 0
        self.process: subprocess.Popen[str] | None = None
        self.connection_string = ""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start, on the same port as before if there was one, and wait until it is ready."""
        config = self.folder / "broker.toml"
        write_config(config, "contoso", self.port, self.queues)
        command = [str(Path(sys.executable).with_name("twinbus")), "broker"]
        command += ["--config", str(config), "--data", str(self.folder / "data"), *self.extra]
        log = (self.folder / "broker.log").open("a")
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "TWINBUS_KEY": KEY},
        )
        log.close()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the broker did not start: {self.log()}")
        self.connection_string = line.split(": ", 1)[1].strip()
        self.port = int(self.connection_string.split(";")[0].rsplit(":", 1)[1])

    def log(self) -> str:
        return (self.folder / "broker.log").read_text()

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        assert self.process is not None
        self.process.kill()
        self._gone()

    def suspend(self) -> None:
        """It says nothing until it is resumed."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Ctrl-C."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self._gone()

    def _gone(self) -> int:
        assert self.process is not None
        code = self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None
        return code

    def close(self) -> None:
        """kill -9 if it runs; what it leaves on the disk must hold together."""
        if self.process is not None:
            self.kill()
        check_stores(self.folder)

    def rss_kb(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1])
        raise RuntimeError("no VmRSS")


def certificate(process: BrokerProcess) -> str:
    """The broker's certificate, which it makes when somebody first asks for TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("localhost", process.port)) as plain,
        context.wrap_socket(plain) as _,
    ):
        pass
    return str(process.folder / "data" / "certificate.pem")


def check_stores(folder: Path) -> None:
    """Fail if there is anything to be found in the namespaces' files under a folder."""
    found = [f"{path}: {each}" for path in stores(folder) for each in inspect(path).findings]
    assert not found, "\n".join(found)


def get_json(url: str, within_s: float = 5) -> Any:
    end = time.monotonic() + within_s
    while True:
        try:
            with urllib.request.urlopen(url, timeout=within_s) as answer:
                return json.load(answer)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
