"""Twinbus for asyncio; ``twinbus`` has the same names for threads."""

from twinbus.paired.aio.clients import QueueClient, SubscriptionClient, TopicClient
from twinbus.paired.aio.factory import MessagingFactory
from twinbus.paired.aio.manager import NamespaceManager
from twinbus.paired.aio.receiver import MessageReceiver
from twinbus.paired.aio.sender import MessageSender

__all__ = [
    "MessageReceiver",
    "MessageSender",
    "MessagingFactory",
    "NamespaceManager",
    "QueueClient",
    "SubscriptionClient",
    "TopicClient",
]
