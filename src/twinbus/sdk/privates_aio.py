"""As ``privates``, of the SDK for asyncio; apart from it, because Spark's workers do without."""

from __future__ import annotations

from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender

from twinbus.sdk import privates

try:
    # What a link is let go of, and listened to, by.
    from azure.servicebus._pyamqp.aio._client_async import AMQPClientAsync
    from azure.servicebus._pyamqp.aio._connection_async import Connection
    from azure.servicebus._pyamqp.aio._transport_async import (
        AsyncTransport,
        WebSocketTransportAsync,
    )
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
privates.check_attributes(ServiceBusReceiver, privates.RECEIVER_ATTRIBUTES)
privates.check_methods(AMQPClientAsync, {"close_async": ()})
privates.check_methods(Connection, {"listen": ("wait",)})
privates.check_attributes(AsyncTransport, ("reader", "writer"))
privates.check_attributes(WebSocketTransportAsync, ("session",))
