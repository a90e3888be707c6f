"""As ``privates``, of the SDK for asyncio; apart from it, because Spark's workers do without."""

from __future__ import annotations

from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender

from twinbus.sdk import privates

try:
    from azure.servicebus.aio._base_handler_async import BaseHandler

    # What makes a message of what a caller gave; ours sees to it that it has an id.
    from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync
except ImportError as error:
    raise privates.changed(error) from error

__all__ = ["PyamqpTransportAsync"]

privates.check_methods(BaseHandler, privates.HANDLER_METHODS)
privates.check_methods(ServiceBusSender, privates.SENDER_METHODS)
privates.check_methods(ServiceBusReceiver, privates.RECEIVER_METHODS)
privates.check_attributes(BaseHandler, privates.HANDLER_ATTRIBUTES)
