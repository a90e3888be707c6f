"""The node ``$cbs``, where a client puts the tokens that open links."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from twinbus.amqp.types import Int
from twinbus.auth.access_rules import Claim
from twinbus.auth.grants import Grants
from twinbus.auth.tokens import AccessError
from twinbus.broker.directory import Directory
from twinbus.broker.refusals import ArgumentError, UnauthorizedError
from twinbus.budget import Budget

log = logging.getLogger("twinbus.broker")

CBS = "$cbs"


class Cbs:
    """One client's tokens, and what it may not do without them."""

    def __init__(self, directory: Directory, clock: Callable[[], int], budget: Budget) -> None:
        self._namespace = directory.name
        self._grants = Grants(directory.access_rules, clock, budget)

    def require(self, path: str, claim: Claim) -> None:
        """Raise unless a token that has not expired gives this claim on this path."""
        if not self._grants.allow(path, claim):
            raise UnauthorizedError(
                f"Unauthorized access. '{claim}' claim is required for '{path}': put a token that "
                "has it, and has not expired, to $cbs first."
            )

    def require_any(self, path: str) -> None:
        """Raise unless a token that has not expired opens this path for something."""
        if not self._grants.open(path):
            raise UnauthorizedError(
                f"Unauthorized access to '{path}': put a token for it to $cbs first."
            )

    def put_token(self, values: dict[str, Any], body: Any) -> dict[str, Any]:
        """Take a token, if it is good; the answer's application properties."""
        status, text = 202, "Accepted"
        if values.get("operation") != "put-token":
            status = ArgumentError.status
            text = f"$cbs knows put-token only, not {values.get('operation')!r}."
        elif not isinstance(body, str):
            status, text = ArgumentError.status, "The token is not a string."
        else:
            try:
                self._grants.add(str(values.get("name", "")), body)
            except AccessError as error:
                log.warning("token for '%s' refused: %s", self._namespace, error)
                status, text = UnauthorizedError.status, f"Unauthorized: {error}."
        return {"status-code": Int(status), "status-description": text}
