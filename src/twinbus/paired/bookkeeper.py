"""What a factory does, written into its ledger. Nothing here waits or asks anybody.

What failed is written too, at no charge: that a send was tried explains a message that arrived
although its send raised. ``docs/costs.md`` says what each record means to the bill and the audit.

A record that cannot be made is logged. It never comes between a caller and a send, which has been
made by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec

from twinbus.envelope import id_of, is_backlog_path
from twinbus.failover.states import State
from twinbus.health import Health
from twinbus.ledger import Cause, Ledger, Operation, units
from twinbus.paired.outgoing import Outgoing, OutgoingBatch, size_of
from twinbus.sdk.privates import (
    MGMT_REQUEST_MESSAGE,
    MGMT_REQUEST_MESSAGES,
    REQUEST_RESPONSE_RECEIVE_BY_SEQUENCE_NUMBER,
    REQUEST_RESPONSE_RENEW_SESSION_LOCK_OPERATION,
    REQUEST_RESPONSE_RENEWLOCK_OPERATION,
    REQUEST_RESPONSE_SCHEDULE_MESSAGE_OPERATION,
    REQUEST_RESPONSE_UPDATE_DISPOSTION_OPERATION,
)

# Looked up once: to find a member of an enum takes longer than to use it.
_SEND, _NORMAL = Operation.SEND, Cause.NORMAL
_SETTLEMENTS: Final = {
    "complete": Operation.COMPLETE,
    "abandon": Operation.ABANDON,
    "defer": Operation.DEFER,
    "dead-letter": Operation.DEAD_LETTER,
}
_MARKS: Final = {State.SUSPECT: Operation.SUSPECT, State.DIVERTED: Operation.DIVERT}
_RENEWALS: Final = {
    REQUEST_RESPONSE_RENEWLOCK_OPERATION,
    REQUEST_RESPONSE_RENEW_SESSION_LOCK_OPERATION,
}
# Requests that settle or receive messages, which are recorded with their ids.
_KNOWN_OTHERWISE: Final = {
    REQUEST_RESPONSE_RECEIVE_BY_SEQUENCE_NUMBER,
    REQUEST_RESPONSE_UPDATE_DISPOSTION_OPERATION,
}


_P = ParamSpec("_P")
_LOGGER = logging.getLogger("twinbus.paired")


def _surely(
    record: Callable[Concatenate[Bookkeeper, _P], None],
) -> Callable[Concatenate[Bookkeeper, _P], None]:
    @wraps(record)
    def note(self: Bookkeeper, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            record(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever a ledger raises
            where = " ".join(name for name in args if isinstance(name, str))
            self._health.failed(f"recording what was {record.__name__}", where, error)

    return note


class Bookkeeper:
    """Of one namespace."""

    __slots__ = ("_health", "_ledger", "_namespace")

    def __init__(self, ledger: Ledger, namespace: str) -> None:
        self._ledger = ledger
        self._namespace = namespace
        self._health = Health(_LOGGER)

    # -- sending

    @_surely
    def sent(self, entity: str, ready: Outgoing | OutgoingBatch, *, ok: bool = True) -> None:
        # Written out, because this is done for every send.
        sizes = ready.sizes()
        self._ledger.add(
            _SEND,
            _NORMAL,
            self._namespace,
            entity,
            count=len(sizes),
            bytes=sum(sizes),
            units=units(sizes) if ok else 0,
            message_ids=ready.ids(),
            ok=ok,
        )

    @_surely
    def diverted(
        self,
        namespace: str,
        queue: str,
        path: str,
        batches: Sequence[Sequence[bytes]],
        ids: Sequence[Any],
    ) -> None:
        """``batches`` are what went over the wire: of a message in parts, several."""
        sizes = [len(item) for batch in batches for item in batch]
        self._ledger.add(
            Operation.SEND,
            Cause.BACKLOG_SEND,
            namespace,
            queue,
            count=len(ids),
            bytes=sum(sizes),
            units=units(sizes),
            message_ids=ids,
            destination=path,
        )

    @_surely
    def pinged(self, entity: str, *, ok: bool) -> None:
        self._ledger.add(
            Operation.PING, Cause.PING, self._namespace, entity, units=1 if ok else 0, ok=ok
        )

    @_surely
    def turned(self, entity: str, state: State, was: State) -> None:
        """How an entity is from now on, for the time line and for who is watching."""
        healthy = Operation.RESTORE if was is State.DIVERTED else Operation.CLEAR
        operation = _MARKS.get(state, healthy)
        self._ledger.add(operation, Cause.NORMAL, self._namespace, entity, count=0, units=0)

    # -- receiving

    @_surely
    def received(self, entity: str, messages: Sequence[Any], *, settled: bool) -> None:
        """``settled`` if receiving them was all there is to do: the completion is free."""
        cause = _why(entity)
        if not messages:
            self._ledger.add(Operation.EMPTY_RECEIVE, cause, self._namespace, entity)
            return
        ids = [message.message_id for message in messages]
        sizes = [size_of(message._message) for message in messages]
        self._messages(Operation.RECEIVE, cause, entity, sizes, ids)
        if settled:
            self._ledger.add(
                Operation.COMPLETE,
                cause,
                self._namespace,
                entity,
                count=len(ids),
                units=0,
                message_ids=ids,
            )

    @_surely
    def settled(self, entity: str, message: Any, how: str) -> None:
        operation = _SETTLEMENTS.get(how, Operation.MANAGE)
        ids = [message.message_id]
        self._ledger.add(operation, _why(entity), self._namespace, entity, message_ids=ids)

    # -- everything else

    @_surely
    def requested(self, entity: str, what: bytes, request: Mapping[Any, Any]) -> None:
        """A request to the entity's ``$management``."""
        if what in _KNOWN_OTHERWISE:
            return
        if what == REQUEST_RESPONSE_SCHEDULE_MESSAGE_OPERATION:
            encoded = [bytes(each[MGMT_REQUEST_MESSAGE]) for each in request[MGMT_REQUEST_MESSAGES]]
            sizes, ids = [len(each) for each in encoded], [id_of(each) for each in encoded]
            self._messages(Operation.SCHEDULE, Cause.NORMAL, entity, sizes, ids)
            return
        operation = Operation.RENEW if what in _RENEWALS else Operation.MANAGE
        self._ledger.add(operation, _why(entity), self._namespace, entity)

    @_surely
    def managed(self, namespace: str, path: str) -> None:
        """A request to the namespace itself."""
        self._ledger.add(Operation.MANAGE, Cause.NORMAL, namespace, path)

    def _messages(
        self,
        operation: Operation,
        cause: Cause,
        entity: str,
        sizes: list[int],
        ids: Sequence[Any],
    ) -> None:
        self._ledger.add(
            operation,
            cause,
            self._namespace,
            entity,
            count=len(sizes),
            bytes=sum(sizes),
            units=units(sizes),
            message_ids=ids,
        )


class KeepsNothing(Bookkeeper):
    """Of a factory without a ledger."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    sent = diverted = pinged = turned = received = settled = requested = managed = _nothing


KEEPS_NOTHING: Final = KeepsNothing()


def books_of(ledger: Ledger | None, namespace: str) -> Bookkeeper:
    return KEEPS_NOTHING if ledger is None else Bookkeeper(ledger, namespace)


def _why(entity: str) -> Cause:
    return Cause.BACKLOG_RECEIVE if is_backlog_path(entity) else Cause.NORMAL
