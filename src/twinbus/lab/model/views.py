"""A message as each side has it, put so that the two can be compared."""

from __future__ import annotations

from typing import Any

from twinbus.amqp.decoding import decode
from twinbus.amqp.link_endpoint import Link
from twinbus.amqp.message import Message as Bytes
from twinbus.amqp.message import application_properties, typed_properties
from twinbus.amqp.performatives import Accepted, Error, Modified, Rejected, Released
from twinbus.amqp.sections import data_items
from twinbus.amqp.types import Symbol
from twinbus.lab.model import things as model
from twinbus.lab.model.things import Box, IdealMessage

SESSION_FILTER = Symbol("com.microsoft:session-filter")


def granted(link: Link) -> str:
    """The session that the broker's attach names."""
    assert link.remote is not None
    return str(link.remote.source.filter[SESSION_FILTER])


def outcome_of(act: str, changes: dict[str, Any]) -> Any:
    annotations = {Symbol(key): value for key, value in changes.items()}
    if act == "complete":
        return Accepted()
    if act == "release":
        return Released()
    if act in ("abandon", "defer"):
        return Modified(act == "defer", act == "defer", annotations or None)
    info = {
        Symbol("DeadLetterReason"): "because",
        Symbol("DeadLetterErrorDescription"): "of this",
        **annotations,
    }
    return Rejected(Error("com.microsoft:dead-letter", None, info))


def condition_of(state: Any) -> str:
    if isinstance(state, Rejected):
        return "" if state.error is None else str(state.error.condition)
    return "accepted"


def tag_of(bare: bytes) -> str:
    return data_items(bare)[0].rstrip().decode()


def as_kept(message: IdealMessage, box: Box) -> tuple[Any, ...]:
    """A message of the model as `as_stored` has the real one."""
    in_session = box.has_sessions and message.state != model.SCHEDULED
    properties = dict(message.properties)
    properties.pop("DeadLetterErrorDescription", None)
    return (
        *(message.number, message.state, message.count, message.enqueued, message.expires),
        *(message.due, message.session if in_session else None, message.ttl, message.hops),
        *(message.origin, message.dead_source, message.size, message.tag, properties),
    )


def as_stored(entry: Any) -> tuple[Any, ...]:
    properties = application_properties(entry.bare)
    properties.pop("DeadLetterErrorDescription", None)
    return (
        *(entry.sequence, entry.state, entry.delivery_count, entry.enqueued_ms, entry.expires_ms),
        *(entry.due_ms, entry.session, entry.ttl_ms, entry.hops),
        *(entry.origin_sequence, entry.dead_source, entry.size, tag_of(entry.bare), properties),
    )


def visible(message: IdealMessage, until: int | None) -> dict[str, Any]:
    """What a receiver or a peek must see of it."""
    seen: dict[str, Any] = {
        "tag": message.tag,
        "id": message.message_id,
        "session": message.session,
        "ttl": message.ttl,
        "count": message.count,
        "priority": message.priority,
        "x-opt-sequence-number": message.number,
        "x-opt-enqueued-time": message.enqueued,
        "x-opt-enqueue-sequence-number": message.origin or message.number,
        "x-opt-message-state": message.state,
        "properties": {
            k: v for k, v in message.properties.items() if k != "DeadLetterErrorDescription"
        },
    }
    if until is not None:
        seen["x-opt-locked-until"] = until
    if message.mark is not None:
        seen["x-mark"] = message.mark
    if message.dead_source is not None:
        seen["x-opt-deadletter-source"] = message.dead_source
    if message.state == model.SCHEDULED:
        seen["x-opt-scheduled-enqueue-time"] = message.due
    return seen


def as_seen(payload: bytes) -> dict[str, Any]:
    message = Bytes.parse(payload)
    properties = typed_properties(message.bare)
    ours = application_properties(message.bare)
    ours.pop("DeadLetterErrorDescription", None)
    annotations = {str(key): value for key, value in message.annotation_map().items()}
    if annotations.get("x-opt-message-state") != model.SCHEDULED:
        annotations.pop("x-opt-scheduled-enqueue-time", None)
    count = _delivery_count(payload)
    given = properties.message_id
    return {
        "tag": tag_of(message.bare),
        "id": None if isinstance(given, str) and len(given) == 32 else given,
        "session": properties.group_id,
        "ttl": message.ttl_ms,
        "count": count,
        "priority": message.priority,
        "properties": ours,
        **annotations,
    }


def _delivery_count(payload: bytes) -> int:

    header = decode(payload, 3)[0]
    return int(header[4] or 0) if len(header) > 4 else 0
