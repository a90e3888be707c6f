"""Answers to a client's requests, and which of its links each goes out on.

An answer waits until its client grants credit. A client that asks on and on and takes no answers is
closed before they fill our memory.
"""

from __future__ import annotations

import logging
from typing import Any

from twinbus.amqp.connection import Connection
from twinbus.amqp.link_endpoint import SENDER, Link
from twinbus.amqp.message import Properties, with_application_properties
from twinbus.amqp.performatives import Error
from twinbus.amqp.sections import VALUE, section
from twinbus.amqp.types import Int, encode
from twinbus.broker.client_links import Context, RequestLink
from twinbus.budget import MAX_ANSWERS, MAX_ANSWERS_OF_LINK, Budget

log = logging.getLogger("twinbus.broker")


class Replies:
    """The answers of one client. ``links`` is the client's own table of what its links are for."""

    def __init__(self, amqp: Connection, links: dict[Link, Context], budget: Budget) -> None:
        self._amqp = amqp
        self._links = links
        self._budget = budget

    def send(self, path: str, request: Properties, values: dict[str, Any], body: Any) -> None:
        """Answer a request to this node, as soon as the client takes it."""
        properties = Properties(correlation_id=request.message_id)
        values = {key: Int(value) if type(value) is int else value for key, value in values.items()}
        message = with_application_properties(properties.encoded(), values)
        message += section(VALUE, encode(body))
        candidates = self._listening(path)
        if not candidates:
            log.info("nobody listens for the answers of '%s'", path)
            return
        link, context = candidates[-1]  # the only one, most often
        for each, its in candidates:
            assert each.remote is not None
            address = getattr(each.remote.target, "address", None)
            if request.reply_to and address == request.reply_to:
                link, context = each, its
                break
        unread = self._budget.unsent + self._budget.answers
        if len(context.waiting) >= MAX_ANSWERS_OF_LINK or unread > MAX_ANSWERS:
            self._amqp.close(Error("amqp:resource-limit-exceeded", "answers are not being read"))
            return
        context.waiting.append(message)
        self._budget.answers += len(message)
        self.flush(link, context)

    def flush(self, link: Link, context: RequestLink) -> None:
        """Send what waits, as far as there is credit."""
        while context.waiting and link.can_send:
            message = context.waiting.popleft()
            self._budget.answers -= len(message)
            link.send(message, link.delivery_count.to_bytes(4), settled=True)

    def forget(self, context: RequestLink) -> None:
        """Its link is gone, and nobody will take what waits there."""
        self._budget.answers -= sum(map(len, context.waiting))
        context.waiting.clear()

    def _listening(self, path: str) -> list[tuple[Link, RequestLink]]:
        """The links on which the client waits for this node's answers."""
        return [
            (link, context)
            for link, context in self._links.items()
            if link.role == SENDER and isinstance(context, RequestLink) and context.path == path
        ]
