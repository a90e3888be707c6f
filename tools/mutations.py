"""Break what each statement of conformance.toml says, and see that its tests notice.

``python -m tools.mutations [A8 B4.2 ...]``, with the numbers to try, or their beginnings; all of
them take most of an hour. Each mutation changes one place in a copy of ``src``, on which the tests
of the statements that it breaks are run. A test that fails under none of its statement's mutations
would pass with the feature broken, and is a survivor; so is a mutation under which none fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tools.conformance import ROOT, SOURCE, place_of, places_of_tests, read

Test = tuple[str, str]  # its file and its name


def run(tests: Iterable[Test], copy: Path) -> tuple[set[Test], set[Test]]:
    """The tests that were run on the copy, and those that failed. An error is not a failure: a test
    that could not begin has noticed nothing."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        subprocess.run(
            [*command, f"--junitxml={report}", *(f"{file}::{name}" for file, name in tests)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(copy)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        if not report.exists():
            return set(), set()
        cases = list(ElementTree.parse(report).iter("testcase"))
    return {_test(case) for case in cases}, {
        _test(case) for case in cases if case.find("failure") is not None
    }


def _test(case: ElementTree.Element) -> Test:
    file = case.get("classname", "").replace(".", "/") + ".py"
    return file, case.get("name", "").split("[")[0]


@contextmanager
def broken(copy: Path, mutation: dict[str, str]) -> Iterator[None]:
    file = copy / SOURCE.name / mutation["file"]
    whole = file.read_text()
    file.write_text(whole.replace(mutation["find"], mutation["replace"]))
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
        compiled.unlink()
    try:
        yield
    finally:
        file.write_text(whole)
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
            compiled.unlink()


def attempt(facts: list[dict[str, Any]], mutations: dict[str, Any], copy: Path) -> int:
    """How many survive."""
    known = places_of_tests()
    tests = {fact["number"]: [place_of(test, known) for test in fact["tests"]] for fact in facts}
    every = {test for each in tests.values() for test in each}
    ran, failed = run(sorted(every), copy)
    if failed or ran != every:
        sys.exit(f"on unbroken code these do not pass: {sorted(failed | (every - ran))}")
    noticed: dict[str, set[Test]] = {}
    for name in dict.fromkeys(name for fact in facts for name in fact["mutations"]):
        about = {t for fact in facts if name in fact["mutations"] for t in tests[fact["number"]]}
        began = time.monotonic()
        with broken(copy, mutations[name]):
            noticed[name] = run(sorted(about), copy)[1]
        print(
            f"{len(noticed[name])} of {len(about)} tests fail: {name}, "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )
    survivors = [each for fact in facts for each in _survivors(fact, tests, noticed)]
    print(*survivors, f"{len(facts)} statements tried, {len(survivors)} survivors", sep="\n")
    return len(survivors)


def _survivors(
    fact: dict[str, Any], tests: dict[str, list[Test]], noticed: dict[str, set[Test]]
) -> Iterator[str]:
    """Every test must notice one of the mutations, and every mutation be noticed by one of them."""
    number, mutations = fact["number"], fact["mutations"]
    for test in tests[number]:
        if not any(test in noticed[name] for name in mutations):
            yield f"{number}: {test[1]} passes in spite of {', '.join(mutations)}"
    for name in mutations:
        if not noticed[name].intersection(tests[number]):
            yield f"{number}: no test notices that {name}"


def main() -> int:
    table = read()
    chosen = [
        fact
        for fact in table["fact"]
        if "tests" in fact and _is_wanted(fact["number"], sys.argv[1:])
    ]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(SOURCE, Path(folder) / SOURCE.name)
        return min(1, attempt(chosen, table["mutation"], Path(folder)))


def _is_wanted(number: str, asked: list[str]) -> bool:
    return not asked or any(number == each or number.startswith(f"{each}.") for each in asked)


if __name__ == "__main__":
    sys.exit(main())
