"""How far the syphon is: counted per destination, shown in a log, a terminal, and over HTTP.

rounds --> Progress --> Listener (on Spark's query events) --> log, progress bar
                   \\-> http: /metrics for Prometheus, /progress for the dashboard
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from twinbus.errors import first_line
from twinbus.exposition import MEDIA_TYPE, Kind, as_page, metric
from twinbus.homeward.rounds import Outcome, Tally

log = logging.getLogger("twinbus.syphon")


@dataclass
class Count:
    """What has become of the messages for one destination since the syphon started."""

    moved: int = 0
    failed: int = 0  # times one was left behind because its destination did not take it
    dead_lettered: int = 0
    duplicates: int = 0  # sent home but not settled in time, so sent again
    left: int | None = None  # still in the backlog; None while nobody has looked
    error: str | None = None


@dataclass
class Snapshot:
    """Everything at one moment."""

    destinations: dict[str, Count] = field(default_factory=dict)
    rounds: int = 0
    last_round_s: float = 0.0
    left: int | None = None
    left_is_exact: bool = True
    oldest: float | None = None  # when the oldest of them came, in seconds since 1970
    # By entity, or part of the syphon, what does not work now and is tried again.
    troubles: dict[str, str] = field(default_factory=dict)
    restarts: int = 0  # times the query had failed and was started again

    @property
    def moved(self) -> int:
        return sum(count.moved for count in self.destinations.values())

    @property
    def dead_lettered(self) -> int:
        return sum(count.dead_lettered for count in self.destinations.values())

    @property
    def duplicates(self) -> int:
        return sum(count.duplicates for count in self.destinations.values())

    @property
    def failed(self) -> int:
        return sum(count.failed for count in self.destinations.values())

    def as_json(self) -> dict[str, Any]:
        totals = {
            "moved": self.moved,
            "failed": self.failed,
            "dead_lettered": self.dead_lettered,
            "duplicates": self.duplicates,
        }
        return {**totals, **asdict(self)}


class Progress:
    """The counts. Rounds write, anybody reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = Snapshot()
        self._looked_at_round = 0
        self._troubles: dict[str, dict[str, str]] = {}

    def learn(self, tallies: Iterable[Tally], took_s: float) -> None:
        with self._lock:
            self._now.rounds += 1
            self._now.last_round_s = round(took_s, 3)
            for tally in tallies:
                self._add(tally)

    def _add(self, tally: Tally) -> None:
        count = self._now.destinations.setdefault(tally.destination, Count())
        match tally.outcome:
            case Outcome.MOVED:
                count.moved += tally.messages
                count.error = None
            case Outcome.DUPLICATED:
                count.duplicates += tally.messages
            case Outcome.DEAD:
                count.dead_lettered += tally.messages
            case Outcome.FAILED | Outcome.BUSY:
                count.failed += tally.messages
        if tally.outcome in (Outcome.FAILED, Outcome.BUSY):
            count.error = tally.error

    def look(
        self, left: Mapping[str, int], total: int, *, exact: bool, oldest: float | None = None
    ) -> None:
        """What a look into the backlog found, by destination."""
        with self._lock:
            for count in self._now.destinations.values():
                count.left = 0
            for destination, messages in left.items():
                self._now.destinations.setdefault(destination, Count()).left = messages
            self._now.left, self._now.left_is_exact = total, exact
            self._now.oldest = oldest
            self._looked_at_round = self._now.rounds

    def trouble(self, kind: str, now: Mapping[str, str]) -> None:
        """All that there is of one kind now. What is new of it is logged."""
        with self._lock:
            before, self._troubles[kind] = self._troubles.get(kind, {}), dict(now)
        for entity, said in now.items():
            if before.get(entity) != said:
                log.warning("%s: %s", entity, said)
        for entity in before.keys() - now.keys():
            log.warning("%s is well again", entity)

    def restarted(self) -> None:
        with self._lock:
            self._now.restarts += 1

    def is_stale(self) -> bool:
        """Whether there was a round since the last look."""
        return self._looked_at_round != self._now.rounds

    def snapshot(self) -> Snapshot:
        with self._lock:
            counts = {name: Count(**asdict(each)) for name, each in self._now.destinations.items()}
            troubles = dict(each for kind in self._troubles.values() for each in kind.items())
            return replace(self._now, destinations=counts, troubles=troubles)


class Listener(StreamingQueryListener):
    """Tells whoever wants to know whenever Spark says that the query got on, idles or ended."""

    def __init__(
        self,
        progress: Progress,
        tell: Callable[[Snapshot], None],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._progress = progress
        self._tell = tell
        self._look = look
        self._last = Snapshot()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's name
        log.info("the syphon has started")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  Spark's name
        self._guarded("telling the progress", self._publish)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  Spark's name
        if self._progress.is_stale():
            self._guarded("the look into the backlog", self._look)
        self._guarded("telling the progress", self._publish)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  Spark's name
        self._guarded("telling the progress", self._publish)

    def _guarded(self, what: str, act: Callable[[], None]) -> None:
        """Spark would not say that it failed."""
        try:
            act()
        except Exception as error:
            log.debug("%s failed", what, exc_info=True)
            self._progress.trouble(what, {what: first_line(error)})
        else:
            self._progress.trouble(what, {})

    def _publish(self) -> None:
        now, last = self._progress.snapshot(), self._last
        self._last = now
        self._tell(now)
        for name, count in now.destinations.items():
            before = last.destinations.get(name, Count())
            if count != before:
                log.info("%s: %s", name, _words(count))
            if count.error and count.error != before.error:
                log.warning("%s does not take messages: %s", name, count.error)


def _words(count: Count) -> str:
    words = [f"{count.moved} moved"]
    words += [f"{count.failed} failed"] if count.failed else []
    words += [f"{count.dead_lettered} dead-lettered"] if count.dead_lettered else []
    words += [f"{count.duplicates} duplicates"] if count.duplicates else []
    words += [f"{count.left} left"] if count.left is not None else []
    return ", ".join(words)


# ---------------------------------------------------------------- over HTTP

_METRICS: tuple[tuple[str, Kind, str], ...] = (
    ("moved", "counter", "Messages that went home."),
    ("failed", "counter", "Times a message was left because its destination did not take it."),
    ("dead_lettered", "counter", "Messages that can never be delivered."),
    ("duplicates", "counter", "Messages sent home that could not be settled and go again."),
    ("left", "gauge", "Messages in the backlog."),
)


def prometheus_text(snapshot: Snapshot, now: float) -> str:
    """The counts as Prometheus reads them; ``now`` is in seconds since 1970."""
    return as_page(_lines(snapshot, now))


def _lines(snapshot: Snapshot, now: float) -> Iterator[str]:
    for name, kind, text in _METRICS:
        counts = sorted(snapshot.destinations.items())
        values = [({"destination": each}, getattr(count, name)) for each, count in counts]
        known = [(labels, value) for labels, value in values if value is not None]
        yield from metric(f"syphon_{name}", kind, text, known)
    yield from metric("syphon_rounds", "counter", "Rounds.", [({}, snapshot.rounds)])
    yield from metric(
        "syphon_last_round_seconds",
        "gauge",
        "How long the last round took.",
        [({}, snapshot.last_round_s)],
    )
    waited = 0.0 if snapshot.oldest is None else max(0.0, now - snapshot.oldest)
    yield from metric(
        "syphon_lag_seconds",
        "gauge",
        "How long the oldest message has waited in the backlog, when it was last looked at.",
        [] if snapshot.left is None else [({}, round(waited, 3))],
    )


class ProgressServer:
    """``/metrics``, ``/progress`` and ``/health`` on loopback. It shows names and counts, and takes
    nothing."""

    def __init__(self, progress: Progress, port: int, host: str = "127.0.0.1") -> None:
        self._server = _Server((host, port), _handler(progress))
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """One who asks and goes away, or an answer that failed: the next is served all the same."""
        log.debug("a request for the progress failed", exc_info=True)


def _handler(progress: Progress) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            snapshot = progress.snapshot()
            if self.path == "/metrics":
                self._answer(MEDIA_TYPE, prometheus_text(snapshot, time.time()))
            elif self.path == "/progress":
                self._answer("application/json", json.dumps(snapshot.as_json()))
            elif self.path == "/health":
                well = not snapshot.troubles
                said = {"status": "ok" if well else "trouble", "troubles": snapshot.troubles}
                self._answer("application/json", json.dumps(said), 200 if well else 503)
            else:
                self.send_error(404, "there is /metrics, /progress and /health")

        def _answer(self, kind: str, text: str, status: int = 200) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name there
            log.debug(format, *args)

    return Handler
