"""The way of one message, as docs/architecture.md has it: each function is there, is called by one
before it, and is gone through."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any, NamedTuple

import pytest
from harness.conversations import Conversation
from tests.blocks import ROOT

from twinbus.amqp.link_endpoint import RECEIVER, SENDER
from twinbus.lab.simulation import run

CODE = ROOT / "src" / "twinbus"
STEP = re.compile(r"^1\. `([\w/.]+): ([\w.]+)` ", re.MULTILINE)
# What needs the SDK's links, sockets, a commit's thread or Spark is read, and not run.
NOT_RUN = (
    *("broker/committer.py", "paired/aio/link.py", "paired/aio/sender.py", "paired/outgoing.py"),
    *("sdk/", "serving/", "spark/", "syphon/"),
)
SEEDS = 4  # of worlds in which messages are diverted and brought home


class Step(NamedTuple):
    file: str
    name: str


def parts() -> list[list[Step]]:
    """Each list of the section: what begins it is called from without, by Spark or a callback."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = re.split(r"^## ", page, flags=re.MULTILINE)
    way = next(each for each in section if each.startswith("The way of one message"))
    lists = [[Step(*found) for found in STEP.findall(text)] for text in re.split(r"\n\n", way)]
    return [steps for steps in lists if steps]


WAY = parts()
STEPS = sorted({step for steps in WAY for step in steps})


@cache
def source(file: str) -> ast.Module:
    return ast.parse((CODE / file).read_text())


def function(step: Step) -> ast.AST | None:
    """Where it is defined: a function of the file, or of a class of it."""
    node: Any = source(step.file)
    for name in step.name.split("."):
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        node = next((n for n in node.body if isinstance(n, kinds) and n.name == name), None)
        if node is None:
            return None
    return None if isinstance(node, ast.ClassDef) else node


def names_in(node: ast.AST) -> set[str]:
    """All that a function speaks of."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


@contextmanager
def watched(called: set[Step]) -> Iterator[None]:
    """Notes every function of the package that is called."""
    before = f"{CODE}/"

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(before):
            called.add(Step(code.co_filename.removeprefix(before), code.co_qualname))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> set[Step]:
    """By a client of a broker in memory, and in some worlds of the simulator."""
    seen: set[Step] = set()
    with watched(seen):
        talk = Conversation(tmp_path_factory.mktemp("way"))
        talk.send(talk.attach(SENDER, "orders"), 1)
        talk.receive(talk.attach(RECEIVER, "orders"), 1)
        diverted = sum(run(seed).diverted for seed in range(SEEDS))
    talk.store.close()
    assert diverted
    return seen


def test_the_way_has_all_its_parts() -> None:
    assert [steps[0].name for steps in WAY] == [
        "MessageSender.send_messages",
        "Route.deliver",
        "SocketPeer.data_received",
        "Client._on_delivery",
        "Committer._write",
        "Queue.arrive",
        "Client.settle_incoming",
        "Pairing._watch",
        "Syphon._round",
        "_Reading.read",
        "carry",
        "Driver.round",
    ]


@pytest.mark.parametrize("step", STEPS, ids=": ".join)
def test_each_function_is_there(step: Step) -> None:
    assert function(step) is not None


@pytest.mark.parametrize("steps", WAY, ids=lambda steps: steps[0].name)
def test_each_is_called_by_one_before_it(steps: list[Step]) -> None:
    before: set[str] = set()
    for step in steps:
        name = step.name.rpartition(".")[2]
        assert not before or name in before, step
        node = function(step)
        assert node is not None
        before |= names_in(node)


@pytest.mark.parametrize("step", STEPS, ids=": ".join)
def test_each_is_gone_through(step: Step, called: set[Step]) -> None:
    assert (step in called) != step.file.startswith(NOT_RUN)
