"""The links of this process, kept between micro-batches.

Spark runs a Python worker for many tasks, one after the other, and a module outlives a task. A link
that is open already saves a handshake; one that has died in between is noticed and replaced when it
is next used (see ``raw``).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from azure.servicebus import ServiceBusClient

from twinbus.auth.credentials import Secret, client_of
from twinbus.sdk.raw import RawReceiver, RawSender, receiver, sender

log = logging.getLogger("twinbus.syphon")
T = TypeVar("T")

# More destinations than this are rare; the one that was used longest ago makes room.
MOST_LINKS = 256


class Links:
    """Links by what they lead to. For one thread at a time."""

    def __init__(self) -> None:
        self._clients: dict[Secret, ServiceBusClient] = {}
        self._links: dict[tuple[str, Secret, str], Any] = {}

    def receiver(self, secret: Secret, queue: str, **settings: Any) -> RawReceiver:
        """A link to receive from and to settle on."""
        kind = "receive" + "".join(f" {key}={value}" for key, value in sorted(settings.items()))
        return self._link(
            (kind, secret, queue), lambda: receiver(self._client(secret), queue, **settings)
        )

    def sender(self, secret: Secret, path: str) -> RawSender:
        return self._link(("send", secret, path), lambda: sender(self._client(secret), path))

    def _link(self, key: tuple[str, Secret, str], make: Callable[[], T]) -> T:
        link: T | None = self._links.pop(key, None)
        if link is None:
            while len(self._links) >= MOST_LINKS:
                _close(self._links.pop(next(iter(self._links))))
            link = make()
        self._links[key] = link  # the last in the dictionary is the one used last
        return link

    def _client(self, secret: Secret) -> ServiceBusClient:
        if secret not in self._clients:
            self._clients[secret] = client_of(secret)
        return self._clients[secret]

    def close(self) -> None:
        for each in (*self._links.values(), *self._clients.values()):
            _close(each)
        self._links.clear()
        self._clients.clear()


def _close(link: Any) -> None:
    """What is let go of may well be broken; that is no reason to keep the others open."""
    try:
        link.close()
    except Exception:
        log.debug("a link could not be closed", exc_info=True)


_local = threading.local()


def links() -> Links:
    """The links of this process and thread. A forked child begins with none: a socket is not to be
    shared with a parent."""
    if getattr(_local, "pid", None) != os.getpid():
        _local.pid, _local.links = os.getpid(), Links()
    found: Links = _local.links
    return found
