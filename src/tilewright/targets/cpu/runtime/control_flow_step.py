"""Operators that run on the host as steps of a main; bodies of control flow on memory where it lies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilewright import families
from tilewright.errors import InputError, ModelRejected, UnsupportedOp
from tilewright.ir.control_flow import CONTROL_FLOW
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.interpret import require_shape
from tilewright.targets.cpu.runtime.control_flow import (
    FOR_EVER,
    IfCode,
    LoopCode,
    Places,
    control_flow_code,
    row,
)
from tilewright.targets.cpu.runtime.executable import TensorSpec
from tilewright.targets.cpu.runtime.host_operators import run_on_host

if TYPE_CHECKING:
    from tilewright.options import Options
    from tilewright.targets.cpu.runtime.executable import HostStep
    from tilewright.targets.cpu.runtime.executor import HostCallback
    from tilewright.targets.cpu.runtime.main_code import ArgRef

_EMPTY = np.empty(1, np.int64)
"""Where operands lie that have no elements, or no place in memory."""


def host_callback(step: HostStep, options: Options | None) -> HostCallback:
    """The function that the executor calls with the base addresses of a run; `options` are for bodies."""
    if step.node.op_type in CONTROL_FLOW and options is not None:
        return control_flow_callback(step, options)
    return step.callback_of(run_on_host)


def control_flow_callback(step: HostStep, options: Options) -> HostCallback:
    """The function that the executor calls with the base addresses of a run.

    Bodies with shapes that data decide run on arrays instead, by what runs open models.
    """
    node, bodies = step.node, families.BODIES.get("compiled")
    on_arrays = step.callback_of(bodies.runner(options))
    if any(value is None or ref is None for value, ref in _operands(step) if value is not None):
        return on_arrays
    if any(value is None for value in node.outputs) or any(ref is None for ref in step.outputs):
        return on_arrays
    if not _are_controls(node):
        return on_arrays
    shapes = [None if value is None else value.shape for value in node.inputs]
    captures = [value.shape for value in node.captures]
    try:
        code = control_flow_code(node, shapes, captures, partial(bodies.compile_body, options=options))
    except UnsupportedOp:
        return on_arrays
    if isinstance(code, IfCode):
        return _if_callback(step, code, on_arrays)
    if code is None or not _fits(node, code):
        return on_arrays
    if node.op_type == "Loop":
        return _loop_callback(step, code)
    return _scan_callback(step, code) if _has_leading_axes(node) else on_arrays


def _are_controls(node: Node) -> bool:
    """Whether conditions and counts have the types under which they are read."""
    kinds = {"If": (DType.BOOL,), "Loop": (DType.INT64, DType.BOOL), "Scan": ()}[node.op_type]
    return all(
        value is None or (value.dtype is kind and value.num_elements == 1)
        for value, kind in zip(node.inputs, kinds, strict=False)
    )


def _operands(step: HostStep) -> list[tuple[Value | None, ArgRef | None]]:
    return list(zip((*step.node.inputs, *step.node.captures), step.inputs, strict=True))


def _fits(node: Node, code: LoopCode) -> bool:
    """Whether results have the types that the graph says; how many steps there are is seen in a run."""
    states, stacks = node.outputs[: code.num_states], node.outputs[code.num_states :]
    return (
        len(node.outputs) == code.num_states + len(code.stacks)
        and all(_is(value, spec, spec.shape) for value, spec in zip(states, code.states, strict=True))
        and all(
            value is not None and _is(value, spec, (*value.shape[:1], *spec.shape))
            for value, spec in zip(stacks, code.stacks, strict=True)
        )
    )


def _is(value: Value | None, spec: TensorSpec, shape: Sequence[int]) -> bool:
    return value is not None and value.dtype is spec.dtype and value.shape == tuple(shape)


def _addresses_of(refs: Sequence[ArgRef | None]) -> Callable[[Sequence[int]], list[int]]:
    """Where operands or results lie, given the bases of a run."""
    if None in refs:
        nowhere = _EMPTY.ctypes.data
        return lambda bases: [nowhere if r is None else bases[r.base_index] + r.byte_offset for r in refs]
    pairs = [(ref.base_index, ref.byte_offset) for ref in refs if ref is not None]
    return lambda bases: [bases[base] + offset for base, offset in pairs]


def _if_callback(step: HostStep, code: IfCode, on_arrays: HostCallback) -> HostCallback:
    node = step.node
    condition_at = _addresses_of(step.inputs[:1])
    captures_at, places_at = _addresses_of(step.inputs[len(node.inputs) :]), _addresses_of(step.outputs)
    fitting: dict[str, bool] = {}

    def run(bases: Sequence[int]) -> None:
        taken = ctypes.c_uint8.from_address(condition_at(bases)[0]).value
        name = "then_branch" if taken else "else_branch"
        try:
            branch = code.branch(name)
        except UnsupportedOp:
            branch = None
        if branch is None:
            on_arrays(bases)
            return
        if name not in fitting:
            for value, spec in zip(node.outputs, branch.code.results, strict=True):
                if value is not None:
                    if value.dtype is not spec.dtype:
                        raise ModelRejected(f"{node!r}: its branch gives {spec.dtype}, expected {value!r}.")
                    require_shape(node, value, np.broadcast_to(np.empty((), spec.dtype.numpy), spec.shape))
            fitting[name] = True
        branch.run(captures_at(bases), places_at(bases))

    return run


def _loop_callback(step: HostStep, code: LoopCode) -> HostCallback:
    node = step.node
    given_at = _addresses_of(step.inputs[2:])
    control_at = _addresses_of(step.inputs[:2])
    has_limit = len(node.inputs) > 0 and node.inputs[0] is not None
    has_condition = len(node.inputs) > 1 and node.inputs[1] is not None
    places_at = _places(step, code)

    def run(bases: Sequence[int]) -> None:
        control, given = control_at(bases), given_at(bases)
        limit = ctypes.c_int64.from_address(control[0]).value if has_limit else None
        going_on = not has_condition or bool(ctypes.c_uint8.from_address(control[1]).value)
        states, captures = given[: code.num_states], given[code.num_states :]
        found = code.run(limit, going_on, states, captures, places=places_at(bases))
        _require_steps(node, node.outputs[code.num_states :], found.num_steps)

    return run


def _scan_callback(step: HostStep, code: LoopCode) -> HostCallback:
    node, num_states = step.node, code.num_states
    scanned = node.inputs[num_states:]
    backward = node.ints_attr("scan_input_directions", [0] * len(scanned)) or [0] * len(scanned)
    given_at, places_at = _addresses_of(step.inputs), _places(step, code)
    num_steps = scanned[0].shape[0] if scanned[0] is not None else 0
    distances = [0 if value is None else value.size_bytes // max(num_steps, 1) for value in scanned]

    def run(bases: Sequence[int]) -> None:
        given = given_at(bases)
        rows = [
            row(address, distance, num_steps, bool(turned))
            for address, distance, turned in zip(given[num_states:], distances, backward, strict=False)
        ]
        captures = given[len(node.inputs) :]
        code.run(num_steps, True, given[:num_states], captures, rows, places_at(bases))

    return run


def _places(step: HostStep, code: LoopCode) -> Callable[[Sequence[int]], Places]:
    """Where the results of a loop lie, given the bases of a run."""
    node, num_states = step.node, code.num_states
    places_at = _addresses_of(step.outputs)
    stacked = [value for value in node.outputs[num_states:] if value is not None]
    num_rows = stacked[0].shape[0] if stacked else FOR_EVER
    turned = node.ints_attr("scan_output_directions", [0] * len(stacked)) or [0] * len(stacked)

    def places(bases: Sequence[int]) -> Places:
        found = places_at(bases)
        rows = [
            row(address, distance, num_rows, bool(backward))
            for address, distance, backward in zip(found[num_states:], code.row_bytes, turned, strict=True)
        ]
        return Places(found[:num_states], rows, num_rows)

    return places


def _has_leading_axes(node: Node) -> bool:
    """Whether a Scan goes along the first axis of all that it reads and stacks."""
    axes = (*(node.ints_attr("scan_input_axes", ()) or ()), *(node.ints_attr("scan_output_axes", ()) or ()))
    return not any(axes)


def _require_steps(node: Node, stacked: Sequence[Value | None], done: int) -> None:
    for value in stacked:
        if value is not None and value.shape[0] != done:
            raise InputError(
                f"{node.op_type} {node.name!r}: it takes {done} steps; {value.name!r} was compiled for the "
                f"declared shape {list(value.shape)}."
            )
