"""The values of a plan: every step computes its pieces from nothing but the pieces that it reads.

Whatever a step would need and does not have is not a number, so that a wrong region shows in the result. This
is how a plan is shown to be right; it takes the interpreter's time, not the machine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.errors import InternalError, UsageError
from tilewright.ir.graph import Node, Value
from tilewright.ir.interpret import run_node
from tilewright.ir.nest import Opaque
from tilewright.ir.nest_interpreter import run_nests
from tilewright.ir.ops import describe
from tilewright.ir.region import Region, full_region
from tilewright.ir.restrict import Part, restrict
from tilewright.memory.scoped import ScopePlan, Step
from tilewright.partition.graphturbo.regions import value_regions
from tilewright.schedule.instances import Kind

Array = np.ndarray[Any, Any]
Held = dict[Value, tuple[Region, Array]]


def execute(plan: ScopePlan, feed: Mapping[str, Array]) -> dict[str, Array]:
    """The network's outputs by name, put together from the pieces of the plan.

    Raises:
        UsageError: an input is missing or has another shape.
        InternalError: a step reads what no piece holds.
    """
    graph = plan.graph.partition.graph
    inputs: dict[Value, Array] = {}
    for value in graph.inputs:
        if value.name not in feed or feed[value.name].shape != value.shape:
            raise UsageError(f"input {value.name!r}: expected an array of shape {list(value.shape)}.")
        inputs[value] = np.asarray(feed[value.name], value.dtype.numpy)
    pieces: dict[int, Array] = {}
    for number, step in enumerate(plan.steps):
        held: Held = {}
        for read in step.reads:
            if read.piece is None:
                held[read.value] = (read.region, inputs[read.value][_box(read.region)])
            elif not step.operators:
                continue
            else:
                source = plan.pieces[read.piece]
                part = _cropped(source.region, pieces[read.piece], read.region, read.value)
                held[read.value] = (read.region, part)
        if step.operators:
            _compute(plan, step, held, pieces)
        else:
            _collect(plan, step, pieces)
        for source_id in {r.piece for r in step.reads if r.piece is not None}:
            piece = plan.pieces[source_id]
            if piece.last_step <= number and piece.value not in plan.graph.results:
                pieces.pop(source_id, None)
    return {v.name: _result(plan, v, inputs, pieces) for v in graph.outputs}


def _collect(plan: ScopePlan, step: Step, pieces: dict[int, Array]) -> None:
    """A concatenation: parts of other pieces side by side."""
    for number in step.writes:
        target = plan.pieces[number]
        array = _nothing(target.value, target.region)
        for read in step.reads:
            if read.piece is None or read.value is not target.value:
                continue
            source = plan.pieces[read.piece]
            part = _cropped(source.region, pieces[read.piece], read.region, read.value)
            array[_box(read.region, target.region)] = part
        pieces[number] = array


def _compute(plan: ScopePlan, step: Step, held: Held, pieces: dict[int, Array]) -> None:
    """A layer's operators in order, each on its part of what is held."""
    made = {plan.pieces[i].value: plan.pieces[i].region for i in step.writes}
    wanted = value_regions(step.operators, made, plan.graph.maps)
    for node in step.operators:
        regions = {v: wanted[v] for v in node.results() if v in wanted}
        if regions:
            held.update(_run(node, regions, held))
    for number in step.writes:
        piece = plan.pieces[number]
        region, array = held[piece.value]
        pieces[number] = _cropped(region, array, piece.region, piece.value)


def _run(node: Node, regions: Mapping[Value, Region], held: Held) -> Held:
    nests = describe(node)
    part = None
    if not isinstance(nests, Opaque):
        places = {v: i for i, v in enumerate(node.outputs) if v is not None}
        part = restrict(nests, {("output", places[v]): r for v, r in regions.items()})
    return _run_whole(node, regions, held) if part is None else _run_part(node, part, held)


def _run_part(node: Node, part: Part, held: Held) -> Held:
    """The node's nests on windows of its operands."""
    inputs: list[Array | None] = []
    for position, operand in enumerate(node.inputs):
        window = part.windows.get(("input", position))
        if operand is None or window is None:
            inputs.append(None)
        elif operand.is_constant:
            assert operand.data is not None
            inputs.append(np.ascontiguousarray(operand.data[_box(window)]))
        else:
            if operand not in held:
                raise InternalError(f"{node.op_type} {node.name!r} reads {operand.name}, which is not there")
            inputs.append(_cropped(*held[operand], window, operand))
    specs: list[Any] = []
    for position, value in enumerate(node.outputs):
        window = part.windows.get(("output", position))
        specs.append(None if value is None or window is None else (value.dtype, _shape(window)))
    results = run_nests(part.nests, inputs, specs)
    return {
        value: (part.windows["output", position], array)
        for position, (value, array) in enumerate(zip(node.outputs, results, strict=True))
        if value is not None and array is not None
    }


def _run_whole(node: Node, regions: Mapping[Value, Region], held: Held) -> Held:
    """The whole node on operands that hold nothing but what is there."""
    arrays = [None if v is None else _spread(v, held) for v in node.inputs]
    results = run_node(node, arrays, captures=[_spread(v, held) for v in node.captures])
    found: Held = {}
    for value, array in zip(node.outputs, results, strict=True):
        if value in regions and value is not None and array is not None:
            found[value] = (regions[value], array[_box(regions[value])])
    return found


def _spread(value: Value, held: Held) -> Array:
    if value.data is not None:
        return value.data
    array = _nothing(value, full_region(value.shape))
    if value in held:
        region, part = held[value]
        array[_box(region)] = part
    return array


def _nothing(value: Value, region: Region) -> Array:
    """An array that shows where it was read without having been written."""
    dtype = value.dtype.numpy
    if np.issubdtype(dtype, np.floating):
        return np.full(_shape(region), np.nan, dtype)
    return np.zeros(_shape(region), dtype)


def _cropped(region: Region, array: Array, wanted: Region, value: Value) -> Array:
    for (start, stop), (low, high) in zip(region, wanted, strict=True):
        if low < start or high > stop:
            raise InternalError(f"{wanted} of {value.name} is read, there is {region}")
    return np.ascontiguousarray(array[_box(wanted, region)])


def _result(
    plan: ScopePlan, value: Value, inputs: Mapping[Value, Array], pieces: Mapping[int, Array]
) -> Array:
    if value in inputs:
        return inputs[value]
    if value.data is not None:
        return value.data
    array = _nothing(value, full_region(value.shape))
    for piece in plan.pieces:
        if piece.value is value and plan.graph.nodes[piece.node].kind is Kind.INSTANCE:
            array[_box(piece.region)] = pieces[piece.id]
    return array


def _box(region: Region, within: Region | None = None) -> tuple[slice, ...]:
    """A region as slices, counted from the start of another one."""
    starts = [0] * len(region) if within is None else [start for start, _ in within]
    return tuple(slice(low - start, high - start) for (low, high), start in zip(region, starts, strict=True))


def _shape(region: Region) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in region)
