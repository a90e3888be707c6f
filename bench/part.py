"""One benchmark in a process of its own: `python -m bench.part NAME [--quick]`.

Its results are saved as they come.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.parts import PARTS
from bench.results import FOLDER, Figure, Outcome, Result, State


def folder_for(quick: bool) -> Path:
    """Those of a quick run never mix with the others."""
    return FOLDER / "quick" if quick else FOLDER


def command(part: str) -> str:
    return f'make bench PARTS="{part}"'


def run(
    outcome: Outcome, folder: Path, measure: Callable[[bool], Iterator[Result]], quick: bool
) -> None:
    began = time.monotonic()
    outcome.save(folder)
    try:
        for result in measure(quick):
            outcome.add(result)
            outcome.took_s = time.monotonic() - began
            outcome.save(folder)
            _tell(result)
        outcome.state = State.DONE
    except Exception as error:  # noqa: BLE001  it is reported on the page; the other parts go on
        traceback.print_exc()
        text = str(error).strip().splitlines()
        outcome.state = State.FAILED
        outcome.error = f"{type(error).__name__}: {text[0][:300] if text else ''}"
    finally:
        outcome.took_s = time.monotonic() - began
        outcome.save(folder)


def _tell(result: Result) -> None:
    if isinstance(result, Figure):
        sides = {"ours": result.values, **result.peers}
        text = "; ".join(
            f"{name} " + ", ".join(f"{value:,.4g}" for value in values)
            for name, values in sides.items()
        )
        print(f"  {result.name} ({result.unit}): {text}", flush=True)
    else:
        print(f"  {result.title}", flush=True)


def _end(number: int, frame: Any) -> None:
    """So that what was started is ended: an exception unwinds, a signal would not."""
    sys.exit(f"ended by signal {number}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    module = importlib.import_module(f"bench.parts.{given.part}")
    began = datetime.now(UTC).isoformat(timespec="minutes")
    outcome = Outcome(
        given.part, command(given.part), module.TITLE, getattr(module, "CUT", ""), began
    )
    run(outcome, folder_for(given.quick), module.measure, given.quick)
    if outcome.state is not State.DONE:
        sys.exit(1)


if __name__ == "__main__":
    main()
