"""Links, credit, windows, transfers and settlement between two ends joined in memory."""

import time
import tracemalloc
from typing import Any

import pytest
from tests.unit.amqp.pair import Pair, bodies, frames, of_kind, raw_frame

from twinbus.amqp.incoming import (
    Confirmation,
    Delivery,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    SessionEnded,
    Settlement,
)
from twinbus.amqp.lifecycle import LinkState, Phase
from twinbus.amqp.link_endpoint import RECEIVER, SENDER, Link
from twinbus.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    Error,
    Flow,
    Modified,
    Rejected,
    Source,
    Target,
    Transfer,
    encode_transfer,
)
from twinbus.amqp.session import WINDOW
from twinbus.amqp.types import Symbol
from twinbus.budget import MAX_UNFINISHED

ACCEPT = ACCEPTED.encoded()
RELEASE = RELEASED.encoded()
TOP = 2**32


@pytest.fixture
def pair() -> Pair:
    return Pair().opened()


# ---------------------------------------------------------------- attach and detach


@pytest.mark.parametrize("role", [SENDER, RECEIVER])
def test_an_accepted_link_echoes_its_ends_and_is_attached_on_both_sides(
    pair: Pair, role: bool
) -> None:
    session, _ = pair.session()
    source = Source("queue", filter={Symbol("com.microsoft:session-filter"): "s"})
    target = Target("amqps://localhost:5672/queue")
    ours = session.attach("name", role, source=source, target=target, snd_settle_mode=1,
                          rcv_settle_mode=1, properties={Symbol("p"): 1})  # fmt: skip
    pair.pump()
    [asked] = pair.take(LinkAttached)
    assert (asked.link.name, asked.link.role) == ("name", not role)
    assert asked.attach.properties == {"p": 1}
    asked.link.accept(max_message_size=1_000, properties={Symbol("locked"): 5})
    pair.pump()
    [answered] = pair.take_client(LinkAttached)
    assert answered.link is ours
    assert (ours.state, asked.link.state) == (LinkState.ATTACHED, LinkState.ATTACHED)
    reply = answered.attach
    assert (reply.source, reply.target) == (source, target)
    assert (reply.role, reply.max_message_size, reply.properties) == (
        not role,
        1_000,
        {"locked": 5},
    )
    assert (reply.snd_settle_mode, reply.rcv_settle_mode) == (1, 1)
    assert reply.initial_delivery_count == (0 if role == RECEIVER else None)


def test_an_accepted_link_may_answer_with_other_ends(pair: Pair) -> None:
    session, _ = pair.session()
    session.attach("name", RECEIVER, source=Source("q"), target=Target("q"))
    pair.pump()
    pair.take(LinkAttached)[0].link.accept(source=Source("other"))
    pair.pump()
    attach = pair.take_client(LinkAttached)[0].attach
    assert (attach.source, attach.target) == (Source("other"), Target("q"))


def test_a_refused_link_is_attached_with_null_ends_and_detached_in_one_write(pair: Pair) -> None:
    session, _ = pair.session()
    ours = session.attach("name", SENDER, source=Source("q"), target=Target("q"))
    pair.pump()
    error = Error("amqp:not-found", "The messaging entity could not be found")
    pair.take(LinkAttached)[0].link.refuse(error)
    attach, detach = bodies(pair.to_client())
    assert isinstance(attach, Attach)
    assert (attach.source, attach.target) == (None, None)
    assert detach == Detach(0, True, error)
    pair.pump()
    [told] = of_kind(pair.client_events, LinkDetached)
    assert (told.link, told.error) == (ours, error)
    assert ours.state is LinkState.DETACHED
    assert pair.take(LinkDetached) == []
    again = session.attach("name", SENDER, source=Source("q"), target=Target("q"))
    pair.pump()
    assert again.handle == 0
    assert of_kind(pair.server_events, LinkAttached)


@pytest.mark.parametrize("by_server", [True, False])
def test_a_detach_is_answered_and_frees_the_handle(pair: Pair, by_server: bool) -> None:
    ours, theirs = pair.sender()
    pair.client_events.clear()
    pair.server_events.clear()
    error = Error("amqp:link:detach-forced", "bye")
    (theirs if by_server else ours).detach(error)
    pair.pump()
    told = pair.client_events if by_server else pair.server_events
    silent = pair.server_events if by_server else pair.client_events
    assert told == [LinkDetached(ours if by_server else theirs, error)]
    assert silent == []
    assert (ours.state, theirs.state) == (LinkState.DETACHED, LinkState.DETACHED)
    assert ours.session.links == []
    assert theirs.session.links == []
    ours.detach()
    assert pair.client.data_to_send() == b""


def test_both_may_detach_at_once(pair: Pair) -> None:
    ours, theirs = pair.sender()
    ours.detach()
    theirs.detach()
    pair.pump()
    assert (ours.state, theirs.state) == (LinkState.DETACHED, LinkState.DETACHED)
    assert len(of_kind(bodies(pair.client_sent), Detach)) == 1
    assert len(of_kind(bodies(pair.server_sent), Detach)) == 1


def test_a_peer_that_leaves_before_its_answer_is_answered_and_then_let_go(pair: Pair) -> None:
    """A detach of ours must not come before an attach of ours: the handle would be unknown."""
    session, _ = pair.session()
    ours = session.attach("name", RECEIVER, source=Source("q"), target=Target("q"))
    pair.to_server()
    theirs = pair.take(LinkAttached)[0].link
    ours.detach()
    pair.to_server()
    assert [type(event) for event in pair.server_events] == [LinkDetached]
    answer = bodies(pair.server.data_to_send())
    assert [type(body) for body in answer] == [Attach, Detach]
    assert answer[0].source is None
    theirs.accept()
    theirs.refuse(Error("amqp:not-found"))
    assert pair.server.data_to_send() == b""
    assert theirs.state is LinkState.DETACHED


def test_a_link_given_up_before_its_answer_stays_given_up(pair: Pair) -> None:
    session, _ = pair.session()
    ours = session.attach("name", RECEIVER, source=Source("q"), target=Target("q"))
    pair.to_server()
    theirs = pair.take(LinkAttached)[0].link
    ours.detach()
    theirs.accept()
    pair.pump()
    assert (ours.state, theirs.state) == (LinkState.DETACHED, LinkState.DETACHED)
    assert pair.take_client(LinkAttached) == []
    assert (session.links, theirs.session.links) == ([], [])
    assert (pair.client.phase, pair.server.phase) == (Phase.OPEN, Phase.OPEN)
    assert pair.take(SessionEnded) == []


def test_links_of_one_session_have_handles_and_traffic_of_their_own(pair: Pair) -> None:
    session, _ = pair.session()
    pairs = [pair.link(session, SENDER, name=f"n{n}") for n in range(3)]
    assert [ours.handle for ours, _ in pairs] == [0, 1, 2]
    for ours, _ in reversed(pairs):
        ours.send(ours.name.encode(), b"t", True)
    pair.pump()
    got = [(event.link, event.payload) for event in pair.take(Delivery)]
    assert got == [(theirs, theirs.name.encode()) for _, theirs in reversed(pairs)]


# ---------------------------------------------------------------- transfers


def test_a_message_arrives_with_its_tag_and_format(pair: Pair) -> None:
    ours, theirs = pair.sender()
    number = ours.send(b"payload", b"tag", False, 0x80013700)
    pair.pump()
    assert pair.take(Delivery) == [Delivery(theirs, number, b"tag", 0x80013700, b"payload", False)]


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("size", [0, 1, 440, 441, 880, 881, 5_000])
@pytest.mark.parametrize("by_server", [True, False])
def test_a_message_takes_as_many_frames_as_it_needs_both_ways(
    size: int, by_server: bool, settled: bool
) -> None:
    pair = Pair(client={"max_frame_size": 512}, server={"max_frame_size": 512}).opened()
    ours, theirs = pair.receiver() if by_server else pair.sender()
    sending, receiving = (theirs, ours) if by_server else (ours, theirs)
    payload = bytes(n * 7 % 256 for n in range(size))
    first = sending.send(payload, b"t" * 32, settled, 0x80013700)
    second = sending.send(b"next", b"u", True)
    data = (pair.server if by_server else pair.client).data_to_send()
    assert max(frame.size for frame in frames(data)) <= 512
    transfers = [frame for frame in frames(data) if isinstance(frame.body, Transfer)]
    expected = max(1, -(-size // 440))
    assert len(transfers) == expected + 1
    assert [frame.body.more for frame in transfers] == [True] * (expected - 1) + [False, False]
    assert [frame.body.delivery_id for frame in transfers[1:-1]] == [None] * (expected - 1)
    got = list((pair.client if by_server else pair.server).receive(data))
    assert got == [
        Delivery(receiving, first, b"t" * 32, 0x80013700, payload, settled),
        Delivery(receiving, second, b"u", 0, b"next", True),
    ]
    assert receiving.delivery_count == sending.delivery_count == 2


def transfer(*fields: Any, payload: bytes = b"", **named: Any) -> bytes:
    return raw_frame(Transfer(*fields, **named).encoded() + payload)


def test_an_aborted_delivery_is_forgotten_and_the_next_one_is_whole(pair: Pair) -> None:
    _, theirs = pair.sender()
    credit = theirs.credit
    pair.server_events.clear()
    pair.inject(transfer(0, 0, b"a", 0, False, True, payload=b"half of"))
    pair.inject(transfer(0, None, more=True, payload=b" a message"))
    pair.inject(transfer(0, None, aborted=True, payload=b"!"))
    assert pair.server_events == []
    pair.inject(transfer(0, 1, b"b", 5, False, payload=b"whole"))
    assert pair.take(Delivery) == [Delivery(theirs, 1, b"b", 5, b"whole", False)]
    assert theirs.credit == credit - 1


def test_an_aborted_delivery_that_also_says_more_is_over(pair: Pair) -> None:
    pair.sender()
    pair.inject(transfer(0, 0, b"a", 0, False, True, payload=b"half"))
    pair.inject(transfer(0, 0, more=True, aborted=True))
    pair.inject(transfer(0, 1, b"b", 0, False, payload=b"whole"))
    assert [event.payload for event in pair.take(Delivery)] == [b"whole"]


def test_settled_may_be_said_by_a_later_frame_of_a_delivery(pair: Pair) -> None:
    pair.sender()
    pair.inject(transfer(0, 0, b"a", 0, False, True, payload=b"x"))
    pair.inject(transfer(0, 0, b"a", 0, True, False, payload=b"y"))
    [delivery] = pair.take(Delivery)
    assert (delivery.settled, delivery.payload) == (True, b"xy")


def test_a_delivery_begun_within_another_ends_the_session(pair: Pair) -> None:
    """Its bytes would otherwise be taken for the rest of the message before it."""
    pair.sender()
    pair.inject(transfer(0, 0, b"a", 0, False, True, payload=b"half"))
    [ended] = of_kind(pair.inject(transfer(0, 1, b"b", 0, False, payload=b"new")), SessionEnded)
    assert ended.error is not None
    assert ended.error.condition == "amqp:not-allowed"
    assert pair.take(Delivery) == []


def test_deliveries_of_two_links_may_interleave_their_frames(pair: Pair) -> None:
    session, _ = pair.session()
    pair.link(session, SENDER, name="a")
    pair.link(session, SENDER, name="b")
    pair.inject(transfer(0, 0, b"a", 0, False, True, payload=b"a1"))
    pair.inject(transfer(1, 1, b"b", 0, False, True, payload=b"b1"))
    pair.inject(transfer(0, more=False, payload=b"a2"))
    pair.inject(transfer(1, more=False, payload=b"b2"))
    assert [event.payload for event in pair.take(Delivery)] == [b"a1a2", b"b1b2"]


@pytest.mark.parametrize("size", [1_000, 1_001, 50_000])
def test_a_message_over_the_limit_arrives_without_payload_and_the_next_one_whole(size: int) -> None:
    pair = Pair(server={"max_frame_size": 512}).opened()
    ours, theirs = pair.sender(max_message_size=1_000)
    ours.send(b"x" * size, b"big", False, 7)
    pair.pump()
    [delivery] = pair.take(Delivery)
    assert (delivery.tag, delivery.message_format, delivery.settled) == (b"big", 7, False)
    assert delivery.payload == (b"x" * size if size <= 1_000 else None)
    assert theirs._parts == []
    ours.send(b"small", b"next", False)
    pair.pump()
    assert [event.payload for event in pair.take(Delivery)] == [b"small"]


def test_an_endless_message_takes_no_more_memory_than_the_limit(pair: Pair) -> None:
    _, theirs = pair.sender(max_message_size=10_000)
    pair.inject(transfer(0, 0, b"a", 0, False, True))
    piece = transfer(0, None, more=True, payload=b"x" * 999)
    tracemalloc.start()
    for _ in range(2_000):
        assert pair.inject(piece) == []
        assert sum(map(len, theirs._parts or [])) <= 10_000
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 50_000
    pair.inject(transfer(0, None, more=False))
    assert [event.payload for event in pair.take(Delivery)] == [None]


def test_frames_without_payload_are_not_kept_either(pair: Pair) -> None:
    _, theirs = pair.sender(max_message_size=10_000)
    pair.inject(transfer(0, 0, b"a", 0, False, True))
    pair.inject(transfer(0, None, more=True) * 3_000)
    assert len(theirs._parts or []) <= 1
    pair.inject(transfer(0, None, payload=b"end"))
    assert [event.payload for event in pair.take(Delivery)] == [b"end"]


def test_a_limit_of_none_takes_any_size(pair: Pair) -> None:
    ours, _ = pair.sender()
    ours.send(b"x" * 300_000, b"t", False)
    pair.pump()
    assert [len(event.payload or b"") for event in pair.take(Delivery)] == [300_000]


def test_what_arrives_on_a_link_that_we_detached_is_dropped(pair: Pair) -> None:
    ours, theirs = pair.sender()
    theirs.detach(Error("amqp:link:detach-forced"))
    ours.send(b"late", b"t", False)
    pair.pump()
    assert pair.take(Delivery) == []
    assert (pair.server.phase, theirs.session.ended) == (Phase.OPEN, False)


# ---------------------------------------------------------------- credit


def test_credit_is_absolute_and_used_up_by_sending(pair: Pair) -> None:
    ours, theirs = pair.link(pair.session()[0], SENDER)
    assert not ours.can_send
    theirs.grant(2)
    pair.pump()
    assert pair.take_client(LinkFlow) == [LinkFlow(ours)]
    assert ours.credit == 2
    ours.send(b"1", b"1", True)
    assert ours.can_send
    ours.send(b"2", b"2", True)
    assert not ours.can_send
    pair.pump()
    assert theirs.credit == 0
    theirs.grant(5)
    pair.pump()
    assert ours.credit == 5
    theirs.grant(3)
    pair.pump()
    assert ours.credit == 3


def test_credit_that_crossed_a_message_on_the_way_counts_that_message(pair: Pair) -> None:
    ours, theirs = pair.link(pair.session()[0], SENDER)
    theirs.grant(5)
    pair.pump()
    ours.send(b"1", b"1", True)
    theirs.grant(5)
    pair.to_client()
    assert ours.credit == 4
    pair.pump()
    assert theirs.credit == 4


def test_more_sent_than_was_granted_is_still_taken(pair: Pair) -> None:
    ours, theirs = pair.link(pair.session()[0], SENDER)
    ours.send(b"1", b"1", True)
    pair.pump()
    assert [event.payload for event in pair.take(Delivery)] == [b"1"]
    theirs.grant(1)
    pair.pump()
    assert ours.credit == 1


def test_credit_survives_the_wrap_of_the_delivery_count(pair: Pair) -> None:
    ours, theirs = pair.link(pair.session()[0], SENDER)
    ours.delivery_count = theirs.delivery_count = TOP - 2
    theirs.grant(4)
    pair.pump()
    assert ours.credit == 4
    for _ in range(3):
        ours.send(b"x", b"t", True)
    pair.pump()
    assert (ours.delivery_count, theirs.delivery_count) == (1, 1)
    assert (ours.credit, theirs.credit) == (1, 1)
    theirs.grant(2)
    pair.pump()
    assert ours.credit == 2


def test_a_drain_is_answered_with_no_credit_and_the_count_moved_on(pair: Pair) -> None:
    ours, theirs = pair.receiver(credit=10)
    theirs.send(b"1", b"t", True)
    pair.pump()
    ours.grant(9, drain=True)
    pair.pump()
    assert theirs.drain
    assert pair.take(LinkFlow)[-1].link is theirs
    theirs.send(b"2", b"t", True)
    theirs.finish_drain()
    assert not theirs.drain
    flow = bodies(pair.to_client())[-1]
    assert isinstance(flow, Flow)
    assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 10)
    assert (flow.handle, flow.available, flow.next_incoming_id) == (0, 0, 0)
    assert (ours.credit, ours.delivery_count) == (0, 10)
    ours.grant(3)
    pair.pump()
    assert (theirs.credit, theirs.drain) == (3, False)


def test_a_drain_of_no_credit_is_answered_all_the_same(pair: Pair) -> None:
    ours, theirs = pair.receiver(credit=0)
    ours.grant(0, drain=True)
    pair.pump()
    theirs.finish_drain()
    assert bodies(pair.to_client())[-1] == Flow(*(0, WINDOW, 0, WINDOW, 0, 0, 0, 0), drain=True)


def flow_frame(**fields: Any) -> bytes:
    return raw_frame(Flow(0, 1_000, 0, 1_000, **fields).encoded())


def test_an_echo_is_answered_for_a_link_and_for_the_session(pair: Pair) -> None:
    _, theirs = pair.link(pair.session()[0], SENDER)
    theirs.grant(7)
    pair.pump()
    pair.inject(flow_frame(handle=0, delivery_count=0, echo=True))
    [answer] = bodies(pair.server.data_to_send())
    assert (answer.handle, answer.link_credit, answer.echo) == (0, 7, False)
    pair.inject(flow_frame(echo=True))
    [answer] = bodies(pair.server.data_to_send())
    assert (answer.handle, answer.incoming_window, answer.echo) == (None, WINDOW, False)
    pair.inject(flow_frame())
    assert pair.server.data_to_send() == b""


def test_a_link_not_yet_accepted_keeps_its_credit_for_later(pair: Pair) -> None:
    session, _ = pair.session()
    ours = session.attach("name", RECEIVER, source=Source("q"), target=Target("q"))
    ours.grant(5)
    pair.pump()
    theirs = of_kind(pair.server_events, LinkAttached)[0].link
    assert not theirs.can_send
    theirs.accept()
    assert theirs.can_send
    assert theirs.credit == 5


def test_nonsense_credit_gives_none(pair: Pair) -> None:
    _, theirs = pair.receiver(credit=5)
    pair.inject(flow_frame(handle=0, delivery_count=TOP - 100, link_credit=3))
    assert theirs.credit == 0
    pair.inject(flow_frame(handle=0, delivery_count=0, link_credit=TOP - 1))
    assert theirs.credit == 0
    pair.inject(flow_frame(handle=0, delivery_count=0, link_credit=8))
    assert theirs.credit == 8


# ---------------------------------------------------------------- windows


def test_a_sender_stops_at_the_peers_window_and_goes_on_with_its_flow(pair: Pair) -> None:
    _, theirs = pair.receiver()
    session = theirs.session
    pair.inject(raw_frame(Flow(0, 3, 0, 9).encoded()))
    assert session.has_room
    for n in range(7):
        theirs.send(b"%d" % n, b"t", True)
    assert not session.has_room
    assert not theirs.can_send
    sent = [frame.payload for frame in frames(pair.server.data_to_send())]
    assert sent == [b"0", b"1", b"2"]
    pair.inject(raw_frame(Flow(2, 3, 0, 9).encoded()))
    assert [frame.payload for frame in frames(pair.server.data_to_send())] == [b"3", b"4"]
    pair.inject(raw_frame(Flow(5, 9, 0, 9).encoded()))
    assert [frame.payload for frame in frames(pair.server.data_to_send())] == [b"5", b"6"]
    assert session.has_room


def test_the_window_of_the_begin_holds_for_what_was_sent_before_it() -> None:
    pair = Pair().opened()
    session = pair.client.begin()
    link = session.attach("name", SENDER, source=Source("q"), target=Target("q"))
    for _ in range(3):
        link.send(b"x", b"t", True)
    pair.client.data_to_send()
    list(pair.client.receive(raw_frame(Begin(0, 0, 5, 5).encoded())))
    for _ in range(5):
        link.send(b"x", b"t", True)
    assert len(frames(pair.client.data_to_send())) == 2


def test_the_window_survives_the_wrap_of_the_transfer_ids(pair: Pair) -> None:
    _, theirs = pair.receiver()
    theirs.session._next_outgoing_id = TOP - 2
    pair.inject(raw_frame(Flow(TOP - 2, 4, 0, 9).encoded()))
    for _ in range(6):
        theirs.send(b"x", b"t", True)
    assert len(frames(pair.server.data_to_send())) == 4
    assert theirs.session._next_outgoing_id == 2
    pair.inject(raw_frame(Flow(1, 2, 0, 9).encoded()))
    assert len(frames(pair.server.data_to_send())) == 1


@pytest.mark.parametrize("by_server", [True, False])
def test_more_frames_than_the_window_holds_all_arrive(by_server: bool) -> None:
    pair = Pair().opened()
    ours, theirs = pair.receiver() if by_server else pair.sender()
    sending = theirs if by_server else ours
    count = WINDOW + 1_000
    for n in range(count):
        sending.send(n.to_bytes(4), b"t", True)
    assert not sending.session.has_room
    pair.pump()
    got = pair.take_client(Delivery) if by_server else pair.take(Delivery)
    assert [event.payload for event in got] == [n.to_bytes(4) for n in range(count)]
    assert got[-1].delivery_id == count - 1
    assert sending.session.has_room


def test_a_receiver_widens_the_window_unasked(pair: Pair) -> None:
    pair.sender()
    piece = transfer(0, 0, b"t", 0, True, payload=b"x")
    pair.inject(piece * (WINDOW // 2 - 1))
    assert pair.server.data_to_send() == b""
    pair.inject(piece)
    [flow] = bodies(pair.server.data_to_send())
    assert (flow.next_incoming_id, flow.incoming_window, flow.handle) == (WINDOW // 2, WINDOW, None)


# ---------------------------------------------------------------- settlement


def sent(theirs: Link, count: int) -> list[int]:
    return [theirs.send(b"x", b"tag%d" % n, False) for n in range(count)]


@pytest.mark.parametrize("state", [ACCEPTED, RELEASED, Modified(True, True), Rejected(
    Error("com.microsoft:dead-letter", "why", {Symbol("DeadLetterReason"): "r"}))],
    ids=lambda state: type(state).__name__)  # fmt: skip
def test_the_receiver_settles_and_the_sender_confirms(pair: Pair, state: Any) -> None:
    ours, theirs = pair.receiver()
    [number] = sent(theirs, 1)
    pair.pump()
    ours.session.dispose(number, number, state, settled=False)
    pair.pump()
    assert pair.take(Settlement) == [Settlement(theirs, number, b"tag0", state, False)]
    theirs.session.settle(SENDER, number, state.encoded())
    pair.pump()
    assert pair.take_client(Confirmation) == [
        Confirmation(ours.session, number, number, state, True)
    ]
    ours.session.dispose(number, number, state, settled=True)
    pair.pump()
    assert pair.take(Settlement) == []


def test_a_settlement_said_to_be_final_is_told_once(pair: Pair) -> None:
    ours, theirs = pair.receiver()
    [number] = sent(theirs, 1)
    pair.pump()
    for _ in range(2):
        ours.session.settle(RECEIVER, number, ACCEPT)
        pair.pump()
    assert pair.take(Settlement) == [Settlement(theirs, number, b"tag0", ACCEPTED, True)]


def test_the_receivers_settlement_reaches_the_sender_of_the_client(pair: Pair) -> None:
    ours, theirs = pair.sender()
    number = ours.send(b"x", b"tag", False)
    pair.pump()
    theirs.session.settle(RECEIVER, number, ACCEPT)
    [frame] = bodies(pair.to_client())
    assert frame == Disposition(RECEIVER, number, number, True, ACCEPTED)
    assert pair.take_client(Settlement) == [Settlement(ours, number, b"tag", ACCEPTED, True)]


def test_a_delivery_sent_settled_is_not_remembered(pair: Pair) -> None:
    ours, theirs = pair.receiver()
    number = theirs.send(b"x", b"t", True)
    pair.pump()
    ours.session.settle(RECEIVER, number, ACCEPT)
    pair.pump()
    assert pair.take(Settlement) == []
    assert theirs.session._unsettled == {}


@pytest.mark.parametrize(
    ("first", "last", "named"),
    [
        (0, 4, [0, 1, 2, 3, 4]),
        (1, 3, [1, 2, 3]),
        (3, 99, [3, 4]),
        (2, None, [2]),
        (5, 9, []),
        (0, TOP - 1, [0, 1, 2, 3, 4]),
        (1, 0, [1, 2, 3, 4, 0]),
        (TOP - 5, 1, [0, 1]),
    ],
)
def test_a_range_settles_what_is_in_it_and_nothing_else(
    pair: Pair, first: int, last: int | None, named: list[int]
) -> None:
    _, theirs = pair.receiver()
    sent(theirs, 5)
    pair.inject(raw_frame(Disposition(RECEIVER, first, last, True, ACCEPTED).encoded()))
    got = [event.delivery_id for event in pair.take(Settlement)]
    assert sorted(got) == sorted(named)
    assert set(theirs.session._unsettled) == set(range(5)) - set(named)


def test_the_widest_range_there_is_takes_no_time(pair: Pair) -> None:
    _, theirs = pair.receiver()
    sent(theirs, 50)
    widest = [Disposition(role, 0, TOP - 1, True, ACCEPTED) for role in (RECEIVER, SENDER)]
    began = time.perf_counter()
    events = pair.inject(b"".join(raw_frame(item.encoded()) for item in widest) * 100)
    assert time.perf_counter() - began < 0.5
    assert len(of_kind(events, Settlement)) == 50
    assert of_kind(events, Confirmation)[0].last == TOP - 1


def test_neighbours_with_one_outcome_settle_in_one_frame(pair: Pair) -> None:
    ours, theirs = pair.sender()
    for _ in range(10):
        ours.send(b"x", b"t", False)
    pair.pump()
    session = theirs.session
    for number in (0, 1, 2, 3, 5, 6):
        session.settle(RECEIVER, number, ACCEPT)
    session.settle(RECEIVER, 7, RELEASE)
    session.settle(SENDER, 8, RELEASE)
    session.settle(SENDER, 9, RELEASE)
    session.settle(SENDER, 7, RELEASE)
    written = frames(pair.server.data_to_send())
    assert [(item.body.role, item.body.first, item.body.last) for item in written] == [
        *((RECEIVER, 0, 3), (RECEIVER, 5, 6), (RECEIVER, 7, 7)),
        *((SENDER, 8, 9), (SENDER, 7, 7)),
    ]
    assert {type(item.body.state) for item in written[:2]} == {Accepted}
    assert all(item.body.settled for item in written)
    assert pair.server.data_to_send() == b""


def test_settlements_go_out_before_a_frame_that_is_written_after_them(pair: Pair) -> None:
    ours, theirs = pair.sender()
    ours.send(b"x", b"t", False)
    pair.pump()
    theirs.session.settle(RECEIVER, 0, ACCEPT)
    theirs.detach()
    assert [type(body) for body in bodies(pair.server.data_to_send())] == [Disposition, Detach]


@pytest.mark.parametrize("leave", ["ours", "theirs"])
def test_a_detached_link_takes_its_unsettled_deliveries_along(pair: Pair, leave: str) -> None:
    ours, theirs = pair.receiver()
    other, other_theirs = pair.link(ours.session, RECEIVER, name="other")
    sent(theirs, 3)
    kept = other_theirs.send(b"x", b"kept", False)
    pair.pump()
    (ours if leave == "ours" else theirs).detach()
    pair.pump()
    other.session.dispose(0, 99, ACCEPTED, settled=True)
    pair.pump()
    assert [event.delivery_id for event in pair.take(Settlement)] == [kept]


# ---------------------------------------------------------------- delivery-ids beyond 2**32


def test_delivery_ids_wrap_and_are_still_settled(pair: Pair) -> None:
    ours, theirs = pair.receiver()
    theirs.session._next_delivery_id = TOP - 2
    assert sent(theirs, 4) == [TOP - 2, TOP - 1, 0, 1]
    pair.pump()
    assert [event.delivery_id for event in pair.take_client(Delivery)] == [TOP - 2, TOP - 1, 0, 1]
    ours.session.dispose(TOP - 1, 0, ACCEPTED, settled=True)
    pair.pump()
    assert [event.delivery_id for event in pair.take(Settlement)] == [TOP - 1, 0]
    for number in (TOP - 2, TOP - 1, 0, 1):
        ours.session.settle(RECEIVER, number, ACCEPT)
    pair.pump()
    assert [event.delivery_id for event in pair.take(Settlement)] == [TOP - 2, 1]


def test_multi_frame_deliveries_take_one_delivery_id_and_a_transfer_id_a_frame() -> None:
    pair = Pair(client={"max_frame_size": 512}).opened()
    _, theirs = pair.receiver()
    assert theirs.send(b"x" * 1_000, b"t", False) == 0
    assert theirs.send(b"y", b"u", False) == 1
    assert theirs.session._next_outgoing_id == 4


def test_deliveries_that_are_never_finished_end_the_session_and_free_what_they_held() -> None:
    pair = Pair(server={"max_frame_size": 1 << 20}).opened()
    link, remote = pair.sender()
    remote.max_message_size = None
    part = b"x" * (1 << 19)
    ended: list[SessionEnded] = []
    for number in range(MAX_UNFINISHED // len(part) + 2):
        frame = encode_transfer(link.handle, 0 if number == 0 else None, b"t", 0, False, True)
        pair.client.write_frame(link.session.channel, frame + part)
        ended += of_kind(pair.server.receive(pair.client.data_to_send()), SessionEnded)
        assert pair.server.budget.unfinished <= MAX_UNFINISHED + len(part)
    assert [str(event.error.condition) for event in ended if event.error] == [
        "amqp:resource-limit-exceeded"
    ]
    assert pair.server.budget.unfinished == 0


def test_a_delivery_that_is_aborted_in_its_only_frame_never_was(pair: Pair) -> None:
    _, theirs = pair.sender()
    credit = theirs.credit
    pair.server_events.clear()
    pair.inject(transfer(0, 0, b"a", 0, False, aborted=True, payload=b"!"))
    assert pair.server_events == []
    pair.inject(transfer(0, 1, b"b", 0, False, payload=b"whole"))
    assert [event.payload for event in pair.take(Delivery)] == [b"whole"]
    assert theirs.credit == credit - 1


def test_the_last_frame_of_a_delivery_need_say_no_more_than_its_link(pair: Pair) -> None:
    pair.sender()
    pair.inject(transfer(0, 0, b"a", 0, False, True, payload=b"x"))
    short = b"\x00\x53\x14\xc0\x03\x01\x52\x00"
    pair.inject(raw_frame(short + b"y"))
    assert [event.payload for event in pair.take(Delivery)] == [b"xy"]


def test_who_sends_says_where_its_count_begins_and_nobody_else(pair: Pair) -> None:
    for made, count in ((pair.sender, 0), (pair.receiver, None)):
        _, theirs = made()
        assert theirs.remote is not None
        assert theirs.remote.initial_delivery_count == count
