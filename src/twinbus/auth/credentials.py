"""Where connection strings come from, and how they stay out of sight.

A connection string is given as an option, as the name of an environment variable, or by a function
of the user's that asks a vault. It is kept as a ``Secret``: whatever prints, logs or formats it
shows nothing of the key.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any, Final

from azure.servicebus import ServiceBusClient, parse_connection_string

from twinbus.client_errors import ClientError

CONNECTION: Final = "connection"
ENVIRONMENT: Final = "connectionenv"
PROVIDER: Final = "connectionprovider"


class CredentialError(ClientError):
    """There is no connection string, or it is none."""


class Secret:
    """A text that is not shown."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(...)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (self._text,)


def secret_from(options: Mapping[str, str], prefix: str = "") -> Secret:
    """The connection string that a data source's options lead to. Names are not case-sensitive.

    ``connection``: the text itself; ``connectionEnv``: a variable that has it;
    ``connectionProvider``: ``module:function``, called with the options, returns it.
    """
    given = {name.lower(): value for name, value in options.items()}
    names = [prefix + name for name in (CONNECTION, ENVIRONMENT, PROVIDER)]
    found = [name for name in names if given.get(name)]
    if len(found) != 1:
        raise CredentialError(
            f"give exactly one of the options {', '.join(names)}; there are {len(found)}"
        )
    name, value = found[0], given[found[0]]
    if name.endswith(PROVIDER):
        return checked(_provided(value, options), name)
    if name.endswith(ENVIRONMENT):
        text = os.environ.get(value)
        if not text:
            raise CredentialError(f"{name} names the variable {value}, which is not set")
        return checked(text, f"{name} {value}")
    return checked(value, name)


def checked(text: str, origin: str) -> Secret:
    """The text as a secret, if it is a connection string. The error does not repeat the text."""
    try:
        parse_connection_string(text)
    except ValueError as error:
        raise CredentialError(f"{origin} is not a connection string: {error}") from None
    return Secret(text)


def _provided(name: str, options: Mapping[str, str]) -> str:
    module, _, function = name.partition(":")
    try:
        provide = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise CredentialError(
            f"{PROVIDER} is {name!r}; it must be module:function, importable on every machine "
            f"of the cluster ({error})"
        ) from error
    text = provide(dict(options))
    if not isinstance(text, str):
        raise CredentialError(f"{PROVIDER} {name} did not return a connection string")
    return text


def client_of(secret: Secret) -> ServiceBusClient:
    """A client that does not retry by itself: whoever uses it has a better idea."""
    return ServiceBusClient.from_connection_string(secret.reveal(), retry_total=0)
