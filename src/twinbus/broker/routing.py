"""Between a message's bytes and the rules: the properties that filters see, and the message that
an action leaves behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from twinbus.amqp.message import (
    Message,
    typed_properties,
    with_application_properties,
    with_properties,
)
from twinbus.amqp.sections import PARTITION_KEY
from twinbus.amqp.types import Timestamp, encode_map
from twinbus.broker.expressions import FilterError, MessageProperties, Value, as_utc

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_SYSTEM = {
    "messageid": "message_id",
    "correlationid": "correlation_id",
    "to": "to",
    "replyto": "reply_to",
    "label": "subject",
    "sessionid": "group_id",
    "replytosessionid": "reply_to_group_id",
    "contenttype": "content_type",
}


class UserProperties(Mapping[str, Value]):
    """The application's properties, decoded when a rule first asks for them."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._typed: dict[str, Any] | None = None
        self._values: dict[str, Value] = {}

    @property
    def typed(self) -> dict[str, Any]:
        if self._typed is None:
            self._typed = self._message.application_properties()
            self._values = {key: _for_rules(value) for key, value in self._typed.items()}
        return self._typed

    def __getitem__(self, key: str) -> Value:
        return self._values[key] if self.typed is not None else None

    def __iter__(self) -> Iterator[str]:
        return iter(self.typed)

    def __len__(self) -> int:
        return len(self.typed)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rules may ask about a message."""

    properties: MessageProperties
    user: UserProperties


@dataclass(frozen=True, slots=True)
class Changed:
    """A copy that an action has changed. ``ttl_ms`` is set if the action set it."""

    message: Message
    ttl_ms: int | None


def read(message: Message) -> Facts:
    properties = message.properties
    system: dict[str, Value] = {}
    for name, attribute in _SYSTEM.items():
        value = getattr(properties, attribute)
        if value is not None:
            system[name] = value
    if message.ttl_ms is not None:
        system["timetolive"] = timedelta(milliseconds=message.ttl_ms)
    if message.annotations is not None:
        key = message.annotation_map().get(PARTITION_KEY)
        if isinstance(key, str):
            system["partitionkey"] = key
    user = UserProperties(message)
    return Facts(MessageProperties(system, user), user)


def rewrite(message: Message, before: Facts, after: MessageProperties) -> Changed:
    """The message with the properties an action left; the body's bytes are untouched."""
    properties = typed_properties(message.bare)
    for name, attribute in _SYSTEM.items():
        if after.system.get(name) != before.properties.system.get(name):
            setattr(properties, attribute, after.system.get(name))
    user = {
        key: before.user.typed[key]
        if key in before.user and before.user[key] is value
        else _for_wire(value)
        for key, value in after.user.items()
    }
    bare = with_application_properties(with_properties(message.bare, properties), user)
    ttl = after.system.get("timetolive")
    changed_ttl = ttl if ttl != before.properties.system.get("timetolive") else None
    if isinstance(changed_ttl, timedelta) and changed_ttl < timedelta():
        raise FilterError("sys.TimeToLive cannot be less than nothing")
    new = replace(message, bare=bare, properties=properties)
    if after.system.get("partitionkey") != before.properties.system.get("partitionkey"):
        items = message.annotation_map()
        items[PARTITION_KEY] = after.system.get("partitionkey")
        new.annotations = encode_map(items)
    return Changed(new, changed_ttl // _MS if isinstance(changed_ttl, timedelta) else None)


def _for_rules(value: Any) -> Value:
    """Rules compare times as times; all other types they take as they are."""
    if isinstance(value, Timestamp):
        try:
            return _EPOCH + timedelta(milliseconds=value)
        except OverflowError:
            return int(value)
    return value  # type: ignore[no-any-return]  # what rules cannot compare they find unknown


def _for_wire(value: Value) -> Any:
    if isinstance(value, datetime):
        return Timestamp((as_utc(value) - _EPOCH) // _MS)
    if isinstance(value, timedelta):
        return str(value)
    return value
