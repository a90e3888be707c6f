"""The SQL of rules: what each construct means, and that no text can break the parser."""

import math
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from twinbus.broker.expressions import FilterError, MessageProperties, Value, fold_parameters
from twinbus.broker.refusals import SqlError
from twinbus.broker.sql import MAX_LENGTH, parse_action, parse_condition


class TypedInt(int):
    """As the wire decodes an integer: an int that remembers its width."""


class Symbol(str):
    """As the wire decodes a symbol."""

    __slots__ = ()


GUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
MESSAGE = MessageProperties(
    {"label": "omnibus", "messageid": "m-1", "to": None},
    {
        "Color": "red",
        "qty": TypedInt(10),
        "price": 2.5,
        "flag": True,
        "nothing": None,
        "HR-Employee ID": 7,
        'odd]"name': 8,
        "kind": Symbol("box"),
        "guid": GUID,
        "at": NOON,
        "raw": b"ab",
        "list": [1],  # type: ignore[dict-item]  # what a client may send all the same
    },
)


def matches(text: str, **parameters: Value) -> bool | None:
    return parse_condition(text).matches(MESSAGE, fold_parameters(parameters))


def applied(text: str, **parameters: Value) -> MessageProperties:
    return parse_action(text).apply(MESSAGE, fold_parameters(parameters))


@pytest.mark.parametrize(
    "text",
    [
        "color = 'red'",
        "USER.COLOR = 'red' and Sys.Label = 'omnibus'",
        "sys.Subject = 'omnibus'",
        "[HR-Employee ID] = 7",
        '"HR-Employee ID" = 7',
        '[odd]]"name] = 8 AND "odd]""name" = 8 AND user.[odd]]"name] = 8',
        "property('co' + 'lor') = 'red' AND P('COLOR') = 'red'",
        "kind = 'box'",
        "flag = TRUE AND flag <> false",
        "qty = 10.0 AND qty = 1e1 AND qty = 100E-1",
        "qty IN (1, 'red', 10) AND color NOT IN ('blue', 10, missing)",
        "EXISTS(Color) AND EXISTS(nothing) AND EXISTS(sys.label) AND NOT EXISTS(missing)",
        "NOT EXISTS(sys.To) AND NOT EXISTS(sys.CorrelationId)",
        "missing IS NULL AND nothing IS NULL AND (color) IS NOT NULL AND p('zz') IS NULL",
        "1 = 2 OR 1 = 1 AND 2 = 2",
        "NOT 1 = 2 AND NOT NOT 1 = 1",
        "2 + 3 * 4 = 14 AND (2 + 3) * 4 = 20 AND 10 - 4 - 3 = 3 AND 100 / 5 / 2 = 10",
        "-7 / 2 = -3 AND -7 % 2 = -1 AND 7 % -2 = 1 AND 7.5 % 2 = 1.5",
        "- -qty = 10 AND +qty = 10 AND -(qty) = -10",
        "'it''s' = 'it' + '''' + 's'",
        "'n' + 1 + TRUE + 2.0 = 'n1True2'",
        "-9223372036854775808 < 9223372036854775807",
        "'a' < 'b' AND 'B' < 'a'",
        "newid() <> newid()",
        "guid = @guid AND at < @later AND @later - at <= @span AND at + @span = @later",
        "1 = 1",
        "(((1 = 1)))",
        "set = 1 OR remove = 2 OR 1 = 1",
        "1.0 / 0 > 9e300 AND -1.0 / 0 < 0 AND NOT 0.0 / 0 = 0.0 / 0",
    ],
)
def test_condition_is_true(text: str) -> None:
    hour = timedelta(hours=1)
    parameters: dict[str, Value] = {"@guid": GUID, "@LATER": NOON + hour, "span": hour}
    assert matches(text, **parameters) is True


@pytest.mark.parametrize(
    "text",
    [
        "color = 'RED'",
        "qty > 10",
        "1 = 1 AND 1 = 2",
        "missing = 1 AND 1 = 2",
        "color IN ('blue', missing)",
        "color LIKE 'RED'",
        "missing IS NOT NULL",
        "NOT (missing = 1 OR 1 = 1)",
    ],
)
def test_condition_is_false(text: str) -> None:
    assert matches(text) is False


@pytest.mark.parametrize(
    "text",
    [
        "missing = 1",
        "NOT missing = 1",
        "missing <> missing",
        "nothing = NULL",
        "NULL = NULL",
        "sys.CorrelationId = 'x'",
        "missing + 1 > 0",
        "-missing < 0",
        "missing IN (1)",
        "missing NOT IN (1)",
        "missing LIKE '%'",
        "color LIKE missing",
        "color LIKE 'r%' ESCAPE missing",
        "missing = 1 AND 1 = 1",
        "missing = 1 OR 1 = 2",
        "p(missing) = 1",
        # Values of unlike types, and orders that do not exist.
        "color = 1",
        "color <> 1",
        "flag = 1",
        "guid = '12345678-1234-5678-1234-567812345678'",
        "guid < guid",
        "flag > FALSE",
        "raw < raw",
        "list = list",
        "qty LIKE '1%'",
    ],
)
def test_condition_is_unknown(text: str) -> None:
    assert matches(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("9223372036854775807 + 1 > 0", "overflows"),
        ("-(-9223372036854775807 - 1) > 0", "overflows"),
        ("qty / 0 = 1", "divides by zero"),
        ("qty % 0 = 1", "divides by zero"),
        ("color - 1 = 1", "string and a number"),
        ("flag + 1 = 1", "boolean and a number"),
        ("-color = 1", "unary -"),
        ("at + at = 1", "datetime and a datetime"),
        ("at + @span = at", "outside the calendar"),
        ("'x' + raw = 'x'", "into text"),
        ("p(qty) = 1", "needs a name"),
        ("color LIKE qty", "LIKE needs a string"),
        ("color LIKE 'a' ESCAPE color", "one character"),
        ("color = @gone", "@gone has no value"),
        ("missing = 1 AND qty / 0 = 1", "divides by zero"),
    ],
)
def test_evaluation_fails_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(FilterError, match=reason):
        matches(text, span=timedelta.max)


@pytest.mark.parametrize("text", ["1 = 2 AND qty / 0 = 1", "1 = 1 OR qty / 0 = 1"])
def test_error_past_the_deciding_term_is_not_raised(text: str) -> None:
    assert matches(text) is not None


def test_integer_beside_a_double_loses_what_a_double_cannot_hold() -> None:
    assert matches("9007199254740993 = 9007199254740992.0") is True
    assert matches("9007199254740993 = 9007199254740992") is False


def test_datetime_without_a_zone_is_utc() -> None:
    assert (
        matches(
            "at = @naive AND at - @naive = @zero", naive=datetime(2024, 5, 1, 12), zero=timedelta()
        )
        is True
    )


def test_of_properties_that_differ_in_case_the_first_counts() -> None:
    message = MessageProperties({}, {"Key": 1, "key": 2})
    assert parse_condition("KEY = 1").matches(message, {}) is True


@pytest.mark.parametrize(
    ("value", "pattern", "expected"),
    [
        ("ABC%", r"'ABC\%' ESCAPE '\'", True),
        ("ABCD", r"'ABC\%' ESCAPE '\'", False),
        ("a_c", "'a!_c' ESCAPE '!'", True),
        ("abc", "'a!_c' ESCAPE '!'", False),
        ("a!", "'a!!' ESCAPE '!'", True),
        ("abc", "'a_c'", True),
        ("ac", "'a_c'", False),
        ("a\nc", "'a_c'", True),
        ("abc\n", "'abc'", False),
        ("", "'%'", True),
        ("a.c", "'a.c'", True),
        ("abc", "'a.c'", False),
        ("xaxbx", "'%a%b%'", True),
        ("ab", "'%ab%b'", False),
        ("axbxa", "'%a%b%'", True),
    ],
)
def test_like(value: str, pattern: str, expected: bool) -> None:
    condition = parse_condition(f"v LIKE {pattern}")
    opposite = parse_condition(f"v NOT LIKE {pattern}")
    message = MessageProperties({}, {"v": value})
    assert condition.matches(message, {}) is expected
    assert opposite.matches(message, {}) is not expected


def test_like_with_many_wildcards_does_not_run_away() -> None:
    condition = parse_condition("v LIKE '" + "%a" * 400 + "%b'")
    assert condition.matches(MessageProperties({}, {"v": "a" * 30_000}), {}) is False


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 0, "expected a property"),
        ("color", 0, "not a condition"),
        ("color =", 7, "found the end"),
        ("color = 'red", 8, "closing '"),
        ("color = 'it''", 8, "closing '"),
        ("[color = 1", 0, "closing ]"),
        ('"color = 1', 0, 'closing "'),
        ("[] = 1", 0, "empty"),
        ("a = 1\nAND b # 2", 12, "line 2, column 7: unexpected character '#'"),
        ("_a = 1", 0, "brackets"),
        ("a b = 1", 2, "expected an operator"),
        ("a = 1 = 1", 0, "found a condition"),
        ("a = 1 AND b", 10, "not a condition"),
        ("NOT a", 4, "not a condition"),
        ("1 + NOT a = 1", 4, "found 'NOT'"),
        ("(a = 1) + 1 = 2", 0, "found a condition"),
        ("(a = 1", 6, r"expected \)"),
        ("a IS 1", 5, "expected NULL"),
        ("a + 1 IS NULL", 0, "only a property"),
        ("a NOT 1", 6, "expected IN or LIKE"),
        ("a IN ()", 6, "expected a property"),
        ("EXISTS(1)", 7, "the name of a property"),
        ("foo.bar = 1", 0, "unknown scope 'foo'"),
        ("[sys].Label = 'x'", 0, "unknown scope"),
        ("sys.Colour = 1", 4, "no system property is called 'Colour'"),
        ("abs(a) = 1", 0, "no function abs"),
        ("newid(1) = 1", 6, r"expected \)"),
        ("and = 1", 0, "found 'AND'"),
        ("9223372036854775808 > 0", 0, "64-bit"),
        ("a > 1e999", 4, "double"),
        ("a LIKE 'x' ESCAPE 'ab'", 7, "one character"),
        ("a LIKE 'x!' ESCAPE '!'", 7, "ends in its escape"),
        ("a LIKE 1", 7, "LIKE needs a string"),
    ],
)
def test_bad_condition_is_refused_where_it_goes_wrong(
    text: str, position: int, message: str
) -> None:
    with pytest.raises(SqlError, match=message) as caught:
        parse_condition(text)
    assert caught.value.position == position


def test_text_may_have_1024_characters_and_no_more() -> None:
    text = "1 = 1".ljust(MAX_LENGTH)
    assert matches(text) is True
    with pytest.raises(SqlError, match="1025 characters"):
        parse_condition(text + " ")
    with pytest.raises(SqlError, match="1025 characters"):
        parse_action("REMOVE a".ljust(MAX_LENGTH + 1))


def called_from(depth: int, act: Callable[[], Any]) -> Any:
    return act() if depth == 0 else called_from(depth - 1, act)


@pytest.mark.parametrize(
    ("before", "opening", "middle", "closing", "after"),
    [
        ("", "(", "1=1", ")", ""),
        ("", "NOT ", "1=1", "", ""),
        ("", "1=1 OR 1=1 AND NOT(", "1=1", ")", ""),
        ("1=", "- ", "1", "", ""),
        ("", "1+1*-(", "1", ")", "=1"),
        ("", "p(", "'a'", ")", "=1"),
    ],
)
def test_nesting_is_evaluated_or_refused_and_never_overflows_the_stack(
    before: str, opening: str, middle: str, closing: str, after: str
) -> None:
    deepest, refused = 0, False
    for depth in range(1, 400):
        text = before + opening * depth + middle + closing * depth + after
        error = called_from(300, partial(refusal, parse_condition, text))
        if error:
            refused = "too deeply" in str(error) or len(text) > MAX_LENGTH
            break
        condition = parse_condition(text)
        called_from(300, partial(condition.matches, MESSAGE, {}))
        deepest = depth
    assert refused
    assert deepest >= 20


def test_long_chains_are_not_nesting() -> None:
    assert sys.getrecursionlimit() <= 1000
    assert matches("0" + "+1" * 500 + "=500") is True
    assert matches("1=1" + " OR 1=1" * 140) is True


# --- actions --------------------------------------------------------------------------


def test_statements_apply_in_order_with_any_separator() -> None:
    after = applied("SET qty = qty / 2; SET half = qty\nREMOVE color, set x = 'y';")
    assert after.user["qty"] == 5
    assert after.user["half"] == 5
    assert after.user["x"] == "y"
    assert "Color" not in after.user


def test_action_leaves_the_message_it_was_given() -> None:
    system, user = dict(MESSAGE.system), dict(MESSAGE.user)
    after = applied("SET qty = 1 REMOVE color SET sys.Label = 'x' REMOVE sys.MessageId")
    assert (after.system, after.user) != (system, user)
    assert (MESSAGE.system, MESSAGE.user) == (system, user)


def test_set_keeps_the_senders_spelling() -> None:
    after = applied("SET COLOR = 'blue' SET NewOne = 1")
    assert after.user["Color"] == "blue"
    assert "COLOR" not in after.user
    assert after.user["NewOne"] == 1


def test_set_reads_parameters_and_system_properties() -> None:
    assert applied("SET a = sys.Label + @x", **{"@X": "!"}).user["a"] == "omnibus!"


def test_set_null_or_unknown_leaves_a_null_user_property() -> None:
    after = applied("SET color = NULL SET price = missing + 1")
    assert after.user["Color"] is None
    assert after.user["price"] is None


def test_set_null_and_remove_clear_a_system_property() -> None:
    assert "label" not in applied("SET sys.Label = NULL").system
    assert "label" not in applied("REMOVE sys.Subject").system
    assert applied("REMOVE missing REMOVE sys.SessionId") == MESSAGE


def test_set_converts_to_the_type_of_the_old_value() -> None:
    after = applied("SET price = 3 SET sys.CorrelationId = qty * 2 SET sys.To = newid()")
    assert type(after.user["price"]) is float
    assert after.system["correlationid"] == "20"
    assert uuid.UUID(str(after.system["to"])).version == 4


def test_time_to_live_takes_a_timespan_only() -> None:
    hour = timedelta(hours=1)
    assert applied("SET sys.TimeToLive = @t", t=hour).system["timetolive"] == hour
    with pytest.raises(FilterError, match="timetolive cannot be set to a number"):
        applied("SET sys.TimeToLive = 60")


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 0, "expected SET or REMOVE"),
        ("color = 1", 0, "expected SET or REMOVE"),
        ("SET color", 9, "expected ="),
        ("SET color = ", 12, "found the end"),
        ("SET a = b = 1", 10, "expected SET or REMOVE"),
        ("SET a = (b = 1)", 8, "found a condition"),
        ("SET sys.SequenceNumber = 1", 4, "cannot change"),
        ("REMOVE sys.EnqueuedTimeUtc", 7, "cannot change"),
        ("SET sys.Colour = 1", 8, "no system property"),
        ("SET a = 1;; REMOVE b", 10, "expected SET or REMOVE"),
        ("SET set = 1", 4, "the name of a property"),
        ("SET p('a') = 1", 5, "expected ="),
    ],
)
def test_bad_action_is_refused_where_it_goes_wrong(text: str, position: int, message: str) -> None:
    with pytest.raises(SqlError, match=message) as caught:
        parse_action(text)
    assert caught.value.position == position


# --- any text -------------------------------------------------------------------------

WORDS = (
    "a sys. user. [b] \"c\" 'd' ' \" [ ] ( ) , . ; = <> != < >= + - * / % 1 2.5 1e9 .5 @p @ "
    "NOT AND OR IN LIKE ESCAPE IS NULL TRUE EXISTS newid() p( SET REMOVE Label \n é _ #"
)
FRAGMENTS = st.sampled_from(WORDS.split(" "))
SOUP = st.one_of(st.text(), st.lists(FRAGMENTS, max_size=40).map(" ".join))


@given(SOUP)
@settings(max_examples=300, deadline=None)
@example("\x00")
@example("a = ²")
@example("a = ٣")
def test_any_text_is_compiled_or_refused_at_a_position_inside_it(text: str) -> None:
    for parse in (parse_condition, parse_action):
        error = refusal(parse, text)
        assert error is None or 0 <= error.position <= len(text)


def refusal(parse: Callable[[str], object], text: str) -> SqlError | None:
    try:
        parse(text)
    except SqlError as error:
        return error
    return None


# --- a second opinion -----------------------------------------------------------------
#
# Trees are written out with only the parentheses that precedence asks for (and now and then
# one more), parsed, and compared with this evaluator, which knows nothing of the parser.

Tree = tuple[Any, ...]
PROPERTIES: dict[str, Value] = {"i": 3, "big": 2**62, "f": 1.5, "s": "ab", "b": True, "n": None}
NAMES = st.sampled_from([*PROPERTIES, "missing"])
LEAVES = st.one_of(
    st.tuples(st.just("lit"), st.integers(-5, 5)),
    st.tuples(st.just("lit"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("lit"), st.floats(-1e9, 1e9, allow_nan=False)),
    st.tuples(st.just("lit"), st.sampled_from(["", "a", "ab", "%", "a_", "it's"])),
    st.tuples(st.just("lit"), st.sampled_from([True, False, None])),
    st.tuples(st.just("prop"), NAMES),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+-*/%"), inner, inner),
        st.tuples(st.just("neg"), inner),
        st.tuples(st.just("group"), inner),
    ),
    max_leaves=6,
)
CONDITIONS = st.recursive(
    st.one_of(
        st.tuples(st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="]), VALUES, VALUES),
        st.tuples(st.sampled_from(["IN", "NOT IN"]), VALUES, st.lists(VALUES, min_size=1)),
        st.tuples(
            st.sampled_from(["LIKE", "NOT LIKE"]),
            VALUES,
            st.text("ab%_", max_size=4).map(lambda pattern: ("lit", pattern)),
        ),
        st.tuples(st.sampled_from(["IS NULL", "IS NOT NULL"]), st.tuples(st.just("prop"), NAMES)),
        st.tuples(st.just("EXISTS"), NAMES),
    ),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["AND", "OR"]), inner, inner),
        st.tuples(st.just("NOT"), inner),
        st.tuples(st.just("group"), inner),
    ),
    max_leaves=6,
)
BINDING = {"OR": 1, "AND": 2, "NOT": 3, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6, "neg": 7}


def binding(tree: Tree) -> int:
    if tree[0] in ("lit", "prop", "group", "EXISTS"):
        return 9
    return BINDING.get(tree[0], 4)


def written(tree: Tree, at_least: int = 0) -> str:
    text = _written(tree)
    return text if binding(tree) >= at_least else f"({text})"


def _written(tree: Tree) -> str:
    match tree:
        case ("lit", str(value)):
            return "'" + value.replace("'", "''") + "'"
        case ("lit", bool() | None as value):
            return {True: "TRUE", False: "false", None: "Null"}[value]
        case ("lit", value):
            return repr(value)
        case ("prop", name):
            return str(name)
        case ("group", inner):
            return f"( {written(inner)})"
        case ("neg", inner):
            return f"- {written(inner, 7)}"
        case ("NOT", inner):
            return f"not {written(inner, 3)}"
        case ("EXISTS", name):
            return f"exists({name})"
        case ("IS NULL" | "IS NOT NULL" as test, inner):
            return f"{written(inner)} {test}"
        case ("IN" | "NOT IN" as test, left, items):
            return f"{written(left, 5)} {test} ({','.join(written(item) for item in items)})"
        case (op, left, right):
            own = binding(tree)
            low = own + 1 if own == 4 else own
            return f"{written(left, low)} {op} {written(right, own + 1)}"
    raise AssertionError(tree)


class Fails(Exception):  # noqa: N818 - an outcome in this evaluator, not an error of its own
    pass


def number(value: Any) -> bool:
    return type(value) in (int, float)


def value_of(tree: Tree) -> Any:
    match tree:
        case ("lit", value):
            return value
        case ("prop", name):
            return PROPERTIES.get(name)
        case ("group", inner):
            return value_of(inner)
        case ("neg", inner):
            value = value_of(inner)
            return value if value is None else whole(-value) if number(value) else fail()
    op, left, right = tree[0], value_of(tree[1]), None
    if left is None or (right := value_of(tree[2])) is None:
        return None
    if number(left) and number(right):
        both_int = type(left) is int and type(right) is int
        return whole(exact(op, left, right)) if both_int else double(op, left, right)
    if op == "+" and (type(left) is str or type(right) is str):
        return shown(left) + shown(right)
    return fail()


def fail() -> Any:
    raise Fails


def whole(value: Any) -> Any:
    return fail() if type(value) is int and value not in range(-(2**63), 2**63) else value


def exact(op: str, left: int, right: int) -> int:
    if op in "/%" and right == 0:
        fail()
    if op == "/":
        return math.trunc(Fraction(left, right))
    if op == "%":
        return left - right * math.trunc(Fraction(left, right))
    return {"+": left + right, "-": left - right, "*": left * right}[op]


def double(op: str, left: float, right: float) -> float:
    left, right = float(left), float(right)
    if op in "/%":
        # Infinities and NaN are stated by examples above.
        assume(right != 0 and math.isfinite(left))
        return left / right if op == "/" else math.fmod(left, right)
    return {"+": left + right, "-": left - right, "*": left * right}[op]


def shown(value: Any) -> str:
    if type(value) is not float:
        return str(value)
    return str(value).upper().removesuffix(".0")


def comparable(left: Any, right: Any) -> bool:
    return (
        left is not None
        and right is not None
        and (type(left) is type(right) or (number(left) and number(right)))
    )


def compared(op: str, left: Any, right: Any) -> bool | None:
    if not comparable(left, right):
        return None
    if type(left) is bool and op not in ("=", "<>", "!="):
        return None
    if float in (type(left), type(right)):
        left, right = float(left), float(right)
    less, same, more = left < right, left == right, left > right
    holds = {"=": same, "<": less, ">": more, "<=": less or same, ">=": more or same}
    return bool(holds.get(op, not same))


def liked(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return liked(text, pattern[1:]) or (text != "" and liked(text[1:], pattern))
    return text != "" and pattern[0] in ("_", text[0]) and liked(text[1:], pattern[1:])


def opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


def truth_of(tree: Tree) -> bool | None:
    match tree:
        case ("group", inner):
            return truth_of(inner)
        case ("NOT", inner):
            return opposite(truth_of(inner))
        case ("AND" | "OR" as op, left, right):
            decides = bool(op == "OR")
            first = truth_of(left)
            if first is decides:
                return decides
            second = truth_of(right)
            if second is decides:
                return decides
            return None if first is None or second is None else not decides
        case ("EXISTS", name):
            return bool(name in PROPERTIES)
        case ("IS NULL", inner):
            return bool(value_of(inner) is None)
        case ("IS NOT NULL", inner):
            return bool(value_of(inner) is not None)
        case ("NOT IN" | "NOT LIKE" as op, left, right):
            return opposite(truth_of((op[4:], left, right)))
        case ("IN", left, items):
            value = value_of(left)
            if value is None:
                return None
            return any(compared("=", value, value_of(item)) is True for item in items)
        case ("LIKE", left, (_, pattern)):
            text = value_of(left)
            return liked(text, pattern) if type(text) is str else None
    return compared(tree[0], value_of(tree[1]), value_of(tree[2]))


@given(CONDITIONS)
@settings(max_examples=600, deadline=None)
def test_written_trees_mean_what_a_second_evaluator_says(tree: Tree) -> None:
    text = written(tree)
    assume(len(text) <= MAX_LENGTH)
    condition = parse_condition(text)
    message = MessageProperties({}, PROPERTIES)
    try:
        expected = truth_of(tree)
    except Fails:
        with pytest.raises(FilterError):
            condition.matches(message, {})
    else:
        assert condition.matches(message, {}) is expected, text


@given(st.text("ab", max_size=8), st.text("ab%_", max_size=6))
@settings(max_examples=300, deadline=None)
def test_like_agrees_with_a_matcher_that_tries_everything(text: str, pattern: str) -> None:
    condition = parse_condition(f"v LIKE '{pattern}'")
    assert condition.matches(MessageProperties({}, {"v": text}), {}) is liked(text, pattern)
