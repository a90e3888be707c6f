"""The documents' clients: a queue, a topic or a subscription as one object.

Each opens its sender and its receiver when it first needs them, and is closed with its factory.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from azure.servicebus import ServiceBusReceivedMessage

if TYPE_CHECKING:
    from twinbus.paired.aio.factory import MessagingFactory
    from twinbus.paired.aio.receiver import MessageReceiver
    from twinbus.paired.aio.sender import MessageSender


class _Client:
    async def close(self) -> None:
        """Close what it has opened."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class _Sends(_Client):
    _sender: MessageSender

    async def send(self, message: Any, **kwargs: Any) -> None:
        """Send one message; into the backlog while the entity is diverted."""
        await self._sender.send_messages(message, **kwargs)

    async def send_batch(self, messages: Any, **kwargs: Any) -> None:
        """Send a list of messages, or a batch of the SDK's."""
        await self._sender.send_messages(messages, **kwargs)

    async def schedule_message(self, message: Any, at: datetime, **kwargs: Any) -> int:
        """Send a message that appears at ``at``. Its number is negative if it was diverted."""
        return (await self._sender.schedule_messages(message, at, **kwargs))[0]

    async def cancel_scheduled_message(self, sequence_number: int, **kwargs: Any) -> None:
        """Take back a scheduled message; one that was diverted, once it is home."""
        await self._sender.cancel_scheduled_messages(sequence_number, **kwargs)


class _Receives(_Client):
    _receiver: MessageReceiver

    async def receive(self, max_wait_time: float | None = None) -> ServiceBusReceivedMessage | None:
        """One message, or None if none came in time."""
        found = await self._receiver.receive_messages(1, max_wait_time)
        return found[0] if found else None

    async def receive_batch(
        self, message_count: int, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Up to so many messages, or as many as came in time."""
        return await self._receiver.receive_messages(message_count, max_wait_time)

    async def peek(self, message_count: int = 1, **kwargs: Any) -> list[ServiceBusReceivedMessage]:
        """Look at messages without receiving them."""
        return await self._receiver.peek_messages(message_count, **kwargs)

    async def complete(self, message: ServiceBusReceivedMessage) -> None:
        """It is done with: take it out of the queue."""
        await self._receiver.complete_message(message)

    async def abandon(self, message: ServiceBusReceivedMessage) -> None:
        """Give it back; its delivery count goes up."""
        await self._receiver.abandon_message(message)

    async def defer(self, message: ServiceBusReceivedMessage) -> None:
        """Put it aside; it is received by its sequence number from now on."""
        await self._receiver.defer_message(message)

    async def dead_letter(self, message: ServiceBusReceivedMessage, **kwargs: Any) -> None:
        """Move it to the dead-letter queue, with a ``reason`` if you have one."""
        await self._receiver.dead_letter_message(message, **kwargs)


class QueueClient(_Sends, _Receives):
    """Sends to and receives from a queue."""

    def __init__(self, factory: MessagingFactory, path: str, **kwargs: Any) -> None:
        self.path = path
        self._sender = factory.get_queue_sender(path)
        self._receiver = factory.get_queue_receiver(path, **kwargs)

    async def close(self) -> None:
        """Close its sender and its receiver; the factory stays open."""
        await self._sender.close()
        await self._receiver.close()


class TopicClient(_Sends):
    """Sends to a topic."""

    def __init__(self, factory: MessagingFactory, path: str, **kwargs: Any) -> None:
        self.path = path
        self._sender = factory.get_topic_sender(path, **kwargs)

    async def close(self) -> None:
        """Close its sender; the factory stays open."""
        await self._sender.close()


class SubscriptionClient(_Receives):
    """Receives from a topic's subscription."""

    def __init__(
        self, factory: MessagingFactory, topic_path: str, name: str, **kwargs: Any
    ) -> None:
        self.topic_path = topic_path
        self.name = name
        self._receiver = factory.get_subscription_receiver(topic_path, name, **kwargs)

    async def close(self) -> None:
        """Close its receiver; the factory stays open."""
        await self._receiver.close()
