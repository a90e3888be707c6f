"""One tree of errors: its root needs no SDK, and what the client raises is the SDK's error too."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from importlib import import_module
from pkgutil import walk_packages

import pytest
from azure.servicebus.exceptions import ServiceBusError

import twinbus
from twinbus import client_errors, errors
from twinbus.accounts.prices import PriceError
from twinbus.accounts.report import ReportError
from twinbus.auth.credentials import CredentialError
from twinbus.auth.tokens import AccessError
from twinbus.broker import refusals
from twinbus.broker.config import ConfigError
from twinbus.broker.expressions import FilterError
from twinbus.broker.inspection import InspectionError
from twinbus.broker.server import BrokerError
from twinbus.errors import TwinbusError
from twinbus.lab.drill import DrillError
from twinbus.lab.faults import FaultError
from twinbus.lab.folder import FolderError
from twinbus.lab.namespaces import NamespaceError
from twinbus.lab.plan import PlanError
from twinbus.lab.soak import SoakError
from twinbus.lab.traffic import EntityError
from twinbus.ledger import LedgerError
from twinbus.local.pair import PairError
from twinbus.spark.engine import EngineError
from twinbus.spark.java import JavaError
from twinbus.spark.sink import SinkError
from twinbus.spark.source import OptionError
from twinbus.syphon.query import SyphonError

CLIENTS = (
    twinbus.PairingError,
    twinbus.BacklogError,
    twinbus.FactoryFaultedError,
    twinbus.EnvelopeError,
    client_errors.ClientError,
    CredentialError,
    SyphonError,
)
ROOMS = (
    AccessError,
    BrokerError,
    ConfigError,
    DrillError,
    EngineError,
    EntityError,
    FaultError,
    FilterError,
    FolderError,
    InspectionError,
    JavaError,
    LedgerError,
    NamespaceError,
    OptionError,
    PairError,
    PlanError,
    PriceError,
    ReportError,
    SinkError,
    SoakError,
    *(
        each
        for each in vars(refusals).values()
        if getattr(each, "__module__", "") == refusals.__name__
    ),
)
NO_AZURE = """
import sys, twinbus.errors
from twinbus.errors import TwinbusError
assert issubclass(TwinbusError, Exception)
assert not [name for name in sys.modules if name.partition(".")[0] == "azure"]
"""


def test_the_root_comes_without_the_sdk() -> None:
    subprocess.run([sys.executable, "-c", NO_AZURE], check=True, timeout=60)
    assert not issubclass(TwinbusError, ServiceBusError)


@pytest.mark.parametrize("error", CLIENTS, ids=lambda error: error.__name__)
def test_what_the_client_raises_is_the_sdks_error_too(error: type[TwinbusError]) -> None:
    made = error("no", {}) if issubclass(error, twinbus.BacklogError) else error("no")
    with pytest.raises(ServiceBusError, match=r"^no$"):
        raise made
    with pytest.raises(TwinbusError, match=r"^no$"):
        raise made
    assert made.args == ("no",)


@pytest.mark.parametrize("error", ROOMS, ids=lambda error: error.__name__)
def test_what_else_a_room_raises_is_of_the_tree_and_not_the_sdks(error: type[Exception]) -> None:
    assert issubclass(error, TwinbusError)
    assert not issubclass(error, ServiceBusError)


def test_nothing_else_of_the_tree_is_the_sdks() -> None:
    """Whoever adds an error says whether it is the client's."""
    for module in walk_packages(twinbus.__path__, "twinbus."):
        if not module.name.endswith((".__main__", ".daemon")):
            import_module(module.name)
    every = set(_below(TwinbusError))
    assert {error for error in every if issubclass(error, ServiceBusError)} == set(CLIENTS)
    assert every >= {*CLIENTS, *ROOMS}


def _below(error: type[TwinbusError]) -> list[type[TwinbusError]]:
    nearest = [each for each in error.__subclasses__() if each.__module__.startswith("twinbus.")]
    return nearest + [far for near in nearest for far in _below(near)]


def test_a_public_error_is_one_class_wherever_it_is_asked_for() -> None:
    public = [name for name in twinbus.__all__ if name.endswith("Error")]
    assert len(public) == 5
    for name in public:
        assert getattr(twinbus, name) is getattr(errors, name)
        assert inspect.isclass(getattr(errors, name))
    with pytest.raises(AttributeError, match="has no attribute 'OtherError'"):
        errors.OtherError  # type: ignore[attr-defined]  # noqa: B018


def test_an_error_survives_the_way_between_processes() -> None:
    """Spark's tasks send theirs to the driver."""
    back = pickle.loads(pickle.dumps(twinbus.EnvelopeError("not all of its parts")))
    assert type(back) is twinbus.EnvelopeError
    assert str(back) == "not all of its parts"
