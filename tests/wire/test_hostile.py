"""Hostile clients against a real broker, over real sockets.

Whatever one connection does, it gets the AMQP error that fits and a close, or is closed. A healthy
client sends and receives all the while and must not notice; the broker's memory stays within
bounds and its log has no traceback. The last test plays FUZZED_STREAMS damaged recordings of a
whole client's life.

    TWINBUS_FUZZ_SEED=7 pytest tests/wire/test_hostile.py      other damage
"""

from __future__ import annotations

import os
import select
import socket
import sqlite3
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from harness.brokers import BrokerProcess
from harness.raw import Raw, kilobyte_message
from tests.unit.amqp.pair import raw_frame
from tests.wire.test_fuzz import damaged, pieces

from twinbus.amqp.connection import AMQP_HEADER, SASL_HEADER
from twinbus.amqp.decoding import decode
from twinbus.amqp.incoming import Delivery, Event, LinkAttached, LinkDetached, Settlement
from twinbus.amqp.link_endpoint import RECEIVER, SENDER, Link
from twinbus.amqp.message import (
    Message,
    Properties,
    application_properties,
    encode_annotations,
    with_application_properties,
)
from twinbus.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Modified,
    Open,
    Rejected,
    Released,
    SaslInit,
    Source,
    Target,
    Transfer,
)
from twinbus.amqp.types import Symbol, Timestamp, UInt, ULong, encode

FUZZED_STREAMS = 2_000
SEED = int(os.environ.get("TWINBUS_FUZZ_SEED", "20260728"))

QUEUES: dict[str, dict[str, Any]] = {
    "healthy": {},
    "large": {},
    "deep": {},
    "asked": {},
    "once": {"requires_duplicate_detection": True},
    "fuzz": {"lock_duration": 5, "max_delivery_count": 2_000_000},
    "fuzz-sessions": {"requires_session": True, "lock_duration": 5},
}
MAX_GROWTH_KB = 50 * 1_024
PATIENCE_S = 20.0
HANDSHAKE_S = 30.0  # the broker's

HELLO = AMQP_HEADER + raw_frame(Open("hostile").encoded())
SESSION = raw_frame(Begin(None, 0, 1_000, 1_000).encoded())


# ---------------------------------------------------------------- the healthy and the hostile


class Healthy:
    """A client that sends and receives one message after the other, whatever else goes on."""

    def __init__(self, connection_string: str) -> None:
        self.rounds = 0
        self.error: Exception | None = None
        self._raw = Raw(connection_string)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                number = self.rounds
                assert self._raw.send("healthy", iter([kilobyte_message(number)]), 1) == 1
                assert self._raw.receive("healthy", 1, 1) == 1
                self.rounds += 1
                self._stop.wait(0.02)
        except Exception as error:  # noqa: BLE001  whatever it is, the tests are told
            self.error = error

    def check(self) -> None:
        """Two more rounds from now on, in time."""
        wanted = self.rounds + 2
        end = time.monotonic() + PATIENCE_S
        while self.rounds < wanted and self.error is None and time.monotonic() < end:
            time.sleep(0.01)
        assert self.error is None, f"the healthy client failed: {self.error!r}"
        assert self.rounds >= wanted, "the healthy client was not served"

    def close(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        self._raw.close()


@pytest.fixture(scope="module")
def healthy(broker: BrokerProcess) -> Iterator[Healthy]:
    healthy = Healthy(broker.connection_string)
    healthy.check()
    yield healthy
    healthy.close()


@pytest.fixture(autouse=True)
def _nobody_else_notices(broker: BrokerProcess, healthy: Healthy) -> Iterator[None]:
    before, said = broker.rss_kb(), len(broker.log())
    yield
    healthy.check()
    grown = broker.rss_kb() - before
    assert grown < MAX_GROWTH_KB, f"the broker grew by {grown} KB"
    assert "Traceback" not in broker.log()[said:], broker.log()[said:][-3_000:]


class Peer:
    """A socket that says what it wants, and reads frames."""

    def __init__(self, broker: BrokerProcess, *said: bytes) -> None:
        self.socket = socket.create_connection(("localhost", broker.port), PATIENCE_S)
        self._data = b""
        self.say(*said)

    def say(self, *said: bytes) -> None:
        # It may be closed already; what it was told is read below.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(b"".join(said))

    def read(self) -> Any:
        """The next performative, None for the end."""
        while True:
            if self._data[:4] == b"AMQP":
                self._data = self._data[8:]
                continue
            if len(self._data) >= 8:
                size, offset = struct.unpack_from(">IB", self._data)
                if len(self._data) >= size:
                    frame, self._data = self._data[offset * 4 : size], self._data[size:]
                    return decode(frame, 0)[0] if frame else self.read()
            try:
                more = self.socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not more:
                return None
            self._data += more

    def until(self, kind: type[Any]) -> Any:
        while (found := self.read()) is not None:
            if isinstance(found, kind):
                return found
        raise AssertionError(f"the broker closed before it said {kind.__name__}")

    def closed_with(self) -> str:
        """The condition of the close, behind which the connection must end."""
        close = self.until(Close)
        assert close.error is not None
        assert close.error.description
        assert self.read() is None
        self.socket.close()
        return str(close.error.condition)


# ---------------------------------------------------------------- broken protocol

NESTED = b"".join(
    b"\xd0" + struct.pack(">II", 4 + 9 * (5_000 - depth), 1) for depth in range(5_000)
)
DESCRIBED = b"\x00" * 60_000


def performative(code: int, fields: bytes) -> bytes:
    return raw_frame(b"\x00\x53" + bytes((code,)) + fields)


@pytest.mark.parametrize(
    ("said", "conditions"),
    [
        (b"\x00" * 8, {"amqp:connection:framing-error"}),
        (b"\xff\xfe garbage of all kinds", {"amqp:connection:framing-error"}),
        (b"AMQP\x00\x00\x09\x01", {"amqp:connection:framing-error"}),
        (b"AMQP\x02\x01\x00\x00", {"amqp:connection:framing-error"}),
        (HELLO + b"\x00" * 64, {"amqp:connection:framing-error"}),
        (HELLO + b"\x7f\xff\xff\xff\x02\x00\x00\x00", {"amqp:connection:framing-error"}),
        (HELLO + struct.pack(">IBBH", 70_000, 2, 0, 0), {"amqp:connection:framing-error"}),
        (HELLO + struct.pack(">IBBH", 12, 200, 0, 0), {"amqp:connection:framing-error"}),
        (HELLO + raw_frame(b"\x00\x53\x11\xc0", kind=7), {"amqp:connection:framing-error"}),
        (SASL_HEADER + HELLO, {"amqp:connection:framing-error"}),
        (AMQP_HEADER + SESSION, {"amqp:illegal-state"}),
        (AMQP_HEADER + raw_frame(Close().encoded()), {"amqp:illegal-state"}),
        (HELLO + HELLO[8:], {"amqp:illegal-state", "amqp:not-allowed"}),
        (HELLO + SESSION + SESSION, {"amqp:not-allowed"}),
        (HELLO + raw_frame(End().encoded(), 7), {"amqp:not-allowed"}),
        (HELLO + raw_frame(Detach(0).encoded(), 3), {"amqp:not-allowed"}),
        (HELLO + raw_frame(b"\x00\x53\x14\xc0\x01\x00"), {"amqp:not-allowed"}),
        (HELLO + performative(0x11, NESTED), {"amqp:decode-error"}),
        (HELLO + raw_frame(DESCRIBED), {"amqp:decode-error"}),
        (
            HELLO + performative(0x11, b"\xd0\x00\x00\x00\x08\xff\xff\xff\xff"),
            {"amqp:decode-error"},
        ),
        (
            HELLO + performative(0x11, b"\xd0\xff\xff\xff\xff\x00\x00\x00\x01"),
            {"amqp:decode-error"},
        ),
        (
            HELLO + performative(0x11, b"\xf0\x00\x00\x00\x09\x00\xff\xff\xff\x45"),
            {"amqp:decode-error"},
        ),
        (HELLO + performative(0x11, b"\xc0\x05\x04\x40\xa1\xff"), {"amqp:decode-error"}),
        (HELLO + performative(0x99, b"\x45"), {"amqp:not-allowed", "amqp:decode-error"}),
        (HELLO + raw_frame(b"\xa1\x05hello"), {"amqp:not-allowed", "amqp:decode-error"}),
        (
            SASL_HEADER + raw_frame(SaslInit("PLAIN", b"\x00u\x00p").encoded(), kind=1),
            {"amqp:unauthorized-access"},
        ),
    ],
)
def test_a_broken_protocol_is_answered_with_its_error_and_a_close(
    broker: BrokerProcess, said: bytes, conditions: set[str]
) -> None:
    assert Peer(broker, said).closed_with() in conditions


@pytest.mark.parametrize(
    ("said", "condition"),
    [
        (raw_frame(Transfer(0, UInt(0), b"t").encoded() + b"x"), "amqp:session:unattached-handle"),
        (raw_frame(Detach(5).encoded()), "amqp:session:unattached-handle"),
        (
            raw_frame(Attach("a", 0, SENDER, target=Target("$cbs")).encoded())
            + raw_frame(Attach("b", 0, SENDER, target=Target("$cbs")).encoded()),
            "amqp:session:handle-in-use",
        ),
        (
            raw_frame(Attach("a", 0, RECEIVER, source=Source("$cbs")).encoded())
            + raw_frame(Transfer(0, UInt(0), b"t").encoded() + b"x"),
            "amqp:not-allowed",
        ),
        (
            raw_frame(Attach("a", 99_999, SENDER, target=Target("$cbs")).encoded()),
            "amqp:not-allowed",
        ),
    ],
    ids=["transfer before attach", "detach", "handle twice", "transfer to a sender", "handle"],
)
def test_a_broken_session_ends_with_its_error_and_the_connection_goes_on(
    broker: BrokerProcess, said: bytes, condition: str
) -> None:
    peer = Peer(broker, HELLO, SESSION, said)
    ended = peer.until(End)
    assert ended.error.condition == condition
    peer.say(raw_frame(End().encoded()), SESSION)
    assert isinstance(peer.until(Begin), Begin)
    peer.socket.close()


def test_settling_what_was_never_delivered_changes_nothing(broker: BrokerProcess) -> None:
    wild = Disposition(RECEIVER, 0, 2**32 - 1, True, Accepted())
    wrong_way = Disposition(SENDER, 5, 5, False, Accepted())
    peer = Peer(broker, HELLO, SESSION)
    for _ in range(100):
        peer.say(raw_frame(wild.encoded()), raw_frame(wrong_way.encoded()))
    peer.say(raw_frame(Close().encoded()))
    assert peer.until(Close).error is None
    peer.socket.close()


def test_connections_that_never_open_are_closed(broker: BrokerProcess) -> None:
    """Silence, half a header, half a frame; and one that takes a second for each byte."""
    silent = [Peer(broker, said) for said in (b"", b"AMQP", AMQP_HEADER, HELLO[:-3])]
    slow = Peer(broker)
    started = time.monotonic()
    assert len(HELLO) > HANDSHAKE_S + 10, "it would be through before the time is up"
    with pytest.raises(OSError):  # noqa: PT011  a reset or a broken pipe, as the system likes
        slowly(slow.socket, HELLO)
    assert time.monotonic() - started >= HANDSHAKE_S - 1
    for peer in silent:
        while peer.read() is not None:
            pass
        peer.socket.close()
    slow.socket.close()


def slowly(sock: socket.socket, data: bytes) -> None:
    for at in range(len(data)):
        sock.sendall(data[at : at + 1])
        time.sleep(1)


# ---------------------------------------------------------------- a client with a token


class Asker(Raw):
    """An authorized client that asks `$management`."""

    def open_management(self, queue: str) -> Link:
        self._replies = self.attach(RECEIVER, f"{queue}/$management")
        self._replies.grant(1_000)
        return self.attach(SENDER, f"{queue}/$management")

    def request(self, link: Link, operation: Any, body: Any, tag: bytes = b"r") -> None:
        properties = Properties(message_id=uuid.uuid4(), reply_to="load")
        values = {"operation": operation, "type": "entity-mgmt"}
        message = with_application_properties(properties.encoded(), values)
        link.send(message + b"\x00\x53\x77" + encode(body), tag, settled=True)

    def ask(self, link: Link, operation: Any, body: Any) -> dict[str, Any]:
        self.request(link, operation, body)
        event = self.wait(lambda event: isinstance(event, Delivery))
        assert isinstance(event, Delivery)
        assert event.payload is not None
        return application_properties(Message.parse(event.payload).bare)


@pytest.fixture(scope="module")
def asker(broker: BrokerProcess) -> Iterator[Asker]:
    asker = Asker(broker.connection_string)
    yield asker
    asker.close()


@pytest.fixture(scope="module")
def manager(asker: Asker) -> Link:
    return asker.open_management("asked")


BIG, SMALL = ULong(2**64 - 1), -(2**63)


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("no-such-thing", {}),
        (["a", "list"], {}),
        (None, {}),
        ("com.microsoft:peek-message", []),
        ("com.microsoft:peek-message", "text"),
        ("com.microsoft:peek-message", {}),
        ("com.microsoft:peek-message", {"from-sequence-number": "1", "message-count": 1}),
        ("com.microsoft:peek-message", {"from-sequence-number": BIG, "message-count": BIG}),
        ("com.microsoft:peek-message", {"from-sequence-number": SMALL, "message-count": -1}),
        ("com.microsoft:update-disposition", {"disposition-status": [], "lock-tokens": []}),
        ("com.microsoft:update-disposition", {"disposition-status": {}, "lock-tokens": 5}),
        (
            "com.microsoft:update-disposition",
            {"disposition-status": "completed", "lock-tokens": [uuid.uuid4()]},
        ),
        ("com.microsoft:renew-lock", {"lock-tokens": [uuid.uuid4()]}),
        ("com.microsoft:renew-lock", {"lock-tokens": [None]}),
        ("com.microsoft:cancel-scheduled-message", {"sequence-numbers": [BIG]}),
        ("com.microsoft:cancel-scheduled-message", {"sequence-numbers": [SMALL]}),
        (
            "com.microsoft:receive-by-sequence-number",
            {"sequence-numbers": [BIG], "receiver-settle-mode": UInt(1)},
        ),
        (
            "com.microsoft:receive-by-sequence-number",
            {"sequence-numbers": [1], "receiver-settle-mode": []},
        ),
        ("com.microsoft:schedule-message", {"messages": [{"message": b"garbage"}]}),
        ("com.microsoft:schedule-message", {"messages": [{"message": b""}, 5]}),
        ("com.microsoft:schedule-message", {"messages": []}),
        ("com.microsoft:set-session-state", {"session-id": "a", "session-state": b"x"}),
        ("com.microsoft:get-session-state", {"session-id": 5}),
        ("com.microsoft:get-message-sessions", {"last-updated-time": 0, "skip": BIG, "top": -1}),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_with_a_reason(
    asker: Asker, manager: Link, operation: Any, body: Any
) -> None:
    answer = asker.ask(manager, operation, body)
    assert answer["statusCode"] >= 204
    assert answer["statusDescription"]


@pytest.mark.parametrize("top", [-1, 0, 2**31 - 1])
def test_a_list_of_sessions_takes_any_numbers(asker: Asker, top: int) -> None:
    for session in ("fuzz-sessions",):
        link = asker.open_management(session)
        for skip in (BIG, -5, 0):
            body = {"last-updated-time": Timestamp(0), "skip": skip, "top": top}
            assert asker.ask(link, "com.microsoft:get-message-sessions", body)["statusCode"] >= 204
        link.detach()


@pytest.mark.parametrize(
    "name_and_token",
    [
        ("sb://[half/asked", "SharedAccessSignature sr=a&sig=b&se=9999999999&skn=c"),
        ("", ""),
        ("sb://localhost/", "SharedAccessSignature sr=sb%3A%2F%2F%5Bx&sig=b&se=9999999999&skn=c"),
        ("sb://localhost/", "SharedAccessSignature sr=a&sig=%C3%A9&se=9999999999&skn=$KEYNAME"),
        ("sb://localhost/", "SharedAccessSignature " + "&" * 10_000),
        ("sb://localhost/", "jwt.jwt.jwt"),
        (5, b"binary"),
        (None, ["list"]),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(
    broker: BrokerProcess, name_and_token: tuple[Any, Any]
) -> None:
    name, token = name_and_token
    if isinstance(token, str):
        token = token.replace("$KEYNAME", "RootManageSharedAccessKey")
    peer = Tokenless(broker.connection_string)
    assert peer.put(name, token) in (400, 401)
    peer.close()


class Tokenless(Raw):
    """A client that has shown no token yet."""

    def _authorize(self, parts: dict[str, str]) -> None:
        self._requests = self.attach(SENDER, "$cbs")
        self._answers = self.attach(RECEIVER, "$cbs")
        self._answers.grant(100)

    def put(self, name: Any, token: Any) -> int:
        properties = Properties(message_id=uuid.uuid4(), reply_to="load")
        values = {"operation": "put-token", "type": "servicebus.windows.net:sastoken"}
        values["name"] = name
        message = with_application_properties(properties.encoded(), values)
        self._requests.send(message + b"\x00\x53\x77" + encode(token), b"cbs", settled=True)
        event = self.wait(lambda event: isinstance(event, Delivery))
        assert isinstance(event, Delivery)
        assert event.payload is not None
        status = application_properties(Message.parse(event.payload).bare)["status-code"]
        return int(status)


@pytest.mark.parametrize("role", [SENDER, RECEIVER])
@pytest.mark.parametrize(
    "address",
    ["asked", "asked/$management", "amqps://[half/asked", "", "$cbs/$management", "no-such", None],
)
def test_without_a_token_no_link_is_given(broker: BrokerProcess, role: bool, address: Any) -> None:
    peer = Tokenless(broker.connection_string)
    with pytest.raises(ConnectionError, match=r"amqp:(unauthorized-access|not-found)"):
        peer.attach(role, address)
    peer.close()


@pytest.mark.parametrize("address", ["amqps://[half/asked", "", None, "/", "asked/$nothing"])
def test_an_address_that_leads_nowhere_is_refused(broker: BrokerProcess, address: Any) -> None:
    peer = Raw(broker.connection_string)
    with pytest.raises(ConnectionError, match="amqp:not-found"):
        peer.attach(RECEIVER, address)
    peer.close()


def transfer(handle: int, number: int, payload: bytes, *, more: bool) -> bytes:
    head = Transfer(handle, UInt(number), struct.pack(">I", number), more=more).encoded()
    return head + payload


def test_a_message_over_the_limit_is_rejected_and_never_held(broker: BrokerProcess) -> None:
    """60 MB in one message, frame by frame; the next message is taken."""
    raw = Raw(broker.connection_string)
    link = raw.attach(SENDER, "large")
    assert raw.session is not None
    before = broker.rss_kb()
    chunk = b"x" * 60_000
    for _ in range(1_000):
        raw.amqp.write_frame(raw.session.channel, transfer(link.handle, 0, chunk, more=True))
        raw.flush()
    assert broker.rss_kb() - before < MAX_GROWTH_KB
    expect(link, 0)
    raw.amqp.write_frame(raw.session.channel, transfer(link.handle, 0, chunk, more=False))
    first = raw.wait(lambda event: isinstance(event, Settlement | LinkDetached))
    assert isinstance(first, Settlement)
    assert isinstance(first.state, Rejected)
    assert first.state.error is not None
    assert first.state.error.condition == "amqp:link:message-size-exceeded"
    expect(link, 1)
    raw.amqp.write_frame(
        raw.session.channel, transfer(link.handle, 1, kilobyte_message(1), more=False)
    )
    second = next(e for e in settlements(raw) if e.state is not first.state)
    assert isinstance(second.state, Accepted)
    raw.close()


def expect(link: Link, number: int) -> None:
    """Have the answer to a delivery told that was written frame by frame."""
    link.session._unsettled[number] = (link, struct.pack(">I", number))


def settlements(raw: Raw) -> Iterator[Settlement]:
    while True:
        for event in raw.step():
            if isinstance(event, Settlement):
                yield event


@pytest.mark.parametrize("frames", [1, 5_000])
def test_a_message_that_is_no_message_is_rejected(broker: BrokerProcess, frames: int) -> None:
    """Also one in very many frames with nothing in them."""
    raw = Raw(broker.connection_string)
    link = raw.attach(SENDER, "large")
    assert raw.session is not None
    for _ in range(frames - 1):
        raw.amqp.write_frame(raw.session.channel, transfer(link.handle, 0, b"", more=True))
    expect(link, 0)
    raw.amqp.write_frame(raw.session.channel, transfer(link.handle, 0, b"noise", more=False))
    event = next(settlements(raw))
    assert isinstance(event.state, Rejected)
    raw.close()


@pytest.mark.parametrize(
    "properties",
    [b"\xc1\x09\x02\xa1\x01k\xa1\x03\xff\xff\xff", encode({5: "five"}), encode("text")],
    ids=["0xff inside", "a number for a key", "a text"],
)
def test_properties_that_cannot_be_read_are_rejected_and_their_id_is_free(
    broker: BrokerProcess, properties: bytes
) -> None:
    raw = Raw(broker.connection_string)
    link = raw.attach(SENDER, "once")
    head = Properties(message_id=uuid.uuid4().hex).encoded()
    conditions = []
    for number, more in enumerate((b"\x00\x53\x74" + properties, b"")):
        link.send(head + more + b"\x00\x53\x75\xa0\x04body", struct.pack(">I", number), False)
        answer = raw.wait(lambda event: isinstance(event, Settlement))
        assert isinstance(answer, Settlement)
        state = answer.state
        conditions.append(
            state.error.condition if isinstance(state, Rejected) and state.error else ""
        )
    assert conditions == ["com.microsoft:argument-error", ""]
    assert raw.receive("once", 1, 1) == 1
    raw.close()


def test_messages_with_wild_times_and_annotations_do_not_harm_the_queue(
    broker: BrokerProcess,
) -> None:
    """Each is taken or rejected; then the queue is received from, and has the good one."""
    raw = Raw(broker.connection_string)
    link = raw.attach(SENDER, "deep")
    good = kilobyte_message(1)
    last = 2**63 - 1
    odd: list[Any] = [BIG, SMALL, last, -1, 0, "soon", [], {}, None, uuid.uuid4(), 1.5, b"x"]
    payloads = [
        encode_annotations({Symbol("x-opt-scheduled-enqueue-time"): value}) + good for value in odd
    ]
    payloads += [
        encode_annotations(
            {Symbol("x-opt-partition-key"): value, Symbol("x-opt-" + "k" * 100): value}
        )
        + good
        for value in odd
    ]
    payloads += [
        Properties(message_id="t", creation_time=a, absolute_expiry_time=b).encoded()
        + good[-1_100:]
        for a in (0, SMALL, last)
        for b in (0, SMALL, last)
    ]
    payloads += [
        b"\x00\x53\x70" + encode([True, None, UInt(2**32 - 1)]) + good,
        b"\x00\x53\x71" + encode({Symbol("x"): [[[[]]]]}) + good,
        good,
    ]
    told = []
    for number, payload in enumerate(payloads):
        link.send(payload, struct.pack(">I", number), settled=False)
        told.append(next(settlements(raw)).state)
    assert isinstance(told[-1], Accepted)
    accepted = sum(isinstance(state, Accepted) for state in told)
    reader = Raw(broker.connection_string)
    got = receive_all(reader, "deep")
    assert 0 < len(got) <= accepted
    reader.close()
    raw.close()


def receive_all(raw: Raw, address: str, quiet_s: float = 2.0) -> list[Delivery]:
    """Whatever comes until nothing does, completed."""
    link = raw.attach(RECEIVER, address, settle_second=True)
    link.grant(500)
    got: list[Delivery] = []
    raw.socket.settimeout(quiet_s)
    assert raw.session is not None
    try:
        while True:
            for event in raw.step():
                if isinstance(event, Delivery):
                    got.append(event)
                    raw.session.dispose(
                        event.delivery_id, event.delivery_id, Accepted(), settled=False
                    )
            if link.credit < 250:
                link.grant(500)
    except TimeoutError:
        raw.socket.settimeout(None)
    return got


# ---------------------------------------------------------------- greed


def test_a_client_that_never_reads_is_not_waited_for(broker: BrokerProcess) -> None:
    filler = Raw(broker.connection_string)
    filler.send("large", (kilobyte_message(n, 10_000) for n in range(4_000)), 500)
    before = broker.rss_kb()
    greedy = Raw(broker.connection_string)
    greedy.attach(RECEIVER, "large", settle_second=True).grant(2**31 - 1)
    greedy.flush()
    time.sleep(2)
    assert broker.rss_kb() - before < MAX_GROWTH_KB // 2
    assert filler.receive("large", 10, 10) == 10
    greedy.socket.close()
    filler.close()


@pytest.mark.parametrize("credit", [0, 1_000_000])
def test_answers_that_nobody_reads_do_not_pile_up(broker: BrokerProcess, credit: int) -> None:
    """Each peek answers up to a megabyte; 900 of them fit into a few writes."""
    filler = Raw(broker.connection_string)
    filler.send("asked", (kilobyte_message(n, 4_000) for n in range(300)), 100)
    greedy = Asker(broker.connection_string)
    link = greedy.open_management("asked")
    greedy._replies.grant(credit)
    body = {"from-sequence-number": 1, "message-count": 250}
    for _ in range(900):
        greedy.request(link, "com.microsoft:peek-message", body)
    before = peak = broker.rss_kb()
    greedy.socket.settimeout(5)
    with suppress(OSError):  # it may be closed, or not read from, by now
        greedy.flush()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        peak = max(peak, broker.rss_kb())
        time.sleep(0.02)
    assert peak - before < MAX_GROWTH_KB
    greedy.socket.close()
    filler.close()


def test_very_many_links_on_one_connection_are_cut_off(broker: BrokerProcess) -> None:
    """Before any token: attaching is free for the client, so it must be bounded for the broker."""
    peer = Peer(broker, HELLO)
    reader = threading.Thread(target=drain, args=(peer.socket,), daemon=True)
    reader.start()
    before = broker.rss_kb()
    for channel in range(200):
        said = raw_frame(Begin(None, 0, 1_000, 1_000).encoded(), channel)
        for handle in range(1_000):
            attach = Attach(f"{handle}", handle, SENDER, source=Source("s"), target=Target("$cbs"))
            said += raw_frame(attach.encoded(), channel)
        peer.say(said)
        if not reader.is_alive():
            break
    assert broker.rss_kb() - before < MAX_GROWTH_KB
    peer.socket.close()
    reader.join(PATIENCE_S)


def drain(sock: socket.socket) -> None:
    try:
        while sock.recv(1 << 20):
            pass
    except OSError:
        pass


# ---------------------------------------------------------------- damaged lives


class Recorder(Asker):
    """A client whose every byte is kept."""

    def __init__(self, connection_string: str) -> None:
        self.said = b""
        self._delivered: list[Delivery] = []
        super().__init__(connection_string)

    def flush(self) -> None:
        data = self.amqp.data_to_send()
        self.said += data
        if data:
            self.socket.sendall(data)

    def step(self) -> list[Event]:
        events = super().step()
        self._delivered += [e for e in events if isinstance(e, Delivery) and not e.settled]
        return events

    def settle_next(self, state: Any) -> None:
        while not self._delivered:
            self.step()
        event = self._delivered.pop(0)
        assert self.session is not None
        self.session.dispose(event.delivery_id, event.delivery_id, state, settled=False)
        self.flush()


def recorded_life(broker: BrokerProcess) -> bytes:
    """All that a client says that does a bit of everything."""
    client = Recorder(broker.connection_string)
    sender = client.attach(SENDER, "fuzz")
    notes = encode_annotations(
        {
            Symbol("x-opt-partition-key"): "p",
            Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1_000),
        }
    )
    header = b"\x00\x53\x70" + encode([True, None, UInt(3_600_000)])
    for number, head in enumerate((b"", notes, header, header + notes)):
        message = head + kilobyte_message(number, 50)
        sender.send(message, bytes((number,)), settled=False)
    batch = b"".join(b"\x00\x53\x75" + encode(kilobyte_message(n, 20)) for n in range(2))
    sender.send(batch, b"b", False, 0x80013700)
    in_session = client.attach(SENDER, "fuzz-sessions")
    message = Properties(message_id="s", group_id="one").encoded() + b"\x00\x53\x75\xa0\x01x"
    in_session.send(message, b"s", settled=False)
    receiver = client.attach(RECEIVER, "fuzz", settle_second=True)
    receiver.grant(5)
    for state in (Accepted(), Released(), Modified(True, False, {Symbol("n"): 1}), Rejected()):
        client.settle_next(state)
    assert client.session is not None
    source = Source("fuzz-sessions", filter={Symbol("com.microsoft:session-filter"): "one"})
    held = client.session.attach("held", RECEIVER, source=source, target=Target("x"))
    held.grant(2)
    client.wait(lambda event: isinstance(event, LinkAttached) and event.link is held)
    manager = client.open_management("fuzz")
    for operation, body in (
        ("peek-message", {"from-sequence-number": 1, "message-count": 2}),
        ("renew-lock", {"lock-tokens": [uuid.UUID(int=5)]}),
        ("cancel-scheduled-message", {"sequence-numbers": [4]}),
        ("receive-by-sequence-number", {"sequence-numbers": [2], "receiver-settle-mode": UInt(1)}),
        (
            "update-disposition",
            {"disposition-status": "suspended", "lock-tokens": [uuid.UUID(int=7)]},
        ),
        ("schedule-message", {"messages": [{"message-id": "m", "message": message}]}),
        ("set-session-state", {"session-id": "one", "session-state": b"state"}),
        ("get-message-sessions", {"last-updated-time": 0, "skip": 0, "top": 5}),
    ):
        client.ask(manager, "com.microsoft:" + operation, body)
    receiver.grant(1, drain=True)
    client.flush()
    sender.detach()
    client.flush()
    client.session.end()
    client.amqp.close()
    client.flush()
    client.socket.close()
    return client.said


class Witness:
    """A healthy client beside them, one a thread, whose ping goes through the disk: when it is
    answered, all that the broker had been told before has been done and answered too."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._mine = threading.local()

    def wait(self) -> None:
        if not hasattr(self._mine, "raw"):
            self._mine.raw = Raw(self._broker.connection_string)
            self._mine.sender = self._mine.raw.attach(SENDER, "fuzz")
        self._mine.sender.send(PING, b"ping", settled=False)
        self._mine.raw.wait(lambda event: isinstance(event, Settlement))


PING = (
    Properties(content_type="application/vnd.ms-servicebus-ping").encoded()
    + b"\x00\x53\x75\xa0\x00"
)


class Tally:
    """How far the damaged streams got, so that a fuzz that tests nothing is noticed."""

    def __init__(self) -> None:
        self.attached = self.stored = self.refused = self.hung = 0
        self.conditions: set[str] = set()

    def add(self, answer: bytes | None) -> None:
        if answer is None:
            self.hung += 1
            return
        self.attached += b"\x00\x53\x12" in answer
        if b"\x00\x53\x24" in answer:
            self.stored += 1
        else:
            self.refused += b"\x00\x53\x25" in answer
        for condition in (b"decode-error", b"framing-error", b"not-allowed", b"illegal-state"):
            if condition in answer:
                self.conditions.add(condition.decode())


def play(port: int, data: bytes, witness: Witness) -> bytes | None:
    """Say all of it, in thirds, and each only when the broker has done with the last, however busy
    the machine is. Hear all of the answer.

    None if the broker never closes.
    """
    third = len(data) // 3 + 1
    answer = b""
    with socket.create_connection(("localhost", port), PATIENCE_S) as sock:
        try:
            for start in range(0, len(data), third):
                sock.sendall(data[start : start + third])
                witness.wait()
                while select.select([sock], [], [], 0)[0]:
                    more = sock.recv(1 << 18)
                    answer += more
                    if not more:
                        return answer
            sock.shutdown(socket.SHUT_WR)
            while more := sock.recv(1 << 18):
                answer += more
            return answer
        except TimeoutError:
            return None
        except OSError:
            return answer  # reset while it was still being spoken to


def test_damaged_lives_of_clients_harm_nobody(broker: BrokerProcess) -> None:
    print(f"TWINBUS_FUZZ_SEED={SEED}")
    whole = recorded_life(broker)
    parts = pieces(whole)
    assert len(parts) > 30
    tally, witness = Tally(), Witness(broker)

    def one(number: int) -> bytes | None:
        return play(broker.port, damaged(Random(f"{SEED} life {number}"), parts), witness)

    with ThreadPoolExecutor(4) as pool:
        for answer in pool.map(one, range(FUZZED_STREAMS)):
            tally.add(answer)
    print(vars(tally))
    assert tally.hung == 0
    assert tally.attached > FUZZED_STREAMS / 4, vars(tally)
    assert tally.stored > FUZZED_STREAMS / 4, vars(tally)
    assert len(tally.conditions) == 4, vars(tally)
    whole_again = play(broker.port, whole, witness)
    assert whole_again is not None
    assert decode(whole_again[-8 - len(Close().encoded()) + 8 :], 0)[0] == Close()


def test_what_damaged_clients_left_behind_can_be_received(broker: BrokerProcess) -> None:
    """No message that was let in may be one that cannot be let out."""
    whole = recorded_life(broker)
    parts = pieces(whole)
    witness = Witness(broker)
    for number in range(200):
        play(broker.port, damaged(Random(f"{SEED} left {number}"), parts), witness)
    time.sleep(6)  # the locks of those who left
    reader = Raw(broker.connection_string)
    for address in ("fuzz", "fuzz/$DeadLetterQueue", "fuzz-sessions/$DeadLetterQueue"):
        receive_all(reader, address)
    reader.close()
    path = broker.folder / "data" / "contoso" / "messages.db"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as link:
        ids = dict(link.execute("SELECT path, id FROM entity").fetchall())
        (left,) = link.execute(
            "SELECT count(*) FROM message WHERE id >> 40 = ? AND state = 0", (ids["fuzz"],)
        ).fetchone()
        negative = link.execute(
            "SELECT path FROM entity WHERE active < 0 OR deferred < 0 OR scheduled < 0 OR bytes < 0"
        ).fetchall()
        wrong = link.execute(
            "SELECT path, active, deferred, scheduled FROM entity WHERE (active, deferred, "
            "scheduled) != (SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER "
            "(WHERE state = 1), count(*) FILTER (WHERE state = 2) FROM message "
            "WHERE message.id >> 40 = entity.id)"
        ).fetchall()
    link.close()
    assert (left, negative, wrong) == (0, [], [])
