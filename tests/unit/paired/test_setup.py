"""Finding and making the backlog queues, with a manager that fails when told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from copy import copy
from gc import collect
from typing import Any
from weakref import ref

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ServiceRequestError,
)
from tests.unit.paired.fakes import CONNECTION

from twinbus import PairingError, SendAvailabilityPairedNamespaceOptions
from twinbus.aio import MessagingFactory, NamespaceManager
from twinbus.paired.aio import setup
from twinbus.paired.aio.link import SharedSender

HOST = "contoso.servicebus.windows.net"


class Queue:
    def __init__(self, name: str) -> None:
        self.name = name


class Manager(NamespaceManager):
    """Has ``there``, makes what it is asked to, and raises what ``errors`` has for a queue."""

    there: list[str]
    made: list[str]
    errors: dict[str, list[Exception]]

    def list_queues(self, **kwargs: Any) -> Any:
        async def pages() -> AsyncIterator[Queue]:
            for error in self.errors.get("list", [])[:1]:
                self.errors["list"].pop(0)
                raise error
            for name in self.there:
                yield Queue(name)

        return pages()

    async def create_queue(self, queue_name: str, **kwargs: Any) -> Any:
        for error in self.errors.get(queue_name, [])[:1]:
            self.errors[queue_name].pop(0)
            raise error
        self.made.append(queue_name)


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> SendAvailabilityPairedNamespaceOptions:
    text = CONNECTION.format("contoso-backup")
    manager = Manager.from_connection_string(text)
    manager.there, manager.made, manager.errors = [], [], {}
    waits: list[float] = []

    async def no_time(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(setup, "sleep", no_time)
    return SendAvailabilityPairedNamespaceOptions(
        manager, MessagingFactory.from_connection_string(text), 3
    )


def path(index: int) -> str:
    return f"contoso/x-servicebus-transfer/{index}"


async def test_a_queue_is_created_only_if_it_does_not_exist(options: Any) -> None:
    options.secondary_namespace_manager.there = [path(1).upper(), path(7), "orders"]
    assert await setup.prepare_backlog(options, HOST) == [path(0), path(1), path(2)]
    assert options.secondary_namespace_manager.made == [path(0), path(2)]


async def test_what_fails_twice_and_then_works_works(options: Any) -> None:
    manager = options.secondary_namespace_manager
    manager.errors = {
        "list": [ServiceRequestError("no route"), ServiceRequestError("no route")],
        path(0): [HttpResponseError("500"), HttpResponseError("500")],
    }
    assert len(await setup.prepare_backlog(options, HOST)) == 3


async def test_a_queue_that_cannot_be_made_shrinks_the_count(options: Any) -> None:
    manager = options.secondary_namespace_manager
    manager.errors = {path(1): [HttpResponseError("500")] * 3}
    assert await setup.prepare_backlog(options, HOST) == [path(0), path(2)]
    assert options.backlog_queue_count == 2
    assert await setup.prepare_backlog(options, HOST) == [path(0), path(1), path(2)], "all, again"
    assert options.backlog_queue_count == 3


async def test_after_pairing_the_count_is_that_of_the_queues_that_are_there(
    options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opens(sender: Any, *_: Any, **__: Any) -> None:
        sender._running = True  # should the pairing look whether it may send there

    monkeypatch.setattr(SharedSender, "_open", opens)
    options.secondary_namespace_manager.there = [path(2)]
    options.secondary_namespace_manager.errors = {path(1): [HttpResponseError("500")] * 3}
    primary = MessagingFactory.from_connection_string(CONNECTION.format("contoso"))
    await primary.pair_namespace(options)
    assert options.backlog_queue_count == 2
    assert options.secondary_namespace_manager.made == [path(0)]
    await primary.close()
    await options.messaging_factory.close()


async def test_options_are_not_written_into_and_equal_ones_do_not_influence_each_other(
    options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opens(sender: Any, *_: Any, **__: Any) -> None:
        sender._running = True

    monkeypatch.setattr(SharedSender, "_open", opens)
    options.secondary_namespace_manager.errors = {path(1): [HttpResponseError("500")] * 3}
    make = MessagingFactory.from_connection_string
    same = copy(options)
    same.messaging_factory = make(CONNECTION.format("contoso-backup"))
    before = dict(vars(options))
    one, other = make(CONNECTION.format("contoso")), make(CONNECTION.format("contoso"))
    await one.pair_namespace(options)
    assert vars(options) == before
    assert (options.backlog_queue_count, same.backlog_queue_count) == (2, 3)
    with pytest.raises(PairingError, match="once the options are in use"):
        same.mark_path_healthy("orders")
    await other.pair_namespace(same)
    assert (options.backlog_queue_count, same.backlog_queue_count) == (2, 3)
    options.mark_path_healthy("orders")
    same.mark_path_healthy("lines")
    assert list(one.entity_states()) == ["orders"]
    assert list(other.entity_states()) == ["lines"]
    for factory in (one, other, options.messaging_factory, same.messaging_factory):
        await factory.close()
    gone = ref(same)
    del same, one, other, factory
    collect()
    assert gone() is None, "nothing keeps them when nobody has them"


async def test_no_backlog_queue_at_all_raises(options: Any) -> None:
    manager = options.secondary_namespace_manager
    manager.errors = {path(index): [HttpResponseError("500")] * 3 for index in range(3)}
    with pytest.raises(PairingError, match=r"could not create the backlog queue .* in 3 attempts"):
        await setup.prepare_backlog(options, HOST)
    assert options.backlog_queue_count < 1, "as the documents ask"
    options.backlog_queue_count = 2
    assert options.backlog_queue_count == 2


async def test_after_a_failure_the_count_is_of_those_that_are_there(
    options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    manager = options.secondary_namespace_manager
    refused = HttpResponseError("no Manage claim")
    refused.status_code = 403
    manager.there, manager.errors = [path(2)], {path(1): [refused]}
    with pytest.raises(PairingError, match="Manage claim") as caught:
        await setup.prepare_backlog(options, HOST)
    assert options.backlog_queue_count == 2
    assert caught.value.__notes__ == [f"these backlog queues were made, and stay: {path(0)}"]
    assert caught.value.__notes__[0] in caplog.text
    manager.errors = {"list": [ServiceRequestError("no route")] * 3}
    with pytest.raises(PairingError, match="could not list"):
        await setup.prepare_backlog(options, HOST)
    assert options.backlog_queue_count == 0


async def test_a_manager_without_the_manage_claim_raises_at_once(options: Any) -> None:
    manager = options.secondary_namespace_manager
    refused = HttpResponseError("no Manage claim")
    refused.status_code = 403
    for error in (ClientAuthenticationError("401"), refused):
        manager.errors = {path(0): [error]}
        with pytest.raises(PairingError, match="needs a key or token with the Manage claim"):
            await setup.prepare_backlog(options, HOST)


async def test_a_queue_that_another_client_made_meanwhile_is_found(options: Any) -> None:
    manager = options.secondary_namespace_manager
    manager.errors = {path(0): [ResourceExistsError("409")]}
    assert len(await setup.prepare_backlog(options, HOST)) == 3
