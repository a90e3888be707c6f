"""What a connection may do: the grants of the tokens it has put to ``$cbs``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from twinbus.auth.access_rules import Claim
from twinbus.auth.tokens import AccessError, Grant, Token, resource_path, verify
from twinbus.broker.directory import Directory
from twinbus.broker.refusals import UnauthorizedError
from twinbus.budget import Budget


class Grants:
    """One connection's grants, by the path they were asked for."""

    def __init__(self, directory: Directory, clock: Callable[[], int], budget: Budget) -> None:
        self._directory = directory
        self._clock = clock
        self._budget = budget
        self._grants: dict[str, Grant] = {}

    def require(self, path: str, claim: Claim) -> None:
        """Raise unless a token that has not expired gives this claim on this path."""
        now_s = self._clock() / 1000
        if not any(grant.allows(path, claim, now_s) for grant in self._grants.values()):
            raise UnauthorizedError(
                f"Unauthorized access. '{claim}' claim is required for '{path}': put a token that "
                "has it, and has not expired, to $cbs first."
            )

    def require_any(self, path: str) -> None:
        """Raise unless a token that has not expired opens this path for something."""
        now_s = self._clock() / 1000
        for grant in self._grants.values():
            if grant.covers(path) and now_s < grant.expires_s:
                return
        raise UnauthorizedError(
            f"Unauthorized access to '{path}': put a token for it to $cbs first."
        )

    def take(self, values: dict[str, Any], body: Any) -> tuple[int, str]:
        """Answer a request to ``$cbs`` with a status and a sentence. Raises AccessError."""
        if values.get("operation") != "put-token":
            return 400, f"$cbs knows put-token only, not {values.get('operation')!r}."
        if not isinstance(body, str):
            return 400, "The token is not a string."
        audience = resource_path(str(values.get("name", "")))
        token = Token.parse(body)
        rules = self._directory.access_rules(resource_path(token.resource))
        grant = verify(token, rules, self._clock() / 1000)
        if not grant.covers(audience):
            raise AccessError(f"the token is for '{grant.path}', not for '{audience}'")
        # Whether the entity exists is for the link to find out: refusing the token would make
        # clients speak of authentication.
        if audience not in self._grants:
            self._budget.tokens += len(audience)
        self._grants[audience] = replace(grant, path=audience)
        return 202, "Accepted"
