"""The real side as a process: clients on sockets, administrators by HTTP, and kill -9.

To a history it has the face of `Real`, but that time is the machine's, that nobody can refuse a
commit for it, and that nobody is told when all is done: so every client sends a message of its own,
which is answered when all before it has been done and is on the disk, until nothing else comes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from twinbus.amqp.connection import Connection
from twinbus.amqp.incoming import ConnectionClosed, Delivery, LinkAttached, Settlement
from twinbus.amqp.lifecycle import LinkState, Phase
from twinbus.amqp.link_endpoint import RECEIVER, SENDER, Link
from twinbus.auth.access_rules import ROOT_RULE
from twinbus.auth.signature import Key
from twinbus.broker import atom, rule_markup, rules
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.inspection import inspect
from twinbus.broker.refusals import DescriptionError
from twinbus.lab.model.real import KEY, Caller, answered
from twinbus.lab.model.things import Wrong
from twinbus.processes import LOOK_S

BARRIER: Final = "barrier"
PATIENCE_S: Final = 60.0
_NOTHING_YET = atom.Runtime(0, 0, 0)


class SocketCaller(Caller):
    """A client of a process."""

    def __init__(self, real: RealProcess, name: str) -> None:
        self.real, self.name = real, name
        self.socket = socket.create_connection(("127.0.0.1", real.port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.amqp = Connection(server=False, container_id=name, hostname="localhost")
        self.heard: list[Any] = []
        self.settlements: list[Settlement] = []
        self._nodes: dict[str, tuple[Link, Link]] = {}
        self._barrier: Link | None = None
        self._barred: set[int] = set()
        self._moved = False

    def join(self) -> None:
        self.amqp.start()
        self._until(lambda: self.amqp.phase is Phase.OPEN)
        self.session = self.amqp.begin()
        self._put_token()
        self._barrier = self.attach(SENDER, BARRIER)
        self._until(lambda: self._barrier is not None and self._barrier.credit > 0)

    def _put_token(self) -> None:
        requests, replies = self.node("$cbs")
        self.ask_for_token(requests)
        self._until(lambda: bool(self.heard_of(Delivery)))
        self.check_token(replies)

    def attach(self, role: bool, path: str, **options: Any) -> Link:
        link = super().attach(role, path, **options)
        if self._barrier is None:
            self._until(lambda: link.state is LinkState.ATTACHED)
        return link

    def nodes(self, paths: Iterable[str]) -> list[tuple[Link, Link]]:
        """Many request-response pairs at once."""
        paths = list(paths)
        for path in paths:
            if path not in self._nodes:
                self._nodes[path] = (self.begin(SENDER, path), self.begin(RECEIVER, path))
        self.real.exchange()
        for path in paths:
            self._nodes[path][1].grant(1_000)
        self.real.exchange()
        self.take(LinkAttached)
        return [self._nodes[path] for path in paths]

    def _until(self, came: Callable[[], bool]) -> None:
        self.say()
        while not came():
            self.hear()

    def say(self) -> bool:
        data = self.amqp.data_to_send()
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Wrong(f"{self.name} was cut off: {error!r}") from error
        return bool(data)

    def hear(self) -> None:
        """Whatever comes next."""
        try:
            data = self.socket.recv(1 << 18)
        except OSError as error:
            raise Wrong(f"{self.name} heard nothing: {error!r}") from error
        if not data:
            raise Wrong(f"{self.name} was cut off")
        self._take_in(data)
        self.say()

    def _take_in(self, data: bytes) -> None:
        for event in self.amqp.receive(data):
            if isinstance(event, ConnectionClosed):
                raise Wrong(f"{self.name} was closed: {event.error}")
            if not isinstance(event, Settlement):
                self.heard.append(event)
            elif event.link is self._barrier:
                self._barred.discard(event.delivery_id)
                continue
            else:
                self.settlements.append(event)
            self._moved = True

    def bar(self) -> None:
        """Ask something that is answered after all that was asked before."""
        if self._barrier is not None:
            self._moved = self.say()
            payload = b"\x00\x53\x75\xa0\x01x"
            name = self.real.count().to_bytes(4)
            self._barred.add(self._barrier.send(payload, name, settled=False))
            self.say()

    def passed(self) -> bool:
        """Once the answer is there: whether anything else was."""
        while self._barred:
            self.hear()
        return self._moved

    def last_words(self) -> None:
        """What the process said before it died."""
        with suppress(OSError):
            while data := self.socket.recv(1 << 18):
                self._take_in(data)
        self.socket.close()


class Administrator:
    """As a namespace's directory takes changes, by the management API."""

    def __init__(self, real: RealProcess) -> None:
        self._real = real

    def create_queue(self, path: str, wanted: Any, now: int, done: Callable[[Any], None]) -> None:
        done(self._put(path, _described(wanted)))

    create_topic = create_queue

    def create_subscription(
        self, topic: str, name: str, wanted: Any, rule: Any, now: int, done: Callable[[Any], None]
    ) -> None:
        failed = self._put(f"{topic}/Subscriptions/{name}", _described(wanted))
        if failed is None:
            self.create_rule(topic, name, rule, now, done)
            failed = self._ask("DELETE", f"{topic}/Subscriptions/{name}/Rules/{rules.DEFAULT_RULE}")
        if failed is not None:
            done(failed)

    def update(self, path: str, wanted: Any, now: int, done: Callable[[Any], None]) -> None:
        done(self._put(path, _described(wanted), {"If-Match": "*"}))

    def delete(self, path: str, done: Callable[[Any], None]) -> None:
        done(self._ask("DELETE", path))

    def create_rule(
        self, topic: str, name: str, rule: Any, now: int, done: Callable[[Any], None]
    ) -> None:
        done(self._put(f"{topic}/Subscriptions/{name}/Rules/{rule.name}", _ruled(rule)))

    def delete_rule(self, topic: str, name: str, rule: str, done: Callable[[Any], None]) -> None:
        done(self._ask("DELETE", f"{topic}/Subscriptions/{name}/Rules/{rule}"))

    def _put(self, path: str, content: str, headers: dict[str, str] | None = None) -> Any:
        body = atom.entry("", "", "", content, 0, 0)
        return self._ask("PUT", path, body, headers)

    def _ask(
        self, method: str, path: str, body: str = "", headers: dict[str, str] | None = None
    ) -> Any:
        """None where it was done, or what was said. Raises DescriptionError as a directory does."""
        said = {"Authorization": self._real.token, **(headers or {})}
        http = HTTPConnection("127.0.0.1", self._real.admin, timeout=PATIENCE_S)
        try:
            http.request(method, f"/{quote(path)}?api-version=2021-05", body.encode(), said)
            answer = http.getresponse()
            text = answer.read().decode()
        finally:
            http.close()
        if answer.status == HTTPStatus.BAD_REQUEST:
            raise DescriptionError(text)
        return None if answer.status in (200, 201) else f"{answer.status} {text}"


def _described(wanted: Any) -> str:
    return atom.write_description(wanted, _NOTHING_YET, "localhost")


def _ruled(rule: Any) -> str:
    return rule_markup.write_rule(rule, 0)


class RealProcess:
    """A broker process with its disk and its clients."""

    def __init__(self, planted: str = "") -> None:
        base = Path("/dev/shm")  # noqa: S108 - as for `Real`
        self.folder = Path(
            tempfile.mkdtemp(prefix="twinbus-model-", dir=base if base.is_dir() else None)
        )
        self.token = Key("localhost", ROOT_RULE, KEY).token()
        self.peers: list[SocketCaller] = []
        self._joining: SocketCaller | None = None
        self._count = self.pid = self.port = self.admin = 0
        command = [sys.executable, "-m", "twinbus.lab.model.launcher", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self._launcher = subprocess.Popen(  # noqa: S603 - our own program
                [*command, planted],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self.directory = Administrator(self)
        self.start()
        self.directory.create_queue(BARRIER, QueueDescription(), 0, self._must)

    @staticmethod
    def _must(failed: Any) -> None:
        if failed is not None:
            raise Wrong(str(failed))

    @property
    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def count(self) -> int:
        self._count += 1
        return self._count

    def start(self) -> None:
        assert self._launcher.stdin is not None
        assert self._launcher.stdout is not None
        self._launcher.stdin.write(b"start\n")
        self._launcher.stdin.flush()
        line = self._launcher.stdout.readline()
        if not line:
            raise Wrong(f"the broker did not start: {self.complaints()[-1:]}")
        said = json.loads(line)
        self.pid, self.port, self.admin = said["pid"], said["port"], said["admin"]

    def kill(self) -> None:
        """kill -9, at this moment; and what is in its file then."""
        os.kill(self.pid, signal.SIGKILL)
        for peer in self.peers:
            peer.last_words()
        while _is_there(self.pid):
            time.sleep(LOOK_S / 10)
        findings = inspect(self.folder / "home" / "messages.db").findings
        if findings:
            raise Wrong("; ".join(str(each) for each in findings))

    def complaints(self) -> list[str]:
        """What it logged."""
        return (self.folder / "log").read_text().splitlines()

    def connect(self, count: int) -> None:
        self.peers = []
        for number in range(count):
            self.peers.append(self._joined(f"client {number}"))

    def _joined(self, name: str) -> SocketCaller:
        self._joining = SocketCaller(self, name)
        self._joining.join()
        joined, self._joining = self._joining, None
        return joined

    def reconnect(self, index: int) -> None:
        self.peers[index].socket.close()
        others = self.peers
        self.peers = []
        others[index] = self._joined(others[index].name)
        self.peers = others

    def close(self) -> None:
        for peer in self.peers:
            peer.socket.close()
        for pipe in (self._launcher.stdin, self._launcher.stdout):
            if pipe is not None:
                pipe.close()
        self._launcher.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def say(self) -> None:
        for peer in self.peers:
            peer.say()

    def exchange(self) -> None:
        """Until all is done, and twice nobody has heard of anything more."""
        if self._joining is not None:
            self._joining.say()
        quiet = 0
        while quiet < 2 and self.peers:
            for peer in self.peers:
                peer.bar()
            moved = [peer.passed() for peer in self.peers]
            quiet = 0 if any(moved) else quiet + 1
        began = self.now
        while self.now == began:  # so that what comes next has another time
            time.sleep(0.0002)

    def do(self, change: Callable[..., Any], *args: Any) -> list[Any]:
        return answered(change, *args)

    def commit(self) -> None:
        """It does so by itself."""

    pump = tick = commit


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
