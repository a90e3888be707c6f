"""RabbitMQ beside our broker: Debian's package, as nodes of our own in folders of their own.

Debian's own service is neither used nor started. A node and its port mapper (epmd) are children of
this process, listen on loopback, and are ended by their ids. Queues are declared as the node boots,
from a file of definitions, so that no tool of RabbitMQ's, each of which starts an Erlang, is
needed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from harness.raw import Raw

from bench.process import cpu_s

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_S = 120
QUORUM, CLASSIC = "quorum", "classic"
USER = "guest"


class PeerMissingError(RuntimeError):
    """The peer is not installed and cannot be."""


def install() -> None:
    """Debian's package, if it is not there and we may."""
    if SERVER.exists() and shutil.which("epmd"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise PeerMissingError("RabbitMQ is not installed: apt-get install rabbitmq-server")
    # No service is started by the package: a script that says no to all of them, while it lasts.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        for arguments in (
            ["update"],
            ["install", "--yes", "--no-install-recommends", "rabbitmq-server"],
        ):
            done = subprocess.run(
                ["apt-get", *arguments], env=quiet, capture_output=True, text=True, timeout=600
            )
            if done.returncode:
                raise PeerMissingError(f"apt-get {arguments[0]}: {done.stderr.strip()[-300:]}")
    finally:
        if ours:
            policy.unlink()


def version() -> str:
    fields = ["dpkg-query", "--show", "--showformat", "${Version}", "rabbitmq-server"]
    done = subprocess.run(fields, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


class Rabbit:
    """`with Rabbit({"q": QUORUM}) as node`: a node with these queues, ready."""

    def __init__(self, queues: dict[str, str], plugins: tuple[str, ...] = ()) -> None:
        install()
        self._queues = queues
        self._plugins = ("rabbitmq_amqp1_0", *plugins)
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Rabbit:
        self._temporary = tempfile.TemporaryDirectory(prefix="twinbus-bench-rabbit-")
        self._folder = Path(self._temporary.name)
        self.port, self.admin_port, mapper, distribution = _free_ports(4)
        self.connection_string = f"Endpoint=sb://127.0.0.1:{self.port}/"
        self.amqp_uri = f"amqp://{USER}:{USER}@127.0.0.1:{self.port}"
        self._write_files()
        environment = self._environment(mapper, distribution)
        try:
            self._start(["epmd", "-address", "127.0.0.1", "-port", str(mapper)], environment)
            _until_open(mapper, time.monotonic() + 10)
            started = time.perf_counter()
            self._node = self._start([str(SERVER)], environment)
            self._until_ready(time.monotonic() + START_S)
            self.ready_s = time.perf_counter() - started
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self._folder / "output.log").open("ab") as log:
            child = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self._children.append(child)
        return child

    def _write_files(self) -> None:
        definitions = {
            "rabbit_version": "3.10.8",
            "users": [{"name": USER, "password_hash": _hashed(USER), "tags": "administrator"}],
            "vhosts": [{"name": "/"}],
            "permissions": [
                {"user": USER, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
            ],
            "queues": [
                {
                    "name": name,
                    "vhost": "/",
                    "durable": True,
                    "auto_delete": False,
                    "arguments": {"x-queue-type": kind},
                }
                for name, kind in self._queues.items()
            ],
        }
        (self._folder / "definitions.json").write_text(json.dumps(definitions))
        (self._folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "management.tcp.ip = 127.0.0.1\n"
            f"management.tcp.port = {self.admin_port}\n"
            f"load_definitions = {self._folder}/definitions.json\n"
            "disk_free_limit.absolute = 1GB\n"
            "log.console = false\nlog.file.level = warning\n"
        )
        (self._folder / "plugins").write_text(f"[{','.join(self._plugins)}].\n")

    def _environment(self, mapper: int, distribution: int) -> dict[str, str]:
        folder = str(self._folder)
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": folder,
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/none",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
        }

    def _until_ready(self, ends: float) -> None:
        """Until an AMQP 1.0 connection opens; with management, until that answers as well."""
        while True:
            try:
                Raw(self.connection_string).close()
                if "rabbitmq_management" in self._plugins:
                    self.ask("GET", "overview")
                return
            except OSError:
                self._still_there(ends)
                time.sleep(0.02)

    def _still_there(self, ends: float) -> None:
        if self._node.poll() is not None or time.monotonic() > ends:
            log = (self._folder / "output.log").read_text(errors="replace")[-1000:]
            raise RuntimeError(f"RabbitMQ did not start: {log}")

    def __exit__(self, *error: object) -> None:
        for child in reversed(self._children):
            _end(child)
        self._children.clear()
        self._temporary.cleanup()

    # -- measuring

    def address(self, queue: str) -> str:
        return f"/amq/queue/{queue}"

    def tree(self) -> list[psutil.Process]:
        top = psutil.Process(self._node.pid)
        return [top, *top.children(recursive=True)]

    def rss_mb(self) -> float:
        """Of all its processes."""
        total = 0
        for each in self.tree():
            with suppress(psutil.Error):
                total += each.memory_info().rss
        return total / 2**20

    def cpu_s(self) -> float:
        return sum(cpu_s(each.pid) for each in self.tree())

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The management plugin, for a node that has it."""
        login = base64.b64encode(f"{USER}:{USER}".encode()).decode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.admin_port}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Basic {login}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def _hashed(password: str) -> str:
    """As RabbitMQ keeps passwords: a salt of four bytes, and the digest of both."""
    salt = os.urandom(4)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def _until_open(port: int, ends: float) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.01)


def _end(child: subprocess.Popen[bytes]) -> None:
    """It and all that it started. What it stored is thrown away, so it need not say goodbye."""
    with suppress(psutil.Error):
        top = psutil.Process(child.pid)
        for each in [*top.children(recursive=True), top]:
            with suppress(psutil.Error):
                each.kill()
    child.wait(30)
