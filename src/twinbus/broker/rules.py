"""Subscription rules, and the index that routes a message to the subscriptions wanting it.

A subscription holds named rules; a rule is a filter and perhaps an action. What one message
gives one subscription is a `Match`: all matching rules without an action together yield one
copy, unchanged; every matching rule with an action yields one more, changed by it and marked
with the user property RuleName, as Service Bus does.

Theory of operation of `RuleIndex`. A correlation filter asks for equality on a fixed set of
properties, its shape. Filters of one shape share a hash table from the values they ask for
to the rules that ask, so a thousand filters on CorrelationId cost one lookup. Each shape
hangs under one of its properties, its anchor; routing visits only the shapes whose anchor
the message has, so a thousand filters on a thousand different properties are no scan either:

    anchor "color" -> shape (label; color)   -> {("order", "red"): rules, ...}
                   -> shape (; color, size)  -> {("red", 10): rules, ...}
    always         -> rules with a TrueFilter
    scanned        -> rules with a SqlFilter, each evaluated for every message

Correlation equality: text by exact case; property names in any case; numbers by value
whatever their width, and 1 equals 1.0, as the same test in a SqlFilter would say; a boolean
equals no number; a missing or null property equals nothing.
"""

import math
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Generic, TypeAlias, TypeVar

from twinbus.broker.expressions import (
    INT64_MAX,
    INT64_MIN,
    MessageProperties,
    Value,
    as_utc,
    fold_parameters,
    kind_of,
)
from twinbus.broker.refusals import RuleError
from twinbus.broker.sql import Action, Condition, parse_action, parse_condition

MAX_NAME = 50
RULE_NAME = "RuleName"
DEFAULT_RULE = "$Default"
T = TypeVar("T", Condition, Action)


# --- filters and actions --------------------------------------------------------------


@dataclass(frozen=True)
class TrueFilter:
    """Selects every message."""

    def matches(self, message: MessageProperties) -> bool | None:
        return True


@dataclass(frozen=True)
class FalseFilter:
    """Selects no message."""

    def matches(self, message: MessageProperties) -> bool | None:
        return False


@dataclass(frozen=True)
class CorrelationFilter:
    """Selects messages equal to it in every property it names."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.properties, Mapping):
            raise RuleError("the properties of a correlation filter are a map")
        object.__setattr__(self, "properties", dict(self.properties))
        if not self.properties and not self.system():
            raise RuleError("a correlation filter needs at least one property to compare")
        for name, text in self.system().items():
            if not isinstance(text, str):
                raise RuleError(f"{name} of a correlation filter is compared as text")
        if not all(isinstance(name, str) for name in self.properties):
            raise RuleError("a property's name is text")
        for name, value in self.properties.items():
            _check_value(f"the property {name!r}", value)
            if isinstance(value, float) and math.isnan(value):
                raise RuleError(f"the property {name!r} is NaN, which equals nothing")
        if len({name.lower() for name in self.properties}) < len(self.properties):
            raise RuleError("a correlation filter names one property twice, in different case")

    def system(self) -> dict[str, str]:
        """The system properties asked for, by their names in `MessageProperties.system`."""
        asked = ((name, getattr(self, attribute)) for name, attribute in _CORRELATED.items())
        return {name: value for name, value in asked if value is not None}

    def matches(self, message: MessageProperties) -> bool | None:
        shape = _Shape.of(self)
        return shape.wanted(self) == shape.key(message)


# The system properties that it can ask for. In SQL they are spelled without the underscores.
CORRELATED = tuple(each.name for each in fields(CorrelationFilter) if each.name != "properties")
_CORRELATED = {name.replace("_", ""): name for name in CORRELATED}


@dataclass(frozen=True)
class _Sql(Generic[T]):
    """Text with parameters; parsed when made."""

    expression: str
    parameters: Mapping[str, Value] = field(default_factory=dict)
    parsed: T = field(init=False, repr=False, compare=False)
    _folded: Mapping[str, Value] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", dict(self.parameters))
        object.__setattr__(self, "parsed", self._parse(self.expression))
        object.__setattr__(self, "_folded", _folded(self.parameters, self.parsed.parameters))

    @staticmethod
    def _parse(text: str) -> T:
        """Filters and actions each have their own; nobody makes one that is neither."""
        raise NotImplementedError


class SqlFilter(_Sql[Condition]):
    """Selects messages for which the SQL expression is true."""

    _parse = staticmethod(parse_condition)

    def matches(self, message: MessageProperties) -> bool | None:
        return self.parsed.matches(message, self._folded)


class SqlRuleAction(_Sql[Action]):
    """Changes the copy of a message that its rule selected."""

    _parse = staticmethod(parse_action)

    def apply(self, message: MessageProperties) -> MessageProperties:
        return self.parsed.apply(message, self._folded)


def _folded(parameters: Mapping[str, Value], used: frozenset[str]) -> dict[str, Value]:
    for name, value in parameters.items():
        _check_value(f"the parameter {name!r}", value)
    folded = fold_parameters(parameters)
    if len(folded) < len(parameters):
        raise RuleError("one parameter is given twice, in different case or without its @")
    if missing := sorted(used - folded.keys()):
        raise RuleError(f"no value is given for @{', @'.join(missing)}")
    return folded


Filter: TypeAlias = TrueFilter | FalseFilter | CorrelationFilter | SqlFilter


@dataclass(frozen=True)
class Rule:
    name: str
    filter: Filter = field(default_factory=TrueFilter)
    action: SqlRuleAction | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= MAX_NAME:
            raise RuleError(f"a rule's name has 1 to {MAX_NAME} characters, not {len(self.name)}")

    def changed(self, message: MessageProperties) -> MessageProperties:
        """The copy of this rule with an action; the action may read and replace RuleName."""
        assert self.action is not None
        kept = {k: v for k, v in message.user.items() if k.lower() != RULE_NAME.lower()}
        marked = MessageProperties(message.system, {**kept, RULE_NAME: self.name})
        return self.action.apply(marked)


# --- JSON -----------------------------------------------------------------------------

# bool stands before int because it is one. Text holds what a JSON number would lose.
_CODECS: tuple[tuple[type, str, Callable[[Any], Any], Callable[[Any], Value]], ...] = (
    (str, "string", str, str),
    (bool, "bool", bool, bool),
    (int, "int", lambda value: str(int(value)), int),
    (float, "float", lambda value: repr(float(value)), float),
    (uuid.UUID, "uuid", str, uuid.UUID),
    (datetime, "datetime", datetime.isoformat, datetime.fromisoformat),
    (
        timedelta,
        "timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: timedelta(*parts),
    ),
)


def _check_value(what: str, value: object) -> None:
    if not isinstance(value, tuple(codec[0] for codec in _CODECS)):
        raise RuleError(f"{what} is a {type(value).__name__}, which a rule cannot hold")
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        raise RuleError(f"{what} does not fit a 64-bit integer")


def _encode(values: Mapping[str, Value]) -> dict[str, list[Any]]:
    encoded = {}
    for name, value in values.items():
        _, tag, encode, _ = next(codec for codec in _CODECS if isinstance(value, codec[0]))
        encoded[name] = [tag, encode(value)]
    return encoded


def _decode(encoded: Mapping[str, list[Any]]) -> dict[str, Value]:
    decoders = {tag: decode for _, tag, _, decode in _CODECS}
    return {name: decoders[tag](text) for name, (tag, text) in encoded.items()}


def to_json(rule: Rule) -> dict[str, Any]:
    """The rule as plain data for `json.dumps`. Typed AMQP integers become plain ones."""
    action = rule.action
    return {
        "name": rule.name,
        "filter": _filter_to_json(rule.filter),
        "action": action
        and {"expression": action.expression, "parameters": _encode(action.parameters)},
    }


def _filter_to_json(wanted: Filter) -> dict[str, Any]:
    match wanted:
        case SqlFilter():
            parameters = _encode(wanted.parameters)
            return {"type": "sql", "expression": wanted.expression, "parameters": parameters}
        case CorrelationFilter():
            properties = _encode(wanted.properties)
            named = {_CORRELATED[name]: value for name, value in wanted.system().items()}
            return {"type": "correlation", **named, "properties": properties}
        case TrueFilter():
            return {"type": "true"}
        case FalseFilter():
            return {"type": "false"}


def from_json(data: Mapping[str, Any]) -> Rule:
    """The rule that `to_json` wrote, checked again as any new one."""
    action = data["action"]
    return Rule(
        data["name"],
        _filter_from_json(data["filter"]),
        action and SqlRuleAction(action["expression"], _decode(action["parameters"])),
    )


def _filter_from_json(data: Mapping[str, Any]) -> Filter:
    match data:
        case {"type": "sql", "expression": expression, "parameters": parameters}:
            return SqlFilter(expression, _decode(parameters))
        case {"type": "correlation", "properties": properties, **named}:
            return CorrelationFilter(**named, properties=_decode(properties))
        case {"type": "true"}:
            return TrueFilter()
        case {"type": "false"}:
            return FalseFilter()
    raise RuleError(f"not a stored filter: {data!r}")


# --- the index ------------------------------------------------------------------------


@dataclass(frozen=True)
class Match:
    """What one subscription gets from one message.

    `copies` has None for the message as it was sent, and the changed properties for each
    copy an action made; in that order, then in the order the rules were added. `error` is
    the first filter or action that could not be evaluated: that rule counts as no match,
    and the subscription's settings say whether the message is dead-lettered for it.
    """

    copies: tuple[MessageProperties | None, ...]
    error: str | None = None


_UNCHANGED = Match((None,))


@dataclass(frozen=True, slots=True)
class _Shape:
    """The properties a correlation filter compares, in a canonical order."""

    system: tuple[str, ...]
    user: tuple[str, ...]

    @classmethod
    def of(cls, wanted: CorrelationFilter) -> "_Shape":
        user = sorted(name.lower() for name in wanted.properties)
        return cls(tuple(sorted(wanted.system())), tuple(user))

    def wanted(self, wanted: CorrelationFilter) -> tuple[object, ...]:
        properties = {name.lower(): value for name, value in wanted.properties.items()}
        return self.key(MessageProperties(wanted.system(), properties))

    def key(self, message: MessageProperties) -> tuple[object, ...]:
        system = message.system
        user = message.folded if self.user else {}
        return (
            *[_comparable(system.get(name)) for name in self.system],
            *[_comparable(user.get(name)) for name in self.user],
        )

    def anchor(self) -> tuple[str, str]:
        """A user property if there is one: fewer messages have it than have a MessageId."""
        return ("user", self.user[0]) if self.user else ("system", self.system[0])


def _comparable(value: object) -> object:
    """What equals and hashes as correlation equality has it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, datetime):
        return as_utc(value)
    # A list or a map cannot be hashed, and no filter can ask for one.
    return None if kind_of(value) == "other" else value


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    order: tuple[int, int]  # of the subscription, then of the rule within all rules
    subscription: str
    rule: Rule


_Entries: TypeAlias = dict[tuple[int, int], _Entry]
_Table: TypeAlias = dict[tuple[object, ...], _Entries]


class RuleIndex:
    """The rules of all subscriptions of one topic."""

    def __init__(self) -> None:
        self._added = 0
        self._places: dict[str, int] = {}
        self._entries: dict[str, dict[str, _Entry]] = {}
        self._always: _Entries = {}
        self._scanned: _Entries = {}
        self._anchors: dict[str, dict[str, dict[_Shape, _Table]]] = {"system": {}, "user": {}}

    def add(self, subscription: str, rule: Rule) -> None:
        entries = self._entries.setdefault(subscription, {})
        if rule.name in entries:
            raise RuleError(f"the subscription {subscription} already has a rule {rule.name}")
        self._added += 1
        place = self._places.setdefault(subscription, self._added)
        entry = entries[rule.name] = _Entry((place, self._added), subscription, rule)
        match rule.filter:
            case TrueFilter():
                self._always[entry.order] = entry
            case SqlFilter():
                self._scanned[entry.order] = entry
            case CorrelationFilter():
                self._correlate(entry, rule.filter)

    def remove(self, subscription: str, rule_name: str) -> Rule:
        """Take a rule out; KeyError if it is not there. The subscription keeps its place."""
        entry = self._entries[subscription].pop(rule_name)
        self._always.pop(entry.order, None)
        self._scanned.pop(entry.order, None)
        if isinstance(entry.rule.filter, CorrelationFilter):
            self._uncorrelate(entry, entry.rule.filter)
        return entry.rule

    def remove_subscription(self, subscription: str) -> None:
        for rule in self.rules(subscription):
            self.remove(subscription, rule.name)
        self._entries.pop(subscription, None)
        self._places.pop(subscription, None)

    def rules(self, subscription: str) -> list[Rule]:
        return [entry.rule for entry in self._entries.get(subscription, {}).values()]

    def route(self, message: MessageProperties) -> list[tuple[str, Match]]:
        """Who gets what, in the order the subscriptions came: copies, an error, or both."""
        matched = [*self._always.values(), *self._correlated(message)]
        errors: dict[str, str] = {}
        for entry in self._scanned.values():
            try:
                if entry.rule.filter.matches(message):
                    matched.append(entry)
            except Exception as error:  # noqa: BLE001 - a rule's failure is its subscription's alone
                errors.setdefault(entry.subscription, f"rule {entry.rule.name}: {error}")
        matched.sort(key=lambda entry: entry.order)
        found: dict[str, list[_Entry]] = {}
        for entry in matched:
            found.setdefault(entry.subscription, []).append(entry)
        subscriptions = list(found)
        if errors:
            subscriptions = sorted({*found, *errors}, key=self._places.__getitem__)
        return [(s, _match(message, found.get(s, []), errors.get(s))) for s in subscriptions]

    def _correlated(self, message: MessageProperties) -> Iterator[_Entry]:
        for scope, anchors in self._anchors.items():
            if not anchors:
                continue  # and the application's properties need not be decoded
            names = message.system if scope == "system" else message.folded
            # Go over the shorter: there may be many filters, or a message of many properties.
            for name in anchors if len(anchors) < len(names) else names:
                if name in anchors and name in names:
                    for shape, table in anchors[name].items():
                        yield from table.get(shape.key(message), {}).values()

    def _correlate(self, entry: _Entry, wanted: CorrelationFilter) -> None:
        shape = _Shape.of(wanted)
        scope, name = shape.anchor()
        table = self._anchors[scope].setdefault(name, {}).setdefault(shape, {})
        table.setdefault(shape.wanted(wanted), {})[entry.order] = entry

    def _uncorrelate(self, entry: _Entry, wanted: CorrelationFilter) -> None:
        """Leave no empty table behind: routing would go on visiting it."""
        shape = _Shape.of(wanted)
        scope, name = shape.anchor()
        shapes = self._anchors[scope][name]
        table, key = shapes[shape], shape.wanted(wanted)
        del table[key][entry.order]
        if not table[key]:
            del table[key]
        if not table:
            del shapes[shape]
        if not shapes:
            del self._anchors[scope][name]


def _match(message: MessageProperties, entries: list[_Entry], error: str | None) -> Match:
    acting = [entry.rule for entry in entries if entry.rule.action]
    if not acting and not error:
        return _UNCHANGED
    copies: list[MessageProperties | None] = [None] if len(acting) < len(entries) else []
    for rule in acting:
        try:
            copies.append(rule.changed(message))
        except Exception as failure:  # noqa: BLE001 - as in `route`
            error = error or f"rule {rule.name}: {failure}"
    return Match(tuple(copies), error)
