"""How fast the broker is: `make bench-broker`, or with names of figures to run only those.

Every figure says what it is and how it was taken. The load comes from another process over
loopback: the lean client of `load.py` where the broker is measured, the SDK where people's programs
are. Rates depend on the machine and on what else it does, so each is given with the broker's own
CPU time, which depends on neither so much.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from harness.raw import Raw, kilobyte_message, parse_connection_string, sas_token

from bench.node import OUTSTANDING, rate, turn
from bench.process import ROOT, Measured, namespace_toml
from twinbus.amqp.message import Properties

MESSAGES = 80_000
ROUNDS = 5
DEEP = 1_000_000
CONNECTIONS = 2_000
SENDERS = 10
FILTERS = 1_000
QUEUES = 10_000

failures: list[str] = []


def report(name: str, figure: str, goal: str, met: bool, how: str) -> None:
    mark = "met" if met else "MISSED"
    print(f"{name}\n    {figure}   (goal: {goal}: {mark})\n    {how}\n", flush=True)
    if not met:
        failures.append(name)


def messages(count: int, size: int = 1024) -> Iterator[bytes]:
    return (kilobyte_message(index, size) for index in range(count))


# ---------------------------------------------------------------- queues


def ready() -> None:
    times = []
    for _ in range(ROUNDS):
        with Measured() as broker:
            times.append(broker.ready_s)
    report(
        "time to ready",
        f"{min(times):.2f} to {max(times):.2f} s",
        "about 1 s",
        min(times) < 1.5,
        f"from starting the process to an answer of GET /health, an empty folder, {ROUNDS} starts",
    )


def throughput() -> None:
    """Send, then receive and settle, the same messages; the best of some rounds."""
    payloads = list(messages(MESSAGES))
    with Measured() as broker:
        raw = Raw(broker.connection_string)
        turns = [turn(broker, raw, "q", payloads) for _ in range(ROUNDS)]
        raw.close()
    sent = [each.sent_per_s for each in turns]
    received = [each.received_per_s for each in turns]
    report(
        "durable send",
        f"{_spread(sent)} messages/s, {min(each.send_cpu_us for each in turns):.0f} us of the "
        "broker's CPU each",
        "25,000/s",
        max(sent) >= 25_000,
        f"raw AMQP, 1 KB, one connection, {OUTSTANDING} outstanding, {MESSAGES} messages, "
        f"acknowledged after the commit at synchronous=FULL, {ROUNDS} rounds",
    )
    report(
        "receive and settle one by one",
        f"{_spread(received)} messages/s, {min(each.receive_cpu_us for each in turns):.0f} us of "
        "CPU each",
        "20,000/s",
        max(received) >= 20_000,
        f"the same messages, credit {OUTSTANDING}, a disposition each, counted when the broker "
        "has confirmed it after the commit",
    )


def _spread(rates: list[float]) -> str:
    return f"{max(rates):,.0f} (worst of {len(rates)}: {min(rates):,.0f})"


# ---------------------------------------------------------------- the SDK


async def _sdk_senders(connection_string: str, seconds: float) -> int:
    """How many single sends ten senders get through, one after the other each."""
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        senders = [client.get_queue_sender("q") for _ in range(SENDERS)]
        for sender in senders:
            await sender.__aenter__()
        body = b"y" * 1024
        end = time.perf_counter() + seconds

        async def send(sender: ServiceBusSender) -> int:
            count = 0
            while time.perf_counter() < end:
                await sender.send_messages(ServiceBusMessage(body))
                count += 1
            return count

        counts = await asyncio.gather(*(send(sender) for sender in senders))
        for sender in senders:
            await sender.close()
        return sum(counts)


def sdk_main() -> None:
    """The senders' process: how many sends, on standard output."""
    print(asyncio.run(_sdk_senders(sys.argv[1], float(sys.argv[2]))))


def _sdk_rate(connection_string: str, seconds: float) -> float:
    code = "from bench.broker import sdk_main; sdk_main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, connection_string, str(seconds)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    return int(done.stdout) / seconds


def sdk() -> None:
    """A, B, A, B, ...: so that what else the machine does falls on both."""
    durable, forgetful = [], []
    with Measured() as stored, Measured(stored=False) as unstored:
        for _ in range(ROUNDS):
            forgetful.append(_sdk_rate(unstored.connection_string, 4))
            durable.append(_sdk_rate(stored.connection_string, 4))
    ratio = sum(durable) / sum(forgetful)
    report(
        "ten SDK senders, durable against not stored at all",
        f"{ratio:.2f} ({_spread(durable)} against {_spread(forgetful)} messages/s)",
        "0.90",
        ratio >= 0.9,
        f"azure-servicebus, asyncio, {SENDERS} senders in one process, single 1 KB sends; the "
        f"other broker has storing switched off; {ROUNDS} rounds of 4 s each in turn",
    )


# ---------------------------------------------------------------- memory


def connections() -> None:
    with Measured() as broker:
        Raw(broker.connection_string).close()
        before = broker.rss_mb()
        held = [Raw(broker.connection_string) for _ in range(CONNECTIONS)]
        time.sleep(1)
        each_kb = (broker.rss_mb() - before) * 1024 / CONNECTIONS
        for raw in held:
            raw.socket.close()
    report(
        "idle connections",
        f"{each_kb:.1f} KB each",
        "under 20 KB",
        each_kb < 20,
        f"resident memory of the broker with {CONNECTIONS} connections, opened and authorized, "
        "less that without, divided by their number",
    )


def depth() -> None:
    with Measured() as broker:
        raw = Raw(broker.connection_string)
        raw.send("q", messages(1_000), OUTSTANDING)
        raw.receive("q", 1_000, OUTSTANDING)
        empty = broker.rss_mb()
        raw.send("q", messages(DEEP), OUTSTANDING)
        full = broker.rss_mb()
        raw.close()
    report(
        "memory with a million messages queued",
        f"{full:.0f} MB against {empty:.0f} MB: {full - empty:.0f} MB more",
        "100 MB",
        full - empty < 100,
        f"resident memory after {DEEP:,} messages of 1 KB, less that of the same broker after a "
        "thousand had come and gone",
    )


# ---------------------------------------------------------------- topics and management


def _filters_toml() -> str:
    lines = ['[[namespace.topic]]\nname = "t"\nmax_size_mb = 81920']
    for index in range(FILTERS):
        lines.append(f'[[namespace.topic.subscription]]\nname = "s{index}"')
        lines.append(
            '[[namespace.topic.subscription.rule]]\nname = "r"\n'
            f'correlation = {{ label = "l{index}" }}'
        )
    return namespace_toml("\n".join(lines))


def _labelled(index: int) -> bytes:
    body = b"\x00\x53\x75\xb0" + (1024).to_bytes(4) + b"y" * 1024
    label = f"l{index % FILTERS}"
    return Properties(message_id=f"{index:032d}", subject=label).encoded() + body


def routing() -> None:
    count = MESSAGES // 4
    with Measured(_filters_toml()) as broker:
        raw = Raw(broker.connection_string)
        payloads = [_labelled(index) for index in range(count)]
        rates = [rate(lambda: raw.send("t", iter(payloads), OUTSTANDING)) for _ in range(ROUNDS)]
        raw.close()
    report(
        "a topic with 1,000 correlation filters",
        f"{_spread(rates)} messages/s",
        "5,000/s",
        max(rates) >= 5_000,
        f"{FILTERS} subscriptions with a filter each, every message matches one; otherwise as "
        f"'durable send', {count} messages a round",
    )


def list_pages(broker: Measured, queues: int) -> list[float]:
    """Milliseconds of each page of the list of queues."""
    parts = parse_connection_string(broker.connection_string)
    token = sas_token(broker.admin, parts["SharedAccessKeyName"], parts["SharedAccessKey"])
    times = []
    for skip in range(0, queues, 100):
        url = f"{broker.admin}/$Resources/queues?$skip={skip}&$top=100&api-version=2021-05"
        request = urllib.request.Request(url, headers={"Authorization": token})
        started = time.perf_counter()
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
        times.append((time.perf_counter() - started) * 1000)
    return times


def listing() -> None:
    queues = "\n".join(f'[[namespace.queue]]\nname = "q{n:05d}"' for n in range(QUEUES))
    with Measured(namespace_toml(queues)) as broker:
        times = sorted(list_pages(broker, QUEUES))
    report(
        "management list of 10,000 queues",
        f"median {times[len(times) // 2]:.1f} ms a page, slowest {times[-1]:.1f} ms",
        "under 50 ms a page",
        times[len(times) // 2] < 50,
        "100 queues a page over plain HTTP, from request to the last byte",
    )


FIGURES: dict[str, Callable[[], None]] = {
    "ready": ready,
    "throughput": throughput,
    "sdk": sdk,
    "connections": connections,
    "depth": depth,
    "routing": routing,
    "listing": listing,
}


def main() -> None:
    names = sys.argv[1:] or list(FIGURES)
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        sys.exit(f"no figure is called {unknown[0]}; there are {', '.join(FIGURES)}")
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, {Path(ROOT).name}\n")
    for name in names:
        FIGURES[name]()
    if failures:
        sys.exit(f"missed: {', '.join(failures)}")


if __name__ == "__main__":
    main()
