"""One tree of errors. All are the SDK's ``ServiceBusError``: code that catches that catches these.

There is a class only where a caller would act differently: set the pairing up again, wait for the
secondary, or open a new factory.
"""

from __future__ import annotations

from collections.abc import Mapping

from azure.servicebus.exceptions import ServiceBusError


class TwinbusError(ServiceBusError):
    """The root of what Twinbus itself raises."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class PairingError(TwinbusError):
    """Two namespaces cannot be paired as asked; the text says what to change."""


class BacklogError(TwinbusError):
    """No backlog queue took the message. ``errors`` has what each of them said."""

    def __init__(self, message: str, errors: Mapping[str, BaseException]) -> None:
        self.errors = dict(errors)
        said = "; ".join(f"{queue}: {first_line(error)}" for queue, error in self.errors.items())
        super().__init__(f"{message} {said}" if said else message)


class FactoryFaultedError(TwinbusError):
    """The factory was closed or has faulted; open a new one. The text says which and why."""


class EnvelopeError(TwinbusError):
    """Bytes that are not a diverted message, or not all of its parts."""


def first_line(error: BaseException | None) -> str:
    """What an error says, in a line for a person; the SDK's go on with what is for programs."""
    return (str(error).splitlines() or [type(error).__name__])[0]
