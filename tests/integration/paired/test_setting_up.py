"""When pair_namespace returns, all is set up, or it raises and leaves both factories as they were:
against two real brokers, in both worlds."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psutil
import pytest
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    ServiceBusAdministrationClient,
)
from harness.brokers import KEY, BrokerProcess, certificate
from tests.pairs import Pair
from tests.syphons import stand_in
from tests.times import is_prompt

import twinbus
import twinbus.aio
from twinbus import FactoryFaultedError, PairingError
from twinbus.paired.aio import setup as aio_setup
from twinbus.paired.blocking import setup_blocking as blocking_setup
from twinbus.paired.events import Closed, SyphonEnded, SyphonStarted

QUEUES: dict[str, dict[str, Any]] = {"orders": {}}
RUNS = ("echo the syphon runs", "read end_of_input")


@pytest.fixture
async def pair(pair: Pair) -> Pair:
    """Not paired yet, and of backlog queues of its own."""
    return await pair.open(pair=False, primary_name=f"own-{uuid4().hex[:8]}")


@pytest.fixture
def syphon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has a process that does as it is told begin in the syphon's place."""

    def begin(*lines: str) -> None:
        script = SimpleNamespace(executable=stand_in(tmp_path, *lines))
        monkeypatch.setattr("twinbus.paired.syphon_process.sys", script)

    return begin


def queue_of(pair: Pair, index: int = 0) -> str:
    return f"{pair.options.primary_name}/x-servicebus-transfer/{index}"


def there(pair: Pair) -> list[str]:
    """The backlog queues on the secondary."""
    with administration(pair.secondary) as admin:
        return [
            queue.name
            for queue in admin.list_queues()
            if queue.name.startswith(f"{pair.options.primary_name}/")
        ]


def administration(process: BrokerProcess) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        process.connection_string, connection_verify=certificate(process)
    )


def begin(pair: Pair) -> asyncio.Task[Any]:
    """Pair, and do not wait for it."""
    return asyncio.create_task(pair.call(pair.factory.pair_namespace, pair.options))


# A machine that is very busy takes longer than the three attempts do; one that hangs never ends.
STUCK_S = 90


async def until(condition: Any, what: str, within_s: float = 30) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"waited {within_s} s: {what}"
        await asyncio.sleep(0.02)


async def nothing_is_left(pair: Pair, *tasks: asyncio.Task[Any]) -> None:
    """Neither half a pairing nor anybody who still works at it."""
    assert pair.factory.pairing is None
    assert pair.seen(Closed) == [each for each in pair.events if isinstance(each, Closed)]
    mine = {asyncio.current_task(), *tasks}
    await until(
        lambda: not [task for task in asyncio.all_tasks() - mine if "twinbus" in task.get_name()],
        "no task of ours is left",
    )
    await until(
        lambda: not [each for each in threading.enumerate() if each.name.startswith("twinbus ")],
        "no thread of ours is left",
    )
    for started in pair.seen(SyphonStarted):
        assert not psutil.pid_exists(started.pid), "the syphon's process is gone"


async def pairs_anew(pair: Pair) -> None:
    """A new factory may have the secondary, by the same options."""
    make = pair.module.MessagingFactory.from_connection_string
    fresh = make(pair.primary.connection_string, retry_total=0)
    await pair.call(fresh.pair_namespace, pair.options)
    assert pair.options.backlog_queue_count == pair.options._wanted_queues
    await pair.call(fresh.close)


# ---------------------------------------------------------------- rights


def limited(pair: Pair, name: str, *rights: AccessRights) -> str:
    """The connection string of a key that the backlog queue alone knows."""
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[*rights],
        key_name=name,
        primary_key=KEY,
        secondary_key=KEY,
    )
    with administration(pair.secondary) as admin:
        admin.create_queue(queue_of(pair), authorization_rules=[rule])
    return pair.secondary.connection_string.replace("RootManageSharedAccessKey", name)


async def replace_backup(pair: Pair, connection_string: str, **settings: Any) -> None:
    await pair.call(pair.backup.close)
    make = pair.module.MessagingFactory.from_connection_string
    pair.backup = make(connection_string, retry_total=0, **settings)
    pair.options.messaging_factory = pair.backup


async def refused(pair: Pair, words: str) -> None:
    with pytest.raises(PairingError, match=words):
        await pair.call(pair.factory.pair_namespace, pair.options)
    await nothing_is_left(pair)
    assert pair.factory.is_healthy


async def test_the_secondarys_factory_must_be_allowed_to_send(pair: Pair) -> None:
    text = await asyncio.to_thread(limited, pair, "listener", AccessRights.LISTEN)
    await replace_backup(pair, text)
    await refused(pair, "not allowed to send to the backlog queues .* with the Send claim")
    assert pair.options.backlog_queue_count == 1, "it is there"


async def test_the_secondarys_factory_must_have_the_right_key(pair: Pair) -> None:
    bad = pair.secondary.connection_string.replace("SharedAccessKey=", "SharedAccessKey=bm8")
    await replace_backup(pair, bad)
    await refused(pair, "not allowed to send to the backlog queues")


async def test_with_the_syphon_it_must_be_allowed_to_receive(pair: Pair, syphon: Any) -> None:
    syphon(*RUNS)
    text = await asyncio.to_thread(limited, pair, "talker", AccessRights.SEND)
    await replace_backup(pair, text)
    pair.options.enable_syphon = True
    await refused(pair, "not allowed to receive from the backlog queues .* with the Listen claim")
    pair.options.enable_syphon = False
    await pair.call(pair.factory.pair_namespace, pair.options)


async def test_a_secondary_for_one_entity_alone_is_refused(pair: Pair) -> None:
    await replace_backup(pair, f"{pair.secondary.connection_string};EntityPath=orders")
    await refused(pair, "cannot send to the backlog queues .* EntityPath")


# ---------------------------------------------------------------- the manager


async def test_the_manager_must_be_of_the_secondarys_namespace(pair: Pair) -> None:
    await pair.call(pair.manager.close)
    pair.manager = pair.module.NamespaceManager.from_connection_string(
        pair.primary.connection_string, connection_verify=certificate(pair.primary)
    )
    pair.options.secondary_namespace_manager = pair.manager
    await refused(pair, "is that of .*, and the secondary is .*: give a NamespaceManager for")
    assert pair.options.backlog_queue_count == 0
    with administration(pair.primary) as admin:
        assert [queue.name for queue in admin.list_queues()] == ["orders"]


async def test_a_secondary_that_says_nothing_is_an_error_in_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.secondary.suspend()
    try:
        with monkeypatch.context() as hurried:  # only while there is nobody to answer
            for setup in (aio_setup, blocking_setup):
                for name in ("connection_timeout", "read_timeout"):
                    assert setup._PATIENCE[name] == 10
                    hurried.setitem(setup._PATIENCE, name, 0.5)
            await asyncio.wait_for(
                refused(pair, "could not list the queues .* in 3 attempts"), STUCK_S
            )
        assert pair.options.backlog_queue_count == 0
    finally:
        pair.secondary.resume()
    await pairs_anew(pair)


async def test_a_manager_of_another_namespace_on_the_same_host_is_found_out(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    third = BrokerProcess(tmp_path, {})
    third.start()
    try:
        await pair.call(pair.manager.close)
        pair.manager = pair.module.NamespaceManager.from_connection_string(
            third.connection_string, connection_verify=certificate(third)
        )
        pair.options.secondary_namespace_manager = pair.manager
        await refused(pair, "is the NamespaceManager, which found them, that of the same namespace")
        assert f"these backlog queues were made, and stay: {queue_of(pair)}" in caplog.text
    finally:
        third.close()


async def test_the_manager_must_be_of_the_same_world(pair: Pair) -> None:
    other: Any = twinbus if pair.kind == "asyncio" else twinbus.aio
    manager = other.NamespaceManager.from_connection_string(
        pair.secondary.connection_string, connection_verify=certificate(pair.secondary)
    )
    pair.options.secondary_namespace_manager = manager
    await refused(pair, "must be a NamespaceManager of the same world")
    assert await asyncio.to_thread(there, pair) == []
    await (asyncio.to_thread(manager.close) if pair.kind == "asyncio" else manager.close())


# ---------------------------------------------------------------- at once, and at the end


async def test_of_two_pairings_at_once_one_is_refused(pair: Pair) -> None:
    outcomes = await asyncio.gather(begin(pair), begin(pair), return_exceptions=True)
    (error,) = [each for each in outcomes if each is not None]
    assert isinstance(error, PairingError)
    assert "just being paired" in str(error)
    assert pair.options.backlog_queue_count == 1
    async with pair.sender("nowhere") as sender:
        await sender.send_messages(ServiceBusMessage("diverted"))


@pytest.mark.parametrize("which", ["factory", "backup"])
async def test_a_closed_factory_cannot_be_paired(pair: Pair, which: str) -> None:
    closed = getattr(pair, which)
    assert not closed.is_closed
    assert closed.is_healthy
    await pair.call(closed.close)
    assert closed.is_closed
    assert not closed.is_healthy
    with pytest.raises(FactoryFaultedError, match="was closed; make a new one"):
        await pair.call(pair.factory.pair_namespace, pair.options)
    assert await asyncio.to_thread(there, pair) == []


@pytest.mark.parametrize("which", ["factory", "backup"])
async def test_closing_while_the_queues_are_looked_for_leaves_nothing(
    pair: Pair, which: str
) -> None:
    pair.secondary.suspend()
    try:
        pairing = begin(pair)
        await until(lambda: pair.factory._partner is not None, "the pairing has begun")
        began = time.monotonic()
        await pair.call(getattr(pair, which).close)
        assert is_prompt(began, 8), "it does not wait for a broker that says nothing"
    finally:
        pair.secondary.resume()
    with pytest.raises(FactoryFaultedError, match="was closed"):
        await pairing
    await nothing_is_left(pair)
    if which == "factory":
        await pairs_anew(pair)


@pytest.mark.parametrize("which", ["factory", "backup"])
async def test_closing_while_the_syphon_starts_leaves_nothing(
    pair: Pair, syphon: Any, which: str
) -> None:
    syphon("read end_of_input")
    pair.options.enable_syphon = True
    pairing = begin(pair)
    await until(lambda: pair.seen(SyphonStarted), "the syphon's process has begun")
    await pair.call(getattr(pair, which).close)
    with pytest.raises(FactoryFaultedError, match="was closed"):
        await pairing
    await nothing_is_left(pair)
    if which == "factory":
        syphon(*RUNS)
        await pairs_anew(pair)


async def test_a_pairing_that_is_cancelled_is_taken_back(pair: Pair, syphon: Any) -> None:
    if pair.kind == "blocking":
        return  # a thread cannot be cancelled
    syphon("read end_of_input")
    pair.options.enable_syphon = True
    pairing = begin(pair)
    await until(lambda: pair.seen(SyphonStarted), "the syphon's process has begun")
    pairing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pairing
    await nothing_is_left(pair)
    pair.options.enable_syphon = False
    await pair.call(pair.factory.pair_namespace, pair.options)


# ---------------------------------------------------------------- the syphon


async def test_pairing_waits_until_the_syphon_runs(pair: Pair, syphon: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    syphon(f"read _ < {gate}", *RUNS)
    pair.options.enable_syphon = True
    pairing = begin(pair)
    await until(lambda: pair.seen(SyphonStarted), "the syphon's process has begun")
    assert pair.factory.pairing is None
    assert not pairing.done()
    await asyncio.to_thread(gate.write_text, "go\n")
    await pairing
    assert pair.factory.is_healthy


async def test_the_reason_why_the_syphon_does_not_start_is_raised(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real command, on a machine whose only Java is too old."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    pair.options.enable_syphon = True
    await refused(pair, "the syphon did not start: Spark needs Java 17 or newer")
    assert pair.seen(SyphonStarted)
    assert pair.seen(SyphonEnded) == [], "it never ran"


@pytest.mark.parametrize("lines", [("exit 7",), ("echo half a line", "exit 7"), ("printf half",)])
async def test_a_syphon_that_ends_instead_of_starting_is_raised(
    pair: Pair, syphon: Any, lines: tuple[str, ...]
) -> None:
    syphon(*lines)
    pair.options.enable_syphon = True
    await refused(pair, "the syphon did not start: (it ended with exit code|half a line)")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"transport_type": TransportType.AmqpOverWebsocket}, "transport_type"),
        ({"custom_endpoint_address": "sb://localhost:1"}, "custom_endpoint_address"),
        ({"http_proxy": {"proxy_hostname": "localhost", "proxy_port": 1}}, "http_proxy"),
        ({"connection_verify": "authority.pem"}, "connection_verify"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_way_to_a_namespace_that_the_syphon_cannot_take_over_is_refused(
    pair: Pair, syphon: Any, settings: dict[str, Any], named: str
) -> None:
    syphon(*RUNS)
    await replace_backup(pair, pair.secondary.connection_string, **settings)
    pair.options.enable_syphon = True
    await refused(pair, f"cannot take over the {named} .* enable_syphon=False")
    assert await asyncio.to_thread(there, pair) == []


async def test_a_syphon_that_ends_for_good_is_an_event_and_the_factory_is_not_healthy(
    pair: Pair, syphon: Any, caplog: pytest.LogCaptureFixture
) -> None:
    syphon("echo the syphon runs", "exit 2")
    pair.options.enable_syphon = True
    await pair.call(pair.factory.pair_namespace, pair.options)
    await until(lambda: pair.seen(SyphonEnded), "the end of the syphon is announced")
    (ended,) = pair.seen(SyphonEnded)
    assert ended.for_good
    assert "and it is not started again: exit code 2" in str(ended)
    assert str(ended) in [record.getMessage() for record in caplog.records]
    assert not pair.factory.is_healthy
    assert not pair.factory.is_closed
    async with pair.sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("sending goes on"))


async def test_a_syphon_that_dies_is_started_again_and_then_the_factory_is_healthy_again(
    pair: Pair, syphon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for keeper in ("aio.keeper", "blocking.keeper_blocking"):
        monkeypatch.setattr(f"twinbus.paired.{keeper}.FIRST_PAUSE_S", 0.01)
    syphon(*RUNS)
    pair.options.enable_syphon = True
    await pair.call(pair.factory.pair_namespace, pair.options)
    psutil.Process(pair.seen(SyphonStarted)[0].pid).kill()
    await until(lambda: pair.seen(SyphonEnded), "its end is announced")
    assert not pair.seen(SyphonEnded)[0].for_good
    await until(lambda: len(pair.seen(SyphonStarted)) == 2, "it is started again")
    assert pair.factory.is_healthy


# ---------------------------------------------------------------- closing and faulting


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    for factory in ("aio.factory", "blocking.factory_blocking"):
        monkeypatch.setattr(f"twinbus.paired.{factory}.PARTNER_S", 0.2)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("ends", ["close", "fault"])
async def test_without_the_syphon_a_partner_that_ends_is_no_reason_to_fault(
    pair: Pair, ends: str
) -> None:
    """The documents: within an application that hosts the syphon."""
    pair.options.failover_interval = timedelta(minutes=1)
    await pair.call(pair.factory.pair_namespace, pair.options)
    await pair.call(getattr(pair.backup, ends), *(["by mistake"] if ends == "fault" else []))
    ends_at = time.monotonic() + 1
    async with pair.sender("orders") as sender:
        while time.monotonic() < ends_at:
            await sender.send_messages(ServiceBusMessage("x"))
            await asyncio.sleep(0.05)
    assert not pair.factory.is_closed
    assert pair.factory.is_healthy


@pytest.mark.usefixtures("hurried")
async def test_a_partner_is_not_faulted_while_the_other_is_still_being_closed(
    pair: Pair, syphon: Any
) -> None:
    """Whoever closes one after the other is not to blame for how long the first takes."""
    syphon("trap '' TERM", *RUNS)  # it hangs on to its life, and closing waits for three seconds
    pair.options.enable_syphon = True
    await pair.call(pair.factory.pair_namespace, pair.options)
    seen: list[Any] = []
    pair.backup.add_listener(seen.append)
    await pair.call(pair.factory.close)
    await pair.call(pair.backup.close)
    assert [type(event) for event in seen] == [Closed]


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("ends", ["close", "fault"])
@pytest.mark.parametrize("first", ["factory", "backup"])
async def test_in_an_application_that_hosts_the_syphon_the_partner_is_faulted(
    pair: Pair, syphon: Any, first: str, ends: str
) -> None:
    syphon(*RUNS)
    pair.options.enable_syphon = True
    await pair.call(pair.factory.pair_namespace, pair.options)
    one, other = getattr(pair, first), getattr(pair, "backup" if first == "factory" else "factory")
    await pair.call(getattr(one, ends), *(["the disk is on fire"] if ends == "fault" else []))
    await until(lambda: other.is_closed, "the partner is faulted")
    with pytest.raises(FactoryFaultedError, match=r"has faulted: its partner .* was still open"):
        other.get_queue_sender("orders")
