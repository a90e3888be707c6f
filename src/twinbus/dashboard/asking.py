"""The namespaces, asked over HTTP once a second; and their faults.

Whatever an address answers, it is asked again a second later. It is *down* if nobody answers, and
*unreadable* if what is answered is not what a namespace says; each has its reason and its time.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from twinbus.auth.signature import Key
from twinbus.dashboard.readings import Reading, UnreadableError, parse, parse_faults

TIMEOUT_S: Final = 2.0
MOST_BYTES: Final = 64 << 20  # ten thousand entities with the longest of names take 45 MB
MOST_WORDS: Final = 300

UP: Final = "up"
DOWN: Final = "down"
UNREADABLE: Final = "unreadable"
UNKNOWN: Final = "unknown"  # not asked yet
# Nobody answers: the namespace is down. With _ODD somebody does, but not as a namespace would.
_SILENCE: Final = (aiohttp.ClientConnectionError, TimeoutError, OSError)
_ODD: Final = (aiohttp.ClientError, UnreadableError, UnicodeDecodeError)


class NotDoneError(Exception):
    """The namespace did not do it; the text is what it said."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class AskedAt:
    """A namespace, and how it is asked. ``admin`` answers also while its port is closed."""

    role: str
    key: Key
    admin: str = ""
    certificate: Path | None = None

    @property
    def base(self) -> str:
        return (self.admin or self.key.base).rstrip("/")


@dataclass(slots=True)
class FaultsShown:
    """``enabled`` is None while nobody knows, and ``problem`` says why."""

    enabled: bool | None = None
    problem: str = ""
    active: list[dict[str, Any]] = field(default_factory=list)
    kinds: list[dict[str, Any]] = field(default_factory=list)


class Watched:
    """One namespace: the last that it said, and since when it does or does not answer."""

    def __init__(self, address: AskedAt) -> None:
        self.address = address
        self.reading: Reading | None = None
        self.state = UNKNOWN
        self.error = ""
        self.since = time.time()
        self.faults = FaultsShown()
        self._tls: ssl.SSLContext | bool = True
        if address.base.startswith("https:"):
            self._tls = ssl.create_default_context(cafile=address.certificate)

    async def look(self, session: aiohttp.ClientSession) -> None:
        try:
            text = await self._ask(session, "GET", "/metrics")
            # In a thread: a large one takes a while, and the page is served meanwhile.
            reading = await asyncio.to_thread(parse, text, time.time())
        except _SILENCE as error:
            self._lost(DOWN, _reason(error))
        except (NotDoneError, *_ODD) as error:
            self._lost(UNREADABLE, _reason(error))
        except Exception:
            self._lost(UNREADABLE, "the dashboard failed to read it; its log says how")
            raise
        else:
            self.reading, self.error = reading, ""
            self._become(UP)
            await self._look_for_faults(session)

    def _lost(self, state: str, error: str) -> None:
        self.reading, self.error = None, error
        self.faults = FaultsShown()  # it may come back as another process, told otherwise
        self._become(state)

    def _become(self, state: str) -> None:
        if state != self.state:
            self.state, self.since = state, time.time()

    async def _look_for_faults(self, session: aiohttp.ClientSession) -> None:
        if self.faults.enabled is False:
            return
        try:
            active, kinds = parse_faults(await self._ask(session, "GET", "/$faults"))
        except NotDoneError as error:
            known = error.status in (403, 404)
            self.faults = FaultsShown(False) if known else FaultsShown(problem=_reason(error))
        except (*_SILENCE, *_ODD) as error:
            self.faults = FaultsShown(problem=_reason(error))
        else:
            self.faults = FaultsShown(True, "", active, kinds)

    async def start_fault(self, session: aiohttp.ClientSession, asked: dict[str, Any]) -> None:
        await self._ask(session, "POST", "/$faults", asked)

    async def clear_fault(self, session: aiohttp.ClientSession, fault_id: int | None) -> None:
        query = "" if fault_id is None else f"?id={fault_id}"
        await self._ask(session, "DELETE", f"/$faults{query}")

    async def _ask(
        self, session: aiohttp.ClientSession, method: str, path: str, body: Any = None
    ) -> str:
        async with session.request(
            method,
            self.address.base + path,
            json=body,
            headers={"Authorization": self.address.key.token()},
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            ssl=self._tls,
            allow_redirects=False,
        ) as answer:
            content = await _content(answer)
            if answer.status >= 300:
                text = content.decode(errors="replace")
                raise NotDoneError(_said(answer.status, text)[:MOST_WORDS], answer.status)
            return content.decode()


async def _content(answer: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        content += chunk
        if len(content) > MOST_BYTES:
            raise UnreadableError(f"it answers with more than {MOST_BYTES >> 20} MB")
    return bytes(content)


def _said(status: int, text: str) -> str:
    """What a refusal says, which is JSON from the faults and XML from what stands before them."""
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        found = re.search(r"<Detail>(?:SubCode=\d+\. )?(.*?)</Detail>", text, re.DOTALL)
        return found[1] if found else f"it answered with status {status}"


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"nobody listens at {error.host}:{error.port}"
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT_S:.0f} seconds"
    if isinstance(error, UnicodeDecodeError):
        return "it does not answer with text in UTF-8"
    return (str(error).splitlines() or [type(error).__name__])[0][:MOST_WORDS]
