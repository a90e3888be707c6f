"""What a connection may do: the grants of the tokens that were put on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from twinbus.auth.access_rules import AccessRule, Claim
from twinbus.auth.tokens import AccessError, Grant, Token, resource_path, verify
from twinbus.budget import Budget


class Grants:
    """One connection's grants, by the path they were asked for.

    ``rules_of`` knows which rules may sign for a path, and ``clock`` the time in milliseconds.
    """

    def __init__(
        self,
        rules_of: Callable[[str], Sequence[AccessRule]],
        clock: Callable[[], int],
        budget: Budget,
    ) -> None:
        self._rules_of = rules_of
        self._clock = clock
        self._budget = budget
        self._grants: dict[str, Grant] = {}

    def allow(self, path: str, claim: Claim) -> bool:
        """Whether a token that has not expired gives this claim on this path."""
        now_s = self._clock() / 1000
        return any(grant.allows(path, claim, now_s) for grant in self._grants.values())

    def open(self, path: str) -> bool:
        """Whether a token that has not expired is good for this path, for whatever it be."""
        now_s = self._clock() / 1000
        return any(
            grant.covers(path) and now_s < grant.expires_s for grant in self._grants.values()
        )

    def add(self, resource: str, text: str) -> None:
        """Take a token that was put for this resource. Raises AccessError.

        Whether there is such an entity is for the link to find out: refusing the token would make
        clients speak of authentication.
        """
        audience = resource_path(resource)
        token = Token.parse(text)
        rules = self._rules_of(resource_path(token.resource))
        grant = verify(token, rules, self._clock() / 1000)
        if not grant.covers(audience):
            raise AccessError(f"the token is for '{grant.path}', not for '{audience}'")
        if audience not in self._grants:
            self._budget.tokens += len(audience)
        self._grants[audience] = replace(grant, path=audience)
