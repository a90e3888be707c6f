"""The SDK's administration client, in both of its kinds behind one face, as `tests.worlds` does it
for messaging; and plain requests to the same API, for what the SDK would never send."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncClient
from azure.servicebus.management import ServiceBusAdministrationClient
from harness.brokers import BrokerProcess
from harness.raw import parse_connection_string, sas_token
from tests.worlds import NO_KEEP_ALIVE, World

KINDS = ("asyncio", "blocking")


def certificate(broker: BrokerProcess) -> Path:
    """What a client has to trust."""
    return broker.folder / "data" / "certificate.pem"


class Administrator:
    """One kind of administration client. Every method of the SDK's client is awaited; a list comes
    whole, however many pages it had."""

    def __init__(
        self, kind: str, broker: BrokerProcess, connection_string: str = "", **options: Any
    ) -> None:
        self.kind = kind
        make: Any = AsyncClient if kind == "asyncio" else ServiceBusAdministrationClient
        self.client = make.from_connection_string(
            connection_string or broker.connection_string,
            connection_verify=str(certificate(broker)),
            **{"retry_total": 0, **options},
        )

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.kind == "asyncio":
                called = method(*args, **kwargs)
                return [item async for item in called] if _is_list(name) else await called
            return await asyncio.to_thread(_call, method, *args, **kwargs)

        return call

    async def close(self) -> None:
        if self.kind == "asyncio":
            await self.client.close()
        else:
            await asyncio.to_thread(self.client.close)


def _is_list(name: str) -> bool:
    return name.startswith("list_")


def _call(method: Any, *args: Any, **kwargs: Any) -> Any:
    called = method(*args, **kwargs)
    return list(called) if _is_list(method.__name__) else called


# --- topics and subscriptions of the messaging client -------------------------------------


def topic_sender(world: World, topic: str) -> Any:
    return world._get(world.client.get_topic_sender, topic, **NO_KEEP_ALIVE)


def subscription_receiver(world: World, topic: str, subscription: str, **kwargs: Any) -> Any:
    return world._get(world.client.get_subscription_receiver, topic, subscription, **kwargs)


async def publish(world: World, topic: str, *messages: Any) -> None:
    async with topic_sender(world, topic) as sender:
        for message in messages:
            await sender.send_messages(message)


# --- without the SDK ----------------------------------------------------------------------


@dataclass
class Answer:
    status: int
    text: str
    headers: Mapping[str, str]


def admin_port(broker: BrokerProcess) -> int:
    """The port for plain http, which the broker tells in its log once it is ready."""
    end = time.monotonic() + 10
    while not (found := re.findall(r"health at http://localhost:(\d+)/", broker.log())):
        assert time.monotonic() < end, broker.log()
        time.sleep(0.01)
    return int(found[-1])


def token(broker: BrokerProcess, path: str = "", rule: str = "", key: str = "") -> str:
    parts = parse_connection_string(broker.connection_string)
    return sas_token(
        f"http://localhost:{broker.port}/{path}",
        rule or parts["SharedAccessKeyName"],
        key or parts["SharedAccessKey"],
    )


def ask(
    broker: BrokerProcess,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    plain: bool = False,
    **headers: str,
) -> Answer:
    """One request, with a good token unless another is given; an empty one is left out.

    ``plain`` is http on the admin port; else it is https on the port that AMQP has too.
    """
    headers.setdefault("Authorization", token(broker))
    if not headers["Authorization"]:
        del headers["Authorization"]
    base = f"https://localhost:{broker.port}"
    if plain:
        base = f"http://localhost:{admin_port(broker)}"
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"{base}/{path}", body, sent, method=method)
    context = None if plain else ssl.create_default_context(cafile=str(certificate(broker)))
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return Answer(answer.status, answer.read().decode(), answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read().decode(), dict(error.headers))
