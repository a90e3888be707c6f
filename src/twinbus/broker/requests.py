"""A request to ``<entity>/$management`` and its answer, whatever the operation.

An operation is a function of a `Request`. It answers through ``reply``, at once or after the
commit; what it refuses it raises, and `refusal` turns that into an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from twinbus.amqp.types import Symbol
from twinbus.broker.entity import Entity
from twinbus.broker.namespace import Namespace
from twinbus.broker.queue import Done, Queue
from twinbus.broker.refusals import MessageError, NotAllowedError, RefusalError
from twinbus.broker.sessions import SessionLock, SessionQueue


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
        """A callback that answers once the commit is through, and keeps nothing of the request."""
        reply = self.reply

        def done(error: Exception | None) -> None:
            reply(Reply(200, "OK", body or {}) if error is None else refusal(error))

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
        if not isinstance(value, int) or not -(2**63) <= value < 2**63:
            raise MessageError(f"'{name}' is not a number that can be counted to.")
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

    def session(self) -> SessionLock | None:
        """The session the request speaks of, which must still be held."""
        if self.body.get("session-id") is None:
            return None
        return self.sessions().session(self.session_id())


def refusal(error: Exception) -> Reply:
    """How an error looks as an answer."""
    if isinstance(error, RefusalError):
        return Reply(error.status, error.told(), condition=error.condition)
    return Reply(RefusalError.status, str(error), condition=RefusalError.condition)


def reply_properties(reply: Reply) -> dict[str, Any]:
    """What the answer says in its application properties."""
    properties: dict[str, Any] = {
        "statusCode": reply.status,
        "statusDescription": reply.description,
    }
    if reply.condition is not None:
        properties["errorCondition"] = Symbol(reply.condition)
    return properties
