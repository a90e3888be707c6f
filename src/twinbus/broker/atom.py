"""Descriptions, counts and rules as the Atom XML of the management API, both ways.

Pure: bytes in, values out, and back. The shape is the one Azure answers with, element by element
and in its order, because clients differ in what they insist on: the JavaScript SDK wants every
boolean and integer there, names read from `<id>`, the prefix of CountDetails declared on it, and
values typed with the prefix ``i``; the Python SDK wants an `<Action>` in every rule.

Of what is read, elements that are not settings (counts, dates) are passed over, since a client that
updates sends back what it was given; a setting that is absent has its default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from twinbus.auth.access_rules import AccessRule, Claim, new_key
from twinbus.broker.descriptions import (
    D,
    Description,
    QueueDescription,
    Status,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.durations import moment, parse_span, span
from twinbus.broker.markup import (
    NAMESPACES,
    Element,
    boolean,
    children,
    escape,
    integer,
    local_name,
    text_of,
    truth,
)
from twinbus.broker.refusals import AtomError, DescriptionError

ATOM = "http://www.w3.org/2005/Atom"
_COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
MAX_MESSAGE_KB = 256
_MAX_KEY_NAME = 256
_MAX_KEY = 256

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


def _plain(
    write: Callable[[Any], str], read: Callable[[str, str], Any], tag: str, attribute: str
) -> _Setting:
    return _Setting(
        tag, attribute, lambda value, host: write(value), lambda e, what: read(text_of(e), what)
    )


_truth_setting = partial(_plain, truth, boolean)
_number_setting = partial(_plain, str, integer)
_span_setting = partial(_plain, span, parse_span)


def _target_setting(tag: str, attribute: str) -> _Setting:
    return _Setting(
        tag,
        attribute,
        lambda value, host: None if value is None else escape(f"sb://{host}/{quote(value)}"),
        lambda e, what: _target(text_of(e).strip(), what),
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
        return Status(text_of(element).strip())
    except ValueError as error:
        raise DescriptionError(
            f"{what} must be one of {', '.join(Status)}; it is '{text_of(element)[:40]}'"
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
    return tuple(
        _access_rule(child) for child in element if local_name(child) == "AuthorizationRule"
    )


def _access_rule(element: Element) -> AccessRule:
    parts = children(element)
    name, *keys = (
        text_of(parts[tag]) if tag in parts else ""
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
        claims = frozenset(Claim(text_of(right).strip()) for right in rights)
    except ValueError as error:
        raise DescriptionError(
            f"the rights of the rule '{name}' must be of {', '.join(Claim)}"
        ) from error
    try:
        return AccessRule(name, keys[0], keys[1], claims)
    except ValueError as error:
        raise DescriptionError(str(error)) from error


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
    lambda e, what: text_of(e),
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
    parts = [f"<{tag} {NAMESPACES}>"]
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
    return _TAGS.get(local_name(element))


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
        raise AtomError(f"the body must hold a {kind.__name__}, not a {local_name(element)}")
    given = children(element)
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
    if tag in given and integer(text_of(given[tag]), tag) != MAX_MESSAGE_KB:
        raise DescriptionError(
            f"{tag} can only be set on the Premium tier; here it is {MAX_MESSAGE_KB}"
        )


# --- documents --------------------------------------------------------------------------


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
        f"<NamespaceInfo {NAMESPACES}><CreatedTime>{moment(created_ms)}</CreatedTime>"
        f"<MessagingSKU>Standard</MessagingSKU><ModifiedTime>{moment(created_ms)}</ModifiedTime>"
        f"<Name>{escape(name)}</Name><NamespaceType>Messaging</NamespaceType></NamespaceInfo>"
    )


def error(status: int, text: str) -> str:
    """The body of a refusal, with the sub-code that clients look for."""
    return (
        f"<Error><Code>{status}</Code><Detail>SubCode={status}00. {escape(text)}</Detail></Error>"
    )
