"""Every kind of refusal, brought about by a request: over AMQP, over $management and over HTTP.

A client that is joined to the namespace in memory asks for what cannot be, and the answer must have
the condition and the status that Azure gives.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import httpx
import pytest
from harness.raw import sas_token

from twinbus.amqp.batches import BATCH_FORMAT
from twinbus.amqp.connection import Connection
from twinbus.amqp.incoming import Confirmation, Delivery, Event, LinkDetached, Settlement
from twinbus.amqp.link_endpoint import RECEIVER, SENDER, Link
from twinbus.amqp.message import (
    Message,
    Properties,
    application_properties,
    with_application_properties,
)
from twinbus.amqp.performatives import ACCEPTED, Error, Rejected, Source, Target
from twinbus.amqp.types import Int, Symbol, Timestamp, encode
from twinbus.auth.access_rules import ROOT_RULE, root_rule
from twinbus.broker import refusals
from twinbus.broker.admin import admin_app
from twinbus.broker.descriptions import (
    QueueDescription,
    Status,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.dialect import Client
from twinbus.broker.markup import INSTANCE, SERVICE_BUS
from twinbus.broker.namespace import MAX_MESSAGE_BYTES, Namespace
from twinbus.broker.queue import nothing
from twinbus.broker.refusals import (
    BUSY,
    AtomError,
    BodyTooLargeError,
    DescriptionError,
    EntityChangedError,
    EntityDisabledError,
    EntityExistsError,
    EntityNotFoundError,
    IdleLinkError,
    LockLostError,
    MessageError,
    MessageNotFoundError,
    MethodError,
    NotAllowedError,
    QuotaError,
    RefusalError,
    RuleError,
    SessionLostError,
    SessionTakenError,
    SqlError,
    StoreError,
    TimedOutError,
    TooLargeError,
    TroubledError,
    UnauthorizedError,
)
from twinbus.broker.store import Store
from twinbus.broker.trouble import Trouble
from twinbus.budget import MAX_BODY, Budget

START_MS = 1_700_000_000_000
KEY = "a2V5"
SESSION_FILTER = Symbol("com.microsoft:session-filter")
SUBSCRIPTION = "topic/Subscriptions/all"
TOKEN = uuid.UUID(int=1)


class Answer(NamedTuple):
    """What came back: over HTTP without a condition, over AMQP without a status."""

    condition: str | None
    status: int | None
    text: str


class Fault:
    """What stands before a namespace while a fault is on: it refuses everything."""

    def __init__(self, error: TroubledError) -> None:
        self._error = error

    def intercept(self, client: Client, events: Iterator[Event]) -> Iterator[Event]:
        for event in events:
            if isinstance(event, Delivery) and b"put-token" not in (event.payload or b""):
                client.settle_incoming(event, self._error)
            yield event

    def admit(self, *_: Any) -> Any:
        raise self._error

    async def before_managing(self, path: str) -> None:
        raise self._error


class Desk:
    """A namespace with one of each, and whoever asks it for something."""

    def __init__(self, folder: Path) -> None:
        self.now = START_MS
        self.failure: StoreError | None = None
        self.store = Store(folder / "messages.db")
        self.namespace = Namespace("home", self.store, [root_rule(KEY)])
        directory = self.namespace.directory
        for path, description in (
            ("orders", QueueDescription()),
            ("small", QueueDescription(max_size_mb=1)),
            ("off", QueueDescription(status=Status.DISABLED)),
            ("sessions", QueueDescription(requires_session=True)),
        ):
            directory.create_queue(path, description, self.now, nothing)
        directory.create_topic("topic", TopicDescription(), self.now, nothing)
        self.commit()
        wanted = SubscriptionDescription()
        directory.create_subscription("topic", "all", wanted, None, self.now, nothing)
        self.commit()
        self.heard: list[Event] = []
        self.connect()

    def commit(self) -> None:
        while self.store.batch:
            batch = self.store.take_batch()
            if self.failure is None:
                self.store.apply(batch)
                self.store.commit()
            self.namespace.committed(batch, self.failure, self.now)

    # -- over AMQP

    def connect(self, *, with_token: bool = True) -> None:
        self.broker = Client(self.namespace, lambda: self.now, lambda: None, Budget())
        self.amqp = Connection(server=False, container_id="test", hostname="localhost")
        self.amqp.start()
        self.exchange()
        self.session = self.amqp.begin()
        self.nodes: dict[str, Link] = {}
        if with_token:
            requests, replies = self.attach(SENDER, "$cbs"), self.attach(RECEIVER, "$cbs")
            replies.grant(1)
            values = {"operation": "put-token", "type": "jwt", "name": "sb://localhost/"}
            token = sas_token("sb://localhost/", ROOT_RULE, KEY)
            requests.send(_request(values, token), b"cbs", settled=True)
            self.exchange()

    def exchange(self) -> None:
        """Pass on what both have to say until neither has."""
        while data := self.amqp.data_to_send():
            self.broker.receive(data)
            self.listen()

    def listen(self) -> None:
        self.commit()
        self.heard += self.amqp.receive(self.broker.amqp.data_to_send())

    def attach(
        self, role: bool, address: str, name: str = "", filters: Any = None, **properties: Any
    ) -> Link:
        more = {Symbol(f"com.microsoft:{key}"): value for key, value in properties.items()}
        link = self.session.attach(
            name or f"{address}-{role}",
            role,
            source=Source(address, filter=filters),
            target=Target(address),
            rcv_settle_mode=1 if role == RECEIVER else 0,
            properties=more or None,
        )
        self.exchange()
        return link

    def last(self, kind: Any) -> Any:
        return [event for event in self.heard if isinstance(event, kind)][-1]

    def told(self, error: Error | None) -> Answer:
        assert error is not None
        return Answer(str(error.condition), None, str(error.description))

    def ended(self) -> Answer:
        """How the last link was refused or ended."""
        return self.told(self.last(LinkDetached).error)

    def rejected(self) -> Answer:
        state = self.last(Settlement | Confirmation).state
        assert isinstance(state, Rejected)
        return self.told(state.error)

    def send(self, address: str, payload: bytes, message_format: int = 0) -> None:
        self.attach(SENDER, address).send(payload, b"tag", False, message_format)
        self.exchange()

    def fill(self) -> None:
        for number in range(6):
            link = self.attach(SENDER, "small", f"fill-{number}")
            link.send(_message(MAX_MESSAGE_BYTES - 1_000), b"tag", settled=False)
            self.exchange()

    # -- over $management

    def ask(self, path: str, operation: str, body: Any) -> Answer:
        if path not in self.nodes:
            replies = self.attach(RECEIVER, f"{path}/$management")
            replies.grant(10)
            self.nodes[path] = self.attach(SENDER, f"{path}/$management")
        requests = self.nodes[path]
        values = {"operation": f"com.microsoft:{operation}"}
        requests.send(_request(values, body), b"ask", settled=True)
        self.exchange()
        values = application_properties(Message.parse(self.last(Delivery).payload).bare)
        return Answer(
            str(values["errorCondition"]), int(values["statusCode"]), values["statusDescription"]
        )

    # -- over HTTP

    def http(self, method: str, path: str, content: bytes = b"", **headers: str) -> Answer:
        token = sas_token("https://localhost/", ROOT_RULE, KEY)
        return asyncio.run(self._http(method, path, content, {"Authorization": token, **headers}))

    async def _http(
        self, method: str, path: str, content: bytes, headers: dict[str, str]
    ) -> Answer:
        loop = asyncio.get_running_loop()
        self.store.on_change = partial(_soon, loop, self.commit)
        transport = httpx.ASGITransport(app=admin_app(self.namespace, lambda: self.now))
        async with httpx.AsyncClient(transport=transport, base_url="https://localhost") as client:
            asked = {key.replace("_", "-"): value for key, value in headers.items() if value}
            answer = await client.request(method, path, content=content, headers=asked)
        return Answer(None, answer.status_code, answer.text)


def _soon(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    loop.call_soon(act)


def _message(size: int = 10, **properties: Any) -> bytes:
    body = b"\x00\x53\x75\xb0" + size.to_bytes(4) + b"y" * size
    return Properties(message_id="m", **properties).encoded() + body


def _request(values: dict[str, Any], body: Any) -> bytes:
    message = with_application_properties(Properties(message_id="1").encoded(), values)
    return message + b"\x00\x53\x77" + encode(body)


def _entry(inside: str = "", kind: str = "QueueDescription") -> bytes:
    return (
        f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{kind} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{inside}</{kind}></content></entry>'
    ).encode()


def _rule(inside: str) -> bytes:
    return _entry(f'<Filter {inside}</Filter><Action i:type="EmptyRuleAction"/>', "RuleDescription")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.store.close()


# --- what brings them about -------------------------------------------------------------


def attach(role: bool, path: str, desk: Desk) -> Answer:
    desk.attach(role, path)
    return desk.ended()


def attach_without_token(desk: Desk) -> Answer:
    desk.connect(with_token=False)
    return attach(SENDER, "orders", desk)


def send(path: str, payload: bytes, desk: Desk, message_format: int = 0) -> Answer:
    desk.send(path, payload, message_format)
    return desk.rejected()


def send_to_what_is_full(desk: Desk) -> Answer:
    desk.fill()
    return desk.rejected()


def settle_late(desk: Desk) -> Answer:
    desk.send("orders", _message())
    link = desk.attach(RECEIVER, "orders")
    link.grant(1)
    desk.exchange()
    desk.now += 3_600_000
    desk.namespace.tick(desk.now)
    got = desk.last(Delivery)
    desk.session.dispose(got.delivery_id, got.delivery_id, ACCEPTED, settled=False)
    desk.exchange()
    return desk.rejected()


def hold_session(desk: Desk, name: str = "first") -> Link:
    return desk.attach(RECEIVER, "sessions", name, {SESSION_FILTER: "s"})


def take_what_is_taken(desk: Desk) -> Answer:
    hold_session(desk)
    hold_session(desk, "second")
    return desk.ended()


def lose_session(desk: Desk) -> Answer:
    hold_session(desk).grant(1)
    desk.exchange()
    desk.now += 120_000
    desk.namespace.tick(desk.now)
    desk.listen()
    return desk.ended()


def wait_in_vain(desk: Desk) -> Answer:
    desk.attach(RECEIVER, "sessions", filters={SESSION_FILTER: None})
    desk.now += 61_000
    desk.broker.tick(0)
    desk.listen()
    return desk.ended()


def be_idle(desk: Desk) -> Answer:
    desk.namespace.idle_link_ms = 1_000
    desk.attach(SENDER, "orders")
    desk.now += 2_000
    desk.broker.tick(0)
    desk.listen()
    return desk.ended()


def fail(full: bool, act: Callable[[Desk], Answer], desk: Desk) -> Answer:
    desk.failure = StoreError("the disk is unwell", full=full)
    return act(desk)


def have_fault(condition: str, act: Callable[[Desk], Answer], desk: Desk) -> Answer:
    desk.namespace.trouble = cast(Trouble, Fault(TroubledError("a fault", condition)))
    return act(desk)


def ask(path: str, operation: str, body: dict[str, Any], desk: Desk) -> Answer:
    return desk.ask(path, operation, body)


def ask_without_token(desk: Desk) -> Answer:
    desk.ask("orders", "peek-message", {})
    desk.now = 4_000_000_000_000  # the token's time is over
    return desk.ask("orders", "peek-message", {})


def ask_to_schedule(desk: Desk, path: str = "orders", size: int = 10) -> Answer:
    when = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(desk.now + 3_600_000)}
    message = b"\x00\x53\x72" + encode(when) + _message(size)
    return desk.ask(path, "schedule-message", {"messages": [{"message": message}]})


def ask_of_what_is_full(desk: Desk) -> Answer:
    desk.fill()
    return ask_to_schedule(desk, "small")


def ask_of_what_vanished(desk: Desk) -> Answer:
    desk.ask("orders", "peek-message", {})
    desk.namespace.directory.delete("orders", nothing)
    desk.commit()
    return desk.ask("orders", "peek-message", {})


def add_rule(name: str, description: dict[str, Any], desk: Desk) -> Answer:
    return desk.ask(SUBSCRIPTION, "add-rule", {"rule-name": name, "rule-description": description})


def http(method: str, path: str, content: bytes, desk: Desk, **headers: str) -> Answer:
    return desk.http(method, path, content, **headers)


SEND = partial(send, "orders", _message())
PEEK = partial(ask, "orders", "peek-message", {})
PUT = partial(http, "PUT", "/new", _entry())
RULE = f"/{SUBSCRIPTION}/rules/new"
NO_SESSION = {"session-id": "s", "session-state": None}
NUMBERS = {"sequence-numbers": [7], "receiver-settle-mode": Int(1)}
NOT_FOUND, QUOTA, INTERNAL = "amqp:not-found", "amqp:resource-limit-exceeded", "amqp:internal-error"
ARGUMENT = "com.microsoft:argument-error"
Case = tuple[type[RefusalError], str | None, int | None, Callable[[Desk], Answer]]

AMQP: list[Case] = [
    (EntityNotFoundError, NOT_FOUND, None, partial(attach, SENDER, "nobody")),
    (
        EntityDisabledError,
        "com.microsoft:entity-disabled",
        None,
        partial(attach, RECEIVER, "off"),
    ),
    (NotAllowedError, "amqp:not-allowed", None, partial(attach, RECEIVER, "topic")),
    (UnauthorizedError, "amqp:unauthorized-access", None, attach_without_token),
    (QuotaError, QUOTA, None, send_to_what_is_full),
    (
        TooLargeError,
        "amqp:link:message-size-exceeded",
        None,
        partial(send, "orders", _message(MAX_MESSAGE_BYTES)),
    ),
    (MessageError, ARGUMENT, None, partial(send, "orders", b"x", message_format=BATCH_FORMAT)),
    (LockLostError, "com.microsoft:message-lock-lost", None, settle_late),
    (SessionLostError, "com.microsoft:session-lock-lost", None, lose_session),
    (SessionTakenError, "com.microsoft:session-cannot-be-locked", None, take_what_is_taken),
    (TimedOutError, "com.microsoft:timeout", None, wait_in_vain),
    (IdleLinkError, "amqp:link:detach-forced", None, be_idle),
    (StoreError, INTERNAL, None, partial(fail, False, SEND)),
    (StoreError, QUOTA, None, partial(fail, True, SEND)),
    (TroubledError, BUSY, None, partial(have_fault, BUSY, SEND)),
]
MANAGEMENT: list[Case] = [
    (EntityNotFoundError, NOT_FOUND, 404, ask_of_what_vanished),
    (
        EntityExistsError,
        "com.microsoft:entity-already-exists",
        409,
        partial(add_rule, "$Default", {}),
    ),
    (
        EntityDisabledError,
        "com.microsoft:entity-disabled",
        400,
        partial(ask_to_schedule, path="off"),
    ),
    (NotAllowedError, "amqp:not-allowed", 400, partial(ask, "orders", "enumerate-rules", {})),
    (UnauthorizedError, "amqp:unauthorized-access", 401, ask_without_token),
    (QuotaError, QUOTA, 403, ask_of_what_is_full),
    (MessageError, ARGUMENT, 400, PEEK),
    (RuleError, ARGUMENT, 400, partial(add_rule, "new", {"correlation-filter": {}})),
    (
        SqlError,
        ARGUMENT,
        400,
        partial(add_rule, "new", {"sql-filter": {"expression": "a ="}}),
    ),
    (DescriptionError, ARGUMENT, 400, partial(add_rule, "no/name", {})),
    (
        MessageNotFoundError,
        "com.microsoft:message-not-found",
        404,
        partial(ask, "orders", "receive-by-sequence-number", NUMBERS),
    ),
    (
        LockLostError,
        "com.microsoft:message-lock-lost",
        410,
        partial(ask, "orders", "renew-lock", {"lock-tokens": [TOKEN]}),
    ),
    (
        SessionLostError,
        "com.microsoft:session-lock-lost",
        410,
        partial(ask, "sessions", "set-session-state", NO_SESSION),
    ),
    (StoreError, INTERNAL, 503, partial(fail, False, ask_to_schedule)),
    (StoreError, QUOTA, 507, partial(fail, True, ask_to_schedule)),
    (TroubledError, BUSY, 429, partial(have_fault, BUSY, PEEK)),
    (TroubledError, NOT_FOUND, 404, partial(have_fault, NOT_FOUND, PEEK)),
    (TroubledError, INTERNAL, 503, partial(have_fault, INTERNAL, PEEK)),
]
HTTP: list[Case] = [
    (EntityNotFoundError, None, 404, partial(http, "DELETE", "/nobody", b"")),
    (EntityExistsError, None, 409, partial(http, "PUT", "/orders", _entry())),
    (EntityChangedError, None, 412, partial(http, "PUT", "/orders", _entry(), If_Match='"old"')),
    (NotAllowedError, None, 400, partial(http, "GET", "/orders/subscriptions", b"")),
    (MethodError, None, 405, partial(http, "POST", "/orders", b"")),
    (UnauthorizedError, None, 401, partial(http, "PUT", "/new", _entry(), Authorization="")),
    (BodyTooLargeError, None, 413, partial(http, "PUT", "/new", b"x" * (MAX_BODY + 1))),
    (AtomError, None, 400, partial(http, "PUT", "/new", b"<no")),
    (
        DescriptionError,
        None,
        400,
        partial(http, "PUT", "/new", _entry("<LockDuration>soon</LockDuration>")),
    ),
    (RuleError, None, 400, partial(http, "PUT", RULE, _rule('i:type="CorrelationFilter">'))),
    (
        SqlError,
        None,
        400,
        partial(
            http,
            "PUT",
            RULE,
            _rule('i:type="SqlFilter"><SqlExpression>a =</SqlExpression>'),
        ),
    ),
    (StoreError, None, 503, partial(fail, False, PUT)),
    (StoreError, None, 507, partial(fail, True, PUT)),
    (TroubledError, None, 429, partial(have_fault, BUSY, PUT)),
    (TroubledError, None, 503, partial(have_fault, INTERNAL, PUT)),
]


def _name(case: Any) -> str | None:
    return case.__name__ if inspect.isclass(case) else None


@pytest.mark.parametrize(
    ("kind", "condition", "status", "act"), AMQP + MANAGEMENT + HTTP, ids=_name
)
def test_a_refusal_has_azures_condition_and_status(
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[RefusalError],
    condition: str | None,
    status: int | None,
    act: Callable[[Desk], Answer],
) -> None:
    made: list[type[BaseException]] = []

    def note(error: RefusalError, *_: Any) -> None:
        made.append(type(error))

    monkeypatch.setattr(RefusalError, "__init__", note)
    answer = act(desk)
    assert kind in made, "something else refused it"
    assert (answer.condition, answer.status) == (condition, status)


def test_a_namespace_that_has_as_many_rules_as_it_may_says_so_over_http_as_azure_does(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twinbus.broker.directory.MAX_RULES", 1)
    answer = desk.http("PUT", RULE, _rule('i:type="TrueFilter">'))
    assert (answer.status, "that is the limit" in answer.text) == (403, True)
    answer = add_rule("new", {"true-filter": {}}, desk)
    assert (answer.condition, answer.status) == (QUOTA, 403)


def test_no_kind_of_refusal_is_left_out() -> None:
    kinds = {each for each in vars(refusals).values() if inspect.isclass(each)}
    kinds = {each for each in kinds if issubclass(each, RefusalError)}
    # Those have no request of their own: they are roots, or a start's.
    kinds -= {RefusalError, refusals.RequestError, refusals.ArgumentError, refusals.FormatError}
    assert {case[0] for case in AMQP + MANAGEMENT + HTTP} == kinds


def test_a_refusal_over_http_says_what_else_its_kind_says(desk: Desk) -> None:
    assert MethodError("no", "GET, PUT").headers == {"Allow": "GET, PUT"}
    assert BodyTooLargeError("no").headers == {"Connection": "close"}
    assert RefusalError("no").headers == {}
    assert StoreError("the disk is full", full=True).told().endswith("try again.")
