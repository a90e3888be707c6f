"""What a namespace did for its clients, into a ledger: the broker's view of what it served.

It is told where the counters of `metrics` count, after the commit, and only if there is a ledger.
What it is told it adds up until the next commit or tick: so a busy broker writes a record for each
entity and operation of a batch, not one for each message.

Recorded is what was served. What was refused is not, nor is what the broker does of its own accord,
except that it forwards, which is charged, and that it gives a message up, which an audit must know.
An id is read off a message as it is handed out and remembered with its lock, because the lock keeps
no bytes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from twinbus.amqp.message import Message
from twinbus.amqp.types import CodecError
from twinbus.broker.entry import Entry
from twinbus.broker.namespace import PING
from twinbus.broker.queue import Done, Letter, Queue
from twinbus.broker.requests import Reply, Request
from twinbus.ledger import Cause, Ledger, LedgerError, Operation, units

# What a backlog queue's path has in its middle, and where its messages say where they belong.
TRANSFER = "/x-servicebus-transfer/"
HOME = "x-ms-path"

_PREFIX = "com.microsoft:"
# Recorded message by message, where the messages are known.
_BY_MESSAGE = (_PREFIX + "schedule-message", _PREFIX + "receive-by-sequence-number")
_SETTLE = _PREFIX + "update-disposition"
_RENEWALS = (_PREFIX + "renew-lock", _PREFIX + "renew-session-lock")
_DISPOSITIONS = {
    "completed": Operation.COMPLETE,
    "abandoned": Operation.ABANDON,
    "defered": Operation.DEFER,
    "suspended": Operation.DEAD_LETTER,
}
_NOBODY = Letter(None, None)


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


class Bookkeeper:
    """Of one namespace."""

    def __init__(self, ledger: Ledger, namespace: str) -> None:
        self._ledger = ledger
        self._namespace = namespace
        self._lines: dict[_Key, _Line] = {}
        self._given_up: list[tuple[str, Letter]] = []

    def post(self, now_ms: int) -> None:
        """Into the ledger with what was added up since the last time.

        Raises LedgerError while the ledger cannot be written; what waits for that is kept.
        """
        self._note_given_up()
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
                self._namespace,
                key.entity,
                count=line.count,
                bytes=line.bytes,
                units=line.units,
                message_ids=line.message_ids,
                destination=key.destination,
                at=now_ms / 1000 + number / 1e6,  # apart, so that they keep their order
            )

    # -- messages

    def sending(
        self,
        operation: Operation,
        path: str,
        admitted: Sequence[tuple[Entry, Message, bool]],
        done: Done,
    ) -> Done:
        """A callback that records these messages if they were stored, and calls ``done``."""
        noted = [
            (_operation(operation, message), entry.size, _letter(path, message))
            for entry, message, _ in admitted
        ]

        def stored(error: Exception | None) -> None:
            try:
                for act, size, letter in noted if error is None else ():
                    self._note(act, _why(act, path), path, letter, size)
            finally:
                done(error)  # whatever becomes of the record, its sender is told

        return stored

    def forwarding(self, source: str, target: str, message: Message, size: int, done: Done) -> Done:
        letter = Letter(message.properties.message_id, target)

        def stored(error: Exception | None) -> None:
            done(error)  # first: it may have to record the send that led to this
            if error is None:
                self._note(Operation.FORWARD, Cause.NORMAL, source, letter, size)

        return stored

    def burying(self, source: str, entry: Entry, done: Done) -> Done:
        """A callback that records a dead letter that nobody asked for, and is not charged for."""
        letter = _stored_letter(source, entry)

        def stored(error: Exception | None) -> None:
            if error is None:
                self._given_up.append((source, letter))
            done(error)

        return stored

    def _note_given_up(self) -> None:
        """After what led to it, an abandoning or a send, of which the same commit tells later."""
        given_up, self._given_up = self._given_up, []
        for source, letter in given_up:
            cause = _why(Operation.DEAD_LETTER, source)
            self._note(Operation.DEAD_LETTER, cause, source, letter, 0, charged=0)

    def delivered(self, queue: Queue, entry: Entry, token: bytes, *, deletes: bool) -> None:
        self._note_given_up()  # it may be received as a dead letter
        path = queue.path
        letter = _stored_letter(path, entry)
        cause = _why(Operation.RECEIVE, path)
        self._note(Operation.RECEIVE, cause, path, letter, entry.size)
        lock = queue.locks.get(token)
        if lock is not None:
            lock.letter = letter
        if deletes:  # one charge, and the message is done with
            self._note(Operation.COMPLETE, cause, path, letter, 0, charged=0)

    def found_nothing(self, path: str) -> None:
        cause = Cause.SYPHON_IDLE if TRANSFER in path.lower() else Cause.NORMAL
        self._note(Operation.EMPTY_RECEIVE, cause, path, _NOBODY, 0)

    def settling(
        self, operation: Operation, queue: Queue, tokens: Sequence[bytes], done: Done
    ) -> Done:
        """A callback that records the settlements if they were stored, and calls ``done``."""
        locks = [queue.locks.get(token) for token in tokens]
        letters = [_NOBODY if lock is None else lock.letter or _NOBODY for lock in locks]

        def settled(error: Exception | None) -> None:
            try:
                for letter in letters if error is None else ():
                    self._note(operation, _why(operation, queue.path), queue.path, letter, 0)
            finally:
                done(error)

        return settled

    # -- requests

    def answering(self, name: str, request: Request) -> None:
        """Have a request to ``$management`` recorded when its answer says that it was done."""
        record = self._recorder(name, request)
        if record is None:
            return
        reply = request.reply

        def answer(result: Reply) -> None:
            if result.status < 300:
                record(None)
            reply(result)

        request.reply = answer

    def _recorder(self, name: str, request: Request) -> Done | None:
        if name in _BY_MESSAGE:
            return None
        if name != _SETTLE:
            operation = Operation.RENEW if name in _RENEWALS else Operation.MANAGE
            return partial(self._asked, operation, request.queue.path)
        status = request.body.get("disposition-status")
        settlement = _DISPOSITIONS.get(status) if isinstance(status, str) else None
        if settlement is None:
            return None
        tokens = list(dict.fromkeys(request.tokens()))
        return self.settling(settlement, request.queue, tokens, _ignore)

    def _asked(self, operation: Operation, path: str, error: Exception | None) -> None:
        self._note(operation, _why(operation, path), path, _NOBODY, 0)

    def managed(self, path: str) -> None:
        """A request over HTTP was done."""
        self._note(Operation.MANAGE, Cause.NORMAL, path, _NOBODY, 0)

    def _note(
        self,
        operation: Operation,
        cause: Cause,
        path: str,
        letter: Letter,
        size: int,
        charged: int | None = None,
    ) -> None:
        key = _Key(operation, cause, path, letter.destination)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        line.count += 1
        line.bytes += size
        line.units += units((size,)) if charged is None else charged
        if letter.message_id is not None:
            line.message_ids.append(letter.message_id)


def _operation(operation: Operation, message: Message) -> Operation:
    return Operation.PING if message.properties.content_type == PING else operation


def _stored_letter(path: str, entry: Entry) -> Letter:
    try:
        return _letter(path, Message.parse(entry.bare))
    except CodecError:  # older brokers took what they could not read
        return _NOBODY


def _letter(path: str, message: Message) -> Letter:
    if message.properties.content_type == PING:
        return _NOBODY
    home = _home(message) if TRANSFER in path.lower() else None
    return Letter(message.properties.message_id, home)


def _home(message: Message) -> str | None:
    home = message.application_properties().get(HOME)
    return home if isinstance(home, str) else None


def _why(operation: Operation, path: str) -> Cause:
    """By what it was done to: that a message comes home nobody can see on it."""
    if operation is Operation.PING:
        return Cause.PING
    if TRANSFER not in path.lower():
        return Cause.NORMAL
    sends = operation in (Operation.SEND, Operation.SCHEDULE)
    return Cause.BACKLOG_SEND if sends else Cause.BACKLOG_RECEIVE


def _ignore(error: Exception | None) -> None:
    """The request has its own way to be answered."""
