"""The management API: the SDK's own client without a socket, and what no SDK would send."""

import asyncio
import base64
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus
from xml.etree import ElementTree

import httpx
import pytest
import requests
from azure.core import MatchConditions
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.core.pipeline.transport import RequestsTransport
from azure.core.rest import _requests_basic
from azure.servicebus.management import (
    AccessRights,
    ApiVersion,
    AuthorizationRule,
    CorrelationRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from twinbus.amqp.message import Properties
from twinbus.amqp.types import Symbol, Timestamp, encode
from twinbus.auth.access_rules import ROOT_RULE, AccessRule, Claim, root_rule
from twinbus.broker.admin import Resource, admin_app
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.markup import SERVICE_BUS
from twinbus.broker.namespace import Namespace
from twinbus.broker.queue import nothing
from twinbus.broker.refusals import StoreError
from twinbus.broker.store import Store
from twinbus.budget import MAX_BODY, MAX_DROPPED

KEY = "a2V5"
HOST = "localhost:5673"
NOW_MS = 1_700_000_000_000


class Bus:
    """A namespace on disk and its API, committed as soon as the loop is free."""

    def __init__(self, path: Path) -> None:
        self.store = Store(path)
        listener = AccessRule("listener", "b3RoZXI=", "b3RoZXI=", frozenset({Claim.LISTEN}))
        self.namespace = Namespace("home", self.store, [root_rule(KEY), listener])
        self.directory = self.namespace.directory
        self.store.on_change = self._request
        self.failure: StoreError | None = None
        self.now_ms = NOW_MS
        self.app = admin_app(self.namespace, self._clock)
        self._loop = asyncio.new_event_loop()

    def _clock(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def _request(self) -> None:
        asyncio.get_running_loop().call_soon(self._commit)

    def _commit(self) -> None:
        batch, failure = self.store.take_batch(), self.failure
        if failure is None:
            try:
                self.store.apply(batch)
                self.store.commit()
            except StoreError as error:
                self.store.rollback()
                failure = error
        self.namespace.committed(batch, failure, self.now_ms)

    async def ask(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url=f"https://{HOST}") as client:
            return await client.request(method, path, **kwargs)

    def request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """One request, with a good token unless ``headers`` are given."""
        kwargs.setdefault("headers", {"Authorization": token()})
        return self._loop.run_until_complete(self.ask(method, path, **kwargs))

    def together(self, *asked: Any) -> list[httpx.Response]:
        async def gather() -> list[httpx.Response]:
            return list(await asyncio.gather(*asked))

        return self._loop.run_until_complete(gather())

    def paths(self) -> set[str]:
        rows = self.store.query("SELECT path FROM entity WHERE kind IN ('queue', 'topic')")
        return {row[0] for row in rows}

    def close(self) -> None:
        self._loop.close()
        self.store.close()


class Wire(RequestsTransport):  # type: ignore[misc]
    """The SDK's transport, put straight on the app."""

    def __init__(self, bus: Bus) -> None:
        super().__init__()
        self._bus = bus

    def send(self, request: Any, **kwargs: Any) -> Any:
        answer = self._bus.request(
            request.method, request.url, headers=dict(request.headers), content=request.content
        )
        response = requests.Response()
        response.status_code = answer.status_code
        response.headers.update(answer.headers)
        response._content = answer.content
        response._content_consumed = True
        response.reason = answer.reason_phrase
        rest: Any = _requests_basic
        return rest.RestRequestsTransportResponse(request=request, internal_response=response)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path / "home.db")
    yield bus
    bus.close()


def client_of(bus: Bus, rule: str = ROOT_RULE, key: str = KEY, **kwargs: Any) -> Any:
    text = f"Endpoint=sb://{HOST};SharedAccessKeyName={rule};SharedAccessKey={key}"
    # The clock of these tests stands in 2023; the SDK signs for an hour from today.
    return ServiceBusAdministrationClient.from_connection_string(
        text, transport=Wire(bus), retry_total=0, **kwargs
    )


@pytest.fixture
def admin(bus: Bus) -> Any:
    return client_of(bus)


def token(
    path: str = "", rule: str = ROOT_RULE, key: str = KEY, expires_s: int = NOW_MS // 1000 + 3600
) -> str:
    resource = quote_plus(f"https://{HOST}/{path}")
    digest = hmac.new(key.encode(), f"{resource}\n{expires_s}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expires_s}&skn={rule}"


def body(inside: str = "", kind: str = "QueueDescription") -> bytes:
    return (
        f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{kind} xmlns="{SERVICE_BUS}">{inside}</{kind}></content></entry>'
    ).encode()


def detail(response: httpx.Response) -> str:
    root = ElementTree.fromstring(response.content)
    assert root.tag == "Error"
    assert root.findtext("Code") == str(response.status_code)
    return root.findtext("Detail") or ""


# --- queues, with the SDK ---------------------------------------------------------------


def test_a_queue_is_created_and_got_with_its_settings(admin: Any) -> None:
    made = admin.create_queue(
        "contoso/x-servicebus-transfer/0",
        lock_duration=timedelta(seconds=30),
        requires_session=True,
        max_delivery_count=3,
        user_metadata="<a & b>",
    )
    got = admin.get_queue("contoso/x-servicebus-transfer/0")
    assert made.lock_duration == got.lock_duration == timedelta(seconds=30)
    assert got.requires_session
    assert got.max_delivery_count == 3
    assert got.user_metadata == "<a & b>"
    assert got.status == "Active"


def test_a_queue_that_exists_is_not_created_again(admin: Any) -> None:
    admin.create_queue("q")
    with pytest.raises(ResourceExistsError, match="already exists"):
        admin.create_queue("Q")


def test_what_is_missing_is_not_found(admin: Any) -> None:
    admin.create_topic("t")
    admin.create_subscription("t", "s")
    for act in (
        lambda: admin.get_queue("nothing"),
        lambda: admin.get_queue_runtime_properties("nothing"),
        lambda: admin.get_topic("nothing"),
        lambda: admin.delete_queue("nothing"),
        lambda: admin.delete_topic("nothing"),
        lambda: admin.get_subscription("t", "nothing"),
        lambda: admin.get_subscription("nothing", "s"),
        lambda: admin.create_subscription("nothing", "s"),
        lambda: admin.delete_subscription("t", "nothing"),
        lambda: list(admin.list_subscriptions("nothing")),
        lambda: admin.get_rule("t", "s", "nothing"),
        lambda: admin.create_rule("t", "nothing", "r"),
        lambda: admin.delete_rule("t", "s", "nothing"),
        lambda: list(admin.list_rules("t", "nothing")),
    ):
        with pytest.raises(ResourceNotFoundError):
            act()


def test_a_queue_that_was_got_can_be_updated_with_nothing_changed(bus: Bus, admin: Any) -> None:
    admin.create_queue("target")
    admin.create_queue("q", forward_dead_lettered_messages_to="target", requires_session=True)
    before = bus.directory.entity("q").description
    admin.update_queue(admin.get_queue("q"))
    assert bus.directory.entity("q").description == before


def test_an_update_changes_a_queue_and_can_take_forwarding_away(admin: Any) -> None:
    admin.create_queue("target")
    queue = admin.create_queue("q", forward_to="target")
    assert queue.forward_to == f"sb://{HOST}/target"
    queue.forward_to = None
    queue.lock_duration = timedelta(seconds=45)
    queue.status = "ReceiveDisabled"
    admin.update_queue(queue)
    got = admin.get_queue("q")
    assert got.forward_to is None
    assert got.lock_duration == timedelta(seconds=45)
    assert got.status == "ReceiveDisabled"


def test_what_is_fixed_at_creation_cannot_be_updated(admin: Any) -> None:
    queue = admin.create_queue("q")
    queue.requires_session = True
    with pytest.raises(HttpResponseError, match="requires_session is fixed") as refused:
        admin.update_queue(queue)
    assert refused.value.status_code == 400


def test_updating_what_is_missing_is_not_found(admin: Any) -> None:
    queue = admin.create_queue("q")
    admin.delete_queue("q")
    with pytest.raises(ResourceNotFoundError):
        admin.update_queue(queue)
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue("q")


def test_forwarding_to_what_is_missing_is_refused(bus: Bus, admin: Any) -> None:
    with pytest.raises(HttpResponseError, match="nowhere") as refused:
        admin.create_queue("q", forward_to="nowhere")
    assert refused.value.status_code == 400
    assert bus.paths() == set()


def test_runtime_properties_tell_counts_and_dates(bus: Bus, admin: Any) -> None:
    admin.create_queue("q")
    counts = bus.directory.entity("q").queue.counts
    counts.active, counts.deferred, counts.scheduled, counts.bytes = 3, 2, 1, 77
    bus.directory.entity("q").dead_letters.counts.active = 4
    runtime = admin.get_queue_runtime_properties("q")
    assert runtime.active_message_count == 5
    assert runtime.scheduled_message_count == 1
    assert runtime.dead_letter_message_count == 4
    assert runtime.total_message_count == 10
    assert runtime.size_in_bytes == 77
    assert runtime.created_at_utc.year == 2023


def test_a_topics_size_counts_what_is_scheduled_once(tmp_path: Path) -> None:
    bus = Bus(tmp_path / "home.db")
    client_of(bus).create_topic("t")
    client_of(bus).create_subscription("t", "s")
    message = Properties(message_id="m").encoded() + b"\x00\x53\x75\xa0\x03abc"
    when = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(NOW_MS + 3_600_000)}
    payloads = [message, b"\x00\x53\x72" + encode(when) + message]
    bus.store.on_change = lambda: None
    bus.namespace.send(bus.directory.entity("t"), payloads, NOW_MS, nothing)
    bus._commit()
    ((size,),) = bus.store.query("SELECT sum(size) FROM message")
    runtime = client_of(bus).get_topic_runtime_properties("t")
    assert (runtime.scheduled_message_count, runtime.size_in_bytes) == (1, size)
    bus.close()
    bus = Bus(tmp_path / "home.db")
    assert client_of(bus).get_topic_runtime_properties("t").size_in_bytes == size
    bus.close()


def test_authorization_rules_get_keys_and_open_their_entity_only(bus: Bus, admin: Any) -> None:
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        rights=[AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN],
        key_name="owner",
    )
    made = admin.create_queue("q", authorization_rules=[rule])
    admin.create_queue("other")
    key = made.authorization_rules[0].primary_key
    owner = client_of(bus, "owner", key)
    assert owner.get_queue("q").authorization_rules[0].primary_key == key
    for act in (
        lambda: owner.get_queue("other"),
        lambda: owner.create_queue("q/below"),
        lambda: list(owner.list_queues()),
    ):
        with pytest.raises(ClientAuthenticationError):
            act()
    owner.delete_queue("q")


@pytest.mark.parametrize("version", list(ApiVersion))
def test_every_api_version_of_the_sdk_works(bus: Bus, version: ApiVersion) -> None:
    admin = client_of(bus, api_version=version)
    admin.create_queue("q")
    assert [queue.name for queue in admin.list_queues()] == ["q"]


def test_queues_and_topics_are_listed_apart_page_after_page(admin: Any) -> None:
    names = [f"q{number:03d}" for number in range(25)]
    for name in reversed(names):
        admin.create_queue(name)
    admin.create_topic("t")
    assert [queue.name for queue in admin.list_queues(max_page_size=10)] == names
    assert [queue.name for queue in admin.list_queues(start_index=20)] == names[20:]
    assert [q.name for q in admin.list_queues_runtime_properties(max_page_size=25)] == names
    assert [topic.name for topic in admin.list_topics()] == ["t"]


def test_empty_lists_are_empty(admin: Any) -> None:
    assert list(admin.list_queues()) == []
    assert list(admin.list_topics()) == []
    admin.create_topic("t")
    assert list(admin.list_subscriptions("t")) == []


def test_the_namespace_tells_its_name_and_tier(admin: Any) -> None:
    properties = admin.get_namespace_properties()
    assert properties.name == "home"
    assert properties.messaging_sku == "Standard"
    assert properties.namespace_type == "Messaging"


# --- topics, subscriptions and rules, with the SDK --------------------------------------


def test_a_topic_lives_its_life(admin: Any) -> None:
    topic = admin.create_topic("a/t", default_message_time_to_live=timedelta(hours=1))
    topic.user_metadata = "mine"
    admin.update_topic(topic)
    got = admin.get_topic("a/t")
    assert got.user_metadata == "mine"
    assert got.default_message_time_to_live == timedelta(hours=1)
    admin.create_subscription("a/t", "s")
    assert admin.get_topic_runtime_properties("a/t").subscription_count == 1
    admin.delete_topic("a/t")
    with pytest.raises(ResourceNotFoundError):
        admin.get_topic("a/t")
    with pytest.raises(ResourceNotFoundError):
        admin.get_subscription("a/t", "s")


def test_a_subscription_lives_its_life(admin: Any) -> None:
    admin.create_topic("t")
    admin.create_queue("target")
    admin.create_subscription("t", "other")
    made = admin.create_subscription("t", "s", requires_session=True, forward_to="target")
    assert made.requires_session
    with pytest.raises(ResourceExistsError):
        admin.create_subscription("t", "S")
    made.max_delivery_count = 7
    admin.update_subscription("t", made)
    got = admin.get_subscription("t", "s")
    assert got.max_delivery_count == 7
    assert got.forward_to == f"sb://{HOST}/target"
    assert [found.name for found in admin.list_subscriptions("t", max_page_size=1)] == [
        "other",
        "s",
    ]
    assert admin.get_subscription_runtime_properties("t", "s").active_message_count == 0
    admin.delete_subscription("t", "s")
    with pytest.raises(ResourceNotFoundError):
        admin.get_subscription("t", "s")


def test_rules_live_their_lives(admin: Any) -> None:
    admin.create_topic("t")
    admin.create_subscription("t", "s")
    (first,) = admin.list_rules("t", "s")
    assert first.name == "$Default"
    assert isinstance(first.filter, TrueRuleFilter)
    admin.create_rule(
        "t",
        "s",
        "sql",
        filter=SqlRuleFilter("a = @a", {"@a": 3}),
        action=SqlRuleAction("SET b = 1"),
    )
    rule = admin.create_rule("t", "s", "cor", filter=CorrelationRuleFilter(properties={"n": 1}))
    assert rule.filter.properties == {"n": 1}
    with pytest.raises(ResourceExistsError):
        admin.create_rule("t", "s", "cor")
    rule.filter = SqlRuleFilter("n = 2")
    admin.update_rule("t", "s", rule)
    assert admin.get_rule("t", "s", "cor").filter.sql_expression == "n = 2"
    got = admin.get_rule("t", "s", "sql")
    assert got.filter.parameters == {"@a": 3}
    assert got.action.sql_expression == "SET b = 1"
    admin.delete_rule("t", "s", "$Default")
    names = {found.name for found in admin.list_rules("t", "s", max_page_size=1)}
    assert names == {"sql", "cor"}
    with pytest.raises(ResourceNotFoundError):
        admin.get_rule("t", "s", "$Default")


def test_a_filter_over_its_limits_is_refused_and_nothing_changed(admin: Any) -> None:
    admin.create_topic("t")
    admin.create_subscription("t", "s")
    for wanted in (SqlRuleFilter("a = '" + "x" * 2_000 + "'"), SqlRuleFilter("a = ")):
        with pytest.raises(HttpResponseError) as refused:
            admin.create_rule("t", "s", "r", filter=wanted)
        assert refused.value.status_code == 400
        assert "column" in refused.value.message or "characters" in refused.value.message
    assert [rule.name for rule in admin.list_rules("t", "s")] == ["$Default"]


def test_a_subscription_can_be_created_with_a_rule_of_its_own(bus: Bus, admin: Any) -> None:
    admin.create_topic("t")
    inside = (
        '<DefaultRuleDescription xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        '<Filter i:type="FalseFilter"/><Name>mine</Name></DefaultRuleDescription>'
    )
    created = bus.request(
        "PUT", "/t/subscriptions/s", content=body(inside, "SubscriptionDescription")
    )
    assert created.status_code == 201
    assert [rule.name for rule in admin.list_rules("t", "s")] == ["mine"]


# --- conditions -------------------------------------------------------------------------


def test_an_update_of_what_has_changed_since_is_refused(bus: Bus) -> None:
    bus.request("PUT", "/q", content=body())
    tag = bus.request("GET", "/q").headers["ETag"]

    def update(seconds: int, condition: str) -> Any:
        headers = {"Authorization": token(), "If-Match": condition}
        content = body(f"<LockDuration>PT{seconds}S</LockDuration>")
        return bus.ask("PUT", "/q", headers=headers, content=content)

    answers = bus.together(update(10, tag), update(20, tag), update(30, f'"x", {tag}'))
    assert [answer.status_code for answer in answers] == [200, 412, 412]
    assert "changed since" in detail(answers[1])
    assert "PT10S" in bus.request("GET", "/q").text
    assert answers[0].headers["ETag"] != tag
    assert bus.together(update(40, answers[0].headers["ETag"]))[0].status_code == 200
    assert bus.together(update(50, "*"))[0].status_code == 200


def test_the_sdk_sees_a_modified_resource_as_such(bus: Bus, admin: Any) -> None:
    admin.create_queue("q")
    with pytest.raises(ResourceModifiedError):
        admin._impl.entity.put(
            "q",
            ElementTree.fromstring(body()),
            etag="old",
            match_condition=MatchConditions.IfNotModified,
        )


# --- who may come in --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (None, "no Authorization header"),
        ("", "no Authorization header"),
        ("Bearer abc", "not a SharedAccessSignature"),
        ("SharedAccessSignature sr=x", "lacks one of"),
        (token(key="wrong"), "not signed with a key"),
        (token(expires_s=NOW_MS // 1000 - 1), "has expired"),
        (token(rule="nobody"), "no rule 'nobody'"),
        (token(rule="listener", key="b3RoZXI="), "does not carry the Manage claim"),
        (token("other"), "does not carry the Manage claim"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_nobody_gets_in_without_a_good_token(
    bus: Bus, method: str, header: str | None, text: str
) -> None:
    bus.request("PUT", "/q", content=body())
    headers = {} if header is None else {"Authorization": header}
    answer = bus.request(method, "/q", headers=headers, content=body())
    assert answer.status_code == 401
    assert text in detail(answer)
    assert KEY not in answer.text
    assert bus.paths() == {"q"}


def test_the_sdk_says_so_when_the_key_is_wrong(bus: Bus) -> None:
    with pytest.raises(ClientAuthenticationError, match="not signed with a key"):
        client_of(bus, key="wrong").create_queue("q")


def test_a_token_for_the_path_opens_the_path(bus: Bus) -> None:
    headers = {"Authorization": token("q")}
    assert bus.request("PUT", "/q", headers=headers, content=body()).status_code == 201


def test_a_wrong_token_for_a_forwarding_target_is_refused(bus: Bus) -> None:
    bus.request("PUT", "/target", content=body())
    content = body(f"<ForwardTo>sb://{HOST}/target</ForwardTo>")
    for header in ("ServiceBusSupplementaryAuthorization", "servicebussupplementaryauthorization"):
        headers = {"Authorization": token(), header: token("target", key="wrong")}
        refused = bus.request("PUT", "/q", headers=headers, content=content)
        assert refused.status_code == 401
    headers["servicebussupplementaryauthorization"] = token("target")
    assert bus.request("PUT", "/q", headers=headers, content=content).status_code == 201


# --- bad input --------------------------------------------------------------------------

BOMB = b'<!DOCTYPE e [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]><entry>&b;</entry>'


@pytest.mark.parametrize(
    ("path", "content", "text"),
    [
        ("/q", b"", "well-formed"),
        ("/q", b"<entry", "well-formed"),
        ("/q", BOMB, "document type"),
        ("/q", body(kind="Nonsense"), "QueueDescription"),
        ("/q", body("<Status>Asleep</Status>"), "Status must be one of"),
        ("/q", body("<MaxDeliveryCount>-1</MaxDeliveryCount>"), "MaxDeliveryCount"),
        ("/q", body("<MaxMessageSizeInKilobytes>1</MaxMessageSizeInKilobytes>"), "Premium"),
        (f"/{'q' * 261}", body(), "1 to 260 characters"),
        ("/a%20b", body(), "cannot be an entity's path"),
        ("/a%0Ab", body(), "cannot be an entity's path"),
        ("/$x", body(), "cannot be an entity's path"),
        ("/a//b", body(), "cannot be an entity's path"),
        ("/", body(), "1 to 260 characters"),
        ("/%3Cb%3E", body(), "cannot be an entity's path"),
        (f"/t/subscriptions/{'s' * 51}", body(kind="SubscriptionDescription"), "1 to 50"),
        ("/t/subscriptions/a%20b", body(kind="SubscriptionDescription"), "subscription's name"),
        (f"/t/subscriptions/s/rules/{'r' * 51}", body(kind="RuleDescription"), "1 to 50"),
        ("/t/subscriptions/s/rules/a%20b", body(kind="RuleDescription"), "rule's name"),
        ("/t/subscriptions/s", body(), "SubscriptionDescription"),
    ],
)
def test_bad_input_is_refused_with_a_sentence_and_changes_nothing(
    bus: Bus, path: str, content: bytes, text: str
) -> None:
    answer = bus.request("PUT", path, content=content)
    assert answer.status_code == 400
    assert text in detail(answer)
    assert bus.paths() == set()


def test_a_huge_body_is_refused_and_an_endless_one_cut_off(bus: Bus) -> None:
    answer = bus.request("PUT", "/q", content=b" " * (MAX_BODY + 1))
    assert answer.status_code == 413
    assert str(MAX_BODY) in detail(answer)
    pulled = []

    async def endless() -> Any:
        for count in range(1_000):
            pulled.append(count)
            yield b" " * 65_536

    assert bus.request("PUT", "/q", content=endless()).status_code == 413
    assert len(pulled) <= MAX_DROPPED // 65_536 + 2
    assert bus.paths() == set()


@pytest.mark.parametrize("query", ["$skip=-1", "$skip=x", "$top=0", "$top=1e3", "$skip=٣"])
def test_pages_that_cannot_be_are_refused(bus: Bus, query: str) -> None:
    assert bus.request("GET", f"/$Resources/queues?{query}").status_code == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/q"),
        ("HEAD", "/q"),
        ("PATCH", "/q"),
        ("PUT", "/$Resources/queues"),
        ("DELETE", "/$namespaceinfo"),
        ("PUT", "/t/subscriptions"),
    ],
)
def test_other_methods_are_refused(bus: Bus, method: str, path: str) -> None:
    answer = bus.request(method, path)
    assert answer.status_code == 405
    assert "GET" in answer.headers["Allow"]


# --- the disk, and the unforeseen -------------------------------------------------------


@pytest.mark.parametrize(("full", "status"), [(True, 507), (False, 503)])
def test_a_disk_that_refuses_is_told_and_nothing_is_there(
    bus: Bus, full: bool, status: int
) -> None:
    bus.failure = StoreError("the disk is unwell", full=full)
    answer = bus.request("PUT", "/q", content=body())
    assert answer.status_code == status
    assert "the disk is unwell" in detail(answer)
    bus.failure = None
    assert bus.request("PUT", "/q", content=body()).status_code == 201


def test_an_unforeseen_failure_is_logged_and_not_shown(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(bus.directory, "create_queue", fail)
    with caplog.at_level(logging.ERROR):
        answer = bus.request("PUT", "/q", content=body())
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "PUT '/q' failed" in caplog.text
    assert KEY not in caplog.text


# --- the rest ---------------------------------------------------------------------------


def test_health_needs_no_token_and_hides_no_queue_of_that_name(bus: Bus) -> None:
    answer = bus.request("GET", "/health", headers={})
    assert answer.status_code == 200
    assert answer.json() == {"status": "healthy", "namespace": "home"}
    assert bus.request("PUT", "/health", content=body()).status_code == 201
    assert "QueueDescription" in bus.request("GET", "/health").text


def test_an_answer_has_the_entitys_path_in_its_id(bus: Bus) -> None:
    answer = bus.request("PUT", "/a/b?api-version=2021-05", content=body())
    assert f"<id>https://{HOST}/a/b?api-version=2021-05</id>" in answer.text
    assert '<title type="text">a/b</title>' in answer.text
    assert answer.headers["content-type"].startswith("application/atom+xml")


def test_a_hostile_host_header_stays_text(bus: Bus) -> None:
    bus.request("PUT", "/q", content=body())
    headers = {"Authorization": token(), "Host": 'x"><script>'}
    for path in ("/q", "/$Resources/queues", "/nothing"):
        assert "<script>" not in bus.request("GET", path, headers=headers).text


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/q", Resource("entity", "q")),
        ("/a/b/c", Resource("entity", "a/b/c")),
        ("/$Resources/Queues", Resource("queues", "$Resources/Queues")),
        ("/t/Subscriptions", Resource("subscriptions", "t")),
        ("/a/b/subscriptions/s", Resource("subscription", "a/b", "s")),
        ("/t/subscriptions/subscriptions", Resource("subscription", "t", "subscriptions")),
        ("/t/SUBSCRIPTIONS/s/Rules", Resource("rules", "t", "s")),
        ("/t/subscriptions/s/rules/$Default", Resource("rule", "t", "s", "$Default")),
        ("/t/subscriptions/rules/rules/rules", Resource("rule", "t", "rules", "rules")),
    ],
)
def test_addresses_are_told_apart(path: str, expected: Resource) -> None:
    assert Resource.of(path) == expected


def test_a_page_of_ten_thousand_queues_takes_under_50_ms(bus: Bus) -> None:
    async def fill() -> None:
        created = asyncio.Event()
        for number in range(10_000):
            last: Callable[[Any], None] = lambda _: created.set()  # noqa: E731
            done = last if number == 9_999 else lambda _: None
            bus.directory.create_queue(f"queue-{number:05d}", QueueDescription(), NOW_MS, done)
        await created.wait()

    bus.together(fill())
    taken = []
    for skip in (0, 5_000, 9_900):
        start = time.perf_counter()
        answer = bus.request("GET", f"/$Resources/queues?$skip={skip}&$top=100")
        taken.append(time.perf_counter() - start)
        assert answer.text.count("<entry ") == 100
    assert min(taken) < 0.05
