"""What the SDK does not see to by itself: as ``upkeep``, with the same names, for asyncio."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from twinbus.sdk.privates import ConnectionState
from twinbus.sdk.upkeep import is_open


async def is_alive(handler: Any) -> bool:
    """Read what came in while all was quiet: was it a farewell?"""
    connection = handler._connection
    try:
        # None with a WebSocket, whose library reads for us.
        reader = getattr(connection._transport, "reader", None)
        while reader is not None and connection.state == ConnectionState.OPENED:
            if reader.at_eof():
                return False
            if not reader._buffer:
                break
            await connection.listen(wait=0.01)
        return is_open(handler)
    except Exception:  # noqa: BLE001  whatever it is, such a link is not worth keeping
        return False


async def close(handler: Any) -> None:
    """What is let go of may well be broken; and the SDK leaves a socket open whose connection broke
    down. Its keep-alive sleeps for a second at a time, and closing would wait for it."""
    connection = handler._connection
    keep_alive, handler._keep_alive_thread = handler._keep_alive_thread, None
    if keep_alive is not None:
        keep_alive.cancel()
    try:
        with suppress(Exception):
            await handler.close_async()
    finally:
        transport = getattr(connection, "_transport", None)
        writer = getattr(transport, "writer", None)
        if writer is not None:
            writer.transport.abort()
        session = getattr(transport, "session", None)
        if session is not None:  # a WebSocket's
            await session.close()


def break_off(handler: Any) -> None:
    """Nobody waits for a peer whom cancelling would not reach."""


def bound_open(handler: Any, timeout: float | None) -> None:
    """The SDK gives up in time by itself here."""
