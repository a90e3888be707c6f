"""A ledger in memory, into which the shipped bookkeepers write, and whether it says what happened.

The audit that ships is Spark's; of its verdicts the one that must never come is asked here: lost,
which is accepted by either namespace, and never taken by the primary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from twinbus.ledger import Cause, Operation

# What was done and why, at which entity of the primary, to which message.
Deed = tuple[str, str, str, str]
SENDS = (Operation.SEND, Operation.SCHEDULE)


class Records:
    """In the place of a ledger."""

    def __init__(self) -> None:
        self.deeds: Counter[Deed] = Counter()

    def add(
        self,
        operation: str,
        cause: str,
        namespace: str,
        entity: str,
        *,
        message_ids: Sequence[Any] = (),
        destination: str | None = None,
        ok: bool = True,
        **sizes: int,
    ) -> None:
        for each in message_ids if ok else ():
            self.deeds[operation, cause, destination or entity, str(each)] += 1

    def flush(self) -> bool:
        """They stay here."""
        return True


def disagreements(
    records: Records,
    happened: Counter[Deed],
    acknowledged: Iterable[tuple[str, str]],
    *,
    torn: bool,
) -> Iterator[str]:
    """What is not in the ledger as it happened. A syphon that crashed has ``torn`` it: what it had
    not written yet is gone."""
    sends = Counter({deed: count for deed, count in records.deeds.items() if deed[0] in SENDS})
    yield from (f"the ledger makes up {deed}" for deed in sends - happened)
    missing = (happened - sends).elements()
    yield from (
        f"the ledger lacks {deed}" for deed in missing if not (torn and deed[1] == Cause.HOME_SEND)
    )
    home = {deed[2:] for deed in sends if deed[1] != Cause.BACKLOG_SEND}
    accepted = {deed[2:] for deed in sends if deed[1] != Cause.HOME_SEND}
    yield from (
        f"the ledger was never told of {each}" for each in sorted({*acknowledged} - accepted)
    )
    if not torn:
        yield from (f"the audit finds {each} lost" for each in sorted(accepted - home))
