"""Mutants of a module: its source with one small fault, by mutmut's operators and some that drop conditions.

Not mutated is what no answer depends on: annotations, docstrings, the text of messages, `assert`, imports,
`checkpoint()`, and `strict=` of a `zip`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider, WhitespaceInclusivePositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_assignment, operator_string

FIXED = (cst.Name("True"), cst.Name("False"))
SWAPPED = {"any": "all", "all": "any", "min": "max", "max": "min"}
MESSAGES = {"Violation", "InternalError"}
"""What is called with a rule or nothing first, and then with the text for people."""


@dataclass(frozen=True)
class Mutant:
    """A fault: the function and the lines of the statement it is in, the changed lines before and after."""

    function: str
    first_line: int
    last_line: int
    was: str
    now: str
    source: str

    def __str__(self) -> str:
        return f"{self.function}:{self.first_line}\n- {self.was}\n+ {self.now}"


def mutants_of(source: str) -> list[Mutant]:
    """All mutants of a module's source, in the order of its lines, each different source once.

    >>> [(each.was, each.now) for each in mutants_of("def f(a):\\n    return a < 1\\n")]
    [('return a < 1', 'return a <= 1'), ('return a < 1', 'return a < 2'), ('return a < 1', 'return a < 0')]
    """
    wrapper = MetadataWrapper(cst.parse_module(source))
    finder = _Places(wrapper.resolve(PositionProvider))
    wrapper.module.visit(finder)
    extents = wrapper.resolve(WhitespaceInclusivePositionProvider)
    starts = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
    seen = {source}
    found = []
    for place in finder.places:
        extent = extents[place.node]
        start = starts[extent.start.line - 1] + extent.start.column
        end = starts[extent.end.line - 1] + extent.end.column
        is_whole = source[start:end] == wrapper.module.code_for_node(place.node)
        fixed = FIXED if id(place.node) in finder.conditions else ()
        for faulty in (*fixed, *_faults(place.node)):
            if is_whole:
                text = source[:start] + wrapper.module.code_for_node(faulty) + source[end:]
            else:  # a statement with a body, whose lines are indented
                text = wrapper.module.deep_replace(place.node, faulty).code
            if text in seen:
                continue
            seen.add(text)
            was, now = _changed_lines(source, text)
            found.append(Mutant(place.function, place.first_line, place.last_line, was, now, text))
    return found


@dataclass(frozen=True)
class _Place:
    node: cst.CSTNode
    function: str
    first_line: int
    last_line: int


class _Places(cst.CSTVisitor):
    """Nodes that may be mutated, with the function and the innermost statement that they are in.

    Of a statement with a body the lines are those of its head."""

    def __init__(self, positions: object) -> None:
        self.places: list[_Place] = []
        self._positions = positions
        self._names: list[str] = []
        self._lines: list[tuple[int, int]] = [(0, 0)]
        self._messages: set[int] = set()
        self.conditions: set[int] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self._names.append(node.name.value)
        if isinstance(node, (cst.BaseCompoundStatement, cst.BaseSmallStatement, cst.MatchCase)):
            where = self._positions[node]  # type: ignore[index]
            body = getattr(node, "body", None)
            last = where.end.line
            if body is not None:
                last = max(where.start.line, self._positions[body].start.line - 1)  # type: ignore[index]
            self._lines.append((where.start.line, last))
        if isinstance(node, cst.Call) and m.matches(node.func, m.Name()) and node.func.value in MESSAGES:
            self._messages.update(id(arg) for arg in node.args[1:])
        if _is_untouched(node) or id(node) in self._messages:
            return False
        self.places.append(_Place(node, ".".join(self._names), *self._lines[-1]))
        if isinstance(node, (cst.If, cst.CompIf)):
            self.conditions.add(id(node.test))
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, (cst.FunctionDef, cst.ClassDef)):
            self._names.pop()
        if isinstance(original_node, (cst.BaseCompoundStatement, cst.BaseSmallStatement, cst.MatchCase)):
            self._lines.pop()


def _is_untouched(node: cst.CSTNode) -> bool:
    """Whether nothing in a node matters to an answer."""
    if isinstance(
        node, (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom, cst.Assert, cst.FormattedString)
    ):
        return True
    if isinstance(node, (cst.SimpleString, cst.ConcatenatedString)):
        return _is_text(node)
    if isinstance(node, cst.Raise):
        return True
    if m.matches(node, m.Expr(m.SimpleString() | m.ConcatenatedString() | m.Call(m.Name("checkpoint")))):
        return True
    return m.matches(node, m.Arg(keyword=m.Name("strict")))


def _is_text(node: cst.CSTNode) -> bool:
    """Whether an expression is text for people, not a name."""
    if isinstance(node, cst.SimpleString):
        return " " in node.raw_value or node.raw_value == ""
    return isinstance(node, (cst.FormattedString, cst.ConcatenatedString))


def _faults(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.BaseString):
        if isinstance(node, cst.SimpleString):
            yield from list(operator_string(node))[:1]
        return
    for kind, operator in mutation_operators:
        if isinstance(node, kind) and operator not in (operator_string, operator_assignment):
            for faulty in operator(node):
                if not (isinstance(node, cst.Call) and _is_left_out(node, faulty)):
                    yield faulty
    yield from _more_faults(node)


def _is_left_out(call: cst.Call, faulty: cst.CSTNode) -> bool:
    """Whether a call has None for an argument, which the type checker sees, or lacks text or `strict`."""
    if not isinstance(faulty, cst.Call) or faulty.func is not call.func:
        return False
    if len(faulty.args) == len(call.args):
        return True
    lost = next(arg for arg in call.args if not any(arg is other for other in faulty.args))
    is_message = m.matches(call.func, m.OneOf(*map(m.Name, MESSAGES))) and lost is not call.args[0]
    return is_message or _is_text(lost.value) or m.matches(lost, m.Arg(keyword=m.Name("strict")))


def _more_faults(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.Integer):
        value = node.evaluated_value - 1
        yield cst.parse_expression(str(value) if value >= 0 else f"({value})")
    elif isinstance(node, cst.BooleanOperation):
        yield node.left.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.right.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    elif isinstance(node, (cst.Tuple, cst.List)) and len(node.elements) > 1:
        for place, element in enumerate(node.elements):
            if isinstance(element, cst.StarredElement):
                yield node.with_changes(elements=[*node.elements[:place], *node.elements[place + 1 :]])
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in SWAPPED:
        yield node.with_changes(func=cst.Name(SWAPPED[node.func.value]))
    elif isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
        yield cst.Pass()
    elif isinstance(node, cst.Expr) and isinstance(node.value, cst.Yield):
        yield cst.Expr(cst.parse_expression("(yield from ())"))
    elif isinstance(node, cst.AugAssign):
        yield cst.Pass()


def _changed_lines(source: str, text: str) -> tuple[str, str]:
    """The lines that differ, as one line each without the space around."""
    old, new = source.splitlines(), text.splitlines()
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    was, now = (lines[first : len(lines) - last] for lines in (old, new))
    return " ".join(line.strip() for line in was), " ".join(line.strip() for line in now)
