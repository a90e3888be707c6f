"""A busy server is left alone for ten seconds, whoever asked it for what.

The documents want each part of an application to do so by itself. The SDK would try again sooner.
"""

from __future__ import annotations

from azure.servicebus.exceptions import ServiceBusServerBusyError

from twinbus.paired.aio.world import World

BUSY_S = 10.0


async def outwait_busy(world: World, error: Exception, deadline: float | None) -> bool:
    """Before the SDK tries again: wait, if the server was busy; else false. Raises the error if
    the caller has no ten seconds."""
    if not isinstance(error, ServiceBusServerBusyError):
        return False
    if deadline is not None and world.now() + BUSY_S > deadline:
        raise error
    await world.sleep(BUSY_S)
    return True
