"""The same graphs on ONNX Runtime: a second opinion on what the reference says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import helper, numpy_helper
from tests.fuzz.differential import allowed_errors, error_of

from tilewright.ir.graph import Graph
from tilewright.ir.interpret import _attribute_proto, run_graph

Array = np.ndarray[Any, Any]


def onnx_model(graph: Graph) -> Any:
    """The graph as an `onnx.ModelProto`."""
    nodes = []
    for node in graph.nodes:
        names = [["" if v is None else v.name for v in values] for values in (node.inputs, node.outputs)]
        proto = helper.make_node(node.op_type, *names, name=node.name, domain=node.domain)
        proto.attribute.extend(_attribute_proto(name, value) for name, value in node.attributes.items())
        nodes.append(proto)
    infos = [
        [helper.make_tensor_value_info(v.name, v.dtype.value, v.shape) for v in values]
        for values in (graph.inputs, dict.fromkeys(graph.outputs))
    ]
    constants = [numpy_helper.from_array(v.data, v.name) for v in graph.initializers if v.data is not None]
    opset = helper.make_opsetid("", 20)
    return helper.make_model(
        helper.make_graph(nodes, "fuzz", *infos, constants), opset_imports=[opset], ir_version=9
    )


def check_peer(graph: Graph, feed: Mapping[str, Array], *, exact: bool) -> bool:
    """Whether ONNX Runtime runs the graph at all; AssertionError where it disagrees with the reference."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # Its own optimiser is not what is asked here.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = onnx_model(graph).SerializeToString()
    try:
        session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        found = dict(zip(names, session.run(None, dict(feed)), strict=True))
    except Exception:  # every refusal of ONNX Runtime has a type of its own
        return False
    allowed = allowed_errors(graph, feed, run_graph(graph, feed), exact=exact)
    for name, array in found.items():
        error = error_of(array, allowed[name][0])
        assert error <= allowed[name][1], f"{name}: off by {error}, {allowed[name][1]} allowed"
    return True
