"""Whatever an address answers, the dashboard goes on asking it, and says that it cannot be read."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse

from twinbus.accounts.prices import read_tier
from twinbus.auth.signature import Key
from twinbus.dashboard import app
from twinbus.dashboard import asking as watch
from twinbus.dashboard.app import Dashboard
from twinbus.dashboard.asking import AskedAt

GOOD = """\
# TYPE twinbus_active_messages gauge
twinbus_active_messages{namespace="p",entity="orders"} 12
twinbus_connections{namespace="p"} 4
twinbus_links{namespace="p"} 5
"""
NO_FAULTS = '{"faults": [], "kinds": []}'
FAULT = {"id": 1, "kind": "throttling", "entity": None, "seconds_left": 3.0}


def http(
    body: str | bytes, status: str = "200 OK", *headers: str, length: int | None = None
) -> bytes:
    content = body if isinstance(body, bytes) else body.encode()
    size = len(content) if length is None else length
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {size}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


def faults(**changed: Any) -> bytes:
    return http(json.dumps({"faults": [{**FAULT, **changed}], "kinds": []}))


# What is odd wherever it is answered.
ODD: dict[str, bytes] = {
    "a page in HTML": http(
        "<!doctype html><title>Router</title><p>Sign in", "200 OK", "Content-Type: text/html"
    ),
    "nothing at all": http(""),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "not UTF-8": http(b"\xff\xfe\x00caf\xe9"),
    "less than it says": http(GOOD, length=len(GOOD) + 100),
    "an error": http("oops", "500 Internal Server Error"),
    "an error that is JSON of another shape": http("[1]", "503 Service Unavailable"),
    "an error as deep as the sea": http("[" * 100_000, "500 Internal Server Error"),
    "a redirect": http("", "302 Found", "Location: http://localhost:1/"),
    "a redirect to itself": http("", "307 Temporary Redirect", "Location: /metrics"),
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a header without end": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    "chunks that are none": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "what is not compressed": http("plain", "200 OK", "Content-Encoding: gzip"),
    "too much": http(b"x" * 300_000),
    "a closed connection": b"",
}
ODD_METRICS: dict[str, bytes] = {
    "NaN": http(GOOD.replace(" 12", " NaN")),
    "infinity": http(GOOD.replace(" 12", " +Inf")),
    "more than there can be": http(GOOD.replace(" 12", " 1e300")),
    "less than nothing": http(GOOD.replace(" 12", " -3")),
    "a word": http(GOOD.replace(" 12", " many")),
    "half of it": http(GOOD[: len(GOOD) // 2]),
    "all but the last digit": http(GOOD[:-2]),
    "somebody else's metrics": http("process_cpu_seconds_total 3.5\n"),
    "JSON": http(NO_FAULTS),
}
ODD_FAULTS: dict[str, bytes] = {
    "not JSON": http("faults: none"),
    "null": http("null"),
    "a list": http("[]"),
    "an object of another shape": http('{"status": "healthy"}'),
    "faults that are a number": http('{"faults": 3}'),
    "faults that are numbers": http('{"faults": [3]}'),
    "kinds that are a number": http('{"faults": [], "kinds": 3}'),
    "kinds without words": http('{"faults": [], "kinds": [{}]}'),
    "a time that is no number": http('{"faults": [{"id": 1, "kind": "a", "seconds_left": NaN}]}'),
    "a time without end": faults(seconds_left=1e300),
    "a time that is past": faults(seconds_left=-5),
    "an entity that is an object": faults(entity={}),
    "a kind that is null": faults(kind=None),
    "as deep as the sea": http("[" * 100_000),
}


class Namespace:
    """A server that answers as it is told to, byte by byte."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | None] = {}
        self.reset = False
        self.port = 0
        self.well()

    def well(self) -> None:
        self.answers = {"/metrics": http(GOOD), "/$faults": http(NO_FAULTS)}
        self.reset = False

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            answer = self.answers[head.split()[1].decode()]
            if self.reset:
                writer.get_extra_info("socket").setsockopt(
                    SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0)
                )
            elif answer is None:
                await asyncio.sleep(3_600)
            else:
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # who asked has heard enough
        finally:
            writer.close()

    def stop(self) -> None:
        self._server.close()


class Room:
    """The dashboard, which looks at two of them; the secondary behaves well."""

    def __init__(self, dashboard: Dashboard, primary: Namespace) -> None:
        self.dashboard = dashboard
        self.primary = primary

    def shown(self) -> dict[str, Any]:
        """As the page gets it, in JSON that a browser can read."""
        told: dict[str, Any] = json.loads(bytes(JSONResponse(self.dashboard.document()).body))
        return told

    def shows(self, role: str) -> dict[str, Any]:
        found: dict[str, Any]
        (found,) = [each for each in self.shown()["namespaces"] if each["role"] == role]
        return found

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(3_000):
            if condition():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"waited a minute for {what}: {self.shows('primary')}")

    async def asked_again(self) -> None:
        """Twice: the first may have begun before now."""
        for _ in range(2):
            before = self.dashboard.watched["secondary"].reading
            await self.until(
                lambda seen=before: self.dashboard.watched["secondary"].reading is not seen,  # type: ignore[misc]
                "the secondary to be asked again",
            )
        assert self.shows("secondary")["state"] == "up", self.shows("secondary")


@pytest.fixture
async def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Room]:
    monkeypatch.setattr(app, "EVERY_S", 0.02)
    monkeypatch.setattr(watch, "TIMEOUT_S", 5.0)  # a busy machine is no silent one
    monkeypatch.setattr(watch, "MOST_BYTES", 200_000)
    namespaces = {"primary": Namespace(), "secondary": Namespace()}
    for each in namespaces.values():
        await each.start()
    addresses = [
        AskedAt(role, Key(f"localhost:{each.port}", "root", "key", plain=True))
        for role, each in namespaces.items()
    ]
    dashboard = Dashboard(addresses[0], addresses[1], tmp_path, read_tier("standard"))
    async with dashboard.running(Starlette()):
        room = Room(dashboard, namespaces["primary"])
        await room.until(lambda: room.shows("primary")["state"] == "up", "the first reading")
        yield room
    for each in namespaces.values():
        each.stop()


async def survives(room: Room, state: str) -> None:
    """It says what is the matter and since when, goes on, and says that it is over."""
    before = time.time()
    await room.until(lambda: room.shows("primary")["state"] != "up", "it to be said")
    shown = room.shows("primary")
    assert (shown["state"], bool(shown["error"])) == (state, True)
    assert before - 1 <= shown["since"] <= time.time()
    assert room.shown()["headline"]["tone"] != "calm"
    assert room.dashboard.watched["primary"].reading is None, "nothing is shown as if it were known"
    await room.asked_again()
    assert room.shows("primary")["since"] == shown["since"]
    room.primary.well()
    await room.until(lambda: room.shows("primary")["state"] == "up", "it to be well again")
    assert room.shows("primary")["messages"] == 12
    assert room.shown()["failing"] == []


@pytest.mark.parametrize("name", [*ODD, *ODD_METRICS])
async def test_odd_metrics_are_said_and_outlived(room: Room, name: str) -> None:
    room.primary.answers["/metrics"] = {**ODD, **ODD_METRICS}[name]
    await survives(room, "down" if name == "a closed connection" else "unreadable")


async def test_a_namespace_that_says_nothing_is_down(room: Room) -> None:
    room.primary.answers["/metrics"] = None
    await survives(room, "down")


async def test_a_connection_that_is_reset_is_down(room: Room) -> None:
    room.primary.reset = True
    await survives(room, "down")


@pytest.mark.parametrize("name", [*ODD, *ODD_FAULTS, "silence"])
async def test_odd_faults_are_said_and_outlived_and_the_rest_is_read(room: Room, name: str) -> None:
    room.primary.answers["/$faults"] = {**ODD, **ODD_FAULTS, "silence": None}[name]
    await room.until(lambda: bool(room.shows("primary")["faults"]["problem"]), "it to be said")
    shown = room.shows("primary")
    assert (shown["state"], shown["messages"]) == ("up", 12)
    assert shown["faults"]["enabled"] is None
    await room.asked_again()
    room.primary.well()
    room.primary.answers["/$faults"] = faults()
    await room.until(
        lambda: room.shows("primary")["faults"]["active"] == [FAULT], "them to be read"
    )
    assert room.shows("primary")["faults"]["problem"] == ""


async def test_a_mistake_of_its_own_is_said_on_the_page_and_logged(
    room: Room, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Any:
        raise AttributeError("planted")

    with monkeypatch.context() as planted:
        planted.setattr(watch, "parse", fails)
        await room.until(lambda: room.shows("primary")["state"] == "unreadable", "it to be said")
        assert {each["entity"] for each in room.shown()["failing"]} <= {"primary", "secondary"}
        assert "AttributeError: planted" in room.shown()["failing"][0]["error"]
    assert "Traceback" in caplog.text
    await room.until(lambda: room.shown()["failing"] == [], "it to be well again")


async def test_a_ledger_that_cannot_be_read_is_said_and_outlived(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise AttributeError("planted")

    with monkeypatch.context() as planted:
        planted.setattr(room.dashboard.ledger, "refresh", fails)
        await room.until(lambda: bool(room.shown()["failing"]), "it to be said")
        assert room.shown()["failing"][0]["what"] == "ledger"
        await room.asked_again()
    await room.until(lambda: room.shown()["failing"] == [], "it to be well again")
