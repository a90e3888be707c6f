"""What the peers of a port make us keep: one object that is handed down, from the port to the disk.

Memory is given to whoever connects, so each byte of it that a peer decides about is counted here,
by its kind. A peer has a share of its port's budget, which ends with its connection. Kinds are
plain integers, so that counting costs an addition; whoever adds takes away again.

    kind         what is kept                                      at its limit
    read_ahead   bytes of a frame that has not come whole          (a frame's size has its own)
    attached     the attaches of its links, with names and filters it is closed
    unfinished   deliveries whose last frame has not come          the session ends
    windowed     frames that wait for the session's window         (none: no more are begun)
    unsent       frames that the socket has not been given         receivers wait
    unread       what the peer does not take from the socket       nothing is read from it
    answers      answers that the peer has given no credit for     with unsent: it is closed
    tokens       the paths that it has put tokens for              (none)
    bodies       of its HTTP requests, while they come             413
    storing      of all peers: what is on its way to the disk      nothing is read from anybody
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from weakref import WeakSet

MAX_ATTACHED: Final = 16 << 20
MAX_UNFINISHED: Final = 16 << 20
MAX_UNSENT: Final = 1 << 20
MAX_UNREAD: Final = 1 << 20
# Of answers, with what is unsent; and how many may wait on one link.
MAX_ANSWERS: Final = 16 << 20
MAX_ANSWERS_OF_LINK: Final = 1_000
MAX_STORING: Final = 16 << 20
# Of one message in a WebSocket, which is put together from its fragments before we see it.
MAX_WEBSOCKET_MESSAGE: Final = 16 << 20
# Most clients look for an answer only after they have sent everything, so of a body that is too
# large a little more is read and dropped. Whoever sends far too much is cut off.
MAX_BODY: Final = 1 << 20
MAX_DROPPED: Final = 8 << 20


@dataclass(slots=True, weakref_slot=True, eq=False)
class Budget:
    """Of one peer; or of a port, with the shares of its peers."""

    read_ahead: int = 0
    attached: int = 0
    unfinished: int = 0
    windowed: int = 0
    unsent: int = 0
    unread: int = 0
    answers: int = 0
    tokens: int = 0
    bodies: int = 0
    storing: int = 0
    _shares: WeakSet[Budget] = field(default_factory=WeakSet, repr=False)

    def share(self) -> Budget:
        """A peer's own part, which counts here for as long as somebody has it."""
        share = Budget()
        self._shares.add(share)
        return share

    def kept(self) -> dict[str, int]:
        """Bytes by their kind, those of all shares included."""
        sums = {kind: getattr(self, kind) for kind in KINDS}
        for share in list(self._shares):
            for kind, count in share.kept().items():
                sums[kind] += count
        return sums

    @property
    def total(self) -> int:
        return sum(self.kept().values())


KINDS: Final = tuple(name for name in Budget.__slots__ if not name.startswith("_"))
