"""The program that asks whether tests notice: what it changes, what it leaves alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tools.mutants import Chooser, Copy, Tried, known, row, table
from tools.mutating import Mutant, mutants

SOURCE = '''"""A docstring with 1 in it."""
from typing import TYPE_CHECKING, Final
if TYPE_CHECKING:
    import os

class Thing:
    """Another, of 2."""
    __slots__ = ("a", "b")
    limit: Final[int] = 3

    def __repr__(self) -> str:
        return "4" * 5

    def reach(self, log: object, width: "int | None" = None) -> bool:
        log.warning("of %d", 6)
        if width is None or width <= self.limit:
            raise ValueError(f"too narrow by {width - 7}")
        self.width = min(width, (8 - 1), key=abs)
        return not self.closed
'''
CHANGES = [
    "limit: Final[int] = 4",
    "limit: Final[int] = 2",
    "if not (width is None or width <= self.limit):",
    "if width is None and width <= self.limit:",
    "if ((width <= self.limit)):",
    "if ((width is None)):",
    "if width is not None or width <= self.limit:",
    "if width is None or width < self.limit:",
    "if width is None or width > self.limit:",
    "pass",  # instead of raising
    "pass",  # instead of keeping the width
    "self.width = max(width, (8 - 1), key=abs)",
    "self.width = min(width, (8 - 1))",
    "self.width = min(width, (8 + 1), key=abs)",
    "self.width = min(width, (9 - 1), key=abs)",
    "self.width = min(width, (7 - 1), key=abs)",
    "self.width = min(width, (8 - 2), key=abs)",
    "return (self.closed)",
]


def test_what_can_matter_is_changed_and_nothing_else() -> None:
    made = mutants("thing", SOURCE)
    assert [each.after for each in made] == CHANGES
    assert [each.number for each in made] == list(range(len(CHANGES)))
    assert mutants("thing", SOURCE) == made


def test_brackets_and_names_of_several_bytes_stay_where_they_are() -> None:
    made = {each.after for each in mutants("m", 'x = f("größe", bytes=(1 if ü else z))')}
    assert {'x = f("größe")', 'x = f("größe", bytes=((z if ü else 1)))'} <= made
    for each in mutants("m", "a = ((b + (c)) - (d + e)) * (f)"):
        compile(each.whole, "m", "exec")
        assert each.after.count("(") == each.after.count(")") == 5


def test_a_survivor_with_a_reason_is_counted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, *_ = mutants("m", "x = a | b if c < d else e")
    pages = tmp_path / "page.md"
    pages.write_text(f"| module | instead of | this | why |\n|---|---|---|---|\n{row(one, 'so')}\n")
    monkeypatch.setattr("tools.mutants.KNOWN", pages)
    assert known() == {("m", one.before, one.after): "so"}
    lines = list(table([Tried(one, "", 1, 0.1), Tried(other, "a test", 1, 0.1)], known()))
    assert lines[1].split() == ["m", "2", "1", "1", "1"]
    assert lines[-1] == "of those without a reason to live 100.0 % are noticed"


def test_a_copy_tries_a_mutant_and_is_then_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a tree of one module and one test, which is not ours."""
    module, test = tmp_path / "src" / "twinbus" / "m.py", tmp_path / "tests" / "test_m.py"
    for path in (module, test):
        path.parent.mkdir(parents=True)
    (module.parent / "__init__.py").write_text("")
    module.write_text("LIMIT = 3 + 0\n")
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    test.write_text("import twinbus.m as m\ndef test_three():\n    assert m.LIMIT == 3\n")
    monkeypatch.setattr("tools.mutants.ROOT", tmp_path)
    monkeypatch.setattr("tools.mutants.COPIED", ("src", "tests", "pyproject.toml"))
    copy = Copy(tmp_path / "copy")
    said = {}
    for mutant in mutants("m", module.read_text()):
        said[mutant.after] = _tried(copy, mutant).noticed
        assert (copy.folder / "src" / "twinbus" / "m.py").read_text() == module.read_text()
    assert said.pop("LIMIT = 3 - 0") == ""
    assert set(said.values()) == {"tests/test_m.py::test_three"}


def _tried(copy: Copy, mutant: Mutant) -> Tried:
    copy.start(mutant, ["tests/test_m.py::test_three"], 60)
    while (result := copy.result()) is None:
        time.sleep(0.01)
    return result


def test_only_the_chosen_tests_are_run_the_fastest_file_first() -> None:
    class Item:
        def __init__(self, nodeid: str) -> None:
            self.nodeid = nodeid

    items = [Item(f"{file}.py::{name}") for file in "ab" for name in ("one", "two", "three")]
    Chooser(["b.py::two", "a.py::one", "b.py::one"]).pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == ["b.py::two", "b.py::one", "a.py::one"]
