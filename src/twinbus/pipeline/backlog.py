"""The backlog queues of a primary, found by asking for them; and what was set aside in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from azure.servicebus import parse_connection_string
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from twinbus.envelope import namespace_name, queue_path, unstamped
from twinbus.pipeline.credentials import Secret
from twinbus.pipeline.links import Links

# So many queues of the usual number that are not there, one after the other, mean that there are no
# more.
GAP: Final = 3
PAGE: Final = 100
DEAD_LETTERS: Final = "/$DeadLetterQueue"
# What a broker writes on a dead letter, and what must not go along when it is sent again.
_REASONS: Final = frozenset(("DeadLetterReason", "DeadLetterErrorDescription"))


def primary_name(primary: Secret) -> str:
    """What the paths of its backlog queues begin with."""
    return namespace_name(parse_connection_string(primary.reveal()).fully_qualified_namespace)


def find_queues(secondary: Secret, name: str, kept: Links) -> tuple[str, ...]:
    """The backlog queues of the primary called ``name``. Asks for them one by one, which needs no
    claim but Listen. Raises the SDK's error if the secondary does not answer."""
    found: list[str] = []
    index = missing = 0
    while missing < GAP:
        path = queue_path(name, index)
        try:
            kept.receiver(secondary, path).ready()
        except MessagingEntityNotFoundError:
            missing += 1
        else:
            missing = 0
            found.append(path)
        index += 1
    return tuple(found)


def redrive(
    secondary: Secret,
    queues: Sequence[str],
    kept: Links,
    limit: int | None = None,
    progress: Callable[[str, int], None] = lambda queue, messages: None,
) -> dict[str, int]:
    """Send what was set aside in each backlog queue again, to that queue; answers how many.

    Sent first and settled then, so an interruption may leave a message in both places, and never in
    none. What loses its lock meanwhile is left for the next time.
    """
    return {queue: _redrive(secondary, queue, kept, limit, progress) for queue in queues}


def _redrive(
    secondary: Secret,
    queue: str,
    kept: Links,
    limit: int | None,
    progress: Callable[[str, int], None],
) -> int:
    source = kept.receiver(secondary, queue + DEAD_LETTERS)
    target = kept.sender(secondary, queue)
    done = 0
    while limit is None or done < limit:
        taken = source.take(PAGE if limit is None else min(PAGE, limit - done))
        if not taken:
            break
        for each in taken:
            target.send([unstamped(each.message, _REASONS)])
        source.complete([each.lock_token for each in taken])
        done += len(taken)
        progress(queue, done)
    return done
