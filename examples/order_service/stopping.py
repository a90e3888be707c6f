"""Ctrl-C and SIGTERM as an event, so that whatever was begun is ended."""

import asyncio
import signal


def stopping() -> asyncio.Event:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped
