"""The public API as a user writes it. Nothing runs: mypy reads it."""

from __future__ import annotations

from datetime import timedelta

from azure.servicebus import ServiceBusClient, ServiceBusSender
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

import twinbus
import twinbus.aio
from twinbus import BrokeredMessage, SendAvailabilityPairedNamespaceOptions


def blocking(primary: str, secondary: str) -> None:
    factory = twinbus.MessagingFactory.from_connection_string(primary, retry_total=1)
    backup = twinbus.MessagingFactory.from_connection_string(secondary)
    with twinbus.NamespaceManager.from_connection_string(secondary) as manager:
        options = SendAvailabilityPairedNamespaceOptions(manager, backup, 10, timedelta(minutes=1))
        factory.pair_namespace(options)
    client: ServiceBusClient = factory
    with factory.get_queue_sender("orders") as sender:
        plain: ServiceBusSender = sender
        plain.send_messages(BrokeredMessage("one"))
    queue: twinbus.QueueClient = factory.create_queue_client("orders")
    queue.send(BrokeredMessage("two"))
    client.close()


async def asynchronous(primary: str, secondary: str) -> None:
    async with (
        twinbus.aio.MessagingFactory.from_connection_string(primary) as factory,
        twinbus.aio.MessagingFactory.from_connection_string(secondary) as backup,
        twinbus.aio.NamespaceManager.from_connection_string(secondary) as manager,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            manager, backup, retry_window=timedelta(seconds=20)
        )
        options.retry_window = timedelta(0)
        await factory.pair_namespace(options)
        client: AsyncServiceBusClient = factory
        stop = factory.add_listener(lambda event: print(event.namespace, event))
        async with client.get_queue_sender("orders") as sender:
            try:
                await sender.send_messages([BrokeredMessage("one")], timeout=5)
            except twinbus.BacklogError as error:
                print(error.errors)
            except ServiceBusError:
                pass
        stop()
