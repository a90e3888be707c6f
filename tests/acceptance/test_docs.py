"""README and docs, done as written: every command and every block of code, on real namespaces.

tests/blocks.py says what is done with which block, and how one says that it cannot be run here.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import typer.main
from harness.brokers import BrokerProcess
from tests.blocks import (
    KNOWN,
    ROOT,
    RUN,
    Block,
    blocks,
    commands,
    is_a_reason,
    name_of,
    pages,
    prose,
    spans,
)
from tests.gateway import Gateway
from tests.reader import Reader
from tests.syphons import backlog_queues
from tests.unit.accounts.ledgers import Book

from twinbus.cli import app

pytestmark = pytest.mark.timeout(400)

QUEUES: dict[str, dict[str, object]] = {name: {} for name in ("orders", "payments", "copies")}
PAGES = pages()


class Shared:
    """What all pages use, started when the first one needs it: a pair, and a Java for Spark."""

    def __init__(self, folder: Path) -> None:
        self.pair: list[BrokerProcess] = []
        for name, queues in (("primary", QUEUES), ("secondary", {**QUEUES, **backlog_queues(2)})):
            (folder / name).mkdir()
            self.pair.append(BrokerProcess(folder / name, queues, extra=("--faults",)))
        self._gateway: Gateway | None = None

    @property
    def gateway(self) -> Gateway:
        if self._gateway is None:
            strings = (each.connection_string for each in self.pair)
            names = ("TWINBUS_PRIMARY", "TWINBUS_SECONDARY")
            self._gateway = Gateway(dict(zip(names, strings, strict=True)))
        return self._gateway

    def start(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(BrokerProcess.start, self.pair))

    def close(self) -> None:
        for each in self.pair:
            each.close()
        if self._gateway is not None:
            self._gateway.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    made = Shared(tmp_path_factory.mktemp("docs"))
    made.start()
    yield made
    made.close()


@pytest.fixture
def reader(shared: Shared, tmp_path: Path) -> Iterator[Reader]:
    primary, secondary = (each.connection_string for each in shared.pair)
    environment = {
        "TWINBUS_PRIMARY": primary,
        "TWINBUS_SECONDARY": secondary,
        "TWINBUS_NAMESPACE": primary,
        "TWINBUS_CERTIFICATE": str(shared.pair[1].folder / "data" / "certificate.pem"),
    }
    made = Reader(tmp_path, environment, lambda: shared.gateway)
    yield made
    made.close()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_tells_to_do_works(page: Path, reader: Reader) -> None:
    _prepare(page, reader.folder)
    followed = []
    for block in blocks(page):
        if not block.not_run:
            began = time.monotonic()
            reader.follow(block)
            followed.append(block)
            print(f"{block.place}: {block.language}, {time.monotonic() - began:.1f} s")
    reader.stop()
    assert reader.unused == set()
    unmarked = len(re.findall(r"^ *```\w+", page.read_text(), re.MULTILINE)) - len(_not_run(page))
    assert len(followed) == unmarked


def _prepare(page: Path, folder: Path) -> None:
    """A ledger of some days, where a page is about one that the reader has kept."""
    if page.name in ("costs.md", "outage.md"):
        with Book(folder / "ledger") as book:
            book.send("11-18 08:00", "5f0c2a", "5f0c2b")
            book.consume("11-18 08:01", "5f0c2a", "5f0c2b")


def _not_run(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.not_run]


# ---------------------------------------------------------------- what is not run


def test_every_block_has_a_language_that_says_what_is_done_with_it() -> None:
    unknown = [
        block.place for page in PAGES for block in blocks(page) if block.language not in KNOWN
    ]
    assert unknown == []


def test_a_block_that_is_not_run_says_why() -> None:
    marked = [block for page in PAGES for block in _not_run(page)]
    for block in marked:
        print(f"{block.place}: {block.not_run}")
    run = [
        block
        for page in PAGES
        for block in blocks(page)
        if block.language in RUN and not block.not_run
    ]
    print(f"{len(run)} blocks are run, {len(marked)} are not")
    assert [block.place for block in marked if not is_a_reason(block.not_run)] == []
    # A mark on anything but the line before a block would not be seen.
    marks = sum(page.read_text().count("<!-- not run:") for page in PAGES)
    assert marks == len(marked)
    assert len(run) > len(marked)


def test_what_is_marked_as_calling_make_does_and_nothing_else_does() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.language == "sh":
                calls = any(line.split()[0] == "make" for line in commands(block.text))
                assert calls == (block.not_run == "calls make"), block.place


def test_every_target_of_make_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set()
    for page in PAGES:
        said = [line for block in blocks(page) for line in commands(block.text)] + spans(page)
        named |= {word for text in said for word in re.findall(r"^make ([\w-]+)", text)}
    assert {"drill", "test"} <= named
    assert named - targets == set()


def _named() -> Iterator[tuple[str, str]]:
    """Commands that are named and not run: in prose, and in blocks that say so."""
    for page in PAGES:
        for text in spans(page):
            yield name_of(page), text
        for block in _not_run(page):
            for line in commands(block.text):
                yield block.place, line


def test_every_command_that_is_named_exists_and_has_the_options_it_is_named_with() -> None:
    checked = 0
    for place, text in _named():
        for found in re.findall(r"(?:^|/)twinbus ((?:[a-z]|--).*)", text):
            problem = _wrong_with(found)
            assert not problem, f"{place}: twinbus {found}: {problem}"
            checked += 1
    assert checked > 20


def _wrong_with(text: str) -> str:
    command: Any = typer.main.get_command(app)
    words = iter(shlex.split(text, comments=True))
    known = _options(command)
    for word in words:
        if word.startswith("--"):
            if word.partition("=")[0] not in known:
                return f"no option {word}"
        elif hasattr(command, "commands"):
            if word not in command.commands:
                return f"no command {word}"
            command = command.commands[word]
            known |= _options(command)
    return ""


def _options(command: Any) -> set[str]:
    return {"--help"} | {name for each in command.params for name in each.opts}


def test_the_check_of_named_commands_sees_a_mistake() -> None:
    assert _wrong_with("nothing --once") == "no command nothing"
    assert _wrong_with("syphon --twice") == "no option --twice"
    assert _wrong_with("fault start throttling --entity orders --for 30") == ""


def test_every_file_that_the_readme_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)", prose(ROOT / "README.md"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
