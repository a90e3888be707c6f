"""The bookkeeper of a factory without a ledger."""

from __future__ import annotations

import inspect
from typing import Any, cast

from twinbus.ledger import Ledger
from twinbus.paired.bookkeeper import KEEPS_NOTHING, Bookkeeper, KeepsNothing, books_of


class Records:
    """Stands for a ledger."""

    def __init__(self) -> None:
        self.added: list[Any] = []

    def add(self, *args: Any, **kwargs: Any) -> None:
        self.added.append(args)


def test_who_has_no_ledger_has_a_bookkeeper_that_keeps_nothing() -> None:
    assert books_of(None, "contoso") is KEEPS_NOTHING
    ledger = Records()
    kept = books_of(cast(Ledger, ledger), "contoso")
    kept.pinged("orders", ok=True)
    assert len(ledger.added) == 1


def test_it_keeps_nothing_of_whatever_can_be_recorded() -> None:
    public = [
        name for name, _ in inspect.getmembers(Bookkeeper, inspect.isfunction) if name[0] != "_"
    ]
    assert {"sent", "received", "diverted", "turned"} <= set(public)
    for name in public:
        assert getattr(KeepsNothing, name) is KeepsNothing._nothing, name
        getattr(KEEPS_NOTHING, name)("orders", None, anything=True)
