"""Waiting for many queues: who is awake, who is asked again, and how often."""

from __future__ import annotations

import socket
import struct
import threading
import time

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError
from tests.syphons import until
from tests.times import is_prompt

from twinbus.errors import first_line
from twinbus.spark import watch as watching
from twinbus.spark.watch import Line, Watch


class Phone:
    """A line that rings when told to, with a real socket to be selected on."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self.watches = self.let = 0
        self.broken = False
        self.error: Exception = ServiceBusConnectionError(message="cut off")

    def ring(self) -> None:
        self._there.send(b"!")

    def watch(self) -> None:
        self.watches += 1
        if self.broken:
            raise self.error

    def heard(self) -> bool:
        if self.broken:
            raise self.error
        self._here.setblocking(False)
        try:
            return bool(self._here.recv(1))
        except BlockingIOError:
            return False

    def let_go(self) -> int:
        self.let += 1
        return 1

    def fileno(self) -> int:
        return self._here.fileno()

    def close(self) -> None:
        self._here.close()
        self._there.close()


@pytest.fixture
def phones() -> list[Phone]:
    return [Phone(), Phone()]


@pytest.fixture(autouse=True)
def hung_up(phones: list[Phone]) -> object:
    yield
    for phone in phones:
        phone.close()


def lines(phones: list[Phone]) -> dict[str, Line]:
    return {str(index): phone for index, phone in enumerate(phones)}


def test_nobody_is_awake_when_the_time_is_up(phones: list[Phone]) -> None:
    assert Watch(lines(phones)).wait(0.05) == []
    assert [phone.watches for phone in phones] == [1, 1]


def test_the_one_that_rings_is_awake_at_once_and_the_other_stays_asked(
    phones: list[Phone],
) -> None:
    watch = Watch(lines(phones))
    watch.wait(0)
    phones[1].ring()
    began = time.monotonic()
    assert watch.wait(30) == ["1"]
    assert is_prompt(began, 5)
    watch.let_go(["1"])
    watch.wait(0)
    assert [phone.watches for phone in phones] == [1, 2]
    assert [phone.let for phone in phones] == [0, 1]


def test_the_time_to_wait_begins_when_all_have_been_asked(phones: list[Phone]) -> None:
    """Opening a link may take longer than somebody wants to wait for a message."""
    watch = Watch(lines(phones))
    opened = phones[0].watch

    def slowly() -> None:
        time.sleep(0.2)
        opened()
        threading.Timer(0.05, phones[0].ring).start()

    phones[0].watch = slowly  # type: ignore[method-assign]
    assert watch.wait(0.15) == ["0"]


def test_a_long_poll_ends_and_is_begun_again(phones: list[Phone]) -> None:
    watch = Watch(lines(phones), long_poll_s=0.1)

    def asked() -> int:
        watch.wait(0.02)
        return phones[0].watches

    until(asked, lambda count: count == 3, 10)
    assert phones[0].let == 2


@pytest.mark.parametrize(
    "error", [ServiceBusConnectionError(message="cut off"), KeyError(7), struct.error("short")]
)
def test_a_line_that_is_cut_is_asked_again_later_and_the_others_go_on(
    phones: list[Phone], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whatever it raises: what an SDK makes of an odd answer nobody can list."""
    monkeypatch.setattr(watching, "FIRST_RETRY_S", 0.05)
    told: list[tuple[str, str | None]] = []
    watch = Watch(lines(phones), told=lambda queue, trouble: told.append((queue, trouble)))
    phones[0].error = error
    phones[0].broken = True
    phones[1].ring()
    assert watch.wait(5) == ["1"]
    watch.let_go(["1"])
    asked = phones[0].watches
    phones[0].broken = False

    def again() -> int:
        watch.wait(0.02)
        return phones[0].watches

    until(again, lambda count: count > asked, 10)
    phones[0].ring()
    assert watch.wait(5) == ["0"]
    assert told[0] == ("0", first_line(error))
    assert told[-1] == ("0", None)


def test_a_ledger_that_fails_is_no_reason_not_to_watch(phones: list[Phone]) -> None:
    def asked(queue: str) -> None:
        raise OSError("no space left")

    watch = Watch(lines(phones), asked=asked)
    phones[1].ring()
    assert watch.wait(5) == ["1"]


def test_a_line_that_stays_cut_does_not_keep_the_watch_busy(phones: list[Phone]) -> None:
    phones[0].broken = True
    watch = Watch(lines(phones))
    used = time.process_time()
    assert watch.wait(1.2) == []
    assert phones[0].watches <= 3
    assert time.process_time() - used < 0.5
