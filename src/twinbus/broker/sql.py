"""The SQL of subscription rules: text in, a compiled `Condition` or `Action` out.

Theory of operation. `_tokens` cuts the text with one regular expression; `_Parser` climbs
precedence over the tokens, and every construct it recognises becomes a closure from
`expressions.py`. There is no tree to walk when a message arrives.

    condition  := or
    or         := and { OR and }                                         level 1
    and        := not { AND not }                                        level 2
    not        := NOT not | comparison                                   level 3
    comparison := sum ( = | <> | != | > | >= | < | <= ) sum              level 4
                | property IS [NOT] NULL
                | sum [NOT] IN ( sum {, sum} )
                | sum [NOT] LIKE sum [ESCAPE sum]
                | EXISTS ( property ) | ( condition )
    sum        := product { (+ | -) product }                            level 5
    product    := sign { (* | / | %) sign }                              level 6
    sign       := (+ | -) sign | primary                                 level 7
    primary    := number | 'text' | TRUE | FALSE | NULL | @parameter | property
                | newid() | property(sum) | p(sum) | ( sum )
    property   := [sys. | user.] ( word | [any]]text] | "any""text" )
    action     := { (SET property = sum | REMOVE property) [;] }         at least one

A parenthesis may hold a condition or a value, and which one is known only at its end; so
one routine parses both, each `_Node` says what it turned out to be, and every operator
checks what it is given. A bare value is not a condition: `flag = TRUE`, not `flag`.

Keywords, scopes, parameter names and property names do not mind case. IS NULL also takes
property(). SET and REMOVE are reserved words in actions only. A comma is accepted between
statements, since the documented grammar can be read so. A literal name after `sys.` must be
a system property, in either the old spelling (Label) or that of today's SDKs (Subject).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from twinbus.broker import expressions as ex
from twinbus.broker.expressions import (
    Evaluate,
    FilterError,
    MessageProperties,
    Parameters,
    Statement,
    Value,
)
from twinbus.broker.refusals import SqlError

MAX_LENGTH = 1024
# Counted in nested calls of the parser's `expression`, each of which costs up to six Python
# frames: inside the interpreter's limit of 1000, even when called from deep in a server.
MAX_DEPTH = 100

_READ_ONLY = (
    *("deadlettersource", "deliverycount", "enqueuedsequencenumber", "enqueuedtimeutc"),
    *("expiresatutc", "forcepersistence", "lockeduntilutc", "locktoken", "sequencenumber"),
    *("size", "state"),
)
SYSTEM_PROPERTIES = frozenset({*ex.SETTABLE, *_READ_ONLY})
_TODAYS_SPELLING = {
    "subject": "label",
    "scheduledenqueuetime": "scheduledenqueuetimeutc",
    "transactionpartitionkey": "viapartitionkey",
    "enqueuedtime": "enqueuedtimeutc",
    "expiresat": "expiresatutc",
    "lockeduntil": "lockeduntilutc",
}


@dataclass(frozen=True)
class Condition:
    """A compiled filter expression; `parameters` are the names it uses, folded."""

    text: str
    parameters: frozenset[str]
    _evaluate: Evaluate = field(repr=False, compare=False)

    def matches(self, message: MessageProperties, parameters: Parameters) -> bool | None:
        """True, False, or None for unknown; parameters as `fold_parameters` keys them."""
        return self._evaluate(message, parameters)  # type: ignore[no-any-return]  # a closure, typed as Any


@dataclass(frozen=True)
class Action:
    """A compiled sequence of SET and REMOVE; `parameters` are the names it uses, folded."""

    text: str
    parameters: frozenset[str]
    _statements: tuple[Statement, ...] = field(repr=False, compare=False)

    def apply(self, message: MessageProperties, parameters: Parameters) -> MessageProperties:
        """The message as the action leaves it; the one given stays as it was."""
        for statement in self._statements:
            message = statement(message, parameters)
        return message


def parse_condition(text: str) -> Condition:
    parser = _Parser(text, _RESERVED)
    node = parser.expression(_OR)
    parser.end()
    parser.must_be_condition(node)
    return Condition(text, frozenset(parser.parameters), node.evaluate)


def parse_action(text: str) -> Action:
    parser = _Parser(text, _RESERVED | {"SET", "REMOVE"})
    statements = tuple(parser.statements())
    return Action(text, frozenset(parser.parameters), statements)


# --- tokens ---------------------------------------------------------------------------

_RESERVED = frozenset(
    {"AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE", "EXISTS"}
)

# Possessive repeats keep an unterminated quote an error at its opening: giving back half of
# a doubled quote would close the string early instead.
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<string>'(?:[^']|'')*+')
    | (?P<bracketed>\[(?:[^\]]|\]\])*+\])
    | (?P<quoted>"(?:[^"]|"")*+")
    | (?P<parameter>@\w+)
    | (?P<word>[^\W\d_]\w*)
    | (?P<symbol><>|!=|>=|<=|[=<>+\-*/%(),.;])
    """,
    re.VERBOSE,
)
_UNCLOSED = {"'": "a closing '", "[": "a closing ]", '"': 'a closing "'}


_OPERATORS = ("symbol", "keyword")
_NAMES = ("word", "bracketed", "quoted")


class _Token(NamedTuple):
    kind: str
    text: str  # as written, but a keyword in capitals
    position: int


def _tokens(text: str, reserved: frozenset[str]) -> Iterator[_Token]:
    if len(text) > MAX_LENGTH:
        message = f"the text has {len(text)} characters; at most {MAX_LENGTH} are allowed"
        raise SqlError(message, text, MAX_LENGTH)
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _bad_character(text, position)
        kind, found = str(match.lastgroup), match.group()
        if kind == "word" and found.upper() in reserved:
            yield _Token("keyword", found.upper(), position)
        elif kind != "space":
            yield _Token(kind, found, position)
        position = match.end()
    yield _Token("end", "the end of the text", position)


def _bad_character(text: str, position: int) -> SqlError:
    character = text[position]
    if character in _UNCLOSED:
        expected, found = _UNCLOSED[character], text[position : position + 20]
        return SqlError(f"expected {expected} after {found!r}", text, position)
    message = f"unexpected character {character!r}; put [brackets] around unusual names"
    return SqlError(message, text, position)


# --- parser ---------------------------------------------------------------------------


class _Kind(Enum):
    CONDITION = "a condition"  # true, false or unknown
    VALUE = "a value"  # anything a comparison takes
    PROPERTY = "a property"  # a value that IS NULL may ask about
    CONSTANT = "a constant"  # a value known before any message


class _Node(NamedTuple):
    kind: _Kind
    evaluate: Evaluate
    position: int


_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN = range(1, 8)
_LEVELS = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys([*ex.COMPARISONS, "IS", "IN", "LIKE", "NOT"], _COMPARISON),
    **dict.fromkeys("+-", _SUM),
    **dict.fromkeys("*/%", _PRODUCT),
}


class _Parser:
    def __init__(self, text: str, reserved: frozenset[str]) -> None:
        self.text = text
        self.parameters: set[str] = set()
        self._rest = _tokens(text, reserved)
        self._token = next(self._rest)
        self._depth = 0

    # Tokens.

    def advance(self) -> _Token:
        token = self._token
        if token.kind != "end":
            self._token = next(self._rest)
        return token

    def at(self, *texts: str) -> bool:
        return self._token.kind in _OPERATORS and self._token.text in texts

    def accept(self, *texts: str) -> bool:
        found = self.at(*texts)
        if found:
            self.advance()
        return found

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(f"expected {text}")

    def end(self) -> None:
        if self._token.kind != "end":
            raise self.error("expected an operator or the end of the text")

    def error(self, expected: str) -> SqlError:
        token = self._token
        found = token.text if token.kind == "end" else repr(token.text)
        return SqlError(f"{expected}, found {found}", self.text, token.position)

    # Expressions.

    def condition(self, level: int) -> _Node:
        node = self.expression(level)
        self.must_be_condition(node)
        return node

    def value(self, level: int = _SUM) -> _Node:
        node = self.expression(level)
        self.must_be_value(node)
        return node

    def must_be_condition(self, node: _Node) -> None:
        if node.kind is not _Kind.CONDITION:
            message = f"{node.kind.value} is not a condition; compare it, as in flag = TRUE"
            raise SqlError(message, self.text, node.position)

    def must_be_value(self, node: _Node) -> None:
        if node.kind is _Kind.CONDITION:
            raise SqlError("expected a value, found a condition", self.text, node.position)

    def expression(self, level: int) -> _Node:
        """The longest expression whose operators all bind at least as tightly as `level`."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SqlError("nested too deeply", self.text, self._token.position)
        left = self.prefix(level)
        while (found := self.operator_level()) >= level:
            if found == _COMPARISON:
                left = self.comparison(left)
            elif found < _COMPARISON:
                left = self.junction(left, found)
            else:
                left = self.arithmetic(left, found)
        self._depth -= 1
        return left

    def operator_level(self) -> int:
        token = self._token
        return _LEVELS.get(token.text, 0) if token.kind in _OPERATORS else 0

    def prefix(self, level: int) -> _Node:
        position = self._token.position
        if level <= _NOT and self.accept("NOT"):
            operand = self.condition(_NOT)
            return _Node(_Kind.CONDITION, ex.negation(operand.evaluate), position)
        if self.at("+", "-"):
            return self.sign(self.advance())
        return self.primary()

    def sign(self, sign: _Token) -> _Node:
        # The smallest Int64 can only be written as minus a number that is itself too large.
        if sign.text == "-" and self._token.kind == "number":
            return self.number(self.advance(), "-")
        operand = self.value(_SIGN)
        return _Node(_Kind.VALUE, ex.signed(sign.text, operand.evaluate), sign.position)

    def junction(self, left: _Node, level: int) -> _Node:
        self.must_be_condition(left)
        terms = [left.evaluate]
        while self.operator_level() == level:
            self.advance()
            terms.append(self.condition(level + 1).evaluate)
        return _Node(_Kind.CONDITION, ex.junction(level == _OR, terms), left.position)

    def arithmetic(self, left: _Node, level: int) -> _Node:
        self.must_be_value(left)
        rest: list[tuple[str, Evaluate]] = []
        while self.operator_level() == level:
            symbol = self.advance().text
            rest.append((symbol, self.value(level + 1).evaluate))
        return _Node(_Kind.VALUE, ex.arithmetic(left.evaluate, rest), left.position)

    def comparison(self, left: _Node) -> _Node:
        self.must_be_value(left)
        if self.at(*ex.COMPARISONS):
            symbol = self.advance().text
            test = ex.comparison(symbol, left.evaluate, self.value().evaluate)
        elif self.accept("IS"):
            test = self.is_null(left)
        else:
            negated = self.accept("NOT")
            test = self.membership(left)
            test = ex.negation(test) if negated else test
        return _Node(_Kind.CONDITION, test, left.position)

    def is_null(self, left: _Node) -> Evaluate:
        if left.kind is not _Kind.PROPERTY:
            raise SqlError("only a property can be IS [NOT] NULL", self.text, left.position)
        negated = self.accept("NOT")
        self.expect("NULL")
        test = ex.is_null(left.evaluate)
        return ex.negation(test) if negated else test

    def membership(self, left: _Node) -> Evaluate:
        if self.accept("IN"):
            self.expect("(")
            items = [self.value().evaluate]
            while self.accept(","):
                items.append(self.value().evaluate)
            self.expect(")")
            return ex.among(left.evaluate, items)
        if self.accept("LIKE"):
            pattern = self.value()
            escape = self.value() if self.accept("ESCAPE") else None
            self.check_pattern(pattern, escape)
            return ex.like(left.evaluate, pattern.evaluate, escape and escape.evaluate)
        raise self.error("expected IN or LIKE")

    def check_pattern(self, pattern: _Node, escape: _Node | None) -> None:
        """A pattern that is wrong for every message is refused now, not at the first one."""
        if any(node and node.kind is not _Kind.CONSTANT for node in (pattern, escape)):
            return
        nothing = MessageProperties({}, {})
        test = ex.like(ex.constant(""), pattern.evaluate, escape and escape.evaluate)
        try:
            test(nothing, {})
        except FilterError as error:
            raise SqlError(str(error), self.text, pattern.position) from error

    def primary(self) -> _Node:
        token = self._token
        if self.accept("("):
            node = self.expression(_OR)
            self.expect(")")
            return node._replace(position=token.position)
        if self.accept("EXISTS"):
            return self.exists(token)
        if token.kind in _NAMES:
            return self.name()
        if token.kind == "parameter":
            self.advance()
            self.parameters.add(token.text[1:].lower())
            return _Node(_Kind.VALUE, ex.parameter(token.text[1:]), token.position)
        return self.literal()

    def literal(self) -> _Node:
        token = self._token
        if token.kind == "number":
            return self.number(self.advance(), "")
        if token.kind == "string":
            self.advance()
            return self.constant(token, _unquoted(token))
        if self.accept("TRUE", "FALSE"):
            return self.constant(token, token.text == "TRUE")
        if self.accept("NULL"):
            return self.constant(token, None)
        raise self.error("expected a property, a value or (")

    def constant(self, token: _Token, value: Value) -> _Node:
        return _Node(_Kind.CONSTANT, ex.constant(value), token.position)

    def number(self, token: _Token, sign: str) -> _Node:
        written = sign + token.text
        if token.text.isdigit():
            if not ex.INT64_MIN <= int(written) <= ex.INT64_MAX:
                message = f"{written} does not fit a 64-bit integer"
                raise SqlError(message, self.text, token.position)
            return self.constant(token, int(written))
        if abs(float(written)) == float("inf"):
            raise SqlError(f"{written} does not fit a double", self.text, token.position)
        return self.constant(token, float(written))

    # Properties.

    def exists(self, start: _Token) -> _Node:
        self.expect("(")
        scope, name = self.property_name()
        self.expect(")")
        test = ex.exists_system(name) if scope == "sys" else ex.exists_user(name)
        return _Node(_Kind.CONDITION, test, start.position)

    def name(self) -> _Node:
        """A property, or a function: they differ only by the parenthesis that follows."""
        start = self._token
        scope, name = self.property_name()
        if start.kind == "word" and scope is None and self.accept("("):
            return self.function(start)
        read = ex.system_property(name) if scope == "sys" else ex.user_property(name)
        return _Node(_Kind.PROPERTY, read, start.position)

    def function(self, start: _Token) -> _Node:
        if start.text.lower() == "newid":
            self.expect(")")
            return _Node(_Kind.VALUE, ex.new_id(), start.position)
        if start.text.lower() in ("property", "p"):
            name = self.value()
            self.expect(")")
            return _Node(_Kind.PROPERTY, ex.named_property(name.evaluate), start.position)
        message = f"no function {start.text}; expected newid(), property(name) or p(name)"
        raise SqlError(message, self.text, start.position)

    def property_name(self) -> tuple[str | None, str]:
        """(scope, name): a system name canonical, a user name as written, scope if given."""
        token, name = self.identifier()
        if not self.accept("."):
            return None, name
        scope = token.text.lower()
        if scope not in ("sys", "user"):
            message = f"unknown scope {token.text!r}; expected sys or user"
            raise SqlError(message, self.text, token.position)
        token, name = self.identifier()
        return scope, self.system_name(token, name) if scope == "sys" else name

    def system_name(self, token: _Token, name: str) -> str:
        folded = name.lower()
        canonical = _TODAYS_SPELLING.get(folded, folded)
        if canonical not in SYSTEM_PROPERTIES:
            raise SqlError(f"no system property is called {name!r}", self.text, token.position)
        return canonical

    def identifier(self) -> tuple[_Token, str]:
        token = self._token
        if token.kind not in _NAMES:
            raise self.error("expected the name of a property")
        self.advance()
        name = token.text if token.kind == "word" else _unquoted(token)
        if not name:
            raise SqlError("the name of a property is empty", self.text, token.position)
        return token, name

    # Statements.

    def statements(self) -> Iterator[Statement]:
        while True:
            yield self.statement()
            self.accept(";", ",")
            if self._token.kind == "end":
                return

    def statement(self) -> Statement:
        if self.accept("REMOVE"):
            scope, name = self.target()
            return ex.remove_system(name) if scope == "sys" else ex.remove_user(name)
        if self.accept("SET"):
            scope, name = self.target()
            self.expect("=")
            value = self.value().evaluate
            return ex.set_system(name, value) if scope == "sys" else ex.set_user(name, value)
        raise self.error("expected SET or REMOVE")

    def target(self) -> tuple[str | None, str]:
        position = self._token.position
        scope, name = self.property_name()
        if scope == "sys" and name not in ex.SETTABLE:
            raise SqlError(f"an action cannot change sys.{name}", self.text, position)
        return scope, name


def _unquoted(token: _Token) -> str:
    closing = token.text[-1]
    return token.text[1:-1].replace(closing * 2, closing)
