"""Semantics of If, Loop and Scan: the steps are ours, each body is run by what the caller gives.

By default a body runs in onnx.reference, which is the oracle. Operators that it does not run, or for which it
takes very long, run by our own references.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import InputError, ModelRejected
from tilewright.ir.bodies import free_names, other_domains
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, SubgraphAttribute, Value
from tilewright.ir.ops.registry import find_operator, host_excess
from tilewright.ir.regex import bounded_operators
from tilewright.ir.work import MAX_HOST_ELEMENTS, MAX_LOOP_STEPS

Body = Callable[[Sequence[Array]], list[Array]]

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


def run_control_flow(
    node: Node,
    inputs: Sequence[Array | None],
    captures: Sequence[Array],
    body_of: Callable[[str], Body] | None = None,
) -> tuple[Array, ...]:
    """Results of a control-flow node; `captures` are the values of `node.captures`.

    `body_of` gives what runs the body in an attribute of the node, onnx.reference by default.

    Raises:
        InputError: it takes more than `MAX_LOOP_STEPS` steps, those of loops inside included.
    """
    outer = {value.name: array for value, array in zip(node.captures, captures, strict=True)}
    return _run(node, inputs, outer, _Steps(node), body_of)


def _run(
    node: Node,
    inputs: Sequence[Array | None],
    outer: dict[str, Array],
    steps: _Steps,
    body_of: Callable[[str], Body] | None = None,
) -> tuple[Array, ...]:
    def body(name: str) -> Body:
        return _counted(body_of(name), steps) if body_of else _reference_body(node, name, outer, steps)

    present = [array for array in inputs if array is not None]
    if node.op_type == "If":
        return tuple(body(branch_name(present[0]))([]))
    if node.op_type == "Scan":
        return _scan(node, present, body("body"), steps)
    padded = [*inputs, None, None]
    return _loop(node, padded[0], padded[1], [a for a in inputs[2:] if a is not None], body("body"))


def branch_name(condition: Array) -> str:
    """The attribute that holds the branch which an If takes."""
    return "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"


def _counted(body: Body, steps: _Steps) -> Body:
    def run(arrays: Sequence[Array]) -> list[Array]:
        steps.take()
        return body(arrays)

    return run


def _loop(
    node: Node, count: Array | None, condition: Array | None, states: list[Array], body: Body
) -> tuple[Array, ...]:
    limit = None if count is None else int(count.reshape(-1)[0])
    going_on = condition is None or bool(condition.reshape(-1)[0])
    num_stacked = len(node.outputs) - len(states)
    stacks: list[list[Array]] = [[] for _ in range(num_stacked)]
    step = 0
    while going_on and (limit is None or step < limit):
        found, *results = body([np.array(step, np.int64), np.array(going_on), *states])
        going_on = bool(found.reshape(-1)[0])
        states = results[: len(states)]
        for stack, value in zip(stacks, results[len(states) :], strict=True):
            stack.append(value)
        step += 1
        _check_stacks(node, stacks)
    return (*states, *_stacked(node, stacks, [0] * num_stacked))


def _scan(node: Node, inputs: list[Array], body: Body, steps: _Steps) -> tuple[Array, ...]:
    num_scanned = node.int_attr("num_scan_inputs", 1)
    num_states = len(inputs) - num_scanned
    states, scanned = inputs[:num_states], inputs[num_states:]
    num_stacked = len(node.outputs) - num_states
    axes = node.ints_attr("scan_input_axes", [0] * num_scanned) or ()
    reverse_in = node.ints_attr("scan_input_directions", [0] * num_scanned) or ()
    reverse_out = node.ints_attr("scan_output_directions", [0] * num_stacked) or ()
    num_steps = scanned[0].shape[axes[0]]
    steps.check(num_steps)
    stacks: list[list[Array]] = [[] for _ in range(num_stacked)]
    for step in range(num_steps):
        slices = [
            np.take(array, num_steps - 1 - step if backward else step, axis)
            for array, axis, backward in zip(scanned, axes, reverse_in, strict=True)
        ]
        results = body([*states, *slices])
        states = results[:num_states]
        for stack, value in zip(stacks, results[num_states:], strict=True):
            stack.append(value)
        _check_stacks(node, stacks)
    ordered = [s[::-1] if backward else s for s, backward in zip(stacks, reverse_out, strict=True)]
    out_axes = node.ints_attr("scan_output_axes", [0] * num_stacked) or ()
    return (*states, *_stacked(node, ordered, out_axes))


def _stacked(node: Node, stacks: Sequence[Sequence[Array]], axes: Sequence[int]) -> list[Array]:
    """Results of all steps side by side; no steps give the empty tensor that graph or body declare."""
    first = len(node.outputs) - len(stacks)
    results = []
    for number, (stack, axis) in enumerate(zip(stacks, axes, strict=True), first):
        value = node.outputs[number]
        if stack:
            results.append(np.stack(stack, axis))
        elif value is not None:
            shape = value.shape or _declared_rows(node, number, axis)
            results.append(np.zeros(shape, value.dtype.numpy))
        else:
            results.append(np.zeros(0))
    return results


def _declared_rows(node: Node, number: int, axis: int) -> tuple[int, ...]:
    """The shape of no rows of a result, as the body declares them."""
    from onnx import GraphProto

    attribute = node.attributes.get("body")
    assert isinstance(attribute, SubgraphAttribute)
    outputs = GraphProto.FromString(attribute.serialized).output
    tensor = outputs[number + (node.op_type == "Loop")].type.tensor_type
    row = [max(dim.dim_value, 0) for dim in tensor.shape.dim]
    axis %= len(row) + 1
    return (*row[:axis], 0, *row[axis:])


def _check_stacks(node: Node, stacks: Sequence[Sequence[Array]]) -> None:
    """Stop when more is stacked than the graph declares: it would only be known when memory is full."""
    for value, stack in zip(node.outputs[len(node.outputs) - len(stacks) :], stacks, strict=True):
        num_elements = len(stack) * stack[-1].size
        # What is stacked has an axis at least: a result without is one whose shape data decide.
        is_open = value is None or not value.shape
        if is_open and num_elements > MAX_HOST_ELEMENTS:
            raise InputError(
                f"{node.op_type} {node.name!r} stacks more than MAX_HOST_ELEMENTS = {MAX_HOST_ELEMENTS} "
                "elements; feed it fewer steps."
            )
        if value is not None and not is_open and num_elements > value.num_elements:
            raise InputError(
                f"{node.op_type} {node.name!r} stacks more than the {list(value.shape)} that its result "
                f"{value.name!r} is declared; feed it fewer steps."
            )


class _Steps:
    """How many steps a node has taken."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._taken = 0

    def take(self) -> None:
        """One more."""
        self._taken += 1
        self.check(0)

    def check(self, count: int) -> None:
        """Refuse so many more."""
        if self._taken + count > MAX_LOOP_STEPS:
            raise InputError(
                f"{self._node.op_type} {self._node.name!r} takes more than {MAX_LOOP_STEPS} steps, which run "
                "on the host; feed it fewer."
            )


def _own_loops(opset: int, steps: _Steps) -> list[Any]:
    """Loops inside a body, for onnx.reference in place of its own, which join what is to be stacked; they
    take their steps from `steps`."""
    return [_own_loop(op_type, opset, steps) for op_type in ("Loop", "Scan")]


def _own_loop(op_type: str, opset: int, steps: _Steps) -> Any:
    from onnx.reference.op_run import OpRun

    def run(self: Any, *operands: Any, context: Any = None, **attributes: Any) -> tuple[Any, ...]:
        proto = self.onnx_node
        body = next(attribute.g for attribute in proto.attribute if attribute.name == "body")
        given: dict[str, Any] = {
            attribute.name: attribute.i or tuple(attribute.ints)
            for attribute in proto.attribute
            if attribute.name != "body" and (attribute.ints or attribute.i)
        }
        given["body"] = SubgraphAttribute(body.SerializeToString())
        declared = body.output[len(body.output) - len(proto.output) :]
        results = [
            Value(name, DType(value.type.tensor_type.elem_type or DType.FLOAT32.value), ()) if name else None
            for name, value in zip(proto.output, declared, strict=True)
        ]
        node = Node(op_type, [None] * len(operands), results, given, name=proto.name, opset=opset)
        outer = {name: context[name] for name in free_names(body) if name in (context or {})}
        return _run(node, operands, outer, steps)

    members = {"op_domain": "", "_run": run, "need_context": lambda self: True}
    return type(op_type, (OpRun,), members)


# Operators that onnx.reference does not run with every release of numpy, or compares one by one in Python.
_OWN_REFERENCES = ("NonMaxSuppression", "OneHot")


def _own_references(opset: int) -> list[Any]:
    """Operators to give onnx.reference in place of its own."""
    return [_own_reference(op_type, opset) for op_type in _OWN_REFERENCES]


def _own_reference(op_type: str, opset: int) -> Any:
    from onnx.reference.op_run import OpRun

    def run(self: Any, *operands: Any, **attributes: Any) -> tuple[Any, ...]:
        proto = self.onnx_node
        arrays = [None if x is None else np.asarray(x) for x in operands]
        values = [
            None if x is None else Value(name, DType.from_numpy(x.dtype), x.shape)
            for name, x in zip(proto.input, arrays, strict=True)
        ]
        result = Value(proto.output[0], DType.INT64, ())
        given = {name: value for name, value in attributes.items() if value is not None}
        node = Node(op_type, values, [result], given, name=proto.name, opset=opset)
        excess = host_excess(node, arrays)
        if excess is not None:
            raise InputError(f"{op_type} {node.name!r}: {excess}.")
        operator = find_operator(node)
        assert operator is not None
        assert operator.reference is not None
        return tuple(operator.reference(node, arrays))

    return type(op_type, (OpRun,), {"op_domain": "", "_run": run})


def _num_elements(value: Any) -> int:
    """Of a tensor, or a sequence of tensors."""
    return sum(map(_num_elements, value)) if isinstance(value, list) else int(np.size(value))


def _reference_body(node: Node, name: str, outer: dict[str, Array], steps: _Steps) -> Body:
    from onnx import GraphProto, helper
    from onnx.reference import ReferenceEvaluator

    attribute = node.attributes.get(name)
    if not isinstance(attribute, SubgraphAttribute):
        raise ModelRejected(f"{node!r} has no body {name!r}, which its operator needs.")
    graph = GraphProto.FromString(attribute.serialized)
    parameters = [value.name for value in graph.input]
    graph.input.extend(map(helper.make_empty_tensor_value_info, outer))
    opsets = {"": node.opset, **other_domains(graph)}
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*entry) for entry in opsets.items()])
    # What exists already may be larger: a body may hand on what it is given.
    given = max((v.num_elements for v in (*node.operands(), *node.results())), default=0)
    new_ops = [*_own_loops(node.opset, steps), *bounded_operators(), *_own_references(node.opset)]
    evaluator = ReferenceEvaluator(model, new_ops=new_ops)

    def run(arrays: Sequence[Array]) -> list[Array]:
        steps.take()
        found = evaluator.run(None, {**outer, **dict(zip(parameters, arrays, strict=True))})
        results: list[Any] = [array if isinstance(array, list) else np.asarray(array) for array in found]
        largest = max((_num_elements(array) for array in results), default=0)
        if largest > max(MAX_HOST_ELEMENTS, given):
            raise InputError(
                f"{node.op_type} {node.name!r}: a result of its body grows to {largest} elements, more than "
                f"MAX_HOST_ELEMENTS = {MAX_HOST_ELEMENTS}; feed it fewer steps."
            )
        return results

    return run
