"""The real namespace and store under a client's hands: bytes pass in memory, the clock and the disk
are ours.

Every client is the client's side of our own AMQP, so that what is played is what a client can say
on the wire: attach, flow, transfer, disposition, ``$cbs``, ``$management``. What an administrator
does goes to the directory, as the management API does it.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock, patch

from twinbus.amqp.connection import Connection
from twinbus.amqp.incoming import Delivery, Event, LinkAttached, LinkDetached, Settlement
from twinbus.amqp.lifecycle import Phase
from twinbus.amqp.link_endpoint import RECEIVER, SENDER, Link
from twinbus.amqp.message import (
    Message,
    Properties,
    application_properties,
    encode_annotations,
    encode_header,
    with_application_properties,
)
from twinbus.amqp.performatives import Source, Target
from twinbus.amqp.sections import body_value
from twinbus.amqp.types import Symbol, Timestamp, encode
from twinbus.auth.access_rules import ROOT_RULE, root_rule
from twinbus.auth.signature import Key
from twinbus.broker.batch import Batch
from twinbus.broker.dialect import Client
from twinbus.broker.namespace import Namespace
from twinbus.broker.refusals import StoreError
from twinbus.broker.store import Store
from twinbus.budget import Budget
from twinbus.health import Health
from twinbus.lab.model.things import Wrong

START_MS = 1_700_000_000_000
KEY = "a2V5"
_LOG = logging.getLogger("twinbus.lab.model")
_MEMORY = Path("/dev/shm")  # noqa: S108 - where a commit costs no wait for a disk
E = TypeVar("E", bound=Event)


class Strict(Health):
    """Whatever the namespace would log and survive is a finding here."""

    def failed(self, what: str, entity: str, error: BaseException) -> None:
        if not isinstance(error, StoreError):
            raise Wrong(f"{what} of {entity}: {error!r}") from error


class Caller:
    """One client's connection."""

    def __init__(self, real: Any, name: str) -> None:
        self.real, self.name = real, name
        self.broker = Client(real.namespace, lambda: real.now, lambda: None, Budget())
        self.amqp = Connection(server=False, container_id=name, hostname="localhost")
        self.heard: list[Any] = []
        self.settlements: list[Settlement] = []
        self._nodes: dict[str, tuple[Link, Link]] = {}

    def join(self) -> None:
        """Open, and show a token."""
        self.amqp.start()
        self.exchange()
        if self.amqp.phase is not Phase.OPEN:
            raise Wrong(f"{self.name} was not let in")
        self.session = self.amqp.begin()
        self._put_token()

    def exchange(self) -> None:
        """Pass on what both have to say until neither has."""
        while self.pass_on():
            pass

    def pass_on(self) -> bool:
        data = self.amqp.data_to_send()
        if data:
            self.broker.receive(data)
        answer = self.broker.amqp.data_to_send()
        if self.broker.starved:  # as the port does once these bytes are with the socket
            self.broker.resume()
        if answer:
            for event in self.amqp.receive(answer):
                if isinstance(event, Settlement):
                    self.settlements.append(event)
                else:
                    self.heard.append(event)
        return bool(data or answer)

    def attach(self, role: bool, path: str, **options: Any) -> Link:
        link = self.begin(role, path, **options)
        self.real.exchange()
        return link

    def begin(self, role: bool, path: str, **options: Any) -> Link:
        """A link that nobody has answered yet. The second client does not mind its shift key, for
        an entity's name means the same in capitals and in small letters."""
        path = path.swapcase() if self.name == "client 1" and path != "$cbs" else path
        return self.session.attach(
            f"{path}-{role}-{self.real.count()}",
            role,
            source=Source(path, filter=options.pop("filter", None)),
            target=Target(path),
            **options,
        )

    def refusal(self, link: Link) -> str | None:
        """Why the broker ended a link, if it did."""
        for event in self.heard:
            if isinstance(event, LinkDetached) and event.link is link:
                return str(event.error.condition) if event.error else ""
        return None

    def heard_of(self, kind: type[E]) -> list[E]:
        return [event for event in self.heard if isinstance(event, kind)]

    def take(self, kind: type[E]) -> list[E]:
        found = self.heard_of(kind)
        self.heard = [event for event in self.heard if not isinstance(event, kind)]
        return found

    def _put_token(self) -> None:
        requests, replies = self.node("$cbs")
        self.ask_for_token(requests)
        self.real.exchange()
        self.check_token(replies)

    def ask_for_token(self, requests: Link) -> None:
        values = {"operation": "put-token", "type": "jwt", "name": "sb://localhost/"}
        self.request(requests, values, self.real.token)

    def check_token(self, replies: Link) -> None:
        (answer,) = self.answers(replies)
        if answer[0].get("status-code") != 202:
            raise Wrong(f"the token of {self.name} was refused: {answer}")

    def node(self, path: str) -> tuple[Link, Link]:
        """A request-response pair of links."""
        if path not in self._nodes:
            requests, replies = self.attach(SENDER, path), self.attach(RECEIVER, path)
            if self.refusal(replies) is None:
                replies.grant(1_000)
                self.real.exchange()
            self.take(LinkAttached)
            self._nodes[path] = requests, replies
        return self._nodes[path]

    def request(self, link: Link, values: dict[str, Any], body: Any) -> None:
        properties = Properties(message_id=f"{self.real.count()}")
        message = with_application_properties(properties.encoded(), values)
        link.send(message + b"\x00\x53\x77" + encode(body), b"ask", settled=True)

    def answers(self, replies: Link) -> list[tuple[dict[str, Any], Any]]:
        found = []
        for event in self.take(Delivery):
            if event.link is not replies:
                self.heard.append(event)
                continue
            bare = Message.parse(event.payload or b"").bare
            found.append((application_properties(bare), body_value(bare)))
        return found

    def forget_node(self, path: str) -> None:
        self._nodes.pop(path, None)


class Real:
    """The namespace with its disk and its clients."""

    def __init__(self) -> None:
        base = _MEMORY if _MEMORY.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="twinbus-model-", dir=base))
        self.token = Key("localhost", ROOT_RULE, KEY).token()
        self.now = START_MS
        self.peers: list[Caller] = []
        self._joining: list[Caller] = []
        self._count = 0
        self._open()

    def count(self) -> int:
        self._count += 1
        return self._count

    def _open(self) -> None:
        self.store = Store(self.folder / "messages.db")
        health = Strict(_LOG, expected=())
        self.namespace = Namespace("home", self.store, [root_rule(KEY)], health=health)
        self.directory = self.namespace.directory

    def connect(self, count: int) -> None:
        self.peers = []
        for number in range(count):
            self.peers.append(self._joined(f"client {number}"))

    def _joined(self, name: str) -> Caller:
        """A client that is connected, which takes some exchanges."""
        peer = Caller(self, name)
        self._joining = [peer]
        peer.join()
        self._joining = []
        return peer

    def close(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- bytes and the disk

    def exchange(self) -> None:
        """Until nobody has anything more to say and the disk has all."""
        moved = True
        while moved:
            said = [peer.pass_on() for peer in (*self.peers, *self._joining)]
            moved = any(said)
            if self.store.batch:
                self.commit()
                moved = True

    def say(self) -> None:
        """What the clients have to say reaches the broker; the disk has nothing of it yet."""
        for peer in self.peers:
            data = peer.amqp.data_to_send()
            if data:
                peer.broker.receive(data)

    def commit(self) -> None:
        while self.store.batch:
            self.tell(self.write())

    def write(self) -> Batch | None:
        """What has gathered is on the disk, and nobody has been told yet."""
        if not self.store.batch:
            return None
        batch = self.store.take_batch()
        self.store.apply(batch)
        self.store.commit()
        return batch

    def tell(self, batch: Batch | None) -> None:
        if batch is not None:
            self.namespace.committed(batch, None, self.now)

    @contextmanager
    def unreadable(self) -> Iterator[None]:
        """As long as this lasts the disk refuses every read."""

        broken = Mock()
        broken.execute.side_effect = sqlite3.OperationalError("disk I/O error")
        with patch.object(self.store, "_reader", broken):
            yield

    def refuse(self) -> bool:
        """The disk refuses what has gathered. Whether there was something to refuse."""
        if not self.store.batch:
            return False
        batch = self.store.take_batch()
        self.store.apply(batch)
        self.store.rollback()
        self.namespace.committed(batch, StoreError("the disk failed"), self.now)
        return True

    def crash(self, *, committed: bool) -> None:
        """The process is gone, just before or just after a commit, and comes back."""
        if committed:
            self.write()
        self.store.close()
        self._open()
        self.connect(len(self.peers))

    def reconnect(self, index: int) -> None:
        """A client's socket is gone, and it comes again."""
        self.peers[index].broker.disconnect()
        self.commit()
        self.peers[index] = self._joined(self.peers[index].name)

    def do(self, change: Callable[..., Any], *args: Any) -> list[Any]:
        return answered(change, *args)

    def pump(self) -> None:
        self.namespace.pump(self.now)

    def tick(self) -> None:
        self.namespace.tick(self.now)
        for peer in self.peers:
            peer.broker.tick(self.now / 1000)


def answered(change: Callable[..., Any], *args: Any) -> list[Any]:
    """What an administrator asks for, up to the disk."""
    answers: list[Any] = []
    change(*args, answers.append)
    return answers


def encoded(
    tag: str,
    *,
    message_id: str | None,
    session: str | None,
    ttl: int | None,
    due: int | None,
    mark: Any,
    priority: int | None,
    properties: dict[str, Any],
    filler: int,
) -> bytes:
    """A message as a client sends it."""
    head = encode_header(True, priority, ttl, 0)
    annotations: dict[Any, Any] = {}
    if due is not None:
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(due)
    if mark is not None:
        annotations[Symbol("x-mark")] = mark
    if annotations:
        head += encode_annotations(annotations)
    bare = Properties(message_id=message_id, group_id=session).encoded()
    if properties:
        bare = with_application_properties(bare, properties)
    return head + bare + b"\x00\x53\x75" + encode(tag.encode() + b" " * filler)
