# Generated from ../aio/diverter.py by tools/unasync.py; change that file, not this one.
"""The way into the backlog: one link to each backlog queue that is used, shared by all senders."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from azure.servicebus import ServiceBusClient

from twinbus.client_errors import BacklogError, EnvelopeError
from twinbus.failover.rotation import Rotation
from twinbus.paired.blocking.link_blocking import CongestedError, SharedSender, plain_sender
from twinbus.paired.blocking.world_blocking import Crew
from twinbus.paired.bookkeeper import KEEPS_NOTHING, Bookkeeper
from twinbus.paired.events import BacklogQueueIn, BacklogQueueOut, MessagesDiverted
from twinbus.paired.outgoing import OutgoingBatch
from twinbus.paired.telemetry import Announcer, Traced
from twinbus.paired.transfers import Transfers

# One queue that does not answer must not use up the time that another could have answered in.
QUEUE_S = 10.0
# Even a caller whose time is over is worth one attempt: its message has nowhere else to go.
LEAST_S = 0.25


class Diverter:
    def __init__(
        self,
        secondary: ServiceBusClient,
        rotation: Rotation,
        announcer: Announcer,
        crew: Crew,
        books: Bookkeeper = KEEPS_NOTHING,
    ) -> None:
        self.rotation = rotation
        self._secondary = secondary
        self._announcer = announcer
        self._crew = crew
        self._books = books
        self._senders: dict[str, SharedSender] = {}

    def divert(
        self,
        path: str,
        messages: list[bytes],
        sticky: str,
        deadline: float,
        ids: Sequence[Any] = (),
    ) -> str:
        """Put the messages into the backlog; returns the queue to stay with.

        Raises BacklogError when no queue takes them. Some of a list may then be in the backlog.
        """
        pending = Transfers(path, messages)
        names = deque(ids)
        errors: dict[str, BaseException] = {}
        order = self.rotation.order(sticky, time.monotonic())
        for tried, queue in enumerate(order):
            left = deadline - time.monotonic()
            if left <= 0 and errors:
                break
            # Half of what is left: the best candidate gets most, and the others get some.
            timeout = max(LEAST_S, min(QUEUE_S, left / 2 if tried + 1 < len(order) else left))
            try:
                with Traced("twinbus divert", path, queue):
                    self._put(queue, path, pending, names, timeout)
            except EnvelopeError:  # the message's own, of which no queue is guilty
                raise
            except Exception as error:  # noqa: BLE001  each queue's own words go into BacklogError
                errors[queue] = error
                if not isinstance(error, CongestedError):
                    self._failed(queue, error)
            else:
                self._succeeded(queue)
                return queue
        raise BacklogError(
            f"'{path}' is out, and none of {len(errors)} backlog queues on "
            f"{self._secondary.fully_qualified_namespace} took its messages; send again when one "
            "of the two namespaces is back.",
            errors,
        ) from next(reversed(errors.values()), None)

    def is_cold(self, queue: str) -> bool:
        """Whether nobody has yet opened a link to it."""
        return queue not in self._senders

    def warm(self, queue: str) -> None:
        """Open the link to a queue that will be needed soon."""
        try:
            self._sender(queue).warm(QUEUE_S)
        except CongestedError:
            pass  # somebody is at it
        except Exception as error:  # noqa: BLE001  the send will find out, and say so
            self._failed(queue, error)

    def close(self) -> None:
        senders, self._senders = self._senders, {}
        for sender in senders.values():
            self._crew.attempt("closing", sender.entity_name, sender.close)

    def _put(
        self,
        queue: str,
        path: str,
        pending: Transfers,
        names: deque[Any],
        timeout: float,
    ) -> None:
        """Take messages off ``pending``, and their ids off ``names``, as the queue accepts them."""
        sender = self._sender(queue)
        end = time.monotonic() + timeout
        if not sender._max_batch_size_on_link:
            sender.warm(timeout)
        limit = min(sender._max_batch_size_on_link, sender._max_message_size_on_link)
        while pending:
            items, whole = pending.next(limit)
            for batch in items:
                sender.transfer(OutgoingBatch(batch), max(LEAST_S, end - time.monotonic()))
            pending.accepted(whole)
            self._announce_diverted(queue, path, items, whole)
            ids = [names.popleft() for _ in range(min(whole, len(names)))]
            host = self._secondary.fully_qualified_namespace
            self._books.diverted(host, queue, path, items, ids)

    def _sender(self, queue: str) -> SharedSender:
        sender = self._senders.get(queue)
        if sender is None:
            sender = self._senders.setdefault(
                queue, plain_sender(self._secondary, queue, self._crew)
            )
        return sender

    def _failed(self, queue: str, error: BaseException) -> None:
        if self.rotation.failed(queue, time.monotonic()):
            self._announcer.announce(
                BacklogQueueOut(**self._where(), queue=queue, error=str(error))
            )

    def _succeeded(self, queue: str) -> None:
        if self.rotation.succeeded(queue):
            self._announcer.announce(BacklogQueueIn(**self._where(), queue=queue))

    def _announce_diverted(
        self, queue: str, path: str, items: list[list[bytes]], messages: int
    ) -> None:
        size = sum(len(item) for batch in items for item in batch)
        self._announcer.announce(
            MessagesDiverted(
                **self._where(), entity=path, queue=queue, messages=messages, bytes=size
            )
        )

    def _where(self) -> dict[str, Any]:
        return {"at": time.time(), "namespace": self._secondary.fully_qualified_namespace}
