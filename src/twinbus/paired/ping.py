"""The ping: an empty message that asks an entity whether it takes messages; never delivered."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

from azure.servicebus import ServiceBusMessage

CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
TIME_TO_LIVE: Final = timedelta(seconds=1)


def ping_message() -> ServiceBusMessage:
    """With a session of its own, so that an entity that requires sessions takes it too."""
    return ServiceBusMessage(
        b"",
        content_type=CONTENT_TYPE,
        time_to_live=TIME_TO_LIVE,
        session_id=str(uuid4()),
        message_id=str(uuid4()),
    )


def is_ping(message: Any) -> bool:
    """Whether a received message is one."""
    return bool(message.content_type == CONTENT_TYPE)
