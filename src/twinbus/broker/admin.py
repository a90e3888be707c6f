"""The management API of one namespace over HTTP: what an administration client talks to.

    GET     /$Resources/queues  /$Resources/topics     a page of entities
            /{topic}/subscriptions                     a page of its subscriptions
            /{topic}/subscriptions/{name}/rules        a page of its rules
            /$namespaceinfo                            the namespace itself
            /health                                    without a token: is anybody there, and well
            /metrics                                   counters, as Prometheus reads them
            /$faults                                   see `trouble`
    GET, PUT, DELETE
            /{queue or topic}                          whose path may have slashes
            /{topic}/subscriptions/{name}
            /{topic}/subscriptions/{name}/rules/{rule}

A PUT creates; with If-Match it updates, and is refused if the ETag it names is no longer the
entity's. Every answer but that of /health needs the Manage claim. An answer to a change is sent
after the change is on disk. Refusals are Azure's `<Error>` with a sentence for the reader.

Azure answers the question for a queue or topic that is not there with an empty page instead of
404, and every SDK takes both for "not found"; so does this.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote
from weakref import WeakValueDictionary

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from twinbus.auth.access_rules import AccessRule, Claim
from twinbus.auth.tokens import AccessError, Token, verify
from twinbus.broker import atom, descriptions, markup, rule_markup, rules
from twinbus.broker.atom import Runtime
from twinbus.broker.committer import committing
from twinbus.broker.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    check_name,
)
from twinbus.broker.entity import Entity
from twinbus.broker.namespace import Namespace
from twinbus.broker.refusals import (
    ArgumentError,
    BodyTooLargeError,
    EntityChangedError,
    EntityNotFoundError,
    MethodError,
    RefusalError,
    UnauthorizedError,
)
from twinbus.broker.rules import Rule
from twinbus.budget import MAX_BODY
from twinbus.serving.http import body_of

log = logging.getLogger("twinbus.broker")

MAX_PAGE = 100
_FORWARD_TOKEN = "ServiceBusSupplementaryAuthorization"  # noqa: S105 - a header's name
_FORWARD_DEAD_TOKEN = "ServiceBusDlqSupplementaryAuthorization"  # noqa: S105 - a header's name

# A page of the broker's own beside the management API. It is for those who may manage all of it.
Page = Callable[[Request], Awaitable[Response]]


def admin_app(
    namespace: Namespace, clock: Callable[[], int], pages: Mapping[str, Page] | None = None
) -> Router:
    """The app that serves one namespace. ``clock`` gives the time in milliseconds."""
    # No routes: Starlette's do not match a path with a line break, and would answer it themselves.
    return Router(default=_Admin(namespace, clock, pages or {}), redirect_slashes=False)


# --- addresses --------------------------------------------------------------------------

_BELOW = re.compile(
    r"(?P<topic>.+?)/subscriptions"
    r"(?:/(?P<subscription>[^/]+)(?P<rules>/rules(?:/(?P<rule>[^/]+))?)?)?",
    re.IGNORECASE | re.DOTALL,
)
_METHODS = ("GET", "PUT", "DELETE")


@dataclass(frozen=True)
class Resource:
    """What a request is about, read from its path."""

    kind: str  # entity, subscription or rule; or a list: queues, topics, subscriptions, rules
    path: str
    subscription: str = ""
    rule: str = ""

    @classmethod
    def of(cls, path: str) -> Resource:
        path = path.removeprefix("/").removesuffix("/")
        match path.lower():
            case "$resources/queues" | "$resources/topics":
                return cls(path.lower().removeprefix("$resources/"), path)
            case "$namespaceinfo":
                return cls("namespace", path)
        found = _BELOW.fullmatch(path)
        if found is None:
            return cls("entity", path)
        topic, subscription, rule = found["topic"], found["subscription"], found["rule"]
        if subscription is None:
            return cls("subscriptions", topic)
        if found["rules"] is None:
            return cls("subscription", topic, subscription)
        if rule is None:
            return cls("rules", topic, subscription)
        return cls("rule", topic, subscription, rule)

    @property
    def methods(self) -> tuple[str, ...]:
        return _METHODS if self.kind in ("entity", "subscription", "rule") else ("GET",)

    @property
    def full(self) -> str:
        """The path with everything in it, spelled as Service Bus spells it."""
        path = self.path
        if self.kind == "subscriptions" or self.subscription:
            path += "/Subscriptions"
        if self.subscription:
            path += f"/{self.subscription}"
        if self.kind in ("rules", "rule"):
            path += "/Rules"
        return f"{path}/{self.rule}" if self.rule else path


# --- one request ------------------------------------------------------------------------


class _Admin:
    """The ASGI app proper."""

    def __init__(
        self, namespace: Namespace, clock: Callable[[], int], pages: Mapping[str, Page]
    ) -> None:
        self._name = namespace.name
        self._namespace = namespace
        self._pages = pages
        self._directory = namespace.directory
        self._clock = clock
        self._created_ms = namespace.store.created_ms()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
            return
        try:
            response = await self._answer(Request(scope, receive))
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._serve(request)
        except ClientDisconnect:
            raise
        except AccessError as error:
            return _refused(UnauthorizedError(f"Unauthorized: {error}."))
        except RefusalError as error:
            return _refused(error)
        except Exception:
            log.exception("%s %r failed", request.method, request.scope["path"])
            return _refused(RefusalError("The server failed; its log says how."))

    async def _serve(self, request: Request) -> Response:
        address = Resource.of(request.scope["path"])
        page = self._pages.get(address.path)
        # SDKs name a version of the API and are given the entity, which may be called as a page is.
        if page is not None and "api-version" not in request.query_params:
            self._admit(request, address)
            return await page(request)
        if request.method not in address.methods:
            raise MethodError(
                f"{request.method} is not for '{address.full[:80]}'.", ", ".join(address.methods)
            )
        if address.path == "health" and not request.headers.get("authorization"):
            return self._health()
        trouble = self._namespace.trouble
        if trouble is not None:
            await trouble.before_managing(address.full)
        response = await self._manage(request, address)
        self._namespace.books.managed(address.full)
        if trouble is not None:
            await trouble.before_answering(address.full)
        return response

    def _health(self) -> Response:
        whole = {"status": "healthy", "namespace": self._name}
        failing = self._namespace.health.failures
        if not failing:
            return JSONResponse(whole)
        told = [failure.as_json() for failure in failing[:MAX_PAGE]]
        return JSONResponse({**whole, "status": "failing", "failing": told}, 503)

    async def _manage(self, request: Request, address: Resource) -> Response:
        self._admit(request, address)
        match request.method:
            case "GET":
                return self._get(request, address)
            case "PUT":
                return await self._put(request, address)
            case _:
                return await self._delete(address)

    # -- who may

    def _admit(self, request: Request, address: Resource) -> None:
        header = request.headers.get("authorization")
        if not header:
            raise AccessError("the request has no Authorization header")
        self._check(header, self._rules(address), address.full, Claim.MANAGE)

    def _rules(self, address: Resource) -> list[AccessRule]:
        """An entity's own rules manage what is there; new ones take the namespace's."""
        try:
            self._directory.entity(address.path)
        except EntityNotFoundError:
            return self._directory.rules
        return self._directory.access_rules(address.path)

    def _check(self, text: str, known: list[AccessRule], path: str, claim: Claim) -> None:
        now_s = self._clock() / 1000
        grant = verify(Token.parse(text), known, now_s)
        if not grant.allows(path, claim, now_s):
            raise AccessError(f"the token does not carry the {claim} claim for '{path[:80]}'")

    def _check_targets(
        self, request: Request, description: QueueDescription | SubscriptionDescription
    ) -> None:
        """A token for a forwarding target may be left out, but not be wrong."""
        for header, target in (
            (_FORWARD_TOKEN, description.forward_to),
            (_FORWARD_DEAD_TOKEN, description.forward_dead_letters_to),
        ):
            token = request.headers.get(header)
            if token and target:
                self._check(token, self._directory.access_rules(target), target, Claim.SEND)

    # -- reading

    def _get(self, request: Request, address: Resource) -> Response:
        match address.kind:
            case "entity":
                try:
                    return self._entity_response(request, self._directory.entity(address.path))
                except EntityNotFoundError:
                    return self._feed(request, "Publicly Listed Services", [], None)
            case "subscription":
                return self._entity_response(request, self._directory.entity(address.full))
            case "rule":
                return self._rule_response(request, address)
            case "namespace":
                return self._namespace_response(request)
            case _:
                return self._page(request, address)

    def _page(self, request: Request, address: Resource) -> Response:
        skip = _number(request, "$skip", 0, low=0)
        top = min(_number(request, "$top", MAX_PAGE, low=1), MAX_PAGE)
        entries = self._entries(request, address, skip, top + 1)
        following = None
        if len(entries) > top:
            following = self._url(request, address.full) + f"&$skip={skip + top}&$top={top}"
        return self._feed(request, address.kind.capitalize(), entries[:top], following)

    def _entries(self, request: Request, address: Resource, skip: int, count: int) -> list[str]:
        directory = self._directory
        match address.kind:
            case "queues" | "topics":
                found = directory.page(address.kind.removesuffix("s"), skip, count)
            case "subscriptions":
                found = directory.page_subscriptions(address.path, skip, count)
            case _:
                listed = directory.page_rules(address.path, address.subscription, skip, count)
                return [self._rule_entry(request, address, *rule) for rule in listed]
        return [self._entity_entry(request, entity) for entity in found]

    # -- changing

    async def _put(self, request: Request, address: Resource) -> Response:
        condition = request.headers.get("if-match")
        element = markup.parse(await _body(request))
        # One change of an entity at a time, so that an ETag is compared with what is on disk.
        async with self._turns.setdefault(address.full.lower(), asyncio.Lock()):
            if address.kind == "rule":
                await self._put_rule(address, element, condition)
                return self._rule_response(request, address, 200 if condition else 201)
            path = address.full
            if condition is None:
                await self._create(request, address, element)
                return self._entity_response(request, self._directory.entity(path), 201)
            await self._update(request, path, element, condition)
            return self._entity_response(request, self._directory.entity(path))

    async def _create(self, request: Request, address: Resource, element: markup.Element) -> None:
        directory, path, now_ms = self._directory, address.path, self._clock()
        if address.kind == "subscription":
            name = address.subscription
            check_name(name, "subscription")
            wanted = atom.read_description(element, SubscriptionDescription)
            self._check_targets(request, wanted)
            rule = rule_markup.default_rule(element)
            if rule is not None:
                check_name(rule.name, "rule")
            change = partial(directory.create_subscription, path, name, wanted, rule, now_ms)
        elif atom.described_kind(element) is TopicDescription:
            topic = atom.read_description(element, TopicDescription)
            change = partial(directory.create_topic, path, topic, now_ms)
        else:
            queue = atom.read_description(element, QueueDescription)
            self._check_targets(request, queue)
            change = partial(directory.create_queue, path, queue, now_ms)
        await committing(change)

    async def _update(
        self, request: Request, path: str, element: markup.Element, condition: str
    ) -> None:
        entity = self._directory.entity(path)
        _check_condition(condition, _entity_tag(entity))
        current = entity.description
        description = atom.read_description(element, type(current), current)
        if not isinstance(description, TopicDescription):
            self._check_targets(request, description)
        await committing(partial(self._directory.update, path, description, self._clock()))

    async def _put_rule(
        self, address: Resource, element: markup.Element, condition: str | None
    ) -> None:
        check_name(address.rule, "rule")
        rule = rule_markup.read_rule(element, address.rule)
        topic, subscription = address.path, address.subscription
        change = self._directory.create_rule
        if condition is not None:
            current = self._directory.get_rule(topic, subscription, address.rule)
            _check_condition(condition, _rule_tag(*current))
            change = self._directory.update_rule
        await committing(partial(change, topic, subscription, rule, self._clock()))

    async def _delete(self, address: Resource) -> Response:
        change = partial(self._directory.delete, address.full)
        if address.kind == "rule":
            change = partial(
                self._directory.delete_rule, address.path, address.subscription, address.rule
            )
        async with self._turns.setdefault(address.full.lower(), asyncio.Lock()):
            await committing(change)
        return Response(status_code=200)

    # -- answers

    def _url(self, request: Request, path: str) -> str:
        version = quote(request.query_params.get("api-version", "2021-05"))
        base = f"{request.scope['scheme']}://{self._host(request)}"
        return f"{base}/{quote(path, safe='/$')}?api-version={version}"

    def _host(self, request: Request) -> str:
        return request.headers.get("host") or self._name

    def _entity_entry(self, request: Request, entity: Entity) -> str:
        description = entity.description
        content = atom.write_description(description, _runtime(entity), self._host(request))
        is_subscription = isinstance(description, SubscriptionDescription)
        return atom.entry(
            self._url(request, entity.path),
            entity.name if is_subscription else entity.path,
            self._name,
            content,
            entity.created_ms,
            entity.updated_ms,
        )

    def _entity_response(self, request: Request, entity: Entity, status: int = 200) -> Response:
        return _entry(self._entity_entry(request, entity), status, ETag=_entity_tag(entity))

    def _rule_entry(self, request: Request, address: Resource, rule: Rule, created_ms: int) -> str:
        path = Resource("rule", address.path, address.subscription, rule.name).full
        return atom.entry(
            self._url(request, path),
            rule.name,
            self._name,
            rule_markup.write_rule(rule, created_ms),
            created_ms,
            created_ms,
        )

    def _rule_response(self, request: Request, address: Resource, status: int = 200) -> Response:
        found = self._directory.get_rule(address.path, address.subscription, address.rule)
        return _entry(self._rule_entry(request, address, *found), status, ETag=_rule_tag(*found))

    def _namespace_response(self, request: Request) -> Response:
        name, created_ms = self._name, self._created_ms
        content = atom.namespace_info(name, created_ms)
        url = self._url(request, "$namespaceinfo")
        return _entry(atom.entry(url, name, name, content, created_ms, created_ms))

    def _feed(
        self, request: Request, title: str, entries: list[str], following: str | None
    ) -> Response:
        url = self._url(request, Resource.of(request.scope["path"]).full)
        text = atom.feed(url, title, entries, following, self._clock())
        return Response(text, media_type="application/atom+xml;type=feed;charset=utf-8")


def _entry(text: str, status: int = 200, **headers: str) -> Response:
    return Response(text, status, headers, "application/atom+xml;type=entry;charset=utf-8")


def _refused(error: RefusalError) -> Response:
    body = atom.error(error.status, error.told())
    return Response(body, error.status, dict(error.headers), "application/xml; charset=utf-8")


def _runtime(entity: Entity) -> Runtime:
    own = entity.queue.counts
    times = (entity.created_ms, entity.updated_ms, entity.accessed_ms)
    if entity.topic is not None:
        subscriptions = len(entity.topic.subscriptions)
        return Runtime(
            *times, scheduled=own.scheduled, bytes=entity.bytes, subscriptions=subscriptions
        )
    dead, lost = entity.dead_letters.counts, entity.transfer_dead_letters.counts
    return Runtime(
        *times,
        # Service Bus counts a deferred message as active: only peeking tells them apart.
        active=own.active + own.deferred,
        dead=dead.active + dead.deferred,
        scheduled=own.scheduled,
        transfer_dead=lost.active + lost.deferred,
        bytes=own.bytes + dead.bytes + lost.bytes,
    )


# --- conditions -------------------------------------------------------------------------


def _tag(at_ms: int, text: str) -> str:
    # The time alone would not tell two updates within one millisecond apart.
    return f'"{at_ms:x}-{zlib.crc32(text.encode()):08x}"'


def _entity_tag(entity: Entity) -> str:
    return _tag(entity.updated_ms, descriptions.to_json(entity.description))


def _rule_tag(rule: Rule, created_ms: int) -> str:
    return _tag(created_ms, json.dumps(rules.to_json(rule)))


def _check_condition(condition: str, tag: str) -> None:
    wanted = [text.strip().removeprefix("W/") for text in condition.split(",")]
    if "*" not in wanted and tag not in wanted:
        raise EntityChangedError(
            "The entity was changed since it was read. Read it again, then update it."
        )


# --- bodies, numbers and commits --------------------------------------------------------


async def _body(request: Request) -> bytes:
    body = await body_of(request, MAX_BODY)
    if body is None:
        raise BodyTooLargeError(f"The body is larger than the {MAX_BODY} bytes that are accepted.")
    return body


def _number(request: Request, name: str, default: int, *, low: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < low:
        raise ArgumentError(f"{name} must be a whole number from {low} on; it is '{text[:40]}'")
    return int(text)
