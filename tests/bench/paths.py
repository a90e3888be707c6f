"""The hot paths, each ready to be run: what is counted is the path and nothing around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.conversations import Conversation
from harness.raw import kilobyte_message

from twinbus import envelope
from twinbus.amqp.incoming import Delivery
from twinbus.amqp.link_endpoint import RECEIVER, SENDER
from twinbus.amqp.performatives import ACCEPTED
from twinbus.broker.expressions import MessageProperties
from twinbus.broker.rules import CorrelationFilter, Rule, RuleIndex, SqlFilter
from twinbus.failover.states import Failover
from twinbus.ledger import Ledger

MESSAGES = 50
CORRELATION_FILTERS, SQL_FILTERS = 500, 10

Work = Callable[[], object]


@contextmanager
def conversing(folder: Path) -> Iterator[Conversation]:
    conversation = Conversation(folder)
    try:
        yield conversation
    finally:
        conversation.store.close()


@contextmanager
def send(folder: Path) -> Iterator[Work]:
    """The broker's work for messages that come in one read: wire, queue, store, answer."""
    with conversing(folder) as conversation:
        data = _sent(conversation)
        yield lambda: conversation.serve(data)


def _sent(conversation: Conversation) -> bytes:
    """What a client writes to send; the first few are sent already, and caches filled."""
    link = conversation.attach(SENDER, "orders")
    conversation.send(link, 5)
    for number in range(MESSAGES):
        link.send(kilobyte_message(number), number.to_bytes(4), settled=False)
    return conversation.amqp.data_to_send()


@contextmanager
def receive(folder: Path) -> Iterator[Work]:
    """Credit in, messages out, each of them locked."""
    with conversing(folder) as conversation:
        conversation.serve(_sent(conversation))
        conversation.attach(RECEIVER, "orders").grant(MESSAGES)
        data = conversation.amqp.data_to_send()
        yield lambda: conversation.serve(data)


@contextmanager
def settle(folder: Path) -> Iterator[Work]:
    """A disposition each, answered when it is stored."""
    with conversing(folder) as conversation:
        conversation.serve(_sent(conversation))
        conversation.attach(RECEIVER, "orders").grant(MESSAGES)
        for event in conversation.exchange():
            if isinstance(event, Delivery):
                name = event.delivery_id
                conversation.session.dispose(name, name, ACCEPTED, settled=False)
        data = conversation.amqp.data_to_send()
        yield lambda: conversation.serve(data)


@contextmanager
def wrap(folder: Path) -> Iterator[Work]:
    message = kilobyte_message(1)
    yield lambda: envelope.pack(message, "orders")


@contextmanager
def unwrap(folder: Path) -> Iterator[Work]:
    wrapped = envelope.wrap(kilobyte_message(1), "orders")
    yield lambda: envelope.unwrap(wrapped)


@contextmanager
def route(folder: Path) -> Iterator[Work]:
    """One message to a topic with many filters, of which one of each kind matches."""
    index = RuleIndex()
    for number in range(CORRELATION_FILTERS):
        rule = Rule("r", CorrelationFilter(label=f"l{number}"))
        index.add(f"s{number}", rule)
    for number in range(SQL_FILTERS):
        rule = Rule("r", SqlFilter(f"colour = 'c{number}' AND size > 3"))
        index.add(f"q{number}", rule)
    message = MessageProperties({"label": "l7"}, {"colour": "c7", "size": 4})
    assert len(index.route(message)) == 2
    yield lambda: index.route(message)


@contextmanager
def outage(folder: Path) -> Iterator[Work]:
    """A whole outage of one entity, as its state sees it."""

    def act() -> None:
        state = Failover(60.0)
        state.succeeded()
        state.failed(1.0, 0.5)
        state.look(30.0)
        state.look(61.5)
        state.ping_failed()
        state.ping_succeeded(90.0)

    yield act


@contextmanager
def record(folder: Path) -> Iterator[Work]:
    """One send into the ledger, as the sender waits for it."""
    ledger = Ledger(folder, flush_interval_s=3600)
    fields: dict[str, Any] = {"bytes": 1024, "message_ids": ["1"]}
    ledger.add("send", "normal", "contoso", "orders", **fields)
    try:
        yield lambda: ledger.add("send", "normal", "contoso", "orders", **fields)
    finally:
        ledger.close()
