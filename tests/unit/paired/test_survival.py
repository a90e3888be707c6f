"""What lives as long as a pairing outlives whatever happens in it: pings, links, syphon, gathering.

And no listener, ledger, log, meter or tracer of the user's comes between a caller and a send.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError
from tests.unit.paired.fakes import CONNECTION, make_pair, raising

from twinbus import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions
from twinbus.failover.states import State
from twinbus.ledger import Ledger
from twinbus.paired import telemetry
from twinbus.paired.aio import keeper as keeper_module
from twinbus.paired.aio import link
from twinbus.paired.aio import pairing as pairing_module
from twinbus.paired.aio.gatherer import Gatherer
from twinbus.paired.aio.keeper import Keeper
from twinbus.paired.aio.link import SharedSender
from twinbus.paired.aio.world import World
from twinbus.paired.blocking import gatherer_blocking as blocking_gatherer
from twinbus.paired.blocking import link_blocking as blocking_link
from twinbus.paired.blocking import world_blocking as threads
from twinbus.paired.blocking.link_blocking import side_of
from twinbus.paired.blocking.pairing_blocking import Pairing
from twinbus.paired.events import Pinged, SyphonEnded, SyphonStarted
from twinbus.paired.outgoing import IdentifyingTransport, Outgoing, single
from twinbus.sdk import upkeep

SEND = ServiceBusMessage("x")
SOON_S = 20.0


def broken() -> ServiceBusConnectionError:
    return ServiceBusConnectionError(message="the line is cut")


async def until(condition: Callable[[], bool], what: str) -> None:
    """A generous limit, and a sentence for when it is not enough."""
    try:
        async with asyncio.timeout(SOON_S):
            while not condition():  # noqa: ASYNC110  of things that have no event
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"waited {SOON_S:.0f} seconds for this: {what}")


async def out(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Any:
    """A pairing of which 'orders' is diverted, and that pings soon."""
    wire, primary, _, options = await make_pair(monkeypatch, **settings)
    options._ping_primary_interval = timedelta(milliseconds=30)
    wire.rule = raising(broken())
    sender = primary.get_queue_sender("orders")
    await sender.send_messages(SEND)
    return wire, primary, sender


def times(number: int, error: BaseException, then: Callable[..., Any]) -> Callable[..., Any]:
    """``then``, but the first calls raise."""
    left = [number]

    def act(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise error
        return then(*args, **kwargs)

    return act


# -- the watch on an entity


async def comes_home(wire: Any, primary: Any, sender: SharedSender) -> None:
    wire.rule = lambda *_: None
    await until(
        lambda: primary.entity_states() == {"orders": State.HEALTHY}, "a ping restores 'orders'"
    )
    await sender.send_messages(SEND)
    assert wire.on("contoso")[-1] == "orders"


async def test_an_entity_is_pinged_until_it_is_back_whatever_a_ping_runs_into(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wire, primary, sender = await out(monkeypatch)
    odd = times(3, MemoryError("no room for a link"), link.plain_sender)
    monkeypatch.setattr(link, "plain_sender", odd)
    await comes_home(wire, primary, sender)
    assert "no room for a link" in caplog.text
    assert "'orders'" in caplog.text
    await primary.close()


async def test_the_watch_goes_on_after_a_failure_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wire, primary, sender = await out(monkeypatch)
    ping = times(2, RuntimeError("nobody foresaw this"), primary.pairing._pinger.ping)
    monkeypatch.setattr(primary.pairing._pinger, "ping", ping)
    await comes_home(wire, primary, sender)
    assert "nobody foresaw this" in caplog.text
    assert "'orders'" in caplog.text, "with the entity that it befell"
    await primary.close()


async def test_a_watch_that_was_cancelled_is_there_again_with_the_next_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, sender = await out(monkeypatch)
    for task in asyncio.all_tasks():
        if task.get_name() == "twinbus watch on orders":
            task.cancel()
    await until(
        lambda: not any("watch on" in task.get_name() for task in asyncio.all_tasks()),
        "the watch is gone",
    )
    await sender.send_messages(SEND)
    await comes_home(wire, primary, sender)
    await primary.close()


# -- what is the user's


class Careless(Ledger):
    """One that does not keep its word never to raise."""

    def add(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("can't start new thread")


async def test_a_ledger_that_raises_comes_between_nobody_and_his_send(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Careless(tmp_path / "ledger")
    wire, primary, sender = await out(monkeypatch, factory={"ledger": ledger})
    assert len(wire.on("contoso-backup")) == 1, "diverted, once"
    await comes_home(wire, primary, sender)
    assert wire.on("contoso") == ["orders", "orders"], "a ping, and a message that is sent once"
    assert "'orders'" in caplog.text
    await primary.close()


@pytest.mark.parametrize("error", [ValueError("odd"), asyncio.CancelledError("odd")], ids=repr)
async def test_a_listener_that_raises_breaks_neither_sends_nor_pings_nor_other_listeners(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    wire, primary, _, options = await make_pair(monkeypatch)
    options._ping_primary_interval = timedelta(milliseconds=30)
    heard: list[Any] = []

    def listener(event: Any) -> None:
        raise error

    primary.add_listener(listener)
    primary.add_listener(heard.append)
    wire.rule = raising(broken())
    sender = primary.get_queue_sender("orders")
    await sender.send_messages(SEND)
    await until(lambda: any(isinstance(each, Pinged) for each in heard), "a ping is announced")
    await comes_home(wire, primary, sender)
    names = [type(each).__name__ for each in heard]
    assert names[:3] == ["Suspected", "Diverted", "MessagesDiverted"]
    assert names[-1] == "Restored"
    said = [line.getMessage() for line in caplog.records if line.levelno == logging.ERROR]
    assert any("'orders'" in line and "listener" in line for line in said), said
    await primary.close()


class Deaf(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError(28, "No space left on device")


async def test_a_log_or_a_meter_that_raises_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Meter:
        def add(self, amount: int, attributes: dict[str, Any]) -> None:
            raise ValueError("an odd attribute")

    monkeypatch.setattr(telemetry, "_EVENTS", Meter())
    deaf = Deaf()
    logging.getLogger("twinbus.paired").addHandler(deaf)
    try:
        wire, primary, sender = await out(monkeypatch)
        await comes_home(wire, primary, sender)
        await primary.close()
    finally:
        logging.getLogger("twinbus.paired").removeHandler(deaf)


@pytest.mark.parametrize("when", ["it begins", "it ends"])
async def test_a_tracer_that_raises_breaks_neither_diverting_nor_pings(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    class Tracer:
        @contextmanager
        def start_as_current_span(self, name: str) -> Iterator[Any]:
            class Span:
                def set_attribute(self, key: str, value: Any) -> None: ...

            if when == "it begins":
                raise ValueError("a processor of spans that is broken")
            yield Span()
            raise ValueError("a processor of spans that is broken")

    monkeypatch.setattr(telemetry, "TRACER", Tracer())
    wire, primary, sender = await out(monkeypatch)
    assert len(wire.on("contoso-backup")) == 1
    await comes_home(wire, primary, sender)
    await primary.close()


# -- keeping links warm


async def test_links_are_kept_warm_though_it_failed_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pairing_module, "KEEP_WARM_S", 0.02)
    warmed: list[str] = []
    error = RuntimeError("a link that nobody foresaw")

    async def keep_warm(self: SharedSender) -> None:
        warmed.append(self.entity_name)
        if self.entity_name == "bad":
            raise error

    monkeypatch.setattr(SharedSender, "keep_warm", keep_warm)
    _, primary, _, _ = await make_pair(monkeypatch)
    senders = [primary.get_queue_sender(name) for name in ("bad", "good")]
    for sender in senders:
        await sender.send_messages(SEND)
    await until(
        lambda: warmed.count("bad") > 2 and warmed.count("good") > 2, "both are kept warm for long"
    )
    assert "'bad'" in caplog.text
    assert caplog.text.count("Traceback") == 1, "not one each time"
    await primary.close()


async def test_one_job_keeps_links_warm_whoever_came_and_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def jobs() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() if task.get_name() == "twinbus keeper"]

    _, primary, _, _ = await make_pair(monkeypatch)
    assert primary.pairing is not None
    for _ in range(3):
        sender = primary.get_queue_sender("orders")
        await sender.send_messages(SEND)
        primary.pairing._senders.clear()  # as when the application lets go of it
        assert len(jobs()) == 1
    (job,) = jobs()
    job.cancel()
    await until(lambda: not jobs(), "the job is gone")
    await primary.get_queue_sender("orders").send_messages(SEND)
    assert len(jobs()) == 1
    await primary.close()


async def test_what_fails_while_closing_keeps_nothing_else_from_being_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, primary, _ = await out(monkeypatch, factory={"ledger": tmp_path / "ledger"})

    async def odd(self: SharedSender) -> None:
        raise OSError(9, "a link that nobody can close")

    monkeypatch.setattr(SharedSender, "close", odd)
    await primary.close()
    assert "a link that nobody can close" in caplog.text
    assert len(primary._world) == 0
    assert primary.ledger is not None
    assert list((tmp_path / "ledger").rglob("*.parquet")), "the ledger is written"


# -- the syphon's keeper


class Process:
    """A syphon that ends when told, and is trouble to look at, to end and to start."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.there = True
        self.starts = 0
        self.fails: dict[str, Exception] = {}

    def _maybe(self, what: str) -> None:
        error = self.fails.pop(what, None)
        if error is not None:
            raise error

    def start(self) -> int:
        self._maybe("start")
        self.starts += 1
        self.there, self.code = True, None
        return self.starts

    def is_started(self) -> bool:
        return self.there

    def ended(self) -> int | None:
        self._maybe("look")
        return self.code if self.there else None

    def said(self) -> str:
        self._maybe("said")
        return "the syphon runs"

    def ask_to_end(self) -> None:
        self.code = 0

    def end(self) -> None:
        self.there = False
        self._maybe("end")


@pytest.mark.parametrize("error", [OSError(11, "no more processes"), ValueError("odd")], ids=repr)
@pytest.mark.parametrize("what", ["start", "look", "said", "end"])
async def test_the_syphon_is_started_again_whatever_its_keeper_runs_into(
    monkeypatch: pytest.MonkeyPatch, what: str, error: Exception
) -> None:
    for name in ("LOOK_S", "FIRST_PAUSE_S", "LAST_PAUSE_S"):
        monkeypatch.setattr(keeper_module, name, 0.01)
    process, world, announcer = Process(), World(), telemetry.Announcer()
    events: list[Any] = []
    announcer.add(events.append)
    keeper = Keeper(process, "contoso", announcer, world)  # type: ignore[arg-type]
    keeper.keep()
    process.fails[what] = error
    process.code = 1
    await until(
        lambda: any(isinstance(each, SyphonStarted) for each in events), "it is started again"
    )
    kinds = [type(each) for each in events]
    assert kinds.index(SyphonEnded) < kinds.index(SyphonStarted), "and that it had ended is told"
    if what == "start":
        assert any(str(error) in str(each) for each in events), events
    await keeper.stop()
    await world.stop()


# -- the gatherer


FLUSH = {"batch_flush_interval": timedelta(milliseconds=20)}


async def test_a_message_that_cannot_be_encoded_is_its_callers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, plain, _, _ = await make_pair(monkeypatch)
    bad = ServiceBusMessage("bad", application_properties={"what": object()})  # type: ignore[dict-item]
    with pytest.raises(Exception) as wanted:  # noqa: PT011  as without gathering, whatever it is
        await plain.get_queue_sender("orders").send_messages(bad)
    await plain.close()
    wire, primary, _, _ = await make_pair(monkeypatch, factory=FLUSH)
    sender = primary.get_queue_sender("orders")
    for _ in range(2):
        async with asyncio.timeout(SOON_S):
            results = await asyncio.gather(
                *(sender.send_messages(each) for each in (SEND, bad, SEND)),
                return_exceptions=True,
            )
        assert [type(each) for each in results] == [type(None), type(wanted.value), type(None)]
    assert len(wire.to("orders")) == 4
    assert primary.entity_states() == {"orders": State.HEALTHY}, "that says nothing about it"
    await primary.close()


async def test_whoever_was_gathered_hears_of_it_when_the_flush_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, primary, _, _ = await make_pair(monkeypatch, factory=FLUSH)
    sender = primary.get_queue_sender("orders")
    under_way = asyncio.Event()

    async def silence() -> None:
        under_way.set()
        await asyncio.Event().wait()

    wire.rule = lambda *_: silence()
    # Three batches, of which the first gets no answer.
    jobs = [
        asyncio.create_task(sender.send_messages(ServiceBusMessage(bytes(200_000))))
        for _ in range(3)
    ]
    async with asyncio.timeout(SOON_S):
        await under_way.wait()
        for task in asyncio.all_tasks():
            if task.get_name() == "twinbus batch flush":
                task.cancel()
        results = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(each) for each in results] == [OperationTimeoutError] * 3
    wire.rule = lambda *_: None
    async with asyncio.timeout(SOON_S):
        await sender.send_messages(SEND)
    assert len(wire.to("orders")) == 1, "and the next flush takes place"
    await primary.close()


def test_a_factory_outlives_the_loop_that_its_flush_began_in() -> None:
    sent: list[Any] = []

    async def deliver(ready: Any, timeout: float | None) -> None:  # noqa: ASYNC109  as a sender's
        sent.append(ready)

    world = World()
    gatherer = Gatherer(deliver, 0.01, 1000, world)

    async def hasty() -> None:
        job = asyncio.create_task(gatherer.send(message("1"), None))
        await asyncio.sleep(0)
        job.cancel()

    async def patient() -> None:
        async with asyncio.timeout(SOON_S):
            await gatherer.send(message("2"), None)

    asyncio.run(hasty())
    asyncio.run(patient())
    assert len(sent) == 1


def message(body: str) -> Outgoing:
    return single(ServiceBusMessage(body), IdentifyingTransport, {})


# -- threads that are not to be had


def none_to_be_had(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(threading.Thread, "start", none_to_be_had)
    return monkeypatch


def test_a_world_without_threads_says_so_and_ends(
    no_threads: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = threads.World()
    assert not world.start("watch on orders", lambda: None)
    assert "watch on orders" in caplog.text
    world.stop(1.0)
    assert len(world) == 0


def test_a_gathered_send_goes_out_without_threads_too(no_threads: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    gatherer = blocking_gatherer.Gatherer(
        lambda ready, timeout: sent.append(ready), 0.01, 1000, threads.World()
    )
    for body in ("1", "2"):
        gatherer.send(message(body), SOON_S)
    assert len(sent) == 2


def test_a_link_is_cut_if_nobody_can_close_it(no_threads: pytest.MonkeyPatch) -> None:
    cut: list[Any] = []
    no_threads.setattr(upkeep, "break_off", cut.append)
    sender = object.__new__(blocking_link.SharedSender)
    sender._world = threads.World()
    sender._handler = handler = object()
    sender.drop_link()
    assert cut == [handler]
    assert sender._handler is None


def test_a_job_that_fails_is_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    def job() -> None:
        raise ValueError("odd")

    world = threads.World()
    assert world.start("watch on orders", job)
    world.stop()
    assert "watch on orders" in caplog.text
    assert "ValueError: odd" in caplog.text


def test_an_entity_that_failed_when_there_were_no_threads_is_watched_as_soon_as_there_is_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    primary, secondary = (
        MessagingFactory.from_connection_string(CONNECTION.format(name), retry_total=0)
        for name in ("contoso", "contoso-backup")
    )
    manager = NamespaceManager.from_connection_string(CONNECTION.format("contoso-backup"))
    options = SendAvailabilityPairedNamespaceOptions(
        manager, secondary, failover_interval=timedelta(0)
    )
    options._ping_primary_interval = timedelta(milliseconds=30)
    world = threads.World()
    home, away = side_of(primary, world), side_of(secondary, world)
    pairing = Pairing(home, away, options, ["backlog"], telemetry.Announcer(), world)
    pinged = threading.Event()

    def ping(path: str) -> None:
        pinged.set()

    monkeypatch.setattr(pairing._pinger, "ping", ping)
    orders = pairing.entity("orders")
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", none_to_be_had)
        pairing.failed(orders, time.monotonic(), broken(), "backlog")
        assert pairing.is_diverted(orders)
    assert "watch on orders" in caplog.text
    assert pairing.is_diverted(orders)
    assert pinged.wait(SOON_S), "a ping to 'orders'"
    world.stop(SOON_S)
    assert orders.failover.state is State.HEALTHY
    for each in (primary, secondary, manager):
        each.close()


def test_an_outcome_that_comes_while_it_is_given_up_ends_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for error in (None, broken()):
        promise = threads.Promise()
        # Whoever resolves it has looked, and only then it is given up.
        monkeypatch.setattr(promise._future, "done", lambda: False)
        assert promise.give_up()
        promise.resolve(error)
        assert promise.given_up
