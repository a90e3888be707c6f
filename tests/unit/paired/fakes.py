"""A pair of factories whose links are fake: what they send to is a list, and it fails when told.

Written for asyncio; the blocking shell is generated from it, and meets real brokers elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import BatchMessage

from twinbus import SendAvailabilityPairedNamespaceOptions
from twinbus.aio import MessagingFactory, NamespaceManager
from twinbus.amqp.message import Message
from twinbus.amqp.sections import data_items
from twinbus.paired.aio import factory as factory_module
from twinbus.paired.aio import link

CONNECTION = (
    "Endpoint=sb://{}.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=secret="
)
LIMIT = 262_144


class Wire:
    """What was sent where. ``rule`` may raise, or await, for a send to a path."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Message]] = []
        self.transfers: list[tuple[str, str, int]] = []
        self.rule: Callable[[str, str], Any] = lambda namespace, path: None
        self.opened: list[str] = []

    def to(self, path: str) -> list[Message]:
        return [message for _, where, message in self.sent if where == path]

    def on(self, namespace: str) -> list[str]:
        return [path for host, path, _ in self.sent if host == namespace]


async def make_pair(
    monkeypatch: pytest.MonkeyPatch, queues: int = 3, factory: Any = None, **options: Any
) -> tuple[Wire, MessagingFactory, MessagingFactory, Any]:
    """Paired already: contoso, with contoso-backup as its secondary."""
    wire = Wire()

    async def fake_open(sender: Any, *_: Any, **__: Any) -> None:
        sender._running = True
        sender._max_message_size_on_link = sender._max_batch_size_on_link = LIMIT
        wire.opened.append(sender.entity_name)

    async def fake_send(sender: Any, message: Any, **_: Any) -> None:
        host = sender.fully_qualified_namespace.split(".")[0]
        outcome = wire.rule(host, sender.entity_name)
        if outcome is not None:
            await outcome
        raw = message._message
        items = [raw] if not isinstance(raw, list) else [BatchMessage(*raw)]
        encoded = bytes(encode_payload(bytearray(), items[0]))
        each = data_items(encoded) if isinstance(raw, list) else [encoded]
        wire.transfers.append((host, sender.entity_name, len(each)))
        wire.sent += [(host, sender.entity_name, Message.parse(bytes(one))) for one in each]

    async def fake_alive(sender: Any) -> bool:
        return True

    async def fake_backlog(options: Any, host: str, *note: Any) -> list[str]:
        name = host.split(".")[0]
        return [f"{name}/x-servicebus-transfer/{index}" for index in range(queues)]

    monkeypatch.setattr(link.SharedSender, "_open", fake_open)
    monkeypatch.setattr(link.SharedSender, "_send", fake_send)
    monkeypatch.setattr(link.SharedSender, "_is_alive", fake_alive)
    monkeypatch.setattr(factory_module, "prepare_backlog", fake_backlog)
    settings = {"retry_total": 0, **(factory or {})}
    make = MessagingFactory.from_connection_string
    primary = make(CONNECTION.format("contoso"), **settings)
    secondary = make(CONNECTION.format("contoso-backup"), retry_total=0)
    manager = NamespaceManager.from_connection_string(CONNECTION.format("contoso-backup"))
    values = {"failover_interval": timedelta(0), "backlog_queue_count": queues, **options}
    pairing = SendAvailabilityPairedNamespaceOptions(manager, secondary, **values)
    await primary.pair_namespace(pairing)
    await manager.close()
    return wire, primary, secondary, pairing


def raising(error: Exception, *, host: str = "contoso", path: str | None = None) -> Any:
    """A rule that fails sends to one namespace, or to one path of it."""

    def rule(namespace: str, entity: str) -> None:
        if namespace == host and path in (None, entity):
            raise error

    return rule
