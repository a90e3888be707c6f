"""Events as log lines, OpenTelemetry metrics and spans. Without an OpenTelemetry SDK set up in the
application, metrics and spans are no-ops."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Final

from opentelemetry import metrics, trace

from twinbus.health import Health
from twinbus.paired.events import (
    BacklogQueueIn,
    BacklogQueueOut,
    Closed,
    Diverted,
    EntityEvent,
    Faulted,
    MessagesDiverted,
    PairingEvent,
    Pinged,
    Restored,
    Suspected,
    SyphonEnded,
    SyphonStarted,
)

Listener = Callable[[PairingEvent], None]

_LOGGER = logging.getLogger("twinbus.paired")
_LEVELS: Final = {
    Suspected: logging.WARNING,
    Diverted: logging.WARNING,
    BacklogQueueOut: logging.WARNING,
    Faulted: logging.ERROR,
    SyphonEnded: logging.ERROR,
    SyphonStarted: logging.INFO,
    Restored: logging.INFO,
    BacklogQueueIn: logging.INFO,
    Closed: logging.INFO,
    Pinged: logging.INFO,
    MessagesDiverted: logging.DEBUG,
}

TRACER = trace.get_tracer("twinbus.paired")
_TRACING = Health(_LOGGER)
_METER = metrics.get_meter("twinbus.paired")
_EVENTS = _METER.create_counter(
    "twinbus.paired.events", description="What happened to a pairing, by kind"
)
_MESSAGES = _METER.create_counter(
    "twinbus.paired.diverted.messages", unit="{message}", description="Messages sent to the backlog"
)
_BYTES = _METER.create_counter(
    "twinbus.paired.diverted.bytes", unit="By", description="Bytes sent to the backlog"
)
_OUT = _METER.create_up_down_counter(
    "twinbus.paired.entities.diverted", description="Entities whose sends go to the backlog"
)


class Announcer:
    """Tells everybody: the log, the meters, and who listens. Whichever of them fails is logged, and
    comes between nobody and a send."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._health = Health(_LOGGER)

    def add(self, listener: Listener) -> Callable[[], None]:
        """Listen; call what is returned to stop."""
        self._listeners = [*self._listeners, listener]

        def stop() -> None:
            self._listeners = [each for each in self._listeners if each is not listener]

        return stop

    def announce(self, event: PairingEvent) -> None:
        where = event.entity if isinstance(event, EntityEvent) else event.namespace
        self._health.attempt("logging", where, _log, event)
        self._health.attempt("measuring", where, _measure, event)
        for listener in self._listeners:
            what = f"telling the listener {_name(listener)}"
            self._health.attempt(what, where, listener, event)


class Traced:
    """A span around what is done for an entity. A tracer that fails is logged, and no more."""

    __slots__ = ("_name", "_path", "_queue", "_span")

    def __init__(self, name: str, path: str, queue: str = "") -> None:
        """``queue`` is that of the backlog, if it is used."""
        self._name = name
        self._path = path
        self._queue = queue
        self._span = ExitStack()

    def __enter__(self) -> None:
        _TRACING.attempt(self._name, self._path, self._begin)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._span.__exit__(kind, error, trace)
        except Exception as odd:  # noqa: BLE001  a tracer may pass on what it was told, or fail itself
            if odd is not error:
                _TRACING.failed(self._name, self._path, odd)

    def _begin(self) -> None:
        span = self._span.enter_context(TRACER.start_as_current_span(self._name))
        span.set_attribute("messaging.destination.name", self._path)
        if self._queue:
            span.set_attribute("twinbus.backlog.queue", self._queue)


def _name(listener: Listener) -> str:
    return getattr(listener, "__qualname__", type(listener).__qualname__)


def _log(event: PairingEvent) -> None:
    _LOGGER.log(_LEVELS.get(type(event), logging.INFO), "%s", event)


def _measure(event: PairingEvent) -> None:
    attributes: dict[str, str | bool] = {"namespace": event.namespace}
    if isinstance(event, EntityEvent):
        attributes["entity"] = event.entity
    if isinstance(event, Diverted):
        _OUT.add(1, attributes)
    elif isinstance(event, Restored):
        _OUT.add(-1, attributes)
    elif isinstance(event, MessagesDiverted):
        _MESSAGES.add(event.messages, {**attributes, "queue": event.queue})
        _BYTES.add(event.bytes, {**attributes, "queue": event.queue})
    elif isinstance(event, Pinged):
        attributes["succeeded"] = event.succeeded
    _EVENTS.add(1, {**attributes, "event": type(event).__name__})
