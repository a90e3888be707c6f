"""Faults of a running broker, started and ended from outside: by a test, a drill or a command.

    faults = FaultClient(CONNECTION_STRING)
    fault = faults.start("throttling", entity="orders", seconds=30, rate=10)
    faults.list()
    faults.clear(fault.id)

It speaks HTTP to the port of the connection string: plain where that says
``UseDevelopmentEmulator=true``, as AMQP does, and TLS otherwise. A namespace that a fault has taken
off its port is still spoken to at its admin address. The broker must run with ``--faults``, and the
key must carry the Manage claim. docs/lab.md has the kinds.
"""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from twinbus.auth.signature import Key
from twinbus.errors import TwinbusError

TIMEOUT_S = 10.0


class FaultError(TwinbusError):
    """The broker did not do it; the text says why. ``status`` is HTTP's, if it answered at all."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Fault:
    """One that is on, or was."""

    id: int
    kind: str
    entity: str | None
    seconds_left: float
    settings: dict[str, Any]


Faults = list[Fault]


class FaultClient:
    """One namespace's faults. Blocking, and safe to share between threads."""

    def __init__(
        self, connection_string: str, admin: str | None = None, certificate: str | None = None
    ) -> None:
        """``admin`` is an address as ``http://localhost:5300``; ``certificate`` a file to trust."""
        self._key = Key.of(connection_string)
        self._base = (admin or self._key.base).rstrip("/")
        if not self._base.startswith(("http://", "https://")):
            raise ValueError(
                f"an admin address begins with http:// or https://; '{admin}' does not"
            )
        self._tls = None
        if self._base.startswith("https:"):
            self._tls = ssl.create_default_context(cafile=certificate)

    def start(
        self, kind: str, entity: str | None = None, seconds: float = 60.0, **settings: Any
    ) -> Fault:
        """Start one. It ends by itself after that time. Raises FaultError."""
        asked = {"kind": kind, "entity": entity, "seconds": seconds, **settings}
        return Fault(**self._ask("POST", "", asked))

    def list(self) -> Faults:
        """Those that are on."""
        return [Fault(**each) for each in self._ask("GET")["faults"]]

    def clear(self, fault_id: int | None = None) -> Faults:
        """End one, or all; answers those that were ended. Raises FaultError."""
        query = "" if fault_id is None else f"?id={fault_id}"
        return [Fault(**each) for each in self._ask("DELETE", query)["cleared"]]

    @contextmanager
    def during(
        self, kind: str, entity: str | None = None, seconds: float = 60.0, **settings: Any
    ) -> Iterator[Fault]:
        """Start one, and end it with the block unless it has ended by itself."""
        fault = self.start(kind, entity, seconds, **settings)
        try:
            yield fault
        finally:
            with suppress(FaultError):  # it is over, or will be without us
                self.clear(fault.id)

    def _ask(self, method: str, query: str = "", body: Any = None) -> Any:
        request = urllib.request.Request(  # noqa: S310 (http or https, see the constructor)
            f"{self._base}/$faults{query}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": self._key.token(), "Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._tls) as answer:  # noqa: S310  as above
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                text = _reason(error.code, error.read().decode())
                raise FaultError(text, error.code) from None
        except (OSError, ValueError) as error:
            raise FaultError(
                f"the broker at {self._base} does not answer ({error}). If a fault has taken the "
                "namespace off its port, give its admin address, as http://localhost:5300"
            ) from error


def _reason(status: int, text: str) -> str:
    """What the broker says, which is JSON from the faults and XML from what stands before them."""
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        found = re.search(r"<Detail>(?:SubCode=\d+\. )?(.*?)</Detail>", text, re.DOTALL)
        return found[1] if found else f"the broker answered with status {status}"
