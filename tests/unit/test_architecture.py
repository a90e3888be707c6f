"""What is said of the source's rooms and modules is what is there; each name means one thing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from importlib import import_module
from pathlib import Path

import grimp
import pytest
from importlinter.contracts.layers import LayersContract
from tests.blocks import ROOT

from twinbus.pipeline import MOVED

CODE = ROOT / "src" / "twinbus"
# The blocking shell is generated from asyncio's, but for its world.
GENERATED = "blocking"
LONGEST_FILE, LONGEST_FUNCTION = 600, 50
SQL = re.compile(
    r"\b(SELECT .+ FROM|INSERT (OR \w+ )?INTO|DELETE FROM|UPDATE \w+ SET|CREATE TABLE|PRAGMA)\b",
    re.DOTALL,
)
# The modules that have a namespace's file in their hands.
STORE = {"aside", "batch", "bodies", "inspection", "message_checks", "schema", "store"}


@pytest.mark.parametrize("tool", ["architecture", "help"])
def test_what_is_written_from_the_code_is_current(tool: str) -> None:
    """Modules and who imports whom; every command's options and words."""
    command = [sys.executable, f"tools/{tool}.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_the_readme_lists_what_is_in_the_package() -> None:
    listed = set(re.findall(r"`src/twinbus/([\w.]+)`", (ROOT / "README.md").read_text()))
    there = {path.name for path in CODE.iterdir() if is_listed(path)}
    assert listed == there


def is_listed(path: Path) -> bool:
    # `aio` and `pipeline` are but names of what is elsewhere.
    return not path.name.startswith("__") and path.name not in ("aio", "pipeline", "py.typed")


def test_no_file_name_occurs_twice() -> None:
    """A newcomer finds a room by its name; a command is named after what it starts."""
    names = Counter(
        path.name
        for path in CODE.rglob("*.py")
        if path.name != "__init__.py" and path.parent.name != "commands"
    )
    assert not {name for name, count in names.items() if count > 1}


def test_the_words_of_the_glossary_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    rows = re.findall(r"^\| ([\w ,]+) \|", page, re.MULTILINE)
    words = [word for row in rows[1:] for word in row.split(", ")]
    code = "\n".join(path.read_text().lower() for path in written())
    assert len(words) > 40
    assert not [word for word in words if re.search(rf"\b{word.replace(' ', ' ?')}", code) is None]


def test_no_class_name_means_two_things() -> None:
    """Asyncio, threads and the simulator make one seam, whose names are those of asyncio's."""
    of_every_world = set(classes(CODE / "paired" / "aio" / "world.py"))
    names = Counter(
        name
        for path in written()
        for name in classes(path)
        if not (name in of_every_world and is_of_a_world(path))
    )
    names.update(of_every_world)
    double = {name for name, count in names.items() if count > 1}
    assert not double


def classes(path: Path) -> list[str]:
    return [node.name for node in ast.walk(read(path)) if isinstance(node, ast.ClassDef)]


def is_of_a_world(path: Path) -> bool:
    return path.stem.startswith("world") or path.parent.name == "simulation"


def test_no_file_is_so_long_that_it_is_about_two_things() -> None:
    long = {
        str(path.relative_to(CODE))
        for path in written()
        if len(path.read_text().splitlines()) > LONGEST_FILE
    }
    assert not long


def test_no_function_is_longer_than_a_page() -> None:
    long = {
        f"{path.relative_to(CODE)}: {node.name}"
        for path in written()
        for node in ast.walk(read(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    }
    assert not long


def test_only_the_store_speaks_sql() -> None:
    speaking = {
        str(path.relative_to(CODE))
        for path in written()
        if not (path.parent.name == "broker" and path.stem in STORE)
        for node in ast.walk(read(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.search(node.value)
    }
    assert not speaking


@pytest.mark.parametrize(
    ("folder", "knows"),
    [("src", set()), ("harness", set()), ("tests", {"harness"}), ("bench", {"harness"})],
)
def test_tests_and_bench_do_not_import_one_another(folder: str, knows: set[str]) -> None:
    """What both need is in ``harness``."""
    imported = {name for path in (ROOT / folder).rglob("*.py") for name in imports(path)}
    assert imported & {"tests", "bench", "harness"} - {folder} == knows


def test_a_module_in_no_layer_breaks_the_contract() -> None:
    layered = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    rule = next(each for each in layered["contracts"] if each["type"] == "layers")
    options = {key: "true" if value is True else value for key, value in rule.items()}
    contract = LayersContract(rule["name"], {"root_packages": ["twinbus"]}, options)
    graph = grimp.build_graph("twinbus", exclude_type_checking_imports=True)
    assert contract.check(deepcopy(graph), verbose=False).kept
    graph.add_module("twinbus.nowhere")
    broken = contract.check(graph, verbose=False)
    assert not broken.kept
    assert broken.metadata["undeclared_modules"] == {"twinbus.nowhere"}


def written() -> list[Path]:
    """The modules that are written by hand, and the world of the generated shell, which is too."""
    return [
        path
        for path in sorted(CODE.rglob("*.py"))
        if path.parent.name != GENERATED or path.stem.startswith("world")
    ]


@cache
def read(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(read(path)):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("name", MOVED)
def test_what_moved_is_found_under_its_earlier_name_too(name: str) -> None:
    assert import_module(f"twinbus.pipeline.{name}") is import_module(MOVED[name])
