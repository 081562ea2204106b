"""Static result shapes of Scan and Loop, from the results of one pass over the body."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import GraphProto, NodeProto

from tilewright.errors import ModelRejected
from tilewright.frontend.onnx.protos import node_label
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Shape, Value
from tilewright.records import dataclass

# Element type and, where it is known, shape of a result; None where neither is.
ResultType = tuple[DType, Shape | None] | None
# Imports a body on given inputs, for its results' types only.
ImportBody = Callable[[GraphProto, Sequence[Value]], Sequence[Value]]


def loop_types(
    node: NodeProto, inputs: Sequence[Value | None], import_body: ImportBody
) -> tuple[ResultType, ...]:
    """Types of all results of a Scan or Loop node."""
    body = next(a.g for a in node.attribute if a.name == "body")
    if node.op_type == "Scan":
        return _scan_types(node, body, [v for v in inputs if v is not None], import_body)
    return _loop_types(body, inputs, import_body)


def _scan_types(
    node: NodeProto, body: GraphProto, inputs: Sequence[Value], import_body: ImportBody
) -> tuple[ResultType, ...]:
    scan = ScanAttributes.of(node, inputs)
    states, scanned = inputs[: scan.num_states], inputs[scan.num_states :]
    arguments = [Value(f"state_{i}", v.dtype, v.shape) for i, v in enumerate(states)]
    for i, (value, axis) in enumerate(zip(scanned, scan.axes, strict=True)):
        arguments.append(Value(f"slice_{i}", value.dtype, value.shape[:axis] + value.shape[axis + 1 :]))
    results = import_body(body, arguments)
    types: list[ResultType] = [_state_type(a, r) for a, r in zip(states, results, strict=False)]
    for value, axis in zip(results[scan.num_states :], scan.out_axes, strict=True):
        axis = stacking_axis(node, axis, len(value.shape))
        types.append((value.dtype, (*value.shape[:axis], scan.num_steps, *value.shape[axis:])))
    return tuple(types)


@dataclass(frozen=True, slots=True)
class ScanAttributes:
    """How a Scan cuts its inputs into steps and stacks its results."""

    num_states: int
    num_steps: int
    axes: tuple[int, ...]
    backward: tuple[bool, ...]
    out_axes: tuple[int, ...]
    out_backward: tuple[bool, ...]

    @classmethod
    def of(cls, node: NodeProto, inputs: Sequence[Value]) -> ScanAttributes:
        """Those of a node on these inputs.

        Raises:
            ModelRejected: they do not fit the inputs or the body.
        """
        attributes = {a.name: a for a in node.attribute}
        body: GraphProto = attributes["body"].g
        num_scanned = int(attributes["num_scan_inputs"].i) if "num_scan_inputs" in attributes else 0
        num_states = len(inputs) - num_scanned
        num_stacked = len(body.output) - num_states
        fits = 1 <= num_scanned <= len(inputs) == len(body.input) and num_stacked >= 0
        _require(
            node,
            fits,
            f"num_scan_inputs={num_scanned} of {len(inputs)} inputs does not fit a body of {len(body.input)} "
            f"inputs and {len(body.output)} results",
        )

        def listed(name: str, length: int) -> tuple[int, ...]:
            values = tuple(attributes[name].ints) if name in attributes else (0,) * length
            _require(node, len(values) == length, f"{name} has {len(values)} numbers, but {length} are taken")
            return values

        axes = []
        for value, axis in zip(inputs[num_states:], listed("scan_input_axes", num_scanned), strict=True):
            rank = len(value.shape)
            _require(node, -rank <= axis < rank, f"{value.name!r} {list(value.shape)} has no axis {axis}")
            axes.append(axis % rank)
        steps = {v.shape[a] for v, a in zip(inputs[num_states:], axes, strict=True)}
        _require(node, len(steps) == 1, f"its inputs have {sorted(steps)} steps, but all have as many")
        return cls(
            num_states,
            steps.pop(),
            tuple(axes),
            tuple(map(bool, listed("scan_input_directions", num_scanned))),
            listed("scan_output_axes", num_stacked),
            tuple(map(bool, listed("scan_output_directions", num_stacked))),
        )


def stacking_axis(node: NodeProto, axis: int, rank: int) -> int:
    """The axis along which results of a rank are stacked, counted from the front.

    Raises:
        ModelRejected: there is none.
    """
    _require(node, -rank - 1 <= axis <= rank, f"results of {rank} axes cannot be stacked along axis {axis}")
    return axis % (rank + 1)


def _require(node: NodeProto, holds: bool, problem: str) -> None:
    if not holds:
        raise ModelRejected(f"node {node_label(node)}: {problem}; export the model again.")


def _loop_types(
    body: GraphProto, inputs: Sequence[Value | None], import_body: ImportBody
) -> tuple[ResultType, ...]:
    padded = [*inputs, None, None][: max(len(inputs), 2)]
    count, condition = padded[0], padded[1]
    states = [v for v in padded[2:] if v is not None]
    always = condition is None or (condition.data is not None and bool(condition.data.reshape(-1)[0]))
    # With a true condition going in, a body that never stops shows a constant true coming out.
    entry = Value("condition", DType.BOOL, (), np.array(True) if always else None)
    arguments = [Value("iteration", DType.INT64, ()), entry]
    arguments += [Value(f"state_{i}", v.dtype, v.shape) for i, v in enumerate(states)]
    going_on, *results = import_body(body, arguments)
    endless = always and going_on.data is not None and bool(going_on.data.reshape(-1)[0])
    num_steps = None
    if endless and count is not None and count.data is not None:
        num_steps = max(int(count.data.reshape(-1)[0]), 0)
    types = [_state_type(a, r) for a, r in zip(states, results, strict=False)]
    for value in results[len(states) :]:
        types.append((value.dtype, None if num_steps is None else (num_steps, *value.shape)))
    return tuple(types)


def _state_type(before: Value, after: Value) -> ResultType:
    """A state keeps its shape through a body, or its shape depends on the number of steps."""
    return before.dtype, before.shape if before.shape == after.shape else None
