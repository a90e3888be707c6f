"""What a client's link means here: a sender, a receiver, or one end of a request-response pair."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from twinbus.amqp.incoming import LinkAttached
from twinbus.amqp.lifecycle import LinkState
from twinbus.amqp.link_endpoint import RECEIVER, Link
from twinbus.amqp.performatives import Error, Source
from twinbus.amqp.types import Described, Symbol
from twinbus.broker.delivery import payload
from twinbus.broker.entity import Entity
from twinbus.broker.entry import Entry
from twinbus.broker.queue import Queue
from twinbus.broker.refusals import RefusalError, RequestError
from twinbus.broker.sessions import SessionLock, SessionQueue, Waiter
from twinbus.budget import MAX_UNSENT

if TYPE_CHECKING:
    from twinbus.broker.dialect import Client
    from twinbus.broker.served import NoRecords

SESSION_FILTER = Symbol("com.microsoft:session-filter")
# A receiver that is paused counts so many messages as on their way to it. No client grants as much
# credit, so it wants nothing, and asking what it wants stays one subtraction.
_PAUSED = 1 << 40


def error_of(error: Exception) -> Error:
    """An exception of ours as AMQP says it."""
    if isinstance(error, RefusalError):
        return Error(error.condition, error.told())
    raise error


def path_of(event: LinkAttached) -> str:
    """The path in the address that a link was asked for, which may be a whole URI."""
    attach = event.attach
    end = attach.target if event.link.role == RECEIVER else attach.source
    address = getattr(end, "address", None)
    if not isinstance(address, str):
        return ""
    try:
        path = urlsplit(address).path if "://" in address else address
    except ValueError:
        return ""  # no address at all, so nothing is found there
    return unquote(path).strip("/")


@dataclass(slots=True, eq=False)
class Producer:
    """A link that a client sends on. ``used_ms`` is when it last carried something."""

    entity: Entity
    path: str
    used_ms: int


@dataclass(slots=True, eq=False)
class RequestLink:
    """One end of a request-response pair: ``$cbs``, or an entity's ``$management``."""

    path: str
    waiting: deque[bytes] = field(default_factory=deque)


class Receiver:
    """A link that a client receives on."""

    def __init__(
        self,
        client: Client,
        link: Link,
        entity: Entity,
        queue: Queue,
        path: str,
        books: NoRecords,
    ) -> None:
        self.client = client
        self.link = link
        self.entity = entity
        self.queue = queue
        self.path = path
        assert link.remote is not None
        self.deletes = link.remote.snd_settle_mode == 1
        self.used_ms = entity.accessed_ms  # an attach has just used it
        self.session: SessionLock | None = None
        self.waiter: Waiter | None = None
        self.deadline_ms = 0
        self._reserved = 0
        self._totals = queue.totals
        self._books = books
        self._asking = False
        self._asked_at = 0

    def demand(self) -> int:
        link = self.link
        client = self.client
        if not client.writable or not link.can_send:
            return 0
        if client.amqp.budget.unsent > MAX_UNSENT:
            client.starved = True  # it goes on when these bytes have been handed to the socket
            return 0
        return link.credit - self._reserved

    def reserve(self, count: int) -> None:
        self._reserved += count

    @property
    def is_paused(self) -> bool:
        return self._reserved >= _PAUSED

    def pause(self, paused: bool) -> None:
        """Want nothing, whatever credit there is, until told otherwise."""
        if paused != self.is_paused:
            self._reserved += _PAUSED if paused else -_PAUSED

    def deliver(self, entry: Entry, token: bytes, locked_until_ms: int) -> None:
        if self.link.state is not LinkState.ATTACHED:
            return  # receive-and-delete: the receiver left while its message was being deleted
        self.link.send(payload(entry, locked_until_ms), token, self.deletes)
        self._totals.messages_out += 1
        self._books.delivered(self.queue, entry, token, deletes=self.deletes)
        if self.deletes:
            self.finish_drain()  # which had to wait for what was being deleted
        self.client.touch()

    def lose(self, error: RequestError) -> None:
        self.session = None
        self.client.drop(self.link, error)
        self.client.touch()

    def finish_drain(self) -> None:
        if self.link.drain and self.link.credit > 0 and not self._reserved:
            self._count_request_over()
            self.link.finish_drain()

    def count_request(self) -> None:
        """The client has told its credit, which is how it asks to receive, and how it stops."""
        link = self.link
        if self._asking and link.drain and link.credit > 0:
            return  # it asks for the end of the same request
        self._count_request_over()
        if link.credit > 0:
            self._asking, self._asked_at = True, link.delivery_count
            self._totals.receive_requests += 1

    def _count_request_over(self) -> None:
        if self._asking and self.link.delivery_count == self._asked_at:
            self._totals.empty_receives += 1
            self._books.found_nothing(self.queue.path)
        self._asking = False

    def close(self, now_ms: int) -> None:
        self.queue.remove_consumer(self)
        self._count_request_over()
        if isinstance(self.queue, SessionQueue):
            if self.waiter is not None:
                self.queue.stop_waiting(self.waiter)
            if self.session is not None:
                self.queue.close_session(self.session, now_ms)


Context = Producer | RequestLink | Receiver


NO_FILTER: Final = object()  # the link asks for no session


def session_filter(link: Link) -> Any:
    """The session that a link asks for: a name, None for any, or NO_FILTER."""
    assert link.remote is not None
    source = link.remote.source
    filters = source.filter if isinstance(source, Source) else None
    if not filters or SESSION_FILTER not in filters:
        return NO_FILTER
    wanted = filters[SESSION_FILTER]
    return wanted.value if isinstance(wanted, Described) else wanted
