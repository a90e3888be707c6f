"""The simulator: five hundred seeds hold, a seed is a run, and planted bugs are caught."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from twinbus.cli import app
from twinbus.lab.simulation import Bug, SeedReport, replay, run
from twinbus.lab.simulation.seed import GENTLE, ROUGH

SEEDS = 500
GROUPS = 5
WITHIN = 1_000  # a planted bug is caught by then
_DIGESTS = "from twinbus.lab.simulation import run; print([run(n).digest for n in range(12)])"


def told(report: SeedReport) -> str:
    """What somebody needs who sees this fail."""
    tail = "\n".join(report.trace[-40:])
    return f"{tail}\nseed {report.seed}: {report.breaches}\ntwinbus sim --seed {report.seed}"


# In groups, so that the workers of a test run share them.
@pytest.mark.parametrize("group", range(GROUPS))
def test_every_promise_holds_under_500_seeds(group: int) -> None:
    diverted = homecomings = recovered = 0
    for seed in range(group, SEEDS, GROUPS):
        report = run(seed)
        assert report.holds, told(report)
        diverted += report.diverted
        homecomings += report.homecomings
        recovered += report.verdict.recovered.count
    # A world in which nothing goes wrong would hold too, and show nothing.
    assert diverted > 100
    assert homecomings > 100
    assert recovered > 0


def test_the_seeds_have_every_kind_of_fault() -> None:
    plans = [run(seed).trace[0] for seed in range(60)]
    for kind in GENTLE + ROUGH:
        assert any(kind in plan for plan in plans), kind
    assert any("orderly=True" in plan for plan in plans)
    assert any("syphons=2" in plan for plan in plans)


def test_receivers_do_more_than_complete() -> None:
    traces = [line for seed in range(60) for line in run(seed).trace]
    for act in ("abandon", "complete", "dead-letter", "defer"):
        assert any(f"is asked to {act}" in line for line in traces), act


def test_some_is_scheduled_and_some_of_that_taken_back() -> None:
    traces = [line for seed in range(60) for line in run(seed).trace]
    assert any("no longer, which was cancelled" in line for line in traces)


def test_some_go_home_in_parts() -> None:
    # What is in parts has ids of its own in the backlog, and its letter's at home.
    traces = [line for seed in range(60) for line in run(seed).trace]
    assert any("partial: " in line for line in traces)


def test_a_seed_replays_exactly() -> None:
    for seed in range(10):
        first, second = run(seed), replay(seed)
        assert first.trace == second.trace
        assert first == second


def test_a_seed_is_the_same_run_in_every_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert outputs == {f"{[run(seed).digest for seed in range(12)]}\n"}


CAUGHT_AS = {
    Bug.SETTLE_FIRST: "lost:",
    Bug.FORGET_ALIAS: "its session is None",
    Bug.ACKNOWLEDGE_FIRST: "lost:",
    Bug.RESTORE_ANYWAY: "restored by a ping that it never took",
    Bug.OVERTAKE: "out of order:",
    Bug.ONE_TOO_MANY: "beyond the credit it was given",
    Bug.OUTLIVE: "outlived its time",
    Bug.CANCEL_NOTHING: "cancelled, and delivered:",
    Bug.LOSE_RECORD: "the ledger lacks",
    Bug.HURRY: "dead-lettered:",
}


@pytest.mark.parametrize("bug", [bug for bug in Bug if bug is not Bug.NONE])
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    reports = (run(seed, bug) for seed in range(WITHIN))
    caught = next(each for each in reports if CAUGHT_AS[bug] in "\n".join(each.breaches))
    assert run(caught.seed).holds  # it was the bug
    assert run(caught.seed, bug) == caught


def test_the_command_says_how_many_held() -> None:
    result = CliRunner().invoke(app, ["sim", "--seeds", "3", "--workers", "1", "--json"])
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert (told["seeds"], told["failed"], told["failures"]) == (3, 0, [])


def test_two_processes_come_to_the_same_as_one() -> None:
    def totals(workers: str) -> dict[str, object]:
        arguments = ["sim", "--from", "10", "--seeds", "30", "--workers", workers, "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "twinbus", *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        told: dict[str, object] = json.loads(done.stdout)
        del told["seconds"]
        return told

    assert totals("2") == totals("1")


def test_the_command_names_the_seed_that_failed_and_how_to_replay_it() -> None:
    arguments = ["sim", "--seeds", "30", "--workers", "1", "--plant", "settle-before-send"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "broke a promise: lost:" in result.stdout
    assert "replay it with: twinbus sim --seed" in result.stdout


def test_the_command_replays_a_seed() -> None:
    result = CliRunner().invoke(app, ["sim", "--seed", "7"])
    assert result.exit_code == 0
    assert f"seed 7, digest {run(7).digest}" in result.stdout


def test_an_unknown_plant_is_refused_with_a_sentence() -> None:
    result = CliRunner().invoke(app, ["sim", "--plant", "ivy"])
    assert result.exit_code == 2
    assert "there is no plant 'ivy'" in result.stderr
