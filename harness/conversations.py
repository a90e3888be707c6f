"""A client and a broker joined in memory: real wire code, real namespace, real store, no socket."""

from __future__ import annotations

from pathlib import Path

from harness.raw import kilobyte_message, sas_token
from twinbus.amqp.connection import Connection
from twinbus.amqp.incoming import Delivery, Event, Settlement
from twinbus.amqp.lifecycle import Phase
from twinbus.amqp.link_endpoint import RECEIVER, SENDER, Link
from twinbus.amqp.message import Properties, with_application_properties
from twinbus.amqp.performatives import ACCEPTED, Source, Target
from twinbus.amqp.types import encode
from twinbus.auth.access_rules import ROOT_RULE, root_rule
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.dialect import Client
from twinbus.broker.namespace import Namespace
from twinbus.broker.queue import nothing
from twinbus.broker.store import Store
from twinbus.budget import Budget

NOW = 1_700_000_000_000


class Conversation:
    """A client and a namespace that pass bytes to each other, committed at once."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "messages.db")
        self.namespace = Namespace("home", self.store, [root_rule("a2V5")])
        self.namespace.directory.create_queue("orders", QueueDescription(), NOW, nothing)
        self._commit()
        self.broker = Client(self.namespace, lambda: NOW, lambda: None, Budget())
        self.amqp = Connection(server=False, container_id="test", hostname="localhost")
        self.amqp.start()
        while self.amqp.phase is not Phase.OPEN:
            self.exchange()
        self.session = self.amqp.begin()
        self._authorize()

    def _authorize(self) -> None:
        requests, replies = self.attach(SENDER, "$cbs"), self.attach(RECEIVER, "$cbs")
        replies.grant(1)
        values = {"operation": "put-token", "type": "jwt", "name": "sb://localhost/"}
        message = with_application_properties(Properties(message_id="1").encoded(), values)
        token = sas_token("sb://localhost/", ROOT_RULE, "a2V5")
        requests.send(message + b"\x00\x53\x77" + encode(token), b"cbs", settled=True)
        self.exchange()

    def _commit(self) -> None:
        while self.store.batch:
            batch = self.store.take_batch()
            self.store.apply(batch)
            self.store.commit()
            self.namespace.committed(batch, None, NOW)

    def exchange(self) -> list[Event]:
        """Pass on what both have to say until neither has."""
        heard: list[Event] = []
        while data := self.amqp.data_to_send():
            heard += self.amqp.receive(self.serve(data))
        return heard

    def serve(self, data: bytes) -> bytes:
        """What the broker does with these bytes, and what it says to them."""
        self.broker.receive(data)
        self._commit()
        return self.broker.amqp.data_to_send()

    def attach(self, role: bool, address: str) -> Link:
        link = self.session.attach(
            f"{address}-{role}", role, source=Source(address), target=Target(address)
        )
        self.exchange()
        return link

    def send(self, link: Link, count: int) -> None:
        """All in one write, so that the broker reads them at once."""
        for number in range(count):
            link.send(kilobyte_message(number), number.to_bytes(4), settled=False)
        assert sum(isinstance(event, Settlement) for event in self.exchange()) == count

    def receive(self, link: Link, count: int) -> None:
        link.grant(count)
        got = [event for event in self.exchange() if isinstance(event, Delivery)]
        assert len(got) == count
        for event in got:
            self.session.dispose(event.delivery_id, event.delivery_id, ACCEPTED, settled=False)
        self.exchange()
