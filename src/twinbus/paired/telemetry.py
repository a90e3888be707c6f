"""Events as log lines, OpenTelemetry metrics and spans. Without an OpenTelemetry SDK set up in the
application, metrics and spans are no-ops."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from opentelemetry import metrics, trace

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
    """Tells everybody who listens. A listener that fails is logged and does no harm."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def add(self, listener: Listener) -> Callable[[], None]:
        """Listen; call what is returned to stop."""
        self._listeners = [*self._listeners, listener]

        def stop() -> None:
            self._listeners = [each for each in self._listeners if each is not listener]

        return stop

    def announce(self, event: PairingEvent) -> None:
        _LOGGER.log(_LEVELS.get(type(event), logging.INFO), "%s", event)
        _measure(event)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                _LOGGER.exception("a listener failed on %s", type(event).__name__)


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
