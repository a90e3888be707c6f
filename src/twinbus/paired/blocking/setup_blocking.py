# Generated from ../aio/setup.py by tools/unasync.py; change that file, not this one.
"""Setting up the secondary: the backlog queues are found, or made, and tried."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
)
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from twinbus.client_errors import PairingError
from twinbus.envelope import namespace_name, queue_path
from twinbus.errors import first_line
from twinbus.paired.blocking.link_blocking import plain_sender
from twinbus.paired.blocking.world_blocking import World, sleep
from twinbus.paired.options import SendAvailabilityPairedNamespaceOptions, use_of

_LOGGER = logging.getLogger("twinbus.paired")

FOREVER: Final = "P10675199DT2H48M5.4775807S"
# What the documents set explicitly; everything else is Service Bus's default.
BACKLOG_QUEUE: Final[dict[str, Any]] = {
    "max_size_in_megabytes": 5120,
    "max_delivery_count": 2_147_483_647,
    "default_message_time_to_live": FOREVER,
    "auto_delete_on_idle": FOREVER,
    "lock_duration": "PT1M",
    "dead_lettering_on_message_expiration": True,
    "enable_batched_operations": True,
}
ATTEMPTS = 3
PAUSE_S = 1.0
# What opening a link to a backlog queue may take.
OPEN_S = 10.0
# How long the manager waits for a secondary that says nothing, which by itself it does for an hour.
# Who says that it is busy is still tried again as the manager has it.
_PATIENCE: Final[dict[str, Any]] = {
    "connection_timeout": OPEN_S,
    "read_timeout": OPEN_S,
    "retry_connect": 0,
    "retry_read": 0,
}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")


def check_manager(manager: Any, primary: ServiceBusClient, secondary: ServiceBusClient) -> None:
    """Raise PairingError unless ``manager`` is the secondary's, and of this world. What a name does
    not tell, as on localhost, the trial finds out."""
    if not isinstance(manager, ServiceBusAdministrationClient):
        raise PairingError(
            "the secondary_namespace_manager must be a NamespaceManager of the same world as the "
            f"factories, not a {type(manager).__module__}.{type(manager).__name__}"
        )
    its, away = manager.fully_qualified_namespace, secondary.fully_qualified_namespace
    if _host(its) == _host(away) and (_same(its, away) or not _is_of(its, primary)):
        return
    raise PairingError(
        f"the secondary_namespace_manager is that of {its}, and the secondary is {away}: give a "
        "NamespaceManager for the secondary namespace"
    )


def _is_of(host: str, client: ServiceBusClient) -> bool:
    return _same(host, client.fully_qualified_namespace)


def _same(one: str, other: str) -> bool:
    return one.strip("/").lower() == other.strip("/").lower()


def _host(name: str) -> str:
    """Without a port: a broker may have another one for its managers."""
    host = name.strip("/").lower()
    host = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return _LOOPBACK[0] if host in _LOOPBACK else host


class Trial:
    """Whether the secondary's factory may do what it will have to do. Costs no message."""

    def __init__(
        self, secondary: ServiceBusClient, world: World, still: Callable[[], None], *, receive: bool
    ) -> None:
        """``still`` raises if nobody wants the pairing any longer."""
        self.still = still
        self._secondary = secondary
        self._world = world
        self._receive = receive

    def run(self, queues: list[str]) -> None:
        """Raise PairingError if it may not, or cannot. Queues take turns in being tried: one that
        does not answer is no reason not to pair, as there are others."""
        self._allowed("send to", "Send", queues, self._send)
        if self._receive:
            self._allowed("receive from", "Listen", queues, self._listen)

    def _allowed(
        self, what: str, claim: str, queues: list[str], act: Callable[[str], None]
    ) -> None:
        turns = (queues * ATTEMPTS)[:ATTEMPTS]
        _tried(
            lambda: act(turns.pop(0)),
            f"{what} the backlog queues on {self._secondary.fully_qualified_namespace}",
            f"the secondary's MessagingFactory needs a key or token with the {claim} claim",
            self.still,
        )

    def _send(self, queue: str) -> None:
        sender = plain_sender(self._secondary, queue, self._world)
        try:
            sender.warm(OPEN_S)
        finally:
            sender.drop_link()

    def _listen(self, queue: str) -> None:
        receiver: Any = ServiceBusClient.get_queue_receiver(self._secondary, queue)
        receiver._config.retry_total = 0
        try:
            receiver._do_retryable_operation(
                receiver._open, timeout=OPEN_S, operation_requires_timeout=True
            )
        finally:
            receiver.close()


def prepare_backlog(
    options: SendAvailabilityPairedNamespaceOptions,
    primary_host: str,
    note: Callable[[str], None] = lambda path: None,
    trial: Trial | None = None,
) -> list[str]:
    """The paths of the backlog queues that are there now, and tried. Queues that differ, or that
    are not asked for, are left alone. Raises PairingError if there is none. ``note`` is told of
    each request. However it ends, ``options`` know how many queues are there."""
    name = options.primary_name or namespace_name(primary_host)
    wanted = [queue_path(name, index) for index in range(options._wanted_queues)]
    backlog = _Backlog(options.secondary_namespace_manager, note, trial)
    try:
        backlog.prepare(wanted)
    except BaseException as error:
        backlog.say_left(error)
        raise
    finally:
        use_of(options).found_queues = len(backlog.found)
    return backlog.found


class _Backlog:
    """The backlog queues, as far as they have come."""

    def __init__(self, manager: Any, note: Callable[[str], None], trial: Trial | None) -> None:
        self.found: list[str] = []
        self._made: list[str] = []
        self._manager = manager
        self._note = note
        self._trial = trial

    def prepare(self, wanted: list[str]) -> None:
        there = self._tried(self._list, "list the queues of the secondary namespace")
        self._note("$Resources/queues")
        self.found = [path for path in wanted if path.lower() in there]
        missing = [path for path in wanted if path.lower() not in there]
        last = self._make(missing)
        self.found.sort(key=wanted.index)
        if not self.found:
            raise last or PairingError("no backlog queue was found or created")
        if self._trial is not None:
            self._trial.run(self.found)

    def _make(self, missing: list[str]) -> PairingError | None:
        """Answers why the last one could not be made that could not."""
        last = None
        for path in missing:
            try:
                self._tried(partial(self._create, path), f"create the backlog queue {path}")
            except PairingError as error:
                if _is_refusal(error.__cause__):
                    raise
                last = error
                _LOGGER.warning("%s; pairing goes on without it", error)
            else:
                self.found.append(path)
                self._note(path)
        return last

    def _list(self) -> set[str]:
        return {queue.name.lower() for queue in self._manager.list_queues(**_PATIENCE)}

    def _create(self, path: str) -> None:
        with suppress(ResourceExistsError):  # another client was faster
            self._manager.create_queue(path, **BACKLOG_QUEUE, **_PATIENCE)
            self._made.append(path)

    def _tried(self, act: Callable[[], Any], what: str) -> Any:
        advice = "the secondary's NamespaceManager needs a key or token with the Manage claim"
        return _tried(act, what, advice, self._trial.still if self._trial else None)

    def say_left(self, error: BaseException) -> None:
        """Queues are not taken back: another client may have found them already, and use them."""
        if self._made:
            left = f"these backlog queues were made, and stay: {', '.join(self._made)}"
            _LOGGER.warning("the pairing has failed; %s", left)
            error.add_note(left)


def _tried(
    act: Callable[[], Any],
    what: str,
    advice: str,
    still: Callable[[], None] | None = None,
) -> Any:
    """Do it, three times if need be. What can be put right only by the caller is raised at once."""
    for attempt in range(1, ATTEMPTS + 1):
        if still is not None:
            still()
        try:
            return act()
        except ValueError as error:  # the SDK's, of a connection string for one entity alone
            raise PairingError(f"cannot {what}: {first_line(error)}") from error
        except AzureError as error:
            said = first_line(error)
            if _is_refusal(error):
                raise PairingError(f"not allowed to {what}: {advice} ({said})") from error
            if attempt == ATTEMPTS:
                raise PairingError(
                    f"could not {what} in {ATTEMPTS} attempts; {_guess(error)} ({said})"
                ) from error
            sleep(PAUSE_S * attempt)
    raise AssertionError("the loop returns or raises")


def _guess(error: AzureError) -> str:
    if isinstance(error, MessagingEntityNotFoundError):
        return "is the NamespaceManager, which found them, that of the same namespace?"
    return "is the secondary reachable?"


def _is_refusal(error: BaseException | None) -> bool:
    refusals = (
        ClientAuthenticationError,
        ServiceBusAuthenticationError,
        ServiceBusAuthorizationError,
    )
    if isinstance(error, refusals):
        return True
    return isinstance(error, HttpResponseError) and error.status_code in (401, 403)
