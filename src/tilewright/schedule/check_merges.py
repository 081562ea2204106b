"""Independent check of stages that merge.

Shares no code with what merges: stages are checked by shapes, attributes and operands.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import numpy as np

from tilewright.errors import ModelRejected
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Affine, Nest
from tilewright.ir.ops import describe
from tilewright.ir.ops.convolution import conv_window
from tilewright.partition.base import Subgraph
from tilewright.planning import Violation
from tilewright.schedule.base import Schedule, ScheduleProblem, Stage

_RULE = "merge"


def check_merges(problem: ScheduleProblem, schedule: Schedule) -> Iterator[Violation]:
    """What is wrong with the stages of a schedule that merge.

    Checked: at least two groups of one whole instance each, of different subgraphs; these are equal sequences
    of operators of one result, which read the same values and differ in constants and along one axis of their
    results only; convolutions without groups have equal strides, dilations and extents, and windows that fit
    a common one.
    """
    for number, stage in enumerate(schedule.stages):
        if stage.strategy == "merge":
            for text in _faults(problem, schedule, stage):
                yield Violation(_RULE, f"stage {number}: {text}")


def _faults(problem: ScheduleProblem, schedule: Schedule, stage: Stage) -> Iterator[str]:
    instances = list(stage.instances())
    if len(instances) < 2 or any(len(group.instances) != 1 for group in stage.groups):
        yield "merges other than two groups or more of one instance each"
        return
    if any(not schedule.splits[i.subgraph_id].is_whole for i in instances):
        yield "merges slices"
        return
    first, *others = [schedule.partition.subgraphs[i.subgraph_id] for i in instances]
    given = {id(value) for value in schedule.partition.graph.inputs}
    for subgraph in (first, *others):
        if any(id(value) in given for value in subgraph.constants):
            yield f"subgraph {subgraph.id} reads a constant for which a caller may give other data"
            return
    for other in others:
        fault = _difference(first, other, pads_kernels=problem.pads_kernels)
        if fault is not None:
            yield f"subgraphs {first.id} and {other.id} {fault}"
            return


def _difference(first: Subgraph, other: Subgraph, *, pads_kernels: bool) -> str | None:
    """Why two subgraphs do not merge."""
    if [(n.op_type, n.domain, n.opset) for n in first.nodes] != [
        (n.op_type, n.domain, n.opset) for n in other.nodes
    ]:
        return "have other operators"
    if any([id(v) for v in s.outputs] != [id(s.nodes[-1].output)] for s in (first, other)):
        return "have other results than that of their last operator"
    twin = {id(v): v for v in first.inputs}
    # By value of the first, along which axis results lie side by side.
    axes: dict[int, int] = {}
    for node, match in zip(first.nodes, other.nodes, strict=True):
        is_anchor = node is first.nodes[0]
        if node.op_type == "Conv":
            fault = _windows_differ(node, match, pads_kernels=pads_kernels)
        else:
            fault = None if _attributes(node) == _attributes(match) else "have other attributes"
        fault = fault or _operands_differ(node, match, twin)
        if fault is not None:
            return f"{fault}: {node.name!r} and {match.name!r}"
        nest, *more = _nests(node) or (None,)
        if nest is None or more or (nest.reduce_dims and not is_anchor):
            return f"sum in {node.name!r} and {match.name!r}, or compute in several passes"
        axis = _axis_of_constants(node, nest) if is_anchor else _axis_behind(node, nest, axes)
        if axis is None or not _lie_side_by_side(node, match, nest, axis, axes):
            return f"make results that do not lie side by side: {node.name!r} and {match.name!r}"
        axes[id(node.output)] = axis
        twin[id(match.output)] = node.output
    return None


def _operands_differ(node: Node, match: Node, twin: dict[int, Value]) -> str | None:
    kinds = [[v and (v.dtype, v.is_constant) for v in n.inputs] for n in (node, match)]
    if kinds[0] != kinds[1]:
        return "have operands of other kinds"
    shared = zip(node.operands(), match.operands(), strict=True)
    if any(not mine.is_constant and twin.get(id(its)) is not mine for mine, its in shared):
        return "read other values"
    return None


def _axis_of_constants(node: Node, nest: Nest) -> int | None:
    """The axis of a sum's result along which constants alone differ."""
    if not nest.reduce_dims:
        return None
    constants = {place for place, v in enumerate(node.inputs) if v is not None and v.is_constant}
    for axis, index in enumerate(nest.write.index):
        dims = set(index.dims()) if isinstance(index, Affine) else set()
        movers = {a.operand.position for a in nest.reads if dims & set(a.dims())}
        if node.output.shape[axis] > 1 and movers <= constants:
            return axis
    return None


def _axis_behind(node: Node, nest: Nest, axes: dict[int, int]) -> int | None:
    """The axis of a result that moves with that of the operands made before."""
    moving: set[int] = set()
    for access in nest.reads:
        axis = axes.get(id(node.inputs[access.operand.position]))
        if axis is not None:
            moving.update(i for i, index in enumerate(nest.write.index) if index == access.index[axis])
    return min(moving, default=None)


def _lie_side_by_side(node: Node, match: Node, nest: Nest, axis: int, made: Container[int]) -> bool:
    """Whether results have two elements or more along an axis, and the operator makes both of them together
    of what moves along it: of constants of as many elements, equal in the rest of their shapes, and of what
    was `made` before. Constants that do not move are equal.
    """
    one, two = node.output, match.output
    if one.dtype is not two.dtype or two.shape[axis] < 2:
        return False
    total = one.shape[axis] + two.shape[axis]
    together: dict[Value, Value] = {}
    for mine, its in zip(node.operands(), match.operands(), strict=True):
        accesses = (a.index for a in nest.reads if node.inputs[a.operand.position] is mine)
        index = nest.write.index[axis]
        places = {place for terms in accesses for place, term in enumerate(terms) if term == index}
        if not places:
            fits = _elements(mine) == _elements(its)
        elif mine.is_constant:
            fits = node.op_type == "Conv" or its.shape == _resized(mine.shape, places, two.shape[axis])
        else:
            fits = id(mine) in made
        if not fits:
            return False
        together[mine] = Value(mine.name, mine.dtype, _resized(mine.shape, places, total), mine.data)
    inputs = [v and together[v] for v in node.inputs]
    output = Value(one.name, one.dtype, _resized(one.shape, {axis}, total))
    try:
        describe(Node(node.op_type, inputs, [output], node.attributes, domain=node.domain, opset=node.opset))
    except ModelRejected:
        return False
    return True


def _resized(shape: Sequence[int], places: Container[int], extent: int) -> tuple[int, ...]:
    """A shape of another extent along some axes."""
    return tuple(extent if place in places else its for place, its in enumerate(shape))


def _elements(value: Value) -> tuple[tuple[int, ...], bytes] | None:
    """Shape and bits of a constant."""
    return None if value.data is None else (value.shape, value.data.tobytes())


def _windows_differ(node: Node, match: Node, *, pads_kernels: bool) -> str | None:
    one, two = conv_window(node), conv_window(match)
    if node.int_attr("group", 1) != 1 or match.int_attr("group", 1) != 1:
        return "are convolutions in groups"
    if (one.strides, one.dilations, one.outputs) != (two.strides, two.dilations, two.outputs):
        return "slide their windows in other ways"
    shifts = [a - b for a, b in zip(one.begin, two.begin, strict=True)]
    if any(shift % dilation for shift, dilation in zip(shifts, one.dilations, strict=True)):
        return "have windows whose taps lie between each other's"
    if not pads_kernels and (any(shifts) or one.kernel != two.kernel):
        return "have kernels of several extents, which may not be padded here"
    return None


def _attributes(node: Node) -> dict[str, str]:
    return {
        name: repr((value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value)
        for name, value in node.attributes.items()
    }


def _nests(node: Node) -> Sequence[Nest]:
    description = describe(node)
    return description if isinstance(description, tuple) else ()
