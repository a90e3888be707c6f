"""A namespace on disk without a server, and a clock that goes as fast as one likes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.raw import kilobyte_message

from twinbus.auth.access_rules import root_rule
from twinbus.broker.entry import Entry
from twinbus.broker.namespace import Namespace
from twinbus.broker.refusals import RequestError
from twinbus.broker.store import Store

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000


class Years:
    """A namespace on disk, and a clock that goes as fast as one likes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_ms = NOW_MS
        self.open()

    def open(self) -> None:
        self.store = Store(self.path)
        self.namespace = Namespace("home", self.store, [root_rule("a2V5")])
        self.directory = self.namespace.directory

    def reopen(self) -> None:
        self.store.close()
        self.open()

    def do(self, change: Callable[..., Any], *args: Any) -> Any:
        """Make a change that is told the time and calls back, and commit it."""
        answers: list[Exception | None] = []
        result = change(*args, self.now_ms, answers.append)
        self.commit()
        assert answers == [None]
        return result

    def commit(self) -> None:
        while self.store.batch:
            batch = self.store.take_batch()
            self.store.apply(batch)
            self.store.commit()
            self.namespace.committed(batch, None, self.now_ms)

    def go(self, minutes: float) -> None:
        """Let time pass, the broker looking now and then."""
        for _ in range(10):
            self.now_ms += int(minutes * MINUTE_MS / 10)
            self.namespace.tick(self.now_ms)
            self.commit()

    def send(self, path: str, number: int) -> None:
        payload = kilobyte_message(number)
        self.do(self.namespace.send, self.directory.entity(path), [payload])

    def bodies(self, path: str) -> int:
        return len(self.directory.resolve(path)[1].peek(0, 100))

    def paths(self) -> set[str]:
        return {entity.path for entity in self.directory.entities()}


class Taker:
    """Receives, and keeps what it gets."""

    deletes = False

    def __init__(self) -> None:
        self.tokens: list[bytes] = []

    def demand(self) -> int:
        return 10

    def reserve(self, count: int) -> None:
        raise AssertionError("it locks")

    def deliver(self, entry: Entry, token: bytes, locked_until_ms: int) -> None:
        self.tokens.append(token)

    def lose(self, error: RequestError) -> None:
        raise AssertionError(error)
