"""Requests to ``<entity>/$management``: what a client asks about messages besides receiving them.

Each operation is a function of the asker and the request's body. It answers through ``reply``, at
once or after the commit; what it refuses it raises, and the caller turns that into a status.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from twinbus.amqp.message import Message, application_properties, body_value
from twinbus.amqp.types import Array, CodecError, Symbol, Timestamp
from twinbus.broker.delivery import payload
from twinbus.broker.descriptions import Claim
from twinbus.broker.entities import (
    Entity,
    EntityDisabledError,
    EntityNotFoundError,
    NotAllowedError,
)
from twinbus.broker.namespace import MessageError, Namespace
from twinbus.broker.queue import (
    Burial,
    Done,
    LockLostError,
    NotFoundError,
    Queue,
    QueueError,
)
from twinbus.broker.sessions import Session, SessionLostError, SessionQueue, SessionTakenError
from twinbus.broker.store import Entry, StoreError

# A peek that asks for more gets this many; it asks again.
MAX_PEEK = 250
ALL_SESSIONS_MS = 253_402_300_800_000

_STATUS: dict[type[Exception], int] = {
    LockLostError: 410,
    SessionLostError: 410,
    NotFoundError: 404,
    EntityNotFoundError: 404,
    SessionTakenError: 410,
    EntityDisabledError: 403,
    MessageError: 400,
    NotAllowedError: 400,
}


@dataclass(slots=True)
class Reply:
    status: int
    description: str
    body: dict[str, Any] | None = None
    condition: str | None = None


@dataclass(slots=True)
class Request:
    """One request: who asks, of which queue, what, and how to answer."""

    namespace: Namespace
    entity: Entity
    queue: Queue
    now_ms: int
    body: dict[Any, Any]
    reply: Callable[[Reply], None]

    def answer(self, body: dict[str, Any]) -> None:
        self.reply(Reply(200, "OK", body))

    def when_stored(self, body: dict[str, Any] | None = None) -> Done:
        """A callback that answers once the commit is through."""

        def done(error: Exception | None) -> None:
            self.reply(Reply(200, "OK", body or {}) if error is None else refusal(error))

        return done

    def __getitem__(self, name: str) -> Any:
        if name not in self.body:
            raise MessageError(f"The request lacks '{name}'.")
        return self.body[name]

    def numbers(self, name: str) -> list[int]:
        values = self[name]
        if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
            raise MessageError(f"'{name}' is not a list of numbers.")
        return [int(value) for value in values]

    def number(self, name: str) -> int:
        value = self[name]
        if not isinstance(value, int):
            raise MessageError(f"'{name}' is not a number.")
        return int(value)

    def tokens(self) -> list[bytes]:
        values = self["lock-tokens"]
        if not isinstance(values, list) or not all(isinstance(value, UUID) for value in values):
            raise MessageError("'lock-tokens' is not a list of uuids.")
        return [value.bytes_le for value in values]

    def sessions(self) -> SessionQueue:
        if not isinstance(self.queue, SessionQueue):
            raise NotAllowedError(f"'{self.queue.path}' has no sessions.")
        return self.queue

    def session_id(self) -> str:
        value = self["session-id"]
        if not isinstance(value, str):
            raise MessageError("'session-id' is not a string.")
        return value

    def session(self) -> Session | None:
        """The session the request speaks of, which must still be held."""
        if self.body.get("session-id") is None:
            return None
        return self.sessions().session(self.session_id())


def refusal(error: Exception) -> Reply:
    """How an error looks as an answer."""
    if isinstance(error, StoreError):
        condition = "amqp:resource-limit-exceeded" if error.full else "amqp:internal-error"
        return Reply(500, f"{error}. Nothing was changed; try again.", condition=condition)
    condition = error.condition if isinstance(error, QueueError) else "amqp:internal-error"
    return Reply(_STATUS.get(type(error), 500), str(error), condition=condition)


def read_request(payload: bytes) -> tuple[str, dict[Any, Any], Any]:
    """The operation, the application properties and the body of a request."""
    message = Message.parse(payload)
    properties = application_properties(message.bare)
    operation = properties.get("operation")
    if not isinstance(operation, str):
        raise CodecError("the request names no operation")
    return operation, properties, body_value(message.bare)


# ---------------------------------------------------------------- operations


def _renew_lock(request: Request) -> None:
    ends = [request.queue.renew(token, request.now_ms) for token in request.tokens()]
    request.answer({"expirations": Array([Timestamp(end) for end in ends], 0x83)})


def _renew_session_lock(request: Request) -> None:
    end = request.sessions().renew_session(request.session_id(), request.now_ms)
    request.answer({"expiration": Timestamp(end)})


def _peek(request: Request) -> None:
    session = request.body.get("session-id")
    entries = request.queue.peek(
        request.number("from-sequence-number"),
        min(request.number("message-count"), MAX_PEEK),
        session if isinstance(session, str) else None,
    )
    if not entries:
        request.reply(Reply(204, "No messages.", {}, "com.microsoft:message-not-found"))
        return
    request.answer({"messages": [{"message": payload(entry, 0)} for entry in entries]})


def _schedule(request: Request) -> None:
    items = request["messages"]
    if not isinstance(items, list) or not all(
        isinstance(item, dict) and isinstance(item.get("message"), bytes) for item in items
    ):
        raise MessageError("'messages' is not a list of encoded messages.")
    body: dict[str, Any] = {}
    numbers = request.namespace.send(
        request.entity,
        [item["message"] for item in items],
        request.now_ms,
        request.when_stored(body),
    )
    body["sequence-numbers"] = Array(numbers, 0x81)


def _cancel(request: Request) -> None:
    request.queue.cancel(request.numbers("sequence-numbers"), request.when_stored())


def _receive_by_number(request: Request) -> None:
    deletes = request.number("receiver-settle-mode") == 0
    body: dict[str, Any] = {}
    received = request.queue.receive_deferred(
        request.numbers("sequence-numbers"),
        request.now_ms,
        deletes=deletes,
        owner=request.session(),
        done=lambda error: None if not deletes else request.when_stored(body)(error),
    )
    request.namespace.pump_queue(request.queue, request.now_ms)
    body["messages"] = [_received(entry, token, until_ms) for entry, token, until_ms in received]
    if not deletes:
        request.answer(body)


def _received(entry: Entry, token: bytes, until_ms: int) -> dict[str, Any]:
    return {"lock-token": UUID(bytes_le=token), "message": payload(entry, until_ms)}


def _update_disposition(request: Request) -> None:
    """Settle by lock token, all of them or none."""
    tokens, status = request.tokens(), request["disposition-status"]
    settle = _DISPOSITIONS.get(status)
    if settle is None:
        raise MessageError(f"'{status}' is not a disposition.")
    request.session()
    request.queue.check_locks(tokens)
    if not tokens:
        raise MessageError("'lock-tokens' is empty.")
    for token in tokens[:-1]:
        settle(request, token, _another_answers)
    settle(request, tokens[-1], request.when_stored())


def _another_answers(error: Exception | None) -> None:
    """They share one batch, so the last of them answers for all."""


def _complete(request: Request, token: bytes, done: Done) -> None:
    request.queue.complete(token, done)


def _abandon(request: Request, token: bytes, done: Done) -> None:
    request.queue.abandon(token, request.now_ms, done, _changes(request))


def _defer(request: Request, token: bytes, done: Done) -> None:
    request.queue.defer(token, done, _changes(request))


def _suspend(request: Request, token: bytes, done: Done) -> None:
    reason = request.body.get("deadletter-reason")
    text = request.body.get("deadletter-description")
    changes = _changes(request)
    request.queue.dead_letter(token, lambda entry: Burial(entry, reason, text, changes), done)


def _changes(request: Request) -> dict[str, Any]:
    changes = request.body.get("properties-to-modify") or {}
    if not isinstance(changes, dict):
        raise MessageError("'properties-to-modify' is not a map.")
    return {str(key): value for key, value in changes.items()}


_DISPOSITIONS: dict[Any, Callable[[Request, bytes, Done], None]] = {
    "completed": _complete,
    "abandoned": _abandon,
    "defered": _defer,
    "suspended": _suspend,
}


def _get_session_state(request: Request) -> None:
    request.answer({"session-state": request.sessions().get_state(request.session_id())})


def _set_session_state(request: Request) -> None:
    state = request["session-state"]
    if state is not None and not isinstance(state, bytes):
        raise MessageError("'session-state' is not binary.")
    queue = request.sessions()
    queue.session(request.session_id())
    queue.set_state(request.session_id(), state, request.now_ms, request.when_stored())


def _list_sessions(request: Request) -> None:
    since = request.number("last-updated-time")
    found = request.sessions().list_sessions(
        None if since >= ALL_SESSIONS_MS else since,
        max(0, request.number("skip")),
        min(request.number("top"), MAX_PEEK),
    )
    if not found:
        request.reply(Reply(204, "No sessions.", {}))
        return
    request.answer(
        {"skip": request.number("skip") + len(found), "sessions-ids": Array(found, 0xB1)}
    )


Operation = Callable[[Request], None]
_PREFIX = "com.microsoft:"

OPERATIONS: dict[str, tuple[Claim, Operation]] = {
    _PREFIX + "renew-lock": (Claim.LISTEN, _renew_lock),
    _PREFIX + "renew-session-lock": (Claim.LISTEN, _renew_session_lock),
    _PREFIX + "peek-message": (Claim.LISTEN, _peek),
    _PREFIX + "schedule-message": (Claim.SEND, _schedule),
    _PREFIX + "cancel-scheduled-message": (Claim.SEND, _cancel),
    _PREFIX + "receive-by-sequence-number": (Claim.LISTEN, _receive_by_number),
    _PREFIX + "update-disposition": (Claim.LISTEN, _update_disposition),
    _PREFIX + "get-session-state": (Claim.LISTEN, _get_session_state),
    _PREFIX + "set-session-state": (Claim.LISTEN, _set_session_state),
    _PREFIX + "get-message-sessions": (Claim.LISTEN, _list_sessions),
}

STATUS_CODE, STATUS_TEXT, ERROR_CONDITION = "statusCode", "statusDescription", "errorCondition"


def reply_properties(reply: Reply) -> dict[str, Any]:
    properties: dict[str, Any] = {STATUS_CODE: reply.status, STATUS_TEXT: reply.description}
    if reply.condition is not None:
        properties[ERROR_CONDITION] = Symbol(reply.condition)
    return properties
