"""The kitchen: receives orders, and publishes what is ready to those who carry it out."""

import asyncio

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from pair import paired
from stopping import stopping

from twinbus.aio import MessageReceiver, MessageSender, MessagingFactory

HOT = {"coffee", "tea", "cocoa"}


async def cook(orders: MessageReceiver, drinks: MessageSender) -> None:
    """Make what is ordered. Publish, then complete: an order is made twice rather than never."""
    for order in await orders.receive_messages(10, max_wait_time=1):
        drink = str(order)
        ready = ServiceBusMessage(drink, message_id=str(order.message_id))
        ready.application_properties = {"kind": "hot" if drink in HOT else "cold"}
        await drinks.send_messages(ready)
        await orders.complete_message(order)
        print(f"made {order.message_id} ({drink})", flush=True)


async def carry(primary: MessagingFactory, kind: str, stopped: asyncio.Event) -> None:
    """Carry out what one subscription gets."""
    async with primary.get_subscription_receiver("drinks", kind) as ready:
        while not stopped.is_set():
            for drink in await ready.receive_messages(10, max_wait_time=1):
                await ready.complete_message(drink)
                print(f"served {drink.message_id} ({drink}) {kind}", flush=True)


async def work(primary: MessagingFactory, stopped: asyncio.Event) -> None:
    async with (
        primary.get_queue_receiver("orders") as orders,
        primary.get_topic_sender("drinks") as drinks,
    ):
        print("cooking", flush=True)
        while not stopped.is_set():
            await cook(orders, drinks)


async def main() -> None:
    stopped = stopping()

    async def kept_up(name: str) -> None:
        """Receiving knows no second namespace: while the primary is out, try again."""
        while not stopped.is_set():
            try:
                if name == "kitchen":
                    await work(primary, stopped)
                else:
                    await carry(primary, name, stopped)
            except ServiceBusError as error:
                print(f"{name}: {type(error).__name__}, trying again", flush=True)
                await asyncio.sleep(0.5)

    async with paired() as primary:
        await asyncio.gather(*(kept_up(name) for name in ("kitchen", "hot", "cold")))
    print("closed", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
