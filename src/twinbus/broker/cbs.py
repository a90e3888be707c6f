"""The node ``$cbs``, where a client puts the tokens that open links."""

from __future__ import annotations

import logging
from typing import Any

from twinbus.amqp.types import Int
from twinbus.auth.tokens import AccessError
from twinbus.broker.grants import Grants
from twinbus.broker.refusals import UnauthorizedError

log = logging.getLogger("twinbus.broker")

CBS = "$cbs"


def put_token(namespace: str, grants: Grants, values: dict[str, Any], body: Any) -> dict[str, Any]:
    """Take a token, if it is good; the answer's application properties."""
    try:
        status, text = grants.take(values, body)
    except AccessError as error:
        log.warning("token for '%s' refused: %s", namespace, error)
        status, text = UnauthorizedError.status, f"Unauthorized: {error}."
    return {"status-code": Int(status), "status-description": text}
