"""What a worker does with its rows: send them home, then settle them.

    open the envelope --> by destination, in order --> send --> complete by lock token
          |                        |                     |
      dead-letter               skip, hold          busy, down: leave; refused: dead-letter

Send, then settle: a crash between the two gives a duplicate id, which the destination drops. Within
one backlog queue and destination nothing overtakes: once one message is left behind, so are those
after it.

How messages travel is behind ``Post``; this module knows no sockets, no Spark and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import UUID

from twinbus import envelope
from twinbus.amqp.batches import in_transfers
from twinbus.client_errors import EnvelopeError
from twinbus.homeward.rounds import LEFT, Orders, Outcome, Tally
from twinbus.homeward.row import Row

# A lock with less than this part of its time left is renewed before its message is sent.
RENEW_AT: Final = 1 / 3
# The parts of one message were sent together; those that have not come after this long never will.
PARTS_MS: Final = 600_000
# What is sent at once must be settled within its locks.
MOST_AT_ONCE: Final = 500

BAD_ENVELOPE: Final = "TwinbusEnvelope"
EXPIRED: Final = "TTLExpiredException"
REFUSED: Final = "RefusedByDestination"
INCOMPLETE: Final = "TwinbusIncompleteMessage"
NOWHERE: Final = "(none)"


class UnavailableError(Exception):
    """The destination did not take it; it may later."""


class BusyError(Exception):
    """The destination asked us to wait."""


class RefusedError(Exception):
    """The destination will never take this."""


class Post(Protocol):
    """How messages travel and are settled."""

    def limit(self, destination: str) -> int:
        """The largest transfer it takes. Raises one of the three errors."""

    def send(self, destination: str, parcels: Sequence[Parcel]) -> None:
        """All or none. Raises one of the three errors."""

    def complete(self, queue: str, tokens: Sequence[UUID]) -> list[UUID]:
        """Answers those whose lock was lost."""

    def dead_letter(
        self, queue: str, tokens: Sequence[UUID], reason: str, description: str
    ) -> list[UUID]: ...

    def abandon(self, queue: str, tokens: Sequence[UUID]) -> list[UUID]: ...

    def renew(self, queue: str, tokens: Sequence[UUID]) -> list[UUID]: ...

    def now_ms(self) -> int: ...

    def sleep(self, seconds: float) -> None: ...


@dataclass(slots=True)
class Parcel:
    """One message, out of its envelope. A message that was in parts has several tokens."""

    queue: str
    number: int  # its sequence number; of parts, the lowest
    highest: int
    tokens: list[UUID]
    locked_until_ms: int
    lock_ms: int  # how long a lock of its queue lasts
    received_ms: int
    destination: str
    message: bytes
    message_id: Any  # of whichever type it is


class Carrier:
    """One worker's part of a round: ``carry`` rows, as often as they come, then ``finish``."""

    def __init__(self, post: Post, orders: Orders) -> None:
        self._post = post
        self._orders = orders
        # By queue, message and number of parts: which parts have come, and the rows they came in.
        self._parts: dict[tuple[str, str, int], tuple[set[int], list[Row]]] = {}
        self._left: list[Parcel] = []
        self._behind: set[tuple[str, str]] = set()  # who has messages left behind in this round
        self._blocked: set[tuple[str, str]] = set()  # of these, who waits for a lock to end
        self._seen: dict[str, int] = {}  # rows by queue
        self._down: dict[str, tuple[Outcome, str]] = {}
        self._tallies: dict[tuple[str, str, Outcome], Tally] = {}
        self._partial: list[Tally] = []

    def carry(self, rows: Iterable[Row]) -> None:
        """Send these home and settle them; what cannot go now is left."""
        by_destination: dict[str, list[Parcel]] = {}
        for row in rows:
            self._seen[row.queue] = self._seen.get(row.queue, 0) + 1
            parcel = self._opened(row)
            if parcel is not None:
                by_destination.setdefault(parcel.destination, []).append(parcel)
        for destination, parcels in by_destination.items():
            self._deliver(destination, parcels)

    def finish(self) -> list[Tally]:
        """Deal with what is left, and say what became of everything."""
        for _, rows in self._parts.values():
            self._set_aside(rows)
        moved = any(outcome is Outcome.MOVED for _, _, outcome in self._tallies)
        if not moved and not self._orders.keep:
            self._give_back(self._behind)
        else:
            self._give_back({key for key in self._blocked if not self._is_cut_short(key[0])})
        return [*self._tallies.values(), *self._partial]

    # ------------------------------------------------------------ envelopes

    def _opened(self, row: Row) -> Parcel | None:
        """The row out of its envelope; None if it waits for its other parts, or is refused."""
        rows = [row]
        try:
            if row.part_of is None:
                found = envelope.opened(row.content)
            else:
                rows = self._beside(row)
                if not rows:
                    return None
                found = envelope.joined(each.content for each in rows)
            return self._living(_parcel(rows, found), found.time_to_live_ms, row)
        except EnvelopeError as error:
            self._refuse(_plain(rows), BAD_ENVELOPE, str(error))
            return None

    def _beside(self, row: Row) -> list[Row]:
        """This part and all others of its message; none if some have not come yet.

        A part that does not say which one it is raises before it is among the others, so that it
        cannot spoil them; and one that counts them otherwise is of another message.
        """
        place = envelope.place_of(row.content)
        if place is None:
            raise EnvelopeError(f"{envelope.PART_OF} is there, {envelope.PARTS} is not")
        group, part, count = place
        key = (row.queue, group, count)
        numbers, rows = self._parts.setdefault(key, (set(), []))
        numbers.add(part)
        rows.append(row)
        if len(numbers) < count:
            return []
        del self._parts[key]
        return rows

    def _living(self, parcel: Parcel, lives_ms: int | None, row: Row) -> Parcel | None:
        """The parcel with what is left of its time to live, if wanted; None if nothing is."""
        if lives_ms is None or not self._orders.deducts:
            return parcel
        left = lives_ms - row.waited_ms
        if left <= 0:
            waited = f"it waited {row.waited_ms / 1000:.0f} s in the backlog, longer than it lives"
            self._refuse(parcel, EXPIRED, waited)
            return None
        parcel.message = envelope.living(parcel.message, left)
        return parcel

    # ------------------------------------------------------------ sending

    def _deliver(self, destination: str, parcels: list[Parcel]) -> None:
        ready = [parcel for parcel in parcels if self._may_go(parcel)]
        for start in range(0, len(ready), MOST_AT_ONCE):
            some = ready[start : start + MOST_AT_ONCE]
            if destination in self._down:
                self._leave(some, *self._down[destination])
            else:
                self._try(destination, some)

    def _may_go(self, parcel: Parcel) -> bool:
        """Whether it is its turn; if not, it is left."""
        key = (parcel.queue, parcel.destination)
        if parcel.destination in self._down:
            outcome, reason = self._down[parcel.destination]
            self._leave([parcel], outcome, reason)
            return False
        if parcel.destination in self._orders.skip:
            reason = "its destination is left alone for now"
        elif key in self._behind:
            reason = "one before it was left behind"
        elif any(
            hold.keeps(parcel.number, parcel.received_ms)
            for hold in self._orders.holds.get(key, ())
        ):
            reason = "one before it is still locked"
            self._blocked.add(key)
        else:
            return True
        self._leave([parcel], Outcome.SKIPPED, reason)
        return False

    def _renewed(self, parcels: list[Parcel]) -> list[Parcel]:
        """Those that may go, their locks renewed where they are about to end. If a message of a
        queue has lost its lock, all of that queue are left, so that none overtakes it."""
        now = self._post.now_ms()
        short = [each for each in parcels if each.locked_until_ms < now + each.lock_ms * RENEW_AT]
        if not short:
            return parcels
        lost: set[UUID] = set()
        for queue, tokens in _tokens(short).items():
            lost.update(self._post.renew(queue, tokens))
        for parcel in short:
            parcel.locked_until_ms = now + parcel.lock_ms
        behind = {each.queue for each in short if lost.intersection(each.tokens)}
        staying = [each for each in parcels if each.queue in behind]
        self._leave(staying, Outcome.SKIPPED, "its lock, or that of one before it, has ended")
        return [each for each in parcels if each.queue not in behind]

    def _try(self, destination: str, parcels: list[Parcel]) -> None:
        """Send, transfer by transfer. One that is refused is sent again, message by message, to
        find out which of them it was."""
        try:
            todo = self._transfers(destination, parcels)
        except RefusedError as error:
            for parcel in parcels:
                self._refuse(parcel, REFUSED, str(error))
            return
        except (UnavailableError, BusyError) as error:
            self._stop(destination, parcels, error)
            return
        while todo:
            todo = self._lasting(todo)
            if not todo:
                return
            some = todo.pop(0)
            try:
                self._post.send(destination, some)
            except RefusedError as error:
                if len(some) == 1:
                    self._refuse(some[0], REFUSED, str(error))
                else:
                    todo[:0] = [[parcel] for parcel in some]
            except (UnavailableError, BusyError) as error:
                self._stop(destination, [*some, *(each for one in todo for each in one)], error)
                return
            else:
                self._settle(some)
                self._keep_pace(destination, len(some))

    def _lasting(self, todo: list[list[Parcel]]) -> list[list[Parcel]]:
        """The transfers, less what is left because a lock was lost. This is asked before every
        transfer, because the one before it may have taken long."""
        waiting = [parcel for some in todo for parcel in some]
        staying = {each.queue for each in waiting} - {each.queue for each in self._renewed(waiting)}
        if not staying:
            return todo
        going = ([each for each in some if each.queue not in staying] for some in todo)
        return [some for some in going if some]

    def _transfers(self, destination: str, parcels: list[Parcel]) -> list[list[Parcel]]:
        if not parcels:
            return []
        limit = self._post.limit(destination)
        sizes = [len(parcel.message) for parcel in parcels]
        pace = self._pace(destination)
        # At a slow pace no more goes at once than a second's worth: messages are to come evenly,
        # not many together and then none for long.
        most = MOST_AT_ONCE if pace is None else max(1, int(pace))
        return [parcels[part] for part in in_transfers(sizes, limit, most)]

    def _stop(self, destination: str, parcels: list[Parcel], error: Exception) -> None:
        """Nothing more to this destination in this round."""
        outcome = Outcome.BUSY if isinstance(error, BusyError) else Outcome.FAILED
        self._down[destination] = (outcome, str(error))
        self._leave(parcels, outcome, str(error))

    def _settle(self, parcels: list[Parcel]) -> None:
        lost: set[UUID] = set()
        for queue, tokens in _tokens(parcels).items():
            lost.update(self._post.complete(queue, tokens))
        for parcel in parcels:
            unsettled = lost.intersection(parcel.tokens)
            self._count(parcel, Outcome.DUPLICATED if unsettled else Outcome.MOVED)

    def _keep_pace(self, destination: str, messages: int) -> None:
        """Sleep as long as what was sent should have taken."""
        pace = self._pace(destination)
        if pace is not None:
            self._post.sleep(messages / pace)

    def _pace(self, destination: str) -> float | None:
        """Messages a second."""
        paces = (self._orders.pace, self._orders.paces.get(destination))
        return min((pace for pace in paces if pace is not None), default=None)

    # ------------------------------------------------------------ what does not go home

    def _refuse(self, parcel: Parcel, reason: str, description: str) -> None:
        lost = self._post.dead_letter(parcel.queue, parcel.tokens, reason, description)
        if lost:
            self._leave([parcel], Outcome.SKIPPED, "its lock ended before it could be set aside")
        else:
            self._count(parcel, Outcome.DEAD, f"{reason}: {description}")

    def _leave(self, parcels: Iterable[Parcel], outcome: Outcome, error: str) -> None:
        for parcel in parcels:
            self._behind.add((parcel.queue, parcel.destination))
            self._left.append(parcel)
            self._count(parcel, outcome, error)

    def _set_aside(self, rows: list[Row]) -> None:
        """Parts whose others did not come: left for the next round, or for good.

        A round ends somewhere, and may well end between two parts. So they are given back, and the
        next round finds them beside the others. Only those that are found alone time and again,
        left by a send that failed, stay locked for a while, and are given up in the end. Nothing
        waits for them: they must not keep a whole queue.
        """
        parcel, group = _plain(rows), rows[0].part_of or ""
        alone = group in self._orders.alone
        if alone and min(row.waited_ms for row in rows) > PARTS_MS:
            missing = f"some of the parts of message {group} are not in the queue"
            self._refuse(parcel, INCOMPLETE, missing)
            return
        if not alone:
            self._post.abandon(parcel.queue, parcel.tokens)
        key = (parcel.queue, parcel.destination, Outcome.PARTIAL)
        highest = max(row.number for row in rows)
        self._partial.append(Tally(*key, len(rows), parcel.number, highest, part_of=group))

    def _is_cut_short(self, queue: str) -> bool:
        """Whether there may be more in it, which is reached only while these stay locked."""
        share = self._orders.share
        return share is not None and self._seen.get(queue, 0) >= share

    def _give_back(self, keys: Set[tuple[str, str]]) -> None:
        """Unlock what is left of these, so that it can be received as soon as its turn comes.

        If a message that only waits for another's lock to end stayed locked, those behind it would
        wait for its lock too, and those behind them for theirs.
        """
        left = [each for each in self._left if (each.queue, each.destination) in keys]
        lost: set[UUID] = set()
        for queue, tokens in _tokens(left).items():
            lost.update(self._post.abandon(queue, tokens))
        # What could not be given back stays locked, and those behind it must know.
        stuck = {(each.queue, each.destination) for each in left if lost.intersection(each.tokens)}
        for (queue, destination, outcome), tally in self._tallies.items():
            if outcome in LEFT and (queue, destination) in keys - stuck:
                tally.until_ms = 0

    def _count(self, parcel: Parcel, outcome: Outcome, error: str | None = None) -> None:
        key = (parcel.queue, parcel.destination, outcome)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = Tally(*key, lowest=parcel.number, error=error)
        tally.messages += 1
        tally.lowest = min(tally.lowest, parcel.number)
        tally.highest = max(tally.highest, parcel.highest)
        tally.until_ms = max(tally.until_ms, parcel.locked_until_ms)


def _parcel(rows: Sequence[Row], found: envelope.Unwrapped) -> Parcel:
    return Parcel(
        queue=rows[0].queue,
        number=min(row.number for row in rows),
        highest=max(row.number for row in rows),
        tokens=[row.token for row in rows],
        locked_until_ms=min(row.locked_until_ms for row in rows),
        lock_ms=max(1, min(row.locked_until_ms - row.received_ms for row in rows)),
        received_ms=min(row.received_ms for row in rows),
        destination=found.path,
        message=found.message,
        message_id=found.message_id,
    )


def _plain(rows: Sequence[Row]) -> Parcel:
    """Rows that could not be opened."""
    unread = rows[0].destination or NOWHERE, rows[0].message, None, None
    return _parcel(rows, envelope.Unwrapped(*unread))


def _tokens(parcels: Iterable[Parcel]) -> dict[str, list[UUID]]:
    tokens: dict[str, list[UUID]] = {}
    for parcel in parcels:
        tokens.setdefault(parcel.queue, []).extend(parcel.tokens)
    return tokens
