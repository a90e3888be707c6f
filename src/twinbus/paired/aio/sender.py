"""The paired sender: as the SDK's is used, and every send takes its ``Route``."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from twinbus.client_errors import PairingError
from twinbus.paired.aio.gatherer import Gatherer
from twinbus.paired.aio.link import SharedSender
from twinbus.paired.aio.route import Route
from twinbus.paired.outgoing import (
    Outgoing,
    OutgoingBatch,
    links_of,
    outgoing,
    schedule_request,
    scheduled,
)
from twinbus.sdk.privates import (
    REQUEST_RESPONSE_SCHEDULE_MESSAGE_OPERATION,
    SPAN_NAME_SCHEDULE,
    mgmt_handlers,
)

if TYPE_CHECKING:
    from twinbus.paired.aio.factory import MessagingFactory

# An attempt may wait this long for an answer, even where there is to be no other: to open a link to
# a region far away, or through a name server that is slow, takes seconds.
ANSWER_S = 10.0
_REFUSALS = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)
_DIVERTED_NUMBERS = itertools.count(-1, -1)


class MessageSender(SharedSender):
    """A ``ServiceBusSender`` to one queue or topic. Many tasks may use it at once.

    Get one with ``get_queue_sender`` or ``get_topic_sender`` of a ``MessagingFactory``.
    """

    _factory: MessagingFactory
    _gatherer: Gatherer | None
    _own_try_timeout: float
    _retry_until: float
    _route: Route | None

    async def __aenter__(self) -> MessageSender:
        self._check_live()
        route = self._join()
        if route is None:
            await super().__aenter__()
        else:  # An entity that is out when the sender is made is no reason not to have a sender.
            await route.try_link()
        return self

    async def send_messages(
        self, message: Any, *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """As the SDK's. While the entity is diverted, into the backlog."""
        if kwargs:
            warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=2)
        self._check_live()
        if timeout is not None and timeout <= 0:
            raise ValueError("The timeout must be greater than 0.")
        ready = outgoing(message, self._amqp_transport, self._trace_attributes())
        if ready is None:
            return
        if self._gatherer is not None and isinstance(ready, Outgoing):
            await self._gatherer.send(ready, timeout)
        else:
            await self.deliver(ready, timeout)

    async def deliver(self, ready: Outgoing | OutgoingBatch, timeout: float | None) -> None:
        """To the primary if it is healthy, else to the backlog."""
        route = self._join()
        if route is None:
            await self._send_home(ready, timeout)
        else:
            await route.deliver(self._send_home, ready, timeout)

    async def _send_home(self, ready: Outgoing | OutgoingBatch, timeout: float | None) -> None:
        """To the primary, and into the ledger if there is one."""
        try:
            await self.transfer(ready, timeout)
        except BaseException:
            self._factory.books.sent(self.entity_name, ready, ok=False)
            raise
        self._factory.books.sent(self.entity_name, ready)

    async def schedule_messages(
        self,
        messages: Any,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """As the SDK's. While the entity is diverted, the messages go to the backlog and are
        scheduled when they are home; until then they have no sequence number of the primary's, and
        the numbers returned are negative."""
        if kwargs:
            warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=2)
        self._check_live()
        if timeout is not None and timeout <= 0:
            raise ValueError("The timeout must be greater than 0.")
        # Encoded once, ids and all: what is asked of the primary and what is diverted are the same.
        many = scheduled(
            messages, schedule_time_utc, self._amqp_transport, self._trace_attributes()
        )
        if not many:
            return []
        route = self._join()
        if route is None:
            return await self._schedule_home(many, timeout)
        total = timeout or route.pairing.options.operation_timeout.total_seconds()
        deadline = self._world.now() + total
        ready = OutgoingBatch.of(many)
        done, numbers = await route.at_home(
            lambda left: self._schedule_home(many, left), ready, deadline, total
        )
        if done:
            return list(numbers)
        await self.deliver(ready, max(0.001, deadline - self._world.now()))
        return [next(_DIVERTED_NUMBERS) for _ in many]

    async def _schedule_home(self, many: list[Outgoing], timeout: float | None) -> list[int]:
        async def ask() -> Any:
            try:
                with self._traced(links_of(many), SPAN_NAME_SCHEDULE):
                    return await self._mgmt_request_response_with_retry(
                        REQUEST_RESPONSE_SCHEDULE_MESSAGE_OPERATION,
                        schedule_request(many),
                        mgmt_handlers.schedule_op,
                        timeout=timeout,
                    )
            except ServiceBusError as error:
                self._note_failure(error)
                raise

        numbers: list[int] = await self._managed(ask, timeout)
        return numbers

    async def _managed(self, ask: Callable[[], Awaitable[Any]], timeout: float | None) -> Any:
        """Ask the entity's ``$management``, in turn."""
        began = self._world.now()
        if not await self._turn.acquire(timeout):
            raise self._waited_too_long(began)
        try:
            answer = await ask()
            self.last_used = self._world.now()
            return answer
        except BaseException:
            # The link to $management may have ended with it, of which the SDK takes no notice, or
            # half an answer have been read. Nobody else should find out which.
            self.drop_link()
            raise
        finally:
            self._turn.release()

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """As the SDK's. Send availability is about sending: what was scheduled on the primary can
        be cancelled while the primary is there, and what was diverted once it is home, by the
        sequence number that it has there."""
        self._check_live()
        numbers = [sequence_numbers] if isinstance(sequence_numbers, int) else sequence_numbers
        if any(number < 0 for number in numbers):
            raise PairingError(
                "a negative number stands for a message that was scheduled while "
                f"'{self.entity_name}' was out: it is in the backlog and has no sequence number on "
                "the primary yet. When it is home, peek for it there and cancel that number"
            )
        ask = partial(super().cancel_scheduled_messages, numbers, timeout=timeout, **kwargs)
        await self._managed(ask, timeout)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> Any:
        """As the SDK's. It needs no primary: without one, the limit is the Standard tier's."""
        self._check_live()
        route = self._join()
        if route is not None and not self._max_message_size_on_link:
            await route.try_link()
        if route is not None and not self._max_message_size_on_link:
            limits = route.entity.admission.limits
            self._max_message_size_on_link, self._max_batch_size_on_link = limits
        return await super().create_message_batch(max_size_in_bytes)

    async def close(self) -> None:
        try:
            if self._gatherer is not None:
                await self._gatherer.close()
        finally:
            await super().close()

    def _join(self) -> Route | None:
        """The way through the pairing, once there is one: a sender may be older than it."""
        if self._route is None:
            pairing = self._factory.pairing
            if pairing is None:
                return None
            self._own_try_timeout = self._config.try_timeout or math.inf
            self._route = route = Route(pairing, self)
            self._judge = route.judge
            self._note_limits()
        return self._route

    async def _open(self, timeout: float | None = None) -> None:
        if not self._running:
            await super()._open(timeout)
            self._note_limits()

    def _note_limits(self) -> None:
        """What the link announced is the entity's, for when there is no link."""
        if self._route is not None and self._running:
            self._route.entity.admission.announced(
                self._max_message_size_on_link, self._max_batch_size_on_link
            )

    async def _mgmt_request_response_with_retry(
        self, mgmt_operation: bytes, message: dict[Any, Any], *args: Any, **kwargs: Any
    ) -> Any:
        answer = await super()._mgmt_request_response_with_retry(
            mgmt_operation, message, *args, **kwargs
        )
        self._factory.books.requested(self.entity_name, mgmt_operation, message)
        return answer

    # -- what is asked of the SDK's retries

    async def _do_retryable_operation(
        self, operation: Callable[..., Any], timeout: float | None = None, **kwargs: Any
    ) -> Any:
        if self._route is not None:
            window = self._route.pairing.options.retry_window.total_seconds()
            self._retry_until = self._world.now() + window
            self._config.try_timeout = min(self._own_try_timeout, max(window, ANSWER_S))
        return await super()._do_retryable_operation(operation, timeout, **kwargs)

    async def _backoff(
        self,
        retried_times: int,
        last_exception: Any,
        abs_timeout_time: float | None = None,
        entity_name: str | None = None,
    ) -> None:
        if self._route is not None:
            abs_timeout_time = min(abs_timeout_time or math.inf, self._retry_until)
        await super()._backoff(retried_times, last_exception, abs_timeout_time, entity_name)

    async def _handle_exception(self, exception: BaseException) -> Any:
        was_open = self._running
        error = await super()._handle_exception(exception)
        if self._route is None:
            return error
        if isinstance(error, ServiceBusServerBusyError):
            # Waited out by the send itself, where a caller who has no ten seconds is told so.
            raise error
        if not was_open and isinstance(error, _REFUSALS):
            # A key that is refused a new link will be refused the next one. A link that was open
            # may have had a token that ran out: then the next one has a new token.
            raise error
        return error

    def _check_live(self) -> None:
        self._factory.check_open()
        super()._check_live()

    def _trace_attributes(self) -> dict[str, str | int]:
        return {
            "net.peer.name": self.fully_qualified_namespace,
            "messaging.destination.name": self.entity_name,
        }
