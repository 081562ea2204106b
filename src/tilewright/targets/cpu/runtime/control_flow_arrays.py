"""Compiled control flow on arrays, which gives its results in new ones: see `RunsControlFlow`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.control_flow import branch_name
from tilewright.ir.graph import Graph, Node, Shape
from tilewright.targets.base import Executable
from tilewright.targets.cpu.runtime.control_flow import IfCode, LoopCode, control_flow_code, row


def on_arrays(
    node: Node,
    inputs: Sequence[Shape | None],
    captures: Sequence[Shape],
    compile_body: Callable[[Graph], Executable],
) -> ControlFlowOnArrays | None:
    """A control-flow node on contiguous arrays of these shapes; None as for `control_flow_code`."""
    code = control_flow_code(node, inputs, captures, compile_body)
    return None if code is None else ControlFlowOnArrays(node, code)


class ControlFlowOnArrays:
    """See the module."""

    def __init__(self, node: Node, code: IfCode | LoopCode) -> None:
        self._node, self._code = node, code

    def run(
        self, operands: Sequence[Array | None], captures: Sequence[Array]
    ) -> tuple[Array | None, ...] | None:
        """The node's results; None for a branch in which data decide shapes."""
        addresses = [array.ctypes.data for array in captures]
        if isinstance(self._code, IfCode):
            assert operands[0] is not None
            branch = self._code.branch(branch_name(operands[0]))
            if branch is None:
                return None
            results = [np.empty(spec.shape, spec.dtype.numpy) for spec in branch.code.results]
            branch.run(addresses, [result.ctypes.data for result in results])
            return tuple(results)
        if self._node.op_type == "Loop":
            return self._loop(self._code, operands, addresses)
        return self._scan(self._code, operands, addresses)

    def _loop(
        self, code: LoopCode, operands: Sequence[Array | None], captures: Sequence[int]
    ) -> tuple[Array | None, ...]:
        count, condition, *states = [*operands, None, None][: max(len(operands), 2)]
        limit = None if count is None else int(count.reshape(-1)[0])
        going_on = condition is None or bool(condition.reshape(-1)[0])
        found = code.run(limit, going_on, [a.ctypes.data for a in states if a is not None], captures)
        return (*found.states, *found.stacks)

    def _scan(
        self, code: LoopCode, operands: Sequence[Array | None], captures: Sequence[int]
    ) -> tuple[Array | None, ...]:
        node, num_states = self._node, code.num_states
        given = [a for a in operands if a is not None]
        num_scanned, num_stacked = len(given) - num_states, len(code.stacks)
        axes = node.ints_attr("scan_input_axes", [0] * num_scanned) or ()
        turned = node.ints_attr("scan_input_directions", [0] * num_scanned) or ()
        leading = [
            np.ascontiguousarray(np.moveaxis(a, axis, 0))
            for a, axis in zip(given[num_states:], axes, strict=True)
        ]
        num_steps = leading[0].shape[0]
        rows = [
            row(a.ctypes.data, a.nbytes // max(num_steps, 1), num_steps, bool(backward))
            for a, backward in zip(leading, turned, strict=True)
        ]
        states = [a.ctypes.data for a in given[:num_states]]
        found = code.run(num_steps, True, states, captures, rows)
        out_axes = node.ints_attr("scan_output_axes", [0] * num_stacked) or ()
        out_turned = node.ints_attr("scan_output_directions", [0] * num_stacked) or ()
        stacks = [
            np.moveaxis(a[::-1] if backward else a, 0, axis)
            for a, axis, backward in zip(found.stacks, out_axes, out_turned, strict=True)
        ]
        return (*found.states, *stacks)
