"""Habits of the SDKs of other languages, reproduced on the wire with our own client's role."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any, TypeVar
from uuid import UUID

import pytest
from harness.brokers import BrokerProcess
from harness.raw import Raw, kilobyte_message
from tests.integration.administrators import ask

from twinbus.amqp.decoding import decode
from twinbus.amqp.incoming import (
    Confirmation,
    ConnectionClosed,
    Delivery,
    Event,
    LinkAttached,
    LinkDetached,
    Settlement,
)
from twinbus.amqp.link_endpoint import RECEIVER, SENDER, Link
from twinbus.amqp.message import (
    Message,
    Properties,
    application_properties,
    with_application_properties,
)
from twinbus.amqp.performatives import (
    ACCEPTED,
    Accepted,
    Attach,
    Detach,
    Flow,
    Modified,
    Rejected,
    Source,
    Target,
    encode_disposition,
)
from twinbus.amqp.sections import body_value
from twinbus.amqp.session import Session
from twinbus.amqp.types import Array, Described, Int, Symbol, Timestamp, ULong, encode

QUEUES: dict[str, dict[str, Any]] = {
    **{f"channel-{n}": {} for n in range(20)},
    **{name: {} for name in ("drain", "range", "large", "ids", "purge", "settle", "counted")},
    "late": {"lock_duration": 5},
    "sessions": {"requires_session": True},
}
ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
E = TypeVar("E")


class Peer(Raw):
    """A connection whose owner sees every event and every frame."""

    def __init__(self, connection_string: str) -> None:
        self.seen: list[Event] = []
        self.reads: list[bytes] = []
        self._nodes: dict[str, tuple[Link, Link]] = {}
        super().__init__(connection_string)
        self.socket.settimeout(15)

    def step(self) -> list[Event]:
        self.flush()
        data = self.socket.recv(1 << 18)
        assert data, "the broker closed the connection"
        self.reads.append(data)
        events = list(self.amqp.receive(data))
        assert not any(isinstance(event, ConnectionClosed) for event in events), events
        self.seen += events
        return events

    def next(self, kind: type[E], link: Link | None = None) -> E:
        """The first event of a kind, of this link if one is named, taken out of those seen."""
        while True:
            for event in self.seen:
                if isinstance(event, kind) and link in (None, getattr(event, "link", None)):
                    self.seen.remove(event)
                    return event
            self.step()

    def frames(self) -> list[tuple[int, Any]]:
        """The performatives that were read, with their channels."""
        data, pos, found = b"".join(self.reads), 0, []
        while pos < len(data):
            if data[pos : pos + 4] == b"AMQP":
                pos += 8
                continue
            size = int.from_bytes(data[pos : pos + 4])
            channel = int.from_bytes(data[pos + 6 : pos + 8])
            if size > 8 and data[pos + 5] == 0:
                found.append((channel, decode(data[pos + 8 : pos + size], 0)[0]))
            pos += size
        return found

    def open(
        self, role: bool, address: str, *, session: Session | None = None, **filters: Any
    ) -> Link:
        """A link on a session of its own, as the JavaScript SDK does it."""
        session = session or self.amqp.begin()
        wanted = {Symbol(name): value for name, value in filters.items()} or None
        link = session.attach(
            uuid.uuid4().hex,
            role,
            source=Source(address if role == RECEIVER else "peer", filter=wanted),
            target=Target(address if role == SENDER else "peer"),
            rcv_settle_mode=1 if role == RECEIVER else 0,
        )
        self.next(LinkAttached, link)
        return link

    def put(self, address: str, *payloads: bytes) -> None:
        link = self.open(SENDER, address)
        while not link.can_send:
            self.step()
        for number, payload in enumerate(payloads):
            link.send(payload, number.to_bytes(4), settled=False)
        for _ in payloads:
            assert isinstance(self.next(Settlement, link).state, Accepted)

    def take(self, address: str, count: int) -> tuple[Link, list[Delivery]]:
        link = self.open(RECEIVER, address)
        link.grant(count)
        return link, [self.next(Delivery, link) for _ in range(count)]

    def dispose(self, link: Link, first: int, last: int, state: Any) -> None:
        """One disposition for a range of deliveries, unsettled: it waits for the answer."""
        frame = encode_disposition(RECEIVER, first, last, False, encode(state))
        self.amqp.write_frame(link.session.channel, frame)

    def node(self, path: str) -> tuple[Link, Link]:
        """An entity's $management: the link for requests, and the one for answers."""
        if path not in self._nodes:
            replies = self.open(RECEIVER, f"{path}/$management")
            requests = self.open(SENDER, f"{path}/$management", session=replies.session)
            replies.grant(1_000)
            while not requests.can_send:
                self.step()
            self._nodes[path] = requests, replies
        return self._nodes[path]

    def ask(self, node: str, operation: str, body: Any) -> tuple[int, dict[str, Any], Any]:
        """One request to an entity's $management: its status, its properties and its body."""
        requests, replies = self.node(node)
        requests.send(request(operation, body), b"ask", settled=True)
        answer = self.next(Delivery, replies)
        assert answer.payload is not None
        bare = Message.parse(answer.payload).bare
        values = application_properties(bare)
        return values["statusCode"], values, body_value(bare)


def request(operation: str, body: Any) -> bytes:
    properties = Properties(message_id=uuid.uuid4(), reply_to="peer")
    values = {"operation": f"com.microsoft:{operation}"}
    message = with_application_properties(properties.encoded(), values)
    return message + b"\x00\x53\x77" + encode(body)


@pytest.fixture
def peer(broker: BrokerProcess) -> Iterator[Peer]:
    peer = Peer(broker.connection_string)
    yield peer
    peer.socket.close()


def numbered(count: int) -> list[bytes]:
    return [kilobyte_message(number) for number in range(count)]


def token_of(delivery: Delivery) -> UUID:
    return UUID(bytes_le=delivery.tag)


# --- links and sessions -------------------------------------------------------------------


def test_every_link_may_have_a_session_and_handle_0_of_its_own(peer: Peer) -> None:
    links = {}
    for n in range(20):
        peer.put(f"channel-{n}", kilobyte_message(n))
        links[n] = peer.open(RECEIVER, f"channel-{n}")
    assert {link.handle for link in links.values()} == {0}
    assert len({link.session.channel for link in links.values()}) == 20
    for link in links.values():
        link.grant(1)
    for n, link in reversed(links.items()):
        delivery = peer.next(Delivery, link)
        assert delivery.payload is not None
        assert f"{n:032d}".encode() in delivery.payload
        # Delivery ids are counted by the session, not by the connection.
        assert delivery.delivery_id == 0
        peer.dispose(link, 0, 0, ACCEPTED)
    for n in range(20):
        assert peer.ask(f"channel-{n}", "peek-message", peek())[0] in (200, 204)
    assert peer.ask("channel-7", "peek-message", peek())[0] == 204


def peek(count: int = 10) -> dict[str, Any]:
    return {"from-sequence-number": 0, "message-count": Int(count)}


def test_drain_is_answered_at_once_with_the_credit_used_up(peer: Peer) -> None:
    peer.put("drain", *numbered(3))
    link = peer.open(RECEIVER, "drain")
    link.grant(3)
    for _ in range(3):
        peer.next(Delivery, link)
    link.grant(10)
    peer.flush()
    time.sleep(0.1)
    peer.reads.clear()
    started = time.monotonic()
    link.grant(10, drain=True)
    flow: Flow | None = None
    while flow is None:
        peer.step()
        flows = [found for _, found in peer.frames() if isinstance(found, Flow)]
        flow = next((found for found in flows if found.drain), None)
    taken = time.monotonic() - started
    assert (flow.link_credit, flow.delivery_count, flow.handle) == (0, 13, 0)
    assert flow.next_incoming_id is not None
    assert taken < 0.2
    # The link lives on: credit after a drain brings messages again.
    peer.put("drain", kilobyte_message(9))
    link.grant(1)
    assert peer.next(Delivery, link).payload is not None


def test_refused_link_is_an_attach_without_ends_and_a_detach_in_one_write(peer: Peer) -> None:
    for role in (SENDER, RECEIVER):
        session = peer.amqp.begin()
        peer.flush()
        time.sleep(0.2)
        peer.reads.clear()
        link = session.attach(
            "refused",
            role,
            source=Source("nowhere" if role == RECEIVER else "peer"),
            target=Target("nowhere" if role == SENDER else "peer"),
        )
        error = peer.next(LinkDetached, link).error
        assert error is not None
        assert error.condition == "amqp:not-found"
        assert "The messaging entity 'contoso/nowhere' could not be found" in str(error.description)
        (together,) = [data for data in peer.reads if b"nowhere" in data]
        peer.reads[:] = [together]
        attach, detach = (found for _, found in peer.frames() if isinstance(found, Attach | Detach))
        assert isinstance(attach, Attach)
        assert (attach.source if role == RECEIVER else attach.target) is None
        assert isinstance(detach, Detach)
        assert detach.closed


# --- sending ------------------------------------------------------------------------------


def test_oversize_rejects_the_delivery_and_leaves_the_link(peer: Peer) -> None:
    link = peer.open(SENDER, "large")
    while not link.can_send:
        peer.step()
    link.send(kilobyte_message(1, 300_000), b"1", settled=False)
    link.send(kilobyte_message(2), b"2", settled=False)
    first, second = peer.next(Settlement, link), peer.next(Settlement, link)
    assert isinstance(first.state, Rejected)
    assert first.state.error is not None
    assert first.state.error.condition == "amqp:link:message-size-exceeded"
    assert isinstance(second.state, Accepted)


def test_message_without_an_id_is_given_one(peer: Peer) -> None:
    body = b"\x00\x53\x75\xa0\x01x"
    peer.put("ids", body, Properties(correlation_id="c").encoded() + body)
    _, deliveries = peer.take("ids", 2)
    found = [Message.parse(each.payload).properties for each in deliveries if each.payload]
    assert len({properties.message_id for properties in found} - {None}) == 2
    assert found[1].correlation_id == "c"


# --- settling -----------------------------------------------------------------------------


def test_one_disposition_settles_a_range(peer: Peer) -> None:
    peer.put("range", *numbered(10))
    link, deliveries = peer.take("range", 10)
    ids = [delivery.delivery_id for delivery in deliveries]
    assert ids == list(range(10))
    peer.dispose(link, 0, 3, ACCEPTED)
    peer.dispose(link, 4, 6, Modified(True, False, {Symbol("tried"): 1}))
    peer.dispose(link, 7, 9, Rejected(None))
    confirmed: dict[int, type[Any]] = {}
    while len(confirmed) < 10:
        event = peer.next(Confirmation)
        assert event.settled
        confirmed |= dict.fromkeys(range(event.first, event.last + 1), type(event.state))
    assert [confirmed[n] for n in range(10)] == [Accepted] * 4 + [Modified] * 3 + [Rejected] * 3
    link.grant(3)
    again = [peer.next(Delivery, link) for _ in range(3)]
    assert all(b"tried" in (each.payload or b"") for each in again)
    _, dead = peer.take("range/$DeadLetterQueue", 3)
    assert len(dead) == 3


def test_lost_lock_is_answered_with_rejected_and_the_error(peer: Peer) -> None:
    peer.put("late", kilobyte_message(1))
    link, (delivery,) = peer.take("late", 1)
    link.grant(1)
    again = peer.next(Delivery, link)  # the lock of 5 s has expired
    peer.dispose(link, delivery.delivery_id, delivery.delivery_id, ACCEPTED)
    answer = peer.next(Confirmation)
    assert (answer.first, answer.settled) == (delivery.delivery_id, True)
    assert isinstance(answer.state, Rejected)
    assert answer.state.error is not None
    assert answer.state.error.condition == "com.microsoft:message-lock-lost"
    peer.dispose(link, again.delivery_id, again.delivery_id, ACCEPTED)
    assert isinstance(peer.next(Confirmation).state, Accepted)


def test_lock_tokens_settle_from_another_connection(peer: Peer, broker: BrokerProcess) -> None:
    peer.put("settle", *numbered(8))
    link, deliveries = peer.take("settle", 8)
    tokens = [token_of(delivery) for delivery in deliveries]
    other = Peer(broker.connection_string)

    def settle(status: str, *chosen: UUID, **more: Any) -> int:
        body = {
            "disposition-status": status,
            "lock-tokens": Array(list(chosen), 0x98),
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        return other.ask("settle", "update-disposition", body)[0]

    assert settle("completed", *tokens[:2]) == 200
    assert settle("abandoned", tokens[2], properties_to_modify={"tried": 1}) == 200
    assert settle("defered", *tokens[3:5]) == 200
    assert (
        settle("suspended", tokens[5], deadletter_reason="why", deadletter_description="so") == 200
    )
    # All or none: one of these is settled already.
    assert settle("completed", tokens[6], tokens[0]) == 410
    assert settle("completed") == 400
    assert settle("forgotten", tokens[6]) == 400
    assert settle("completed", *tokens[6:]) == 200
    link.grant(1)
    again = peer.next(Delivery, link)
    assert b"tried" in (again.payload or b"")
    status, _, body = other.ask("settle", "peek-message", peek())
    assert status == 200
    assert len(body["messages"]) == 3
    _, (dead,) = other.take("settle/$DeadLetterQueue", 1)
    assert dead.payload is not None
    values = application_properties(Message.parse(dead.payload).bare)
    assert (values["DeadLetterReason"], values["DeadLetterErrorDescription"]) == ("why", "so")
    other.socket.close()


# --- $management --------------------------------------------------------------------------


def entry(kind: str) -> bytes:
    return (
        f'<entry xmlns="{ATOM}"><content type="application/xml">'
        f'<{kind} xmlns="{SERVICE_BUS}"/></content></entry>'
    ).encode()


@pytest.fixture
def subscription(broker: BrokerProcess) -> str:
    topic = f"topic-{uuid.uuid4().hex}"
    assert ask(broker, "PUT", topic, entry("TopicDescription")).status == 201
    path = f"{topic}/Subscriptions/s"
    assert ask(broker, "PUT", path, entry("SubscriptionDescription")).status == 201
    return path


def rules_of(peer: Peer, node: str) -> dict[str, list[Any]]:
    """By name, the fields of each rule: filter, action, name, created."""
    status, _, body = peer.ask(node, "enumerate-rules", {"top": Int(100), "skip": Int(0)})
    if status == 204:
        return {}
    found = [each["rule-description"] for each in body["rules"]]
    assert {rule.descriptor for rule in found} == {ULong(0x13700000004)}
    return {rule.value[2]: rule.value for rule in found}


def test_rules_are_added_listed_and_removed(peer: Peer, subscription: str) -> None:
    default = rules_of(peer, subscription)["$Default"]
    assert default[0] == Described(ULong(0x1370000007), [])
    # An empty action, not null: the JavaScript SDK looks into it.
    assert default[1] == Described(ULong(0x13700000005), [])
    added = {
        "sql": {
            "sql-filter": {"expression": "n > 5"},
            "sql-rule-action": {"expression": "SET b=1"},
        },
        "correlation": {
            "correlation-filter": {
                "correlation-id": "c",
                "message-id": None,
                "label": "red",
                "properties": {"size": 3},
            },
            "sql-rule-action": None,
        },
        "false": {"false-filter": {}},
        "true": {"true-filter": {}, "sql-rule-action": {"expression": ""}},
    }
    for name, description in added.items():
        body = {"rule-name": name, "rule-description": description}
        assert peer.ask(subscription, "add-rule", body)[0] == 200
        assert peer.ask(subscription, "add-rule", body)[0] == 409
    rules = rules_of(peer, subscription)
    assert set(rules) == {*added, "$Default"}
    assert rules["sql"][0] == Described(ULong(0x1370000006), ["n > 5", 20])
    assert rules["sql"][1] == Described(ULong(0x13700000006), ["SET b=1", 20])
    assert rules["correlation"][0] == Described(
        ULong(0x1370000009), ["c", None, None, None, "red", None, None, None, {"size": 3}]
    )
    assert rules["false"][0].descriptor == ULong(0x1370000008)
    assert rules["true"][1] == Described(ULong(0x13700000005), [])
    assert abs(rules["sql"][3] / 1000 - time.time()) < 60
    page = peer.ask(subscription, "enumerate-rules", {"top": Int(2), "skip": Int(1)})[2]
    assert len(page["rules"]) == 2

    for name in rules:
        assert peer.ask(subscription, "remove-rule", {"rule-name": name})[0] == 200
    assert peer.ask(subscription, "remove-rule", {"rule-name": "sql"})[0] == 404
    assert rules_of(peer, subscription) == {}


def correlated(asked: dict[str, Any]) -> dict[str, Any]:
    return {"rule-name": "r", "rule-description": {"correlation-filter": asked}}


def test_rules_that_cannot_be_are_refused_with_a_sentence(peer: Peer, subscription: str) -> None:
    for body, text in (
        ({"rule-name": "r", "rule-description": {"sql-filter": {"expression": "n >"}}}, "column"),
        ({"rule-name": "r", "rule-description": {"sql-filter": {}}}, "expression"),
        (correlated({}), "at least one"),
        (correlated({"label": 7}), "label of a correlation filter is compared as text"),
        (correlated({"properties": {7: "x"}}), "name is text"),
        (correlated({"properties": ["x"]}), "are a map"),
        (correlated({"properties": {"x": [1]}}), "which a rule cannot hold"),
        ({"rule-name": "a b", "rule-description": {"true-filter": {}}}, "rule's name"),
        ({"rule-name": "r" * 51, "rule-description": {"true-filter": {}}}, "1 to 50"),
        ({"rule-name": None, "rule-description": {}}, "name"),
        ({"rule-name": "r"}, "lacks 'rule-description'"),
        ({}, "lacks 'rule-name'"),
    ):
        status, values, _ = peer.ask(subscription, "add-rule", body)
        assert status == 400, (body, values)
        assert text in values["statusDescription"]
    assert set(rules_of(peer, subscription)) == {"$Default"}
    status, values, _ = peer.ask("ids", "enumerate-rules", {"top": Int(1), "skip": Int(0)})
    assert status == 400
    assert "not a subscription" in values["statusDescription"]


def test_a_rule_removed_twice_in_one_breath_is_removed_once(
    peer: Peer, subscription: str, broker: BrokerProcess
) -> None:
    requests, replies = peer.node(subscription)
    body = {"rule-name": "$Default"}
    for _ in range(2):
        requests.send(request("remove-rule", body), b"ask", settled=True)
    assert peer.next(Delivery, replies)
    assert peer.next(Delivery, replies)
    assert rules_of(peer, subscription) == {}
    peer.put("counted", kilobyte_message(1))  # commits go on
    assert "Traceback" not in broker.log()


def test_messages_are_deleted_in_batches_up_to_a_moment(peer: Peer) -> None:
    peer.put("purge", *numbered(6))
    time.sleep(0.05)
    moment = Timestamp(int(time.time() * 1000))
    time.sleep(0.05)
    peer.put("purge", *numbered(2))

    def delete(count: int) -> tuple[int, Any]:
        body = {"message-count": Int(count), "enqueued-time-utc": moment}
        status, _, answer = peer.ask("purge", "batch-delete-messages", body)
        return status, answer

    assert delete(4) == (200, {"message-count": 4})
    assert delete(100) == (200, {"message-count": 2})
    assert delete(100)[0] == 204
    body = peer.ask("purge", "peek-message", peek())[2]
    assert len(body["messages"]) == 2


def test_next_session_is_asked_for_with_null_and_told_by_its_name(peer: Peer) -> None:
    payload = Properties(message_id="m", group_id="one").encoded() + b"\x00\x53\x75\xa0\x01x"
    peer.put("sessions", payload)
    link = peer.open(RECEIVER, "sessions", **{"com.microsoft:session-filter": None})
    assert link.remote is not None
    assert isinstance(link.remote.source, Source)
    assert link.remote.source.filter == {"com.microsoft:session-filter": "one"}
    assert "com.microsoft:locked-until-utc" in (link.remote.properties or {})


def test_unknown_operation_is_refused_and_the_link_lives(peer: Peer) -> None:
    status, values, _ = peer.ask("ids", "fly", {})
    assert status == 400
    assert "fly" in values["statusDescription"]
    assert peer.ask("ids", "peek-message", peek())[0] in (200, 204)
