"""Without the extras: a paired sender works, and a command says which extra it lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from twinbus.ledger import Cause, Ledger, Operation
from twinbus.sdk.privates import VERSIONS

EXTRAS: tuple[str, ...] = ("cryptography", "pandas", "psutil", "py4j", "pyarrow", "pyspark")
EXTRAS += ("starlette", "uvicorn", "uvloop", "websockets")
COMMAND = "from twinbus.cli import main; main()"
CLIENT = """
import twinbus, twinbus.aio, twinbus.classifier, twinbus.errors
import twinbus.lab.faults, twinbus.lab.proxy
for room in (twinbus, twinbus.aio, twinbus.errors):
    for name in room.__all__:
        getattr(room, name)
text = "Endpoint=sb://{};SharedAccessKeyName=name;SharedAccessKey=a2V5"
with twinbus.MessagingFactory.from_connection_string(text.format("primary.example")) as primary:
    primary.get_queue_sender("orders")
"""


def without(packages: tuple[str, ...], code: str, *arguments: str) -> tuple[int, str]:
    absent = f"import sys\nfor name in {packages!r}: sys.modules[name] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", absent + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stderr


def test_the_client_needs_no_extra() -> None:
    assert without(EXTRAS, CLIENT) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "packages", "extras"),
    [
        (("broker",), EXTRAS, "broker"),
        (("dashboard",), EXTRAS, "dashboard"),
        (("drill",), ("pyspark",), "broker,syphon"),
        (("drill",), ("uvicorn",), "broker,syphon"),
        (("soak",), ("pyspark",), "broker,syphon,lab"),
        (("soak",), ("psutil",), "broker,syphon,lab"),
        (("syphon",), EXTRAS, "syphon"),
    ],
    ids=str,
)
def test_a_command_says_which_extra_it_lacks(
    arguments: tuple[str, ...], packages: tuple[str, ...], extras: str
) -> None:
    code, said = without(packages, COMMAND, *arguments)
    assert code == 2
    assert said.startswith("twinbus: ")
    assert said.endswith(f": pip install 'twinbus[{extras}]'\n")


def test_so_does_a_trace_of_a_ledger_that_is_there(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(Operation.SEND, Cause.NORMAL, "primary", "orders", message_ids=["one"])
    ledger.close()
    code, said = without(EXTRAS, COMMAND, "trace", "one", "--ledger", str(tmp_path))
    assert code == 2
    assert said == "twinbus: a trace needs more packages (pyarrow): pip install 'twinbus[ledger]'\n"


def test_an_sdk_that_has_changed_is_no_lack_of_an_extra() -> None:
    change = "import azure.servicebus._common.tracing as m; del m.trace_message\n"
    code, said = without((), change + COMMAND, "syphon")
    assert code == 2
    assert said.startswith("twinbus: azure-servicebus ")
    assert said.endswith(f"; it works with {VERSIONS}\n")
