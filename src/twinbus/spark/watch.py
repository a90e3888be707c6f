"""Waiting for messages in many queues at once, at the price of one receive a queue and long poll.

Each queue gets a link with credit for one message, and the process sleeps until one of the sockets
has something to say. What comes is only a sign: it is given back to its place in the queue before
anybody receives there in earnest.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from twinbus.errors import first_line

log = logging.getLogger("twinbus.syphon")

LONG_POLL_S: Final = 900.0
# A queue whose broker does not answer is asked again after this long, then twice as long, ...
FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 15.0
# How often a link is looked at though its socket is quiet: tokens and heartbeats fall due.
UPKEEP_S: Final = 20.0


class Line(Protocol):
    """What is needed of a receiver."""

    def watch(self) -> None: ...
    def heard(self) -> bool: ...
    def let_go(self) -> int: ...
    def fileno(self) -> int: ...


class Watch:
    """Who is awake. ``lines`` has a receiver a queue."""

    def __init__(
        self,
        lines: dict[str, Line],
        long_poll_s: float = LONG_POLL_S,
        asked: Callable[[str], None] = lambda queue: None,
        told: Callable[[str, str | None], None] = lambda queue, trouble: None,
    ) -> None:
        """``asked`` is told of each receive; ``told`` that a queue does not answer and why, and,
        with None, that it does again."""
        self._lines = lines
        self._long_poll_s = long_poll_s
        self._asked = asked
        self._told = told
        self._armed: dict[str, float] = {}  # since when
        self._looked: dict[str, float] = {}
        self._out: dict[str, tuple[float, float]] = {}  # until when, and how long then

    def wait(self, within_s: float) -> list[str]:
        """The queues that have a message, as soon as there is one; none if the time is up."""
        self._arm()
        # The time begins when the links are open: before that no message could have been seen.
        ends = time.monotonic() + within_s
        while True:
            self._arm()
            awake = [queue for queue in list(self._armed) if self._is_awake(queue)]
            left = ends - time.monotonic()
            if awake or left <= 0:
                return awake
            self._sleep(min(left, UPKEEP_S))

    def let_go(self, queues: Iterable[str]) -> None:
        """Give back what woke us."""
        for queue in queues:
            self._armed.pop(queue, None)
            try:
                self._lines[queue].let_go()
            except Exception as error:  # noqa: BLE001  one queue's trouble is not the others'
                self._put_out(queue, error)

    def _arm(self) -> None:
        now = time.monotonic()
        for queue, line in self._lines.items():
            since = self._armed.get(queue)
            if since is not None and now - since < self._long_poll_s:
                continue
            if queue in self._out and now < self._out[queue][0]:
                continue
            try:
                if since is not None:
                    line.let_go()
                line.watch()
            except Exception as error:  # noqa: BLE001  one queue's trouble is not the others'
                self._put_out(queue, error)
            else:
                self._armed[queue] = self._looked[queue] = now
                if self._out.pop(queue, None) is not None:
                    self._told(queue, None)
                self._note(queue)

    def _note(self, queue: str) -> None:
        try:
            self._asked(queue)
        except Exception as error:  # noqa: BLE001  whoever keeps books may fail; the watch goes on
            log.warning("a receive of %s could not be recorded: %s", queue, first_line(error))

    def _is_awake(self, queue: str) -> bool:
        line, now = self._lines[queue], time.monotonic()
        try:
            quiet = not select.select([line], [], [], 0)[0]
            if quiet and now - self._looked[queue] < UPKEEP_S:
                return False
            self._looked[queue] = now
            return line.heard()
        except Exception as error:  # noqa: BLE001  one queue's trouble is not the others'
            self._put_out(queue, error)
            return False

    def _put_out(self, queue: str, error: Exception) -> None:
        self._armed.pop(queue, None)
        _, pause = self._out.get(queue, (0.0, FIRST_RETRY_S / 2))
        pause = min(LAST_RETRY_S, pause * 2)
        if pause == FIRST_RETRY_S:
            log.warning("%s does not answer; asking again: %s", queue, first_line(error))
        self._told(queue, first_line(error))
        self._out[queue] = (time.monotonic() + pause, pause)

    def _sleep(self, within_s: float) -> None:
        """Until a socket has something, or a queue that was out is due."""
        due = min((until for until, _ in self._out.values()), default=None)
        if due is not None:
            within_s = min(within_s, max(0.0, due - time.monotonic()))
        lines: Sequence[Line] = [self._lines[queue] for queue in self._armed]
        try:
            select.select(lines, [], [], within_s)
        except (OSError, ValueError, AttributeError):
            return  # a link that died under our hands; the next look says so
