"""Independent check of stages that merge.

Shares no code with what merges: stages are checked by shapes, attributes and operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Nest
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
    if len({i.subgraph_id for i in instances}) != len(instances):
        yield "merges a subgraph with itself"
        return
    if any(schedule.splits[i.subgraph_id].num_instances != 1 for i in instances):
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
    if [n.op_type for n in first.nodes] != [n.op_type for n in other.nodes]:
        return "have other operators"
    if {id(v) for v in first.inputs} != {id(v) for v in other.inputs}:
        return "read other values"
    ends = [s.nodes[-1].outputs for s in (first, other)]
    if len(first.outputs) != 1 or [len(s.outputs) for s in (first, other)] != [len(e) for e in ends]:
        return "have other results than that of their last operator"
    twin = {id(v): v for v in first.inputs}
    for node, match in zip(first.nodes, other.nodes, strict=True):
        is_anchor = node is first.nodes[0]
        if not _shapes_match(node.output, match.output):
            return f"make results of which more than one axis differs: {node.name!r} and {match.name!r}"
        for position, (mine, its) in enumerate(zip(node.inputs, match.inputs, strict=True)):
            if (mine is None) != (its is None):
                return f"differ in operand {position} of {node.name!r}"
            if mine is None or its is None:
                continue
            if mine.is_constant != its.is_constant or mine.dtype is not its.dtype:
                return f"differ in operand {position} of {node.name!r}"
            if not mine.is_constant and twin.get(id(its)) is not mine:
                return f"differ in operand {position} of {node.name!r}"
        twin[id(match.output)] = node.output
        if is_anchor and node.op_type == "Conv":
            fault = _windows_differ(node, match, pads_kernels=pads_kernels)
            if fault is not None:
                return fault
        elif _attributes(node) != _attributes(match):
            return f"have other attributes: {node.name!r} and {match.name!r}"
        if not is_anchor and any(nest.reduce_dims for nest in _nests(node)):
            return f"sum in {node.name!r}, which is not the first operator"
    return None


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


def _shapes_match(one: Value, two: Value) -> bool:
    if one.dtype is not two.dtype or len(one.shape) != len(two.shape):
        return False
    return sum(a != b for a, b in zip(one.shape, two.shape, strict=True)) <= 1


def _attributes(node: Node) -> dict[str, str]:
    return {name: repr(value) for name, value in node.attributes.items()}


def _nests(node: Node) -> Sequence[Nest]:
    description = describe(node)
    return description if isinstance(description, tuple) else ()
