"""Nested tilings of operators one behind the other: loops that several share, inside these loops of fewer.

The operators of a tree share its loops. In each step of them they run one after another, or some of them
again as a tree, with loops of their own, of which the others see only what it takes and gives. A single
operator is a leaf: its loops say in which pieces pass what comes from outside, so that a step need not hold
that whole. Partial sums may leave and come back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tilewright.ir.contraction import contraction_of
from tilewright.ir.derive import is_complex, is_pointwise, nests_of
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Access, Affine, Nest, dim_of
from tilewright.ir.region import access_region
from tilewright.mapping.chains.chain import CannotFuse
from tilewright.mapping.chains.runs import stages_of
from tilewright.mapping.chains.sides import EMPTY, Reach

MOST_OPERATORS = 4
"""Sums of products of a nested tiling."""
Shape = tuple[int, ...]
"""The iterations that a step has of every dim of a tree's operators, one operator after another."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Operators `first` to `last`, which share `loops` over dims of the last one's nest, from the outermost.

    `held` has the depth from which on an operand from outside stays on chip for later steps. A leaf reads
    one operand of those that are not held word by word, `streamed`; a tree of several operators has for
    each shape of a step the trees that follow each other in it.
    """

    first: int
    last: int
    loops: tuple[tuple[str, int], ...] = ()
    held: tuple[tuple[str, int], ...] = ()
    streamed: str | None = None
    steps: tuple[tuple[Shape, tuple[Tree, ...]], ...] = ()

    def told(self, names: Sequence[str]) -> str:
        """Loops with their tiles, and what runs in them, by the names of the operators."""
        loops = ", ".join(f"{dim} {tile}" for dim, tile in self.loops)
        inner = "; ".join(tree.told(names) for tree in self.steps[0][1]) if self.steps else names[self.first]
        return f"{loops} [{inner}]" if loops and self.steps else f"{inner} {loops}".rstrip()


@dataclass(frozen=True, slots=True)
class NestedCount:
    """What a tree moves past the outermost level, and holds on chip, in words."""

    moved_words: int
    held_words: int


@dataclass(frozen=True, slots=True)
class NestedPlan:
    """A tree of a run, with what it takes."""

    run: StraightRun
    tree: Tree
    count: NestedCount

    def __str__(self) -> str:
        names = [stage[0].name for stage in stages_of(self.run.nodes)]
        return self.tree.told(names)


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """Axes of values that move together: of the values `first` to `last` of a run, one each.

    `extents` are theirs. `reaches` has for each operator between them what it needs for each position of its
    result, None where that is the position itself; `dims` the name of the dim of each operator's nest.
    """

    first: int
    last: int
    extents: tuple[int, ...]
    reaches: tuple[Reach | None, ...]
    dims: dict[int, str]

    @property
    def slides(self) -> bool:
        """Whether windows, or steps of several positions, move along it."""
        return any(reach is not None for reach in self.reaches)


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """A sum of products of a run. `inputs`, `weights` and `outputs` are the places of axes that move these.

    `windows` are dims of positions of windows, with their extents.
    """

    nest: Nest
    position: int
    weight: Access
    inputs: frozenset[int]
    weights: frozenset[int]
    outputs: frozenset[int]
    windows: tuple[tuple[str, int], ...]

    @property
    def axes(self) -> frozenset[int]:
        """All of them."""
        return self.inputs | self.weights | self.outputs


@dataclass(frozen=True, eq=False)
class StraightRun:
    """Sums of products each of which reads what the one before it made, with element-wise operators between.

    `extra_words` are what else is read, such as biases: these stay on chip all along.
    """

    nodes: tuple[Node, ...]
    operators: tuple[Operator, ...]
    axes: tuple[Axis, ...]
    extra_words: int

    @cached_property
    def result_words(self) -> int:
        """Of the last operator."""
        return prod(x.extents[-1] for x in self.axes if x.last == len(self.operators))

    def operands(self, first: int, last: int) -> tuple[str, ...]:
        """The names of what some operators read and write that comes from outside the run, or leaves it."""
        names = [f"w{k}" for k in range(first, last + 1)]
        return (*(["x"] if first == 0 else []), *names, *(["y"] if last == len(self.operators) - 1 else []))


def straight_run(nodes: Sequence[Node], results: frozenset[Value] = frozenset()) -> StraightRun:
    """The run of some nodes, given in order; `results` are values that must leave.

    Raises:
        CannotFuse: they are no such run.
    """
    stages = stages_of(nodes)
    if not 1 <= len(stages) <= MOST_OPERATORS or not all(is_complex(stage[0]) for stage in stages):
        raise CannotFuse("nested tiling: operators are not sums of products one behind the other.")
    for made in (value for node in nodes[:-1] for value in node.results()):
        if made in results or len(made.users) != 1:
            raise CannotFuse(f"nested tiling: {made.name!r} is read several times, or leaves.")
    reader = _RunReader()
    value: Value | None = None
    for place, stage in enumerate(stages):
        value = reader.add(place, stage, value)
    return reader.run(tuple(nodes))


class _RunReader:
    """Axes and operators of a run, stage by stage."""

    def __init__(self) -> None:
        self.axis_of: dict[tuple[int, int], int] = {}  # (value, axis of it) to the place of an `Axis`
        self.extents: list[list[int]] = []
        self.reaches: list[list[Reach | None]] = []
        self.first: list[int] = []
        self.dims: list[dict[int, str]] = []
        self.operators: list[Operator] = []
        self.extra_words = 0

    def add(self, place: int, stage: Sequence[Node], value: Value | None) -> Value:
        """Take an operator and the element-wise ones behind it, which reads a value; what they make."""
        node = stage[0]
        nest, reads = _products(node)
        positions = [access.operand.position for access in reads]
        if value is None:
            position = next((p for p in positions if not _operand(node, p).is_constant), positions[0])
        else:
            position = next((p for p in positions if node.inputs[p] is value), -1)
        if len(set(positions)) < 2 or position not in positions or len(list(node.results())) != 1:
            raise CannotFuse(f"nested tiling: {node.name!r} does not multiply what the one before it makes.")
        read = reads[positions.index(position)]
        weight = reads[1 - positions.index(position)]
        self._add_operator(place, nest, position, read, weight)
        for access in nest.reads:
            if access.operand.kind == "input" and access not in (read, weight):
                self.extra_words += _constant_words(_operand(node, access.operand.position))
        (made,) = node.results()
        for follower in stage[1:]:
            if not is_pointwise(follower) or next(follower.results()).shape != made.shape:
                raise CannotFuse(f"nested tiling: {follower.name!r} is not element by element.")
            others = [v for v in follower.inputs if v is not None and v is not made]
            self.extra_words += sum(map(_constant_words, others))
            (made,) = follower.results()
        return made

    def _add_operator(self, place: int, nest: Nest, position: int, read: Access, weight: Access) -> None:
        extents = {dim.name: dim.extent for dim in nest.dims}
        roles = {dim.name: dim.role for dim in nest.dims}
        axes: dict[str, int] = {}  # of dims
        windows: set[str] = set()
        inputs: set[int] = set()
        linked: dict[str, tuple[int, Reach | None]] = {}
        for axis, terms in _moving(read, extents):
            parallel = [name for name, _ in terms if roles[name] == "parallel"]
            summed = [name for name, _ in terms if roles[name] == "reduce"]
            known = self.axis_of.get((place, axis))
            index = read.index[axis]
            if known is None:
                known = self._new(place, read.operand.shape[axis])
            inputs.add(known)
            if parallel:
                if len(parallel) > 1 or parallel[0] in linked:
                    raise CannotFuse("nested tiling: two dims move one axis.")
                is_plain = dim_of(index) is not None and read.operand.shape[axis] == extents[parallel[0]]
                reach = None if is_plain else _reach(read, axis, parallel[0], extents)
                if place and reach is not None and reach.has_gaps:
                    raise CannotFuse("nested tiling: an operator jumps over what the one before it makes.")
                linked[parallel[0]] = known, reach
                windows.update(summed)
            elif len(summed) == 1 and dim_of(index) is not None:
                axes[summed[0]] = known
                self.dims[known][place] = summed[0]
            else:
                raise CannotFuse("nested tiling: a sum reads an axis in parts.")
        outputs: set[int] = set()
        for axis, terms in _moving(nest.write, extents):
            if len(terms) > 1 or dim_of(nest.write.index[axis]) is None:
                raise CannotFuse("nested tiling: two dims move one axis.")
            ((name, _),) = terms
            if name in linked:
                number, reach = linked[name]
                self.extents[number].append(extents[name])
                self.reaches[number].append(reach)
            else:
                number = self._new(place + 1, extents[name])
            axes[name] = number
            self.dims[number][place] = name
            self.axis_of[place + 1, axis] = number
            outputs.add(number)
        weights = set()
        for _, terms in _moving(weight, extents):
            for name, _ in terms:
                if name not in windows:
                    weights.add(axes[name])
                elif len(terms) > 1:
                    raise CannotFuse("nested tiling: windows of a moving filter.")
        if place and any(number not in inputs for (v, _), number in self.axis_of.items() if v == place):
            raise CannotFuse("nested tiling: an operator needs a part of what the one before it makes.")
        known_axes = inputs | weights | outputs
        if any(
            extents[d.name] > 1 and d.name not in windows and axes.get(d.name) not in known_axes
            for d in nest.dims
        ):
            raise CannotFuse("nested tiling: a dim moves nothing.")
        sizes = tuple((name, extents[name]) for name in sorted(windows) if extents[name] > 1)
        sets = frozenset(inputs), frozenset(weights), frozenset(outputs)
        self.operators.append(Operator(nest, position, weight, *sets, sizes))

    def _new(self, value: int, extent: int) -> int:
        self.first.append(value)
        self.extents.append([extent])
        self.reaches.append([])
        self.dims.append({})
        return len(self.first) - 1

    def run(self, nodes: tuple[Node, ...]) -> StraightRun:
        """Everything taken so far."""
        axes = tuple(
            Axis(first, first + len(extents) - 1, tuple(extents), tuple(reaches), dims)
            for first, extents, reaches, dims in zip(
                self.first, self.extents, self.reaches, self.dims, strict=True
            )
        )
        return StraightRun(nodes, tuple(self.operators), axes, self.extra_words)


def _products(node: Node) -> tuple[Nest, tuple[Access, Access]]:
    """A node's nest, and the two operands that it multiplies."""
    nests = nests_of(node)
    form = contraction_of(nests[0]) if len(nests) == 1 else None
    if form is None or any(access.view is not None for access in (*form.accesses, form.nest.write)):
        raise CannotFuse(f"nested tiling: {node.name!r} is more than one sum of products.")
    return form.nest, form.accesses


def _operand(node: Node, position: int) -> Value:
    value = node.inputs[position]
    assert value is not None
    return value


def _constant_words(value: Value) -> int:
    """What a constant beside the factors takes.

    Raises:
        CannotFuse: it is none.
    """
    if not value.is_constant:
        raise CannotFuse(f"nested tiling: {value.name!r} comes from elsewhere.")
    return value.num_elements


def _moving(access: Access, extents: dict[str, int]) -> Iterator[tuple[int, list[tuple[str, int]]]]:
    """Each axis of an operand that moves, with the terms of dims that do move it."""
    for axis, index in enumerate(access.index):
        if not isinstance(index, Affine):
            raise CannotFuse("nested tiling: an operand is not read along lines.")
        terms = [(name, c) for name, c in index.terms if extents[name] > 1]
        if terms:
            yield axis, terms


def _reach(access: Access, axis: int, dim: str, extents: dict[str, int]) -> Reach:
    """What each iteration of a dim needs along an axis."""
    needs = []
    for at in range(extents[dim]):
        intervals = {name: (0, extent) for name, extent in extents.items()} | {dim: (at, at + 1)}
        region = access_region(access, intervals)
        needs.append(EMPTY if region is None else region[axis])
    return Reach(0, tuple(needs))
