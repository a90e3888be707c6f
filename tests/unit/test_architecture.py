"""The tables of docs/architecture.md and README.md name every module, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.blocks import ROOT

CODE = ROOT / "src" / "twinbus"
_NAMES = re.compile(r"^\| ((?:`[^`]+`(?:, )?)+) \|", re.MULTILINE)


def tables() -> dict[str, str]:
    """By room, what is said of it."""
    parts = re.split(r"^## (\w+).*$", (ROOT / "docs" / "architecture.md").read_text(), flags=re.M)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {room: text for room, text in sections.items() if (CODE / room).is_dir()}


def named(text: str) -> set[str]:
    names = re.findall(r"`([^`]+)`", " ".join(_NAMES.findall(text)))
    return {name for name in names if not name.endswith("/*")}


def modules(room: str) -> set[str]:
    paths = [path.relative_to(CODE / room) for path in (CODE / room).rglob("*.py")]
    return {
        str(path.with_suffix(""))
        for path in paths
        if path.name != "__init__.py" and path.parts[0] != "blocking"
    }


@pytest.mark.parametrize("room", tables())
def test_the_table_of_a_room_names_its_modules(room: str) -> None:
    assert named(tables()[room]) == modules(room)


def test_the_readme_lists_what_is_in_the_package() -> None:
    listed = set(re.findall(r"`src/twinbus/([\w.]+)`", (ROOT / "README.md").read_text()))
    there = {path.name for path in CODE.iterdir() if is_listed(path)}
    assert listed == there


def is_listed(path: Path) -> bool:
    # `aio` is but the names of `paired/aio`.
    return not path.name.startswith("__") and path.name not in ("aio", "py.typed")
