"""The values of a plan: every step computes its buffers from nothing but the buffers that it reads.

Whatever a step would need and does not have is an error, of any type of element, so that a wrong region never
passes for a right one. This is how a plan is shown to be right; it takes the interpreter's time, not the
machine's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from tilewright.errors import InternalError, UsageError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.graph_regions import value_regions
from tilewright.ir.interpret import run_checks, run_node
from tilewright.ir.nest import Opaque
from tilewright.ir.nest_interpreter import run_nests
from tilewright.ir.ops import describe
from tilewright.ir.region import Region, full_region, hull, volume
from tilewright.ir.restrict import RestrictedNests, restrict
from tilewright.mapping.chains.chain import chain_of
from tilewright.memory.instances import InstanceStep, Read
from tilewright.memory.scopes import ScopePlan
from tilewright.schedule.instances import Kind
from tilewright.targets.npu.execute_tiles import TiledLayer

Array = np.ndarray[Any, Any]
Held = dict[Value, tuple[Region, Array]]


def execute(plan: ScopePlan, feed: Mapping[str, Array]) -> dict[str, Array]:
    """The network's outputs by name, put together from the buffers of the plan.

    Raises:
        UsageError: an input is missing, has another shape, or holds what the graph was not made for.
        InternalError: a step reads what no buffer holds, or nothing makes a part of a result.
    """
    graph = plan.graph.partition.graph
    inputs: dict[Value, Array] = {}
    for value in graph.inputs:
        if value.name not in feed or feed[value.name].shape != value.shape:
            raise UsageError(f"input {value.name!r}: expected an array of shape {list(value.shape)}.")
        inputs[value] = np.asarray(feed[value.name], value.dtype.numpy)
    run_checks(graph, feed)
    arrays: dict[int, Array] = {}
    for number, step in enumerate(plan.steps):
        if step.operators:
            _compute(plan, step, _held(plan, step, inputs, arrays), arrays)
        else:
            _collect(plan, step, arrays)
        for source_id in {r.buffer for r in step.reads if r.buffer is not None}:
            buffer = plan.buffers[source_id]
            if buffer.last_step <= number and buffer.value not in plan.graph.results:
                arrays.pop(source_id, None)
    return {v.name: _result(plan, v, inputs, arrays) for v in graph.outputs}


def _held(
    plan: ScopePlan, step: InstanceStep, inputs: Mapping[Value, Array], arrays: Mapping[int, Array]
) -> Held:
    """What a step reads; of what lies in several buffers, the parts put together."""
    parts: dict[Value, list[tuple[Region, Array]]] = {}
    for read in step.reads:
        if read.buffer is None:
            part = _given(read, inputs)
        else:
            source = plan.buffers[read.buffer]
            part = _cropped(source.region, arrays[read.buffer], read.region, read.value)
        parts.setdefault(read.value, []).append((read.region, part))
    held: Held = {}
    for value, found in parts.items():
        if len(found) == 1:
            held[value] = found[0]
        else:
            region = hull(*(region for region, _ in found))
            held[value] = (region, _joined(value, region, found))
    return held


def _given(read: Read, inputs: Mapping[Value, Array]) -> Array:
    """What is read of an input of the network; of another value, none of whose elements are read, nothing."""
    if read.value in inputs:
        return inputs[read.value][_box(read.region)]
    if volume(read.region):
        raise InternalError(f"{read.region} of {read.value.name} is read, no buffer holds it")
    return np.empty(_shape(read.region), read.value.dtype.numpy)


def _collect(plan: ScopePlan, step: InstanceStep, arrays: dict[int, Array]) -> None:
    """A concatenation: parts of other buffers beside each other."""
    for number in step.writes:
        target = plan.buffers[number]
        parts = []
        for read in step.reads:
            if read.buffer is not None and read.value is target.value:
                source = plan.buffers[read.buffer]
                part = _cropped(source.region, arrays[read.buffer], read.region, read.value)
                parts.append((read.region, part))
        arrays[number] = _joined(target.value, target.region, parts)


def _joined(value: Value, region: Region, parts: Sequence[tuple[Region, Array]]) -> Array:
    """A region of a value, put together from parts of it."""
    array = np.empty(_shape(region), value.dtype.numpy)
    is_there = np.zeros(_shape(region), bool)
    for own, part in parts:
        array[_box(own, region)] = part
        is_there[_box(own, region)] = True
    if not is_there.all():
        missing = int(np.count_nonzero(~is_there))
        raise InternalError(f"{missing} elements of {region} of {value.name} are made by nothing")
    return array


def _compute(plan: ScopePlan, step: InstanceStep, held: Held, arrays: dict[int, Array]) -> None:
    """A layer's operators in order, each on its part of what is held; or tile by tile together."""
    tiling = plan.graph.splits[plan.graph.nodes[step.node].subgraph_id].tiling_of(step.layer)
    if tiling is not None:
        (number,) = step.writes
        chain = chain_of(step.operators, frozenset({plan.buffers[number].value}))
        arrays[number] = TiledLayer(chain, tiling, held, _run).values()[1]
        return
    made = {plan.buffers[i].value: plan.buffers[i].region for i in step.writes}
    wanted = value_regions(step.operators, made, plan.graph.maps)
    for node in step.operators:
        regions = {v: wanted[v] for v in node.results() if v in wanted}
        if regions:
            held.update(_run(node, regions, held))
    for number in step.writes:
        buffer = plan.buffers[number]
        region, array = held[buffer.value]
        arrays[number] = _cropped(region, array, buffer.region, buffer.value)


def _run(node: Node, regions: Mapping[Value, Region], held: Held) -> Held:
    nests = describe(node)
    part = None
    if not isinstance(nests, Opaque):
        places = {v: i for i, v in enumerate(node.outputs) if v is not None}
        part = restrict(nests, {("output", places[v]): r for v, r in regions.items()})
    return _run_whole(node, regions, held) if part is None else _run_part(node, part, held)


def _run_part(node: Node, part: RestrictedNests, held: Held) -> Held:
    """The node's nests on windows of its operands."""
    inputs: list[Array | None] = []
    for position, operand in enumerate(node.inputs):
        window = part.windows.get(("input", position))
        if operand is None or window is None:
            inputs.append(None)
        elif operand.is_constant:
            assert operand.data is not None
            inputs.append(np.asarray(operand.data[_box(window)], order="C"))
        else:
            if operand not in held:
                raise InternalError(f"{node.op_type} {node.name!r} reads {operand.name}, which is not there")
            inputs.append(_cropped(*held[operand], window, operand))
    specs: list[Any] = []
    for position, value in enumerate(node.outputs):
        window = part.windows.get(("output", position))
        specs.append(None if value is None or window is None else (value.dtype, _shape(window)))
    results = run_nests(part.nests, inputs, specs, name=f"{node.op_type} {node.name!r}")
    return {
        value: (part.windows["output", position], array)
        for position, (value, array) in enumerate(zip(node.outputs, results, strict=True))
        if value is not None and array is not None
    }


def _run_whole(node: Node, regions: Mapping[Value, Region], held: Held) -> Held:
    """The whole node, of whose operands only parts may be there, for regions of its results.

    It runs once with each filling of the rest: what then differs was computed from what is not there.
    """
    operands = [v for v in dict.fromkeys(node.operands()) if not v.is_constant]
    is_partial = any(v not in held or held[v][0] != full_region(v.shape) for v in operands)
    if is_partial and isinstance(describe(node), Opaque):
        raise InternalError(f"{node.op_type} {node.name!r} needs all of its operands, parts are there")
    found: Held = {}
    for filling in range(_NUM_FILLINGS if is_partial else 1):
        arrays = [None if v is None else _spread(v, held, filling) for v in node.inputs]
        results = run_node(node, arrays, captures=[_spread(v, held, filling) for v in node.captures])
        for value, array in zip(node.outputs, results, strict=True):
            if value is None or array is None or value not in regions:
                continue
            part = array[_box(regions[value])]
            known = found.setdefault(value, (regions[value], part))[1]
            if not np.array_equal(known, part, equal_nan=value.dtype.is_float):
                raise InternalError(
                    f"{node.op_type} {node.name!r}: {regions[value]} of {value.name} needs more than is there"
                )
    return found


_NUM_FILLINGS = 3


def _spread(value: Value, held: Held, filling: int) -> Array:
    """A whole operand of which a part may be there."""
    if value.data is not None:
        return value.data
    if value not in held:
        return np.full(value.shape, _filling(value, None, filling), value.dtype.numpy)
    region, part = held[value]
    array = np.full(value.shape, _filling(value, part, filling), value.dtype.numpy)
    array[_box(region)] = part
    return array


def _filling(value: Value, part: Array | None, filling: int) -> Any:
    """What stands where nothing is.

    Not a number and two large ones, since comparing with the first is always false. Integers may be indices:
    of these the least and the largest that are there, or else 0 and the last, which every table has.
    """
    if value.dtype.is_float:
        return (np.nan, 1e4, -1e4)[filling]
    if value.dtype is DType.BOOL:
        return bool(filling % 2)
    if not value.dtype.is_integer:
        return value.dtype.numpy.type()
    least, most = (0, 0) if part is None or not part.size else (part.min(), part.max())
    if least == most:
        least, most = 0, most or (-1 if value.dtype.numpy.kind == "i" else 1)
    return (least, most)[filling % 2]


def _cropped(region: Region, array: Array, wanted: Region, value: Value) -> Array:
    for (start, stop), (low, high) in zip(region, wanted, strict=True):
        if low < start or high > stop:
            raise InternalError(f"{wanted} of {value.name} is read, there is {region}")
    return np.asarray(array[_box(wanted, region)], order="C")


def _result(
    plan: ScopePlan, value: Value, inputs: Mapping[Value, Array], arrays: Mapping[int, Array]
) -> Array:
    if value in inputs:
        return inputs[value]
    if value.data is not None:
        return value.data
    nodes = plan.graph.nodes
    made = (p for p in plan.buffers if p.value is value and nodes[p.node].kind is Kind.INSTANCE)
    return _joined(value, full_region(value.shape), [(p.region, arrays[p.id]) for p in made])


def _box(region: Region, within: Region | None = None) -> tuple[slice | EllipsisType, ...]:
    """A region as an index, counted from the start of another one; of one element it gives an array, too."""
    starts = [0] * len(region) if within is None else [start for start, _ in within]
    spans = zip(region, starts, strict=True)
    return (*(slice(low - start, high - start) for (low, high), start in spans), ...)


def _shape(region: Region) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in region)
