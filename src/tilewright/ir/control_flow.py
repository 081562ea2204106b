"""Reference semantics of If, Loop and Scan: the steps are ours, each body runs in onnx.reference.

Operators of a body for which that takes very long run by our own references.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.errors import InputError, ModelRejected
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, SubgraphAttribute, Value
from tilewright.ir.ops.registry import find_operator, host_excess
from tilewright.ir.regex import bounded_operators
from tilewright.ir.work import MAX_HOST_ELEMENTS, MAX_LOOP_STEPS

Array = np.ndarray[Any, Any]
Body = Callable[[Sequence[Array]], list[Array]]

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


def run_control_flow(
    node: Node, inputs: Sequence[Array | None], captures: Sequence[Array]
) -> tuple[Array, ...]:
    """Results of a control-flow node; `captures` are the values of `node.captures`.

    Raises:
        InputError: it takes more than `MAX_LOOP_STEPS` steps, those of loops inside included.
    """
    steps = _Steps(node)
    outer = {value.name: array for value, array in zip(node.captures, captures, strict=True)}
    present = [array for array in inputs if array is not None]
    if node.op_type == "If":
        taken = "then_branch" if bool(np.asarray(present[0]).reshape(-1)[0]) else "else_branch"
        return tuple(_body(node, taken, outer, steps)([]))
    body = _body(node, "body", outer, steps)
    if node.op_type == "Scan":
        return _scan(node, present, body, steps)
    padded = [*inputs, None, None]
    return _loop(node, padded[0], padded[1], [a for a in inputs[2:] if a is not None], body)


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
    """Results of all steps side by side; no steps give the empty tensor the graph declares."""
    results = []
    for value, stack, axis in zip(node.outputs[len(node.outputs) - len(stacks) :], stacks, axes, strict=True):
        if stack:
            results.append(np.stack(stack, axis))
        elif value is not None:
            results.append(np.zeros(value.shape, value.dtype.numpy))
        else:
            results.append(np.zeros(0))
    return results


def _check_stacks(node: Node, stacks: Sequence[Sequence[Array]]) -> None:
    """Stop when more is stacked than the graph declares: it would only be known when memory is full."""
    for value, stack in zip(node.outputs[len(node.outputs) - len(stacks) :], stacks, strict=True):
        num_elements = len(stack) * stack[-1].size
        if value is None and num_elements > MAX_HOST_ELEMENTS:
            raise InputError(
                f"{node.op_type} {node.name!r} stacks more than MAX_HOST_ELEMENTS = {MAX_HOST_ELEMENTS} "
                "elements; feed it fewer steps."
            )
        if value is not None and num_elements > value.num_elements:
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


def _counting(steps: _Steps) -> list[Any]:
    """onnx.reference's loops, for those inside a body, taking their steps from `steps`."""
    from onnx.reference.ops.op_loop import Loop
    from onnx.reference.ops.op_scan import Scan

    def counting(base: Any) -> Any:
        class Counting(base):  # type: ignore[misc]  # a class of a package without types
            op_domain = ""
            _run_body: Any

            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                run: Any = self._run_body

                def counted(*given: Any, **named: Any) -> Any:
                    steps.take()
                    return run(*given, **named)

                self._run_body = counted

        Counting.__name__ = base.__name__
        return Counting

    return [counting(Loop), counting(Scan)]


def _quick_references(opset: int) -> list[Any]:
    """Operators to give onnx.reference in place of its, which compares boxes one by one in Python."""
    from onnx.reference.op_run import OpRun

    class NonMaxSuppression(OpRun):  # type: ignore[misc]  # a class of a package without types
        op_domain = ""
        onnx_node: Any

        def _run(self, *operands: Any, **attributes: Any) -> tuple[Any, ...]:
            arrays = [None if x is None else np.asarray(x) for x in operands]
            names = self.onnx_node.input
            values = [
                None if x is None else Value(name, DType.from_numpy(x.dtype), x.shape)
                for name, x in zip(names, arrays, strict=True)
            ]
            result = Value(self.onnx_node.output[0], DType.INT64, ())
            kind = type(self).__name__
            node = Node(kind, values, [result], attributes, name=self.onnx_node.name, opset=opset)
            excess = host_excess(node, arrays)
            if excess is not None:
                raise InputError(f"{kind} {node.name!r}: {excess}.")
            operator = find_operator(node)
            assert operator is not None
            assert operator.reference is not None
            return tuple(operator.reference(node, arrays))

    return [NonMaxSuppression]


def _body(node: Node, name: str, outer: dict[str, Array], steps: _Steps) -> Body:
    from onnx import GraphProto, TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    attribute = node.attributes.get(name)
    if not isinstance(attribute, SubgraphAttribute):
        raise ModelRejected(f"{node!r} has no body {name!r}, which its operator needs.")
    graph = GraphProto.FromString(attribute.serialized)
    parameters = [value.name for value in graph.input]
    for key, array in outer.items():
        text = array.dtype.kind in "OUS"
        number = TensorProto.STRING if text else helper.np_dtype_to_tensor_dtype(array.dtype)
        graph.input.append(helper.make_tensor_value_info(key, number, array.shape))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", node.opset)])
    # What exists already may be larger: a body may hand on what it is given.
    given = max((v.num_elements for v in (*node.operands(), *node.results())), default=0)
    new_ops = [*_counting(steps), *bounded_operators(), *_quick_references(node.opset)]
    evaluator = ReferenceEvaluator(model, new_ops=new_ops)

    def run(arrays: Sequence[Array]) -> list[Array]:
        steps.take()
        found = evaluator.run(None, {**outer, **dict(zip(parameters, arrays, strict=True))})
        results = [np.asarray(array) for array in found]
        largest = max((array.size for array in results), default=0)
        if largest > max(MAX_HOST_ELEMENTS, given):
            raise InputError(
                f"{node.op_type} {node.name!r}: a result of its body grows to {largest} elements, more than "
                f"MAX_HOST_ELEMENTS = {MAX_HOST_ELEMENTS}; feed it fewer steps."
            )
        return results

    return run
