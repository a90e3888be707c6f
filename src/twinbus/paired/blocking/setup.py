# Generated from ../aio/setup.py by tools/unasync.py; change that file, not this one.
"""Setting up the secondary: the backlog queues are found, or made."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
)

from twinbus.envelope import namespace_name, queue_path
from twinbus.errors import PairingError, first_line
from twinbus.paired.blocking.world import sleep
from twinbus.paired.options import SendAvailabilityPairedNamespaceOptions

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


def prepare_backlog(
    options: SendAvailabilityPairedNamespaceOptions,
    primary_host: str,
    note: Callable[[str], None] = lambda path: None,
) -> list[str]:
    """The paths of the backlog queues that are there now. Queues that differ, or that are not asked
    for, are left alone. Raises PairingError if there is none. ``note`` is told of each request."""
    name = options.primary_name or namespace_name(primary_host)
    wanted = [queue_path(name, index) for index in range(options.backlog_queue_count)]
    there = _tried(_list_queues, options, "list the queues of the secondary namespace")
    note("$Resources/queues")
    found, last = [], None
    for path in wanted:
        try:
            if path.lower() not in there:
                _tried(_create, options, f"create the backlog queue {path}", path)
                note(path)
            found.append(path)
        except PairingError as error:
            if _is_refusal(error.__cause__):
                raise
            last = error
            _LOGGER.warning("%s", error)
    if not found:
        raise last or PairingError("no backlog queue was found or created")
    return found


def _list_queues(options: SendAvailabilityPairedNamespaceOptions) -> set[str]:
    manager = options.secondary_namespace_manager
    return {queue.name.lower() for queue in manager.list_queues()}


def _create(options: SendAvailabilityPairedNamespaceOptions, path: str) -> None:
    with suppress(ResourceExistsError):  # another client was faster
        options.secondary_namespace_manager.create_queue(path, **BACKLOG_QUEUE)


def _tried(act: Any, options: SendAvailabilityPairedNamespaceOptions, what: str, *args: str) -> Any:
    """Do it, three times if need be. What can be put right only by the caller is raised at once."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return act(options, *args)
        except AzureError as error:
            if _is_refusal(error):
                raise PairingError(
                    f"not allowed to {what}: the secondary's NamespaceManager needs a key or token "
                    f"with the Manage claim ({first_line(error)})"
                ) from error
            if attempt == ATTEMPTS:
                raise PairingError(
                    f"could not {what} in {ATTEMPTS} attempts; is the secondary reachable? "
                    f"({first_line(error)})"
                ) from error
            sleep(PAUSE_S * attempt)
    raise AssertionError("the loop returns or raises")


def _is_refusal(error: BaseException | None) -> bool:
    if isinstance(error, ClientAuthenticationError):
        return True
    return isinstance(error, HttpResponseError) and error.status_code in (401, 403)
