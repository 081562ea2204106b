"""Bodies of control-flow nodes as models of their own, whose inputs and constants are what they read.

A node that was imported holds its bodies as ONNX bytes, which read outer values by the names of these. Such a
body becomes a `PreparedModel`, whose graph is built at any shapes of what it is given.
"""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper

from tilewright.errors import ModelRejected
from tilewright.frontend.onnx.initializers import Initializers
from tilewright.frontend.onnx.origin import Origin
from tilewright.frontend.onnx.prepared import PreparedModel
from tilewright.frontend.onnx.scope import unused
from tilewright.ir.bodies import other_domains, own_names
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, SubgraphAttribute
from tilewright.records import dataclass

_IR_VERSION = 10
_ALWAYS = np.array(True)


@dataclass(frozen=True, slots=True, eq=False)
class BodyModel:
    """A body that can be built at any shapes: names of what it is given in order, of the captures that it
    reads as inputs, and of its results in order, each its own.

    A parameter that is None is a constant: the condition of a Loop, which is true while its body runs.
    """

    prepared: PreparedModel
    parameters: tuple[str | None, ...]
    captures: tuple[str, ...]
    results: tuple[str, ...]


def body_model(node: Node, attribute: str) -> BodyModel:
    """The body in an attribute of a node.

    Raises:
        ModelRejected: there is none, or it does not take as much as the node gives.
        UnsupportedOp: an element type that is not supported.
    """
    held = node.attributes.get(attribute)
    if not isinstance(held, SubgraphAttribute):
        raise ModelRejected(f"{node!r} has no body {attribute!r}, which its operator needs.")
    body = GraphProto.FromString(held.serialized)
    dtypes = _parameter_types(node)
    if len(dtypes) != len(body.input):
        raise ModelRejected(
            f"{node!r}: {len(body.input)} inputs of its body {attribute!r}, expected {len(dtypes)}."
        )
    names = [value.name for value in body.input]
    constants = {value.name: value.data for value in node.captures if value.data is not None}
    if node.op_type == "Loop":
        constants[names[1]] = _ALWAYS
    opened = dict(zip(names, dtypes, strict=True))
    opened.update((value.name, value.dtype) for value in node.captures)
    opened = {name: dtype for name, dtype in opened.items() if name not in constants}

    model = ModelProto(ir_version=_IR_VERSION)
    graph = model.graph
    graph.name = f"{node.name}/{attribute}"
    graph.node.extend(body.node)
    graph.input.extend(helper.make_tensor_value_info(n, t.value, None) for n, t in opened.items())
    graph.initializer.extend(body.initializer)
    graph.initializer.extend(
        TensorProto(name=n, dims=a.shape, data_type=DType.from_numpy(a.dtype).value)
        for n, a in constants.items()
    )
    results = _add_results(graph, body, {*opened, *constants})
    model.opset_import.append(helper.make_opsetid("", node.opset))
    model.opset_import.extend(helper.make_opsetid(*entry) for entry in other_domains(body).items())
    origin = Origin(f"{node.op_type} {node.name!r}", None)
    prepared = PreparedModel(model, origin, Initializers(origin, constants), len(held.serialized))
    return BodyModel(
        prepared,
        tuple(None if name in constants else name for name in names),
        tuple(v.name for v in node.captures if v.data is None),
        tuple(results),
    )


def _parameter_types(node: Node) -> list[DType]:
    """Element types of what a node gives its body."""
    if node.op_type == "If":
        return []
    given = [value.dtype for value in node.inputs if value is not None]
    if node.op_type == "Scan":
        return given
    states = [value.dtype for value in node.inputs[2:] if value is not None]
    return [DType.INT64, DType.BOOL, *states]


def _add_results(graph: GraphProto, body: GraphProto, outer: set[str]) -> list[str]:
    """Outputs of a model for those of a body: a value that no node gives, or gives twice, by a copy."""
    made = {name for node in body.node for name in node.output}
    taken = dict.fromkeys([*own_names(body), *outer], 1)
    results: list[str] = []
    for value in body.output:
        name = value.name
        if name not in made or name in results:
            copy = unused(f"{name}/result", taken)
            graph.node.append(helper.make_node("Identity", [name], [copy]))
            name = copy
        results.append(name)
        graph.output.append(helper.make_empty_tensor_value_info(name))
    return results
