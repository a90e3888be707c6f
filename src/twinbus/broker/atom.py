"""Descriptions, counts and rules as the Atom XML of the management API, both ways.

Pure: bytes in, values out, and back. The shape is the one Azure answers with, element by element
and in its order, because clients differ in what they insist on: the JavaScript SDK wants every
boolean and integer there, names read from `<id>`, the prefix of CountDetails declared on it, and
values typed with the prefix ``i``; the Python SDK wants an `<Action>` in every rule.

What is read is trusted less. A document type is refused before the parser sees the text, so no
entity is ever expanded. Elements that are not settings (counts, dates) are passed over, since a
client that updates sends back what it was given; a setting that is absent has its default.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree

from twinbus.broker.access import new_key
from twinbus.broker.descriptions import (
    FOREVER,
    AccessRule,
    Claim,
    D,
    Description,
    DescriptionError,
    QueueDescription,
    Status,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.expressions import Value
from twinbus.broker.rules import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    RuleError,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
_SCHEMA = "http://www.w3.org/2001/XMLSchema"
_SERIALIZATION = "http://schemas.microsoft.com/2003/10/Serialization/"
_TYPE = f"{{{_INSTANCE}}}type"
_NIL = f"{{{_INSTANCE}}}nil"
_NAMESPACES = f'xmlns="{SERVICE_BUS}" xmlns:i="{_INSTANCE}"'

MAX_MESSAGE_KB = 256
DEFAULT_RULE = "$Default"
_MAX_KEY_NAME = 256
_MAX_KEY = 256

Element = ElementTree.Element


class AtomError(ValueError):
    """A body that is not the XML it should be."""


# --- text -------------------------------------------------------------------------------

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLAIN = re.compile(r"[\w ./:?=$~-]*", re.ASCII)
_SPECIAL = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#13;", "\n": "&#10;"}
)


def escape(text: str) -> str:
    """Text for an element or attribute; what XML cannot say at all becomes U+FFFD.

    A name or filter that came over AMQP may hold such a character, and one of them would
    make a whole page unreadable.
    """
    if _PLAIN.fullmatch(text):
        return text
    return _ILLEGAL.sub("\ufffd", text).translate(_SPECIAL)


def _text(element: Element) -> str:
    return element.text or ""


def _integer(text: str, what: str) -> int:
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", text):
        raise DescriptionError(f"{what} must be a whole number; it is '{text[:40]}'")
    return int(text)


def _boolean(text: str, what: str) -> bool:
    match text.strip().lower():
        case "true" | "1":
            return True
        case "false" | "0":
            return False
    raise DescriptionError(f"{what} must be true or false; it is '{text[:40]}'")


def _truth(value: bool) -> str:
    return "true" if value else "false"


# --- time -------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1)  # in UTC; without a zone it prints none
# The longest time span of .NET, which is what Service Bus calls for ever.
_FOREVER = "P10675199DT2H48M5.4775807S"
_FOREVER_DAYS = 10_675_199
_PERIOD = re.compile(
    r"(?P<sign>-?)P(?:(?P<years>\d{1,9})Y)?(?:(?P<months>\d{1,9})M)?(?:(?P<weeks>\d{1,9})W)?"
    r"(?:(?P<days>\d{1,9})D)?"
    r"(?P<time>T(?:(?P<hours>\d{1,12})H)?(?:(?P<minutes>\d{1,12})M)?"
    r"(?:(?P<seconds>\d{1,12})(?:\.(?P<fraction>\d{1,12}))?S)?)?",
    re.ASCII,
)


def moment(at_ms: int) -> str:
    """A time as ISO 8601 in UTC, to the millisecond."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds") + "Z"


def duration(value: timedelta) -> str:
    """A time span as ISO 8601."""
    sign, value = ("-", -value) if value < timedelta(0) else ("", value)
    hours, rest = divmod(value.seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    fraction = f".{value.microseconds:06d}".rstrip("0") if value.microseconds else ""
    time = (
        (f"{hours}H" if hours else "")
        + (f"{minutes}M" if minutes else "")
        + (f"{seconds}{fraction}S" if seconds or fraction else "")
    )
    if not value.days and not time:
        return "PT0S"
    return f"{sign}P{f'{value.days}D' if value.days else ''}{f'T{time}' if time else ''}"


def parse_duration(text: str, what: str) -> timedelta:
    """The time span in ISO 8601 text; a year is 365 days and a month 30, as .NET has it."""
    found = _PERIOD.fullmatch(text.strip())
    if found is None or found["time"] == "T" or text.strip().endswith("P"):
        raise DescriptionError(f"{what} must be an ISO 8601 duration; it is '{text[:40]}'")
    parts = {
        name: int(found[name] or 0)
        for name in ("years", "months", "weeks", "days", "hours", "minutes", "seconds")
    }
    days = parts["years"] * 365 + parts["months"] * 30 + parts["weeks"] * 7 + parts["days"]
    try:
        value = timedelta(
            days=days,
            hours=parts["hours"],
            minutes=parts["minutes"],
            seconds=parts["seconds"],
            microseconds=int((found["fraction"] or "").ljust(6, "0")[:6]),
        )
    except OverflowError as error:
        raise DescriptionError(f"{what} is too long: '{text[:40]}'") from error
    return -value if found["sign"] else value


def _span(value: timedelta) -> str:
    return _FOREVER if value.days >= _FOREVER_DAYS else duration(value)


def _parse_span(text: str, what: str) -> timedelta:
    # The Python SDK rounds the longest span on its way back, so anything of its days is for ever.
    value = parse_duration(text, what)
    return FOREVER if value.days >= _FOREVER_DAYS else value


# --- the settings of an entity -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Runtime:
    """What an entity has become, beside what it was told to be."""

    created_ms: int
    updated_ms: int
    accessed_ms: int
    active: int = 0
    dead: int = 0
    scheduled: int = 0
    transfer_dead: int = 0
    bytes: int = 0
    subscriptions: int = 0

    @property
    def messages(self) -> int:
        return self.active + self.dead + self.scheduled + self.transfer_dead


class _Setting(NamedTuple):
    """An element that clients may set: its attribute, and the way out and in."""

    tag: str
    attribute: str
    write: Callable[[Any, str], str | None]
    read: Callable[[Element, str], Any]


class _Fact(NamedTuple):
    """An element that is only ever told."""

    tag: str
    write: Callable[[Runtime], str]


def _truth_setting(tag: str, attribute: str) -> _Setting:
    return _Setting(
        tag, attribute, lambda value, host: _truth(value), lambda e, what: _boolean(_text(e), what)
    )


def _number_setting(tag: str, attribute: str) -> _Setting:
    return _Setting(
        tag, attribute, lambda value, host: str(value), lambda e, what: _integer(_text(e), what)
    )


def _span_setting(tag: str, attribute: str) -> _Setting:
    return _Setting(
        tag,
        attribute,
        lambda value, host: _span(value),
        lambda e, what: _parse_span(_text(e), what),
    )


def _target_setting(tag: str, attribute: str) -> _Setting:
    return _Setting(
        tag,
        attribute,
        lambda value, host: None if value is None else escape(f"sb://{host}/{quote(value)}"),
        lambda e, what: _target(_text(e).strip(), what),
    )


def _target(text: str, what: str) -> str | None:
    """The path in a forwarding target, which may come as an address of any scheme."""
    if "://" not in text:
        return text.strip("/") or None
    try:
        return unquote(urlsplit(text).path).strip("/") or None
    except ValueError as error:
        raise DescriptionError(f"{what} is not an address: '{text[:80]}'") from error


def _status(element: Element, what: str) -> Status:
    try:
        return Status(_text(element).strip())
    except ValueError as error:
        raise DescriptionError(
            f"{what} must be one of {', '.join(Status)}; it is '{_text(element)[:40]}'"
        ) from error


def _write_access(rules: tuple[AccessRule, ...], host: str) -> str:
    return "".join(
        '<AuthorizationRule i:type="SharedAccessAuthorizationRule">'
        "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue><Rights>"
        + "".join(f"<AccessRights>{claim}</AccessRights>" for claim in sorted(rule.claims))
        + f"</Rights><KeyName>{escape(rule.name)}</KeyName>"
        f"<PrimaryKey>{escape(rule.primary_key)}</PrimaryKey>"
        f"<SecondaryKey>{escape(rule.secondary_key)}</SecondaryKey></AuthorizationRule>"
        for rule in rules
    )


def _read_access(element: Element, what: str) -> tuple[AccessRule, ...]:
    return tuple(_access_rule(child) for child in element if _local(child) == "AuthorizationRule")


def _access_rule(element: Element) -> AccessRule:
    parts = _children(element)
    name, *keys = (
        _text(parts[tag]) if tag in parts else ""
        for tag in ("KeyName", "PrimaryKey", "SecondaryKey")
    )
    if not 1 <= len(name) <= _MAX_KEY_NAME:
        raise DescriptionError(
            f"an authorization rule's KeyName has 1 to {_MAX_KEY_NAME} characters, not {len(name)}"
        )
    if any(len(key) > _MAX_KEY for key in keys):
        raise DescriptionError(f"a key of the rule '{name}' is longer than {_MAX_KEY} characters")
    rights = parts.get("Rights", ())
    try:
        claims = frozenset(Claim(_text(right).strip()) for right in rights)
    except ValueError as error:
        raise DescriptionError(
            f"the rights of the rule '{name}' must be of {', '.join(Claim)}"
        ) from error
    return AccessRule(name, keys[0], keys[1], claims)


def _with_keys(
    rules: tuple[AccessRule, ...], known: tuple[AccessRule, ...], make: Callable[[], str]
) -> tuple[AccessRule, ...]:
    """The rules with a key wherever the client gave none: the one it had, or a new one."""
    had = {rule.name: rule for rule in known}
    return tuple(
        AccessRule(
            rule.name,
            rule.primary_key or (had[rule.name].primary_key if rule.name in had else make()),
            rule.secondary_key or (had[rule.name].secondary_key if rule.name in had else make()),
            rule.claims,
        )
        for rule in rules
    )


def _count_details(runtime: Runtime) -> str:
    return (
        f"<d2p1:ActiveMessageCount>{runtime.active}</d2p1:ActiveMessageCount>"
        f"<d2p1:DeadLetterMessageCount>{runtime.dead}</d2p1:DeadLetterMessageCount>"
        f"<d2p1:ScheduledMessageCount>{runtime.scheduled}</d2p1:ScheduledMessageCount>"
        "<d2p1:TransferMessageCount>0</d2p1:TransferMessageCount>"
        f"<d2p1:TransferDeadLetterMessageCount>{runtime.transfer_dead}"
        "</d2p1:TransferDeadLetterMessageCount>"
    )


_LOCK = _span_setting("LockDuration", "lock_duration")
_MAX_SIZE = _number_setting("MaxSizeInMegabytes", "max_size_mb")
_DETECTION = _truth_setting("RequiresDuplicateDetection", "requires_duplicate_detection")
_SESSION = _truth_setting("RequiresSession", "requires_session")
_TTL = _span_setting("DefaultMessageTimeToLive", "default_ttl")
_BURY_EXPIRED = _truth_setting("DeadLetteringOnMessageExpiration", "dead_lettering_on_expiration")
_WINDOW = _span_setting("DuplicateDetectionHistoryTimeWindow", "duplicate_window")
_DELIVERIES = _number_setting("MaxDeliveryCount", "max_delivery_count")
_BATCHED = _truth_setting("EnableBatchedOperations", "enable_batched_operations")
_ACCESS = _Setting("AuthorizationRules", "access_rules", _write_access, _read_access)
_STATUS = _Setting("Status", "status", lambda value, host: str(value), _status)
_FORWARD = _target_setting("ForwardTo", "forward_to")
_FORWARD_DEAD = _target_setting("ForwardDeadLetteredMessagesTo", "forward_dead_letters_to")
_METADATA = _Setting(
    "UserMetadata",
    "user_metadata",
    lambda value, host: None if value is None else escape(value),
    lambda e, what: _text(e),
)
_IDLE = _span_setting("AutoDeleteOnIdle", "auto_delete_on_idle")
_PARTITIONED = _truth_setting("EnablePartitioning", "enable_partitioning")
_EXPRESS = _truth_setting("EnableExpress", "enable_express")

_SIZE = _Fact("SizeInBytes", lambda r: str(r.bytes))
_MESSAGES = _Fact("MessageCount", lambda r: str(r.messages))
_ANONYMOUS = _Fact("IsAnonymousAccessible", lambda r: "false")
_CREATED = _Fact("CreatedAt", lambda r: moment(r.created_ms))
_UPDATED = _Fact("UpdatedAt", lambda r: moment(r.updated_ms))
_ACCESSED = _Fact("AccessedAt", lambda r: moment(r.accessed_ms))
_DETAILS = _Fact("CountDetails", _count_details)
_AVAILABLE = _Fact("EntityAvailabilityStatus", lambda r: "Available")
_MAX_MESSAGE = _Fact("MaxMessageSizeInKilobytes", lambda r: str(MAX_MESSAGE_KB))

# In the order of Azure's own answers.
_ELEMENTS: dict[type[Any], tuple[_Setting | _Fact, ...]] = {
    QueueDescription: (
        *(_LOCK, _MAX_SIZE, _DETECTION, _SESSION, _TTL, _BURY_EXPIRED, _WINDOW, _DELIVERIES),
        *(_BATCHED, _SIZE, _MESSAGES, _ANONYMOUS, _ACCESS, _STATUS, _FORWARD, _CREATED, _UPDATED),
        *(_ACCESSED, _METADATA, _Fact("SupportOrdering", lambda r: "true"), _DETAILS, _IDLE),
        *(_PARTITIONED, _AVAILABLE, _FORWARD_DEAD, _EXPRESS, _MAX_MESSAGE),
    ),
    TopicDescription: (
        *(_TTL, _MAX_SIZE, _DETECTION, _WINDOW, _BATCHED, _SIZE),
        *(_Fact("FilteringMessagesBeforePublishing", lambda r: "false"), _ANONYMOUS, _ACCESS),
        *(_STATUS, _CREATED, _UPDATED, _ACCESSED, _METADATA),
        *(_truth_setting("SupportOrdering", "support_ordering"), _DETAILS),
        *(_Fact("SubscriptionCount", lambda r: str(r.subscriptions)), _IDLE, _PARTITIONED),
        *(_AVAILABLE, _Fact("EnableSubscriptionPartitioning", lambda r: "false"), _EXPRESS),
        _MAX_MESSAGE,
    ),
    SubscriptionDescription: (
        *(_LOCK, _SESSION, _TTL, _BURY_EXPIRED),
        _truth_setting(
            "DeadLetteringOnFilterEvaluationExceptions", "dead_lettering_on_filter_errors"
        ),
        *(_MESSAGES, _DELIVERIES, _BATCHED, _STATUS, _FORWARD, _CREATED, _UPDATED, _ACCESSED),
        *(_METADATA, _DETAILS, _FORWARD_DEAD, _IDLE, _AVAILABLE),
    ),
}
_TAGS: dict[str, type[Description]] = {kind.__name__: kind for kind in _ELEMENTS}
# The prefix of the counts is declared on CountDetails itself: the JavaScript SDK looks there.
_OPENING = {"CountDetails": f'<CountDetails xmlns:d2p1="{_COUNTS}">'}


def write_description(description: Description, runtime: Runtime, host: str) -> str:
    """The description's element. ``host`` is what forwarding targets are addresses under."""
    tag = type(description).__name__
    parts = [f"<{tag} {_NAMESPACES}>"]
    for element in _ELEMENTS[type(description)]:
        if isinstance(element, _Setting):
            text = element.write(getattr(description, element.attribute), host)
            if text is None:
                continue
        else:
            text = element.write(runtime)
        parts.append(f"{_OPENING.get(element.tag) or f'<{element.tag}>'}{text}</{element.tag}>")
    parts.append(f"</{tag}>")
    return "".join(parts)


def described_kind(element: Element) -> type[Description] | None:
    """What kind of entity the element describes, if it describes one."""
    return _TAGS.get(_local(element))


def read_description(
    element: Element,
    kind: type[D],
    current: D | None = None,
    make_key: Callable[[], str] = new_key,
) -> D:
    """The description in an element.

    What the element does not say has its default, and so a setting is taken away by leaving
    it out. Two things stay as they are in ``current``: what is fixed at creation, and the
    keys of authorization rules.
    """
    if described_kind(element) is not kind:
        raise AtomError(f"the body must hold a {kind.__name__}, not a {_local(element)}")
    given = _children(element)
    _check_message_size(given)
    values: dict[str, Any] = {}
    if current is not None:
        values = {name: getattr(current, name) for name in current._immutable}
    for setting in _ELEMENTS[kind]:
        if isinstance(setting, _Setting) and setting.tag in given:
            values[setting.attribute] = setting.read(given[setting.tag], setting.tag)
    if "access_rules" in values:
        known = getattr(current, "access_rules", ())
        values["access_rules"] = _with_keys(values["access_rules"], known, make_key)
    return kind(**values)


def _check_message_size(given: Mapping[str, Element]) -> None:
    tag = _MAX_MESSAGE.tag
    if tag in given and _integer(_text(given[tag]), tag) != MAX_MESSAGE_KB:
        raise DescriptionError(
            f"{tag} can only be set on the Premium tier; here it is {MAX_MESSAGE_KB}"
        )


# --- rules ------------------------------------------------------------------------------

_CORRELATED = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}


def write_rule(rule: Rule, created_ms: int) -> str:
    return (
        f"<RuleDescription {_NAMESPACES}>{_write_filter(rule.filter)}{_write_action(rule.action)}"
        f"<CreatedAt>{moment(created_ms)}</CreatedAt><Name>{escape(rule.name)}</Name>"
        "</RuleDescription>"
    )


def _write_filter(wanted: Filter) -> str:
    match wanted:
        case TrueFilter():
            return f'<Filter i:type="TrueFilter">{_sql("1=1", {})}</Filter>'
        case FalseFilter():
            return f'<Filter i:type="FalseFilter">{_sql("1=0", {})}</Filter>'
        case SqlFilter():
            text = _sql(wanted.expression, wanted.parameters)
            return f'<Filter i:type="SqlFilter">{text}</Filter>'
        case CorrelationFilter():
            asked = ((tag, getattr(wanted, name)) for tag, name in _CORRELATED.items())
            text = "".join(f"<{tag}>{escape(v)}</{tag}>" for tag, v in asked if v is not None)
            text += _write_values("Properties", wanted.properties)
            return f'<Filter i:type="CorrelationFilter">{text}</Filter>'


def _write_action(action: SqlRuleAction | None) -> str:
    if action is None:
        return '<Action i:type="EmptyRuleAction"></Action>'
    return f'<Action i:type="SqlRuleAction">{_sql(action.expression, action.parameters)}</Action>'


def _sql(expression: str, parameters: Mapping[str, Value]) -> str:
    return (
        f"<SqlExpression>{escape(expression)}</SqlExpression>"
        f"<CompatibilityLevel>20</CompatibilityLevel>{_write_values('Parameters', parameters)}"
        "<RequiresPreprocessing>true</RequiresPreprocessing>"
    )


def _write_values(tag: str, values: Mapping[str, Value]) -> str:
    if not values:
        return ""
    return f"<{tag}>{''.join(_write_value(key, value) for key, value in values.items())}</{tag}>"


def _write_value(key: str, value: Value) -> str:
    kind, text = _typed(value)
    namespace = _SERIALIZATION if kind == "guid" else _SCHEMA
    return (
        f"<KeyValueOfstringanyType><Key>{escape(key)}</Key>"
        f'<Value xmlns:d6p1="{namespace}" i:type="d6p1:{kind}">{escape(text)}</Value>'
        "</KeyValueOfstringanyType>"
    )


def _typed(value: Value) -> tuple[str, str]:
    match value:
        case bool():
            return "boolean", _truth(value)
        case int():
            return ("int" if -(2**31) <= value < 2**31 else "long"), str(int(value))
        case float():
            return "double", {"inf": "INF", "-inf": "-INF", "nan": "NaN"}.get(
                str(value), repr(float(value))
            )
        case datetime():
            return "dateTime", value.isoformat()
        case timedelta():
            return "duration", duration(value)
        case uuid.UUID():
            return "guid", str(value)
    return "string", str(value)


_INTEGERS = ("int", "long", "integer", "short", "byte", "unsignedInt", "unsignedShort")
_VALUES: dict[str, Callable[[str, str], Value]] = {
    **dict.fromkeys(("string", "char", "anyURI"), lambda text, what: text),
    **dict.fromkeys((*_INTEGERS, "unsignedLong", "unsignedByte"), _integer),
    **dict.fromkeys(("double", "float", "decimal"), lambda text, what: float(text)),
    **dict.fromkeys(("dateTime", "date"), lambda text, what: datetime.fromisoformat(text.strip())),
    "boolean": _boolean,
    "duration": parse_duration,
    "guid": lambda text, what: uuid.UUID(text.strip()),
}


def read_rule(element: Element, name: str) -> Rule:
    """The rule in an element, under the name that its address has."""
    if _local(element) != "RuleDescription":
        raise AtomError(f"the body must hold a RuleDescription, not a {_local(element)}")
    given = _children(element)
    wanted = _read_filter(given["Filter"]) if "Filter" in given else TrueFilter()
    return Rule(name, wanted, _read_action(given["Action"]) if "Action" in given else None)


def default_rule(element: Element) -> Rule | None:
    """The first rule that a subscription asks to be created with, if it does."""
    rule = _children(element).get("DefaultRuleDescription")
    if rule is None:
        return None
    renamed = ElementTree.Element("RuleDescription")
    renamed.extend(rule)
    name = _children(rule).get("Name")
    return read_rule(renamed, (_text(name).strip() if name is not None else "") or DEFAULT_RULE)


def _read_filter(element: Element) -> Filter:
    match _type_of(element):
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            return SqlFilter(*_read_sql(element))
        case "CorrelationFilter":
            given = _children(element)
            # An empty element means the same as none: some clients write all of them.
            asked = {
                name: _text(given[tag]) or None for tag, name in _CORRELATED.items() if tag in given
            }
            return CorrelationFilter(**asked, properties=_read_values(given.get("Properties")))
    raise RuleError(f"'{_type_of(element)[:40]}' is not a type of filter")


def _read_action(element: Element) -> SqlRuleAction | None:
    match _type_of(element):
        case "EmptyRuleAction" | "":
            return None
        case "SqlRuleAction":
            return SqlRuleAction(*_read_sql(element))
    raise RuleError(f"'{_type_of(element)[:40]}' is not a type of action")


def _read_sql(element: Element) -> tuple[str, dict[str, Value]]:
    given = _children(element)
    expression = _text(given["SqlExpression"]) if "SqlExpression" in given else ""
    return expression, _read_values(given.get("Parameters"))


def _read_values(element: Element | None) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for pair in element if element is not None else ():
        parts = _children(pair)
        if "Key" not in parts or "Value" not in parts:
            raise RuleError("a property or parameter of a rule needs a Key and a Value")
        key = _text(parts["Key"])
        if key in values:
            raise RuleError(f"'{key[:80]}' is given twice")
        values[key] = _read_value(key[:80], parts["Value"])
    return values


def _read_value(key: str, element: Element) -> Value:
    kind = _type_of(element) or "string"
    if kind not in _VALUES:
        raise RuleError(f"'{key}' has the type '{kind[:40]}', which a rule cannot hold")
    try:
        return _VALUES[kind](_text(element), f"'{key}'")
    except ValueError as error:
        raise RuleError(f"'{key}' is not a {kind}: '{_text(element)[:40]}'") from error


# --- documents --------------------------------------------------------------------------

# A document type stands before the root element or nowhere, so this finds every one.
_DOCTYPE = re.compile(r"(?:\s++|<!--.*?-->|<\?.*?\?>)*+<!(?!--)", re.DOTALL)


def parse(body: bytes) -> Element:
    """The description in an Atom entry, whatever it describes."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AtomError("the body is not UTF-8 text") from error
    if _DOCTYPE.match(text):
        raise AtomError("the body has a document type declaration, which is not accepted")
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - no entity can be declared: see above
    except ElementTree.ParseError as error:
        raise AtomError(f"the body is not well-formed XML: {error}") from error
    content = _children(root).get("content") if _local(root) == "entry" else None
    if content is None or len(content) != 1:
        raise AtomError("the body must be an Atom entry whose content holds one description")
    return content[0]


def _local(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _children(element: Element) -> dict[str, Element]:
    """The children that say something, by name: one marked as nil is not there."""
    return {
        _local(child): child
        for child in element
        if child.get(_NIL, "").strip() not in ("true", "1")
    }


def _type_of(element: Element) -> str:
    return element.get(_TYPE, "").rpartition(":")[2].strip()


def entry(
    url: str, title: str, author: str, content: str, published_ms: int, updated_ms: int
) -> str:
    """An Atom entry. Clients take the entity's name from the url or from the title."""
    link = escape(url)
    return (
        f'<entry xmlns="{ATOM}"><id>{link}</id><title type="text">{escape(title)}</title>'
        f"<published>{moment(published_ms)}</published><updated>{moment(updated_ms)}</updated>"
        f'<author><name>{escape(author)}</name></author><link rel="self" href="{link}"/>'
        f'<content type="application/xml">{content}</content></entry>'
    )


def feed(url: str, title: str, entries: Iterable[str], next_url: str | None, now_ms: int) -> str:
    """A page of entries. The next link is the second, and only there when there is more."""
    more = "" if next_url is None else f'<link rel="next" href="{escape(next_url)}"/>'
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{escape(title)}</title><id>{escape(url)}</id>'
        f'<updated>{moment(now_ms)}</updated><link rel="self" href="{escape(url)}"/>{more}'
        f"{''.join(entries)}</feed>"
    )


def namespace_info(name: str, created_ms: int) -> str:
    return (
        f"<NamespaceInfo {_NAMESPACES}><CreatedTime>{moment(created_ms)}</CreatedTime>"
        f"<MessagingSKU>Standard</MessagingSKU><ModifiedTime>{moment(created_ms)}</ModifiedTime>"
        f"<Name>{escape(name)}</Name><NamespaceType>Messaging</NamespaceType></NamespaceInfo>"
    )


def error(status: int, text: str) -> str:
    """The body of a refusal, with the sub-code that clients look for."""
    return (
        f"<Error><Code>{status}</Code><Detail>SubCode={status}00. {escape(text)}</Detail></Error>"
    )
