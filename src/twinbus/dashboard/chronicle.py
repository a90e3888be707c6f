"""What a ledger says about now: how entities are, pings, outages, the bill, what waits for whom.

Records are folded in as they come and forgotten. What is kept grows with the number of entities and
clients, not with the number of records. A client's own records come in its order; those of several
come in any, so a state is kept for each client, and the worst of those that were heard of lately is
the entity's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from twinbus.accounts.attribution import FREE, KEYS, BillLine, LineKey, home_of
from twinbus.accounts.outages import Mark, Outage, find_outages
from twinbus.ledger import Cause, Operation

if TYPE_CHECKING:
    import pyarrow as pa

HEALTHY, SUSPECT, DIVERTED = STATES = ("healthy", "suspect", "diverted")
# A client that has written nothing for so long is gone, or has nothing to say.
QUIET_S: Final = 300.0
MARKS_KEPT: Final = 2_000
CLIENTS_KEPT: Final = 5_000
MOMENTS_KEPT: Final = 2_000

_STATE_AFTER: Final = {
    Operation.SUSPECT.value: SUSPECT,
    Operation.DIVERT.value: DIVERTED,
    Operation.CLEAR.value: HEALTHY,
    Operation.RESTORE.value: HEALTHY,
}


@dataclass(frozen=True, slots=True)
class Standing:
    """How one client sees an entity."""

    state: str
    since: float


@dataclass(slots=True)
class Pings:
    at: float = 0.0
    ok: bool = False
    failed: int = 0  # in a row


@dataclass(slots=True)
class BacklogShare:
    """Messages for one destination in one backlog queue: first in, first out.

    They may be seen to leave before they are seen to come, because two clients wrote of it.
    """

    messages: int = 0
    _moments: deque[list[float]] = field(default_factory=deque)

    def put(self, at: float, count: int) -> None:
        self.messages += count
        if self._moments and at - self._moments[-1][0] < 1:
            self._moments[-1][1] += count
        else:
            self._moments.append([at, count])
        if len(self._moments) > MOMENTS_KEPT:
            self._thin_out()
        self._settle()

    def take(self, count: int) -> None:
        self.messages -= count
        self._settle()

    def _settle(self) -> None:
        """First in, first out: the oldest moments are those of the messages that have left."""
        gone = sum(moment[1] for moment in self._moments) - max(0, self.messages)
        while self._moments and gone >= self._moments[0][1]:
            gone -= self._moments.popleft()[1]
        if self._moments:
            self._moments[0][1] -= gone

    def _thin_out(self) -> None:
        """Every second moment is put down to the one before it."""
        pairs = list(self._moments)
        for first, second in zip(pairs[::2], pairs[1::2], strict=False):
            first[1] += second[1]
        self._moments = deque(pairs[::2])

    @property
    def oldest(self) -> float | None:
        return self._moments[0][0] if self._moments else None


class Chronicle:
    """Of one primary."""

    def __init__(self, primary: str) -> None:
        self._primary = primary.lower()
        self.names: dict[str, str] = {}
        self.pings: dict[str, Pings] = {}
        self.waiting: dict[tuple[str, str], BacklogShare] = {}
        self.lines: dict[LineKey, BillLine] = {}
        self._standings: dict[str, dict[str, Standing]] = {}
        self._heard: dict[str, float] = {}
        self._marks: deque[Mark] = deque(maxlen=MARKS_KEPT)

    # -- reading

    def add(self, day: str, records: pa.Table) -> None:
        """The records of one file, which are one client's."""
        import pyarrow.compute as pc

        if not records.num_rows:
            return
        self._hear(records)
        self._charge(day, records)
        marked = pc.is_in(records["operation"], _value_set(FREE))
        for row in _rows(records.filter(marked).sort_by("at"), "at"):
            self._turn(row)
        self._see_sends(records)
        self._see_pings(records.filter(pc.equal(records["operation"], Operation.PING.value)))
        self._see_backlog(records)

    def _hear(self, records: pa.Table) -> None:
        import pyarrow.compute as pc

        client = records["client"][0].as_py()
        last = pc.max(records["at"]).value / 1e6
        self._heard[client] = max(last, self._heard.pop(client, 0.0))
        if len(self._heard) > CLIENTS_KEPT:
            self._forget(next(iter(self._heard)))

    def _forget(self, client: str) -> None:
        del self._heard[client]
        for standings in self._standings.values():
            standings.pop(client, None)

    def _charge(self, day: str, records: pa.Table) -> None:
        import pyarrow.compute as pc

        free = pc.is_in(records["operation"], _value_set(FREE))
        billable = records.filter(pc.and_(records["ok"], pc.invert(free)))
        keys = list(KEYS[1:])
        summed = billable.group_by(keys).aggregate([("count", "sum"), ("units", "sum")])
        for row in summed.to_pylist():
            key = LineKey(day, *(row[name] for name in keys))
            line = self.lines.setdefault(key, BillLine())
            line.count += row["count_sum"]
            line.units += row["units_sum"]

    def _turn(self, row: dict[str, Any]) -> None:
        if row["namespace"].lower() != self._primary:
            return
        operation, at = row["operation"], row["at"]
        self._stand(row["entity"], row["client"], Standing(_STATE_AFTER[operation], at))
        if operation in (Operation.DIVERT, Operation.RESTORE):
            when = datetime.fromtimestamp(at, UTC)
            diverted = operation == Operation.DIVERT
            self._marks.append(Mark(row["entity"].lower(), row["client"], when, diverted))

    def _stand(self, entity: str, client: str, standing: Standing) -> None:
        self.names.setdefault(entity.lower(), entity)
        self._standings.setdefault(entity.lower(), {})[client] = standing

    def _see_sends(self, records: pa.Table) -> None:
        """Who sends and has never been in trouble leaves no mark."""
        import pyarrow.compute as pc

        sent = pc.and_(
            pc.and_(records["ok"], pc.equal(records["operation"], Operation.SEND.value)),
            pc.equal(records["cause"], Cause.NORMAL.value),
        )
        grouped = records.filter(sent).group_by(["namespace", "entity", "client"])
        for row in _rows(grouped.aggregate([("at", "min")]), "at_min"):
            known = self._standings.get(row["entity"].lower(), {})
            if row["namespace"].lower() == self._primary and row["client"] not in known:
                self._stand(row["entity"], row["client"], Standing(HEALTHY, row["at_min"]))

    def _see_pings(self, records: pa.Table) -> None:
        for row in _rows(records.sort_by("at"), "at"):
            pings = self.pings.setdefault(row["entity"].lower(), Pings())
            if row["at"] >= pings.at:
                pings.at, pings.ok = row["at"], row["ok"]
                pings.failed = 0 if row["ok"] else pings.failed + 1

    def _see_backlog(self, records: pa.Table) -> None:
        import pyarrow.compute as pc

        causes = [Cause.BACKLOG_SEND.value, Cause.BACKLOG_RECEIVE.value]
        chosen = pc.and_(records["ok"], pc.is_in(records["cause"], _value_set(causes)))
        keys = ["entity", "destination", "operation", "at"]
        grouped = records.filter(chosen).group_by(keys).aggregate([("count", "sum")])
        for row in _rows(grouped.sort_by("at"), "at"):
            destination = home_of(row["destination"] or "").lower()
            waiting = self.waiting.setdefault((row["entity"], destination), BacklogShare())
            if row["operation"] == Operation.SEND:
                waiting.put(row["at"], row["count_sum"])
            elif row["operation"] in (Operation.COMPLETE, Operation.DEAD_LETTER):
                waiting.take(row["count_sum"])

    def forget_days_before(self, day: str) -> None:
        self.lines = {key: line for key, line in self.lines.items() if key.day >= day}

    # -- asking

    def standing(self, entity: str, now: float) -> tuple[Standing, int, float] | None:
        """The worst that is said of it, by how many clients, and when one was last heard of."""
        told = self._standings.get(entity)
        if not told:
            return None
        fresh = {c: s for c, s in told.items() if now - self._heard.get(c, 0.0) < QUIET_S}
        latest = max(told, key=lambda client: self._heard.get(client, 0.0))
        asked = fresh or {latest: told[latest]}
        worst = max(asked.values(), key=lambda s: (STATES.index(s.state), -s.since))
        return worst, len(asked), max(self._heard.get(client, 0.0) for client in asked)

    def outages(self) -> tuple[Outage, ...]:
        """The newest first."""
        found = find_outages(self._marks)
        return tuple(sorted(found, key=lambda outage: outage.began, reverse=True))


def _value_set(values: Iterable[str]) -> pa.Array:
    import pyarrow as pa

    return pa.array(list(values), pa.string())


def _rows(table: pa.Table, time: str) -> list[dict[str, Any]]:
    """As dictionaries, with the time in seconds."""
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        row[time] = row[time].timestamp()
    return rows
