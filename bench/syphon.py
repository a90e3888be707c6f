"""The syphon side by side with a bare SDK loop: two broker processes, Spark on this machine.

    python -m bench.syphon [--messages 100000] [--large 1000000] [--rounds 3] [--json FILE]

Every figure comes from one run on one machine, so ratios can be compared and seconds cannot.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
from azure.servicebus import ServiceBusClient
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from harness.raw import Raw, kilobyte_message

from bench.process import Measured, namespace_toml
from twinbus import envelope
from twinbus.amqp.batches import in_transfers
from twinbus.amqp.incoming import Confirmation, Delivery
from twinbus.amqp.link_endpoint import RECEIVER
from twinbus.amqp.performatives import ACCEPTED, encode_disposition
from twinbus.amqp.types import encode
from twinbus.homeward.received import ReceivedMessage
from twinbus.sdk import raw
from twinbus.spark.columns import arrow_schema, record_batch
from twinbus.syphon.post import BACKLOG_COLUMNS

QUEUES = tuple(envelope.queue_path("bench", index) for index in range(10))
HOME = "home"
ASIDE = "aside"  # for those who take turns with a syphon, which must not take their messages
BARE_MESSAGES = 6_000
PROGRESS = "http://127.0.0.1:{port}/progress"


def namespaces() -> tuple[Measured, Measured]:
    home = f'[[namespace.queue]]\nname = "{HOME}"\nmax_size_mb = 81920\n'
    away = "".join(
        f'[[namespace.queue]]\nname = "{queue}"\nmax_size_mb = 81920\n'
        "max_delivery_count = 2147483647\n"
        for queue in (*QUEUES, ASIDE)
    )
    return Measured(namespace_toml(home)), Measured(namespace_toml(away))


def fill(connection: str, messages: int, queues: tuple[str, ...] = QUEUES) -> None:
    """Diverted messages of 1 KB, spread over the backlog queues."""
    with ServiceBusClient.from_connection_string(connection) as client:
        for place, queue in enumerate(queues):
            sender = raw.sender(client, queue)
            sender.ready()
            for start in range(0, messages // len(queues), 1000):
                count = min(1000, messages // len(queues) - start)
                some = [
                    envelope.wrap(kilobyte_message(place * 10**8 + start + index), HOME)
                    for index in range(count)
                ]
                for part in in_transfers([len(each) for each in some], sender.limit):
                    sender.send(some[part])
            sender.close()


class Running:
    """`twinbus syphon` as a process, asked for its progress over HTTP."""

    def __init__(self, primary: Measured, secondary: Measured) -> None:
        command = [sys.executable, "-m", "twinbus", "syphon", "--http-port", "0"]
        for queue in QUEUES:
            command += ["--queue", queue]
        environment = {
            **os.environ,
            "TWINBUS_PRIMARY": primary.connection_string,
            "TWINBUS_SECONDARY": secondary.connection_string,
        }
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert self.process.stderr is not None
        line = ""
        while "progress at" not in line:
            line = self.process.stderr.readline()
            if not line:
                raise RuntimeError("the syphon did not start")
        self._url = line.split(" at ", 1)[1].strip()
        # Its log is read to its end by nobody else, and a full pipe would stop it.
        self._sink = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL)

    def moved(self) -> int:
        with urllib.request.urlopen(self._url, timeout=10) as answer:
            return int(json.load(answer)["moved"])

    def until(self, moved: int, within_s: float = 900) -> float:
        """When so many had moved."""
        ends = time.monotonic() + within_s
        while self.moved() < moved:
            if time.monotonic() > ends or self.process.poll() is not None:
                raise RuntimeError(f"only {self.moved()} of {moved} messages went home")
            time.sleep(0.05)
        return time.monotonic()

    def tree(self) -> list[psutil.Process]:
        top = psutil.Process(self.process.pid)
        return [top, *top.children(recursive=True)]

    def cpu(self) -> dict[str, float]:
        """CPU seconds so far: of Java, and of Python in driver, source and workers."""
        found: dict[str, float] = {}
        for each in self.tree():
            with suppress(psutil.Error):
                times = each.cpu_times()
                kind = _kind(each.cmdline())
                found[kind] = found.get(kind, 0.0) + times.user + times.system
        return found

    def rss_mb(self) -> float:
        total = 0
        for each in self.tree():
            with suppress(psutil.Error):
                total += each.memory_full_info().pss
        return total / 2**20

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._sink.wait(10)


def _kind(command: list[str]) -> str:
    text = " ".join(command)
    if "java" in (command or [""])[0]:
        return "Java"
    if "source_runner" in text:
        return "Python, waiting"
    if "daemon" in text:
        return "Python, workers"
    return "Python, driver"


@contextmanager
def running(primary: Measured, secondary: Measured) -> Iterator[Running]:
    made = Running(primary, secondary)
    try:
        yield made
    finally:
        made.stop()


# ---------------------------------------------------------------- peers


async def bare_loop(primary: Measured, secondary: Measured, messages: int) -> float:
    """Messages a second of the loop anybody would write: receive 100, send the list, complete."""
    fill(secondary.connection_string, messages, (ASIDE,))
    home = AsyncServiceBusClient.from_connection_string(primary.connection_string)
    away = AsyncServiceBusClient.from_connection_string(secondary.connection_string)
    async with home, away:
        sender = home.get_queue_sender(HOME)
        receiver = away.get_queue_receiver(ASIDE)
        async with sender, receiver:
            moved, began = 0, time.monotonic()
            while moved < messages:
                some: Any = await receiver.receive_messages(100, max_wait_time=5)
                await sender.send_messages([each.message for each in _plain(some)])
                for each in some:
                    await receiver.complete_message(each)
                moved += len(some)
            return moved / (time.monotonic() - began)


def _plain(received: Any) -> Any:
    from azure.servicebus import ServiceBusMessage

    class Again:
        def __init__(self, each: Any) -> None:
            self.message = ServiceBusMessage(b"".join(each.body), message_id=each.message_id)

    return [Again(each) for each in received]


def own_client(primary: Measured, secondary: Measured, messages: int) -> float:
    """Messages a second of our own wire code in the client's role, one process, no Spark."""
    fill(secondary.connection_string, messages, (ASIDE,))
    away, home = Raw(secondary.connection_string), Raw(primary.connection_string)
    link = away.attach(RECEIVER, ASIDE, settle_second=True)
    accepted = encode(ACCEPTED)
    moved, began = 0, time.monotonic()
    while moved < messages:
        link.grant(min(500, messages - moved))
        taken: list[Delivery] = []
        while len(taken) < min(500, messages - moved):
            taken += [event for event in away.step() if isinstance(event, Delivery)]
        home.send(HOME, iter([envelope.unwrap(each.payload or b"")[1] for each in taken]), 500)
        first, last = taken[0].delivery_id, taken[-1].delivery_id
        assert away.session is not None
        frame = encode_disposition(RECEIVER, first, last, False, accepted)
        away.amqp.write_frame(away.session.channel, frame)
        confirmed = 0
        while confirmed < len(taken):
            for event in away.step():
                if isinstance(event, Confirmation):
                    confirmed += event.last - event.first + 1
        moved += len(taken)
    rate = moved / (time.monotonic() - began)
    away.close()
    home.close()
    return rate


# ---------------------------------------------------------------- a profile


def steps(primary: Measured, secondary: Measured, messages: int = 5_000) -> dict[str, float]:
    """Microseconds a message of each thing that a worker does."""
    fill(secondary.connection_string, messages, (ASIDE,))
    away = ServiceBusClient.from_connection_string(secondary.connection_string)
    home = ServiceBusClient.from_connection_string(primary.connection_string)
    figures: dict[str, float] = {}

    def timed(name: str, act: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = act()
        figures[name] = (time.perf_counter() - began) / messages * 1e6
        return result

    with away, home:
        receiver, sender = raw.receiver(away, ASIDE), raw.sender(home, HOME)
        sender.ready()

        def take() -> list[raw.RawDelivery]:
            taken: list[raw.RawDelivery] = []
            while len(taken) < messages:
                taken += receiver.take(500)
            return taken

        taken = timed("receive (SDK link, raw bytes)", take)
        rows = [ReceivedMessage(ASIDE, each.lock_token, each.message, 0) for each in taken]
        schema = arrow_schema(BACKLOG_COLUMNS)
        record_batch(rows[:1], schema)  # what it imports is not a message's cost
        timed("read columns into Arrow", lambda: record_batch(rows, schema))
        opened = timed("open envelopes", lambda: [envelope.unwrap(e.message)[1] for e in taken])

        def send() -> None:
            for part in in_transfers([len(each) for each in opened], sender.limit):
                sender.send(opened[part])

        timed("send (SDK link, batches)", send)
        tokens: list[UUID] = [each.lock_token for each in taken]
        timed("complete by token, 1,000 at once", lambda: receiver.complete(tokens))
        receiver.close()
        sender.close()
    return figures


# ---------------------------------------------------------------- the run


def measure(messages: int, large: int, rounds: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    primary, secondary = namespaces()
    with primary, secondary:
        figures["cold_s"] = cold(primary, secondary)
        print(f"first message home, cold: {figures['cold_s']:.1f} s", flush=True)
        bare = [asyncio.run(bare_loop(primary, secondary, BARE_MESSAGES)) for _ in range(rounds)]
        own = [own_client(primary, secondary, BARE_MESSAGES * 2) for _ in range(rounds)]
        figures["steps_us"] = steps(primary, secondary)
        figures["bare_per_s"], figures["own_client_per_s"] = bare, own
        print(f"bare SDK loop: {_spread(bare)}/s; own wire code: {_spread(own)}/s", flush=True)
        with running(primary, secondary) as syphon:
            figures |= warm(secondary, syphon)
            figures |= drains(primary, secondary, syphon, messages, rounds)
            figures["memory_mb"] = memory(secondary, syphon, large)
    ratio = statistics.median(figures["drain_per_s"]) / statistics.median(bare)
    figures["ratio"] = ratio
    return figures


def cold(primary: Measured, secondary: Measured) -> float:
    fill(secondary.connection_string, 10)
    with running(primary, secondary) as syphon:
        took = syphon.until(1, 120) - syphon.started
        syphon.until(10, 60)  # so that none is left to whoever comes next
        return took


def warm(secondary: Measured, syphon: Running) -> dict[str, Any]:
    """Latency of a message that comes while nothing else does, and what waiting costs."""
    found = latencies(secondary, syphon, 10)
    cpu, began = sum(syphon.cpu().values()), time.monotonic()
    time.sleep(30)
    share = (sum(syphon.cpu().values()) - cpu) / (time.monotonic() - began)
    print(f"warm: {_spread(found, 2)} s; idle: {share:.2%} of a core", flush=True)
    return {"warm_s": found, "idle_share": share}


def latencies(secondary: Measured, syphon: Running, count: int) -> list[float]:
    """Seconds of single messages, after the first few have warmed it up."""
    fill(secondary.connection_string, 10)
    syphon.until(10, 120)
    found = []
    for _ in range(count):
        before, began = syphon.moved(), time.monotonic()
        fill(secondary.connection_string, 1, QUEUES[:1])
        found.append(syphon.until(before + 1) - began)
        time.sleep(0.3)
    return found


def drains(
    primary: Measured, secondary: Measured, syphon: Running, messages: int, rounds: int
) -> dict[str, Any]:
    rates, spent = [], {}
    for _ in range(rounds):
        before = syphon.moved()
        with stopped(syphon):
            fill(secondary.connection_string, messages)
            cpu = {**syphon.cpu(), "broker home": primary.cpu_s(), "broker away": secondary.cpu_s()}
        began = time.monotonic()  # progress is told a round, so all of it is timed
        rates.append(messages / (syphon.until(before + messages) - began))
        now = {**syphon.cpu(), "broker home": primary.cpu_s(), "broker away": secondary.cpu_s()}
        spent = {name: (now[name] - cpu.get(name, 0)) / messages * 1e6 for name in now}
        print(f"drained {messages} at {rates[-1]:,.0f}/s", flush=True)
    return {"drain_per_s": rates, "cpu_us_a_message": spent}


@contextmanager
def stopped(syphon: Running) -> Iterator[None]:
    """While the backlog is filled, the syphon must not drain it."""
    processes = syphon.tree()
    try:
        for each in processes:
            with suppress(psutil.NoSuchProcess):  # Spark's helpers come and go
                each.suspend()
        yield
    finally:
        for each in reversed(processes):
            with suppress(psutil.NoSuchProcess):
                each.resume()


def memory(secondary: Measured, syphon: Running, large: int) -> dict[str, float]:
    """Of the whole tree of processes, after 10,000 messages and after many."""
    found = {}
    for count in (10_000, large):
        before = syphon.moved()
        fill(secondary.connection_string, count)
        syphon.until(before + count, 3600)
        found[str(count)] = syphon.rss_mb()
        print(f"memory after {count:,} messages: {found[str(count)]:.0f} MB", flush=True)
    return found


def _spread(values: list[float], digits: int = 0) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    figures = measure(given.messages, given.large, given.rounds)
    print(f"syphon {_spread(figures['drain_per_s'])}/s = {figures['ratio']:.1f} x the bare loop")
    print("where a message's time goes, CPU microseconds by process:")
    for name, value in sorted(figures["cpu_us_a_message"].items()):
        print(f"  {name:20} {value:6.0f}")
    print("... and by step in a worker, microseconds:")
    for name, value in figures["steps_us"].items():
        print(f"  {name:34} {value:6.1f}")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
