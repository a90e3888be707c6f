"""The dashboard's pages over HTTP, for those whom `login` lets in."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import aiohttp
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twinbus.accounts.prices import Tier
from twinbus.dashboard.asking import AskedAt, NotDoneError, Watched
from twinbus.dashboard.chronicle import Chronicle
from twinbus.dashboard.follower import LedgerFollower
from twinbus.dashboard.login import HEADERS, Decision, Login, RequestFacts
from twinbus.dashboard.rates import Rates
from twinbus.dashboard.readings import UnreadableError
from twinbus.dashboard.running_bill import running_bill
from twinbus.dashboard.view import Document, LedgerState, document
from twinbus.health import Health

log = logging.getLogger("twinbus.dashboard")

EVERY_S: Final = 1.0
MAX_BODY: Final = 4_096
MAX_ID: Final = 200
# By path: what is in a page and draws it, and its title.
_PAGES: Final = {
    "/": ("overview", "Twinbus"),
    "/journey": ("journey", "A message's journey: Twinbus"),
}
_FILES: Final = files("twinbus.dashboard") / "static"
_KINDS: Final = {"css": "text/css", "js": "text/javascript"}
_TURNED_AWAY: Final = {
    Decision.WRONG_HOST: (421, "This address is not the dashboard's."),
    Decision.WRONG_ORIGIN: (403, "Another page may not do this."),
}


class Dashboard:
    """What is known, brought up to date once a second."""

    def __init__(
        self, primary: AskedAt, secondary: AskedAt, ledger: Path | None, tier: Tier
    ) -> None:
        self.watched = {each.role: Watched(each) for each in (primary, secondary)}
        self.health = Health(log)
        self.rates = Rates()
        self.chronicle = Chronicle(primary.key.host)
        self.ledger = LedgerFollower(ledger, self.chronicle)
        self._tier = tier
        self._bill: Document | None = None
        self._read_at = 0.0
        self.session: aiohttp.ClientSession  # while it is running

    @asynccontextmanager
    async def running(self, app: Starlette) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as self.session:
            jobs = [asyncio.create_task(job()) for job in (self._watch, self._read)]
            try:
                yield
            finally:
                for job in jobs:
                    job.cancel()
                for job in jobs:
                    with suppress(asyncio.CancelledError):
                        await job

    async def _watch(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.gather(*(self.look(each) for each in self.watched.values()))
            readings = [self.watched[role].reading for role in ("primary", "secondary")]
            self.health.attempt("rates", "the pair", self.rates.add, time.time(), *readings)
            await asyncio.sleep(max(0.05, EVERY_S - (time.monotonic() - began)))

    async def look(self, watched: Watched) -> None:
        role = watched.address.role
        await self.health.attempt_soon("watching", role, watched.look(self.session))

    async def _read(self) -> None:
        while self.ledger.root is not None:
            where = self.ledger.root.name
            await self.health.attempt_soon("ledger", where, self._read_once())
            await asyncio.sleep(EVERY_S)

    async def _read_once(self) -> None:
        """In a thread: a ledger may be large when it is first read."""
        now = time.time()
        count = await asyncio.to_thread(self.ledger.refresh, now)
        if count or self._bill is None:
            month = f"{datetime.fromtimestamp(now, UTC):%Y-%m}"
            self._bill = running_bill(self.chronicle.lines, month, self._tier)
        self._read_at = now

    def document(self) -> Document:
        return document(
            time.time(),
            self.watched["primary"],
            self.watched["secondary"],
            self.chronicle,
            self.rates,
            self._bill,
            LedgerState(self.ledger.problem, self._read_at, self.ledger.torn),
            [each.as_json() for each in self.health.failures],
        )


def dashboard_app(dashboard: Dashboard, login: Login) -> ASGIApp:
    """All pages, for those whom ``login`` lets in."""
    pages = _Pages(dashboard)
    routes = [
        *(Route(path, _page(path, *about)) for path, about in _PAGES.items()),
        *(Route(f"/static/{name}", _file(name)) for name in _static()),
        Route("/api/now", pages.now),
        Route("/api/journey", pages.journey),
        Route("/api/faults", pages.start_fault, methods=["POST"]),
        Route("/api/faults/clear", pages.clear_fault, methods=["POST"]),
    ]
    return Guarded(Starlette(routes=routes, lifespan=dashboard.running), login)


class _Pages:
    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    async def now(self, request: Request) -> Response:
        return JSONResponse(self._dashboard.document())

    async def journey(self, request: Request) -> Response:
        message_id = request.query_params.get("id", "").strip()
        ledger = self._dashboard.ledger
        if not message_id or len(message_id) > MAX_ID:
            return _refused(400, "Give a message's id.")
        if ledger.problem:
            return _refused(404, ledger.problem)
        found = await asyncio.to_thread(ledger.journey, message_id)
        steps = [
            {**asdict(step), "at": step.at.timestamp(), "sentence": step.sentence}
            for step in found.steps
        ]
        told = {"id": message_id, "looked_at": found.looked_at, "files": found.files}
        return JSONResponse({**told, "steps": steps})

    async def start_fault(self, request: Request) -> Response:
        async def start(watched: Watched, asked: Document) -> None:
            wanted = {name: asked.get(name) for name in ("kind", "entity", "seconds")}
            await watched.start_fault(self._dashboard.session, wanted)

        return await self._changed(request, start)

    async def clear_fault(self, request: Request) -> Response:
        async def clear(watched: Watched, asked: Document) -> None:
            fault_id = asked.get("id")
            known = fault_id if isinstance(fault_id, int) else None
            await watched.clear_fault(self._dashboard.session, known)

        return await self._changed(request, clear)

    async def _changed(self, request: Request, change: Callable[..., Any]) -> Response:
        asked = await _asked(request)
        watched = self._dashboard.watched.get(str((asked or {}).get("namespace")))
        if asked is None or watched is None:
            return _refused(400, "Say in JSON which namespace, as primary.")
        try:
            await change(watched, asked)
            await self._dashboard.look(watched)
        except NotDoneError as error:
            return _refused(error.status, str(error))
        except (UnreadableError, UnicodeDecodeError):
            return _refused(502, f"What the {watched.address.role} answered cannot be read.")
        except (aiohttp.ClientError, TimeoutError, OSError):
            return _refused(502, f"The {watched.address.role} does not answer.")
        return JSONResponse(self._dashboard.document())


async def _asked(request: Request) -> Document | None:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            return None
    try:
        asked = json.loads(body)
    except ValueError:
        return None
    return asked if isinstance(asked, dict) else None


def _refused(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status)


def _static() -> list[str]:
    names = [each.name for each in _FILES.iterdir()]
    return [name for name in names if name.endswith((".js", ".css"))]


def _page(path: str, name: str, title: str) -> Callable[[Request], Response]:
    """What all pages have around what this one has."""
    text = (_FILES / "layout.html").read_text()
    link = f'<a href="{path}">'
    for place, filling in (
        (link, f'{link[:-1]} aria-current="page">'),
        ("{{title}}", title),
        ("{{script}}", f"{name}.js"),
        ("{{content}}", (_FILES / f"{name}.html").read_text()),
    ):
        text = text.replace(place, filling)
    return _served(text.encode(), "text/html")


def _file(name: str) -> Callable[[Request], Response]:
    return _served((_FILES / name).read_bytes(), _KINDS[name.rpartition(".")[2]])


def _served(content: bytes, kind: str) -> Callable[[Request], Response]:
    def served(request: Request) -> Response:
        return Response(content, media_type=kind)

    return served


class Guarded:
    """Serves those whom ``login`` lets in, and puts its headers on every answer."""

    def __init__(self, app: ASGIApp, login: Login) -> None:
        self._app = app
        self._login = login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        request = Request(scope)
        decision = self._login.decide(_facts(request))
        app = self._app if decision is Decision.LET_IN else self._answer(decision, request)
        await app(scope, receive, _with_headers(send))

    def _answer(self, decision: Decision, request: Request) -> ASGIApp:
        if decision is Decision.GIVE_COOKIE:
            answer = RedirectResponse(request.url.path, 303)
            answer.headers["Set-Cookie"] = self._login.cookie
            return answer
        if decision is Decision.STRANGER and request.url.path in _PAGES:
            return HTMLResponse((_FILES / "stranger.html").read_text(), 401)
        return _refused(*_TURNED_AWAY.get(decision, (401, "Open the address that was printed.")))


def _facts(request: Request) -> RequestFacts:
    headers = request.headers
    return RequestFacts(
        request.method,
        headers.get("host", ""),
        headers.get("origin", ""),
        headers.get("cookie", ""),
        request.query_params.get("token", ""),
    )


def _with_headers(send: Send) -> Send:
    extra = [(name.lower().encode(), text.encode()) for name, text in HEADERS.items()]

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *extra]
        await send(message)

    return sent
