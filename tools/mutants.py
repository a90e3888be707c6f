"""Small mutations of the pure cores, and whether the tests notice them: ``make mutants``.

A sample by seed, for so many minutes. A map of which test runs which line is made first, by running
them with coverage, a file at a time, and kept in ``build/mutants`` for as long as nothing that it
says has changed. On each mutant the tests are run that run its line, the fastest first, until one
fails; each in a process of its own, in a copy of the tree. What starts a Spark, or a broker's
process, is not run: `make test` notices more than this. A test that takes too much of the processor
has noticed something too: an end that never comes.

Those that live are printed as differences, and known ones, which docs/reliability.md has with a
reason, are counted apart. ``--only broker/queue#17`` tries one again; numbers hold for one source.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

if __package__ is None or __package__ == "":  # as a script
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.mutating import Mutant, mutants

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "twinbus"
KEPT = ROOT / "build" / "mutants"
KNOWN = ROOT / "docs" / "reliability.md"
CORES = (
    *("broker/aside", "broker/batch", "broker/bodies", "broker/burial", "broker/counts"),
    *("broker/dead_letters", "broker/delivery", "broker/directory", "broker/duplicates"),
    *("broker/entity", "broker/entry", "broker/expressions", "broker/forwarding"),
    *("broker/housekeeping", "broker/lock", "broker/management", "broker/namespace"),
    *("broker/publishing", "broker/queue", "broker/routing", "broker/rules", "broker/sessions"),
    *("broker/sql", "broker/store", "broker/stored", "broker/window"),
    *("amqp/*", "failover/*", "homeward/*", "envelope", "classifier", "ledger/record"),
)
TESTS = (
    *("tests/unit/broker", "tests/unit/lab/model", "tests/unit/amqp"),
    *("tests/unit/paired", "tests/unit/pipeline", "tests/unit/test_*.py", "tests/wire"),
)
# They hunt for bugs that are planted, and find the mutation instead.
HUNTS = "not planted"
TESTED_ELSEWHERE = ("test_architecture", "test_generated", "test_site", "test_processes")
# The broker of these is another process, of which the map knows nothing.
NEED_PROCESSES = ("test_hostile", "test_other_sdks", "test_port", "test_java", "test_engine")
EXAMPLES = 40
IMPORTED = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis, before pytest
PLUGINS = ["-p", "no:cacheprovider", "--hypothesis-seed=0", "-W", IMPORTED]
COPIED = ("src", "tests", "harness", "tools", "bench", "docs", "pyproject.toml", "Makefile")
OURS = ("twinbus", "tests", "tools", "harness")  # to be imported from the copy
# Imported once, not in each of the processes.
HEAVY = ("pytest", "hypothesis", "pytest_asyncio", "azure.servicebus.aio", "cryptography.x509")


# ---------------------------------------------------------------- which test runs which line


class Mapper:
    """A plugin: what each test runs, and how long it takes."""

    def __init__(self) -> None:
        import coverage

        self.coverage = coverage.Coverage(
            data_file=None, source_pkgs=["twinbus"], config_file=False
        )
        self.coverage.start()
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    def result(self) -> dict[str, Any]:
        self.coverage.stop()
        data = self.coverage.get_data()
        lines: dict[str, dict[str, list[int]]] = {}
        for file in data.measured_files():
            module = file.rpartition("/twinbus/")[2].removesuffix(".py")
            for line, tests in data.contexts_by_lineno(file).items():
                for test in tests:
                    if test in self.seconds and test not in self.failed:
                        lines.setdefault(module, {}).setdefault(test, []).append(line)
        return {"lines": lines, "seconds": self.seconds, "failed": sorted(self.failed)}


def map_file(file: str, to: Path) -> None:
    """In a process of its own."""
    import pytest

    fewer_examples()
    mapper = Mapper()
    ended = pytest.main([*PLUGINS, "-q", "--quick", "-k", HUNTS, file], plugins=[mapper])
    if ended > pytest.ExitCode.TESTS_FAILED and ended != pytest.ExitCode.NO_TESTS_COLLECTED:
        raise RuntimeError(f"pytest ended with {ended} in {file}")
    to.write_text(json.dumps(mapper.result()))


def fewer_examples() -> None:
    """Of what hypothesis makes up, for `make test` has the time for more."""
    import hypothesis

    settings: Any = hypothesis.settings
    original = settings.__init__

    def limited(self: Any, parent: Any = None, **given: Any) -> None:
        given["max_examples"] = min(EXAMPLES, given.get("max_examples", EXAMPLES))
        original(self, parent, **given)

    settings.__init__ = limited
    settings.register_profile("mutants", max_examples=EXAMPLES)
    settings.load_profile("mutants")


@dataclass
class Map:
    seconds: dict[str, float]
    tests: dict[str, dict[int, list[str]]]  # by module and line

    def of(self, mutant: Mutant, budget_s: float) -> list[str]:
        """The fastest first. A line that none runs may have been run when it was imported: it is
        anyone's who runs anything of the module."""
        lines = self.tests.get(mutant.module, {})
        last = mutant.line + mutant.before.count("\n")
        chosen = {test for line in range(mutant.line, last + 1) for test in lines.get(line, ())}
        chosen = chosen or {test for tests in lines.values() for test in tests}
        ordered, total = list[str](), 0.0
        for test in sorted(chosen, key=lambda each: (self.seconds[each], each)):
            total += self.seconds[test]
            if total > budget_s and ordered:
                break
            ordered.append(test)
        return ordered


def make_map(workers: int) -> Map:
    files = [path for pattern in TESTS for path in _test_files(pattern)]
    source = _hash(sorted(SOURCE.rglob("*.py")))
    support = _hash([ROOT / "tests" / "conftest.py", *sorted((ROOT / "tests").rglob("[!t]*.py"))])
    KEPT.mkdir(parents=True, exist_ok=True)
    kept = {file: KEPT / f"{_hash([file], source + support)}.json" for file in files}
    missing = [file for file in files if not kept[file].exists()]
    if missing:
        print(f"which test runs which line: {len(missing)} files of tests are run", flush=True)

    def run(file: Path) -> None:
        code = "import sys; from pathlib import Path; from tools.mutants import map_file; "
        code += "map_file(sys.argv[1], Path(sys.argv[2]))"
        unready = kept[file].with_suffix(".new")
        subprocess.run(
            [sys.executable, "-c", code, str(file.relative_to(ROOT)), str(unready)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{SOURCE.parent}"},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        unready.rename(kept[file])

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, missing))
    return _joined(json.loads(path.read_text()) for path in kept.values())


def _joined(parts: Iterable[dict[str, Any]]) -> Map:
    whole = Map({}, {})
    for part in parts:
        whole.seconds.update(part["seconds"])
        for test in part["failed"]:
            print(f"left out, because it fails on unbroken code: {test}", flush=True)
        for module, by_test in part["lines"].items():
            lines = whole.tests.setdefault(module, {})
            for test, numbers in by_test.items():
                for line in numbers:
                    lines.setdefault(line, []).append(test)
    return whole


def _test_files(pattern: str) -> Iterator[Path]:
    found = (ROOT / pattern).rglob("test_*.py") if "*" not in pattern else ROOT.glob(pattern)
    left_out = (*TESTED_ELSEWHERE, *NEED_PROCESSES)
    yield from (path for path in sorted(found) if path.stem not in left_out)


def _hash(paths: Iterable[Path], more: str = "") -> str:
    digest = hashlib.sha256(more.encode())
    for path in paths:
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


# ---------------------------------------------------------------- trying one


class Chooser:
    """A plugin: only the chosen tests, in their order but file by file, as fixtures want it."""

    def __init__(self, chosen: list[str]) -> None:
        self._rank = {test: rank for rank, test in enumerate(chosen)}
        self.noticed = ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        first: dict[str, int] = {}
        mine = [item for item in items if item.nodeid in self._rank]
        for item in sorted(mine, key=lambda each: self._rank[each.nodeid]):
            first.setdefault(_file_of(item.nodeid), self._rank[item.nodeid])
        items[:] = sorted(
            mine, key=lambda each: (first[_file_of(each.nodeid)], self._rank[each.nodeid])
        )

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.noticed = f"{report.nodeid} cannot be imported"

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.noticed:
            self.noticed = report.nodeid


def _file_of(test: str) -> str:
    return test.partition("::")[0]


@dataclass
class Tried:
    mutant: Mutant
    noticed: str  # by whom; empty if by nobody
    tests: int
    took_s: float


class Copy:
    """A copy of the tree, on which one mutant at a time is tried, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "site", "images")
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, folder / name)
        self._said = folder / "said"
        self._child: int | None = None

    def start(self, mutant: Mutant, tests: list[str], limit_s: float) -> None:
        self._mutant, self._tests = mutant, len(tests)
        self._began = time.monotonic()
        self._until = self._began + 5 * limit_s
        self._file = self.folder / "src" / "twinbus" / f"{mutant.module}.py"
        self._source = self._file.read_text()
        _write(self._file, mutant.whole)
        self._said.write_text("")
        self._child = os.fork()
        if self._child == 0:
            self._in_child(tests, limit_s)

    def check(self, mutant: Mutant, tests: list[str]) -> None:
        """Raise unless the tests pass as long as nothing is broken."""
        source = (self.folder / "src" / "twinbus" / f"{mutant.module}.py").read_text()
        self.start(replace(mutant, whole=source), tests, 600)
        while (result := self.result()) is None:
            time.sleep(0.02)
        if result.noticed:
            raise RuntimeError(f"{result.noticed} fails on unbroken code")

    @property
    def is_free(self) -> bool:
        return self._child is None

    def result(self) -> Tried | None:
        """None as long as it runs."""
        assert self._child is not None
        done, status = os.waitpid(self._child, os.WNOHANG)
        late = not done and time.monotonic() > self._until
        if not done and not late:
            return None
        with suppress(ProcessLookupError):
            os.killpg(self._child, signal.SIGKILL)  # with what it has started
        if late:
            os.waitpid(self._child, 0)
        self._child = None
        _write(self._file, self._source)
        if late:
            noticed = "an end that never came"
        elif os.WIFSIGNALED(status):
            noticed = f"signal {os.WTERMSIG(status)}, as of too much processor time"
        elif status:
            raise RuntimeError((self.folder / "output").read_text()[-2000:])
        else:
            noticed = self._said.read_text()
        return Tried(self._mutant, noticed, self._tests, time.monotonic() - self._began)

    def _in_child(self, tests: list[str], limit_s: float) -> None:
        code = 1
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s) + 5))
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
            os.chdir(self.folder)
            output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            ours = [str(self.folder / "src"), str(self.folder)]
            sys.path[:] = ours + [each for each in sys.path if not each.startswith(str(ROOT))]
            os.environ["PYTHONPATH"] = ":".join(ours)
            for name in [each for each in sys.modules if each.split(".")[0] in OURS]:
                del sys.modules[name]
            sys.dont_write_bytecode = False
            import pytest

            fewer_examples()
            chooser = Chooser(tests)
            files = list(dict.fromkeys(_file_of(test) for test in tests))
            options = [*PLUGINS, "-x", "-q", f"--basetemp={self.folder / 'tmp'}"]
            ended = pytest.main([*options, *files], plugins=[chooser])
            if not chooser.noticed and ended != 0:
                chooser.noticed = f"pytest ended with {int(ended)}"
            self._said.write_text(chooser.noticed)
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            raise
        finally:
            os._exit(code)


def _write(file: Path, source: str) -> None:
    """Without what was compiled: that is trusted by its second and its size."""
    file.write_text(source)
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()


# ---------------------------------------------------------------- a sample


def cores(wanted: list[str]) -> dict[str, str]:
    found = {}
    for core in CORES:
        for path in sorted(SOURCE.glob(f"{core}.py")):
            module = str(path.relative_to(SOURCE).with_suffix(""))
            if path.read_text() and (not wanted or any(module.startswith(w) for w in wanted)):
                found[module] = path.read_text()
    return found


def known() -> dict[tuple[str, str, str], str]:
    """What lives for a reason: the rows of the table in docs/reliability.md."""
    rows = {}
    for line in KNOWN.read_text().splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "\0").strip("|").split("|")]
        if len(cells) == 4 and cells[1].startswith("`") and cells[2].startswith("`"):
            module, before, after, reason = (cell.replace("\0", "|") for cell in cells)
            rows[module.strip("`"), before.strip("`"), after.strip("`")] = reason
    return rows


def is_known(mutant: Mutant, rows: dict[tuple[str, str, str], str]) -> bool:
    return (mutant.module, mutant.before, mutant.after) in rows


def row(mutant: Mutant, reason: str = "") -> str:
    before, after = (each.replace("|", "\\|") for each in (mutant.before, mutant.after))
    return f"| {mutant.module} | `{before}` | `{after}` | {reason} |"


def table(tried: list[Tried], rows: dict[tuple[str, str, str], str]) -> Iterator[str]:
    yield f"{'module':<22}{'made':>6}{'noticed':>9}{'alive':>7}{'of these known':>16}"
    made, noticed, reasoned = Counter[str](), Counter[str](), Counter[str]()
    for each in tried:
        for name in (each.mutant.module, "all"):
            made[name] += 1
            noticed[name] += bool(each.noticed)
            reasoned[name] += not each.noticed and is_known(each.mutant, rows)
    for name in [*sorted(set(made) - {"all"}), "all"]:
        alive = made[name] - noticed[name]
        yield f"{name:<22}{made[name]:>6}{noticed[name]:>9}{alive:>7}{reasoned[name]:>16}"
    felt = made["all"] - reasoned["all"]
    if felt:
        share = 100 * noticed["all"] / felt
        yield f"of those without a reason to live {share:.1f} % are noticed"


def attempt(chosen: list[Mutant], tests: Map, asked: argparse.Namespace) -> Iterator[Tried]:
    """As many at a time as there are workers, until all are tried or the time is over."""
    for name in HEAVY:
        with suppress(ImportError):
            importlib.import_module(name)
    until = time.monotonic() + 60 * asked.minutes
    waiting = iter(chosen)
    with tempfile.TemporaryDirectory() as folder:
        copies = [Copy(Path(folder) / f"copy{number}") for number in range(asked.workers)]
        copies[0].check(chosen[0], tests.of(chosen[0], asked.budget)[:20])
        while True:
            for copy in copies:
                if not copy.is_free and (result := copy.result()):
                    yield result
                while copy.is_free and time.monotonic() < until and (mutant := next(waiting, None)):
                    named = tests.of(mutant, asked.budget)
                    if named:
                        seconds = sum(tests.seconds[test] for test in named)
                        copy.start(mutant, named, 15 + 3 * seconds)
                    else:
                        yield Tried(mutant, "", 0, 0.0)
            if all(copy.is_free for copy in copies):
                return
            time.sleep(0.02)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="only these cores, as broker/queue or amqp")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=200, help="how many of all of them")
    parser.add_argument("--minutes", type=float, default=20, help="begin no other after these")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests for each mutant")
    parser.add_argument("--only", nargs="*", default=[], help="by number: broker/queue#17")
    parser.add_argument("--rows", action="store_true", help="those alive as rows of the table, too")
    asked = parser.parse_args(arguments)
    sources = cores(asked.modules)
    every = [each for module, source in sources.items() for each in mutants(module, source)]
    by_name = {each.name: each for each in every}
    random.Random(asked.seed).shuffle(every)
    compiled = (each for each in every if each.compiles)
    chosen = [by_name[name] for name in asked.only] or list(islice(compiled, asked.sample))
    tests = make_map(asked.workers)
    reasons, tried = known(), []
    began = time.monotonic()
    for each in attempt(chosen, tests, asked):
        tried.append(each)
        mutant = each.mutant
        said = each.noticed or ("lives, known" if is_known(mutant, reasons) else "LIVES")
        print(
            f"{mutant.name}, line {mutant.line}, {mutant.kind}, {each.tests} tests, "
            f"{each.took_s:.1f} s: {said}",
            flush=True,
        )
    alive = [each for each in tried if not each.noticed and not is_known(each.mutant, reasons)]
    for each in alive:
        print(f"\n{each.mutant.diff(sources[each.mutant.module])}")
        if asked.rows:
            print(row(each.mutant))
    print("", *table(tried, reasons), sep="\n")
    print(
        f"{len(tried)} tried in {(time.monotonic() - began) / 60:.1f} minutes, of {len(chosen)} "
        f"chosen by seed {asked.seed} of {len(every)}"
    )
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
