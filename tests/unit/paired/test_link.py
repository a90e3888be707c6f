"""A link that died while all was quiet is seen to be dead, and is not sent on."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp.constants import ConnectionState, LinkState
from azure.servicebus.exceptions import OperationTimeoutError
from tests.unit.paired.fakes import CONNECTION, make_pair

from twinbus.aio import MessagingFactory
from twinbus.paired.aio import link as link_module
from twinbus.paired.aio import pairing as pairing_module
from twinbus.paired.aio.link import SharedSender, plain_sender
from twinbus.sdk import upkeep


class Reader:
    def __init__(self, waiting: bytes = b"", eof: bool = False) -> None:
        self._buffer = bytearray(waiting)
        self.eof = eof

    def at_eof(self) -> bool:
        return self.eof and not self._buffer


def handler(reader: Any, after: LinkState, connection: ConnectionState) -> Any:
    """A handler whose link turns to ``after`` when what waits is read."""
    link = SimpleNamespace(state=LinkState.ATTACHED)
    made = SimpleNamespace(_transport=SimpleNamespace(reader=reader), state=ConnectionState.OPENED)

    async def listen(wait: float) -> None:
        reader._buffer.clear()
        link.state, made.state = after, connection

    made.listen = listen
    return SimpleNamespace(_connection=made, _link=link)


@pytest.mark.parametrize(
    ("reader", "link", "connection", "alive"),
    [
        (Reader(), LinkState.ATTACHED, ConnectionState.OPENED, True),
        (Reader(b"flow"), LinkState.ATTACHED, ConnectionState.OPENED, True),
        (Reader(b"detach"), LinkState.DETACHED, ConnectionState.OPENED, False),
        (Reader(b"detach"), LinkState.ERROR, ConnectionState.OPENED, False),
        (Reader(b"close"), LinkState.ATTACHED, ConnectionState.END, False),
        (Reader(eof=True), LinkState.ATTACHED, ConnectionState.OPENED, False),
        (None, LinkState.ATTACHED, ConnectionState.OPENED, True),
    ],
    ids=["quiet", "a flow", "detached", "detached for a reason", "closed", "hung up", "WebSocket"],
)
async def test_a_link_closed_while_quiet_is_known_before_the_send(
    reader: Any, link: LinkState, connection: ConnectionState, alive: bool
) -> None:
    factory = MessagingFactory.from_connection_string(CONNECTION.format("contoso"))
    sender = plain_sender(factory, "orders", factory._world)
    sender._handler = handler(reader, link, connection)
    assert await sender._is_alive() is alive
    sender._handler = None


async def test_a_quiet_link_that_died_is_opened_again_before_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that a send after ten idle minutes finds an open link."""
    monkeypatch.setattr(pairing_module, "KEEP_WARM_S", 0.05)
    monkeypatch.setattr(link_module, "QUIET_S", 0.01)
    wire, primary, _, _ = await make_pair(monkeypatch)
    sender = primary.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("x"))

    async def dead(self: Any) -> bool:
        return False

    monkeypatch.setattr(SharedSender, "_is_alive", dead)
    await asyncio.sleep(0.2)
    assert wire.opened.count("orders") >= 2
    assert sender._running
    await primary.close()
    assert len(primary._world) == 0


class Unanswered:
    """A handler of the threads' SDK, which opens when somebody lets it."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.closed = threading.Event()
        self.asked: list[Any] = []

    def open(self, connection: Any = None) -> None:
        self.asked.append(connection)
        self.answer.wait(20)

    def close(self) -> None:
        self.closed.set()


def test_a_thread_gives_up_on_a_peer_that_takes_the_connection_and_says_nothing() -> None:
    made = Unanswered()
    upkeep.bound_open(made, 0.05)
    with pytest.raises(OperationTimeoutError, match="connection to open"):
        made.open(connection=None)
    assert made.asked == [None]
    made.answer.set()
    assert made.closed.wait(10), "an answer that comes too late is for nobody"


def test_a_thread_hears_in_time_how_opening_went() -> None:
    made = Unanswered()
    made.answer.set()
    upkeep.bound_open(made, 10)
    made.open(connection=None)
    assert not made.closed.is_set()
    refused = SimpleNamespace(open=lambda **_: (_ for _ in ()).throw(OSError("refused")))
    upkeep.bound_open(refused, 10)
    with pytest.raises(OSError, match="refused"):
        refused.open(connection=None)
