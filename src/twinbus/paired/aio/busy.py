"""A busy server is left alone for ten seconds, whoever asked it for what.

The documents want each part of an application to do so by itself. The SDK would try again sooner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from azure.servicebus.exceptions import ServiceBusServerBusyError

BUSY_S = 10.0


def patient(sdk_backoff: Callable[..., Awaitable[None]]) -> Any:
    """The pause before a sender or receiver of the SDK's tries again, if the server was not busy.
    Raises the error if the caller has no ten seconds."""

    async def _backoff(
        self: Any,
        retried_times: int,
        last_exception: Exception,
        abs_timeout_time: float | None = None,
        entity_name: str | None = None,
    ) -> None:
        if not isinstance(last_exception, ServiceBusServerBusyError):
            await sdk_backoff(self, retried_times, last_exception, abs_timeout_time, entity_name)
            return
        if abs_timeout_time is not None and self._world.now() + BUSY_S > abs_timeout_time:
            raise last_exception
        await self._world.sleep(BUSY_S)

    return _backoff
