"""What a subgraph of the contest asks for: the slices that it loads and the work that it does.

A subgraph's *sinks* are the tensors that it makes and does not read itself. Their common shape is cut into
tiles. A *root* is a product that reaches a sink through pointwise operators alone: it adds up in steps of the
sum while its tile stands still. Everything else makes, in every step, the slice that is asked of it. Slices
are symbolic here, so one analysis serves all granularities.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tilewright.contest.problem import ContestProblem

TILE, SUM, FULL = 0, 1, 2
"""Ranges along an axis: the tile's rows or columns, the step's slice of the sum, or everything."""


class Load(NamedTuple):
    """Slices of a tensor that is made elsewhere; `depth` is that of the sum it is asked for, 0: last step."""

    tensor: int
    rows: int
    columns: int
    depth: int


class Work(NamedTuple):
    """Slices that an operator makes."""

    operator: int
    rows: int
    columns: int
    is_root: bool
    depth: int


class Subgraph(NamedTuple):
    """The operators of a step and what follows from them at any granularity."""

    operators: tuple[int, ...]
    sinks: tuple[int, ...]
    width: int
    height: int
    depth: int  # the longest sum of its roots; 0 without any
    loads: tuple[Load, ...]
    works: tuple[Work, ...]
    root_depths: tuple[int, ...]
    least_depth: int  # the shortest sum of its products: no step is longer


def sinks_of(problem: ContestProblem, operators: Iterable[int]) -> tuple[int, ...]:
    """Tensors that these operators make and do not read."""
    inside = set(operators)
    return tuple(
        t
        for t in sorted(problem.operators[i].output for i in inside)
        if inside.isdisjoint(problem.users.get(t, ()))
    )


def is_connected(problem: ContestProblem, operators: Iterable[int]) -> bool:
    """Whether operators hang together through tensors, shared inputs included."""
    members = list(operators)
    touching: dict[int, list[int]] = {}
    for i in members:
        operator = problem.operators[i]
        for t in {*operator.inputs, operator.output}:
            touching.setdefault(t, []).append(i)
    seen, todo = {members[0]}, [members[0]]
    while todo:
        operator = problem.operators[todo.pop()]
        for t in (*operator.inputs, operator.output):
            for j in touching.pop(t, ()):
                if j not in seen:
                    seen.add(j)
                    todo.append(j)
    return len(seen) == len(members)


def analyse(problem: ContestProblem, operators: Iterable[int]) -> Subgraph | None:
    """What a subgraph asks for; None if its sinks differ in shape."""
    members = tuple(sorted(operators))
    sinks = sinks_of(problem, members)
    shapes = {(problem.widths[t], problem.heights[t]) for t in sinks}
    if len(shapes) != 1:
        return None
    ((width, height),) = shapes
    asked = _Requests(problem, frozenset(members))
    for sink in sinks:
        asked.ask(sink, TILE, TILE, True, 0)
    products = [i for i in members if problem.operators[i].is_product]
    root_depths = tuple(problem.depth(i) for i in sorted(asked.roots))
    return Subgraph(
        operators=members,
        sinks=sinks,
        width=width,
        height=height,
        depth=max(root_depths, default=0),
        loads=tuple(Load(*key, depth) for key, depth in sorted(asked.loads.items())),
        works=tuple(Work(*key, depth) for key, depth in sorted(asked.works.items())),
        root_depths=root_depths,
        least_depth=min((problem.depth(i) for i in products), default=0),
    )


class _Requests:
    """Slices asked for, from the sinks upwards."""

    def __init__(self, problem: ContestProblem, members: frozenset[int]) -> None:
        self.problem, self.members = problem, members
        self.loads: dict[tuple[int, int, int], int] = {}
        self.works: dict[tuple[int, int, int, bool], int] = {}
        self.roots: set[int] = set()

    def ask(self, tensor: int, rows: int, columns: int, may_be_root: bool, depth: int) -> None:
        """A slice is needed, in the steps of a sum of this length, or in the last step alone (0)."""
        todo = [(tensor, rows, columns, may_be_root, depth)]
        while todo:
            tensor, rows, columns, may_be_root, depth = todo.pop()
            maker = self.problem.maker.get(tensor)
            if maker is None or maker not in self.members:
                place = (tensor, rows, columns)
                self.loads[place] = max(self.loads.get(place, 0), depth)
                continue
            operator = self.problem.operators[maker]
            is_root = may_be_root and operator.is_product
            if is_root:
                depth = self.problem.depth(maker)
                self.roots.add(maker)
            made = (maker, rows, columns, may_be_root)
            if self.works.get(made, -1) >= depth:
                continue
            self.works[made] = depth
            if operator.is_product:
                left, right = operator.inputs
                inner = SUM if is_root else FULL
                todo += [(left, rows, inner, False, depth), (right, inner, columns, False, depth)]
            else:
                todo += [(t, rows, columns, may_be_root, depth) for t in dict.fromkeys(operator.inputs)]
