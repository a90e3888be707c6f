"""The command line as a whole: what every command has, and what no command does."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tests.blocks import ROOT
from typer.testing import CliRunner

from twinbus.cli import app
from twinbus.commands import terminal

TWINBUS = str(Path(sys.executable).with_name("twinbus"))
WIDE = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}
NOBODY = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=R;SharedAccessKey=a;UseDevelopmentEmulator=true"
)
PAIR = ("--primary", NOBODY, "--secondary", NOBODY)


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command, and the words that lead to it."""
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from walk(each, (*path, name))


COMMANDS = dict(walk(typer.main.get_command(app)))
# Those that do something; the others only lead to them.
LEAVES = [path for path, each in COMMANDS.items() if getattr(each, "invoke_without_command", True)]


def named(path: tuple[str, ...]) -> str:
    return " ".join(path) or "twinbus"


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: each for key, each in os.environ.items() if not key.startswith("TWINBUS_")}
    return subprocess.run(
        [TWINBUS, *words],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**clean, **WIDE, **environment},
    )


def options(path: tuple[str, ...]) -> set[str]:
    return {name for each in COMMANDS[path].params for name in each.opts}


@pytest.mark.parametrize("path", COMMANDS, ids=named)
def test_every_command_has_help_and_refuses_an_option_that_does_not_exist(
    path: tuple[str, ...],
) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], env=WIDE)
    assert shown.exit_code == 0, shown.output
    assert "Usage: " in shown.output
    refused = CliRunner().invoke(app, [*path, "--no-such-option"], env=WIDE)
    assert refused.exit_code == terminal.BAD_INPUT
    assert "No such option" in refused.output
    assert "Traceback" not in refused.output


@pytest.mark.parametrize("path", LEAVES, ids=named)
def test_the_help_of_a_command_has_an_example_with_options_that_exist(
    path: tuple[str, ...],
) -> None:
    help_text = " ".join((COMMANDS[path].help or "").split())
    examples = re.findall(r"Example: (.*?)(?= Example:|$)", help_text)
    assert examples
    for example in examples:
        words = shlex.split(example)
        assert words[: len(path) + 1] == ["twinbus", *path]
        given = {word for word in words if word.startswith("--")}
        assert given - options(path) - {"--help"} == set()


def test_every_option_says_what_it_is_for() -> None:
    silent = [
        (named(path), each.opts)
        for path, command in COMMANDS.items()
        for each in command.params
        if not each.help and not each.hidden
    ]
    assert silent == []


def test_whatever_prints_something_for_a_program_has_json() -> None:
    silent = [named(path) for path in LEAVES if path and "--json" not in options(path)]
    assert silent == ["dashboard"]  # it is for eyes; `twinbus status` has its address


def test_the_help_reads_like_a_table_of_contents() -> None:
    shown = CliRunner().invoke(app, ["--help"], env=WIDE).output
    headings = re.findall(r"─ ([A-Z].*?) ─", shown)
    assert headings == [
        "Options",
        "Namespaces of your own",
        "A pair, and its backlog",
        "What was done, and what it cost",
        "Trouble on purpose",
    ]
    assert terminal.EXIT_CODES in " ".join(shown.split())


def test_the_page_about_commands_lists_them_all_and_every_exit_code() -> None:
    page = (ROOT / "docs/commands.md").read_text()
    for path in LEAVES:
        assert f"`twinbus {' '.join(path)}" in page if path else True, path
    for code in (0, terminal.DOES_NOT_WORK, terminal.BAD_INPUT, terminal.STOPPED):
        assert f"| {code} |" in page
    variables = {each.envvar for command in COMMANDS.values() for each in command.params}
    for name in variables - {None}:
        assert f"`{name}`" in page


def test_the_version_is_printed() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, "twinbus 0.1.0\n")


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check"], "which namespace? Give --primary"),
        (["check", "--primary", "no", "--secondary", "no"], "--primary is not a connection string"),
        (["backlog", "--secondary", NOBODY, "--certificate", "/no"], "there is no file /no"),
        (["backlog", "redrive", "--secondary", NOBODY], "whose backlog?"),
        (["syphon", *PAIR, "--queue", "q", "--ttl", "long"], "ttl is 'long'"),
        (["syphon", *PAIR, "--queue", "q", "--http-port", "99999"], "--http-port"),
        (["cost"], "which ledger?"),
        (["cost", "--ledger", "/no"], "there is no ledger /no"),
        (["cost", "--forecast", "--tier", "gold"], "no tier 'gold'"),
        (["audit", "--ledger", "/no"], "there is no ledger /no"),
        (["trace"], "Missing argument"),
        (["drill", "--faults", "fire"], "--faults fire"),
        (["drill", "--messages", "0"], "at least 8 messages"),
        (["drill", "--primary", "no", "--secondary", "no"], "not a connection string"),
        (["fault", "start", "fire"], "which namespace? Give --namespace"),
        (["fault", "list", "--namespace", NOBODY, "--admin", "ftp://x"], "begins with http"),
        (["proxy", "--to", "nowhere"], "--to is 'nowhere'"),
        (["sim", "--plant", "tree"], "no plant 'tree'"),
        (["nothing"], "No such command"),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_a_mistake_is_a_sentence_and_exit_code_2(words: list[str], said: str) -> None:
    done = run(*words)
    assert done.returncode == terminal.BAD_INPUT, done.stderr
    assert said in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["check", *PAIR],
        ["backlog", "--secondary", NOBODY],
        ["backlog", "redrive", "--secondary", NOBODY, "--queue", "q"],
        ["syphon", *PAIR, "--once"],
        ["fault", "list", "--namespace", NOBODY],
    ],
    ids=lambda words: words[0],
)
def test_a_namespace_that_does_not_answer_is_a_sentence_and_exit_code_1(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == terminal.DOES_NOT_WORK, done.stderr
    assert "refused" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_ctrl_c_is_exit_code_130_and_no_traceback() -> None:
    process = subprocess.Popen(
        [TWINBUS, "sim", "--seeds", "1000000", "--workers", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == terminal.STOPPED
    assert "Traceback" not in said


# ---------------------------------------------------------------- for programs and shells


def test_a_program_can_read_where_a_broker_is(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [TWINBUS, "broker", "--port", "0", "--admin-port", "0", "--data", str(tmp_path), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or lines[-1] != "]\n":
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    (found,) = json.loads("".join(lines))
    assert found["namespace"] == "twinbus"
    assert found["connection_string"].startswith("Endpoint=sb://localhost:")
    assert found["health"].endswith("/health")
    assert (process.returncode, said) == (0, "")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("twinbus ", {"broker", "check", "syphon", "backlog", "cost", "drill", "fault"}),
        ("twinbus ba", {"backlog"}),
        ("twinbus fault start thr", {"throttling"}),
        ("twinbus sim --plant over", {"overtake"}),
        ("twinbus syphon --on", {"--once"}),
    ],
)
def test_a_shell_completes_commands_options_and_kinds_of_trouble(
    typed: str, offered: set[str]
) -> None:
    words = typed.split(" ")
    done = run(_TWINBUS_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(len(words) - 1))
    assert offered <= set(done.stdout.split()), done.stdout + done.stderr


def test_the_completion_can_be_shown_and_installed(tmp_path: Path) -> None:
    asked = {
        "HOME": str(tmp_path),
        "PATH": f"{Path(TWINBUS).parent}{os.pathsep}{os.environ['PATH']}",
    }
    for option in ("--show-completion", "--install-completion"):
        done = subprocess.run(
            ["bash", "-c", f"twinbus {option}; exit $?"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, **asked},
        )
        assert done.returncode == 0, done.stderr
        if option == "--show-completion":
            assert "_TWINBUS_COMPLETE=complete_bash" in done.stdout
    assert "twinbus" in (tmp_path / ".bashrc").read_text()
