"""Runs the Python blocks of one page, in a process of its own.

A line of JSON in, the source and where it stands; a line of JSON out, what it printed and what it
raised, if it did.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import json
import sys
import traceback
from contextlib import redirect_stdout
from typing import Any


def run(source: str, place: str, names: dict[str, Any], loop: asyncio.Runner) -> None:
    code = compile(source, place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        loop.run(eval(code, names))
    else:
        exec(code, names)


def main() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    answers = sys.stdout
    with asyncio.Runner() as loop:
        for line in sys.stdin:
            asked = json.loads(line)
            printed = io.StringIO()
            error = ""
            try:
                with redirect_stdout(printed):
                    run(asked["source"], asked["place"], names, loop)
            except BaseException:  # noqa: BLE001  whatever it is, the test shows it
                error = traceback.format_exc()
            print(json.dumps([printed.getvalue(), error]), file=answers, flush=True)


if __name__ == "__main__":
    main()
