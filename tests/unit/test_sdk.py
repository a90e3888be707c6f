"""The SDK's privates: in one room, and an SDK that has changed is named at once."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.blocks import ROOT

from twinbus.sdk import privates
from twinbus.sdk.privates import VERSIONS

CODE = ROOT / "src/twinbus"
# Of the SDK's connections and links, which only the room may look into.
INNARDS = {"_connection", "_link", "_transport", "_keep_alive_thread", "_idle_timeout"}

# Named tuples', and asyncio's own.
OTHERS = {"_replace", "_fields", "_buffer"}
SET_ON_THE_SDKS = {"_idle_timeout", "_incoming_transfer", "_incoming_flow"}

CHANGES = {
    "a module is gone": "import sys, azure.servicebus\n"
    "sys.modules['azure.servicebus._pyamqp.sender'] = None",
    "a name is gone": "import azure.servicebus._common.tracing as m; del m.trace_message",
    "a method is gone": "from azure.servicebus._base_handler import BaseHandler as c\n"
    "del c._backoff",
    "a parameter is gone": "from azure.servicebus import ServiceBusSender as c\n"
    "c._send = lambda self, message: None",
    "what a link is told is gone": "from azure.servicebus._pyamqp.receiver import ReceiverLink\n"
    "del ReceiverLink._incoming_transfer",
    "an attribute is gone": "from azure.servicebus._pyamqp.client import AMQPClient as c\n"
    "c.__init__ = lambda self: None",
    "a message has other fields": "import azure.servicebus._pyamqp.message as m\n"
    "from collections import namedtuple\nm.Message = namedtuple('Message', 'header data')",
}


def importing(change: str, module: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"{change}\nimport {module}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_an_sdk_that_has_changed_is_named_with_the_versions_that_work(change: str) -> None:
    said = importing(change, "twinbus.sdk.privates")
    assert said.startswith("ImportError: azure-servicebus ")
    assert said.endswith(f"; it works with {VERSIONS}")


def test_so_is_a_change_of_asyncios_part() -> None:
    change = "from azure.servicebus.aio._base_handler_async import BaseHandler as c; del c._backoff"
    assert f"has no _backoff); it works with {VERSIONS}" in importing(change, "twinbus.aio")


def test_the_versions_that_work_are_those_that_are_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert VERSIONS in project["dependencies"]


def own_names(tree: ast.AST) -> set[str]:
    """What a module gives its own classes: methods, annotations, and what is set on ``self``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # a slot
    return found


def test_every_private_name_of_the_sdk_that_is_used_has_been_looked_at() -> None:
    """One that is not there any longer is otherwise met in the midst of a send."""
    paths = [*CODE.glob("sdk/*.py"), *CODE.glob("paired/*.py"), *CODE.glob("paired/aio/*.py")]
    trees = {path: ast.parse(path.read_text()) for path in paths}
    ours = {
        name
        for path, tree in trees.items()
        if path.parent.name != "sdk"
        for name in own_names(tree)
    } - SET_ON_THE_SDKS
    rooms = {path: own_names(tree) - SET_ON_THE_SDKS for path, tree in trees.items()}
    used = {
        node.attr
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in rooms[path] | ours
    }
    methods = {name for _, names in privates._METHODS for name in names}
    attributes = {name for _, names in privates._ATTRIBUTES for name in names}
    assert {
        "_incoming_flow",
        "_received_delivery_tags",
        "_outgoing_transfer",
    } <= methods | attributes
    assert used - methods - attributes == OTHERS


def outside() -> list[Path]:
    return [path for path in CODE.rglob("*.py") if path.parent.name != "sdk"]


def test_only_one_module_of_each_world_imports_private_names_of_the_sdk() -> None:
    importing = {
        path.relative_to(CODE).as_posix()
        for path in CODE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in (
            [f"{node.module}.{each.name}" for each in node.names]
            if isinstance(node, ast.ImportFrom)
            else [each.name for each in node.names]
        )
        if name.startswith("azure.servicebus.") and "._" in name
    }
    assert importing == {"sdk/privates.py", "sdk/privates_aio.py"}


def test_nobody_else_looks_into_the_sdks_connections() -> None:
    looking = {
        path.relative_to(CODE).as_posix()
        for path in outside()
        if path.parent.name in ("aio", "blocking", "paired", "operate", "syphon", "local")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in INNARDS
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    }
    assert not looking
