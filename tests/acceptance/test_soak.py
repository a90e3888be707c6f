"""`twinbus soak`, short, with real processes and real kills."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.acceptance.test_drill import DAMAGE, TWINBUS, damage, leftovers, until_said

from twinbus.lab.child_sender import Journal
from twinbus.lab.verdict import Attempt


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [TWINBUS, "soak", "--keep", str(folder), "--senders", "2", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until_begun(folder: Path) -> None:
    ends = time.monotonic() + 60
    while not (folder / "sender-0.journal").exists():
        assert time.monotonic() < ends
        time.sleep(0.1)


@pytest.mark.damages
@pytest.mark.timeout(400)
def test_a_soak_ends_with_every_queue_empty_and_would_see_a_lost_message(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        *("--minutes", "0.5", "--seed", "7", "--json", "--faults"),
        "kill-primary,disk-full-secondary,kill-sender,kill-worker,cut-network",
    )
    # A sender was told that its message is safe, and there is no such message.
    planted = Attempt("7-0-planted", "orders", "sender 0", 0, acknowledged=True)
    until_begun(tmp_path)
    Journal(tmp_path / "sender-0.journal").attempted(planted)
    told = until_said(process, "all trouble is over")
    damage(tmp_path / "primary")
    out, _ = process.communicate(timeout=300)
    result = json.loads(out)
    assert process.returncode == 1, "one message is lost"
    assert result["findings"] == [f"the primary namespace: {DAMAGE}"]
    assert (result["lost"], result["ids"]["lost"]) == (1, ["7-0-planted"])
    assert result["empty"], result["left"]
    assert result["unexpected"] == result["waiting"] == result["dead_lettered"] == 0
    assert result["ok"] == result["acknowledged"] - 1 + result["recovered"] > 100
    assert result["troubles"] > 3
    assert "kill-primary for" in told
    assert not leftovers(tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_soak_that_is_stopped_leaves_nothing_running(tmp_path: Path, number: int) -> None:
    process = start(tmp_path, "--minutes", "5")
    until_begun(tmp_path)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "nothing is left running" in told
    assert "Traceback" not in told
    assert not leftovers(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--faults", "earthquake"], "'earthquake' is no trouble of a soak"),
        (["--minutes", "0"], "needs some minutes"),
        (["--keep", str(Path(__file__).parent)], "the folder is not empty"),
    ],
)
def test_what_cannot_be_held_is_a_sentence(arguments: list[str], sentence: str) -> None:
    done = subprocess.run(
        [TWINBUS, "soak", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
