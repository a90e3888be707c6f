"""`twinbus dashboard` alone: who may use it, and what it refuses."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from harness.brokers import KEY, BrokerProcess

TWINBUS = str(Path(sys.executable).with_name("twinbus"))
ENVIRONMENT = {name: text for name, text in os.environ.items() if not name.startswith("TWINBUS_")}
QUEUES: dict[str, dict[str, Any]] = {"orders": {}}


class Visitor:
    """Somebody who speaks HTTP, and says what a browser would not."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname == "127.0.0.1"
        self.port = parts.port or 0
        self.token = parts.query.partition("=")[2]
        self.host = f"127.0.0.1:{self.port}"

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        text = None if body is None else json.dumps(body)
        link.request(method, path, text, {"Host": self.host, **headers})
        answer = link.getresponse()
        told = answer.status, dict(answer.getheaders()), answer.read().decode()
        link.close()
        return told

    def enter(self) -> str:
        status, headers, _ = self.ask("GET", f"/?token={self.token}")
        assert (status, headers["location"]) == (303, "/")
        return headers["set-cookie"].partition(";")[0]


@pytest.fixture(scope="module")
def visitor(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    """One broker is both namespaces: nothing is sent, only looked at."""
    text = broker.connection_string
    folder = tmp_path_factory.mktemp("dashboard")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [TWINBUS, "dashboard", "--port", "0"],
            cwd=folder,
            env={**ENVIRONMENT, "TWINBUS_PRIMARY": text, "TWINBUS_SECONDARY": text},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    yield Visitor(process.stdout.readline().split(": ", 1)[1].strip())
    process.terminate()
    assert process.wait(20) == 0
    process.stdout.close()
    assert (folder / "log").read_text() == ""


def test_a_stranger_sees_nothing(visitor: Visitor) -> None:
    for path in ("/", "/journey", "/api/now", "/api/journey?id=x", "/static/overview.js"):
        status, _, text = visitor.ask("GET", path)
        assert status == 401, path
        assert "localhost" not in text
    assert visitor.ask("GET", "/?token=guess")[0] == 401
    assert visitor.ask("GET", "/api/now", Cookie=f"twinbus-{visitor.port}=guess")[0] == 401


def test_who_has_the_token_sees_the_namespaces_and_no_key(visitor: Visitor) -> None:
    cookie = visitor.enter()
    status, headers, text = visitor.ask("GET", "/api/now", Cookie=cookie)
    assert status == 200
    assert KEY not in text
    assert {each["role"] for each in json.loads(text)["namespaces"]} == {"primary", "secondary"}
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"


def test_each_page_is_whole_and_says_which_it_is(visitor: Visitor) -> None:
    cookie = visitor.enter()
    for path, title, script in (
        ("/", "Twinbus", "overview.js"),
        ("/journey", "A message's journey: Twinbus", "journey.js"),
    ):
        status, headers, page = visitor.ask("GET", path, Cookie=cookie)
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert f"<title>{title}</title>" in page
        assert f'src="/static/{script}"' in page
        assert visitor.ask("GET", f"/static/{script}", Cookie=cookie)[0] == 200
        assert page.count("<main") == page.count("</html>") == 1
        assert re.findall('href="([^"]*)" aria-current="page"', page) == [path]
        assert "{{" not in page


def test_a_name_that_only_leads_here_is_turned_away(visitor: Visitor) -> None:
    cookie = visitor.enter()
    for host in ("evil.example.net", f"evil.example.net:{visitor.port}"):
        status, _, text = visitor.ask("GET", "/api/now", Host=host, Cookie=cookie)
        assert status == 421
        assert "namespaces" not in text
        assert visitor.ask("GET", f"/?token={visitor.token}", Host=host)[0] == 421


def test_another_page_changes_nothing(visitor: Visitor) -> None:
    cookie = visitor.enter()
    fault = {"namespace": "primary", "kind": "unreachable", "seconds": 5}
    for origin in ({}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:3000"}):
        status, _, text = visitor.ask("POST", "/api/faults", fault, Cookie=cookie, **origin)
        assert (status, json.loads(text)["error"]) == (403, "Another page may not do this.")


def test_faults_are_the_brokers_to_allow(visitor: Visitor) -> None:
    ours = {"Cookie": visitor.enter(), "Origin": f"http://{visitor.host}"}
    fault = {"namespace": "primary", "kind": "unreachable", "seconds": 5}
    status, _, text = visitor.ask("POST", "/api/faults", fault, **ours)
    assert status == 403
    assert "not enabled" in json.loads(text)["error"]


@pytest.mark.parametrize("body", [None, [], "x", {"namespace": "third"}, {"x": "y" * 5_000}])
def test_nonsense_is_a_sentence(visitor: Visitor, body: Any) -> None:
    ours = {"Cookie": visitor.enter(), "Origin": f"http://{visitor.host}"}
    for path in ("/api/faults", "/api/faults/clear"):
        status, _, text = visitor.ask("POST", path, body, **ours)
        assert (status, "which namespace" in json.loads(text)["error"]) == (400, True)
    assert visitor.ask("GET", "/api/journey?id=", Cookie=ours["Cookie"])[0] == 400
    assert visitor.ask("GET", "/static/../app.py", Cookie=ours["Cookie"])[0] == 404


# ---------------------------------------------------------------- what the command refuses

GOOD = "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=c2VjcmV0"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "which primary? Give --primary"),
        (["--primary", GOOD], "which secondary?"),
        (["--primary", "rubbish", "--secondary", GOOD], "--primary is not a connection string"),
        (["--primary", GOOD, "--secondary", GOOD, "--tier", "gold"], "no tier 'gold'"),
        (["--primary", GOOD, "--secondary", GOOD, "--ledger", "s3://x"], "a folder of this"),
        (["--primary", GOOD, "--secondary", GOOD, "--certificate", "no"], "there is no file no"),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path: Path, arguments: list[str], words: str) -> None:
    assert words in refused(tmp_path, *arguments)


def test_a_port_that_is_taken_is_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(tmp_path, "--primary", GOOD, "--secondary", GOOD, "--port", str(port))
    assert f"cannot listen on 127.0.0.1:{port}" in said


def refused(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [TWINBUS, "dashboard", "--port", "0", *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert "c2VjcmV0" not in done.stderr
    return done.stderr
