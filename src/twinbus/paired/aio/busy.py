"""A busy server is left alone for ten seconds, whoever asked it for what.

The documents want each part of an application to do so by itself. The SDK would try again sooner.
"""

from __future__ import annotations

from typing import Any

from azure.servicebus.exceptions import ServiceBusServerBusyError

from twinbus.paired.aio.world import World

BUSY_S = 10.0


class OutwaitsBusy:
    """Of the SDK's senders and receivers, which have it before the SDK's class."""

    _world: World

    async def _backoff(
        self,
        retried_times: int,
        last_exception: Any,
        abs_timeout_time: float | None = None,
        entity_name: str | None = None,
    ) -> None:
        """Before the SDK tries again. Raises the error if the caller has no ten seconds."""
        if not isinstance(last_exception, ServiceBusServerBusyError):
            sdk: Any = super()
            await sdk._backoff(retried_times, last_exception, abs_timeout_time, entity_name)
            return
        if abs_timeout_time is not None and self._world.now() + BUSY_S > abs_timeout_time:
            raise last_exception
        await self._world.sleep(BUSY_S)
