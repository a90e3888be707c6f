"""The names under which earlier releases had what now is in rooms of its own. They go on working,
and give the very same modules."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

MOVED: Final = {
    "archive": "twinbus.spark.archive",
    "audit": "twinbus.accounts.audit",
    "backlog": "twinbus.operate.backlog",
    "cost": "twinbus.accounts.bill",
    "credentials": "twinbus.auth.credentials",
    "daemon": "twinbus.spark.daemon",
    "engine": "twinbus.spark.engine",
    "forecast": "twinbus.accounts.forecast",
    "java": "twinbus.spark.java",
    "links": "twinbus.sdk.links",
    "outages": "twinbus.accounts.outages",
    "prices": "twinbus.accounts.prices",
    "source": "twinbus.spark.source",
    "syphon": "twinbus.syphon.query",
    "tables": "twinbus.accounts.tables",
    "trace": "twinbus.accounts.journey",
}


class _Moved(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        room, _, name = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if room == __name__ and name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """What is found here in the end is what the import gives."""
        sys.modules[module.__name__] = import_module(MOVED[module.__name__.rpartition(".")[2]])


sys.meta_path.append(_Moved())
