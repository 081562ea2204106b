"""Facts about an operator that follow from its nests: work, bytes, class.

Nothing here knows an operator by name. Opaque operators have no work that could be counted: their
`macs` and `flops` are 0, their bytes are those of their whole tensors.
"""

from __future__ import annotations

from enum import Enum
from math import prod

from tilewright.ir.contraction import ContractionForm, contractions
from tilewright.ir.expr import FUNCTIONS, Call, Expr
from tilewright.ir.graph import Node
from tilewright.ir.nest import (
    Access,
    Affine,
    Indirect,
    Lookup,
    Nest,
    Nests,
    Opaque,
    Stepwise,
    access_dims,
)
from tilewright.ir.ops.registry import describe
from tilewright.ir.region import Region, full_region, hull, input_regions, volume


class OperatorClass(Enum):
    """PCGC's classes of operators (its text says five and lists six); see `operator_class`."""

    ALGEBRAIC = "algebraic"
    BROADCAST = "broadcast"
    REDUCTION = "reduction"
    COMPLEX = "complex"
    TWO_PHASE = "two-phase"
    INFUSIBLE = "infusible"


def nests_of(node: Node) -> Nests:
    """The node's nests, those of all steps where it works step by step; none for another opaque one."""
    description = describe(node)
    if isinstance(description, Stepwise):
        return description.nests
    return () if isinstance(description, Opaque) else description


# Work ------------------------------------------------------------------------------------------------


def macs(node: Node) -> int:
    """Multiply-accumulates: the iterations of the node's contractions, padding included."""
    return sum(form.nest.num_iterations for form in contractions(nests_of(node)))


def flops(node: Node) -> int:
    """Scalar operations, weighted with `cost_flop` of each function; padding included.

    A multiply-accumulate counts 2. Conversions and copies count nothing.
    """
    return sum(nest_flops(n) for n in nests_of(node))


def nest_flops(nest: Nest) -> int:
    """Scalar operations of one nest; see `flops`."""
    per_iteration = _cost_flop(nest.body) + (nest.combine is not None)
    per_element = 0 if nest.finish is None else _cost_flop(nest.finish)
    return per_iteration * nest.num_iterations + per_element * prod(d.extent for d in nest.parallel_dims)


def _cost_flop(expr: Expr) -> int:
    return sum(
        FUNCTIONS[e.function].cost_flop
        for e in expr.walk()
        if isinstance(e, Call) and FUNCTIONS[e.function].rule != "cast"
    )


# Bytes -----------------------------------------------------------------------------------------------


def input_bytes(node: Node) -> dict[int, int]:
    """Bytes of distinct elements read per input position, constants too: what a perfect cache would fetch.

    A value given twice counts once, at the position that reads most. An access whose index is data (an
    embedding) counts the elements it can reach at most: one per iteration.
    """
    nests = nests_of(node)
    regions: dict[int, list[Region]] = {}
    for output_index, output in enumerate(node.outputs):
        if output is not None:
            needed = input_regions(node, full_region(output.shape), output_index)
            for position, region in enumerate(needed):
                if region is not None:
                    regions.setdefault(position, []).append(region)
    elements: dict[int, int] = {}
    for position, parts in regions.items():
        # Several outputs may read disjoint parts or the same one.
        elements[position] = min(volume(hull(*parts)), sum(volume(p) for p in parts))
        if nests:
            elements[position] = min(elements[position], _most_elements(nests, position))
    largest: dict[object, int] = {}
    for position, count in elements.items():
        value = node.inputs[position]
        if value not in largest or count > elements[largest[value]]:
            largest[value] = position
    return {p: elements[p] * node.require(p).dtype.size_bytes for p in largest.values()}


def _most_elements(nests: Nests, position: int) -> int:
    """Upper bound of the distinct elements of an input that the nests' iterations can address."""
    total = 0
    for nest in nests:
        for access in nest.reads:
            if access.operand.key == ("input", position):
                extents = nest.extents
                total += prod(extents[d] for d in access_dims(nest, access))
    return total


# Classes ---------------------------------------------------------------------------------------------


def is_complex(node: Node) -> bool:
    """Whether the operator contains a contraction."""
    return bool(contractions(nests_of(node)))


def is_injective(node: Node) -> bool:
    """Whether every output element comes from at most one element of each read, without reduction."""
    nests = nests_of(node)
    return bool(nests) and all(n.combine is None and n.write.operand.kind == "output" for n in nests)


def is_pointwise(node: Node) -> bool:
    """Whether output element `[i, j, ...]` comes from elements at the same place, or broadcast ones."""
    return is_injective(node) and all(_nest_is_pointwise(n) for n in nests_of(node))


def _nest_is_pointwise(nest: Nest) -> bool:
    """Each axis of the write has its own dim, and each read uses some of them in the same order."""
    order = _plain_dims(nest.write)
    if order is None or len(nest.write.index) != len(nest.write.operand.shape):
        return False
    rank = {dim: i for i, dim in enumerate(order)}
    extents = nest.extents
    for access in nest.reads:
        dims = _plain_dims(access)
        if dims is None or any(d not in rank for d in dims):
            return False
        if [rank[d] for d in dims] != sorted({rank[d] for d in dims}):
            return False
    return prod(extents[d] for d in order) == nest.write.operand.num_elements


def _plain_dims(access: Access) -> tuple[str, ...] | None:
    """The dims of an access that uses one unscaled dim per axis, or 0 on an axis of extent 1."""
    if access.view is not None or access.fill is not None:
        return None
    dims: list[str] = []
    for index, extent in zip(access.index, access.shape, strict=True):
        match index:
            case Affine(((dim, 1),), 0):
                dims.append(dim)
            case Affine((), 0) if extent == 1:
                pass
            case _:
                return None
    return tuple(dims)


def has_window(nest: Nest) -> bool:
    """Whether some read slides: one of its axes moves with a parallel and a reduce dim, both looping."""
    extents = nest.extents
    reduced = {d.name for d in nest.reduce_dims}
    for access in nest.reads:
        for index in access.index:
            if isinstance(index, Affine):
                moving = {d for d in index.dims() if extents[d] > 1}
                if moving & reduced and moving - reduced:
                    return True
    return False


def operator_class(node: Node) -> OperatorClass:
    """PCGC's class of an operator (its section on static fusion rules), for the rule table there.

    Infusible: opaque operators, constants, and joins (several nests that fill one output: Concat in the
    paper's Example 3). Two-phase: sliding reductions (MaxPool) and 1x1 convolutions, which are
    contractions over an axis that is not the innermost of their data. Complex: all other contractions
    (convolutions with larger windows, fully connected layers). Reduction: any other nest that
    accumulates. Broadcast: some read is smaller than the iteration space; algebraic: none is.
    """
    nests = nests_of(node)
    if not any(a.operand.kind == "input" for n in nests for a in n.reads):
        return OperatorClass.INFUSIBLE
    written = [n.write.operand.key for n in nests if n.write.operand.kind == "output"]
    if len(set(written)) < len(written) and all(n.combine is None for n in nests):
        return OperatorClass.INFUSIBLE
    products = contractions(nests)
    if products:
        pointwise = len(products) == 1 and _is_pointwise_convolution(products[0])
        return OperatorClass.TWO_PHASE if pointwise else OperatorClass.COMPLEX
    accumulating = [n for n in nests if n.combine is not None]
    if any(has_window(n) for n in accumulating):
        return OperatorClass.TWO_PHASE
    if accumulating:
        return OperatorClass.REDUCTION
    smaller = any(
        prod(n.extents[d] for d in access_dims(n, a)) < n.num_iterations
        for n in nests
        for a in n.reads
        if not _is_index(n, a)
    )
    return OperatorClass.BROADCAST if smaller else OperatorClass.ALGEBRAIC


def _is_index(nest: Nest, access: Access) -> bool:
    used = {i.read for a in nest.reads for i in a.index if isinstance(i, Indirect)}
    return any(nest.reads[i] is access for i in used)


def _is_pointwise_convolution(form: ContractionForm) -> bool:
    """A contraction without window whose data has spatial axes inside the reduced one."""
    nest = form.nest
    if has_window(nest) or any(isinstance(i, Lookup) for a in nest.reads for i in a.index):
        return False
    summed = {name for name in form.summed if nest.extents[name] > 1}
    data, _ = form.accesses
    summed_axes = [
        axis for axis, i in enumerate(data.index) if isinstance(i, Affine) and summed & set(i.dims())
    ]
    return len(data.index) > 2 and summed_axes == [1] and len(nest.write.index) == len(data.index)
