"""Whole networks: what of a graph can be mapped onto an accelerator, and what the rest costs at least.

Every sum of products in the nests of a graph's nodes (convolution, product, each half of attention) becomes a
`Problem`. What is left (activations, pooling, norms, additions) is counted as if its operands streamed once
past the outermost level; changes of shape and layout alone cost nothing. Operators that are tiled
together are in `chains/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from tilewright.cost.bound import num_mac_units, transfer_cycles
from tilewright.errors import UsageError
from tilewright.hardware.machine import Machine, TensorKind
from tilewright.ir.contraction import contraction_of
from tilewright.ir.derive import nest_flops, nests_of
from tilewright.ir.graph import Graph, Node
from tilewright.ir.nest import Access, Affine, Lookup, Nest
from tilewright.loops.problem import Operand, Problem

# Names of a convolution's loops in `ir/` and in mapping.
_LETTERS = {"n": "N", "g": "G", "m": "K", "oh": "P", "ow": "Q", "c": "C", "kh": "R", "kw": "S"}


@dataclass(frozen=True, slots=True)
class Layer:
    """A nest of a node: something to map, or a stream."""

    node: str
    op_type: str
    nest: Nest
    problem: Problem | None


@dataclass(frozen=True, slots=True)
class Stream:
    """What a nest that is not mapped costs at least: every element passes the outermost level once."""

    cycles: int
    energy_pj: float
    moved_words: int


def layers_of(graph: Graph, node: str | None = None) -> list[Layer]:
    """Every nest that does arithmetic, in the graph's order; with `node` those of the node of that name.

    Raises:
        UsageError: there is no such node, or nothing in it can be mapped.
    """
    listed = list(layers_in(graph.nodes))
    if node is None:
        return listed
    matching = [layer for layer in listed if layer.node == node and layer.problem is not None]
    if not matching:
        known = [layer.node for layer in listed if layer.problem is not None]
        raise UsageError(f"node {node!r}: nothing to map; nodes with products are {_listed(known)}.")
    return matching


def _listed(names: Sequence[str]) -> str:
    few = 8
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:few]) + (f" and {len(unique) - few} more" if len(unique) > few else "")


def layers_in(nodes: Sequence[Node]) -> Iterator[Layer]:
    """Every nest of some nodes that does arithmetic; phases that read the same inputs are one."""
    for node in nodes:
        alike: dict[tuple[object, ...], list[tuple[Nest, Products]]] = {}
        for nest in nests_of(node):
            products = products_of(node, nest)
            if products is not None:
                alike.setdefault(_phase(products), []).append((nest, products))
            elif nest_flops(nest) > 0:
                yield Layer(node.name, node.op_type, nest, None)
        for phases in alike.values():
            yield from _together(node, phases)


def _phase(products: Products) -> tuple[object, ...]:
    """What phases of an operator have in common that read the same inputs.

    A transposed convolution computes every residue of its stride apart; where its window is as large as the
    stride, all of them read the same.
    """
    inputs, problem = products.accesses["Inputs"], products.problem
    return problem.dims, problem.operands, inputs.operand.key, inputs.index, inputs.view


def _together(node: Node, phases: Sequence[tuple[Nest, Products]]) -> Iterator[Layer]:
    """Phases with weights and outputs of their own as one problem, with a dim that leaves inputs be."""
    problem = with_dense_outputs(phases[0][1].problem)
    places = [
        {(access.operand.key, access.index, access.view) for access in (p.accesses[name] for _, p in phases)}
        for name in ("Weights", "Outputs")
    ]
    if len(phases) == 1 or any(len(different) < len(phases) for different in places):
        for nest, _ in phases:
            yield Layer(node.name, node.op_type, nest, problem)
        return
    operands = tuple(
        operand if operand.name == "Inputs" else replace(operand, axes=(*operand.axes, (("phase", 1),)))
        for operand in problem.operands
    )
    dims = (*problem.dims, ("phase", len(phases)))
    yield Layer(node.name, node.op_type, phases[0][0], Problem(problem.name, dims, operands))


def with_dense_outputs(problem: Problem) -> Problem:
    """Without steps along outputs: what a phase steps over is written by others, and in none of its tiles."""
    operands = tuple(
        replace(o, axes=tuple(((axis[0][0], 1),) if len(axis) == 1 else axis for axis in o.axes))
        if o.kind is TensorKind.OUTPUT
        else o
        for o in problem.operands
    )
    return replace(problem, operands=operands)


@dataclass(frozen=True, slots=True)
class Products:
    """A contraction as a mapper sees it, and what its operands, by name, access."""

    problem: Problem
    accesses: Mapping[str, Access]


def problem_of(node: Node, nest: Nest) -> Problem | None:
    """A contraction as a mapper sees it; None for other nests, and where data decide what is read."""
    products = products_of(node, nest)
    return None if products is None else products.problem


def products_of(node: Node, nest: Nest) -> Products | None:
    """The same with what operands access.

    The weights are the operand that is a constant of the model, of two activations the right one. Loops of a
    convolution get the letters that the field uses; what an operand is padded with is not left out.
    """
    form = contraction_of(nest)
    if form is None:
        return None
    reduced, batch = set(form.summed), frozenset(form.batch)
    names = _names(nest, batch)
    weights, inputs = reversed(form.accesses)
    if _is_constant(node, inputs) and not _is_constant(node, weights):
        weights, inputs = inputs, weights
    accesses = {"Weights": weights, "Inputs": inputs, "Outputs": nest.write}
    operands = []
    for (name, access), kind in zip(accesses.items(), TensorKind, strict=True):
        axes = _axes(access, nest.extents, reduced, batch)
        if axes is None:
            return None
        named = tuple(tuple((names[dim], step) for dim, step in axis) for axis in axes)
        operands.append(Operand(name, kind, named))
    dims = tuple((names[dim.name], dim.extent) for dim in nest.dims)
    return Products(Problem(node.name, dims, tuple(operands)), accesses)


def _names(nest: Nest, batch: frozenset[str]) -> dict[str, str]:
    names_of_dims = [dim.name for dim in nest.dims]
    if "m" not in names_of_dims or not ("oh" in names_of_dims or "ow" in names_of_dims):
        return {name: name for name in names_of_dims}
    # A depthwise layer's channels are its groups.
    letters = {**_LETTERS, "m": "G"} if "m" in batch else _LETTERS
    return {name: letters.get(name, name) for name in names_of_dims}


def _axes(
    access: Access, extents: dict[str, int], reduced: set[str], batch: frozenset[str]
) -> tuple[tuple[tuple[str, int], ...], ...] | None:
    """Axes as sums of dims with positive steps; None if an index is data.

    Dims that count through an axis digit by digit, as group and channel do, are axes of their own. Windows
    are not, even if they happen to be next to each other: Timeloop counts what lies between their positions.
    """
    digits: list[tuple[tuple[str, int], ...]] = []
    for index in access.index:
        match index:
            case Affine(terms):
                steps = [(name, abs(step)) for name, step in terms]
                steps.sort(key=lambda term: (-term[1], term[0] in reduced))
                digits.extend(_digits(steps, extents, reduced, batch))
            case Lookup(_, dim):
                digits.append(((dim, 1),))
            case _:
                return None
    return tuple(axis for axis in digits if axis)


def _digits(
    terms: list[tuple[str, int]], extents: dict[str, int], reduced: set[str], batch: frozenset[str]
) -> Iterator[tuple[tuple[str, int], ...]]:
    rest = list(terms)
    while len(rest) > 1:
        (high, high_step), (low, low_step) = rest[:2]
        is_window = (high in reduced) != (low in reduced) and high not in batch
        if is_window or high_step != low_step * extents[low]:
            break
        yield ((high, 1),)
        del rest[0]
    yield ((rest[0][0], 1),) if len(rest) == 1 < len(terms) else tuple(rest)


def _is_constant(node: Node, access: Access) -> bool:
    operand = access.operand
    if operand.kind == "table":
        return True
    if operand.kind != "input":
        return False
    value = node.inputs[operand.position]
    return value is not None and value.is_constant


def stream(nest: Nest, machine: Machine) -> Stream:
    """The least that a nest costs which is not mapped. Its arithmetic runs on the units for products."""
    outermost = machine.outermost
    read = sum(_num_elements(access, nest) for access in nest.reads)
    written = _num_elements(nest.write, nest)
    cycles = max(
        ceil(nest.num_iterations / num_mac_units(machine)),
        transfer_cycles(machine, outermost, read, written),
    )
    energy_pj = read * outermost.read_access_pj + written * outermost.write_access_pj
    return Stream(cycles, energy_pj / outermost.words_per_access, read + written)


def _num_elements(access: Access, nest: Nest) -> int:
    touched = prod(nest.extents[dim] for dim in access.dims())
    return min(touched, access.operand.num_elements)
