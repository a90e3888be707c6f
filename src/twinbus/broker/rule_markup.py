"""A rule as the XML of the management API, both ways: filters, actions and typed values.

The Python SDK wants an `<Action>` in every rule; the JavaScript SDK wants values typed with the
prefix ``i``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from twinbus.broker.durations import duration, moment, parse_duration
from twinbus.broker.expressions import Value
from twinbus.broker.markup import (
    NAMESPACES,
    SCHEMA,
    SERIALIZATION,
    Element,
    boolean,
    children,
    escape,
    integer,
    local_name,
    text_of,
    truth,
    type_of,
)
from twinbus.broker.refusals import AtomError, DescriptionError, RuleError
from twinbus.broker.rules import (
    CORRELATED,
    DEFAULT_RULE,
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)

_CORRELATED = {name.title().replace("_", ""): name for name in CORRELATED}


def write_rule(rule: Rule, created_ms: int) -> str:
    return (
        f"<RuleDescription {NAMESPACES}>{_write_filter(rule.filter)}{_write_action(rule.action)}"
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
    namespace = SERIALIZATION if kind == "guid" else SCHEMA
    return (
        f"<KeyValueOfstringanyType><Key>{escape(key)}</Key>"
        f'<Value xmlns:d6p1="{namespace}" i:type="d6p1:{kind}">{escape(text)}</Value>'
        "</KeyValueOfstringanyType>"
    )


def _typed(value: Value) -> tuple[str, str]:
    match value:
        case bool():
            return "boolean", truth(value)
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
    **dict.fromkeys((*_INTEGERS, "unsignedLong", "unsignedByte"), integer),
    **dict.fromkeys(("double", "float", "decimal"), lambda text, what: float(text)),
    **dict.fromkeys(("dateTime", "date"), lambda text, what: datetime.fromisoformat(text.strip())),
    "boolean": boolean,
    "duration": parse_duration,
    "guid": lambda text, what: uuid.UUID(text.strip()),
}


def read_rule(element: Element, name: str) -> Rule:
    """The rule in an element, under the name that its address has."""
    if local_name(element) != "RuleDescription":
        raise AtomError(f"the body must hold a RuleDescription, not a {local_name(element)}")
    given = children(element)
    wanted = _read_filter(given["Filter"]) if "Filter" in given else TrueFilter()
    return Rule(name, wanted, _read_action(given["Action"]) if "Action" in given else None)


def default_rule(element: Element) -> Rule | None:
    """The first rule that a subscription asks to be created with, if it does."""
    rule = children(element).get("DefaultRuleDescription")
    if rule is None:
        return None
    renamed = Element("RuleDescription")
    renamed.extend(rule)
    name = children(rule).get("Name")
    return read_rule(renamed, (text_of(name).strip() if name is not None else "") or DEFAULT_RULE)


def _read_filter(element: Element) -> Filter:
    match type_of(element):
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            return SqlFilter(*_read_sql(element))
        case "CorrelationFilter":
            given = children(element)
            # An empty element means the same as none: some clients write all of them.
            asked = {
                name: text_of(given[tag]) or None
                for tag, name in _CORRELATED.items()
                if tag in given
            }
            return CorrelationFilter(**asked, properties=_read_values(given.get("Properties")))
    raise RuleError(f"'{type_of(element)[:40]}' is not a type of filter")


def _read_action(element: Element) -> SqlRuleAction | None:
    match type_of(element):
        case "EmptyRuleAction" | "":
            return None
        case "SqlRuleAction":
            return SqlRuleAction(*_read_sql(element))
    raise RuleError(f"'{type_of(element)[:40]}' is not a type of action")


def _read_sql(element: Element) -> tuple[str, dict[str, Value]]:
    given = children(element)
    expression = text_of(given["SqlExpression"]) if "SqlExpression" in given else ""
    return expression, _read_values(given.get("Parameters"))


def _read_values(element: Element | None) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for pair in element if element is not None else ():
        parts = children(pair)
        if "Key" not in parts or "Value" not in parts:
            raise RuleError("a property or parameter of a rule needs a Key and a Value")
        key = text_of(parts["Key"])
        if key in values:
            raise RuleError(f"'{key[:80]}' is given twice")
        values[key] = _read_value(key[:80], parts["Value"])
    return values


def _read_value(key: str, element: Element) -> Value:
    kind = type_of(element) or "string"
    if kind not in _VALUES:
        raise RuleError(f"'{key}' has the type '{kind[:40]}', which a rule cannot hold")
    try:
        return _VALUES[kind](text_of(element), f"'{key}'")
    except (ValueError, DescriptionError) as error:
        raise RuleError(f"'{key}' is not a {kind}: '{text_of(element)[:40]}'") from error
