"""Send availability for Azure Service Bus. ``twinbus.aio`` has the same names for asyncio."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage as BrokeredMessage

    from twinbus.client_errors import BacklogError, EnvelopeError, FactoryFaultedError, PairingError
    from twinbus.errors import TwinbusError
    from twinbus.paired.blocking.clients_blocking import (
        QueueClient,
        SubscriptionClient,
        TopicClient,
    )
    from twinbus.paired.blocking.factory_blocking import MessagingFactory
    from twinbus.paired.blocking.manager_blocking import NamespaceManager
    from twinbus.paired.blocking.receiver_blocking import MessageReceiver
    from twinbus.paired.blocking.sender_blocking import MessageSender
    from twinbus.paired.options import (
        PairedNamespaceOptions,
        SendAvailabilityPairedNamespaceOptions,
    )

__all__ = [
    "BacklogError",
    "BrokeredMessage",
    "EnvelopeError",
    "FactoryFaultedError",
    "MessageReceiver",
    "MessageSender",
    "MessagingFactory",
    "NamespaceManager",
    "PairedNamespaceOptions",
    "PairingError",
    "QueueClient",
    "SendAvailabilityPairedNamespaceOptions",
    "SubscriptionClient",
    "TopicClient",
    "TwinbusError",
]

# Imported when asked for: the broker lives in this package too, and must start without the SDK.
_HOMES = {
    "BacklogError": "twinbus.client_errors",
    "EnvelopeError": "twinbus.client_errors",
    "FactoryFaultedError": "twinbus.client_errors",
    "PairingError": "twinbus.client_errors",
    "TwinbusError": "twinbus.errors",
    "QueueClient": "twinbus.paired.blocking.clients_blocking",
    "SubscriptionClient": "twinbus.paired.blocking.clients_blocking",
    "TopicClient": "twinbus.paired.blocking.clients_blocking",
    "MessagingFactory": "twinbus.paired.blocking.factory_blocking",
    "NamespaceManager": "twinbus.paired.blocking.manager_blocking",
    "MessageReceiver": "twinbus.paired.blocking.receiver_blocking",
    "MessageSender": "twinbus.paired.blocking.sender_blocking",
    "PairedNamespaceOptions": "twinbus.paired.options",
    "SendAvailabilityPairedNamespaceOptions": "twinbus.paired.options",
}


def __getattr__(name: str) -> Any:
    if name == "BrokeredMessage":
        return import_module("azure.servicebus").ServiceBusMessage
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'twinbus' has no attribute '{name}'")
