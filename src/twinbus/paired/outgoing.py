"""What a sender was given, ready for the wire: once to the primary, or as bytes to the backlog.

A message without an id gets one here, on the copy that is sent and not on the caller's object,
which may be sent again as another message. The copy that times out on its way to the primary and
the copy that is diverted thus have the same id, and the destination can tell that they are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import uuid4

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from twinbus.amqp.batches import size_in_batch
from twinbus.ledger import UNIT_BYTES
from twinbus.sdk.privates import (
    MGMT_REQUEST_MESSAGE,
    MGMT_REQUEST_MESSAGE_ID,
    MGMT_REQUEST_MESSAGES,
    MGMT_REQUEST_PARTITION_KEY,
    MGMT_REQUEST_SESSION_ID,
    Message,
    Properties,
    PyamqpTransport,
    encode_payload,
    get_span_link_from_message,
    get_span_links_from_batch,
    is_tracing_enabled,
    trace_message,
    transform_outbound_messages,
)
from twinbus.sdk.privates_aio import PyamqpTransportAsync

# Sizes that are counted, not encoded, may be wrong by this much.
INEXACT = 2048


def identified(message: Message) -> Message:
    """The same message, with an id."""
    properties = message.properties
    if properties is None:
        return message._replace(properties=Properties(message_id=str(uuid4())))
    if properties.message_id is None:
        return message._replace(properties=properties._replace(message_id=str(uuid4())))
    return message


def size_of(message: Message) -> int:
    """The bytes of body and properties. Encoding a message to learn its size costs more than the
    rest of its record, so that is done only where the size decides about another 64 KB."""
    data = message.data
    if data is None:
        return _encoded_size(message)
    size = len(data) if isinstance(data, bytes) else sum(map(len, data))
    if message.application_properties:
        for key, value in message.application_properties.items():
            size += len(key) + (len(value) if isinstance(value, str | bytes) else 8)
    return size if UNIT_BYTES - size % UNIT_BYTES > INEXACT else _encoded_size(message)


def _encoded_size(message: Message) -> int:
    return len(encode_payload(bytearray(), message))


class IdentifyingTransport(PyamqpTransport):
    """The SDK's transport for threads; a message that goes through it has an id."""

    @staticmethod
    def to_outgoing_amqp_message(annotated_message: Any) -> Message:
        return identified(PyamqpTransport.to_outgoing_amqp_message(annotated_message))


class IdentifyingTransportAsync(PyamqpTransportAsync):
    """The SDK's transport for asyncio; a message that goes through it has an id."""

    @staticmethod
    def to_outgoing_amqp_message(annotated_message: Any) -> Message:
        return identified(PyamqpTransport.to_outgoing_amqp_message(annotated_message))


class Outgoing:
    """One message. ``_message`` is the name under which the SDK looks for what to send."""

    __slots__ = ("_encoded", "_message", "links")

    def __init__(self, message: Message, links: list[Any] | None = None) -> None:
        self._message = message
        self._encoded: list[bytes] | None = None
        self.links = links  # None while nothing is traced

    def encoded(self) -> list[bytes]:
        if self._encoded is None:
            self._encoded = [bytes(encode_payload(bytearray(), self._message))]
        return self._encoded

    def ids(self) -> list[Any]:
        return [_id(self._message)]

    def sizes(self) -> list[int]:
        return [size_of(self._message)]


class OutgoingBatch:
    """Several messages in one transfer, each encoded already."""

    __slots__ = ("_ids", "_items", "_message", "_sizes", "links")

    def __init__(
        self,
        items: list[bytes],
        envelope: list[Any] | None = None,
        links: list[Any] | None = None,
        ids: list[Any] | None = None,
    ) -> None:
        self._items = items
        self._ids = ids or []
        self.links = links
        message = envelope or [None] * 9
        message[5] = items
        self._message = message
        self._sizes = list(map(len, items))

    @classmethod
    def of(cls, singles: list[Outgoing]) -> OutgoingBatch:
        """The batch the SDK would make of these: its envelope repeats the first message's ids."""
        envelope: list[Any] = [None] * 9
        first = singles[0]
        message = first._message
        if message.properties is not None:
            ids = Properties(
                message_id=message.properties.message_id, group_id=message.properties.group_id
            )
            envelope[3] = ids
        envelope[2] = _partition_key(message)
        return cls(
            [item for each in singles for item in each.encoded()],
            envelope,
            links_of(singles),
            [_id(each._message) for each in singles],
        )

    def encoded(self) -> list[bytes]:
        return self._items

    def ids(self) -> list[Any]:
        return self._ids

    def sizes(self) -> list[int]:
        return self._sizes

    def check_fits(self, limit: int) -> None:
        """The SDK's own refusal of a list that is too long for one batch, by the SDK's own count: a
        batch that it filled to the brim is none."""
        if sum(map(size_in_batch, self._sizes)) > limit:
            raise MessageSizeExceededError(
                message=f"ServiceBusMessageBatch has reached its size limit: {limit}"
            )


def is_encodable(ready: Outgoing | OutgoingBatch) -> bool:
    """Or has its caller put something into it that nobody can send?"""
    try:
        ready.encoded()
    except Exception:  # noqa: BLE001  whatever the SDK says of it
        return False
    return True


def single(message: Any, transport: Any, attributes: dict[str, str | int]) -> Outgoing:
    """One message in any of the forms the SDK takes."""
    if isinstance(message, ServiceBusMessage):
        # Not through the caller's object, which another thread may be sending as well.
        prepared = transport.to_outgoing_amqp_message(message.raw_amqp_message)
    else:
        converted: Any = transform_outbound_messages(
            message, ServiceBusMessage, transport.to_outgoing_amqp_message
        )
        prepared = converted._message
    if not is_tracing_enabled():
        return Outgoing(prepared)
    traced: Any = trace_message(prepared, transport, attributes)
    link = get_span_link_from_message(traced)
    return Outgoing(traced, [link] if link else [])


def outgoing(
    message: Any, transport: Any, attributes: dict[str, str | int]
) -> Outgoing | OutgoingBatch | None:
    """What to send for ``message``; None for an empty list or batch, as the SDK has it."""
    if isinstance(message, ServiceBusMessageBatch):
        if message._amqp_transport is transport:
            if not message:
                return None
            envelope = list(message._message)
            links = get_span_links_from_batch(message) if is_tracing_enabled() else None
            ids: list[Any] = [_id(each._message) for each in message._messages]
            return OutgoingBatch([bytes(item) for item in envelope[5]], envelope, links, ids)
        message = message._messages
    if isinstance(message, Mapping) or not hasattr(message, "__iter__"):
        return single(message, transport, attributes)
    singles = [single(item, transport, attributes) for item in message]
    return OutgoingBatch.of(singles) if singles else None


def links_of(singles: list[Outgoing]) -> list[Any] | None:
    """For the span around all of them; None while nothing is traced."""
    if singles[0].links is None:
        return None
    return [link for each in singles for link in each.links or []]


def scheduled(
    messages: Any, at: datetime, transport: Any, attributes: dict[str, str | int]
) -> list[Outgoing]:
    """What to schedule for ``messages``, which may be one or many, in any of the SDK's forms."""
    many = messages if _is_many(messages) else [messages]
    return [single(_due(each, at), transport, attributes) for each in many]


def _is_many(messages: Any) -> bool:
    single = isinstance(messages, ServiceBusMessage | Mapping)
    return isinstance(messages, Iterable) and not single


def _due(message: Any, at: datetime) -> Any:
    """The message, marked as the SDK marks it: on the caller's own object, if it is one."""
    if isinstance(message, Mapping):
        message = ServiceBusMessage(**message)
    elif isinstance(message, AmqpAnnotatedMessage):
        message = ServiceBusMessage(None, message=None, raw_amqp_message=message)
    if isinstance(message, ServiceBusMessage):
        message.scheduled_enqueue_time_utc = at
    return message


def schedule_request(many: list[Outgoing]) -> dict[str, Any]:
    """What the SDK asks of an entity's ``$management`` to have these scheduled."""
    return {MGMT_REQUEST_MESSAGES: [_schedule_entry(each) for each in many]}


def _schedule_entry(each: Outgoing) -> dict[str, Any]:
    (encoded,) = each.encoded()
    message, properties = each._message, each._message.properties
    (key,) = (_partition_key(message) or {None: None}).values()
    entry = {
        MGMT_REQUEST_MESSAGE_ID: _text(_id(message)),
        MGMT_REQUEST_SESSION_ID: properties and _text(properties.group_id),
        MGMT_REQUEST_PARTITION_KEY: _text(key),
        MGMT_REQUEST_MESSAGE: bytearray(encoded),
    }
    return {name: value for name, value in entry.items() if value}


def _text(value: Any) -> Any:
    """A received message, sent on, has bytes where it had text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _partition_key(message: Message) -> dict[Any, Any] | None:
    """The annotation that has it, if there is one."""
    annotations = message.message_annotations or {}
    for key in (b"x-opt-partition-key", "x-opt-partition-key"):
        if annotations.get(key) is not None:
            return {key: annotations[key]}
    return None


def _id(message: Any) -> Any:
    return message.properties.message_id if message.properties is not None else None
