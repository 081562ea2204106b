"""Models of ai.onnx.ml: one node, or trees that scikit-learn trained, written as attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

Array = np.ndarray[Any, Any]
DOMAIN = "ai.onnx.ml"
TEXT = TensorProto.STRING


def type_of(array: Array) -> int:
    return TEXT if array.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(array.dtype)


def node_model(
    op_type: str,
    inputs: Sequence[Array],
    results: Sequence[int],
    version: int = 3,
    rows: int | str | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """One node; `rows` is the first dim of its inputs, theirs if it is not given."""
    names = [f"x{i}" for i in range(len(inputs))]
    outputs = [f"y{i}" for i in range(len(results))]
    node = helper.make_node(op_type, names, outputs, "node", domain=DOMAIN, **attributes)
    shapes = [a.shape if rows is None else (rows, *a.shape[1:]) for a in inputs]
    given = [
        helper.make_tensor_value_info(n, type_of(a), s) for n, a, s in zip(names, inputs, shapes, strict=True)
    ]
    made = [helper.make_tensor_value_info(n, kind, None) for n, kind in zip(outputs, results, strict=True)]
    return model_of([node], given, made, version)


def model_of(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[Any], outputs: Sequence[Any], version: int = 3
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def tree_attributes(
    trees: Sequence[Any],
    *,
    prefix: str = "target",
    target_of: Sequence[int] | None = None,
    scale: float = 1.0,
    shares: bool = False,
) -> dict[str, list[Any]]:
    """scikit-learn's trees as attributes: each value of a leaf is the weight of a target.

    `target_of` gives the only target of each tree; `shares` divides the values of a leaf by their sum.
    """
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    made: dict[str, list[Any]] = {f"nodes_{name}": [] for name in names}
    made |= {f"{prefix}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}
    for number, tree in enumerate(trees):
        for node in range(tree.node_count):
            is_leaf = tree.children_left[node] < 0
            made["nodes_treeids"].append(number)
            made["nodes_nodeids"].append(node)
            made["nodes_featureids"].append(0 if is_leaf else int(tree.feature[node]))
            made["nodes_values"].append(0.0 if is_leaf else float(np.float32(tree.threshold[node])))
            made["nodes_modes"].append("LEAF" if is_leaf else "BRANCH_LEQ")
            made["nodes_truenodeids"].append(0 if is_leaf else int(tree.children_left[node]))
            made["nodes_falsenodeids"].append(0 if is_leaf else int(tree.children_right[node]))
            values = tree.value[node].ravel() if is_leaf else ()
            total = np.sum(values) if shares else 1.0
            for target, value in enumerate(values):
                made[f"{prefix}_treeids"].append(number)
                made[f"{prefix}_nodeids"].append(node)
                made[f"{prefix}_ids"].append(target if target_of is None else target_of[number])
                made[f"{prefix}_weights"].append(float(value / total * scale))
    return made


def runtime_outputs(model: onnx.ModelProto, feed: Mapping[str, Array]) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    found: list[Any] = session.run(None, dict(feed))
    return found
