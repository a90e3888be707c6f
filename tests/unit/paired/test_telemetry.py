"""Events as OpenTelemetry metrics."""

from __future__ import annotations

from typing import Any

import pytest

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
