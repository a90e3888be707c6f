"""The backlog queues of a primary: found, and what was set aside in them sent again.

Who may manage the secondary lists them; who may only listen there asks for them one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

from azure.servicebus import parse_connection_string
from azure.servicebus.exceptions import MessageSizeExceededError, MessagingEntityNotFoundError

from twinbus.auth.credentials import Secret
from twinbus.client_errors import EnvelopeError
from twinbus.envelope import is_backlog_path, namespace_name, queue_path, unstamped
from twinbus.errors import first_line
from twinbus.operate.peek import DEAD_LETTERS, last_number, number_of
from twinbus.sdk.links import Links
from twinbus.sdk.raw import RawDelivery, RawReceiver, RawSender

log = logging.getLogger("twinbus.syphon")

# A pairing has so many backlog queues unless it says otherwise.
USUAL: Final = 10
PAGE: Final = 100
# What a broker writes on a dead letter, and what must not go along when it is sent again.
_REASONS: Final = frozenset(("DeadLetterReason", "DeadLetterErrorDescription"))


def primary_name(primary: Secret) -> str:
    """What the paths of its backlog queues begin with."""
    return namespace_name(parse_connection_string(primary.reveal()).fully_qualified_namespace)


def backlog_queues(
    manager: Any, primary_name: str | None = None, count: int | None = None
) -> list[str]:
    """The backlog queues of a namespace: all, or those of one primary, or the first ``count`` of
    each."""
    names = [queue.name for queue in manager.list_queues()]
    found = [name for name in names if is_backlog_path(name)]
    if primary_name is not None:
        found = [name for name in found if name.split("/")[0].lower() == primary_name.lower()]
    if count is not None:
        found = [name for name in found if _index(name) < count]
    return sorted(found, key=lambda name: (name.split("/")[0], _index(name)))


def _index(path: str) -> int:
    return int(path.split("/")[2])


def find_queues(
    secondary: Secret, name: str, kept: Links, count: int | None = None
) -> tuple[str, ...]:
    """The backlog queues of the primary called ``name`` that are there, of the first ``count``.

    Without a count, of as many as a pairing usually has, and on from there while there is a next.
    Asks for them one by one, which needs no claim but Listen. Raises the SDK's error if the
    secondary does not answer.
    """
    paths = [queue_path(name, index) for index in range(USUAL if count is None else count)]
    found = [path for path in paths if _is_there(secondary, path, kept)]
    index = len(paths)
    while count is None and _is_there(secondary, queue_path(name, index), kept):
        found.append(queue_path(name, index))
        index += 1
    return tuple(found)


def _is_there(secondary: Secret, path: str, kept: Links) -> bool:
    try:
        kept.receiver(secondary, path).ready()
    except MessagingEntityNotFoundError:
        return False
    return True


# ---------------------------------------------------------------- what was set aside


@dataclass(slots=True)
class Redriven:
    """What became of the dead letters of a backlog queue."""

    sent: int = 0
    stays: int = 0  # it cannot be read, or is too large now


def redrive(
    secondary: Secret,
    queues: Sequence[str],
    kept: Links,
    limit: int | None = None,
    progress: Callable[[str, int], None] = lambda queue, messages: None,
) -> dict[str, Redriven]:
    """Send what is set aside in each backlog queue now again, to that queue.

    What a syphon sets aside meanwhile is for the next time, or this might never end. Sent first and
    settled then, so an interruption may leave a message in both places, and never in none.
    """
    done: dict[str, Redriven] = {}
    for queue in queues:
        dead = kept.receiver(secondary, queue + DEAD_LETTERS)
        one = _Redrive(dead, kept.sender(secondary, queue))
        done[queue] = one.run(limit, partial(progress, queue))
    return done


class _Redrive:
    """Of one queue."""

    def __init__(self, source: RawReceiver, target: RawSender) -> None:
        self._source = source
        self._target = target
        self._last = last_number(source)
        self._done = Redriven()
        # By sequence number: sent again, but not yet settled; and not to be sent.
        self._sent: set[int] = set()
        self._staying: set[int] = set()

    def run(self, limit: int | None, progress: Callable[[int], None]) -> Redriven:
        """Until nothing is left of what was there when this was made."""
        aside: list[UUID] = []
        while limit is None or self._done.sent < limit:
            most = PAGE if limit is None else min(PAGE, limit - self._done.sent)
            taken = [(number_of(each.message), each) for each in self._source.take(most)]
            if all(number > self._last for number, _ in taken):
                aside += [each.lock_token for _, each in taken]
                break
            settled = [each.lock_token for number, each in taken if self._is_sent(number, each)]
            # What is not ours stays locked until the end, or it would be taken again and again.
            aside += [each.lock_token for _, each in taken if each.lock_token not in settled]
            self._done.sent += len(settled) - len(self._source.complete(settled))
            progress(self._done.sent)
        self._source.abandon(aside)
        self._done.stays = len(self._staying)
        return self._done

    def _is_sent(self, number: int, each: RawDelivery) -> bool:
        """Whether it may be settled. One whose lock was lost is not sent a second time."""
        if number > self._last or number in self._staying:
            return False
        if number in self._sent:
            return True
        try:
            self._target.send([unstamped(each.message, _REASONS)])
        except (EnvelopeError, MessageSizeExceededError) as error:
            log.warning("message %d stays among the dead letters: %s", number, first_line(error))
            self._staying.add(number)
            return False
        self._sent.add(number)
        return True
