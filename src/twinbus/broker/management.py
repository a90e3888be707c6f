"""What a client asks of ``<entity>/$management``, about messages, besides receiving them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from twinbus.amqp.types import Array, Int, Timestamp
from twinbus.auth.access_rules import Claim
from twinbus.broker.burial import Burial
from twinbus.broker.cbs import Cbs
from twinbus.broker.delivery import payload, shown
from twinbus.broker.entry import Entry
from twinbus.broker.namespace import Answer, Namespace
from twinbus.broker.queue import Settle, nothing
from twinbus.broker.refusals import MessageError, NotAllowedError, RefusalError
from twinbus.broker.requests import Reply, Request, refusal, reply_properties
from twinbus.broker.sessions import SessionQueue
from twinbus.broker.subscription_rules import add_rule, enumerate_rules, remove_rule
from twinbus.ledger import Operation as Ledgered

# Some SDKs put a token for this part of an entity alone; one for the entity covers it too.
MANAGEMENT = "/$management"
# A peek that asks for more gets this many; it asks again.
MAX_PEEK = 250
ALL_SESSIONS_MS = 253_402_300_800_000
MAX_DELETE = 4_000


def _renew_lock(request: Request) -> None:
    tokens = request.tokens()
    request.queue.check_locks(tokens)
    ends = [request.queue.renew(token, request.now_ms) for token in tokens]
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
    request.answer({"messages": [{"message": shown(entry)} for entry in entries]})


def _schedule(request: Request) -> None:
    items = request["messages"]
    if not isinstance(items, list) or not all(
        isinstance(item, dict) and isinstance(item.get("message"), bytes) for item in items
    ):
        raise MessageError("'messages' is not a list of encoded messages.")
    body: dict[str, Any] = {}
    numbers = request.namespace.schedule(
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
    request.queue.totals.receive_requests += 1
    request.queue.totals.messages_out += len(received)
    for entry, token, _ in received:
        request.namespace.books.delivered(request.queue, entry, token, deletes=deletes)
    request.namespace.wake(request.queue)  # for its locks to be looked after
    body["messages"] = [_received(entry, token, until_ms) for entry, token, until_ms in received]
    if not deletes:
        request.answer(body)


def _received(entry: Entry, token: bytes, until_ms: int) -> dict[str, Any]:
    message = payload(entry, until_ms)
    entry.bare, entry.annotations = b"", None  # the lock remembers the entry, not its bytes
    return {"lock-token": UUID(bytes_le=token), "message": message}


def _update_disposition(request: Request) -> None:
    """Settle by lock token, all of them or none."""
    tokens, status = request.tokens(), request["disposition-status"]
    tokens = list(dict.fromkeys(tokens))
    known = _DISPOSITIONS.get(status) if isinstance(status, str) else None
    if known is None:
        raise MessageError(f"'{status}' is not a disposition.")
    operation, settle = known
    request.session()
    if not tokens:
        raise MessageError("'lock-tokens' is empty.")
    settlements = [settle(request, token) for token in tokens]  # all that may fail comes first
    for each in settlements[:-1]:
        each(nothing)  # they share one batch, so the last of them answers for all
    settlements[-1](request.when_stored())
    request.namespace.books.settled(operation, request.queue, tokens)


def _complete(request: Request, token: bytes) -> Settle:
    request.queue.check_locks([token])
    return partial(request.queue.complete, token)


def _abandon(request: Request, token: bytes) -> Settle:
    return request.queue.abandoning(token, request.now_ms, _changes(request))


def _defer(request: Request, token: bytes) -> Settle:
    return request.queue.deferring(token, _changes(request))


def _suspend(request: Request, token: bytes) -> Settle:
    reason = request.body.get("deadletter-reason")
    text = request.body.get("deadletter-description")
    changes = _changes(request)

    def burial(entry: Entry) -> Burial:
        return Burial(entry, reason, text, changes, is_asked=True)

    return request.queue.dead_lettering(token, burial)


def _changes(request: Request) -> dict[str, Any]:
    changes = request.body.get("properties-to-modify") or {}
    if not isinstance(changes, dict):
        raise MessageError("'properties-to-modify' is not a map.")
    return {str(key): value for key, value in changes.items()}


_DISPOSITIONS: dict[str, tuple[Ledgered, Callable[[Request, bytes], Settle]]] = {
    "completed": (Ledgered.COMPLETE, _complete),
    "abandoned": (Ledgered.ABANDON, _abandon),
    "defered": (Ledgered.DEFER, _defer),
    "suspended": (Ledgered.DEAD_LETTER, _suspend),
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
        max(0, min(request.number("top"), MAX_PEEK)),
    )
    if not found:
        request.reply(Reply(204, "No sessions.", {}))
        return
    request.answer(
        {"skip": request.number("skip") + len(found), "sessions-ids": Array(found, 0xB1)}
    )


def _batch_delete(request: Request) -> None:
    """Delete ready messages that were enqueued before a moment, oldest first."""
    before = request["enqueued-time-utc"]
    if not isinstance(before, int):
        raise MessageError("'enqueued-time-utc' is not a time.")
    session = request.session()
    if session is None and isinstance(request.queue, SessionQueue):
        raise NotAllowedError(f"'{request.queue.path}' requires sessions: name one that you hold.")
    body: dict[str, Any] = {}
    count = request.queue.purge(
        min(request.number("message-count"), MAX_DELETE),
        int(before),
        request.now_ms,
        session,
        request.when_stored(body),
    )
    body["message-count"] = Int(count)
    if count == 0:
        request.reply(Reply(204, "No messages.", {}))


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
    _PREFIX + "batch-delete-messages": (Claim.LISTEN, _batch_delete),
    _PREFIX + "add-rule": (Claim.LISTEN, add_rule),
    _PREFIX + "remove-rule": (Claim.LISTEN, remove_rule),
    _PREFIX + "enumerate-rules": (Claim.LISTEN, enumerate_rules),
}


def serve(
    namespace: Namespace,
    cbs: Cbs,
    path: str,
    values: dict[str, Any],
    body: Any,
    clock: Callable[[], int],
    reply: Callable[[dict[str, Any], Any], None],
) -> None:
    """Do what is asked of an entity, and reply: at once or after the commit."""

    def tell(result: Reply) -> None:
        reply(reply_properties(result), result.body)

    answer: Answer = tell
    try:
        name = values.get("operation")
        known = OPERATIONS.get(name) if isinstance(name, str) else None
        if known is None:
            raise MessageError(f"'{path}' does not know the operation {name!r}.")
        if not isinstance(body, dict):
            raise MessageError("The request's body is not a map.")
        claim, operation = known
        if namespace.trouble is not None:
            answer = namespace.trouble.admit(path, str(name), claim, answer)
        cbs.require(path + MANAGEMENT, claim)
        entity, queue = namespace.directory.resolve(path)
        request = Request(namespace, entity, queue, clock(), body, answer)
        namespace.books.answering(str(name), request)
        operation(request)
        entity.accessed_ms = clock()
    except RefusalError as error:
        answer(refusal(error))
