"""Write down what every command takes and says of itself: ``python tools/help.py [--check]``.

An option that changes its name, its default, its variable or its words changes tests/unit/help.txt,
where a reader sees it; nothing of how a terminal lays it out is in there.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from twinbus.cli import app

PAGE = Path(__file__).resolve().parent.parent / "tests/unit/help.txt"
FACTS = ("default", "min", "max", "envvar", "multiple", "required", "hidden")


def commands(command: Any, words: tuple[str, ...] = ("twinbus",)) -> Iterator[str]:
    """Every command, and those below it."""
    yield "\n".join([" ".join(words), inspect.cleandoc(command.help or ""), *options(command), ""])
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*words, name))


def options(command: Any) -> Iterator[str]:
    for option in command.params:
        facts = {name: getattr(option, name, None) for name in FACTS}
        said = ", ".join(
            f"{name} {of}" for name, of in facts.items() if of is not None and of is not False
        )
        yield f"  {' '.join([*option.opts, *option.secondary_opts])}: {said}"
        yield f"    {getattr(option, 'help', None) or ''}".rstrip()


def main() -> int:
    page = "\n".join(commands(typer.main.get_command(app)))
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != page:
            sys.exit(f"{PAGE.name} is not current; run python tools/help.py")
    else:
        PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
