"""A subscription's rules over ``$management``, as the SDKs of other languages manage them.

In a request a rule is a map; in an answer it is a described list, with ulong descriptors, an
action even where there is none, and nulls for what a correlation filter does not ask.
"""

from __future__ import annotations

from typing import Any

from twinbus.amqp.types import Described, Int, Timestamp, ULong
from twinbus.broker.directory import MAX_RULES
from twinbus.broker.refusals import ArgumentError, MessageError, NotAllowedError
from twinbus.broker.requests import Reply, Request
from twinbus.broker.rules import (
    CORRELATED,
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)

_RULE = ULong(0x13700000004)
_NO_ACTION = ULong(0x13700000005)
_SQL_ACTION = ULong(0x13700000006)
_SQL_FILTER = ULong(0x1370000006)
_TRUE_FILTER = ULong(0x1370000007)
_FALSE_FILTER = ULong(0x1370000008)
_CORRELATION_FILTER = ULong(0x1370000009)
_COMPATIBILITY = Int(20)
_PARTS = {name.replace("_", "-"): name for name in CORRELATED}


def add_rule(request: Request) -> None:
    topic, name = _subscription(request)
    try:
        rule = _read(request["rule-name"], request["rule-description"])
        request.namespace.directory.create_rule(
            topic, name, rule, request.now_ms, request.when_stored()
        )
    except ArgumentError as error:
        raise MessageError(f"The rule cannot be added: {error}") from error


def remove_rule(request: Request) -> None:
    topic, name = _subscription(request)
    rule = request["rule-name"]
    request.namespace.directory.delete_rule(topic, name, str(rule), request.when_stored())


def enumerate_rules(request: Request) -> None:
    topic, name = _subscription(request)
    top = min(request.number("top"), MAX_RULES)
    found = request.namespace.directory.page_rules(topic, name, request.number("skip"), top)
    if not found:
        request.reply(Reply(204, "No rules.", {}))
        return
    request.answer({"rules": [{"rule-description": _written(*each)} for each in found]})


def _subscription(request: Request) -> tuple[str, str]:
    if request.entity.parent is None:
        raise NotAllowedError(f"'{request.entity.path}' is not a subscription; it has no rules.")
    return request.entity.parent.path, request.entity.name


def _read(name: Any, description: Any) -> Rule:
    if not isinstance(name, str) or not isinstance(description, dict):
        raise MessageError("A rule has a name, and its description is a map.")
    action = description.get("sql-rule-action")
    act = SqlRuleAction(_expression(action)) if _has_expression(action) else None
    return Rule(name, _read_filter(description), act)


def _read_filter(description: dict[Any, Any]) -> Filter:
    if "sql-filter" in description:
        return SqlFilter(_expression(description["sql-filter"]))
    if "false-filter" in description:
        return FalseFilter()
    if "correlation-filter" not in description:
        return TrueFilter()
    given = description["correlation-filter"]
    if not isinstance(given, dict):
        raise MessageError("A correlation filter is a map.")
    parts = {ours: given.get(theirs) for theirs, ours in _PARTS.items()}
    return CorrelationFilter(**parts, properties=given.get("properties") or {})


def _has_expression(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.get("expression"))


def _expression(value: Any) -> str:
    if not _has_expression(value):
        raise MessageError("A SQL filter or action has an 'expression'.")
    return str(value["expression"])


def _written(rule: Rule, created_ms: int) -> Described:
    action = Described(_NO_ACTION, [])
    if rule.action is not None:
        action = Described(_SQL_ACTION, [rule.action.expression, _COMPATIBILITY])
    fields = [_written_filter(rule.filter), action, rule.name, Timestamp(created_ms)]
    return Described(_RULE, fields)


def _written_filter(condition: Filter) -> Described:
    if isinstance(condition, SqlFilter):
        return Described(_SQL_FILTER, [condition.expression, _COMPATIBILITY])
    if isinstance(condition, CorrelationFilter):
        parts: list[Any] = [getattr(condition, ours) for ours in _PARTS.values()]
        return Described(_CORRELATION_FILTER, [*parts, dict(condition.properties)])
    return Described(_FALSE_FILTER if isinstance(condition, FalseFilter) else _TRUE_FILTER, [])
