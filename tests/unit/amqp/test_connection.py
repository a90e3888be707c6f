"""The life of a connection, from its header to its close, and what becomes of those who err."""

import struct
from typing import Any

import pytest
from tests.unit.amqp.pair import Frame, Pair, bodies, frames, of_kind, raw_frame

from twinbus.amqp.connection import AMQP_HEADER, EMPTY_FRAME, FRAMING_ERROR, SASL_HEADER, Connection
from twinbus.amqp.incoming import (
    Confirmation,
    ConnectionClosed,
    Delivery,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    Opened,
    SessionBegun,
    SessionEnded,
    Settlement,
)
from twinbus.amqp.lifecycle import Phase
from twinbus.amqp.link_endpoint import RECEIVER, SENDER
from twinbus.amqp.performatives import (
    ACCEPTED,
    Accepted,
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from twinbus.amqp.session import HANDLE_MAX
from twinbus.amqp.types import Symbol, encode


def server() -> Connection:
    return Connection(server=True, container_id="server", max_frame_size=4096)


def hello(*performatives: Composite, **options: Any) -> bytes:
    """A client's first bytes without SASL: header, open, and what follows."""
    opening = Open("client", "localhost", **options)
    return AMQP_HEADER + b"".join(raw_frame(item.encoded()) for item in (opening, *performatives))


def outcome(data: bytes, connection: Connection | None = None) -> tuple[list[Event], list[Frame]]:
    """What a server makes of these bytes, and what it answers."""
    connection = connection or server()
    events = list(connection.receive(data))
    return events, frames(connection.data_to_send())


def assert_closed(data: bytes, condition: str, connection: Connection | None = None) -> None:
    """These bytes are answered with a close for this reason, which the last event has too."""
    connection = connection or server()
    events, answer = outcome(data, connection)
    assert isinstance(events[-1], ConnectionClosed)
    assert events[-1].error is not None
    assert events[-1].error.condition == condition
    assert answer[-1].body == Close(events[-1].error)
    assert of_kind(events, ConnectionClosed) == events[-1:]
    assert connection.phase is Phase.CLOSED
    assert list(connection.receive(hello())) == []
    assert connection.data_to_send() == b""


# ---------------------------------------------------------------- opening


def test_sasl_and_open_bring_both_ends_to_open() -> None:
    pair = Pair(
        client={"max_frame_size": 1024, "idle_timeout_s": 30.0}, server={"channel_max": 7}
    ).opened()
    assert (pair.client.phase, pair.server.phase) == (Phase.OPEN, Phase.OPEN)
    [seen] = pair.server_events
    assert isinstance(seen, Opened)
    assert (seen.open.container_id, seen.open.hostname) == ("client", "localhost")
    assert (seen.open.max_frame_size, seen.open.idle_timeout) == (1024, 30_000)
    [answered] = pair.client_events
    assert isinstance(answered, Opened)
    assert (answered.open.container_id, answered.open.channel_max) == ("server", 7)


def test_the_server_offers_anonymous_and_says_yes_to_it() -> None:
    pair = Pair().opened()
    assert pair.server_sent.startswith(SASL_HEADER)
    offer, verdict, opening = bodies(pair.server_sent)
    assert list(offer.mechanisms) == ["MSSBCBS", "ANONYMOUS"]
    assert [type(name) for name in offer.mechanisms] == [Symbol, Symbol]
    assert verdict == SaslOutcome(0)
    assert isinstance(opening, Open)
    assert [frame.kind for frame in frames(pair.server_sent)] == [1, 1, 0]
    assert pair.server_sent.index(AMQP_HEADER) > pair.server_sent.index(verdict.encoded())


def test_a_client_that_skips_sasl_is_served() -> None:
    events, answer = outcome(hello())
    assert [type(event) for event in events] == [Opened]
    assert isinstance(answer[0].body, Open)


def test_a_client_may_say_everything_in_its_first_write() -> None:
    pair = Pair()
    pair.client.start()
    session = pair.client.begin()
    session.attach("link", RECEIVER, source=Source("q"), target=Target("q"))
    pair.to_server()
    kinds = [type(event) for event in pair.server_events]
    assert kinds == [Opened, SessionBegun, LinkAttached]
    of_kind(pair.server_events, LinkAttached)[0].link.accept()
    pair.pump()
    assert [type(event) for event in pair.client_events] == kinds
    assert pair.client_sent.count(AMQP_HEADER) == 1
    assert len(of_kind(bodies(pair.client_sent), Open)) == 1


def test_an_unknown_sasl_mechanism_is_refused_with_an_outcome_and_a_close() -> None:
    connection = server()
    init = raw_frame(SaslInit("PLAIN", b"\0me\0you").encoded(), kind=1)
    assert_closed(SASL_HEADER + init, "amqp:unauthorized-access", connection)
    connection = server()
    answer = outcome(SASL_HEADER + init, connection)[1]
    assert SaslOutcome(1) in [frame.body for frame in answer]


def test_a_close_fits_the_smallest_frame_however_long_a_mechanisms_name_is() -> None:
    init = raw_frame(SaslInit("X" * 4_000).encoded(), kind=1)
    _, answer = outcome(SASL_HEADER + init)
    assert max(frame.size for frame in answer) <= 512


def test_a_client_that_is_refused_closes() -> None:
    connection = Connection(server=False, container_id="client")
    connection.start()
    refusal = SASL_HEADER + raw_frame(SaslOutcome(1).encoded(), kind=1)
    [event] = connection.receive(refusal)
    assert isinstance(event, ConnectionClosed)
    assert event.error is not None


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (b"GET / HT", FRAMING_ERROR),
        (b"AMQP\x00\x00\x09\x01", FRAMING_ERROR),
        (b"AMQP\x02\x01\x00\x00", FRAMING_ERROR),
        (AMQP_HEADER + AMQP_HEADER, FRAMING_ERROR),
        (SASL_HEADER + raw_frame(Open("c").encoded()), FRAMING_ERROR),
        (SASL_HEADER + EMPTY_FRAME, FRAMING_ERROR),
        (SASL_HEADER + raw_frame(b"", kind=1), "amqp:decode-error"),
        (SASL_HEADER + raw_frame(SaslOutcome(0).encoded(), kind=1), "amqp:illegal-state"),
        (SASL_HEADER + raw_frame(SaslMechanisms("X").encoded(), kind=1), "amqp:illegal-state"),
        (AMQP_HEADER + raw_frame(Begin().encoded()), "amqp:illegal-state"),
        (AMQP_HEADER + raw_frame(Close().encoded()), "amqp:illegal-state"),
        (AMQP_HEADER + raw_frame(encode("open")), "amqp:illegal-state"),
        (AMQP_HEADER + raw_frame(Open("c").encoded(), kind=1), FRAMING_ERROR),
        (AMQP_HEADER + raw_frame(Open("c", max_frame_size=511).encoded()), "amqp:invalid-field"),
        (AMQP_HEADER + raw_frame(Open("c").encoded()[:-1]), "amqp:decode-error"),
        (AMQP_HEADER + raw_frame(b"\x00\x53\x10" + encode(["c", None, "x"])), "amqp:decode-error"),
        (AMQP_HEADER + struct.pack(">IBBH", 4097, 2, 0, 0), FRAMING_ERROR),
        (AMQP_HEADER + struct.pack(">IBBH", 2**32 - 1, 2, 0, 0), FRAMING_ERROR),
        (AMQP_HEADER + struct.pack(">IBBH", 7, 2, 0, 0), FRAMING_ERROR),
        (AMQP_HEADER + struct.pack(">IBBH", 0, 0, 0, 0), FRAMING_ERROR),
        (AMQP_HEADER + struct.pack(">IBBH", 8, 1, 0, 0), FRAMING_ERROR),
        (AMQP_HEADER + struct.pack(">IBBH", 8, 3, 0, 0), FRAMING_ERROR),
        (hello() + raw_frame(b"", kind=2), FRAMING_ERROR),
        (hello() + raw_frame(encode("text")), "amqp:not-allowed"),
        (hello() + raw_frame(b"\xff"), "amqp:decode-error"),
        (hello() + raw_frame(b"\x00\x53\x14"), "amqp:not-allowed"),
        (hello(Begin()) + raw_frame(b"\x00\x53\x14"), "amqp:decode-error"),
        (hello(Begin()) + raw_frame(b"\x00\x53\x14\x45"), "amqp:decode-error"),
        (hello(Begin()) + raw_frame(b"\x00\x53\x14\x40"), "amqp:decode-error"),
        (hello(Begin()) + raw_frame(b"\x00\x53\x14" + encode([[]])), "amqp:decode-error"),
        (hello(Begin()) + raw_frame(b"\x00\x53\x13" + encode(["x"])), "amqp:decode-error"),
        (hello(Begin()) + raw_frame(b"\x00\x53\x15" + encode([True])), "amqp:decode-error"),
        (hello(Begin()) + raw_frame(b"\x00\x53\x15" + encode([True, 1, "x"])), "amqp:decode-error"),
        (hello(Begin()) + raw_frame(b"\x00\x53\x15" + encode([True, -1])), "amqp:decode-error"),
        (hello(Begin()) + raw_frame(b"\x00\x53\x15" + encode([True, 1, -2])), "amqp:decode-error"),
        (hello(Begin()) + raw_frame(b"\x00\x53\x15" + encode([1, 1])), "amqp:decode-error"),
        (hello(Begin(), Begin()), "amqp:not-allowed"),
        (hello(Begin(remote_channel=0)), "amqp:invalid-field"),
        (hello(End()), "amqp:not-allowed"),
        (hello(Attach("n", 0, True)), "amqp:not-allowed"),
        (hello(Flow()), "amqp:not-allowed"),
        (hello(Disposition(True, 0)), "amqp:not-allowed"),
        (hello(Open("again")), "amqp:not-allowed"),
        (hello() + raw_frame(Begin().encoded(), channel=5_000), "amqp:not-allowed"),
    ],
)  # fmt: skip
def test_a_breach_of_the_protocol_is_answered_with_its_error_and_a_close(
    data: bytes, condition: str
) -> None:
    assert_closed(data, condition)


def test_before_it_closes_on_a_foreign_header_the_server_shows_its_own() -> None:
    connection = server()
    list(connection.receive(b"GET / HTTP/1.1\r\n"))
    assert connection.data_to_send().startswith(AMQP_HEADER)


def test_a_sasl_header_after_sasl_is_refused() -> None:
    init = raw_frame(SaslInit("ANONYMOUS").encoded(), kind=1)
    assert_closed(SASL_HEADER + init + SASL_HEADER, FRAMING_ERROR)


def test_the_largest_frame_allowed_is_taken_and_one_byte_more_is_not() -> None:
    flow = Flow(0, 10, 0, 10, properties={"pad": "x" * 4000}).encoded()
    pad = 4096 - 8 - len(flow)
    whole = Flow(0, 10, 0, 10, properties={"pad": "x" * (4000 + pad)}).encoded()
    connection = server()
    list(connection.receive(hello(Begin())))
    assert len(raw_frame(whole)) == 4096
    assert list(connection.receive(raw_frame(whole))) == []
    assert connection.phase is Phase.OPEN
    connection.data_to_send()
    assert_closed(raw_frame(whole + b"x"), FRAMING_ERROR, connection)


def test_frames_written_by_the_long_descriptors_are_understood() -> None:
    def long_form(item: Composite, payload: bytes = b"") -> bytes:
        named = b"\x00" + encode(Symbol(item.NAME)) + item.encoded()[3:]
        return raw_frame(named + payload)

    connection = server()
    opening = [Open("c"), Begin(), Attach("n", 0, SENDER, initial_delivery_count=0)]
    events = list(connection.receive(AMQP_HEADER + b"".join(map(long_form, opening))))
    assert [type(event) for event in events] == [Opened, SessionBegun, LinkAttached]
    of_kind(events, LinkAttached)[0].link.accept()
    transfer = long_form(Transfer(0, 0, b"tag", 0, False), b"payload")
    [delivery] = connection.receive(transfer)
    assert isinstance(delivery, Delivery)
    assert delivery.payload == b"payload"
    [flow] = connection.receive(long_form(Flow(0, 10, 1, 10, handle=0, delivery_count=1)))
    assert isinstance(flow, LinkFlow)
    [confirmation] = connection.receive(long_form(Disposition(SENDER, 0, 0, True, ACCEPTED)))
    assert isinstance(confirmation, Confirmation)
    assert connection.phase is Phase.OPEN


def test_an_extended_frame_header_is_passed_over() -> None:
    body = Begin().encoded()
    frame = struct.pack(">IBBH", 16 + len(body), 4, 0, 0) + b"extended" + body
    events, _ = outcome(hello() + frame)
    assert [type(event) for event in events] == [Opened, SessionBegun]


# ---------------------------------------------------------------- cutting the stream


def scripted_client() -> bytes:
    """All a client says in a life: SASL, links both ways, a large message, settlement, goodbye."""
    pair = Pair(server={"max_frame_size": 512})
    pair.opened()
    session, _ = pair.session()
    sending, theirs = pair.link(session, SENDER, name="in")
    theirs.grant(10)
    receiving, delivering = pair.link(session, RECEIVER, name="out")
    receiving.grant(5)
    pair.pump()
    sending.send(b"small", b"t1", False)
    sending.send(b"large" * 200, b"t2", False, 0x80013700)
    delivering.send(b"one", b"d1", False)
    delivering.send(b"two", b"d2", False)
    pair.pump()
    session.settle(RECEIVER, 0, ACCEPTED.encoded())
    session.dispose(1, 1, ACCEPTED, settled=False)
    receiving.grant(0, drain=True)
    pair.pump()
    receiving.detach()
    session.end()
    pair.client.close(Error("amqp:connection:forced", "bye"))
    pair.pump()
    return pair.client_sent


def replay(pieces: list[bytes]) -> tuple[list[Any], bytes]:
    """A server that answers as the scripted one did; its events in words, and what it wrote."""
    connection = Connection(server=True, container_id="server", max_frame_size=512)
    told: list[Any] = []
    served: list[Any] = []
    for piece in pieces:
        for event in connection.receive(piece):
            told.append(describe(event))
            if isinstance(event, LinkAttached):
                event.link.accept()
                if event.link.role == RECEIVER:
                    event.link.grant(10)
            elif isinstance(event, LinkFlow) and event.link.can_send and event.link not in served:
                served.append(event.link)
                event.link.send(b"one", b"d1", False)
                event.link.send(b"two", b"d2", False)
    return told, connection.data_to_send()


def describe(event: Event) -> Any:
    kind = type(event).__name__
    if isinstance(event, Delivery):
        return (kind, event.link.name, event.delivery_id, event.tag, event.message_format,
                event.payload, event.settled)  # fmt: skip
    if isinstance(event, Settlement):
        return kind, event.link.name, event.delivery_id, event.tag, event.state, event.settled
    if isinstance(event, LinkFlow):
        return kind, event.link.name, event.link.credit, event.link.drain
    if isinstance(event, LinkAttached | LinkDetached):
        return kind, event.link.name
    if isinstance(event, ConnectionClosed):
        return kind, event.error
    return kind


def test_where_the_stream_is_cut_makes_no_difference() -> None:
    stream = scripted_client()
    whole, answer = replay([stream])
    assert {told if isinstance(told, str) else told[0] for told in whole} == {
        *("Opened", "SessionBegun", "LinkAttached", "LinkFlow", "Delivery", "Settlement"),
        *("LinkDetached", "SessionEnded", "ConnectionClosed"),
    }
    assert ("Delivery", "in", 1, b"t2", 0x80013700, b"large" * 200, False) in whole
    for cut in range(len(stream) + 1):
        assert replay([stream[:cut], stream[cut:]]) == (whole, answer), f"cut at {cut}"
    assert replay([stream[at : at + 1] for at in range(len(stream))]) == (whole, answer)


def test_an_unfinished_frame_is_all_that_is_kept() -> None:
    connection = server()
    list(connection.receive(hello(Begin())))
    assert connection._tail == b""
    flow = raw_frame(Flow(0, 10, 0, 10).encoded())
    list(connection.receive(flow * 5 + flow[:9]))
    assert connection._tail == flow[:9]
    list(connection.receive(flow[9:]))
    assert connection._tail == b""


# ---------------------------------------------------------------- sessions of a connection


def test_sessions_begin_and_end_from_either_side() -> None:
    pair = Pair().opened()
    ours, theirs = pair.session()
    second, _ = pair.session()
    assert (ours.channel, second.channel) == (0, 1)
    ours.end()
    pair.pump()
    [ended] = pair.take(SessionEnded)
    assert ended.session is theirs
    assert pair.take_client(SessionEnded) == []
    again, _ = pair.session()
    assert again.channel == 0
    theirs = of_kind(pair.server_events, SessionBegun)[-1].session
    theirs.end(Error("amqp:internal-error", "sorry"))
    pair.pump()
    [ended] = pair.take_client(SessionEnded)
    assert (ended.session, ended.error) == (again, Error("amqp:internal-error", "sorry"))
    assert pair.take(SessionEnded) == []


def test_the_server_answers_a_begin_on_the_channel_it_came_by() -> None:
    connection = server()
    data = hello() + raw_frame(Begin(None, 7, 100, 100).encoded(), channel=9)
    _, answer = outcome(data, connection)
    assert (answer[-1].channel, answer[-1].body.remote_channel) == (9, 9)


def test_a_session_that_broke_a_rule_is_heard_no_more_and_the_others_are() -> None:
    pair = Pair().opened()
    sending, _ = pair.sender()
    other, _ = pair.sender()
    pair.server_events.clear()
    pair.inject(raw_frame(Transfer(77, 0, b"t", 0, False).encoded(), channel=0))
    assert [type(event) for event in pair.server_events] == [SessionEnded]
    sending.send(b"unheard", b"t", False)
    pair.inject(raw_frame(Transfer(77, 0, b"t", 0, False).encoded(), channel=0))
    pair.inject(raw_frame(Flow(0, 9, 0, 9, handle=88).encoded(), channel=0))
    pair.inject(raw_frame(Attach("new", 5, True).encoded(), channel=0))
    pair.to_server()
    assert [type(event) for event in pair.server_events] == [SessionEnded]
    other.send(b"heard", b"t", False)
    pair.pump()
    [delivery] = pair.take(Delivery)
    assert delivery.payload == b"heard"
    assert pair.server.phase is Phase.OPEN
    assert len(of_kind(bodies(pair.server_sent), End)) == 1


def test_an_ended_session_writes_nothing_more() -> None:
    pair = Pair().opened()
    _, theirs = pair.receiver()
    session = theirs.session
    session.settle(SENDER, 0, ACCEPTED.encoded())
    session.end(Error("amqp:internal-error"))
    theirs.send(b"late", b"t", False)
    theirs.finish_drain()
    theirs.detach()
    session.settle(SENDER, 1, ACCEPTED.encoded())
    session.flow()
    session.end()
    assert [type(body) for body in bodies(pair.server.data_to_send())] == [Disposition, End]


def test_a_begin_by_the_server_does_not_displace_a_session_of_the_clients() -> None:
    pair = Pair().opened()
    session = pair.client.begin()
    events = list(pair.client.receive(raw_frame(Begin(None, 0, 9, 9).encoded(), channel=0)))
    assert [type(event) for event in events] == [ConnectionClosed]
    assert session.remote_channel is None


def test_a_channel_may_begin_anew_once_its_session_is_over() -> None:
    connection = server()
    events, answer = outcome(hello(Begin(), End(), Begin(), End()), connection)
    assert [type(event) for event in events[1:]] == [SessionBegun, SessionEnded] * 2
    assert [type(frame.body) for frame in answer] == [Open, Begin, End, Begin, End]
    assert connection.phase is Phase.OPEN


# ---------------------------------------------------------------- errors inside a session


def begun(*performatives: Composite) -> tuple[Connection, list[Event], list[Any]]:
    connection = server()
    events, answer = outcome(hello(Begin(), *performatives), connection)
    return connection, events, [frame.body for frame in answer]


SENDS = Attach("n", 0, SENDER, initial_delivery_count=0)


@pytest.mark.parametrize(
    ("breach", "condition"),
    [
        ([SENDS, Attach("m", 0, SENDER)], "amqp:session:handle-in-use"),
        ([Attach("n", HANDLE_MAX + 1, SENDER)], "amqp:not-allowed"),
        ([Transfer(0, 0, b"t")], "amqp:session:unattached-handle"),
        ([Flow(0, 1, 0, 1, handle=0)], "amqp:session:unattached-handle"),
        ([Detach(0)], "amqp:session:unattached-handle"),
        ([Attach("n", 0, RECEIVER), Transfer(0, 0, b"t")], "amqp:not-allowed"),
        ([Open("again")], "amqp:not-allowed"),
        ([SaslInit("ANONYMOUS")], "amqp:not-allowed"),
        ([Accepted()], "amqp:not-allowed"),
    ],
)
def test_a_breach_within_a_session_ends_the_session_with_its_error(
    breach: list[Composite], condition: str
) -> None:
    connection, events, answer = begun(*breach)
    ended = events[-1]
    assert isinstance(ended, SessionEnded)
    assert ended.error is not None
    assert ended.error.condition == condition
    assert answer[-1] == End(ended.error)
    assert connection.phase is Phase.OPEN


@pytest.mark.parametrize(
    "start",
    [Transfer(0), Transfer(0, 0), Transfer(0, None, b"t")],
)
def test_a_delivery_without_id_or_tag_ends_the_session(start: Transfer) -> None:
    connection, events, _ = begun(SENDS)
    of_kind(events, LinkAttached)[0].link.accept()
    [ended] = connection.receive(raw_frame(start.encoded()))
    assert isinstance(ended, SessionEnded)
    assert ended.error is not None
    assert ended.error.condition == "amqp:invalid-field"


@pytest.mark.parametrize(
    "values",
    [[0, "id", b"t"], [0, -1, b"t"], [0, 2**32, b"t"], [0, 0, "tag"], [0, 0, b"t", "format"],
     [0, 0, b"t", -1], [0, 0, b"t", 2**32], [0, True, b"t"]],
)  # fmt: skip
def test_a_delivery_with_a_mistyped_id_tag_or_format_closes(values: list[Any]) -> None:
    connection, events, _ = begun(SENDS)
    of_kind(events, LinkAttached)[0].link.accept()
    connection.data_to_send()
    assert_closed(raw_frame(b"\x00\x53\x14" + encode(values)), "amqp:decode-error", connection)


def test_a_session_has_room_for_so_many_links_and_refuses_the_next() -> None:
    connection = server()
    attaches = [Attach(f"n{n}", n, SENDER) for n in range(HANDLE_MAX + 1)]
    events, _ = outcome(hello(Begin(), *attaches), connection)
    assert len(of_kind(events, LinkAttached)) == HANDLE_MAX + 1
    assert of_kind(events, SessionEnded) == []


# ---------------------------------------------------------------- idling


def test_a_silent_peer_is_closed_when_its_time_is_up() -> None:
    pair = Pair(server={"idle_timeout_s": 60.0}).opened()
    assert of_kind(bodies(pair.server_sent), Open)[0].idle_timeout == 60_000
    assert pair.server.tick(1_000.0) is None
    assert pair.server.tick(1_060.0) is None
    event = pair.server.tick(1_060.5)
    assert isinstance(event, ConnectionClosed)
    assert event.error is not None
    assert event.error.condition == "amqp:resource-limit-exceeded"
    assert of_kind(bodies(pair.server.data_to_send()), Close)[0].error == event.error
    assert pair.server.tick(2_000.0) is None


def test_a_heartbeat_puts_the_timeout_off() -> None:
    pair = Pair(server={"idle_timeout_s": 60.0}).opened()
    pair.server.tick(0.0)
    for now in range(50, 1_000, 50):
        assert list(pair.server.receive(EMPTY_FRAME)) == []
        assert pair.server.tick(float(now)) is None
    assert isinstance(pair.server.tick(1_020.0), ConnectionClosed)


def test_heartbeats_go_out_in_half_the_time_the_peer_allows() -> None:
    pair = Pair(client={"idle_timeout_s": 20.0}).opened()
    assert pair.server.tick(0.0) is None
    pair.server.tick(9.9)
    assert pair.server.data_to_send() == b""
    pair.server.tick(10.0)
    assert pair.server.data_to_send() == EMPTY_FRAME
    pair.server.tick(19.0)
    assert pair.server.data_to_send() == b""
    pair.server.tick(20.0)
    assert pair.server.data_to_send() == EMPTY_FRAME


def test_whoever_spoke_sends_no_heartbeat() -> None:
    pair = Pair(client={"idle_timeout_s": 20.0}).opened()
    _, theirs = pair.receiver()
    pair.server.tick(0.0)
    theirs.send(b"x", b"t", True)
    pair.server.data_to_send()
    pair.server.tick(10.0)
    assert pair.server.data_to_send() == b""
    pair.server.tick(19.9)
    assert pair.server.data_to_send() == b""
    pair.server.tick(20.0)
    assert pair.server.data_to_send() == EMPTY_FRAME


def test_without_idle_timeouts_nobody_is_closed_and_nothing_is_sent() -> None:
    pair = Pair().opened()
    pair.server.tick(0.0)
    assert pair.server.tick(1e9) is None
    assert pair.server.data_to_send() == b""


def test_two_that_tick_keep_each_other_alive() -> None:
    pair = Pair(client={"idle_timeout_s": 10.0}, server={"idle_timeout_s": 10.0}).opened()
    for now in range(0, 300, 2):
        assert pair.client.tick(float(now)) is None
        assert pair.server.tick(float(now)) is None
        pair.to_server()
        pair.to_client()
    assert pair.client_sent.count(EMPTY_FRAME) > 10


# ---------------------------------------------------------------- closing


SASL_INIT = SASL_HEADER + raw_frame(SaslInit("ANONYMOUS").encoded(), kind=1)


@pytest.mark.parametrize(
    ("said", "phase"),
    [
        (b"", Phase.HEADER),
        (b"AMQ", Phase.HEADER),
        (SASL_HEADER, Phase.SASL),
        (SASL_INIT, Phase.HEADER),
        (AMQP_HEADER, Phase.OPENING),
        (SASL_INIT + AMQP_HEADER, Phase.OPENING),
        (hello(), Phase.OPEN),
        (hello(Begin(), SENDS), Phase.OPEN),
    ],
)
def test_a_server_may_close_in_every_phase_with_header_open_and_close(
    said: bytes, phase: Phase
) -> None:
    connection = server()
    list(connection.receive(said))
    assert connection.phase is phase
    connection.close(Error("amqp:connection:forced", "going down"))
    data = connection.data_to_send()
    assert data.count(AMQP_HEADER) == 1
    told = bodies(data)
    assert len(of_kind(told, Open)) == 1
    assert told[-1] == Close(Error("amqp:connection:forced", "going down"))
    assert connection.phase is Phase.CLOSED
    connection.close()
    assert connection.data_to_send() == b""
    assert list(connection.receive(hello())) == []


def test_a_client_may_close_before_the_server_has_said_a_word() -> None:
    pair = Pair()
    pair.client.start()
    pair.client.close()
    pair.to_server()
    assert [type(event) for event in pair.server_events] == [Opened, ConnectionClosed]
    assert pair.server.phase is Phase.CLOSED


def test_a_close_is_answered_and_tells_its_error() -> None:
    pair = Pair().opened()
    pair.client.close(Error("amqp:connection:forced", "bye"))
    pair.pump()
    [closed] = pair.take(ConnectionClosed)
    assert closed.error == Error("amqp:connection:forced", "bye")
    assert bodies(pair.server_sent)[-1] == Close()
    assert pair.take_client(ConnectionClosed) == []


def test_nothing_is_written_behind_a_close() -> None:
    pair = Pair(client={"idle_timeout_s": 1.0}).opened()
    _, theirs = pair.sender()
    theirs.session.settle(RECEIVER, 0, ACCEPTED.encoded())
    pair.server.close()
    theirs.session.settle(RECEIVER, 5, ACCEPTED.encoded())
    theirs.grant(5)
    theirs.detach()
    theirs.session.end()
    pair.server.tick(0.0)
    pair.server.tick(99.0)
    assert [type(body) for body in bodies(pair.server.data_to_send())] == [Disposition, Close]
    theirs.session.settle(RECEIVER, 9, ACCEPTED.encoded())
    assert pair.server.data_to_send() == b""


def test_a_session_begun_behind_a_close_says_nothing() -> None:
    pair = Pair().opened()
    pair.client.close()
    pair.client.data_to_send()
    session = pair.client.begin()
    session.attach("link", SENDER, source=Source("q"), target=Target("q"))
    assert pair.client.data_to_send() == b""


def test_what_follows_a_close_is_not_taken_in() -> None:
    events, _ = outcome(hello(Close(), Begin()))
    assert [type(event) for event in events] == [Opened, ConnectionClosed]


def test_events_before_a_breach_are_told_before_it() -> None:
    events, _ = outcome(hello(Begin(), SENDS) + b"\xff" * 8)
    assert [type(event) for event in events] == [
        Opened,
        SessionBegun,
        LinkAttached,
        ConnectionClosed,
    ]


def test_an_owner_that_closes_amid_the_events_gets_no_more_of_them() -> None:
    connection = server()
    told = []
    for event in connection.receive(hello(Begin(), SENDS)):
        told.append(type(event))
        if isinstance(event, SessionBegun):
            connection.close()
    assert told == [Opened, SessionBegun]
