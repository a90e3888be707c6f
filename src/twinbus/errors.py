"""One tree of errors, and its root, which needs no SDK: brokers and ledgers raise these too.

A room's own error is defined in that room. What the client raises is in ``twinbus.client_errors``,
and is found here as well, when it is asked for. There is a class only where a caller would act
differently.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinbus.client_errors import BacklogError, EnvelopeError, FactoryFaultedError, PairingError

__all__ = [
    "BacklogError",
    "EnvelopeError",
    "FactoryFaultedError",
    "PairingError",
    "TwinbusError",
    "first_line",
]


class TwinbusError(Exception):
    """The root of what Twinbus itself raises."""


def first_line(error: BaseException | None) -> str:
    """What an error says, in a line for a person; the SDK's go on with what is for programs."""
    return (str(error).splitlines() or [type(error).__name__])[0]


if not TYPE_CHECKING:

    def __getattr__(name):
        # Imported when asked for, since the SDK comes with them.
        if name not in __all__:
            raise AttributeError(f"module 'twinbus.errors' has no attribute {name!r}")
        return getattr(import_module("twinbus.client_errors"), name)
