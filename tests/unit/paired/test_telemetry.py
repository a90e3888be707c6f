"""Events as OpenTelemetry metrics, and what is sent elsewhere as spans."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError
from tests.unit.paired.fakes import make_pair, raising

from twinbus.paired import telemetry
from twinbus.paired.events import Diverted, MessagesDiverted, Pinged, Restored

WHERE: dict[str, Any] = {"at": 0.0, "namespace": "contoso", "entity": "orders"}


class Instrument:
    def __init__(self) -> None:
        self.added: list[tuple[int, dict[str, Any]]] = []

    def add(self, amount: int, attributes: dict[str, Any]) -> None:
        self.added.append((amount, attributes))


def test_events_become_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    instruments = {name: Instrument() for name in ("_EVENTS", "_MESSAGES", "_BYTES", "_OUT")}
    for name, instrument in instruments.items():
        monkeypatch.setattr(telemetry, name, instrument)
    announcer = telemetry.Announcer()
    announcer.announce(Diverted(**WHERE))
    announcer.announce(MessagesDiverted(**WHERE, queue="q", messages=3, bytes=30))
    announcer.announce(Pinged(**WHERE, succeeded=True))
    announcer.announce(Restored(**WHERE))
    assert [amount for amount, _ in instruments["_OUT"].added] == [1, -1]
    assert instruments["_MESSAGES"].added[0][0] == 3
    assert instruments["_BYTES"].added[0][0] == 30
    kinds = [attributes["event"] for _, attributes in instruments["_EVENTS"].added]
    assert kinds == ["Diverted", "MessagesDiverted", "Pinged", "Restored"]
    assert instruments["_EVENTS"].added[2][1]["succeeded"] is True


class Spans:
    """A tracer that remembers: name and attributes of every span that was ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, dict[str, Any]]] = []

    @contextmanager
    def start_as_current_span(self, name: str) -> Iterator[Any]:
        attributes: dict[str, Any] = {}

        class Span:
            def set_attribute(self, key: str, value: Any) -> None:
                attributes[key] = value

        try:
            yield Span()
        finally:
            self.ended.append((name, attributes))


async def test_a_diverted_send_and_a_ping_are_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = Spans()
    monkeypatch.setattr(telemetry, "TRACER", spans)
    wire, primary, _, _ = await make_pair(monkeypatch, ping_primary_interval=timedelta(seconds=1))
    wire.rule = raising(ServiceBusConnectionError(message="the line is cut"))
    await primary.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
    (divert,) = spans.ended
    assert divert[0] == "twinbus divert"
    assert divert[1]["messaging.destination.name"] == "orders"
    assert "x-servicebus-transfer" in divert[1]["twinbus.backlog.queue"]
    for _ in range(50):
        if len(spans.ended) > 1:
            break
        await asyncio.sleep(0.1)
    assert spans.ended[1] == ("twinbus ping", {"messaging.destination.name": "orders"})
    await primary.close()
