"""Operator merge: several operators of one input become one whose constants lie side by side.

IOS (Ding et al., MLSys 2021), section 3; TensorRT and XLA call it horizontal fusion. What is merged are
siblings: sequences of nodes of equal structure that begin with a contraction of a shared operand and a
constant, such as a convolution with its bias and activation, or the product that makes queries. The rule is
read off loop nests: a dim of the result, the *merge dim*, that moves constants and never the shared operand
can be as long as all siblings together. Constants that move along it are concatenated, all others are equal.

Kernels of convolutions that differ in extent are padded to a common window first (`common_window.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import ModelRejected
from tilewright.ir.common_window import Attributes, NoCommonWindow, Widened, widened_kernels
from tilewright.ir.contraction import contraction_of
from tilewright.ir.expr import Iter
from tilewright.ir.graph import Attribute, Graph, Node, SubgraphAttribute, Value
from tilewright.ir.nest import Access, Affine, Nest, access_dims, format_access
from tilewright.ir.ops.registry import describe, has_effect
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class MergedNode:
    """One operator in the place of one of each sibling.

    `inputs` says of each operand where it comes from: None if it is left out, a value if all siblings share
    it, the place of an earlier node of the sequence, or the constants that are concatenated along an axis.
    """

    siblings: tuple[Node, ...]
    inputs: tuple[Value | int | Concatenated | None, ...]
    attributes: Attributes
    axis: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Concatenated:
    """Constants side by side along an axis; `widened` says how each is padded first."""

    values: tuple[Value, ...]
    axis: int
    widened: tuple[Widened, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        first = self.values[0].shape
        shape = (*first[:2], *self.widened[0].kernel) if self.widened else first
        total = sum(v.shape[self.axis] for v in self.values)
        return tuple(total if axis == self.axis else extent for axis, extent in enumerate(shape))

    def data(self) -> Array:
        """The elements."""
        parts = [v.data for v in self.values if v.data is not None]
        if self.widened:
            parts = [w.weight(part) for w, part in zip(self.widened, parts, strict=True)]
        return np.concatenate(parts, self.axis)


@dataclass(frozen=True, slots=True, eq=False)
class MergedOperators:
    """Siblings as one sequence of operators; their results are the parts of its result along `axis`."""

    nodes: tuple[MergedNode, ...]

    @property
    def axis(self) -> int:
        """Along which results lie side by side."""
        return self.nodes[-1].axis

    @property
    def name(self) -> str:
        """A readable name."""
        first, *others = [node.name for node in self.nodes[0].siblings]
        return f"{first}+{len(others)}"

    def build(
        self, graph: Graph, twin: Mapping[Value, Value], results: Sequence[Value], *, is_priced_only: bool
    ) -> tuple[Node, ...]:
        """Append the operators and the split that gives `results` to a graph that holds what they read.

        `twin` gives the graph's value for each shared operand. Where the graph `is_priced_only`,
        concatenated constants have no elements of their own.
        """
        made: list[Value] = []
        nodes: list[Node] = []
        for merged in self.nodes:
            inputs = [self._operand(graph, twin, made, x, is_priced_only) for x in merged.inputs]
            first = merged.siblings[0]
            value = graph.value(f"{self.name}.{first.output.name}", first.output.dtype, merged.shape)
            node = Node(
                first.op_type,
                inputs,
                [value],
                merged.attributes,
                name="+".join(n.name for n in merged.siblings),
                domain=first.domain,
                opset=first.opset,
            )
            nodes.append(graph.append(node))
            made.append(value)
        # As an attribute, which Split had before opset 13: no constant of a type that the graph may lack.
        sizes = tuple(v.shape[self.axis] for v in results)
        split = Node(
            "Split",
            [made[-1]],
            results,
            {"axis": self.axis, "split": sizes},
            name=f"{self.name}.results",
            opset=11,
        )
        nodes.append(graph.append(split))
        return tuple(nodes)

    def _operand(
        self,
        graph: Graph,
        twin: Mapping[Value, Value],
        made: Sequence[Value],
        source: Value | int | Concatenated | None,
        is_priced_only: bool,
    ) -> Value | None:
        match source:
            case int():
                return made[source]
            case Value():
                return twin[source]
            case Concatenated():
                # Costs depend on shapes alone: a search that prices many merges copies no weights.
                first = source.values[0]
                data = _placeholder(first, source.shape).data if is_priced_only else source.data()
                assert data is not None
                return graph.constant(data, f"{self.name}.{first.name}")
        return None


def mergeable(siblings: Sequence[Sequence[Node]], *, pads_kernels: bool = True) -> MergedOperators | None:
    """These sequences of nodes, each in topological order, as one; None where the rule forbids it.

    The first node of each must be a contraction of a shared operand with a constant along the merge dim.
    """
    if len(siblings) < 2 or not siblings[0] or len({len(nodes) for nodes in siblings}) != 1:
        return None
    columns = tuple(zip(*siblings, strict=True))
    if any(_is_unlike(column) for column in columns):
        return None
    try:
        return _Merging(pads_kernels).run(columns)
    except (_Refusal, NoCommonWindow):
        return None


class _Refusal(Exception):
    """The siblings do not merge."""


def _is_unlike(column: Sequence[Node]) -> bool:
    """Whether nodes in the same place are not the same operator on operands of the same kinds."""
    kinds = {
        (
            node.op_type,
            node.domain,
            node.opset,
            tuple(None if v is None else (v.dtype, len(v.shape)) for v in (*node.inputs, *node.outputs)),
        )
        for node in column
    }
    return len(kinds) > 1 or any(
        len(list(node.results())) != 1 or node.captures or has_effect(node) for node in column
    )


@dataclass(slots=True)
class _Merging:
    pads_kernels: bool

    def run(self, columns: Sequence[tuple[Node, ...]]) -> MergedOperators:
        place: dict[Value, int] = {}  # of what siblings make themselves
        axes: list[int] = []
        merged: list[MergedNode] = []
        for number, column in enumerate(columns):
            widened = widened_kernels(column, pads_kernels=self.pads_kernels) if number == 0 else ()
            nests = [_nest(node) for node in column]
            form = _Form(nests[0])
            axis = form.anchor_axis(column[0]) if number == 0 else form.followed_axis(column[0], place, axes)
            if any(node.output.shape[axis] < 2 for node in column):
                raise _Refusal  # an axis of one element is not told from one that is broadcast
            dim = form.dim_of(nests[0].write, axis)
            inputs = tuple(
                _source(operands, form, position, dim, place, axes, widened)
                for position, operands in enumerate(zip(*(n.inputs for n in column), strict=True))
            )
            total = sum(node.output.shape[axis] for node in column)
            shape = tuple(total if a == axis else e for a, e in enumerate(column[0].output.shape))
            attributes = widened[0].attributes if widened else column[0].attributes
            node = MergedNode(column, inputs, attributes, axis, shape)
            self._check(node, merged, nests, dim, widened)
            merged.append(node)
            place.update(dict.fromkeys((n.output for n in column), number))
            axes.append(axis)
        return MergedOperators(tuple(merged))

    def _check(
        self,
        merged: MergedNode,
        earlier: Sequence[MergedNode],
        nests: Sequence[Nest],
        dim: str,
        widened: Sequence[Widened],
    ) -> None:
        """Require that siblings and the merged operator are the same nest but for the merge dim's extent."""
        if widened:
            wide = zip(merged.siblings, widened, strict=True)
            nests = [_nest(_free_sibling(node, window)) for node, window in wide]
        elif any(not _same_attributes(merged.siblings[0], node) for node in merged.siblings):
            raise _Refusal
        texts = {_text(nest, dim) for nest in (*nests, _nest(_free(merged, earlier)))}
        if len(texts) != 1:
            raise _Refusal


@dataclass(frozen=True, slots=True)
class _Form:
    """What one nest says of its operands."""

    nest: Nest

    def anchor_axis(self, node: Node) -> int:
        """The axis of a contraction's result along which only a constant factor moves."""
        form = contraction_of(self.nest)
        if form is None:
            raise _Refusal
        constant = [node.inputs[access.operand.position] for access in form.accesses]
        is_constant = [v is not None and v.is_constant for v in constant]
        if sum(is_constant) != 1:
            raise _Refusal
        dims = form.columns if is_constant[1] else form.rows
        moving = [d for d in dims if self.nest.extents[d] > 1] or list(dims)
        for dim in moving:
            for axis in range(len(self.nest.write.index)):
                if self._is_plain(self.nest.write, axis, dim):
                    return axis
        raise _Refusal

    def followed_axis(self, node: Node, place: Mapping[Value, int], axes: Sequence[int]) -> int:
        """The axis of the result that moves with the merged axis of what earlier nodes made."""
        dims: set[str] = set()
        for access in self.nest.reads:
            value = node.inputs[access.operand.position]
            if value is not None and value in place:
                dims.add(self.dim_of(access, axes[place[value]]))
        if len(dims) != 1 or self.nest.combine is not None:
            raise _Refusal
        (dim,) = dims
        for axis in range(len(self.nest.write.index)):
            if self._is_plain(self.nest.write, axis, dim):
                return axis
        raise _Refusal

    def dim_of(self, access: Access, axis: int) -> str:
        """The dim that alone walks along an axis of an access."""
        index = access.index[axis] if access.view is None else None
        if not isinstance(index, Affine) or len(index.terms) != 1:
            raise _Refusal
        dim = index.terms[0][0]
        if not self._is_plain(access, axis, dim):
            raise _Refusal
        return dim

    def constant_axis(self, position: int, dim: str) -> int | None:
        """The axis of an operand that moves with the dim; None if none does."""
        axes: set[int | None] = set()
        for access in self.nest.reads:
            if access.operand.kind != "input" or access.operand.position != position:
                continue
            if dim not in access_dims(self.nest, access):
                axes.add(None)
                continue
            plain = [a for a in range(len(access.index)) if self._is_plain(access, a, dim)]
            axes.add(plain[0] if plain and access.view is None else -1)
        if len(axes) > 1 or -1 in axes:
            raise _Refusal
        return axes.pop() if axes else None

    def _is_plain(self, access: Access, axis: int, dim: str) -> bool:
        """Whether the axis is walked by the dim alone, from end to end, and no other axis by it."""
        index = access.index[axis]
        others = [i for a, i in enumerate(access.index) if a != axis]
        return (
            index == Affine(((dim, 1),), 0)
            and access.shape[axis] == self.nest.extents[dim]
            and not any(isinstance(i, Affine) and dim in i.dims() for i in others)
        )


def _nest(node: Node) -> Nest:
    """The only nest of a node, in which no loop index is a value.

    Raises:
        _Refusal: it has none, or several, or uses a temporary or a table.
    """
    try:
        description = describe(node)
    except ModelRejected:
        raise _Refusal from None
    if not isinstance(description, tuple) or len(description) != 1:
        raise _Refusal
    (nest,) = description
    iterates = any(isinstance(part, Iter) for part in nest.parts())
    if iterates or any(a.operand.kind != "input" for a in nest.reads):
        raise _Refusal
    return nest


def _text(nest: Nest, dim: str) -> str:
    """All that a nest says but the extent of one dim."""
    dims = [(d.name, d.role, None if d.name == dim else d.extent) for d in nest.dims]
    shapes = [
        tuple(e for i, e in zip(a.index, a.shape, strict=True) if i != Affine(((dim, 1),), 0))
        for a in (*nest.reads, nest.write)
    ]
    types = [a.operand.dtype for a in (*nest.reads, nest.write)]
    accesses = [format_access(a) for a in (*nest.reads, nest.write)]
    return repr((dims, shapes, types, accesses, nest.body, nest.combine, nest.init, nest.finish))


def _same_attributes(first: Node, other: Node) -> bool:
    """Whether attributes are equal, arrays by their elements."""
    if first.attributes.keys() != other.attributes.keys():
        return False
    return all(_is_same(value, other.attributes[name]) for name, value in first.attributes.items())


def _is_same(first: Attribute | SubgraphAttribute, other: Attribute | SubgraphAttribute) -> bool:
    if isinstance(first, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(first, other)
    return not isinstance(first, np.ndarray) and not isinstance(other, np.ndarray) and first == other


def _source(
    operands: Sequence[Value | None],
    form: _Form,
    position: int,
    dim: str,
    place: Mapping[Value, int],
    axes: Sequence[int],
    widened: Sequence[Widened],
) -> Value | int | Concatenated | None:
    """Where an operand of the merged node comes from.

    Raises:
        _Refusal: the siblings' operands cannot be one.
    """
    values = [v for v in operands if v is not None]
    if not values:
        return None
    axis = form.constant_axis(position, dim)
    if len(values) == len(operands) and all(v in place for v in values):
        places = {place[v] for v in values}
        if len(places) != 1 or axis != axes[min(places)]:
            raise _Refusal
        return places.pop()
    if len(values) != len(operands) or any(v in place for v in values):
        raise _Refusal
    if axis is None:
        if all(v is values[0] for v in values) or _are_equal(values):
            return values[0]
        raise _Refusal
    if not all(v.is_constant for v in values):
        raise _Refusal
    is_kernel = bool(widened) and position == 1
    shapes = {tuple(e for a, e in enumerate(v.shape) if a != axis) for v in values}
    if len(shapes) != 1 and not is_kernel:
        raise _Refusal
    return Concatenated(tuple(values), axis, tuple(widened) if is_kernel else ())


def _are_equal(values: Sequence[Value]) -> bool:
    """Whether constants hold the same bits."""
    first, *others = [v.data for v in values]
    return first is not None and all(
        d is not None and d.shape == first.shape and d.dtype == first.dtype and d.tobytes() == first.tobytes()
        for d in others
    )


def _free_sibling(node: Node, widened: Widened) -> Node:
    """A sibling with its kernel in the common window, outside of any graph and without elements."""
    weight = node.require(1)
    wide = _placeholder(weight, (*weight.shape[:2], *widened.kernel))
    inputs = [node.inputs[0], wide, *node.inputs[2:]]
    return _like(node, inputs, node.output, widened.attributes)


def _free(merged: MergedNode, earlier: Sequence[MergedNode]) -> Node:
    """The merged operator outside of any graph, on operands without elements."""
    first = merged.siblings[0]

    def operand(source: Value | int | Concatenated | None, like: Value | None) -> Value | None:
        if like is None or source is None or isinstance(source, Value):
            return source if isinstance(source, Value) else None
        if isinstance(source, Concatenated):
            return _placeholder(like, source.shape)
        return Value(like.name, like.dtype, earlier[source].shape)

    inputs = [operand(s, v) for s, v in zip(merged.inputs, first.inputs, strict=True)]
    output = Value(first.output.name, first.output.dtype, merged.shape)
    return _like(first, inputs, output, merged.attributes)


def _like(node: Node, inputs: Sequence[Value | None], output: Value, attributes: Attributes) -> Node:
    return Node(
        node.op_type, inputs, [output], attributes, name=node.name, domain=node.domain, opset=node.opset
    )


def _placeholder(like: Value, shape: tuple[int, ...]) -> Value:
    """A constant of a shape whose elements take no memory."""
    return Value(like.name, like.dtype, shape, np.broadcast_to(np.zeros((), like.dtype.numpy), shape))
