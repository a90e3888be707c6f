"""What peers make us keep is counted, by kind, and counted off again."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.conversations import Conversation
from harness.echoes import echoes
from starlette.requests import Request

from twinbus.amqp.connection import Connection
from twinbus.amqp.link_endpoint import RECEIVER, SENDER
from twinbus.amqp.message import Properties, with_application_properties
from twinbus.amqp.performatives import Source, Target, encode_transfer
from twinbus.amqp.sections import DATA, VALUE, section
from twinbus.amqp.types import Array, encode
from twinbus.broker.batch import Batch
from twinbus.broker.dialect import Client
from twinbus.broker.entry import PING, Entry
from twinbus.broker.refusals import RequestError
from twinbus.budget import KINDS, MAX_ANSWERS_OF_LINK, MAX_ATTACHED, Budget
from twinbus.serving.http import body_of


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Conversation]:
    talk = Conversation(tmp_path)
    yield talk
    talk.store.close()


def kept(budget: Budget) -> dict[str, int]:
    """What there is of anything."""
    return {kind: count for kind, count in budget.kept().items() if count}


def test_a_port_has_what_its_peers_have_for_as_long_as_they_are_there() -> None:
    port = Budget()
    one, other = port.share(), port.share()
    one.unsent, other.unsent, other.bodies, port.storing = 1, 2, 4, 8
    assert kept(port) == {"unsent": 3, "bodies": 4, "storing": 8}
    assert (port.total, one.total) == (15, 1)
    del other
    gc.collect()
    assert kept(port) == {"unsent": 1, "storing": 8}


def test_the_kinds_are_those_that_are_explained() -> None:
    from twinbus import budget

    told = [line.split()[0] for line in (budget.__doc__ or "").splitlines() if line[:4] == " " * 4]
    assert tuple(told[1:]) == KINDS


def test_half_a_frame_is_counted_until_the_rest_of_it_comes(talk: Conversation) -> None:
    budget = talk.broker.amqp.budget
    before = kept(budget)
    talk.session.flow()
    data = talk.amqp.data_to_send()
    talk.serve(data[:-3])
    assert budget.read_ahead == len(data) - 3
    talk.serve(data[-3:])
    assert kept(budget) == before


def test_what_is_written_is_counted_until_it_is_taken() -> None:
    amqp = Connection(server=False, container_id="test")
    amqp.write_frame(0, b"x" * 100)
    assert kept(amqp.budget) == {"unsent": 100}
    assert amqp.data_to_send()
    assert not kept(amqp.budget)


def test_a_token_is_counted_once_for_each_path(talk: Conversation) -> None:
    before = talk.broker.amqp.budget.tokens
    talk._authorize()
    assert talk.broker.amqp.budget.tokens == before


@pytest.mark.parametrize("ending", ["detach", "end"])
def test_what_the_attach_of_a_link_says_is_counted_until_the_link_is_gone(
    talk: Conversation, ending: str
) -> None:
    """Also of a link that was refused, for it is there until the peer has detached it."""
    budget = talk.broker.amqp.budget
    before = budget.attached
    name = "n" * 10_000
    session = talk.amqp.begin()
    links = [
        session.attach(f"{number}{name}", SENDER, source=Source("s"), target=Target(path))
        for number, path in enumerate(("orders", "$cbs"))
    ]
    talk.exchange()
    assert before + 20_000 < budget.attached < before + 21_000
    if ending == "detach":
        for link in links:
            link.detach()
    else:
        session.end()
    talk.exchange()
    assert budget.attached == before


def test_a_peer_whose_links_say_too_much_is_closed_before_it_has_a_token(tmp_path: Path) -> None:
    talk = Conversation(tmp_path)
    amqp = Client(talk.namespace, lambda: 0, lambda: None, Budget())
    peer = Connection(server=False, container_id="hostile")
    peer.start()
    session = peer.begin()
    for number in range(400):
        session.attach(
            f"{number}{'n' * 60_000}", SENDER, source=Source("s"), target=Target("orders")
        )
        amqp.receive(peer.data_to_send())
    assert not amqp.is_open
    assert MAX_ATTACHED < amqp.amqp.budget.attached < MAX_ATTACHED + 70_000
    talk.store.close()


def test_the_tag_of_a_delivery_is_counted_until_its_last_frame(talk: Conversation) -> None:
    budget = talk.broker.amqp.budget
    link = talk.attach(SENDER, "orders")
    for more in (True, False):
        frame = encode_transfer(link.handle, 7, b"t" * 5_000, 0, True, more)
        talk.amqp.write_frame(talk.session.channel, frame)
        talk.exchange()
        assert budget.unfinished == (5_000 if more else 0)


def test_what_only_waits_for_the_disk_keeps_no_bytes(talk: Conversation) -> None:
    """A ping, or a request, has nothing that the disk gets: nothing that counts waits there."""
    link, requests = talk.attach(SENDER, "orders"), talk.attach(SENDER, "orders/$management")
    head = Properties(message_id="1", content_type=PING).encoded()
    ask = with_application_properties(
        Properties(message_id="1").encoded(),
        {"operation": "com.microsoft:cancel-scheduled-message"},
    )
    tracemalloc.start()
    talk.broker.receive(talk.amqp.data_to_send())
    before, _ = tracemalloc.get_traced_memory()
    for number in range(100):
        body = {"sequence-numbers": Array([], 0x81), "x": b"x" * 100_000}
        link.send(head + section(DATA, encode(b"x" * 100_000)), b"%d" % number, settled=False)
        requests.send(ask + section(VALUE, encode(body)), b"%d" % number, settled=False)
        talk.broker.receive(talk.amqp.data_to_send())
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(talk.store.batch.callbacks) == 200
    assert after - before < 2_000_000
    talk.exchange()


def test_a_session_s_state_and_other_properties_count_on_their_way_to_the_disk() -> None:
    batch = Batch()
    batch.set_state(1, "s", b"x" * 100, 0)
    batch.set_state(1, "s", None, 0)
    batch.rewrite(1, Entry(sequence=1), b"x" * 50)
    assert batch.size == 150


@pytest.mark.parametrize("ending", ["detach", "drop", "end", "read"])
def test_answers_are_counted_until_they_are_read_or_nobody_waits(
    talk: Conversation, ending: str
) -> None:
    budget = talk.broker.amqp.budget
    requests = talk.attach(SENDER, "orders/$management")
    replies = talk.attach(RECEIVER, "orders/$management")
    for number in range(3):
        message = with_application_properties(
            Properties(message_id=str(number)).encoded(), {"operation": "unknown"}
        )
        requests.send(message + b"\x00\x53\x77" + encode({}), b"%d" % number, settled=True)
        talk.exchange()
        assert budget.answers > number * 50
    assert budget.answers < MAX_ANSWERS_OF_LINK
    if ending == "detach":
        replies.detach()
    elif ending == "drop":
        for link, context in talk.broker.links:
            if getattr(context, "waiting", None):
                talk.broker.drop(link, RequestError("it is over"))
    elif ending == "end":
        talk.session.end()
    else:
        replies.grant(10)
    talk.exchange()
    assert budget.answers == 0


def test_frames_that_wait_for_the_window_are_counted(talk: Conversation) -> None:
    budget = talk.broker.amqp.budget
    (session,) = talk.broker.amqp._sessions.values()
    session._remote_window = 0
    session._transmit(b"x" * 10)
    session._transmit(b"x" * 20)
    assert budget.windowed == 30
    talk.session.flow()
    talk.exchange()
    assert budget.windowed == 0
    session._remote_window = 0
    session._transmit(b"x" * 10)
    talk.session.end()
    talk.exchange()
    assert budget.windowed == 0


async def test_the_body_of_a_request_is_counted_while_it_comes() -> None:
    budget, seen = Budget(), list[int]()

    async def receive() -> dict[str, object]:
        seen.append(budget.bodies)
        return {"type": "http.request", "body": b"x" * 10, "more_body": len(seen) < 4}

    def request() -> Request:
        seen.clear()
        return Request({"type": "http", "state": {"budget": budget}}, receive)

    assert await body_of(request(), 40) == b"x" * 40
    assert seen == [0, 10, 20, 30]
    assert await body_of(request(), 20) is None
    assert seen == [0, 10, 20, 20]
    assert budget.total == 0


async def test_what_a_peer_does_not_read_is_counted(tmp_path: Path) -> None:
    async with echoes(tmp_path) as port:
        reader, writer = await asyncio.open_connection("localhost", port.address.port)
        writer.write(b"x")
        assert await reader.read(1) == b"X"
        (client,) = port.clients
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(50):
            client.receive(b"y" * (1 << 20))
            await asyncio.sleep(0)
            if client.budget.unread:
                break
        assert port.budget.kept()["unread"] == client.budget.unread > 0
        writer.transport.abort()
