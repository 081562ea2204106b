"""Runs graphs with reference semantics: numpy, one node after the other.

Every floating value can run in another type than the graph says; in float64 this is the oracle that
every target is measured against. Half types compute in float32 and round once per node. Operators
without a reference of ours run through onnx.reference.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.arguments import as_array, shown
from tilewright.arrays import Array
from tilewright.errors import InputError, InternalError, TilewrightError, UnsupportedOp, UsageError
from tilewright.ir.control_flow import CONTROL_FLOW, run_control_flow
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, SubgraphAttribute, Value
from tilewright.ir.nest import Opaque
from tilewright.ir.ops.registry import describe, find_operator, has_effect, host_excess
from tilewright.ir.regex import bounded_operators

# What a reference raises for values that are no valid operands. Types, shapes and attributes of a known
# operator were looked at when it was described; anything else says that a reference does not run such a node.
_FAULTS_OF_VALUES = (ArithmeticError, IndexError, ValueError)


def run_graph(
    graph: Graph,
    feed: Mapping[str, Array],
    *,
    dtype: DType | None = None,
    taps: Collection[str] | None = None,
) -> dict[str, Array]:
    """Outputs of the graph by name, and the values named in `taps`.

    With `dtype`, every floating input, constant and result is held in that type. Values are freed after
    their last use.

    Raises:
        UsageError: the feed does not fit the graph's inputs, or a tap names no value.
        InputError: values that are fed make an index or a shape that cannot be.
        UnsupportedOp: a node cannot run; names it and says why.
    """
    values = fed_values(graph, feed, dtype=dtype)
    wanted = {v.name: v for v in graph.outputs}
    if taps:
        by_name = {v.name: v for v in graph.values()}
        unknown = [name for name in taps if name not in by_name]
        if unknown:
            raise UsageError(f"tap {unknown[0]!r} names no value of graph {graph.name!r}.")
        wanted.update({name: by_name[name] for name in taps})
    keep = set(wanted.values())
    last_use = {v: i for i, node in enumerate(graph.nodes) for v in node.operands()}
    for i, node in enumerate(graph.nodes):
        for value in node.operands():
            if value not in values:
                values[value] = _constant(value, dtype)
        results = run_node(
            node,
            [None if v is None else values[v] for v in node.inputs],
            dtype=dtype,
            captures=[values[v] for v in node.captures],
        )
        for result, array in zip(node.outputs, results, strict=True):
            if result is not None and array is not None:
                require_shape(node, result, array)
                values[result] = array
        for value in (*node.operands(), *node.results()):
            if value not in keep and last_use.get(value, i) <= i:
                values.pop(value, None)
    for value in keep:
        if value not in values:
            values[value] = _constant(value, dtype)
    return {name: values[value] for name, value in wanted.items()}


def fed_values(graph: Graph, feed: Mapping[str, Array], *, dtype: DType | None = None) -> dict[Value, Array]:
    """The inputs of a graph as arrays of their types, floating ones in `dtype` if it is given.

    Raises:
        UsageError: the feed does not fit them.
    """
    values = {v: _fed(v, feed, dtype) for v in graph.inputs}
    _refuse_unknown(feed, graph)
    return values


def run_checks(graph: Graph, feed: Mapping[str, Array]) -> None:
    """Run what a target that computes only its outputs would leave out: nodes that look at data and raise.

    Raises:
        InputError: the feed does not fit the shapes that the graph was made for.
    """
    checks = {node for node in graph.nodes if has_effect(node)}
    if not checks:
        return
    needed = set(checks)
    for node in reversed(graph.nodes):
        if any(user in needed for value in node.results() for user in value.users):
            needed.add(node)
    names = {v.name for node in needed for v in node.operands()}
    part = graph.extract(lambda node: node in needed)
    part.inputs = [v for v in part.inputs if v.name in names]
    part.outputs = [v for node in part.nodes if has_effect(node) for v in node.results()]
    run_graph(part, {v.name: feed[v.name] for v in part.inputs})


def run_node(
    node: Node, arrays: Sequence[Array | None], *, dtype: DType | None = None, captures: Sequence[Array] = ()
) -> tuple[Array | None, ...]:
    """Outputs of one node on the given inputs, None where the node omits an output.

    Shapes come from the arrays, so that a node can also run on a part of its input.

    Raises:
        InputError: the arrays' values are none that the operator takes, such as an index outside its axis.
        UnsupportedOp: no reference exists, or it does not run such a node.
    """
    found = find_operator(node)
    try:
        excess = host_excess(node, arrays)
        if excess is not None:
            raise InputError(f"{node.op_type} {node.name!r}: {excess}.")
        with np.errstate(all="ignore"):
            if found is not None and found.reference is not None:
                results: Sequence[Array | None] = found.reference(node, [_widened(a) for a in arrays])
            else:
                results = _run_through_onnx(node, arrays, captures)
    except TilewrightError:
        raise
    except Exception as error:
        # Whatever a reference raises, the reader needs the node and the reason in one line.
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, IndexError):
            _raise_outside(node, arrays)
        if isinstance(error, _FAULTS_OF_VALUES) and found is not None:
            raise InputError(f"{node.op_type} {node.name!r}: {reason.removesuffix('.')}.") from error
        raise UnsupportedOp(
            f"{node.op_type} {node.name!r} (opset {node.opset}) cannot run: {reason}."
        ) from error
    if len(results) < len(node.outputs) and len(results) < sum(1 for _ in node.results()):
        raise UnsupportedOp(
            f"{node.op_type} {node.name!r}: {len(node.outputs)} outputs asked, {len(results)} exist."
        )
    return tuple(
        None if value is None else _narrowed(np.asarray(results[i]), value, dtype)
        for i, value in enumerate(node.outputs)
    )


def _raise_outside(node: Node, arrays: Sequence[Array | None]) -> None:
    """Raise for an index outside its axis as every target does, if the node's nests look for one."""
    from tilewright.ir.nest_interpreter import run_described

    pairs = zip(node.inputs, arrays, strict=True)
    fits = all(v is None or (a is not None and a.shape == v.shape) for v, a in pairs)
    if fits and not isinstance(describe(node), Opaque):
        run_described(node, arrays)


def _fed(value: Value, feed: Mapping[str, Array], dtype: DType | None) -> Array:
    if value.name not in feed:
        if value.data is not None:
            return _constant(value, dtype)
        raise UsageError(f"input {value.name!r} {value.dtype}{list(value.shape)} is missing from the feed.")
    array = as_array(value.name, feed[value.name])
    if array.shape != value.shape:
        raise UsageError(
            f"input {value.name!r} has shape {list(array.shape)}, but the graph takes {list(value.shape)}."
        )
    try:
        given = DType.from_numpy(array.dtype)
    except TypeError as error:
        raise UsageError(f"input {value.name!r}: {error}") from error
    if given is not value.dtype and not (given.is_float and value.dtype.is_float):
        raise UsageError(f"input {value.name!r} is {given}, but the graph takes {value.dtype}.")
    return array.astype(_held_in(value, dtype), copy=False)


def _refuse_unknown(feed: Mapping[str, Array], graph: Graph) -> None:
    names = [v.name for v in graph.inputs]
    for name in feed:
        if name not in names:
            raise UsageError(f"the feed names {shown(name)}, but the graph's inputs are: {', '.join(names)}.")


def _held_in(value: Value, dtype: DType | None) -> np.dtype[Any]:
    return dtype.numpy if dtype is not None and value.dtype.is_float else value.dtype.numpy


def _constant(value: Value, dtype: DType | None) -> Array:
    if value.data is None:
        raise InternalError(f"value {value.name!r} is used before any node produces it")
    return value.data.astype(_held_in(value, dtype), copy=False)


def _widened(array: Array | None) -> Array | None:
    """Half types as float32, everything else as it is."""
    # Most are told apart by their size: asking numpy for the name of a type takes a microsecond.
    if array is None or array.dtype.itemsize != 2 or array.dtype.name not in ("float16", "bfloat16"):
        return array
    return array.astype(np.float32)


def _narrowed(array: Array, value: Value, dtype: DType | None) -> Array:
    held_in = _held_in(value, dtype)
    if array.dtype == held_in:
        return array
    with np.errstate(all="ignore"):
        return array.astype(held_in, copy=False)


def require_shape(node: Node, value: Value, array: Array) -> None:
    """Raise if a result's shape is not the one that the graph has.

    Raises:
        InputError: it is not, and data decide it.
        InternalError: it is not, and nothing but the shapes of the operands decides it.
    """
    if array.shape == value.shape:
        return
    if isinstance(describe(node), Opaque):
        raise InputError(
            f"{node.op_type} {node.name!r}: its operands give {value.name!r} the shape {list(array.shape)}; "
            f"it was compiled for the declared shape {list(value.shape)}."
        )
    raise InternalError(
        f"{node.op_type} {node.name!r} gives {value.name!r} the shape {list(array.shape)}, "
        f"but the graph declares {list(value.shape)}."
    )


def node_model(node: Node, arrays: Sequence[Array | None], captures: Sequence[Array] = ()) -> Any:
    """The node as an `onnx.ModelProto` of its own: inputs `input_<i>`, outputs `output_<i>`.

    Captured values keep their own names, by which control-flow bodies refer to them.
    """
    from onnx import TensorProto, helper

    feed = _model_feed(node, arrays, captures)
    names = ["" if a is None else f"input_{i}" for i, a in enumerate(arrays)]
    outputs = ["" if v is None else f"output_{i}" for i, v in enumerate(node.outputs)]
    proto = helper.make_node(node.op_type, names, outputs, name=node.name, domain=node.domain)
    proto.attribute.extend(_attribute_proto(name, value) for name, value in node.attributes.items())
    infos = [
        helper.make_tensor_value_info(
            name,
            TensorProto.STRING if a.dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(a.dtype),
            a.shape,
        )
        for name, a in feed.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs if name]
    return helper.make_model(
        helper.make_graph([proto], node.op_type, infos, results),
        opset_imports=[helper.make_opsetid(node.domain, node.opset)],
    )


def _model_feed(node: Node, arrays: Sequence[Array | None], captures: Sequence[Array]) -> dict[str, Array]:
    feed = {f"input_{i}": a for i, a in enumerate(arrays) if a is not None}
    feed.update({value.name: array for value, array in zip(node.captures, captures, strict=True)})
    return feed


def _run_through_onnx(
    node: Node, arrays: Sequence[Array | None], captures: Sequence[Array]
) -> Sequence[Array | None]:
    if node.op_type in CONTROL_FLOW:
        return run_control_flow(node, arrays, captures)
    from onnx.reference import ReferenceEvaluator

    model = node_model(node, arrays, captures)
    evaluator = ReferenceEvaluator(model, new_ops=bounded_operators())
    found = iter(evaluator.run(None, _model_feed(node, arrays, captures)))
    results = [None if value is None else next(found) for value in node.outputs]
    if any(isinstance(value, list | dict) for value in results):
        raise UnsupportedOp(f"{node.op_type} {node.name!r} gives a sequence; only tensors are supported.")
    return results


def _attribute_proto(name: str, value: Any) -> Any:
    from onnx import AttributeProto, GraphProto, helper, numpy_helper

    if isinstance(value, SubgraphAttribute):
        return helper.make_attribute(name, GraphProto.FromString(value.serialized))
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, numpy_helper.from_array(value))
    if isinstance(value, tuple) and not value:
        return helper.make_attribute(name, [], attr_type=AttributeProto.INTS)
    return helper.make_attribute(name, list(value) if isinstance(value, tuple) else value)
