"""What is said of the source's rooms and modules is what is there; each name means one thing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
from tests.blocks import ROOT

from twinbus.pipeline import MOVED

CODE = ROOT / "src" / "twinbus"


def test_the_page_has_the_modules_and_who_imports_whom() -> None:
    command = [sys.executable, "tools/architecture.py", "--check"]
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


@pytest.mark.parametrize("name", MOVED)
def test_what_moved_is_found_under_its_earlier_name_too(name: str) -> None:
    assert import_module(f"twinbus.pipeline.{name}") is import_module(MOVED[name])
