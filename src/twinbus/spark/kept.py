"""The ledger of each of Spark's processes, and what it writes there of waiting for messages."""

from __future__ import annotations

import os

from azure.servicebus import parse_connection_string

from twinbus.auth.credentials import Secret
from twinbus.ledger import Cause, Ledger, Operation

_ledgers: dict[tuple[int, str], Ledger] = {}


def ledger_at(where: str) -> Ledger:
    """This process's own ledger there. A forked child begins one of its own."""
    key = (os.getpid(), where)
    if key not in _ledgers:
        _ledgers[key] = Ledger(where)
    return _ledgers[key]


def host_of(secret: Secret) -> str:
    return parse_connection_string(secret.reveal()).fully_qualified_namespace


def idle(where: str | None, secondary: Secret, queue: str) -> None:
    """The syphon asked, and nothing was there; or only the sign that something is."""
    if where is not None:
        ledger = ledger_at(where)
        ledger.add(Operation.EMPTY_RECEIVE, Cause.SYPHON_IDLE, host_of(secondary), queue)
        ledger.flush()
