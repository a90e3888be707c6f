"""Service Bus as a few dictionaries: what a namespace holds, and what it must answer.

Nothing here is quick, and nothing is kept anywhere but in these objects: no disk, no pages, no
caches, no clock of its own. It is meant to be read beside Service Bus's documents. The real
namespace is played against it step by step (see `play`), and whatever a client or an administrator
could see of the two must be the same.

What is left to the real one is only what the documents leave open: which of several receivers that
want a message gets it. So a delivery is not predicted but judged: `Service.delivered` says whether
this message could go to this receiver now, and `Service.owed` which could go and did not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from twinbus.lab.model.things import (
    ACTIVE,
    DEAD,
    DEFERRED,
    DISABLED,
    EXISTS,
    FULL,
    LOST,
    MISSING,
    NOT_ALLOWED,
    NOTHING,
    SCHEDULED,
    SESSION_LOST,
    TAKEN,
    TRANSFER,
    Box,
    IdealEntity,
    IdealLock,
    IdealMessage,
    IdealReceiver,
    IdealSession,
    NotReady,
    Refused,
    Wrong,
)

MAX_HOPS = 4


class Service:
    """One namespace."""

    def __init__(self) -> None:
        self.entities: dict[str, IdealEntity] = {}

    # -- finding

    def entity(self, path: str) -> IdealEntity:
        if path not in self.entities:
            raise Refused(NOTHING)
        return self.entities[path]

    def box(self, path: str) -> Box:
        for ending, which in ((TRANSFER, 2), (DEAD, 1)):
            if path.endswith(ending):
                return self.entity(path.removesuffix(ending)).boxes[which]
        return self.entity(path).box

    def boxes(self) -> Iterator[Box]:
        for entity in self.entities.values():
            yield from entity.boxes

    def held_bytes(self, entity: IdealEntity) -> int:
        """What counts towards its size: a topic's is that of its subscriptions too."""
        inside = [self.entities[path] for path in entity.subscriptions]
        if entity.kind != "topic":
            return entity.box.bytes
        return entity.box.bytes + sum(box.bytes for each in inside for box in each.boxes)

    # -- sending

    def send(self, path: str, messages: list[IdealMessage], now: int) -> list[int]:
        """All of them, or none. A message that is kept for later answers its number."""
        entity = self.entity(path)
        self._check_can_send(entity)
        if any(entity.requires_session and each.session is None for each in messages):
            raise Refused(NOT_ALLOWED)
        return [self._take(entity, each, now) for each in messages]

    def _check_can_send(self, entity: IdealEntity) -> None:
        if not entity.may_send:
            raise Refused(NOT_ALLOWED if entity.kind == "subscription" else DISABLED)
        if self.held_bytes(entity) >= entity.max_bytes:
            raise Refused(FULL)

    def _take(self, entity: IdealEntity, message: IdealMessage, now: int) -> int:
        if entity.window_ms is not None and message.message_id is not None:
            since = now - entity.window_ms
            if entity.seen.get(message.message_id, since) > since:
                return 0  # accepted and dropped
            entity.seen[message.message_id] = now
        message.enqueued = now
        if message.due is not None and message.due > now:
            message.state = SCHEDULED
            message.expires = None if message.ttl is None else message.due + message.ttl
            if entity.requires_session:
                pass  # its session counts from when it is active
            return entity.box.take(message).number
        message.due = None
        message.expires = None if message.ttl is None else now + message.ttl
        return self._place(entity, message, now)

    def _place(self, entity: IdealEntity, message: IdealMessage, now: int) -> int:
        if entity.ttl is not None and (message.ttl is None or message.ttl > entity.ttl):
            message.ttl, message.expires = entity.ttl, now + entity.ttl
        if entity.kind == "topic":
            self._publish(entity, message, now)
        elif entity.forward_to is not None:
            self._forward(entity, message, now)
        elif entity.requires_session and message.session is None:
            text = f"'{entity.path}' requires sessions, and the message names none."
            self._put_dead(entity.dead, entity.path, message, "Session ID is null.", text)
        else:
            return entity.box.take(message).number
        return 0

    def _publish(self, topic: IdealEntity, message: IdealMessage, now: int) -> None:
        """Each subscription has one copy by all its rules without an action, and one more by each
        that has one."""
        plain, changed = [], []
        for path in topic.subscriptions:
            subscription = self.entities[path]
            hits = {n: r for n, r in subscription.rules.items() if r.matches(message)}
            if any(rule.sets is None for rule in hits.values()):
                plain.append(subscription)
            changed += [(subscription, n, r) for n, r in hits.items() if r.sets is not None]
        for subscription in plain:
            copy = replace(message, properties=dict(message.properties))
            self._place(subscription, copy, now)
        for subscription, name, rule in changed:
            kept = {k: v for k, v in message.properties.items() if k not in rule.removes}
            made = {**kept, **(rule.sets or {}), "RuleName": name}
            self._place(subscription, replace(message, properties=made), now)

    def _forward(self, source: IdealEntity, message: IdealMessage, now: int) -> None:
        origin = source.box.next()
        moved = replace(message, hops=message.hops + 1, origin=message.origin or origin, number=0)
        if moved.hops > MAX_HOPS:
            text = f"The message was forwarded {MAX_HOPS} times; that is the limit."
            reason = "MaxTransferHopCountExceeded"
            self._put_dead(source.dead, source.path, moved, reason, text)
            return
        refused = self._why_not(str(source.forward_to), moved)
        if refused is not None:
            self._put_dead(source.transfer, source.path, moved, refused, None)
            return
        self._place(self.entities[str(source.forward_to)], moved, now)

    def _why_not(self, path: str, message: IdealMessage) -> str | None:
        """Why a message cannot be forwarded there."""
        try:
            target = self.entity(path)
            self._check_can_send(target)
        except Refused as refused:
            return {NOTHING: "EntityNotFound", DISABLED: "EntityDisabled", FULL: "Quota"}[
                str(refused)
            ]
        return "NotAllowed" if target.requires_session and message.session is None else None

    # -- dead letters

    def _bury(self, box: Box, message: IdealMessage, reason: str | None, text: str | None) -> None:
        """Out of its box, and to where its entity wants its dead."""
        del box.messages[message.number]
        entity = box.owner
        target = entity.forward_dead_to
        if box is entity.box and target is not None and self._why_not(target, message) is None:
            dead = _dead(box.path, message, reason, text)
            self._place(self.entities[target], dead, dead.enqueued)
            return
        self._put_dead(entity.dead, box.path, message, reason, text)

    def _put_dead(
        self, box: Box, source: str, message: IdealMessage, reason: str | None, text: str | None
    ) -> None:
        box.take(_dead(source, message, reason, text))

    # -- receiving

    def attach(self, path: str, deletes: bool, session: str | None, now: int) -> IdealReceiver:
        box = self.box(path)
        if box.owner.kind == "topic":
            raise Refused(NOT_ALLOWED)
        if not box.owner.may_receive:
            raise Refused(DISABLED)
        if box is box.owner.box and box.owner.forward_to is not None:
            raise Refused(NOT_ALLOWED)
        if box.has_sessions != (session is not None):
            raise Refused(NOT_ALLOWED)
        receiver = IdealReceiver(box, deletes)
        if session is not None:
            if session in box.sessions:
                raise Refused(TAKEN)
            receiver.session = IdealSession(session, now + box.owner.lock_ms, receiver)
            box.sessions[session] = receiver.session
        box.receivers.append(receiver)
        return receiver

    def free_session(self, path: str) -> str | None:
        """The session that whoever asks for any gets: that of the oldest message, if it is free."""
        box = self.box(path)
        free = (
            each.session
            for _, each in sorted(box.messages.items())
            if each.state == ACTIVE and each.session and each.session not in box.sessions
        )
        return next(free, None)

    def detach(self, receiver: IdealReceiver, now: int) -> None:
        receiver.box.receivers.remove(receiver)
        receiver.credit = 0
        if receiver.session is not None:
            self._end_session(receiver.session, now)

    def _end_session(self, session: IdealSession, now: int) -> None:
        box = session.receiver.box
        box.sessions.pop(session.id, None)
        for message in list(box.messages.values()):
            if message.lock is not None and message.lock.session is session:
                self._come_back(message.lock, message.count + 1, now)

    def delivered(self, receiver: IdealReceiver, number: int, now: int) -> IdealMessage:
        """The real one gave this message to this receiver: may it?"""
        box = receiver.box
        if receiver.credit <= 0:
            raise Wrong(f"'{box.path}': {number} went to a receiver that wanted no more")
        session = receiver.session.id if receiver.session else None
        for message in list(box.ready(session)):
            if message.is_late(now):
                self.expire(box, message)
                continue
            if message.number != number:
                raise Wrong(f"'{box.path}': {number} was delivered, {message.number} was next")
            receiver.credit -= 1
            if receiver.deletes:
                del box.messages[number]
            else:
                self._lock(box, message, receiver.session, now)
            return message
        raise NotReady(f"'{box.path}': {number} was delivered, which was not ready")

    def _lock(
        self, box: Box, message: IdealMessage, session: IdealSession | None, now: int
    ) -> IdealLock:
        until = session.until if session else now + box.owner.lock_ms
        message.lock = IdealLock(box, message, until, session)
        return message.lock

    def owed(self, now: int) -> list[str]:
        """Who still wants what is ready. What is too old for them is gone, for they asked."""
        found = []
        for box in list(self.boxes()):
            if box.waiting and self.free_session(box.path) is not None:
                found.append(f"'{box.path}' has a free session, and somebody waits for one")
            for receiver in box.receivers:
                if receiver.credit <= 0:
                    continue
                session = receiver.session.id if receiver.session else None
                for message in list(box.ready(session)):
                    if message.is_late(now):
                        self.expire(box, message)
                    else:
                        found.append(f"'{box.path}' did not deliver {message.number}")
        return found

    # -- settling

    def find(self, path: str, number: int) -> IdealLock:
        message = self.box(path).messages.get(number)
        if message is None or message.lock is None:
            raise Refused(LOST)
        return message.lock

    def complete(self, lock: IdealLock) -> None:
        del lock.box.messages[lock.message.number]

    def abandon(self, lock: IdealLock, changes: dict[str, Any], now: int) -> None:
        lock.message.properties.update(changes)
        self._come_back(lock, lock.message.count + 1, now)

    def release(self, lock: IdealLock, now: int) -> None:
        """Handed back unseen: the delivery does not count."""
        self._come_back(lock, lock.message.count, now)

    def _come_back(self, lock: IdealLock, count: int, now: int) -> None:
        message = lock.message
        failed = count > message.count and count >= self._most_deliveries(lock.box)
        message.count, message.lock = count, None
        if message.state == DEFERRED:
            return
        if failed:
            text = f"Message could not be consumed after {count} delivery attempts."
            self._bury(lock.box, message, "MaxDeliveryCountExceeded", text)
        elif message.is_late(now):
            self.expire(lock.box, message)

    def _most_deliveries(self, box: Box) -> int:
        """Nobody is given up twice."""
        return box.owner.max_deliveries if box is box.owner.box else 1 << 31

    def defer(self, lock: IdealLock, changes: dict[str, Any]) -> None:
        message = lock.message
        message.properties.update(changes)
        message.count, message.state, message.lock = message.count + 1, DEFERRED, None

    def dead_letter(
        self, lock: IdealLock, reason: str | None, text: str | None, changes: dict[str, Any]
    ) -> None:
        lock.message.properties.update(changes)
        lock.message.count, lock.message.lock = lock.message.count + 1, None
        self._bury(lock.box, lock.message, reason, text)

    def renew(self, lock: IdealLock, now: int) -> int:
        if lock.session is None:
            lock.until = now + lock.box.owner.lock_ms
        return lock.until

    def receive_deferred(
        self, path: str, numbers: list[int], deletes: bool, session: IdealSession | None, now: int
    ) -> list[IdealMessage]:
        box = self.box(path)
        found = [box.messages.get(number) for number in dict.fromkeys(numbers)]
        if any(m is None or m.state != DEFERRED or m.lock is not None for m in found):
            raise Refused(MISSING)
        for message in found:
            assert message is not None
            if deletes:
                del box.messages[message.number]
            else:
                self._lock(box, message, session, now)
        return [message for message in found if message is not None]

    def cancel(self, path: str, numbers: list[int]) -> dict[str, Any]:
        box = self.box(path)
        found = [box.messages.get(number) for number in numbers]
        if any(message is None or message.state != SCHEDULED for message in found):
            raise Refused(MISSING)
        for number in dict.fromkeys(numbers):
            del box.messages[number]
        return {}

    def purge(self, path: str, most: int, before: int, now: int) -> int:
        """Delete what is ready and came before a moment, oldest first."""
        box, gone = self.box(path), 0
        if box.has_sessions:
            raise Refused(NOT_ALLOWED)
        for message in list(box.ready()):
            if gone == most:
                break
            if message.is_late(now):
                self.expire(box, message)
            elif message.enqueued >= before:
                break
            else:
                del box.messages[message.number]
                gone += 1
        return gone

    def has_ids_between(self, earlier: int, now: int) -> bool:
        """Whether an id for duplicate detection was still good then, and is not now."""
        return any(
            earlier - entity.window_ms < at <= now - entity.window_ms
            for entity in self.entities.values()
            if entity.window_ms is not None
            for at in entity.seen.values()
        )

    # -- sessions

    def session(self, path: str, session_id: str) -> IdealSession:
        box = self.box(path)
        if not box.has_sessions:
            raise Refused(NOT_ALLOWED)
        if session_id not in box.sessions:
            raise Refused(SESSION_LOST)
        return box.sessions[session_id]

    def renew_session(self, path: str, session_id: str, now: int) -> int:
        session = self.session(path, session_id)
        session.until = now + session.receiver.box.owner.lock_ms
        for message in session.receiver.box.messages.values():
            if message.lock is not None and message.lock.session is session:
                message.lock.until = session.until
        return session.until

    def set_state(self, path: str, session_id: str, state: bytes | None) -> dict[str, Any]:
        self.session(path, session_id)
        states = self.box(path).states
        states.pop(session_id, None)
        if state is not None:
            states[session_id] = state
        return {}

    # -- the passing of time

    def tick(self, now: int) -> list[IdealReceiver]:
        """Locks end, what is due appears, what is too old goes. Answers who lost a session."""
        late = [  # what this tick itself puts somewhere is looked at by the next
            (box, message)
            for box in self.boxes()
            for message in box.messages.values()
            if message.state != DEFERRED and message.lock is None and message.is_late(now)
        ]
        lost = self._end_locks(now)
        due = [
            (m.due or 0, number, box, m)
            for number, box in enumerate(self.boxes())
            for m in list(box.messages.values())
            if m.state == SCHEDULED and (m.due or 0) <= now
        ]
        for _, _, box, message in sorted(due, key=lambda each: (*each[:2], each[3].number)):
            del box.messages[message.number]
            expires = None if message.ttl is None else now + message.ttl
            active = replace(message, state=ACTIVE, due=None, enqueued=now, expires=expires)
            self._place(box.owner, active, now)
        for box, message in late:
            if box.messages.get(message.number) is message:
                self.expire(box, message)
        return lost

    def _end_locks(self, now: int) -> list[IdealReceiver]:
        lost = []
        for box in list(self.boxes()):
            for session in list(box.sessions.values()):
                if session.until <= now:
                    box.receivers.remove(session.receiver)
                    lost.append(session.receiver)
                    self._end_session(session, now)
            for message in list(box.messages.values()):
                lock = message.lock
                if lock is not None and lock.session is None and lock.until <= now:
                    self._come_back(lock, message.count + 1, now)
        return lost

    def expire(self, box: Box, message: IdealMessage) -> None:
        keeps = box is box.owner.box and box.owner.dead_letters_expired
        if keeps and message.state != SCHEDULED:
            text = "The message expired and was dead lettered."
            self._bury(box, message, "TTLExpiredException", text)
        else:
            del box.messages[message.number]

    # -- administrators

    def create(self, entity: IdealEntity) -> None:
        if entity.path in self.entities:
            raise Refused(EXISTS)
        self.entities[entity.path] = entity
        topic, _, _ = entity.path.partition("/Subscriptions/")
        if entity.kind == "subscription":
            self.entities[topic].subscriptions.append(entity.path)

    def delete(self, path: str) -> list[IdealReceiver]:
        """With all that is in it, and a topic with its subscriptions. Answers who is cut off."""
        entity = self.entity(path)
        doomed = [entity, *(self.entities[each] for each in entity.subscriptions)]
        for each in doomed:
            del self.entities[each.path]
        if entity.kind == "subscription":
            self.entities[path.partition("/Subscriptions/")[0]].subscriptions.remove(path)
        return [receiver for each in doomed for box in each.boxes for receiver in box.receivers]

    def update(self, path: str, changes: dict[str, Any], now: int) -> list[IdealReceiver]:
        """Answers who may no longer receive."""
        entity = self.entity(path)
        for name, value in changes.items():
            setattr(entity, name, value)
        cut = [] if entity.may_receive else list(entity.box.receivers)
        for receiver in cut:
            entity.box.receivers.remove(receiver)
            if receiver.session is not None:
                self._end_session(receiver.session, now)
        self.forward_waiting(now)
        return cut

    def forward_waiting(self, now: int) -> None:
        """What lay in a queue when it began to forward goes on too."""
        for entity in list(self.entities.values()):
            if entity.forward_to is None or entity.requires_session or entity.kind == "topic":
                continue
            for message in list(entity.box.ready()):
                if message.is_late(now):
                    self.expire(entity.box, message)
                else:
                    del entity.box.messages[message.number]
                    self._forward(entity, message, message.enqueued)

    def restart(self) -> None:
        """The process is gone and is there again: nobody holds anything."""
        for box in self.boxes():
            box.last, box.waiting = box.kept, 0
            box.receivers.clear()
            box.sessions.clear()
            for message in box.messages.values():
                message.lock = None


def _dead(source: str, message: IdealMessage, reason: str | None, text: str | None) -> IdealMessage:
    notes = {"DeadLetterReason": reason, "DeadLetterErrorDescription": text}
    return replace(
        message,
        state=ACTIVE,
        expires=None,
        due=None,
        origin=message.origin or message.number or None,
        dead_source=source,
        lock=None,
        properties={**message.properties, **{k: v for k, v in notes.items() if v is not None}},
    )
