"""One supervisor of child processes: what becomes of those that behave badly."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from twinbus import processes
from twinbus.processes import Child, StartError

WAITS = "import time; time.sleep(600)"
READY = "print('ready: here', flush=True); "


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def child(log: Path) -> Iterator[Callable[..., Child]]:
    made: list[Child] = []

    def make(program: str, **settings: bool) -> Child:
        environment = {"WORD": "of the environment"}
        made.append(Child([sys.executable, "-c", program], environment, log, **settings))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.end()


def until(condition: Callable[[], object]) -> None:
    for _ in range(2_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("waited 20 s")


def is_there(pid: int) -> bool:
    return processes.began(pid) != ""


def test_one_that_is_ready_says_so(child: Callable[..., Child]) -> None:
    made = child(f"import os; print(os.environ['WORD'], flush=True); {WAITS}")
    assert made.first_line() == "of the environment"
    assert made.is_alive()
    assert made.pid is not None
    assert made.record(port=1).is_running
    made.end()
    assert not made.is_started()
    assert not made.is_alive()
    assert made.ended() is None


def test_nothing_is_said_before_the_line_is_whole(child: Callable[..., Child]) -> None:
    made = child(
        f"print('rea', end='', flush=True); input(); print('dy'); {WAITS}", with_parent=True
    )
    time.sleep(0.3)
    assert made.said() == made.ready() == ""
    assert made._process is not None
    assert made._process.stdin is not None
    made._process.stdin.write(b"\n")
    made._process.stdin.flush()
    until(made.said)
    assert made.said() == made.ready() == "ready"


def test_one_that_dies_is_told_of_in_its_last_words(child: Callable[..., Child], log: Path) -> None:
    log.write_text("of an earlier life\n")
    made = child("import sys; print('first', file=sys.stderr); sys.exit('twinbus: no such port')")
    with pytest.raises(StartError, match=r"^no such port$"):
        made.first_line()
    assert not made.is_started()


def test_one_that_dies_without_a_word_said_nothing(child: Callable[..., Child], log: Path) -> None:
    log.write_text("of an earlier life\n")
    with pytest.raises(StartError, match=r"^it said nothing$"):
        child("raise SystemExit(3)").first_line()


def test_one_that_is_never_ready_is_ended(child: Callable[..., Child], log: Path) -> None:
    made = child(WAITS)
    pid = made.pid
    assert pid is not None
    assert made.ready(60) == ""
    with pytest.raises(StartError, match=f"not ready after 0 s; its log is {log}"):
        made.ready(0)
    assert not is_there(pid)


def test_one_that_writes_a_lot_to_its_log_is_not_kept_waiting(
    child: Callable[..., Child], log: Path
) -> None:
    made = child(
        "import sys; [print('x' * 1000, file=sys.stderr) for _ in range(5000)]; "
        f"print('the end', file=sys.stderr); {READY} sys.exit(5)"
    )
    assert made.first_line() == "ready: here"
    until(lambda: made.ended() == 5)
    assert log.stat().st_size > 5_000_000
    made = child(
        "import sys; [print('x' * 1000, file=sys.stderr) for _ in range(5000)]; sys.exit('why')"
    )
    with pytest.raises(StartError, match=r"^why$"):
        made.first_line()


def test_one_that_does_not_want_to_end_is_ended(child: Callable[..., Child]) -> None:
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    made = child(f"{ignores}{READY}{WAITS}")
    made.first_line()
    made.ask_to_end()
    pid = made.pid
    assert pid is not None
    time.sleep(0.3)
    assert made.is_alive()
    before = time.monotonic()
    made.end(0.5)
    assert 0.4 < time.monotonic() - before < 10
    assert not is_there(pid)


def test_one_that_is_asked_has_time_to_end_by_itself(
    child: Callable[..., Child], log: Path
) -> None:
    made = child(
        "import signal, sys, time; "
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('a clean end')); "
        f"{READY}{WAITS}"
    )
    made.first_line()
    made.signal(signal.SIGSTOP)
    made.end(30)
    assert log.read_text() == "a clean end\n"


def test_what_it_started_ends_with_it(child: Callable[..., Child]) -> None:
    made = child(
        "import subprocess, sys; "
        f"grandchild = subprocess.Popen([sys.executable, '-c', {WAITS!r}]); "
        f"print(grandchild.pid, flush=True); {WAITS}"
    )
    grandchild = int(made.first_line())
    made.signal(signal.SIGKILL)
    until(lambda: made.ended() == -signal.SIGKILL)
    assert is_there(grandchild)
    made.end()
    until(lambda: not is_there(grandchild))


def test_it_is_started_again_and_listened_to_anew(child: Callable[..., Child]) -> None:
    made = child("import os; print(os.getpid(), flush=True)")
    until(made.said)
    first = made.said()
    until(lambda: made.ended() == 0)
    assert not made.is_alive()
    again = made.start()
    until(made.said)
    assert (int(made.said()), made.starts) == (again, 2)
    assert made.said() != first


def test_one_that_lives_with_its_parent_sees_its_input_end(child: Callable[..., Child]) -> None:
    made = child(f"import sys; {READY}sys.stdin.read(); sys.exit(7)", with_parent=True)
    until(made.said)
    assert made.is_alive()
    assert made._process is not None
    assert made._process.stdin is not None
    made._process.stdin.close()
    until(lambda: made.ended() == 7)


def test_what_one_says_may_be_for_the_log(child: Callable[..., Child], log: Path) -> None:
    made = child("print('out', flush=True)", says=False)
    until(lambda: made.ended() == 0)
    assert (made.said(), log.read_text()) == ("", "out\n")


def test_others_that_outlive_their_command_are_ended_by_their_records(
    child: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "END_S", 0.3)
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    obeys, stubborn = child(f"{READY}{WAITS}"), child(f"{ignores}{READY}{WAITS}")
    for each in (obeys, stubborn):
        each.first_line()
    processes.end([obeys.record(), stubborn.record()])
    until(lambda: obeys.ended() == -signal.SIGTERM)
    until(lambda: stubborn.ended() == -signal.SIGKILL)
    stranger = processes.Record(os.getpid(), "another moment")
    processes.end([stranger])
    assert not stranger.is_running
