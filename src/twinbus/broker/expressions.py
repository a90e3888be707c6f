"""What a rule's SQL means: the values it works on, and the operators over them.

Each function in the second half builds one closure of type `Evaluate`; the parser in
`sql.py` nests them, so a rule is compiled once and a message costs only the calls it needs.

Unknown is None. A missing property, a NULL and a property whose value is null are all
unknown, and unknown spreads: through arithmetic, comparisons and LIKE always, through IN
only from the left, through AND and OR as in SQL's three-valued logic. A filter matches on
True alone, so neither a condition over a missing property nor its negation matches.

Service Bus documents that operators follow C#. What that leaves open is settled here:

- Int64 arithmetic that overflows, and integer division by zero, raise FilterError; `/`
  truncates towards zero and `%` takes the sign of its left side. Doubles follow IEEE 754:
  dividing by 0.0 gives infinity or NaN and never raises.
- An Int64 beside a Double is converted to Double, so 1 = 1.0.
- `+` with a string on either side concatenates. Any other mix of types in arithmetic
  raises FilterError.
- Values of unlike types compare as unknown: text is never equal to, nor different from, a
  number. Booleans, GUIDs and bytes know = and <> only; their order is unknown.
- Strings compare by code point and LIKE minds case.
- AND and OR stop at the first term that decides, arithmetic at the first unknown; an error
  in a part never reached is not raised.
- A datetime without a time zone is taken as UTC.

SET converts where the old value's type asks for it and nothing is lost: an integer stored
over a double becomes a double, and a value stored in a system property of type string
becomes text. SET to NULL or to an unknown value leaves a user property that exists and is
null, and clears a system property; REMOVE takes either away, and removing what is not there
is no error. Statements see the changes of those before them.
"""

import math
import operator
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

from twinbus.errors import TwinbusError

Value: TypeAlias = bool | int | float | str | bytes | uuid.UUID | datetime | timedelta | None

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


# The system properties an action may change, each with the type it holds.
SETTABLE: dict[str, type] = {
    "contenttype": str,
    "correlationid": str,
    "label": str,
    "messageid": str,
    "partitionkey": str,
    "replyto": str,
    "replytosessionid": str,
    "scheduledenqueuetimeutc": datetime,
    "sessionid": str,
    "timetolive": timedelta,
    "to": str,
    "viapartitionkey": str,
}


class FilterError(TwinbusError):
    """A filter or action that parsed well but cannot be evaluated for this message."""


@dataclass(frozen=True)
class MessageProperties:
    """The part of a message that rules can see and change; the body is not.

    `system` is keyed by lowercase name ("messageid", "label"), `user` by the sender's own
    spelling. Neither is ever changed: an action gives a new object.
    """

    system: Mapping[str, Value]
    user: Mapping[str, Value]

    @cached_property
    def folded(self) -> dict[str, Value]:
        """User properties by lowercase name; of names that differ in case, the first wins."""
        folded: dict[str, Value] = {}
        for name, value in self.user.items():
            folded.setdefault(name.lower(), value)
        return folded


Parameters: TypeAlias = Mapping[str, Value]
Evaluate: TypeAlias = Callable[[MessageProperties, Parameters], Any]
Statement: TypeAlias = Callable[[MessageProperties, Parameters], MessageProperties]


def fold_parameters(parameters: Parameters) -> dict[str, Value]:
    """Key parameters the way compiled expressions look them up: lowercase, without the @."""
    return {name.removeprefix("@").lower(): value for name, value in parameters.items()}


# --- values ---------------------------------------------------------------------------

# bool stands before int because it is one; a subclass (a typed AMQP int, a symbol) is
# found by isinstance. Kinds are compared with `is`, hence one object for int and float.
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (str, "string"),
    (bool, "boolean"),
    ((int, float), "number"),
    (datetime, "datetime"),
    (timedelta, "timespan"),
    (uuid.UUID, "guid"),
    (bytes, "bytes"),
)
_UNORDERED = frozenset({"boolean", "guid", "bytes"})


def kind_of(value: object) -> str:
    """The family of types a value compares within; lists, maps and the like are "other"."""
    for types, kind in _KINDS:
        if isinstance(value, types):
            return kind
    return "other"


def as_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def as_text(value: Value) -> str:
    """The text C# would concatenate: True, 12, 2.5, 2 (for 2.0), a dashed GUID."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value)).removesuffix(".0").upper()
    if isinstance(value, uuid.UUID):
        return str(value)
    raise FilterError(f"a {kind_of(value)} cannot be turned into text")


# --- comparison -----------------------------------------------------------------------

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
COMPARISONS = frozenset(_COMPARE)


def compare(symbol: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    kind = kind_of(left)
    if kind != kind_of(right) or kind == "other":
        return None
    if kind in _UNORDERED and symbol not in {"=", "<>", "!="}:
        return None
    if kind == "number" and (isinstance(left, float) or isinstance(right, float)):
        left, right = float(left), float(right)
    elif kind == "datetime":
        left, right = as_utc(left), as_utc(right)
    return _COMPARE[symbol](left, right)


# --- arithmetic -----------------------------------------------------------------------


def _quotient(left: int, right: int) -> int:
    magnitude = abs(left) // abs(right)
    return magnitude if (left < 0) == (right < 0) else -magnitude


_ON_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": lambda left, right: left - right * _quotient(left, right),
}


def _divide(left: float, right: float) -> float:
    if right:
        return left / right
    if not left or math.isnan(left) or math.isnan(right):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _remainder(left: float, right: float) -> float:
    return math.fmod(left, right) if right and not math.isinf(left) else math.nan


_ON_DOUBLES: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "%": _remainder,
}


def _integers(symbol: str, left: int, right: int) -> int:
    if symbol in "/%" and right == 0:
        raise FilterError(f"{left} {symbol} 0 divides by zero")
    result = int(_ON_INTEGERS[symbol](left, right))
    if not INT64_MIN <= result <= INT64_MAX:
        raise FilterError(f"{left} {symbol} {right} overflows a 64-bit integer")
    return result


def _times(symbol: str, left: Any, right: Any) -> Value:
    if isinstance(left, datetime):
        left = as_utc(left)
    if isinstance(right, datetime):
        right = as_utc(right)
    try:
        result: Value = left + right if symbol == "+" else left - right
    except OverflowError as error:
        raise FilterError(f"{left} {symbol} {right} is outside the calendar") from error
    return result


# C# adds a timespan to a moment and not the other way about.
_TIMES = frozenset(
    {
        ("datetime", "-", "datetime"),
        ("datetime", "+", "timespan"),
        ("datetime", "-", "timespan"),
        ("timespan", "+", "timespan"),
        ("timespan", "-", "timespan"),
    }
)


def calculate(symbol: str, left: Any, right: Any) -> Value:
    """One arithmetic operation on two known values."""
    kinds = kind_of(left), kind_of(right)
    if kinds == ("number", "number"):
        if isinstance(left, float) or isinstance(right, float):
            return float(_ON_DOUBLES[symbol](float(left), float(right)))
        return _integers(symbol, left, right)
    if symbol == "+" and "string" in kinds:
        return as_text(left) + as_text(right)
    if (kinds[0], symbol, kinds[1]) in _TIMES:
        return _times(symbol, left, right)
    raise FilterError(f"{symbol} cannot be applied to a {kinds[0]} and a {kinds[1]}")


def _signed(symbol: str, value: Any) -> Value:
    kind = kind_of(value)
    if kind == "number" and isinstance(value, float):
        return -value if symbol == "-" else value
    if kind == "number":
        return _integers(symbol, 0, value)
    if kind == "timespan":
        return _times(symbol, timedelta(), value)
    raise FilterError(f"unary {symbol} cannot be applied to a {kind}")


# --- LIKE -----------------------------------------------------------------------------


@lru_cache(maxsize=128)
def like_pattern(pattern: str, escape: str | None) -> re.Pattern[str]:
    """Translate a LIKE pattern to a regular expression that cannot run away.

    Every run between two % is an atomic group: taking its leftmost match is always right
    for LIKE, and without backtracking into it the cost stays at text times pattern, where
    '%a%a%a%a...' would otherwise explode.
    """
    if escape is not None and len(escape) != 1:
        raise FilterError(f"the ESCAPE of a LIKE must be one character, not {escape!r}")
    first, *runs = _like_runs(pattern, escape)
    if not runs:
        return re.compile(rf"{first}\Z", re.DOTALL)
    middle = "".join(f"(?>.*?{run})" for run in runs[:-1])
    return re.compile(rf"{first}{middle}.*{runs[-1]}\Z", re.DOTALL)


def _like_runs(pattern: str, escape: str | None) -> list[str]:
    runs = [""]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None:
                raise FilterError(f"the LIKE pattern {pattern!r} ends in its escape character")
            runs[-1] += re.escape(literal)
        elif character == "%":
            runs.append("")
        else:
            runs[-1] += "." if character == "_" else re.escape(character)
    return runs


# --- closures: values -----------------------------------------------------------------


def constant(value: Value) -> Evaluate:
    return lambda message, parameters: value


def parameter(name: str) -> Evaluate:
    folded = name.lower()

    def evaluate(message: MessageProperties, parameters: Parameters) -> Value:
        try:
            return parameters[folded]
        except KeyError:
            raise FilterError(f"the parameter @{name} has no value") from None

    return evaluate


def system_property(name: str) -> Evaluate:
    return lambda message, parameters: message.system.get(name)


def user_property(name: str) -> Evaluate:
    folded = name.lower()
    return lambda message, parameters: message.folded.get(folded)


def named_property(name: Evaluate) -> Evaluate:
    """property(name): the user property whose name is computed; it reaches no system one."""

    def evaluate(message: MessageProperties, parameters: Parameters) -> Value:
        found = name(message, parameters)
        if found is None:
            return None
        if not isinstance(found, str):
            raise FilterError(f"property() needs a name, not a {kind_of(found)}")
        return message.folded.get(found.lower())

    return evaluate


def new_id() -> Evaluate:
    """newid(): the one expression that is not a function of the message."""
    return lambda message, parameters: uuid.uuid4()


def signed(symbol: str, operand: Evaluate) -> Evaluate:
    def evaluate(message: MessageProperties, parameters: Parameters) -> Value:
        value = operand(message, parameters)
        return None if value is None else _signed(symbol, value)

    return evaluate


def arithmetic(first: Evaluate, rest: Sequence[tuple[str, Evaluate]]) -> Evaluate:
    """a + b - c in one loop, so that a long chain does not nest a call for each term."""

    def evaluate(message: MessageProperties, parameters: Parameters) -> Value:
        value = first(message, parameters)
        for symbol, operand in rest:
            if value is None:
                return None
            right = operand(message, parameters)
            value = None if right is None else calculate(symbol, value, right)
        return value  # type: ignore[no-any-return]  # a closure, typed as Any

    return evaluate


# --- closures: conditions -------------------------------------------------------------


def comparison(symbol: str, left: Evaluate, right: Evaluate) -> Evaluate:
    return lambda message, parameters: compare(
        symbol, left(message, parameters), right(message, parameters)
    )


def is_null(operand: Evaluate) -> Evaluate:
    return lambda message, parameters: operand(message, parameters) is None


def exists_system(name: str) -> Evaluate:
    """Every message type has the property, so only one that is set counts as existing."""
    return lambda message, parameters: message.system.get(name) is not None


def exists_user(name: str) -> Evaluate:
    folded = name.lower()
    return lambda message, parameters: folded in message.folded


def among(left: Evaluate, items: Sequence[Evaluate]) -> Evaluate:
    """IN: an item that is unknown or of another type equals nothing, as documented."""

    def evaluate(message: MessageProperties, parameters: Parameters) -> bool | None:
        value = left(message, parameters)
        if value is None:
            return None
        return any(compare("=", value, item(message, parameters)) for item in items)

    return evaluate


def like(left: Evaluate, pattern: Evaluate, escape: Evaluate | None) -> Evaluate:
    def evaluate(message: MessageProperties, parameters: Parameters) -> bool | None:
        text, wanted = left(message, parameters), pattern(message, parameters)
        mark = escape(message, parameters) if escape else None
        if text is None or wanted is None or (escape and mark is None):
            return None
        if not isinstance(wanted, str) or not isinstance(mark, str | None):
            raise FilterError("LIKE needs a string for its pattern and its escape")
        if not isinstance(text, str):
            return None
        return like_pattern(wanted, mark).match(text) is not None

    return evaluate


def negation(operand: Evaluate) -> Evaluate:
    def evaluate(message: MessageProperties, parameters: Parameters) -> bool | None:
        value: bool | None = operand(message, parameters)
        return None if value is None else not value

    return evaluate


def junction(deciding: bool, terms: Sequence[Evaluate]) -> Evaluate:
    """AND, decided by the first False; or OR, decided by the first True."""

    def evaluate(message: MessageProperties, parameters: Parameters) -> bool | None:
        result: bool | None = not deciding
        for term in terms:
            value: bool | None = term(message, parameters)
            if value is deciding:
                return deciding
            if value is None:
                result = None
        return result

    return evaluate


# --- statements -----------------------------------------------------------------------


def set_user(name: str, evaluate: Evaluate) -> Statement:
    def run(message: MessageProperties, parameters: Parameters) -> MessageProperties:
        spelling = _spelling(message, name)
        value = evaluate(message, parameters)
        old = message.user.get(spelling)
        if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        return MessageProperties(message.system, {**message.user, spelling: value})

    return run


def _spelling(message: MessageProperties, name: str) -> str:
    """The sender's spelling if the property is there, so that SET updates and adds no twin."""
    folded = name.lower()
    return next((key for key in message.user if key.lower() == folded), name)


def remove_user(name: str) -> Statement:
    folded = name.lower()

    def run(message: MessageProperties, parameters: Parameters) -> MessageProperties:
        kept = {key: value for key, value in message.user.items() if key.lower() != folded}
        return MessageProperties(message.system, kept)

    return run


def set_system(name: str, evaluate: Evaluate) -> Statement:
    wanted = SETTABLE[name]

    def run(message: MessageProperties, parameters: Parameters) -> MessageProperties:
        value: Any = evaluate(message, parameters)
        if value is None:
            return _without_system(message, name)
        if wanted is str:
            value = as_text(value)
        elif not isinstance(value, wanted):
            raise FilterError(f"sys.{name} cannot be set to a {kind_of(value)}")
        return MessageProperties({**message.system, name: value}, message.user)

    return run


def remove_system(name: str) -> Statement:
    return lambda message, parameters: _without_system(message, name)


def _without_system(message: MessageProperties, name: str) -> MessageProperties:
    kept = {key: value for key, value in message.system.items() if key != name}
    return MessageProperties(kept, message.user)
