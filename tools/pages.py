"""What the pages need on their way into the site; mkdocs.yml names this as its hook.

The pages are written to be read in the repository as well. There, links lead to files outside docs/
and Mermaid draws the state diagram. The site has neither: such a link becomes its text, and the
diagram a table, since drawing it would fetch a script from elsewhere.
"""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]+\)")
_DIAGRAM = re.compile(r"```mermaid\nstateDiagram-v2\n(.*?)```", re.DOTALL)
_ARROW = re.compile(r"^ +(\w+) --> (\w+): (.+)$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _OUTSIDE.sub(r"\1", _DIAGRAM.sub(_as_table, markdown))


def _as_table(diagram: re.Match[str]) -> str:
    rows = [
        f"| {state} | {event} | {after} |" for state, after, event in _ARROW.findall(diagram[1])
    ]
    return "\n".join(["| state | event | next |", "|---|---|---|", *rows, ""])
