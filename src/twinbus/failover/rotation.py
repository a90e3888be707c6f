"""Which backlog queue takes the next message: the rotation, shared by all senders of a factory.

A sender picks a queue at random and stays with it. A queue that fails is out for everybody, and
comes back after a while. While others are left it is not tried; when none is, it is, because the
alternative is to refuse the message.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


class Rotation:
    """The backlog queues of a pairing. Time is an argument; chance comes in with ``rng``."""

    def __init__(
        self, queues: Sequence[str], out_s: float, rng: random.Random | None = None
    ) -> None:
        self.queues = tuple(queues)
        self._out_s = out_s
        self._back_at: dict[str, float] = {}
        # Spreading load is all this chance is for.
        self._rng = rng or random.Random()  # noqa: S311  not a secret

    def pick(self, now: float) -> str:
        """A queue for a new sender."""
        return self._rng.choice(self._in(now) or self.queues)

    def order(self, sticky: str, now: float) -> list[str]:
        """The queues to try, best first: the sender's own, the others, those that are out."""
        inside = self._in(now)
        self._rng.shuffle(inside)
        if sticky in inside:
            inside.remove(sticky)
            inside.insert(0, sticky)
        return inside + sorted(self._out(now), key=self._back_at.__getitem__)

    def failed(self, queue: str, now: float) -> bool:
        """Take it out; true if it was in."""
        was_in = now >= self._back_at.get(queue, now)
        self._back_at[queue] = now + self._out_s
        return was_in

    def succeeded(self, queue: str) -> bool:
        """It works; true if it had been out."""
        return self._back_at.pop(queue, None) is not None

    def is_out(self, queue: str, now: float) -> bool:
        return now < self._back_at.get(queue, now)

    def _in(self, now: float) -> list[str]:
        return [queue for queue in self.queues if not self.is_out(queue, now)]

    def _out(self, now: float) -> list[str]:
        return [queue for queue in self.queues if self.is_out(queue, now)]
