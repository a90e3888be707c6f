"""The private names of azure-servicebus that are used here: what each is for, and that it is there.

The SDK has no public way to send bytes, to share a sender or to see that a link has died. So a few
of its privates are used, all of them imported here and nowhere else, and looked at once, when this
is imported: an SDK that has changed is named in one sentence, and not met in the midst of a send.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final

from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageBatch,
    ServiceBusReceiver,
    ServiceBusSender,
)

VERSIONS: Final = "azure-servicebus>=7.15,<8"


def changed(what: object) -> ImportError:
    return ImportError(
        f"azure-servicebus {version('azure-servicebus')} is not as Twinbus knows it ({what}); "
        f"it works with {VERSIONS}"
    )


try:
    # Links are opened, tried again and closed by it: ours are its subclasses.
    from azure.servicebus._base_handler import BaseHandler

    # What is asked of ``$management``: scheduling, and what a request was, for the ledger.
    from azure.servicebus._common import mgmt_handlers
    from azure.servicebus._common.constants import (
        MGMT_REQUEST_MESSAGE,
        MGMT_REQUEST_MESSAGE_ID,
        MGMT_REQUEST_MESSAGES,
        MGMT_REQUEST_PARTITION_KEY,
        MGMT_REQUEST_SESSION_ID,
        REQUEST_RESPONSE_RECEIVE_BY_SEQUENCE_NUMBER,
        REQUEST_RESPONSE_RENEW_SESSION_LOCK_OPERATION,
        REQUEST_RESPONSE_RENEWLOCK_OPERATION,
        REQUEST_RESPONSE_SCHEDULE_MESSAGE_OPERATION,
        REQUEST_RESPONSE_UPDATE_DISPOSTION_OPERATION,
    )

    # The SDK's own spans around what is sent.
    from azure.servicebus._common.tracing import (
        SPAN_NAME_SCHEDULE,
        SPAN_NAME_SEND,
        get_span_link_from_message,
        get_span_links_from_batch,
        is_tracing_enabled,
        send_trace_context_manager,
        trace_message,
    )

    # A token for a link, and a message in whichever form a caller gives it.
    from azure.servicebus._common.utils import create_authentication, transform_outbound_messages

    # The bytes of a message, once, for both namespaces.
    from azure.servicebus._pyamqp._connection import Connection
    from azure.servicebus._pyamqp._encode import encode_payload
    from azure.servicebus._pyamqp.client import AMQPClient, ReceiveClient, SendClient

    # Whether a connection and a link are open, and how a delivery stands.
    from azure.servicebus._pyamqp.constants import ConnectionState, LinkState, SessionTransferState
    from azure.servicebus._pyamqp.link import Link
    from azure.servicebus._pyamqp.management_link import ManagementLink
    from azure.servicebus._pyamqp.management_operation import ManagementOperation
    from azure.servicebus._pyamqp.message import Message, Properties
    from azure.servicebus._pyamqp.receiver import ReceiverLink

    # Bytes are sent as they are by a link of ours; tokens are encoded as UUIDs.
    from azure.servicebus._pyamqp.sender import PendingDelivery, SenderLink
    from azure.servicebus._pyamqp.session import Session
    from azure.servicebus._pyamqp.types import TYPE, VALUE, AMQPTypes
    from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
except ImportError as error:
    raise changed(error) from error

__all__ = [
    "MGMT_REQUEST_MESSAGE",
    "MGMT_REQUEST_MESSAGES",
    "MGMT_REQUEST_MESSAGE_ID",
    "MGMT_REQUEST_PARTITION_KEY",
    "MGMT_REQUEST_SESSION_ID",
    "REQUEST_RESPONSE_RECEIVE_BY_SEQUENCE_NUMBER",
    "REQUEST_RESPONSE_RENEWLOCK_OPERATION",
    "REQUEST_RESPONSE_RENEW_SESSION_LOCK_OPERATION",
    "REQUEST_RESPONSE_SCHEDULE_MESSAGE_OPERATION",
    "REQUEST_RESPONSE_UPDATE_DISPOSTION_OPERATION",
    "SPAN_NAME_SCHEDULE",
    "SPAN_NAME_SEND",
    "TYPE",
    "VALUE",
    "AMQPTypes",
    "BaseHandler",
    "ConnectionState",
    "LinkState",
    "Message",
    "Properties",
    "PyamqpTransport",
    "SenderLink",
    "SessionTransferState",
    "create_authentication",
    "encode_payload",
    "get_span_link_from_message",
    "get_span_links_from_batch",
    "is_tracing_enabled",
    "mgmt_handlers",
    "send_trace_context_manager",
    "trace_message",
    "transform_outbound_messages",
]

# Methods that are called or overridden, with the parameters they are given.
HANDLER_METHODS: Final[dict[str, tuple[str, ...]]] = {
    "_do_retryable_operation": ("operation", "timeout"),
    "_backoff": ("retried_times", "last_exception", "abs_timeout_time", "entity_name"),
    "_handle_exception": ("exception",),
    "_mgmt_request_response_with_retry": ("mgmt_operation", "message", "callback", "timeout"),
    "_open": ("timeout",),
    "_open_with_retry": (),
    "_close_handler": (),
    "_check_live": (),
}
SENDER_METHODS: Final[dict[str, tuple[str, ...]]] = {
    "_send": ("message", "timeout"),
    "_create_handler": ("auth",),
}
RECEIVER_METHODS: Final[dict[str, tuple[str, ...]]] = {
    "_settle_message_with_retry": ("message", "settle_operation"),
    "_create_handler": ("auth",),
}
_METHODS: Final[tuple[tuple[object, dict[str, tuple[str, ...]]], ...]] = (
    (BaseHandler, HANDLER_METHODS),
    (ServiceBusSender, SENDER_METHODS),
    (ServiceBusReceiver, RECEIVER_METHODS),
    (AMQPClient, {"client_ready": (), "auth_complete": ()}),
    (SendClient, {"_send_message_impl": ("message", "timeout")}),
    (ReceiveClient, {"settle_messages": ("delivery_id", "delivery_tag", "outcome")}),
    (Connection, {"listen": ("wait",), "_get_remote_timeout": ("now",)}),
    (Session, {"_outgoing_transfer": ("delivery",)}),
    (Link, {"get_state": (), "flow": ("link_credit",)}),
    (SenderLink, {"_outgoing_transfer": ("delivery",)}),
    (ReceiverLink, {"_incoming_transfer": ("frame",), "_incoming_flow": ("frame",)}),
    (mgmt_handlers, {"default": (), "schedule_op": ()}),
)
# What their constructors set, and is read or set here.
HANDLER_ATTRIBUTES: Final = ("_handler", "_running", "_config", "_amqp_transport")
RECEIVER_ATTRIBUTES: Final = ("_session", "_receive_mode")
_ATTRIBUTES: Final[tuple[tuple[type[Any], tuple[str, ...]], ...]] = (
    (BaseHandler, HANDLER_ATTRIBUTES),
    (ServiceBusSender, ("_max_message_size_on_link", "_max_batch_size_on_link")),
    (ServiceBusReceiver, RECEIVER_ATTRIBUTES),
    (ServiceBusMessage, ("_message",)),
    (ServiceBusMessageBatch, ("_message", "_messages", "_amqp_transport")),
    (AMQPClient, ("_connection", "_link", "_keep_alive_interval", "_keep_alive_thread")),
    (AMQPClient, ("_idle_timeout", "_mgmt_links")),
    (ManagementOperation, ("_mgmt_link",)),
    (ManagementLink, ("_response_link",)),
    (Connection, ("state", "_transport", "_idle_timeout")),
    (Link, ("state", "_session", "current_link_credit", "delivery_count")),
    (Link, ("remote_max_message_size",)),
    (ReceiverLink, ("_received_delivery_tags",)),
    (PendingDelivery, ("message", "frame", "sent", "transfer_state")),
)
_BATCH: Final = ((2, "message_annotations"), (3, "properties"), (5, "data"))


def check_methods(owner: Any, methods: dict[str, tuple[str, ...]]) -> None:
    for name, wanted in methods.items():
        method: Callable[..., Any] | None = getattr(owner, name, None)
        if method is None:
            raise changed(f"{owner.__name__} has no {name}")
        if not {*wanted} <= {*inspect.signature(method).parameters}:
            raise changed(
                f"{owner.__name__}.{name} takes other parameters than {', '.join(wanted)}"
            )


def check_attributes(kind: type[Any], attributes: tuple[str, ...]) -> None:
    """As far as can be told without one: whether its constructor, or what that has for it, speaks
    of them."""
    setters = (kind.__init__, getattr(kind, "_populate_attributes", kind.__init__))
    spoken = {name for each in setters for name in each.__code__.co_names}
    for name in attributes:
        if name not in spoken:
            raise changed(f"{kind.__name__} sets no {name}")


for _owner, _methods in _METHODS:
    check_methods(_owner, _methods)
for _kind, _names in _ATTRIBUTES:
    check_attributes(_kind, _names)
for _index, _field in _BATCH:
    if Message._fields[_index : _index + 1] != (_field,):
        raise changed(f"{_field} is not field {_index} of a message")
