"""The fenced blocks of README and docs: found, told apart, split into commands.

What a block is for is said by its language:

    python              run, top to bottom, in one interpreter a page; `await` may stand outside
                        of functions, as in `python -m asyncio`
    sh                  run command by command, in one folder a page
    diff                both sides are run as Python
    toml, yaml, json    read, so that they are at least what they say they are
    text                right after a block that was run: what that printed, among other things; a
                        line may have `...` for what differs
    dockerfile          only where it is marked as not run
    mermaid             drawn elsewhere

A block with `title="name"` is a file: it is written before what comes after it is run. If it is a
program, a command further down must run it.

A block that cannot be run here says so on the line before it, for one of the REASONS, and whoever
reads the page in a browser does not see it:

    <!-- not run: needs a cluster -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parent.parent

# Why a block is not run. The last is followed by a file of tests that does the same.
NEEDS = ("needs a cluster", "needs Azure", "needs the network", "calls make", "needs Prometheus")
SHOWN_BY = "shown by "
RUN = frozenset({"python", "sh", "diff"})
READ = frozenset({"toml", "yaml", "json"})
KNOWN = RUN | READ | {"dockerfile", "text", "mermaid"}

_OPEN = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<language>\w*)(?P<rest>.*)$")
_TITLE = re.compile(r'title="([^"]+)"')
_MARK = re.compile(r"^ *<!-- not run: (.+?) -->$")
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    title: str
    text: str
    not_run: str  # the reason, if there is one

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """All that a user reads and a test runs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, in their order."""
    lines = page.read_text().splitlines()
    at = 0
    while at < len(lines):
        opened = _OPEN.match(lines[at])
        if opened is None:
            at += 1
            continue
        end = at + 1
        while lines[end].strip() != opened["fence"]:
            end += 1
        title = _TITLE.search(opened["rest"])
        mark = _MARK.match(lines[at - 1]) if at else None
        yield Block(
            name_of(page),
            at + 1,
            opened["language"],
            title[1] if title else "",
            dedent("\n".join(lines[at + 1 : end])) + "\n",
            mark[1] if mark else "",
        )
        at = end + 1


def prose(page: Path) -> str:
    """A page without its blocks."""
    text = page.read_text()
    return re.sub(r"^ *```+\w*.*?^ *```+$", "", text, flags=re.MULTILINE | re.DOTALL)


def spans(page: Path) -> list[str]:
    """What stands between backquotes in the prose, each on one line."""
    return [" ".join(found.split()) for found in _SPAN.findall(prose(page))]


def commands(text: str) -> list[str]:
    """The commands of a shell block: continued lines joined, comments and blanks left out."""
    joined = text.replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def sides(diff: str) -> tuple[str, str]:
    """What a diff takes away, and what it gives, each with what both have."""

    def side(sign: str) -> str:
        return "\n".join(line[1:] for line in diff.splitlines() if line[:1] in (sign, " ", ""))

    return side("-"), side("+")


def is_a_reason(text: str) -> bool:
    if text.startswith(SHOWN_BY):
        return (ROOT / text.removeprefix(SHOWN_BY)).is_file()
    return text in NEEDS
