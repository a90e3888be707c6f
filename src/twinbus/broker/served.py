"""What a namespace did for its clients, into a ledger: the broker's view of what it served.

It is told where the counters of `metrics` count. What changes something goes into the batch that
changes it, and is recorded after the commit or not at all. It is added up until the next commit or
tick: so a busy broker writes a record for each entity and operation of a batch, not one for each
message.

Recorded is what was served. What was refused is not, nor is what the broker does of its own accord,
except that it forwards, which is charged, and that it gives a message up, which an audit must know.
An id is read off a message as it is handed out and remembered with its lock, because the lock keeps
no bytes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from twinbus.amqp.message import Message
from twinbus.amqp.types import CodecError
from twinbus.broker.descriptions import MAX_PATH
from twinbus.broker.entry import PING, Entry
from twinbus.broker.lock import MessageRef
from twinbus.broker.queue import Queue
from twinbus.ledger import Cause, Ledger, LedgerError, Operation, units

if TYPE_CHECKING:
    from twinbus.broker.batch import Batch
    from twinbus.broker.burial import Burial
    from twinbus.broker.entity import Entity
    from twinbus.broker.namespace import Admitted, Namespace
    from twinbus.broker.requests import Reply, Request

# What a backlog queue's path has in its middle, and where its messages say where they belong.
TRANSFER = "/x-servicebus-transfer/"
HOME = "x-ms-path"

_PREFIX = "com.microsoft:"
# Recorded message by message, where the messages are known.
_BY_MESSAGE = tuple(
    _PREFIX + name
    for name in ("schedule-message", "receive-by-sequence-number", "update-disposition")
)
_RENEWALS = (_PREFIX + "renew-lock", _PREFIX + "renew-session-lock")
_NOBODY = MessageRef(None, None)


class _Key(NamedTuple):
    operation: Operation
    cause: Cause
    entity: str
    destination: str | None


@dataclass(slots=True)
class _Line:
    count: int = 0
    bytes: int = 0
    units: int = 0
    message_ids: list[Any] = field(default_factory=list)


class ServedAct(NamedTuple):
    """One thing that was done: to what, and with which message."""

    operation: Operation
    path: str
    message: MessageRef
    size: int = 0
    is_given_up: bool = False  # a dead letter that nobody asked for, and is not charged for


class NoRecords:
    """Keeps nothing, and costs next to nothing: most brokers have no ledger."""

    # -- what goes into the batch of a change

    def sent(self, operation: Operation, entity: Entity, admitted: Sequence[Admitted]) -> None:
        """These messages are taken in."""

    def forwarded(self, source: str, target: str, message: Message, size: int) -> None:
        """A message goes on to another entity."""

    def buried(self, source: str, burial: Burial) -> None:
        """A message is given up, or its receiver has asked for that."""

    def settled(self, operation: Operation, queue: Queue, tokens: Sequence[bytes]) -> None:
        """These locks are being settled."""

    # -- what changes nothing, or is told when it has

    def committed(self, batch: Batch) -> None:
        """What the batch brings has come about."""

    def delivered(self, queue: Queue, entry: Entry, token: bytes, *, deletes: bool) -> None:
        """A message is handed out; or received and deleted, if that is what was asked for."""

    def found_nothing(self, path: str) -> None:
        """Somebody asked to receive, and got nothing."""

    def answering(self, name: str, request: Request) -> None:
        """Have a request to ``$management`` recorded when its answer says that it was done."""

    def managed(self, path: str) -> None:
        """A request over HTTP was done."""

    def post(self, now_ms: int) -> None:
        """Into the ledger with what was added up since the last time.

        Raises LedgerError while the ledger cannot be written; what waits for that is kept.
        """


class ServedRecords(NoRecords):
    """Of one namespace."""

    def __init__(self, ledger: Ledger, served: Namespace) -> None:
        self._ledger = ledger
        self._served = served
        self._store = served.store
        self._lines: dict[_Key, _Line] = {}

    def sent(self, operation: Operation, entity: Entity, admitted: Sequence[Admitted]) -> None:
        for entry, message, _ in admitted:
            done = Operation.PING if message.properties.content_type == PING else operation
            act = ServedAct(done, entity.path, _ref(entity.path, message), entry.size)
            self._served.duplicates.batch_of(entity, message).records.append(act)

    def forwarded(self, source: str, target: str, message: Message, size: int) -> None:
        ref = MessageRef(message.properties.message_id, target)
        self._store.batch.records.append(ServedAct(Operation.FORWARD, source, ref, size))

    def buried(self, source: str, burial: Burial) -> None:
        if not burial.is_asked:
            ref = _stored_ref(source, burial.entry)
            act = ServedAct(Operation.DEAD_LETTER, source, ref, is_given_up=True)
            self._store.batch.records.append(act)

    def settled(self, operation: Operation, queue: Queue, tokens: Sequence[bytes]) -> None:
        for token in tokens:
            lock = queue.locks.get(token)
            ref = _NOBODY if lock is None else lock.ref or _NOBODY
            self._store.batch.records.append(ServedAct(operation, queue.path, ref))

    def committed(self, batch: Batch) -> None:
        # What was given up comes after what led to it, an abandoning or a send.
        for act in sorted(batch.records, key=lambda act: act.is_given_up):
            self._note(act)

    def delivered(self, queue: Queue, entry: Entry, token: bytes, *, deletes: bool) -> None:
        ref = _stored_ref(queue.path, entry)
        self._note(ServedAct(Operation.RECEIVE, queue.path, ref, entry.size))
        lock = queue.locks.get(token)
        if lock is not None:
            lock.ref = ref
        if deletes:  # one charge, and the message is done with
            self._note(ServedAct(Operation.COMPLETE, queue.path, ref), charged=0)

    def found_nothing(self, path: str) -> None:
        self._note(ServedAct(Operation.EMPTY_RECEIVE, path, _NOBODY))

    def answering(self, name: str, request: Request) -> None:
        if name in _BY_MESSAGE:
            return
        operation = Operation.RENEW if name in _RENEWALS else Operation.MANAGE
        act = ServedAct(operation, request.queue.path, _NOBODY)
        reply = request.reply

        def answer(result: Reply) -> None:
            if result.status < 300:
                self._note(act)
            reply(result)

        request.reply = answer

    def managed(self, path: str) -> None:
        self._note(ServedAct(Operation.MANAGE, path, _NOBODY), Cause.NORMAL)

    def post(self, now_ms: int) -> None:
        if self._lines:
            self._add_up(now_ms)
        error = self._ledger.status.error
        if error:
            raise LedgerError(f"the ledger at {self._ledger.where} cannot be written: {error}")

    def _add_up(self, now_ms: int) -> None:
        lines, self._lines = self._lines, {}
        for number, (key, line) in enumerate(lines.items()):
            self._ledger.add(
                key.operation,
                key.cause,
                self._served.name,
                key.entity,
                count=line.count,
                bytes=line.bytes,
                units=line.units,
                message_ids=line.message_ids,
                destination=key.destination,
                at=now_ms / 1000 + number / 1e6,  # apart, so that they keep their order
            )

    def _note(self, act: ServedAct, cause: Cause | None = None, charged: int | None = None) -> None:
        operation, path, ref, size, is_given_up = act
        key = _Key(operation, cause or _why(operation, path), path, ref.destination)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        line.count += 1
        line.bytes += size
        if not is_given_up:
            line.units += units((size,)) if charged is None else charged
        if ref.message_id is not None:
            line.message_ids.append(ref.message_id)


def _stored_ref(path: str, entry: Entry) -> MessageRef:
    try:
        return _ref(path, Message.parse(entry.bare))
    except CodecError:  # older brokers took what they could not read
        return _NOBODY


def _ref(path: str, message: Message) -> MessageRef:
    if message.properties.content_type == PING:
        return _NOBODY
    home = _home(message) if TRANSFER in path.lower() else None
    return MessageRef(message.properties.message_id, home)


def _home(message: Message) -> str | None:
    home = message.application_properties().get(HOME)
    # What is longer is no path, and a lock would keep it.
    return home if isinstance(home, str) and len(home) <= MAX_PATH else None


def _why(operation: Operation, path: str) -> Cause:
    """By what it was done to: that a message comes home nobody can see on it."""
    if operation is Operation.PING:
        return Cause.PING
    if TRANSFER not in path.lower():
        return Cause.NORMAL
    if operation is Operation.EMPTY_RECEIVE:
        return Cause.SYPHON_IDLE
    sends = operation in (Operation.SEND, Operation.SCHEDULE)
    return Cause.BACKLOG_SEND if sends else Cause.BACKLOG_RECEIVE
