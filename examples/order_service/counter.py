"""The counter: takes orders from standard input, one a line, and says when each is accepted."""

import asyncio
import sys
from collections.abc import AsyncIterator

from azure.servicebus import ServiceBusMessage
from pair import paired
from stopping import stopping


async def lines() -> AsyncIterator[str]:
    """Standard input until its end, or until we are to stop."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    stopped = stopping()
    stop = asyncio.create_task(stopped.wait())
    while not stopped.is_set():
        line = asyncio.create_task(reader.readline())
        await asyncio.wait((line, stop), return_when=asyncio.FIRST_COMPLETED)
        if not line.done() or not line.result():
            break
        yield line.result().decode().strip()
    stop.cancel()


async def main() -> None:
    async with paired() as primary, primary.get_queue_sender("orders") as sender:
        print("open", flush=True)
        number = 0
        async for drink in lines():
            number += 1
            await sender.send_messages(ServiceBusMessage(drink, message_id=f"order-{number}"))
            state = primary.entity_states()["orders"].value
            print(f"accepted order-{number} ({drink}) while orders is {state}", flush=True)
    print("closed", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
