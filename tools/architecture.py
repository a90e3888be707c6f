"""Write what docs/architecture.md says of modules from the code: ``python tools/architecture.py
[--check]``.

For each room a table of its modules, in the first sentence of each; and which room imports which.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
CODE = ROOT / "src/twinbus"
PAGE = ROOT / "docs/architecture.md"
BLOCK = re.compile(r"<!-- generated: (\w+)(?: (\w+))? -->\n.*?<!-- end -->", re.DOTALL)
# `aio` and `pipeline` are but names of what is elsewhere, `blocking` is generated.
NO_ROOMS = ("aio", "pipeline")
GENERATED = "blocking"


def rooms() -> list[str]:
    """Folders and modules directly below the package, by name."""
    found = [path for path in CODE.iterdir() if (path / "__init__.py").exists()]
    alone = [path for path in CODE.glob("*.py") if not path.name.startswith("__")]
    return sorted(path.stem for path in [*found, *alone] if path.stem not in NO_ROOMS)


def table(room: str) -> str:
    """The modules of a room. A sentence is what comes before the first full stop that ends one."""
    folder = CODE / room
    paths = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    rows = [
        f"| `{path.relative_to(folder if folder.is_dir() else CODE).with_suffix('')}` | {said} |"
        for path in paths
        if path.parent.name != GENERATED and (said := first_sentence(path))
    ]
    return "\n".join(["| module | what it is |", "|---|---|", *rows])


def first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text()))
    if text is None:
        if path.read_text().strip():
            sys.exit(f"{path.relative_to(ROOT)} does not say what it is for")
        return ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.?!])\s+(?=[A-Z`])|:\s*$", paragraph)[0].replace("|", "\\|")


def graph(_: str) -> str:
    """Who imports whom, without the arrows that another way makes too, as a lower room is."""
    imports = grimp.build_graph("twinbus", exclude_type_checking_imports=True)
    edges = {
        room: {
            other
            for other in rooms()
            if other != room
            and imports.find_shortest_chains(
                f"twinbus.{room}", f"twinbus.{other}", as_packages=True
            )
        }
        for room in rooms()
    }
    lines = ["```mermaid", "flowchart TD"]
    for room, below in edges.items():
        reached = {far for near in below for far in edges[near] if near != far}
        lines += [f"    {room} --> {other}" for other in sorted(below - reached)]
    return "\n".join([*lines, "```"])


KINDS: dict[str, Callable[[str], str]] = {"modules": table, "imports": graph}


def page(old: str) -> str:
    def filled(match: re.Match[str]) -> str:
        kind, of = match.group(1), match.group(2) or ""
        name = f"{kind} {of}".strip()
        return f"<!-- generated: {name} -->\n{KINDS[kind](of)}\n<!-- end -->"

    missing = set(rooms()) - {of for kind, of in BLOCK.findall(old) if kind == "modules"}
    if missing:
        sys.exit(f"{PAGE.name} has no place for the modules of {', '.join(sorted(missing))}")
    return BLOCK.sub(filled, old)


def main() -> int:
    old = PAGE.read_text()
    new = page(old)
    if "--check" in sys.argv[1:]:
        if new != old:
            sys.exit(f"{PAGE.name} is not current; run python tools/architecture.py")
    else:
        PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
