"""The journey of one message: every record that names it, in the order of their times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from twinbus.ledger import Cause, Operation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Step:
    at: datetime
    client: str
    namespace: str
    entity: str
    operation: str
    cause: str
    ok: bool
    destination: str | None

    @property
    def sentence(self) -> str:
        said = _SAID.get((self.operation, self.cause)) or _SAID.get((self.operation, ""))
        text = (said or f"{self.operation} at {{entity}}").format(
            entity=self.entity, home=self.destination or self.entity
        )
        return text if self.ok else f"{text}, which failed"


_SAID: Final[dict[tuple[str, str], str]] = {
    (Operation.SEND, Cause.NORMAL): "sent to {entity}",
    (Operation.SEND, Cause.BACKLOG_SEND): "diverted to the backlog queue {entity}, for {home}",
    (Operation.SEND, Cause.HOME_SEND): "sent home to {entity}",
    (Operation.SCHEDULE, ""): "scheduled on {entity}",
    (Operation.RECEIVE, Cause.BACKLOG_RECEIVE): "taken from the backlog queue {entity}",
    (Operation.RECEIVE, ""): "received from {entity}",
    (Operation.COMPLETE, Cause.BACKLOG_RECEIVE): "settled in the backlog queue {entity}",
    (Operation.COMPLETE, ""): "completed at {entity}",
    (Operation.ABANDON, ""): "abandoned at {entity}",
    (Operation.DEFER, ""): "deferred at {entity}",
    (Operation.DEAD_LETTER, ""): "dead-lettered at {entity}",
    (Operation.RENEW, ""): "its lock renewed at {entity}",
    (Operation.FORWARD, ""): "forwarded from {entity} to {home}",
}


def journey(records: DataFrame, message_id: str) -> list[Step]:
    """Times are those of whoever wrote the record: clocks that differ may disturb the order."""
    from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

    found = records.where(F.array_contains("message_ids", message_id)).select(
        # As a number: Python would be handed the time of its own zone, without saying so.
        F.unix_micros("at").alias("at"),
        *list(Step.__dataclass_fields__)[1:],
    )
    return [
        Step(datetime.fromtimestamp(at / 1e6, UTC), *rest)
        for at, *rest in found.orderBy("at").collect()
    ]
