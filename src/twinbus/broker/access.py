"""Who may come in: shared access signatures, and the claims they carry.

A token names a rule and a resource, and is signed with the rule's key. It opens the resource and
whatever lies below it, for the claims of the rule, until it expires. Keys never leave this module
in an error's text.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote_plus, urlsplit

from twinbus.broker.descriptions import AccessRule, Claim

ROOT_RULE = "RootManageSharedAccessKey"


class AccessError(Exception):
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


def signature(key: str, signed: str) -> str:
    digest = hmac.new(key.encode(), signed.encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def verify(token: Token, rules: list[AccessRule], now_s: float) -> Grant:
    """The grant of a token that one of these rules signed. Raises AccessError otherwise."""
    named = [rule for rule in rules if rule.name == token.rule]
    if not named:
        raise AccessError(f"there is no rule '{token.rule}' here")
    for rule in named:
        if any(_signed_with(key, token) for key in (rule.primary_key, rule.secondary_key)):
            if not now_s < token.expires_s:  # so that "not a number" is over, too
                raise AccessError(f"the token of the rule '{rule.name}' has expired")
            return Grant(resource_path(token.resource), rule.claims, token.expires_s)
    raise AccessError(f"the token is not signed with a key of the rule '{token.rule}'")


def _signed_with(key: str, token: Token) -> bool:
    return hmac.compare_digest(signature(key, token.signed).encode(), token.signature.encode())


def new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


def root_rule(key: str) -> AccessRule:
    """The namespace's own rule, which may do everything."""
    return AccessRule(ROOT_RULE, key, key, frozenset(Claim))
