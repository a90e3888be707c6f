"""What happens to a pairing, as values. A listener is any function that takes one.

Times are seconds since 1970. An error is given as text, and never contains a key.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingEvent:
    """``namespace`` is the host that it happened to."""

    at: float
    namespace: str

    def __str__(self) -> str:
        return f"{type(self).__name__} on {self.namespace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityEvent(PairingEvent):
    entity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspected(EntityEvent):
    """The first failure that counts: the failover interval starts."""

    error: str

    def __str__(self) -> str:
        return f"'{self.entity}' on {self.namespace} is suspect: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverted(EntityEvent):
    """Sends go to the backlog from now on."""

    def __str__(self) -> str:
        return f"'{self.entity}' on {self.namespace} is out: sends go to the backlog"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinged(EntityEvent):
    succeeded: bool
    error: str = ""

    def __str__(self) -> str:
        said = "got through" if self.succeeded else f"failed: {self.error}"
        return f"ping to '{self.entity}' on {self.namespace} {said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(EntityEvent):
    """Sends go to the primary again."""

    def __str__(self) -> str:
        return f"'{self.entity}' on {self.namespace} takes messages again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared(EntityEvent):
    """A suspect took a message before the failover interval was over."""

    def __str__(self) -> str:
        return f"'{self.entity}' on {self.namespace} is suspect no longer"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesDiverted(EntityEvent):
    """Messages are in the backlog, on disk."""

    queue: str
    messages: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.messages} messages for '{self.entity}' went to {self.queue}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQueueOut(PairingEvent):
    queue: str
    error: str

    def __str__(self) -> str:
        return f"backlog queue {self.queue} on {self.namespace} is out: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQueueIn(PairingEvent):
    queue: str

    def __str__(self) -> str:
        return f"backlog queue {self.queue} on {self.namespace} works again"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonStarted(PairingEvent):
    pid: int

    def __str__(self) -> str:
        return f"the syphon for {self.namespace} has started, as process {self.pid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonEnded(PairingEvent):
    """It was not asked to. What is in the backlog stays there until it runs again, which it will
    not by itself if it has ended for good."""

    error: str
    for_good: bool = False

    def __str__(self) -> str:
        then = "it is not started again" if self.for_good else "it is started again"
        return f"the syphon for {self.namespace} has ended, and {then}: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(PairingEvent):
    def __str__(self) -> str:
        return f"the factory of {self.namespace} was closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulted(PairingEvent):
    error: str

    def __str__(self) -> str:
        return f"the factory of {self.namespace} has faulted: {self.error}"
