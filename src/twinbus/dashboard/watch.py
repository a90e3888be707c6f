"""The namespaces, asked over HTTP once a second; and their faults."""

from __future__ import annotations

import json
import re
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from twinbus.dashboard.readings import Reading, parse
from twinbus.signature import Key

TIMEOUT_S: Final = 2.0


class RefusedError(Exception):
    """The namespace did not do it; the text is what it said."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Address:
    """A namespace, and how it is asked. ``admin`` answers also while its port is closed."""

    role: str
    key: Key
    admin: str = ""
    certificate: Path | None = None

    @property
    def base(self) -> str:
        return (self.admin or self.key.base).rstrip("/")


@dataclass(slots=True)
class Faults:
    """``enabled`` is None while nobody knows."""

    enabled: bool | None = None
    active: list[dict[str, Any]] = field(default_factory=list)
    kinds: list[dict[str, Any]] = field(default_factory=list)


class Watched:
    """One namespace: the last that it said, and since when it does or does not answer."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.reading: Reading | None = None
        self.error = ""
        self.since = time.time()
        self.faults = Faults()
        self._asked = False
        self._tls: ssl.SSLContext | bool = True
        if address.base.startswith("https:"):
            self._tls = ssl.create_default_context(cafile=address.certificate)

    async def look(self, session: aiohttp.ClientSession) -> None:
        was = (self._asked, self.reading is not None)
        try:
            _, text = await self._ask(session, "GET", "/metrics")
            self.reading, self.error = parse(text, time.time()), ""
            await self._look_for_faults(session)
        except (aiohttp.ClientError, TimeoutError, OSError, RefusedError) as error:
            self.reading, self.error = None, _reason(error)
            self.faults = Faults()  # it may come back as another process, told otherwise
        self._asked = True
        if was != (True, self.reading is not None):
            self.since = time.time()

    async def _look_for_faults(self, session: aiohttp.ClientSession) -> None:
        if self.faults.enabled is False:
            return
        try:
            _, text = await self._ask(session, "GET", "/$faults")
        except RefusedError as error:
            self.faults = Faults(enabled=False if error.status in (403, 404) else None)
            return
        told = json.loads(text)
        self.faults = Faults(True, told["faults"], told.get("kinds", []))

    async def start_fault(self, session: aiohttp.ClientSession, asked: dict[str, Any]) -> None:
        await self._ask(session, "POST", "/$faults", asked)

    async def clear_fault(self, session: aiohttp.ClientSession, fault_id: int | None) -> None:
        query = "" if fault_id is None else f"?id={fault_id}"
        await self._ask(session, "DELETE", f"/$faults{query}")

    async def _ask(
        self, session: aiohttp.ClientSession, method: str, path: str, body: Any = None
    ) -> tuple[int, str]:
        async with session.request(
            method,
            self.address.base + path,
            json=body,
            headers={"Authorization": self.address.key.token()},
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            ssl=self._tls,
            allow_redirects=False,
        ) as answer:
            text = await answer.text()
            if answer.status >= 300:
                raise RefusedError(_said(answer.status, text), answer.status)
            return answer.status, text


def _said(status: int, text: str) -> str:
    """What a refusal says, which is JSON from the faults and XML from what stands before them."""
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        found = re.search(r"<Detail>(?:SubCode=\d+\. )?(.*?)</Detail>", text, re.DOTALL)
        return found[1] if found else f"it answered with status {status}"


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"nobody listens at {error.host}:{error.port}"
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT_S:.0f} seconds"
    return (str(error).splitlines() or [type(error).__name__])[0]
