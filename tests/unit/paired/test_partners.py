"""Two factories in an application that hosts the syphon end together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.paired.fakes import CONNECTION, make_pair

from twinbus import FactoryFaultedError
from twinbus.paired.aio import factory as factory_module
from twinbus.paired.events import Closed


class Syphon:
    """A syphon's process that is there until it is asked to end."""

    def __init__(self, *_: Any) -> None:
        self._code: int | None = None

    def start(self) -> int:
        return 1

    def said(self) -> str:
        return "the syphon runs"

    def is_started(self) -> bool:
        return True

    def is_alive(self) -> bool:
        return self._code is None

    def ended(self) -> int | None:
        return self._code

    def ask_to_end(self) -> None:
        self._code = 0

    def end(self) -> None:
        self._code = 0


@pytest.mark.parametrize("ends", ["close", "fault"])
@pytest.mark.parametrize("first", ["primary", "secondary"])
async def test_when_one_factory_closes_or_faults_the_other_is_faulted_once_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch, ends: str, first: str
) -> None:
    assert factory_module.PARTNER_S == 5
    monkeypatch.setattr(factory_module, "PARTNER_S", 0.2)
    monkeypatch.setattr(factory_module, "SyphonProcess", Syphon)
    _, primary, secondary, _ = await make_pair(monkeypatch, enable_syphon=True)
    one, other = (primary, secondary) if first == "primary" else (secondary, primary)
    await (one.close() if ends == "close" else one.fault("the disk is on fire"))
    assert not other.is_closed, "it has its time"
    async with asyncio.timeout(30):  # for the partner to be faulted
        await other._ended.wait()
    with pytest.raises(FactoryFaultedError, match=r"has faulted: its partner .* ended"):
        other.get_queue_sender("orders")
    await primary.close()
    await secondary.close()


@pytest.mark.parametrize("enabled", [True, False])
async def test_an_enabled_syphon_is_started_between_the_two_namespaces_for_the_pairs_queues(
    monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    started: list[tuple[Any, ...]] = []

    class Noted(Syphon):
        def __init__(self, *told: Any) -> None:
            super().__init__()
            started.append(told)

    monkeypatch.setattr(factory_module, "SyphonProcess", Noted)
    _, primary, secondary, _ = await make_pair(monkeypatch, queues=2, enable_syphon=enabled)
    await primary.close()
    await secondary.close()
    queues = [f"contoso/x-servicebus-transfer/{number}" for number in range(2)]
    told = (CONNECTION.format("contoso"), CONNECTION.format("contoso-backup"), queues, None)
    assert started == ([told] if enabled else [])


async def test_a_partner_that_is_closed_in_time_is_not_faulted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(factory_module, "SyphonProcess", Syphon)
    _, primary, secondary, _ = await make_pair(monkeypatch, enable_syphon=True)
    seen: list[Any] = []
    secondary.add_listener(seen.append)
    await primary.close()
    await secondary.close()
    assert [type(event) for event in seen] == [Closed]
