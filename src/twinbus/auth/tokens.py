"""Tokens: shared access signatures taken apart, and what they give.

A token names a rule and a resource, and is signed with the rule's key. It opens the resource and
whatever lies below it, for the claims of the rule, until it expires. Keys never leave this module
in an error's text.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote_plus, urlsplit

from twinbus.auth.access_rules import AccessRule, Claim
from twinbus.auth.signature import signed_with
from twinbus.errors import TwinbusError


class AccessError(TwinbusError):
    """The token opens nothing; the text says why."""


@dataclass(frozen=True, slots=True)
class Token:
    """A shared access signature, taken apart."""

    resource: str
    signature: str
    expires_s: float
    rule: str
    signed: str

    @classmethod
    def parse(cls, text: str) -> Token:
        kind, _, rest = text.strip().partition(" ")
        if kind.lower() != "sharedaccesssignature":
            raise AccessError("the token is not a SharedAccessSignature")
        try:
            raw = dict(part.split("=", 1) for part in rest.split("&"))
            values = {key: parse_qs(f"v={value}")["v"][0] for key, value in raw.items()}
            return cls(
                resource=values["sr"],
                signature=values["sig"],
                expires_s=float(values["se"]),
                rule=values["skn"],
                signed=f"{raw['sr']}\n{raw['se']}",
            )
        except (KeyError, ValueError, IndexError) as error:
            raise AccessError("the token lacks one of sr, sig, se and skn") from error


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token gives: these claims, on this path and below, until then."""

    path: str
    claims: frozenset[Claim]
    expires_s: float

    def allows(self, path: str, claim: Claim, now_s: float) -> bool:
        return claim in self.claims and now_s < self.expires_s and self.covers(path)

    def covers(self, path: str) -> bool:
        wanted = path.lower()
        return not self.path or wanted == self.path or wanted.startswith(self.path + "/")


def resource_path(resource: str) -> str:
    """The entity path in a resource's address, lower case, without slashes at its ends.

    The JavaScript SDK signs `host:port` for forwarding: no path has a colon, so that is a host.
    """
    if "://" not in resource and ":" in resource.partition("/")[0]:
        resource = f"sb://{resource}"
    try:
        path = urlsplit(resource).path if "://" in resource else resource
    except ValueError as error:
        raise AccessError("the resource is not an address") from error
    return unquote_plus(path).strip("/").lower()


def verify(token: Token, rules: Sequence[AccessRule], now_s: float) -> Grant:
    """The grant of a token that one of these rules signed. Raises AccessError otherwise."""
    named = [rule for rule in rules if rule.name == token.rule]
    if not named:
        raise AccessError(f"there is no rule '{token.rule}' here")
    for rule in named:
        if any(_has_signed(key, token) for key in (rule.primary_key, rule.secondary_key)):
            if not now_s < token.expires_s:  # so that "not a number" is over, too
                raise AccessError(f"the token of the rule '{rule.name}' has expired")
            return Grant(resource_path(token.resource), rule.claims, token.expires_s)
    raise AccessError(f"the token is not signed with a key of the rule '{token.rule}'")


def _has_signed(key: str, token: Token) -> bool:
    return hmac.compare_digest(signed_with(key, token.signed).encode(), token.signature.encode())
