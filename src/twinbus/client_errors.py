"""What the client raises. Each is the SDK's ``ServiceBusError`` too: code that catches that
catches these.

There is a class only where a caller would act differently: set the pairing up again, wait for the
secondary, or open a new factory.
"""

from __future__ import annotations

from collections.abc import Mapping

from azure.servicebus.exceptions import ServiceBusError

from twinbus.errors import TwinbusError, first_line


class ClientError(TwinbusError, ServiceBusError):
    """Of the client, and of what is made of its parts."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class PairingError(ClientError):
    """Two namespaces cannot be paired as asked; the text says what to change."""


class BacklogError(ClientError):
    """No backlog queue took the message. ``errors`` has what each of them said."""

    def __init__(self, message: str, errors: Mapping[str, BaseException]) -> None:
        self.errors = dict(errors)
        said = "; ".join(f"{queue}: {first_line(error)}" for queue, error in self.errors.items())
        super().__init__(f"{message} {said}" if said else message)


class FactoryFaultedError(ClientError):
    """The factory was closed or has faulted; open a new one. The text says which and why."""


class EnvelopeError(ClientError):
    """Bytes that are not a diverted message, or not all of its parts."""
