"""All benchmarks, and the page of them: `make bench`, or `python -m bench [--quick] [PART ...]`.

Each part is a process of its own with a time limit. One that fails is reported as failed, and the
others go on; whatever it started is ended with it. Parts that were not asked for keep the results
of their last run. A quick run is a rehearsal with small sizes: it writes a page of its own under
.bench/quick, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from bench import machine, page, results
from bench.part import command, folder_for
from bench.parts import PARTS
from bench.process import ROOT
from bench.results import Outcome, State

GRACE_S = 60
MACHINE = "machine.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a rehearsal with small sizes")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    given = parser.parse_args()
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]}; there are {', '.join(PARTS)}")
    folder = folder_for(given.quick)
    if not given.page:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MACHINE).write_text(json.dumps(machine.describe(), indent=1))
        for part in given.parts or PARTS:
            run(part, folder, given.quick)
    docs = folder if given.quick else ROOT / "docs"
    outcomes = saved(folder)
    about = json.loads((folder / MACHINE).read_text())
    written = page.write(outcomes, about, docs, quick=given.quick)
    print(f"wrote {written.relative_to(ROOT) if written.is_relative_to(ROOT) else written}")
    asked = given.parts or PARTS
    bad = [each for each in outcomes if each.part in asked and each.state is not State.DONE]
    if bad:
        sys.exit("; ".join(f"{each.part}: {each.state} {each.error}" for each in bad))


def run(part: str, folder: Path, quick: bool) -> None:
    """Run one part; if it is not over in time, end it and what it started."""
    module = importlib.import_module(f"bench.parts.{part}")
    arguments = [sys.executable, "-m", "bench.part", part, *(["--quick"] if quick else [])]
    print(f"{part} (at most {module.LIMIT_S} s)", flush=True)
    Outcome(part, command(part)).save(folder)
    began = time.monotonic()
    child = subprocess.Popen(arguments, cwd=ROOT)
    try:
        child.wait(module.LIMIT_S)
    except subprocess.TimeoutExpired:
        _end(child)
        _mark(folder, part, State.LATE, f"it was ended after {module.LIMIT_S} s")
    except BaseException:
        _end(child)
        raise
    outcome = results.load(folder / f"{part}.json")
    if outcome.state is State.RUNNING:
        _mark(folder, part, State.FAILED, f"its process ended with {child.returncode}")
    print(f"  {time.monotonic() - began:.0f} s", flush=True)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Let it clean up; then end, by their ids, it and whatever of its own is still there."""
    tree = [psutil.Process(child.pid)]
    with suppress(psutil.Error):
        tree += tree[0].children(recursive=True)
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    for each in tree:
        with suppress(psutil.Error):
            each.kill()
    child.wait(GRACE_S)


def _mark(folder: Path, part: str, state: State, error: str) -> None:
    outcome = results.load(folder / f"{part}.json")
    outcome.state, outcome.error = state, error
    outcome.save(folder)


def saved(folder: Path) -> list[Outcome]:
    paths = [folder / f"{part}.json" for part in PARTS]
    return [results.load(path) for path in paths if path.exists()]


if __name__ == "__main__":
    main()
