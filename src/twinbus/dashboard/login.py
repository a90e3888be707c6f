"""Who may use the dashboard. Pure: told a request's headers, answers a decision.

Whoever has the address that was printed has a token. It is changed for a cookie at once, so that
it is in no address bar and no history, and the cookie is of no use to a page of another origin:

    Host     must be this machine's own name and our port: a name of somebody else's that leads
             here (DNS rebinding) is turned away before anything is looked at
    Cookie   HttpOnly, and SameSite=Strict
    Origin   must be ours on whatever changes something. Browsers tell it, and cannot be made to
             lie by a page; that it is another port of this machine is not good enough
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from enum import Enum, auto
from http.cookies import CookieError, SimpleCookie
from typing import Final

SAFE: Final = ("GET", "HEAD")
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Decision(Enum):
    LET_IN = auto()
    GIVE_COOKIE = auto()  # has the token: gets the cookie
    STRANGER = auto()  # has neither
    WRONG_HOST = auto()  # asks for us by a name that is not ours
    WRONG_ORIGIN = auto()  # a page of somebody else's asks


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What is known of a request."""

    method: str
    host: str
    origin: str
    cookies: str
    token: str


class Login:
    def __init__(self, port: int, token: str) -> None:
        names = ("127.0.0.1", "localhost", "[::1]")
        self._hosts = {f"{name}:{port}" for name in names}
        self._token = token
        # Browsers do not tell the cookies of two ports apart, so the name does.
        self._cookie_name = f"twinbus-{port}"
        self._session = secrets.token_urlsafe(24)

    def decide(self, facts: RequestFacts) -> Decision:
        if facts.host.lower() not in self._hosts:
            return Decision.WRONG_HOST
        if facts.method not in SAFE and facts.origin != f"http://{facts.host.lower()}":
            return Decision.WRONG_ORIGIN
        if facts.method in SAFE and facts.token and _same(facts.token, self._token):
            return Decision.GIVE_COOKIE
        return Decision.LET_IN if self._knows(facts.cookies) else Decision.STRANGER

    def _knows(self, cookies: str) -> bool:
        try:
            found = SimpleCookie(cookies).get(self._cookie_name)
        except CookieError:
            return False
        return found is not None and _same(found.value, self._session)

    @property
    def cookie(self) -> str:
        return f"{self._cookie_name}={self._session}; Path=/; HttpOnly; SameSite=Strict"


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())
