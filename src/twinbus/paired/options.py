"""How two namespaces are paired: checked when it is written down, not when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakMethod

from azure.servicebus import ServiceBusClient
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncServiceBusAdministrationClient,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from twinbus.classifier import Classifier, classify
from twinbus.client_errors import PairingError

DEFAULT_BACKLOG_QUEUE_COUNT: Final = 10
DEFAULT_FAILOVER_INTERVAL: Final = timedelta(minutes=1)
DEFAULT_PING_INTERVAL: Final = timedelta(minutes=1)
# What a send that names no time-out may take, the SDK's own retries included. Without a bound, a
# primary that takes the connection and says nothing would never be seen to have failed.
DEFAULT_OPERATION_TIMEOUT: Final = timedelta(seconds=60)
# The least time in which a send may be tried again on the primary. The SDK's own retries begin
# 1.6, 4.8 and 11.2 seconds after the first attempt: one of them outlives a connection that broke.
LEAST_RETRY_WINDOW: Final = timedelta(seconds=4.5)
# A backlog queue that failed is left alone for this long.
DEFAULT_BACKLOG_RETRY: Final = timedelta(minutes=1)

_FAILOVER_RANGE = (timedelta(0), timedelta(minutes=60))
_PING_RANGE = (timedelta(seconds=1), timedelta(minutes=30))
_POSITIVE = (timedelta(milliseconds=1), timedelta(days=1))


@dataclass(slots=True)
class Use:
    """What ``pair_namespace`` made of options. It is kept beside them: they are their owner's, who
    may copy them, compare them and hand them out again."""

    found_queues: int | None = None
    # Weak, because the pairing has the options, and would keep them for ever.
    mark_healthy: WeakMethod[Callable[[str], None]] | None = None


_USES: WeakKeyDictionary[PairedNamespaceOptions, Use] = WeakKeyDictionary()


def use_of(options: PairedNamespaceOptions) -> Use:
    return _USES.setdefault(options, Use())


class PairedNamespaceOptions:
    """What every kind of pairing has: the secondary, and when to go there and come back."""

    def __init__(
        self,
        secondary_namespace_manager: Any,
        messaging_factory: Any,
        *,
        failover_interval: timedelta = DEFAULT_FAILOVER_INTERVAL,
        ping_primary_interval: timedelta = DEFAULT_PING_INTERVAL,
        operation_timeout: timedelta = DEFAULT_OPERATION_TIMEOUT,
        retry_window: timedelta | None = None,
        classifier: Classifier = classify,
    ) -> None:
        _check_kind(secondary_namespace_manager, messaging_factory)
        self.secondary_namespace_manager = secondary_namespace_manager
        self.messaging_factory = messaging_factory
        self.failover_interval = failover_interval
        self.ping_primary_interval = ping_primary_interval
        self.operation_timeout = operation_timeout
        self._retry_window: timedelta | None = None
        if retry_window is not None:
            self.retry_window = retry_window
        self.classifier = classifier

    @property
    def failover_interval(self) -> timedelta:
        """How long failures of one entity are accepted before it is diverted."""
        return self._failover_interval

    @failover_interval.setter
    def failover_interval(self, value: timedelta) -> None:
        self._failover_interval = _in_range("failover_interval", value, _FAILOVER_RANGE)

    @property
    def ping_primary_interval(self) -> timedelta:
        """How often an entity that is diverted is asked whether it is back."""
        return self._ping_primary_interval

    @ping_primary_interval.setter
    def ping_primary_interval(self, value: timedelta) -> None:
        self._ping_primary_interval = _in_range("ping_primary_interval", value, _PING_RANGE)

    @property
    def operation_timeout(self) -> timedelta:
        """What a send may take when its caller names no time-out."""
        return self._operation_timeout

    @operation_timeout.setter
    def operation_timeout(self, value: timedelta) -> None:
        self._operation_timeout = _in_range("operation_timeout", value, _POSITIVE)

    @property
    def retry_window(self) -> timedelta:
        """In what time from its beginning a send may be tried again on the primary, by the SDK's
        own retries. If it is not given, as long as failures are accepted, and 4.5 seconds at
        least."""
        if self._retry_window is None:
            return max(self.failover_interval, LEAST_RETRY_WINDOW)
        return self._retry_window

    @retry_window.setter
    def retry_window(self, value: timedelta) -> None:
        self._retry_window = _in_range("retry_window", value, _FAILOVER_RANGE)

    def mark_path_healthy(self, path: str) -> None:
        """Send to this entity again at once, whatever the pings say."""
        weak = use_of(self).mark_healthy
        if weak is None:
            raise PairingError(
                "mark_path_healthy works once the options are in use: pair_namespace(options) first"
            )
        mark_healthy = weak()
        if mark_healthy is not None:  # or nobody is left to send
            mark_healthy(path)


class SendAvailabilityPairedNamespaceOptions(PairedNamespaceOptions):
    """Sending goes on while the primary is out. The arguments are the documents' own."""

    def __init__(
        self,
        secondary_namespace_manager: Any,
        messaging_factory: Any,
        backlog_queue_count: int = DEFAULT_BACKLOG_QUEUE_COUNT,
        failover_interval: timedelta = DEFAULT_FAILOVER_INTERVAL,
        enable_syphon: bool = False,
        *,
        ping_primary_interval: timedelta = DEFAULT_PING_INTERVAL,
        operation_timeout: timedelta = DEFAULT_OPERATION_TIMEOUT,
        retry_window: timedelta | None = None,
        backlog_retry_interval: timedelta = DEFAULT_BACKLOG_RETRY,
        primary_name: str | None = None,
        classifier: Classifier = classify,
    ) -> None:
        super().__init__(
            secondary_namespace_manager,
            messaging_factory,
            failover_interval=failover_interval,
            ping_primary_interval=ping_primary_interval,
            operation_timeout=operation_timeout,
            retry_window=retry_window,
            classifier=classifier,
        )
        self.backlog_queue_count = backlog_queue_count
        self.enable_syphon = enable_syphon
        self.backlog_retry_interval = _in_range(
            "backlog_retry_interval", backlog_retry_interval, _POSITIVE
        )
        # The paths of the backlog queues begin with the primary's name: its first DNS label, unless
        # two primaries would share that (as namespaces on localhost do) and one is named here.
        self.primary_name = primary_name

    @property
    def backlog_queue_count(self) -> int:
        """How many backlog queues to use. After ``pair_namespace``, successful or not, how many of
        them are there; another ``pair_namespace`` asks for all of them again."""
        found = use_of(self).found_queues
        return self._wanted_queues if found is None else found

    @backlog_queue_count.setter
    def backlog_queue_count(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise PairingError(f"backlog_queue_count is {value!r}; give a number")
        if value < 1:
            raise PairingError(
                f"backlog_queue_count is {value}; it must be at least 1 "
                f"({DEFAULT_BACKLOG_QUEUE_COUNT} is a good number)"
            )
        self._wanted_queues = value
        use_of(self).found_queues = None


def _check_kind(manager: Any, factory: Any) -> None:
    managers = (ServiceBusAdministrationClient, AsyncServiceBusAdministrationClient)
    if not isinstance(manager, managers):
        raise PairingError(
            f"secondary_namespace_manager is a {type(manager).__name__}; give a NamespaceManager "
            "for the secondary namespace"
        )
    if not isinstance(factory, (ServiceBusClient, AsyncServiceBusClient)):
        raise PairingError(
            f"messaging_factory is a {type(factory).__name__}; give a MessagingFactory for the "
            "secondary namespace"
        )


def _in_range(name: str, value: timedelta, bounds: tuple[timedelta, timedelta]) -> timedelta:
    low, high = bounds
    if not isinstance(value, timedelta):
        raise PairingError(f"{name} is {value!r}; give a datetime.timedelta")
    if not low <= value <= high:
        raise PairingError(f"{name} is {value}; it must be from {low} to {high}")
    return value
