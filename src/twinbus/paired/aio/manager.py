"""The documents' word for the management client of a namespace."""

from __future__ import annotations

from typing import Any, Self

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient


class NamespaceManager(ServiceBusAdministrationClient):
    """A ``ServiceBusAdministrationClient``; pairing needs one with the Manage claim."""

    @classmethod
    def from_connection_string(cls, conn_str: str, **kwargs: Any) -> Self:
        """A manager of the namespace that the connection string names."""
        made = super().from_connection_string(conn_str, **kwargs)
        assert isinstance(made, cls)
        return made

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    async def queue_exists(self, path: str) -> bool:
        """Whether there is a queue of this path."""
        try:
            await self.get_queue(path)
        except ResourceNotFoundError:
            return False
        return True

    async def topic_exists(self, path: str) -> bool:
        """Whether there is a topic of this path."""
        try:
            await self.get_topic(path)
        except ResourceNotFoundError:
            return False
        return True
