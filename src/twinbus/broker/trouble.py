"""What the faults of a running namespace do to it.

`faults` knows which are on. While there are any, this stands between the namespace and its clients:
it looks at what a client sends before the client's `dialect` does, and lets it pass, refuses it or
drops it. When a fault starts, what is open is ended; when the last one is over, this steps aside.
Nobody asks it anything while no fault is on.

    POST    /$faults        start one: {"kind", "entity", "seconds", settings...}
    GET     /$faults        those that are on, and which kinds there are
    DELETE  /$faults        end all, or with ?id= one
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from twinbus.amqp.incoming import Delivery, Event, LinkAttached, LinkFlow, Settlement
from twinbus.amqp.link_endpoint import RECEIVER
from twinbus.amqp.message import Message
from twinbus.amqp.sections import PARTITION_KEY
from twinbus.amqp.types import CodecError
from twinbus.auth.access_rules import Claim
from twinbus.broker.cbs import CBS
from twinbus.broker.client_links import Context, Producer, Receiver, RequestLink, error_of, path_of
from twinbus.broker.dialect import Client, payloads_of
from twinbus.broker.fault_kinds import (
    ANY_FRAGMENT,
    DEFAULT_S,
    KINDS,
    Act,
    ActiveFault,
    Faults,
    Fragment,
    fragment_of,
)
from twinbus.broker.host import Host
from twinbus.broker.management import MANAGEMENT
from twinbus.broker.namespace import Answer
from twinbus.broker.refusals import (
    ArgumentError,
    RefusalError,
    RequestError,
    StoreError,
    TroubledError,
)
from twinbus.health import each
from twinbus.serving.http import body_of

log = logging.getLogger("twinbus.broker")

# What Azure charges a management operation; a message is 1.
MANAGEMENT_COST = 10
MAX_BODY = 65_536
# For those who offer them to a user.
_KINDS = [
    {"kind": kind.name, "per_entity": kind.per_entity, "what": kind.text} for kind in KINDS.values()
]
DISABLED = "Faults are not enabled on this broker: start it with `twinbus broker --faults`."
_RULES = ("com.microsoft:add-rule", "com.microsoft:remove-rule", "com.microsoft:enumerate-rules")


class Trouble:
    """The faults of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._namespace = host.namespace
        self._faults = Faults()
        self._changed = asyncio.Event()

    # -- starting and ending

    def start(
        self, kind: str, entity: str | None, seconds: Any, settings: dict[str, Any]
    ) -> ActiveFault:
        """Raises ArgumentError, or what the directory says of an entity that is not there."""
        if entity is not None:
            entity = self._namespace.directory.resolve(entity)[1].path
        now_ms = self._host.clock()
        fault = self._faults.start(kind, entity, seconds, settings, now_ms)
        self._namespace.trouble = self
        log.warning("fault %d of '%s' started: %s", fault.id, self._namespace.name, kind)
        return fault

    def strike(self, fault: ActiveFault) -> None:
        """What a fault does at once: to links and connections that are open."""
        now_ms = self._host.clock()
        match fault.kind.name:
            case "receives-refused":
                self._end_links(fault, Receiver)
            case "unreachable" if fault.entity is not None:
                self._end_links(fault, Producer | Receiver | RequestLink)
            case "node-restart":
                self._release_locks(fault, now_ms)
                self._end_links(fault, Producer | Receiver | RequestLink)
            case "connections-cut" | "unreachable" | "namespace-gone":
                self._cut(fault)
                fault.again_ms = now_ms + int(fault.settings.get("every_s", 0) * 1_000)
        self._settle_down()

    def clear(self, fault_id: int | None) -> list[ActiveFault]:
        cleared = self._faults.clear(fault_id)
        self._settle_down()
        return cleared

    def close(self) -> None:
        """The broker stops: whoever is kept waiting goes on."""
        self._faults.clear(None)
        self._changed.set()

    def tick(self, now_ms: int) -> None:
        for fault in self._faults.expire(now_ms):
            log.warning("fault %d of '%s' is over", fault.id, self._namespace.name)
        again = [f for f in self._faults if "every_s" in f.settings and now_ms >= f.again_ms]
        try:
            each(self.strike, again)
        finally:
            self._settle_down()

    def _settle_down(self) -> None:
        """Bring the host to the state that the faults which are on ask for."""
        kinds = {fault.kind.name for fault in self._faults if fault.entity is None}
        self._host.port.shut = not kinds.isdisjoint(("unreachable", "namespace-gone"))
        self._host.port.set_gone("namespace-gone" in kinds)
        for client in self._host.port.clients:
            for _, context in client.links:
                if isinstance(context, Receiver):
                    self._set_paused(client, context)
        if not self._faults and not self._host.port.is_gone:
            self._namespace.trouble = None
        self._changed.set()
        self._namespace.pump(self._host.clock())

    def _set_paused(self, client: Client, receiver: Receiver) -> None:
        if not receiver.is_paused:
            receiver.pause(self._faults.find("no-answer", receiver.path) is not None)
        elif not self._must_wait(receiver):
            receiver.pause(False)
            self._namespace.pump_queue(receiver.queue, self._host.clock())
            receiver.finish_drain()
            client.touch()

    def _must_wait(self, receiver: Receiver) -> bool:
        """A receiver is not told that the server is busy: to end its link for that would be to
        end it for good, because the SDK goes on with the dead link. It gets nothing for a while."""
        if self._faults.find("no-answer", receiver.path) is not None:
            return True
        return self._refusal(Act.RECEIVE, receiver.path, 1) is not None

    def _refusal(
        self, act: Act, path: str, cost: int, payloads: Sequence[bytes] = ()
    ) -> TroubledError | None:
        fragment = self._fragment(path, payloads)
        return self._faults.refusal(act, path, cost, self._host.clock(), fragment)

    def _fragment(self, path: str, payloads: Sequence[bytes]) -> Fragment:
        """Where these messages are kept; a batch goes where its first message goes."""
        if not self._is_partitioned(path):
            return None
        if not payloads:
            return ANY_FRAGMENT
        try:
            message = Message.parse(payloads[0])
            key = message.annotation_map().get(PARTITION_KEY)
        except CodecError:
            return ANY_FRAGMENT  # it will be refused, for a reason of its own
        properties = message.properties
        return fragment_of(properties.group_id, key, properties.message_id)

    def _is_partitioned(self, path: str) -> bool:
        try:
            entity = self._namespace.directory.resolve(path)[0]
        except RequestError:
            return False
        description = (entity.parent or entity).description
        return getattr(description, "enable_partitioning", False)

    def _end_links(self, fault: ActiveFault, kinds: Any) -> None:
        for client in self._host.port.clients:
            for link, context in client.links:
                if isinstance(context, kinds) and _concerns(fault, context):
                    client.drop(link, _farewell(fault, context))
                    client.touch()

    def _release_locks(self, fault: ActiveFault, now_ms: int) -> None:
        for entity in self._namespace.directory.entities():
            for queue in entity.queues:
                if fault.covers(queue.path):
                    queue.release_locks(now_ms)

    def _cut(self, fault: ActiveFault) -> None:
        for peer in list(self._host.port.peers):
            links = peer.client.links
            if fault.entity is None or any(_concerns(fault, context) for _, context in links):
                peer.abort()

    # -- what clients send

    def intercept(self, client: Client, events: Iterator[Event]) -> Iterator[Event]:
        """What a client sent, without what is to come to nothing."""
        for event in events:
            passed = self._look(client, event)
            if passed is not None:
                yield passed

    def _look(self, client: Client, event: Event) -> Event | None:
        match event:
            case LinkAttached():
                return self._on_attached(event)
            case Delivery():
                return self._on_delivery(client, event)
            case LinkFlow():
                return self._on_flow(client, event)
            case Settlement():
                return self._on_settlement(client, event)
        return event

    def _on_attached(self, event: LinkAttached) -> Event | None:
        link, path = event.link, path_of(event)
        if path.lower() == CBS:
            return event
        if path.lower().endswith(MANAGEMENT):
            error = self._refusal_of_node(path[: -len(MANAGEMENT)])
        else:
            act, cost = (Act.SEND, 0) if link.role == RECEIVER else (Act.RECEIVE, 1)
            error = self._refusal(act, path, cost)
        if error is None:
            return event
        link.refuse(error_of(error))
        return None

    def _refusal_of_node(self, path: str) -> TroubledError | None:
        """A link for requests is refused if nobody gets through; else its requests are."""
        found = self._faults.find("unreachable", path) or self._faults.find("node-restart", path)
        return None if found is None else found.error(path)

    def _on_delivery(self, client: Client, event: Delivery) -> Event | None:
        context = client.context(event.link)
        if context is None or context.path == CBS:
            return event
        passed: Event | None = event
        if self._faults.find("no-answer", context.path) is not None:
            passed = None
        elif isinstance(context, Producer):
            passed = self._on_message(client, context, event)
        if passed is None:
            client.pass_over(event)
        return passed

    def _on_message(self, client: Client, producer: Producer, event: Delivery) -> Event | None:
        now_ms = self._host.clock()
        try:
            payloads = payloads_of(producer, event)
        except RequestError:
            return event  # it will be refused, for a reason of its own
        error = self._refusal(Act.SEND, producer.path, len(payloads), payloads)
        if error is not None:
            client.settle_incoming(event, error)
            return None
        if self._faults.find("answers-lost", producer.path) is not None:
            event = replace(event, settled=True)  # a sender that waits for no answer gets none
        late = self._faults.find("store-and-forward", producer.path)
        if late is None:
            return event
        due_ms = now_ms + int(late.settings["delay_s"] * 1_000)
        done = partial(client.settle_incoming, event)
        try:
            self._namespace.send_later(producer.entity, payloads, now_ms, due_ms, done)
        except RefusalError as refused:
            done(refused)
        return None

    def _on_flow(self, client: Client, event: LinkFlow) -> Event | None:
        receiver = client.context(event.link)
        if not isinstance(receiver, Receiver):
            return event
        if event.named and event.link.credit > 0:
            receiver.pause(self._must_wait(receiver))
        return event

    def _on_settlement(self, client: Client, event: Settlement) -> Event | None:
        receiver = client.context(event.link)
        if isinstance(receiver, Receiver):
            if self._faults.find("no-answer", receiver.path) is not None:
                return None
            if self._faults.find("answers-lost", receiver.path) is not None:
                return replace(event, settled=True)
        return event

    # -- requests

    def admit(self, path: str, operation: str, claim: Claim, answer: Answer) -> Answer:
        """A request to an entity's ``$management``: raise, or tell where the answer goes."""
        act = Act.SEND if claim is Claim.SEND else Act.RECEIVE
        if operation in _RULES:
            act = Act.MANAGE
        error = self._refusal(act, path, 1)
        if error is not None:
            raise error
        lost = self._faults.find("answers-lost", path)
        return answer if lost is None else _unheard

    async def before_managing(self, path: str) -> None:
        """A management request over HTTP: raise, or wait, before it is done."""
        await self._outlast("no-answer", path)
        error = self._refusal(Act.MANAGE, path, MANAGEMENT_COST)
        if error is not None:
            raise error

    async def before_answering(self, path: str) -> None:
        """It is done: wait before it is answered."""
        await self._outlast("answers-lost", path)

    async def _outlast(self, kind: str, path: str) -> None:
        while self._faults.find(kind, path) is not None:
            self._changed.clear()
            await self._changed.wait()

    def commit_delay_s(self) -> float:
        """How much longer a commit takes. Raises StoreError where it fails."""
        if self._faults.find("failing-store", "") is not None:
            raise StoreError("the store failed: a fault 'failing-store' was started")
        slow = self._faults.find("slow-store", "")
        return 0.0 if slow is None else float(slow.settings["delay_s"])

    # -- over HTTP

    async def page(self, request: Request) -> Response:
        try:
            match request.method:
                case "GET":
                    return self._listed("faults", list(self._faults), kinds=_KINDS)
                case "POST":
                    return await self._post(request)
                case "DELETE":
                    return self._listed("cleared", self.clear(_id_of(request)))
        except RequestError as error:
            return _refused(error.status, str(error))
        return _refused(405, f"{request.method} is not for '$faults'; use GET, POST or DELETE.")

    async def _post(self, request: Request) -> Response:
        asked = await _asked(request)
        kind, entity = asked.pop("kind", None), asked.pop("entity", None)
        fault = self.start(str(kind), entity, asked.pop("seconds", DEFAULT_S), asked)
        told = fault.as_json(self._host.clock())
        # After the answer: the connection that it goes out on may be the first to be cut.
        return JSONResponse(told, 201, background=BackgroundTask(self._strike_now, fault))

    async def _strike_now(self, fault: ActiveFault) -> None:
        """On the loop's own thread, which is why it is a coroutine."""
        self.strike(fault)

    def _listed(self, name: str, faults: list[ActiveFault], **more: Any) -> Response:
        now_ms = self._host.clock()
        return JSONResponse({name: [fault.as_json(now_ms) for fault in faults], **more})


async def no_faults(request: Request) -> Response:
    """The page of a broker whose faults are not enabled."""
    return _refused(403, DISABLED)


async def _asked(request: Request) -> dict[str, Any]:
    body = await body_of(request, MAX_BODY)
    try:
        asked = None if body is None else json.loads(body)
    except ValueError:
        asked = None
    if not isinstance(asked, dict) or not isinstance(asked.get("entity"), str | None):
        raise ArgumentError(
            'the body must be a JSON object, as {"kind": "throttling", "entity": "orders", '
            '"seconds": 60}'
        )
    return asked


def _id_of(request: Request) -> int | None:
    text = request.query_params.get("id")
    if text is not None and not text.isdecimal():
        raise ArgumentError(f"'{text[:40]}' is no fault's number; list them first")
    return None if text is None else int(text)


def _refused(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status)


def _concerns(fault: ActiveFault, context: Context) -> bool:
    return context.path != CBS and fault.covers(context.path)


def _farewell(fault: ActiveFault, context: Context) -> RequestError:
    if fault.kind.name == "node-restart":
        text = f"The link to '{context.path}' is force detached: its node restarts."
        return TroubledError(text, "amqp:link:detach-forced")
    return fault.error(context.path)


def _unheard(result: Any) -> None:
    """The answer that gets lost."""
