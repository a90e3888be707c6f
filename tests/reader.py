"""Somebody who reads a page and does what it says: types its commands, runs its code.

Three things are changed on the way. A port is another one that is free, the same for the whole
page, so that a broker of yours is not in the way. A connection string with `...` in it stands for
the real one: of the broker that the page has started on that port, else of the pair of the tests.
`twinbus up` is asked for ports that are free, and the pair of the tests is out of sight then.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from tests.blocks import ROOT, Block, commands, sides
from tests.gateway import Gateway
from tests.ports import free_ports

PORTS = (5672, 5673, 5674, 5675, 5676, 5680, 5300, 5301, 5302, 5303, 9464)
COMMAND_S = 300
READY_S = 180
BIN = Path(sys.executable).parent

_PORT = re.compile(rf"(?<![\d.])({'|'.join(map(str, PORTS))})(?!\d)")
_SPARK = re.compile(r"twinbus (syphon|cost --ledger|audit|trace)")
_EXPORT = re.compile(r"^export(?: +\w+=(?:\"[^\"]*\"|\S+))+")
_SOURCED = re.compile(r"^set -a; \. ([^\s;]+)")
_UP = re.compile(r"(^|/)twinbus up\b")
_VARIABLE = re.compile(r"(\w+)=(\"[^\"]*\"|\S+)")
_ENDPOINT = re.compile(r"Endpoint=sb://(?:localhost:(\d+))?.*\.\.\.")


class Reader:
    """A page's folder, environment, processes and interpreter."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], gateway: Callable[[], Gateway]
    ) -> None:
        """``gateway`` gives what Spark runs in, when a page first needs it."""
        self.folder = folder
        self._gateway = gateway
        self.environment = {**os.environ, **environment}
        self.environment["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        self.environment["HOME"] = str(folder)
        self.environment.pop("TWINBUS_KEY", None)
        self.printed = ""  # by the block before
        self.unused: set[str] = set()  # programs that were shown, and no command has run yet
        self._ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self._started: list[tuple[str, subprocess.Popen[str]]] = []
        self._strings: dict[str, str] = {}  # of the brokers that were started, by port
        self._spark_is_used = False
        self._is_up = False
        self._python: subprocess.Popen[str] | None = None
        for name, target in ((".venv", Path(sys.prefix)), ("examples", ROOT / "examples")):
            (folder / name).symlink_to(target)

    # -- blocks

    def follow(self, block: Block) -> None:
        """Do what a block says, or raise."""
        text = self._with_ports(block.text)
        if block.title:
            (self.folder / block.title).write_text(text)
        match block.language:
            case "python" if block.title:
                self.unused.add(block.title)
            case "python":
                self.printed = self.python(text, block.place)
            case "sh":
                self.printed = "".join(self.shell(each) for each in commands(text))
            case "diff":
                before, after = sides(text)
                self.printed = self.python(before, block.place) + self.python(after, block.place)
            case "toml":
                tomllib.loads(text)
            case "yaml":
                yaml.safe_load(text)
            case "json":
                json.loads(text)
            case "text":
                self._compare(block)

    def _with_ports(self, text: str) -> str:
        return _PORT.sub(lambda found: str(self._ports[int(found[0])]), text)

    def _compare(self, block: Block) -> None:
        """What the page says was printed, line by line, in this order."""
        at = 0
        for line in filter(None, (each.strip() for each in block.text.splitlines())):
            pattern = re.escape(self._with_ports(line)).replace(r"\.\.\.", ".*")
            found = re.compile(pattern).search(self.printed, at)
            assert found, f"{block.place}: {line!r} is not in what was printed:\n{self.printed}"
            at = found.end()

    # -- Python

    def python(self, source: str, place: str) -> str:
        if "pyspark" in source:
            self._spark_is_used = True
            self.environment.update(self._gateway().environment)
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "interpreter.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=self.folder,
                env=self.environment,
            )
        process = self._python
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"source": source, "place": place}) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, f"{place} ended its interpreter"
        printed, error = json.loads(answer)
        assert not error, f"{place} raised\n{error}"
        return str(printed)

    # -- the shell

    def shell(self, command: str) -> str:
        """Run a command, and answer what it printed; start it, if it runs until it is stopped."""
        if _EXPORT.match(command):
            self._export(command)
            return ""
        if sourced := _SOURCED.match(command):
            self._source(self.folder / sourced[1])
            return ""
        if _UP.search(command):
            for name in [each for each in self.environment if each.startswith("TWINBUS_")]:
                del self.environment[name]
            command += " --port 0 --admin-port 0 --dashboard-port 0"
            self._is_up = True
        if not _SPARK.search(command):
            return self._start(command) if runs_on(command) else self._run(command)
        self.environment.update(self._gateway().environment)
        try:
            return self._start(command) if runs_on(command) else self._run(command)
        finally:
            self._gateway().free()

    def _run(self, command: str) -> str:
        self.unused -= set(shlex.split(command, comments=True))
        with subprocess.Popen(
            # The colon keeps bash from giving way to the command: some look for the shell above.
            ["bash", "-euo", "pipefail", "-c", f"{command}\n:"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self.folder,
            env=self.environment,
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=COMMAND_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # the command too, not its shell alone
                raise
        assert process.returncode == 0, f"{command}\nended with {process.returncode}:\n{said}"
        return said

    def _export(self, command: str) -> None:
        for name, quoted in _VARIABLE.findall(command):
            value = os.path.expandvars(quoted.strip('"'))
            placeholder = _ENDPOINT.search(value)
            if placeholder and placeholder[1]:
                value = self._strings[placeholder[1]]
            elif placeholder:
                value = self.environment[name]
            self.environment[name] = value

    def _source(self, file: Path) -> None:
        told = subprocess.run(
            ["bash", "-euc", f"set -a; . {file}; env -0"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
            check=True,
        ).stdout
        for each in filter(None, told.split("\0")):
            name, _, value = each.partition("=")
            self.environment[name] = value

    def _start(self, command: str) -> str:
        log = self.folder / f"process-{len(self._started)}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                shlex.split(command, comments=True),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                cwd=self.folder,
                env=self.environment,
            )
        self._started.append((command, process))
        end = time.monotonic() + READY_S
        while not _READY.search(log.read_text()):
            assert process.poll() is None, f"{command} ended:\n{log.read_text()}"
            assert time.monotonic() < end, f"{command} is not ready:\n{log.read_text()}"
            time.sleep(0.05)
        time.sleep(0.1)  # of several namespaces, the others say so within a moment
        for said in re.findall(r"^\S+: (Endpoint=.*)$", log.read_text(), re.MULTILINE):
            self._strings[said.split(";")[0].rpartition(":")[2]] = said
        if "syphon" in command:  # it has shown that it starts, and Spark is needed by others
            _interrupt(*self._started.pop())
        return log.read_text()

    # -- the end

    def stop(self) -> None:
        """Ctrl-C to what runs on, last first."""
        while self._started:
            _interrupt(*self._started.pop())

    def close(self) -> None:
        if self._python is not None:
            assert self._python.stdin is not None
            self._python.stdin.close()
            self._python.wait(60)
            assert self._python.stdout is not None
            self._python.stdout.close()
        if self._spark_is_used:
            self._gateway().free()
        if self._is_up:
            self._run("twinbus down")
        for _, process in self._started:
            process.kill()
            process.wait(30)


def _interrupt(command: str, process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    code = process.wait(60)
    assert code == 0, f"{command}: Ctrl-C ended it with {code}"


# What a process says when it is ready: a broker, a proxy, a syphon.
_READY = re.compile(r"^\S+: Endpoint=.*\n.*health at|leads to|the syphon has started", re.MULTILINE)


def runs_on(command: str) -> bool:
    """Whether it runs until somebody stops it."""
    words = shlex.split(command, comments=True)
    names = [Path(word).name for word in words[:2]]
    if names in (["twinbus", "broker"], ["twinbus", "proxy"]):
        return "--check" not in words
    return names == ["twinbus", "syphon"] and not {"--once", "--help"} & set(words)
