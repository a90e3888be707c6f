# Generated from ../aio/manager.py by tools/unasync.py; change that file, not this one.
"""The documents' word for the management client of a namespace."""

from __future__ import annotations

from typing import Any, Self

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.management import ServiceBusAdministrationClient


class NamespaceManager(ServiceBusAdministrationClient):
    """A ``ServiceBusAdministrationClient``; pairing needs one with the Manage claim."""

    @classmethod
    def from_connection_string(cls, conn_str: str, **kwargs: Any) -> Self:
        """A manager of the namespace that the connection string names."""
        made = super().from_connection_string(conn_str, **kwargs)
        assert isinstance(made, cls)
        return made

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def queue_exists(self, path: str) -> bool:
        """Whether there is a queue of this path."""
        try:
            self.get_queue(path)
        except ResourceNotFoundError:
            return False
        return True

    def topic_exists(self, path: str) -> bool:
        """Whether there is a topic of this path."""
        try:
            self.get_topic(path)
        except ResourceNotFoundError:
            return False
        return True
