"""Small mutations of a source, by its syntax tree: each puts another text in the place of one node.

Not made is what cannot change behaviour: docstrings, annotations, decorators, ``__slots__``, what
is logged, and what an error says (its condition and its numbers with it: everything after ``raise``
but the raise itself).
"""

from __future__ import annotations

import ast
import difflib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.Mod: "//",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.LShift: ">>",
    ast.RShift: "<<",
}
OTHER_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
# ``strict=`` sees what the code beside it has made sure of.
KEYWORDS_OF_NO_MATTER = {"strict", "repr", "slots"}
UNSEEN = {"__slots__", "__match_args__", "__all__"}
LOGS = {"log", "logger", "logging"}


@dataclass(frozen=True)
class Mutant:
    module: str  # as "broker/queue"
    number: int
    line: int
    kind: str
    before: str  # its lines, without the space around
    after: str
    whole: str

    @property
    def name(self) -> str:
        return f"{self.module}#{self.number}"

    @property
    def compiles(self) -> bool:
        try:
            compile(self.whole, "mutant", "exec")
        except (SyntaxError, ValueError):
            return False
        return True

    def diff(self, source: str) -> str:
        lines = difflib.unified_diff(
            source.splitlines(),
            self.whole.splitlines(),
            f"src/twinbus/{self.module}.py",
            f"{self.name}, {self.kind}",
            n=1,
            lineterm="",
        )
        return "\n".join(lines)


def mutants(module: str, source: str) -> list[Mutant]:
    """All of them, in the order of the source, each once. Some few may not compile."""
    tree = ast.parse(source)
    places = _Places(source)
    made: list[Mutant] = []
    seen = {source}
    for node, kind, text in _changes(tree, places):
        whole = places.with_other(node, text)
        if whole in seen:
            continue
        seen.add(whole)
        before, after = _differing(source, whole)
        made.append(Mutant(module, len(made), node.lineno, kind, before, after, whole))
    return made


def _differing(source: str, whole: str) -> tuple[str, str]:
    old, new = source.splitlines(), whole.splitlines()
    first = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    tail = 0
    while tail < min(len(old), len(new)) - first and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return (
        " ".join(line.strip() for line in old[first : len(old) - tail]),
        " ".join(line.strip() for line in new[first : len(new) - tail]),
    )


Node = ast.expr | ast.stmt
Change = tuple[Node, str, str]


class _Places:
    """Where each node is in the bytes of the source, in which the tree counts."""

    def __init__(self, source: str) -> None:
        self._bytes = source.encode()
        self._starts = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: Node) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(self, node: Node) -> str:
        start, end = self.span(node)
        return self._bytes[start:end].decode()

    def with_other(self, node: Node, text: str) -> str:
        start, end = self.span(node)
        return (self._bytes[:start] + text.encode() + self._bytes[end:]).decode()

    def between(self, node: Node, left: Node, right: Node, text: str) -> str:
        """The node, with another text between two of its parts: brackets around them stay."""
        start, end = self.span(node)
        after, before = self.span(left)[1], self.span(right)[0]
        gap = self._bytes[after:before].decode()
        closing = gap[: len(gap) - len(gap.lstrip(" )\n"))].rstrip(" ")
        opening = gap[len(gap.rstrip(" (\n")) :].lstrip(" ")
        return (
            self._bytes[start:after].decode()
            + closing
            + f" {text} "
            + opening
            + self._bytes[before:end].decode()
        )

    def without(self, call: ast.Call, keyword: ast.keyword) -> str:
        """The call, without one of its keywords and the comma behind or before it."""
        start, end = self.span(call)
        at, value = self._starts[keyword.lineno - 1] + keyword.col_offset, self.span(keyword.value)
        after = value[1]
        for _ in range(self._bytes[at : value[0]].count(b"(")):
            after = self._bytes.index(b")", after) + 1
        before, rest = self._bytes[start:at], self._bytes[after:end].lstrip()
        if rest.startswith(b","):
            rest = rest[1:].lstrip()
        else:
            before = before.rstrip().removesuffix(b",")
        return (before + rest).decode()


def _changes(node: ast.AST, places: _Places) -> Iterator[Change]:
    if isinstance(node, Node):
        yield from _of(node, places)
    for child in _children(node):
        yield from _changes(child, places)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """What is below a node and can matter."""
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr():
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.FunctionDef(name="__repr__" | "__str__"):
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from (each for each in node.args.defaults)
            yield from (each for each in node.args.kw_defaults if each is not None)
            yield from node.body
        case ast.ClassDef():
            yield from node.body
        case ast.AnnAssign():
            if node.value is not None:
                yield node.value
        case ast.Assign() if _is_unseen(node.targets[0]):
            return
        case ast.Expr(value=ast.Constant()):
            return
        case ast.Expr(value=ast.Call() as call) if _logs(call):
            return
        case ast.Call(func=ast.Name(id="cast" | "TypeVar" | "namedtuple" | "NamedTuple")):
            return
        case _:
            yield from ast.iter_child_nodes(node)


def _is_unseen(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id in UNSEEN


def _logs(call: ast.Call) -> bool:
    function = call.func
    while isinstance(function, ast.Attribute):
        if function.attr.strip("_") in LOGS:
            return True
        function = function.value
    return isinstance(function, ast.Name) and function.id.strip("_") in LOGS


def _of(node: Node, places: _Places) -> Iterator[Change]:
    text = places.text
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            for other in COMPARISONS[type(operator)]:
                yield node, "comparison", places.between(node, left, right, other)
        case ast.BinOp(left=left, op=operator, right=right):
            if type(operator) in ARITHMETIC and not (_is_text(left) or _is_text(right)):
                other = ARITHMETIC[type(operator)]
                yield node, "arithmetic", places.between(node, left, right, other)
        case ast.BoolOp(op=operator, values=[*values]):
            other = "and" if isinstance(operator, ast.Or) else "or"
            for left, right in itertools.pairwise(values):
                yield node, "boolean", places.between(node, left, right, other)
            for value in values:
                rest = [f"({text(each)})" for each in values if each is not value]
                joined = (" or " if isinstance(operator, ast.Or) else " and ").join(rest)
                yield node, "condition dropped", f"({joined})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, "negation", f"({text(operand)})"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield node, "sign", f"({text(operand)})"
        case ast.Constant(value=bool(value)):
            yield node, "constant", str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield node, "constant", f"{value + 1}"
            if value > 1:
                yield node, "constant", f"{value - 1}"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield node, "branches", f"({text(orelse)} if {text(test)} else {text(body)})"
        case ast.Call():
            yield from _of_call(node, places)
        case ast.stmt():
            yield from _of_statement(node, places)
        case _:
            pass


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _of_call(node: ast.Call, places: _Places) -> Iterator[Change]:
    if isinstance(node.func, ast.Name) and node.func.id in OTHER_NAMES:
        start, end = places.span(node.func)
        rest = places.text(node)[end - start :]
        yield node, "extreme", OTHER_NAMES[node.func.id] + rest
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in KEYWORDS_OF_NO_MATTER:
            continue
        yield node, "keyword removed", places.without(node, keyword)


def _of_statement(node: ast.stmt, places: _Places) -> Iterator[Change]:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            pass
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Constant):
            yield test, "branches", f"not ({places.text(test)})"
        case ast.Expr(value=ast.Call() as call) if not _logs(call):
            yield node, "statement removed", "pass"
        case ast.Expr(value=ast.Await()):
            yield node, "statement removed", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield node, "statement removed", "pass"
        case ast.AugAssign() | ast.Delete() | ast.Raise() | ast.Continue() | ast.Break():
            yield node, "statement removed", "pass"
        case _:
            pass
