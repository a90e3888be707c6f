"""The site that `make docs` builds: it fetches nothing, and the reference leaves nothing out."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.blocks import ROOT

import twinbus
import twinbus.aio
from twinbus.lab.faults import FaultClient
from twinbus.ledger import Ledger

CLASSES = [
    *(getattr(module, name) for module in (twinbus, twinbus.aio) for name in module.__all__),
    FaultClient,
    Ledger,
]
OURS = [each for each in CLASSES if each.__module__.startswith("twinbus")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    pages = sorted(site.glob("*.html"))
    assert len(pages) > 15
    for page in pages:
        text = page.read_text()
        assert (
            re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(?:https?:)?//', text) == []
        )
        assert 'class="mermaid"' not in text, "the theme fetches a script to draw it"


def test_the_diagram_of_the_states_is_a_table_in_the_site(site: Path) -> None:
    rows = re.findall(
        r"<td>(\w+)</td>\s*<td>([\w ]+)</td>\s*<td>(\w+)</td>", page_of(site, "pairing")
    )
    assert ("suspect", "interval passed", "diverted") in rows


def test_the_reference_has_every_public_name(site: Path) -> None:
    text = page_of(site, "reference")
    missing = [each.__name__ for each in OURS if f">{each.__name__}</span>" not in text]
    assert missing == []
    assert "BrokeredMessage" in text


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_a_public_class_and_its_methods_say_what_they_do(kind: type) -> None:
    assert kind.__doc__
    silent = [
        name
        for name, each in vars(kind).items()
        if not name.startswith("_") and callable(getattr(kind, name)) and not inspect.getdoc(each)
    ]
    assert silent == []


def page_of(site: Path, name: str) -> str:
    return (site / f"{name}.html").read_text()
