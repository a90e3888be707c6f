"""Shared access rules: a name, two keys, and what whoever holds one of them may do."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

ROOT_RULE: Final = "RootManageSharedAccessKey"


class Claim(StrEnum):
    MANAGE = "Manage"
    SEND = "Send"
    LISTEN = "Listen"


@dataclass(frozen=True)
class AccessRule:
    """Raises ValueError where it claims what no rule can."""

    name: str
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)
    claims: frozenset[Claim]

    def __post_init__(self) -> None:
        if Claim.MANAGE in self.claims and self.claims != frozenset(Claim):
            raise ValueError(
                f"the rule '{self.name}' claims Manage, so it must claim Send and Listen too"
            )
        if not self.claims:
            raise ValueError(f"the rule '{self.name}' claims nothing")


def new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


def root_rule(key: str) -> AccessRule:
    """The namespace's own rule, which may do everything."""
    return AccessRule(ROOT_RULE, key, key, frozenset(Claim))
