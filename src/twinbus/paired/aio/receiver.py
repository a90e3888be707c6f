"""The SDK's receiver, except that a ping never reaches the application.

Service Bus does not deliver pings, and neither does our broker. A server that does is put right
here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver

from twinbus.paired.aio.busy import patient
from twinbus.paired.aio.world import World
from twinbus.paired.ping import is_ping
from twinbus.sdk.upkeep import become


class MessageReceiver(ServiceBusReceiver):
    """A ``ServiceBusReceiver`` of a queue or subscription, made by a ``MessagingFactory``."""

    _factory: Any
    _world: World
    _backoff = patient(ServiceBusReceiver._backoff)

    async def receive_messages(
        self, max_message_count: int | None = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """As the SDK's, without pings."""
        end = None if max_wait_time is None else self._world.now() + max_wait_time
        while True:
            found = await super().receive_messages(max_message_count, max_wait_time)
            self._note(found)
            kept = [message for message in found if not is_ping(message)]
            for message in found:
                if is_ping(message):
                    await self._discard(message)
            if kept or not found:
                return kept
            if end is not None:
                max_wait_time = end - self._world.now()
                if max_wait_time <= 0:
                    return []

    async def receive_deferred_messages(
        self, sequence_numbers: int | list[int], **kwargs: Any
    ) -> list[ServiceBusReceivedMessage]:
        found = await super().receive_deferred_messages(sequence_numbers, **kwargs)
        if found:  # nothing was asked for if there is nothing: what is missing raises
            self._note(found)
        return found

    async def peek_messages(
        self, max_message_count: int = 1, **kwargs: Any
    ) -> list[ServiceBusReceivedMessage]:
        """As the SDK's, without pings."""
        found = await super().peek_messages(max_message_count, **kwargs)
        return [message for message in found if not is_ping(message)]

    def __aiter__(self) -> AsyncIterator[ServiceBusReceivedMessage]:
        return self._without_pings(super().__aiter__())

    async def _without_pings(
        self, messages: AsyncIterator[ServiceBusReceivedMessage]
    ) -> AsyncIterator[ServiceBusReceivedMessage]:
        async for message in messages:
            self._note([message])
            if is_ping(message):
                await self._discard(message)
            else:
                yield message
        self._note([])

    async def __anext__(self) -> ServiceBusReceivedMessage:
        while True:
            message = await super().__anext__()
            self._note([message])
            if not is_ping(message):
                return message
            await self._discard(message)

    def _note(self, messages: list[ServiceBusReceivedMessage]) -> None:
        settled = not self.receive_mode_is_peek_lock
        self._factory.books.received(self.entity_path, messages, settled=settled)

    async def _settle_message_with_retry(
        self, message: Any, settle_operation: str, *args: Any, **kwargs: Any
    ) -> None:
        await super()._settle_message_with_retry(message, settle_operation, *args, **kwargs)
        self._factory.books.settled(self.entity_path, message, settle_operation)

    async def _mgmt_request_response_with_retry(
        self, mgmt_operation: bytes, *args: Any, **kwargs: Any
    ) -> Any:
        answer = await super()._mgmt_request_response_with_retry(mgmt_operation, *args, **kwargs)
        self._factory.books.requested(self.entity_path, mgmt_operation, {})
        return answer

    async def _open(self, timeout: float | None = None) -> None:
        if self._running:
            return
        await super()._open(timeout)
        if self._session is not None and self._factory.pairing is not None:
            # Only a queue that requires sessions hands one out; and such a queue takes no message
            # without. What a subscription requires says nothing about its topic.
            self._factory.pairing.admission(self.entity_path).needs_session = True

    async def _discard(self, message: ServiceBusReceivedMessage) -> None:
        if self.receive_mode_is_peek_lock:
            with suppress(Exception):  # its second is over, and so is the message
                await self.complete_message(message)

    @property
    def receive_mode_is_peek_lock(self) -> bool:
        return bool(self._receive_mode.value == "peeklock")

    def _check_live(self) -> None:
        self._factory.check_open()
        super()._check_live()


def adopt_receiver(receiver: ServiceBusReceiver, factory: Any) -> MessageReceiver:
    """Turn a receiver that the SDK made into one of ours."""
    made = become(receiver, MessageReceiver)
    made._factory, made._world = factory, factory._world
    return made
