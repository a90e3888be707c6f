# Generated from ../aio/clients.py by tools/unasync.py; change that file, not this one.
"""The documents' clients: a queue, a topic or a subscription as one object.

Each opens its sender and its receiver when it first needs them, and is closed with its factory.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from azure.servicebus import ServiceBusReceivedMessage

if TYPE_CHECKING:
    from twinbus.paired.blocking.factory_blocking import MessagingFactory
    from twinbus.paired.blocking.receiver_blocking import MessageReceiver
    from twinbus.paired.blocking.sender_blocking import MessageSender


class _Client:
    def close(self) -> None:
        """Close what it has opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Sends(_Client):
    _sender: MessageSender

    def send(self, message: Any, **kwargs: Any) -> None:
        """Send one message; into the backlog while the entity is diverted."""
        self._sender.send_messages(message, **kwargs)

    def send_batch(self, messages: Any, **kwargs: Any) -> None:
        """Send a list of messages, or a batch of the SDK's."""
        self._sender.send_messages(messages, **kwargs)

    def schedule_message(self, message: Any, at: datetime, **kwargs: Any) -> int:
        """Send a message that appears at ``at``. Its number is negative if it was diverted."""
        return (self._sender.schedule_messages(message, at, **kwargs))[0]

    def cancel_scheduled_message(self, sequence_number: int, **kwargs: Any) -> None:
        """Take back a scheduled message; one that was diverted, once it is home."""
        self._sender.cancel_scheduled_messages(sequence_number, **kwargs)


class _Receives(_Client):
    _receiver: MessageReceiver

    def receive(self, max_wait_time: float | None = None) -> ServiceBusReceivedMessage | None:
        """One message, or None if none came in time."""
        found = self._receiver.receive_messages(1, max_wait_time)
        return found[0] if found else None

    def receive_batch(
        self, message_count: int, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Up to so many messages, or as many as came in time."""
        return self._receiver.receive_messages(message_count, max_wait_time)

    def peek(self, message_count: int = 1, **kwargs: Any) -> list[ServiceBusReceivedMessage]:
        """Look at messages without receiving them."""
        return self._receiver.peek_messages(message_count, **kwargs)

    def complete(self, message: ServiceBusReceivedMessage) -> None:
        """It is done with: take it out of the queue."""
        self._receiver.complete_message(message)

    def abandon(self, message: ServiceBusReceivedMessage) -> None:
        """Give it back; its delivery count goes up."""
        self._receiver.abandon_message(message)

    def defer(self, message: ServiceBusReceivedMessage) -> None:
        """Put it aside; it is received by its sequence number from now on."""
        self._receiver.defer_message(message)

    def dead_letter(self, message: ServiceBusReceivedMessage, **kwargs: Any) -> None:
        """Move it to the dead-letter queue, with a ``reason`` if you have one."""
        self._receiver.dead_letter_message(message, **kwargs)


class QueueClient(_Sends, _Receives):
    """Sends to and receives from a queue."""

    def __init__(self, factory: MessagingFactory, path: str, **kwargs: Any) -> None:
        self.path = path
        self._sender = factory.get_queue_sender(path)
        self._receiver = factory.get_queue_receiver(path, **kwargs)

    def close(self) -> None:
        """Close its sender and its receiver; the factory stays open."""
        self._sender.close()
        self._receiver.close()


class TopicClient(_Sends):
    """Sends to a topic."""

    def __init__(self, factory: MessagingFactory, path: str, **kwargs: Any) -> None:
        self.path = path
        self._sender = factory.get_topic_sender(path, **kwargs)

    def close(self) -> None:
        """Close its sender; the factory stays open."""
        self._sender.close()


class SubscriptionClient(_Receives):
    """Receives from a topic's subscription."""

    def __init__(
        self, factory: MessagingFactory, topic_path: str, name: str, **kwargs: Any
    ) -> None:
        self.topic_path = topic_path
        self.name = name
        self._receiver = factory.get_subscription_receiver(topic_path, name, **kwargs)

    def close(self) -> None:
        """Close its receiver; the factory stays open."""
        self._receiver.close()
