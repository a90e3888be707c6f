"""Rules: what they accept, what a subscription gets from them, and how routing scales."""

import json
import sys
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from types import FrameType, MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.broker.expressions import FilterError, MessageProperties, Value
from twinbus.broker.refusals import RuleError, SqlError
from twinbus.broker.rules import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Match,
    Rule,
    RuleIndex,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
    from_json,
    to_json,
)


class TypedInt(int):
    """As the wire decodes an integer: an int that remembers its width."""


class Symbol(str):
    """As the wire decodes a symbol."""

    __slots__ = ()


def sent(system: Mapping[str, Value] = MappingProxyType({}), /, **user: Value) -> MessageProperties:
    return MessageProperties(dict(system), user)


def indexed(*rules: tuple[str, Rule]) -> RuleIndex:
    index = RuleIndex()
    for subscription, rule in rules:
        index.add(subscription, rule)
    return index


def acting(name: str, expression: str, wanted: Filter | None = None) -> Rule:
    return Rule(name, wanted or TrueFilter(), SqlRuleAction(expression))


# --- what is refused ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "n" * 51])
def test_rule_name_has_1_to_50_characters(name: str) -> None:
    with pytest.raises(RuleError, match="1 to 50"):
        Rule(name)
    assert Rule("n" * 50).name


def test_correlation_filter_needs_a_condition() -> None:
    with pytest.raises(RuleError, match="at least one"):
        CorrelationFilter()


@pytest.mark.parametrize(
    "value", [None, [1], b"bytes", 2**63, -(2**63) - 1, float("nan")], ids=repr
)
def test_correlation_filter_refuses_a_value_it_cannot_compare(value: Any) -> None:
    with pytest.raises(RuleError, match="'p'"):
        CorrelationFilter(properties={"p": value})


def test_correlation_filter_refuses_one_property_in_two_spellings() -> None:
    with pytest.raises(RuleError, match="twice"):
        CorrelationFilter(properties={"P": 1, "p": 2})


def test_sql_is_checked_when_the_filter_or_action_is_made() -> None:
    with pytest.raises(SqlError, match="found the end"):
        SqlFilter("color =")
    with pytest.raises(SqlError, match="expected SET or REMOVE"):
        SqlRuleAction("color = 1")


@pytest.mark.parametrize(
    "make", [lambda p: SqlFilter("a = @x", p), lambda p: SqlRuleAction("SET a = @x", p)]
)
def test_parameters_are_checked_when_the_filter_or_action_is_made(make: Any) -> None:
    assert make({"@X": 1}).parameters == {"@X": 1}
    with pytest.raises(RuleError, match="@x"):
        make({"@y": 1})
    with pytest.raises(RuleError, match="twice"):
        make({"@x": 1, "X": 2})
    with pytest.raises(RuleError, match="list"):
        make({"@x": [1]})


def test_a_rule_does_not_change_with_the_mapping_it_was_made_from() -> None:
    given_properties: dict[str, Value] = {"color": "red"}
    wanted = CorrelationFilter(properties=given_properties)
    given_properties["color"] = "blue"
    assert wanted.matches(sent(color="red"))


# --- correlation ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attribute", "name"),
    [
        ("correlation_id", "correlationid"),
        ("message_id", "messageid"),
        ("to", "to"),
        ("reply_to", "replyto"),
        ("label", "label"),
        ("session_id", "sessionid"),
        ("reply_to_session_id", "replytosessionid"),
        ("content_type", "contenttype"),
    ],
)
def test_correlation_filter_compares_system_property(attribute: str, name: str) -> None:
    rule = Rule("r", CorrelationFilter(**{attribute: "x"}))  # type: ignore[arg-type]
    index = indexed(("s", rule))
    assert index.route(sent({name: "x"})) == [("s", Match((None,)))]
    assert index.route(sent({name: "X"})) == []
    assert index.route(sent(**{name: "x"})) == []
    assert index.route(sent({name: None})) == []
    assert from_json(to_json(rule)) == rule


@pytest.mark.parametrize(
    ("wanted", "found", "equal"),
    [
        ("red", "red", True),
        ("red", "Red", False),
        ("red", Symbol("red"), True),
        (1, TypedInt(1), True),
        (1, 1.0, True),
        (1, True, False),
        (True, 1, False),
        (True, True, True),
        (1, "1", False),
        (1.5, 1.5, True),
        (uuid.UUID(int=1), uuid.UUID(int=1), True),
        (uuid.UUID(int=1), str(uuid.UUID(int=1)), False),
        (datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC), True),
        (
            datetime(2024, 1, 1, tzinfo=UTC),
            datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
            True,
        ),
        ("red", None, False),
        ("red", ["red"], False),
        ("red", {"red": 1}, False),
        (1, float("nan"), False),
    ],
)
def test_correlation_equality(wanted: Value, found: Any, equal: bool) -> None:
    index = indexed(("s", Rule("r", CorrelationFilter(properties={"P": wanted}))))
    assert bool(index.route(sent(p=found))) is equal


def test_correlation_filter_needs_all_its_properties() -> None:
    wanted = CorrelationFilter(label="order", properties={"Color": "red", "size": 10})
    index = indexed(("s", Rule("r", wanted)))
    assert index.route(sent({"label": "order"}, COLOR="red", Size=10, other=1))
    assert not index.route(sent({"label": "order"}, color="red"))
    assert not index.route(sent({"label": "other"}, color="red", size=10))


# --- what a subscription gets ---------------------------------------------------------


def test_five_matching_rules_two_with_actions_give_three_copies() -> None:
    index = indexed(
        ("s", Rule("one")),
        ("s", acting("half", "SET qty = qty / 2")),
        ("s", Rule("two", SqlFilter("qty = 10"))),
        ("s", acting("gone", "REMOVE qty", CorrelationFilter(properties={"qty": 10}))),
        ("s", Rule("three", CorrelationFilter(properties={"qty": 10}))),
    )
    [(subscription, match)] = index.route(sent(qty=10))
    assert subscription == "s"
    assert match.error is None
    assert match.copies == (
        None,
        sent(qty=5, RuleName="half"),
        sent(RuleName="gone"),
    )


def test_matching_rule_with_an_action_alone_gives_no_unchanged_copy() -> None:
    [(_, match)] = indexed(("s", acting("r", "SET a = RuleName"))).route(sent(rulename="old"))
    assert match.copies == (sent(RuleName="r", a="r"),)


def test_rules_that_are_false_or_unknown_give_nothing() -> None:
    index = indexed(
        ("a", Rule("r", FalseFilter())),
        ("b", Rule("r", SqlFilter("missing = 1"))),
        ("c", Rule("r", SqlFilter("NOT missing = 1"))),
        ("d", Rule("r", SqlFilter("1 = 2"))),
    )
    assert index.route(sent(p=1)) == []


def test_filter_error_is_reported_beside_what_other_rules_matched() -> None:
    index = indexed(
        ("a", Rule("fine")),
        ("a", Rule("broken", SqlFilter("p / 0 = 1"))),
        ("b", Rule("broken", SqlFilter("p / 0 = 1"))),
        ("b", Rule("later", SqlFilter("p % 0 = 1"))),
        ("c", Rule("fine")),
    )
    error = "rule broken: 1 / 0 divides by zero"
    assert index.route(sent(p=1)) == [
        ("a", Match((None,), error)),
        ("b", Match((), error)),
        ("c", Match((None,))),
    ]


def test_action_error_takes_only_that_rules_copy() -> None:
    index = indexed(("s", acting("bad", "SET p = p / 0")), ("s", acting("good", "SET p = 2")))
    [(_, match)] = index.route(sent(p=1))
    assert match.copies == (sent(RuleName="good", p=2),)
    assert match.error == "rule bad: 1 / 0 divides by zero"


def test_filter_parameters_reach_the_expression() -> None:
    rule = Rule("r", SqlFilter("p = @p", {"@P": 2}), SqlRuleAction("SET q = @Q", {"q": 3}))
    [(_, match)] = indexed(("s", rule)).route(sent(p=2))
    assert match.copies == (sent(p=2, RuleName="r", q=3),)


# --- the index ------------------------------------------------------------------------


def test_subscriptions_come_in_the_order_they_were_added() -> None:
    index = indexed(
        ("z", Rule("r", SqlFilter("p = 1"))),
        ("a", Rule("r", CorrelationFilter(properties={"p": 1}))),
        ("m", Rule("r")),
    )
    index.add("z", Rule("late"))
    assert [subscription for subscription, _ in index.route(sent(p=1))] == ["z", "a", "m"]


def test_rules_are_listed_in_the_order_they_were_added() -> None:
    rules = [Rule("b"), Rule("a", FalseFilter()), Rule("c", SqlFilter("1 = 1"))]
    index = indexed(*(("s", rule) for rule in rules))
    assert index.rules("s") == rules
    assert index.rules("other") == []


def test_second_rule_of_a_name_is_refused_and_changes_nothing() -> None:
    index = indexed(("s", Rule("r", FalseFilter())))
    with pytest.raises(RuleError, match="already has a rule r"):
        index.add("s", Rule("r"))
    assert index.route(sent()) == []
    index.add("other", Rule("r"))
    assert index.route(sent()) == [("other", Match((None,)))]


@pytest.mark.parametrize(
    "wanted",
    [TrueFilter(), FalseFilter(), SqlFilter("p = 1"), CorrelationFilter(properties={"p": 1})],
    ids=lambda wanted: type(wanted).__name__,
)
def test_removed_rule_matches_no_more_and_leaves_its_likes(wanted: Filter) -> None:
    index = indexed(("s", Rule("r", wanted)), ("t", Rule("r", wanted)))
    before = index.route(sent(p=1))
    assert index.remove("s", "r") == Rule("r", wanted)
    assert index.route(sent(p=1)) == [found for found in before if found[0] == "t"]
    assert index.rules("s") == []
    with pytest.raises(KeyError):
        index.remove("s", "r")


def test_removed_subscription_loses_its_rules_and_its_place() -> None:
    index = indexed(("s", Rule("a")), ("s", Rule("b", SqlFilter("1 = 1"))), ("t", Rule("a")))
    index.remove_subscription("s")
    index.remove_subscription("never there")
    assert index.route(sent()) == [("t", Match((None,)))]
    index.add("s", Rule("a"))
    assert [subscription for subscription, _ in index.route(sent())] == ["t", "s"]


def lines_run(index: RuleIndex, message: MessageProperties) -> int:
    """How many lines of Python one routing runs: a cost that no busy machine can change."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        index.route(message)
    finally:
        sys.settrace(before)
    return count


def of_one_shape(n: int) -> CorrelationFilter:
    return CorrelationFilter(correlation_id=f"c{n}", properties={"color": "red"})


def of_many_shapes(n: int) -> CorrelationFilter:
    return CorrelationFilter(label="order", properties={f"p{n}": 1})


@pytest.mark.parametrize("make", [of_one_shape, of_many_shapes])
def test_a_thousand_correlation_filters_cost_what_ten_do(make: Any) -> None:
    message = sent({"correlationid": "c7", "label": "order"}, color="red", p7=1)
    ten, thousand = (
        indexed(*((f"s{n}", Rule("r", make(n))) for n in range(size))) for size in (10, 1000)
    )
    assert thousand.route(message) == ten.route(message) == [("s7", Match((None,)))]
    assert lines_run(thousand, message) <= 1.2 * lines_run(ten, message)


def test_removed_correlation_filters_cost_nothing() -> None:
    message = sent(**{f"p{n}": 1 for n in range(1000)})
    assert len(message.folded) == 1000  # built on first use, which is not routing's cost
    index = indexed(*((f"s{n}", Rule("r", of_many_shapes(n))) for n in range(1000)))
    for n in range(1000):
        index.remove_subscription(f"s{n}")
    assert lines_run(index, message) == lines_run(RuleIndex(), message)


# --- JSON -----------------------------------------------------------------------------

TYPED: dict[str, Value] = {
    "@int": -(2**63),
    "@float": 0.1,
    "@inf": float("inf"),
    "@bool": True,
    "@str": "é\n",
    "@uuid": uuid.UUID(int=5),
    "@aware": datetime(2024, 5, 1, 12, 30, 1, 7, tzinfo=UTC),
    "@naive": datetime(2024, 5, 1),
    "@span": timedelta(days=-1, microseconds=3),
}


@pytest.mark.parametrize(
    "rule",
    [
        Rule("$Default"),
        Rule("f", FalseFilter()),
        Rule("s", SqlFilter("a = @int", TYPED), SqlRuleAction("SET a = @span", TYPED)),
        Rule("c", CorrelationFilter(label="x", session_id="", properties=TYPED)),
    ],
    ids=lambda rule: rule.name,
)
def test_rule_survives_json_with_the_types_of_its_values(rule: Rule) -> None:
    back = from_json(json.loads(json.dumps(to_json(rule))))
    assert back == rule
    assert types_held(back) == types_held(rule)


def types_held(rule: Rule) -> dict[str, type]:
    """Equality alone would let 1 stand for True."""
    match rule.filter:
        case CorrelationFilter(properties=values) | SqlFilter(parameters=values):
            return {name: type(value) for name, value in values.items()}
    return {}


def test_stored_filter_of_unknown_type_is_refused() -> None:
    with pytest.raises(RuleError, match="not a stored filter"):
        from_json({"name": "r", "filter": {"type": "psychic"}, "action": None})


# --- the index against a scan ---------------------------------------------------------

SCALARS = st.sampled_from(["red", "Red", 1, TypedInt(1), 1.0, True, 2, None])
KNOWN: st.SearchStrategy[Value] = st.sampled_from(["red", "Red", 1, 1.0, True, 2])
USER_NAMES = st.sampled_from(["color", "COLOR", "size", "p"])
MESSAGES = st.builds(
    MessageProperties,
    st.dictionaries(st.sampled_from(["label", "correlationid", "to"]), st.sampled_from("ab")),
    st.dictionaries(USER_NAMES, SCALARS),
)
TEXTS = st.none() | st.sampled_from("ab")


@st.composite
def correlations(draw: st.DrawFn) -> CorrelationFilter:
    names = st.sampled_from(["Color", "size", "P"])
    properties: dict[str, Value] = draw(st.dictionaries(names, KNOWN))
    label, to = draw(TEXTS), draw(TEXTS)
    correlation_id = "a" if not properties and label is None and to is None else draw(TEXTS)
    return CorrelationFilter(correlation_id, label=label, to=to, properties=properties)


FILTERS = st.one_of(
    correlations(),
    correlations(),
    st.just(TrueFilter()),
    st.just(FalseFilter()),
    st.sampled_from(["color = 'red'", "size > 1", "p / 0 = 1", "sys.To = 'a'"]).map(SqlFilter),
)
ACTIONS = st.none() | st.sampled_from(["SET size = size + 1", "REMOVE color"]).map(SqlRuleAction)
ADDED = st.lists(st.tuples(st.sampled_from("xyz"), FILTERS, ACTIONS), max_size=12)


def scanned(rules: list[tuple[str, Rule]], message: MessageProperties) -> list[Any]:
    """Every rule tried in turn, as if there were no index."""
    results = []
    for subscription in dict.fromkeys(name for name, _ in rules):
        plain, changed, errors = False, [], []
        for rule in (rule for name, rule in rules if name == subscription):
            try:
                if not naively_matches(rule.filter, message):
                    continue
            except FilterError as error:
                errors.append(f"rule {rule.name}: {error}")
                continue
            plain = plain or rule.action is None
            changed += [rule] if rule.action else []
        copies: list[MessageProperties | None] = [None] if plain else []
        for rule in changed:
            try:
                copies.append(rule.changed(message))
            except FilterError as error:
                errors.append(f"rule {rule.name}: {error}")
        if copies or errors:
            results.append((subscription, Match(tuple(copies), errors[0] if errors else None)))
    return results


def naively_matches(wanted: Filter, message: MessageProperties) -> bool | None:
    if not isinstance(wanted, CorrelationFilter):
        return wanted.matches(message)
    user: dict[str, Value] = {}
    for name, value in reversed(list(message.user.items())):
        user[name.lower()] = value
    asked: list[tuple[Value, Value]] = [
        (wanted.correlation_id, message.system.get("correlationid")),
        (wanted.label, message.system.get("label")),
        (wanted.to, message.system.get("to")),
    ]
    asked = [pair for pair in asked if pair[0] is not None]
    asked += [(value, user.get(name.lower())) for name, value in wanted.properties.items()]
    return all(a == b and isinstance(a, bool) == isinstance(b, bool) for a, b in asked)


@given(ADDED, st.sets(st.integers(0, 11)), MESSAGES)
@settings(max_examples=500, deadline=None)
def test_routing_equals_a_scan_over_the_rules(
    added: list[tuple[str, Filter, SqlRuleAction | None]],
    removed: set[int],
    message: MessageProperties,
) -> None:
    rules = [(sub, Rule(f"r{n}", wanted, action)) for n, (sub, wanted, action) in enumerate(added)]
    index = indexed(*rules)
    for n in removed & set(range(len(rules))):
        index.remove(rules[n][0], rules[n][1].name)
    places = {name: n for n, name in enumerate(dict.fromkeys(name for name, _ in rules))}
    kept = [pair for n, pair in enumerate(rules) if n not in removed]
    kept.sort(key=lambda pair: places[pair[0]])
    assert index.route(message) == scanned(kept, message)


@given(correlations(), MESSAGES)
def test_correlation_filter_alone_agrees_with_plain_equality(
    wanted: CorrelationFilter, message: MessageProperties
) -> None:
    assert wanted.matches(message) is naively_matches(wanted, message)
