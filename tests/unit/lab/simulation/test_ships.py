"""The simulator decides nothing: what it shows is shown of the code that ships."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest
from tests.blocks import ROOT

from twinbus.failover.rotation import Rotation
from twinbus.failover.states import Failover
from twinbus.homeward import answers, bites, carrier, driver, row
from twinbus.homeward.rounds import Destinations
from twinbus.lab.simulation import run
from twinbus.paired.admission import Admission
from twinbus.paired.aio import link, world
from twinbus.paired.aio.diverter import Diverter
from twinbus.paired.aio.pairing import Pairing
from twinbus.paired.aio.pinger import Pinger
from twinbus.paired.aio.route import Route
from twinbus.paired.transfers import Transfers

CODE = ROOT / "src/twinbus"
# A planted bug is one in a subclass of what ships, so it has the names of what it spoils.
PLANTED = "bugs"
SIMULATED = [path for path in (CODE / "lab/simulation").glob("*.py") if path.stem != PLANTED]
# Where it is decided what happens on the way. A function of the simulator that has the name of one
# there is a seam, which one of these protocols has, or it is a copy.
DECIDING = ("failover", "homeward", "paired/aio")
SEAMS = (driver.DriverWorld, carrier.Post, bites.Tap, link.EntityLink, world.World, world.Signal)
# By which it is decided what an error, a state or an outcome leads to.
DECISIVE = {
    "Admission",
    "Failover",
    "Hold",
    "Judge",
    "LEFT",
    "Outcome",
    "Rotation",
    "State",
    "Verdict",
}
DECISIVE |= {"Transfers", "classify"}


def functions(path: Path) -> Iterator[str]:
    """Those whose names have two words at least: `send` says nothing of what it is."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = node.name.strip("_")
            if "_" in name:
                yield name


def decisions() -> set[str]:
    paths = [path for room in DECIDING for path in (CODE / room).rglob("*.py")]
    seams = {name for seam in SEAMS for name in dir(seam)}
    return {name for path in paths for name in functions(path)} - seams


@pytest.mark.parametrize("path", SIMULATED, ids=lambda path: path.stem)
def test_no_module_of_the_simulator_has_a_copy_of_a_decision(path: Path) -> None:
    assert not decisions() & set(functions(path))


@pytest.mark.parametrize("path", SIMULATED, ids=lambda path: path.stem)
def test_no_module_of_the_simulator_has_what_a_decision_is_made_by(path: Path) -> None:
    imported = {
        name.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module != "twinbus.lab.verdict"
        for name in node.names
    }
    assert not imported & DECISIVE


def classes(*folders: Path) -> set[str]:
    trees = (ast.parse(path.read_text()) for folder in folders for path in folder.glob("*.py"))
    return {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def test_the_simulator_has_no_class_that_ships_but_those_of_a_world() -> None:
    rooms = ("failover", "homeward", "paired", "paired/aio")
    shipped = classes(*(CODE / room for room in rooms))
    assert {"Carrier", "Diverter", "Failover", "Pairing"} <= shipped
    assert classes(CODE / "lab/simulation") & shipped == {"Promise", "Signal", "World"}


@pytest.mark.parametrize("room", [*DECIDING, "lab/simulation"])
def test_a_world_is_asked_for_the_time_and_for_chance(room: str) -> None:
    for path in (CODE / room).glob("*.py"):
        if path.stem != "world":
            asked = {
                name.name
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Import)
                for name in node.names
            }
            # A seed's chance is handed about as an object; it is never the module's own.
            assert not asked & {"asyncio", "time", *({"random"} if room == "paired/aio" else ())}


def test_what_ships_is_what_runs() -> None:
    """Every step of the ways out and home is taken, in its own module, within a few seeds."""
    wanted: dict[CodeType, str] = {
        function.__code__: function.__qualname__
        for function in (
            *(driver.Driver.round, driver.Driver.glance, Destinations.learn, row.Row.of),
            *(carrier.Carrier.carry, carrier.Carrier.finish, bites.spread, bites.bites),
            *(answers.asked, answers.settled, answers._translation),
            *(Route.deliver, Route.at_home, Route._after, Admission.check, Rotation.order),
            *(Pairing._watch, Pairing._entered, Pairing._ping, Pinger.ping, Failover.look),
            *(Diverter.divert, Diverter._put, Diverter.warm, Transfers.next),
        )
    }

    def seen(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            wanted.pop(frame.f_code, None)

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        for seed in range(20):
            run(seed)
            if not wanted:
                break
    finally:
        sys.setprofile(before)
    assert not wanted
