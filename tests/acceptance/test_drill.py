"""`twinbus drill`, with small numbers and real kills."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

import twinbus
from twinbus.broker.inspection import stores
from twinbus.lab.namespaces import LocalNamespace

TWINBUS = str(Path(sys.executable).with_name("twinbus"))
DAMAGE = "number 3000, which is no entity's: 1 session state of no use"


def run(*arguments: str, within_s: float = 800) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TWINBUS, "drill", *arguments],
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )


@pytest.mark.timeout(420)
def test_a_drill_loses_nothing_and_proves_it_from_two_sides(tmp_path: Path) -> None:
    done = run(
        *("--messages", "64", "--senders", "2", "--seed", "5", "--faults", "kill,throttle"),
        *("--json", "--keep", str(tmp_path / "kept")),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["attempted"] == 64
    assert result["acknowledged"] + result["refused"] == 64
    assert result["ok"] == result["acknowledged"] + result["recovered"]
    assert (result["lost"], result["unexpected"], result["waiting"]) == (0, 0, 0)
    assert result["dead_lettered"] == result["duplicated"] == 0
    assert result["diverted"] == result["moved"] > 0
    assert result["out_of_order"] > 0, "what was diverted comes after what was sent later"
    told = [moment["what"] for moment in result["timeline"]]
    assert "kill begins" in told
    assert "the backlog is empty" in told
    assert any("sends go to the backlog" in what for what in told)
    audit = result["audit"]
    assert audit["accepted"] == audit["ok"] == result["acknowledged"]
    assert audit["lost"] == 0
    causes = {cause: of["units"] for cause, of in result["bill"]["by_cause"].items()}
    assert causes["backlog_send"] == causes["home_send"] == result["diverted"]
    assert causes["ping"] > 0
    assert not leftovers(tmp_path / "kept")


@pytest.mark.damages
@pytest.mark.timeout(420)
def test_a_drill_that_leaves_a_file_that_does_not_hold_together_has_failed(tmp_path: Path) -> None:
    process = start("--messages", "16", "--faults", "throttle", "--keep", str(tmp_path))
    until_said(process, "the verdict")
    damage(tmp_path / "secondary")
    out, _ = process.communicate(timeout=780)
    assert process.returncode == 1, out
    assert f"a file does not hold together: the secondary namespace: {DAMAGE}" in out
    assert "FAILED: the file of a namespace does not hold together: " in out
    assert not leftovers(tmp_path)


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [TWINBUS, "drill", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def until_said(process: subprocess.Popen[str], words: str) -> str:
    """What it said up to the line with these words."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if words in line:
            return said
    raise AssertionError(f"it never said {words!r}: {said}")


def damage(folder: Path) -> None:
    """The namespace with its data there has the state of a session that is nobody's."""
    (path,) = stores(folder)
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as link:
        link.execute("INSERT INTO session VALUES (3000, 'x', x'00', 1)")


def leftovers(folder: Path) -> list[int]:
    """Processes that were started for a drill with its data there."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in part for part in process.info["cmdline"] or [])
    ]


def test_an_unknown_fault_is_a_sentence_and_nothing_is_left(tmp_path: Path) -> None:
    done = run("--faults", "earthquake", "--messages", "16", "--keep", str(tmp_path / "kept"))
    assert done.returncode == 2
    assert "earthquake" in done.stderr
    assert "there are kill, freeze, disable, throttle" in done.stderr
    assert "Traceback" not in done.stderr
    assert not leftovers(tmp_path / "kept")


def test_a_port_that_is_taken_is_a_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run("--primary-port", port, "--keep", str(tmp_path / "kept"))
    assert done.returncode == 2
    assert "the primary namespace did not start" in done.stderr
    assert port in done.stderr
    assert not leftovers(tmp_path / "kept")


@pytest.mark.timeout(420)
async def test_a_drill_on_namespaces_of_your_own_disables_and_cleans_up(tmp_path: Path) -> None:
    yours = [LocalNamespace(name, tmp_path / name) for name in ("one", "two")]
    try:
        await asyncio.gather(*(each.start() for each in yours))
        given = [
            *("--primary", yours[0].connection_string, "--secondary", yours[1].connection_string),
            *("--certificate", yours[0].certificate, "--certificate", yours[1].certificate),
        ]
        refused = await asyncio.to_thread(run, *given, "--faults", "kill,throttle")
        done = await asyncio.to_thread(run, *given, "--messages", "16", "--json")
        left = await asyncio.to_thread(entities_of, yours[0])
    finally:
        await asyncio.gather(*(each.kill() for each in yours))
    assert refused.returncode == 2
    assert "cannot be killed or broken" in refused.stderr
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["attempted"], result["lost"], result["unexpected"]) == (16, 0, 0)
    assert result["moved"] == result["diverted"] > 0
    assert "disable begins" in [moment["what"] for moment in result["timeline"]]
    assert left == [], "what the drill made on it is gone again"


def entities_of(namespace: LocalNamespace) -> list[str]:
    with twinbus.NamespaceManager.from_connection_string(
        namespace.connection_string, connection_verify=namespace.certificate
    ) as manager:
        queues = [each.name for each in manager.list_queues()]
        return queues + [each.name for each in manager.list_topics()]


def test_one_namespace_of_two_is_a_sentence() -> None:
    done = run(
        "--primary",
        "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b",
    )
    assert done.returncode == 2
    assert "give both --primary and --secondary" in done.stderr


@pytest.mark.timeout(300)
def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with start("--messages", "4000", "--keep", str(folder)) as process:
        until_said(process, "the primary is out")
        assert leftovers(folder)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 130, said
    assert "nothing is left running" in said
    ends = time.monotonic() + 20
    while [each for each in children if each.is_running() and each.status() != "zombie"]:
        assert time.monotonic() < ends
        time.sleep(0.1)
    assert not leftovers(folder)
