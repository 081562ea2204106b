"""Is this a well-formed model? Everything that can be said before any weight is looked at.

Our own checks name what is wrong; the ONNX checker then sees a copy without weights, which keeps it fast and
away from the file system.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from tilewright.arrays import Array
from tilewright.errors import ModelRejected, UnsupportedOp
from tilewright.frontend.onnx import native
from tilewright.frontend.onnx.limits import MAX_NODES
from tilewright.frontend.onnx.normalise import unshadow
from tilewright.frontend.onnx.protos import all_nodes, model_nodes, node_label, one_line
from tilewright.frontend.onnx.tensors import checked_raw_data
from tilewright.frontend.onnx.versions import OLDEST_OPSET, newest_opset
from tilewright.ir.bodies import body_graphs, free_names
from tilewright.ir.ops.host import RANDOM


def validate_model(model: ModelProto, data: Mapping[int, Array]) -> int:
    """Check versions, names, order and tensors of a normalised model; sort its nodes if they need it.

    `data` are those of initializers, by number, that the message does not hold. Returns the number of its
    nodes, those of bodies and of calls of local functions included.

    Raises:
        ModelRejected: it is not a consistent ONNX model.
        UnsupportedOp: it is newer than this version.
    """
    _check_versions(model)
    count = max(require_few_nodes(model), _check_functions(model))
    _check_graph(model.graph, {})
    for number, tensor in enumerate(model.graph.initializer):
        if tensor.data_location == onnx.TensorProto.DEFAULT:
            checked_raw_data(tensor, data.get(number))
    return count


def require_few_nodes(model: ModelProto) -> int:
    """The number of nodes, those of bodies and local functions included.

    Raises:
        ModelRejected: there are more than `MAX_NODES`, or graphs are nested too deeply.
    """
    count = sum(1 for _ in model_nodes(model))
    if count > MAX_NODES:
        raise ModelRejected(f"the model has {count} nodes, more than {MAX_NODES}; split it.")
    return count


def _check_versions(model: ModelProto) -> None:
    if model.ir_version > onnx.IR_VERSION:
        raise UnsupportedOp(
            f"the model has IR version {model.ir_version}, but the installed onnx knows up to "
            f"{onnx.IR_VERSION}; update onnx or export for an older version."
        )
    versions: dict[str, int] = {}
    for entry in model.opset_import:
        if entry.version < 1:
            raise ModelRejected(
                f"opset_import of {entry.domain or 'ai.onnx'!r} is {entry.version}; it starts at 1."
            )
        versions[entry.domain] = entry.version
    if "" not in versions and any(not node.domain for node in model.graph.node):
        raise ModelRejected("opset_import names no version of ai.onnx; export the model again.")
    if versions.get("", OLDEST_OPSET) > newest_opset():
        raise UnsupportedOp(
            f"the model uses opset {versions['']}, but the installed onnx knows up to {newest_opset()}; "
            "update onnx or export for an older opset."
        )


def _check_functions(model: ModelProto) -> int:
    """Refuse functions that call each other in a circle or expand to too many nodes."""
    functions = {(f.domain, f.name, getattr(f, "overload", "")): f for f in model.functions}
    if len(functions) != len(model.functions):
        raise ModelRejected("two local functions have the same domain and name; rename one.")
    sizes: dict[tuple[str, str, str], int] = {}
    active: list[tuple[str, str, str]] = []

    def expanded(nodes: list[NodeProto]) -> int:
        return sum(
            size(key) if (key := (n.domain, n.op_type, getattr(n, "overload", ""))) in functions else 1
            for n in nodes
        )

    def size(key: tuple[str, str, str]) -> int:
        if key in active or len(active) > 200:
            raise ModelRejected(
                f"local function {key[1]!r} calls itself (or is nested too deeply); ONNX has no recursion."
            )
        if key not in sizes:
            active.append(key)
            sizes[key] = expanded([n for n, _ in all_nodes(functions[key].node)]) + 1
            active.pop()
        return sizes[key]

    total = max((size(key) for key in functions), default=0) + expanded(
        [n for n, _ in all_nodes(model.graph.node)]
    )
    if total > MAX_NODES:
        raise ModelRejected(
            f"local functions expand to {total} nodes, more than {MAX_NODES}; split the model."
        )
    return total


def _check_graph(graph: GraphProto, outer: dict[str, None]) -> None:
    """Names and order of one graph and, with what is visible there, of the bodies inside it."""
    unshadow(graph, outer)
    visible = dict(outer)
    visible.update(_unique_inputs([v.name for v in graph.input]))
    visible.update(dict.fromkeys(t.name for t in graph.initializer))
    # Not unique: a body may give one value for several results, whose places say which is which.
    outputs = [v.name for v in graph.output]
    if "" in outputs:
        raise ModelRejected("a graph output has no name; export the model again.")
    _sort_nodes(graph, visible)
    for node in graph.node:
        for name in node.input:
            if name and name not in visible:
                raise ModelRejected(
                    f"node {node_label(node)} reads {name!r}, which nothing produces; export the model again."
                )
        for body in body_graphs(node):
            _check_graph(body, visible)
        for name in node.output:
            if name and name in visible:
                raise ModelRejected(
                    f"node {node_label(node)} writes {name!r}, which exists already; names must be unique."
                )
            if name:
                visible[name] = None
    for name in outputs:
        if name not in visible:
            raise ModelRejected(f"graph output {name!r} is produced by nothing; export the model again.")


def _unique_inputs(names: list[str]) -> dict[str, None]:
    seen: dict[str, None] = {}
    for name in names:
        if not name:
            raise ModelRejected("a graph input has no name; export the model again.")
        if name in seen:
            raise ModelRejected(f"graph input {name!r} is declared twice; names must be unique.")
        seen[name] = None
    return seen


def _sort_nodes(graph: GraphProto, visible: dict[str, None]) -> None:
    """Put producers before users, keeping the given order where it is possible.

    Raises:
        ModelRejected: two nodes wait for each other.
    """
    producer: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in node.output:
            producer.setdefault(name, index)
    reads = [
        [*node.input, *(name for body in body_graphs(node) for name in free_names(body))]
        for node in graph.node
    ]
    needs = [
        {producer[name] for name in names if name and name not in visible and name in producer}
        for names in reads
    ]
    if all(needed < index for index, group in enumerate(needs) for needed in group):
        return
    users: list[list[int]] = [[] for _ in needs]
    for index, group in enumerate(needs):
        for needed in sorted(group):
            users[needed].append(index)
    missing = [len(group) for group in needs]
    import heapq

    ready = [index for index, count in enumerate(missing) if count == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for user in users[index]:
            missing[user] -= 1
            if missing[user] == 0:
                heapq.heappush(ready, user)
    if len(order) < len(needs):
        stuck = next(index for index, count in enumerate(missing) if count)
        raise ModelRejected(
            f"node {node_label(graph.node[stuck])} is part of a cycle or waits for one; a model is acyclic."
        )
    nodes = [NodeProto.FromString(graph.node[index].SerializeToString()) for index in order]
    del graph.node[:]
    graph.node.extend(nodes)


def run_checker(model: ModelProto) -> None:
    """Let the ONNX checker see every node, its attributes and types; weights stay out of its sight.

    Tensors inside attributes must hold their data, or the checker would look for files.

    Raises:
        ModelRejected: it objects.
    """
    try:
        native.call("check_model", _without_weights(model).SerializeToString())
    except native.NativeError as error:
        reason = one_line(error).rstrip(".")
        raise ModelRejected(f"the ONNX checker refuses it: {reason}; export the model anew.") from error


def _without_weights(model: ModelProto) -> ModelProto:
    """A copy in which initializers are inputs of the same type."""
    skeleton = ModelProto(ir_version=model.ir_version)
    skeleton.opset_import.extend(model.opset_import)
    skeleton.functions.extend(model.functions)
    skeleton.graph.name = model.graph.name or "graph"
    skeleton.graph.node.extend(model.graph.node)
    skeleton.graph.input.extend(model.graph.input)
    skeleton.graph.output.extend(model.graph.output)
    inputs = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in inputs:
            skeleton.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    for value in skeleton.graph.output:
        # A result's type follows from the nodes; that it is not declared does no harm.
        if value.type.WhichOneof("value") is None:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for value in (*skeleton.graph.input, *skeleton.graph.output):
        # The checker wants a shape, even an open one; which shapes are needed is for the import to say.
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.SetInParent()
    return skeleton


def refuse_random(proto: NodeProto) -> None:
    """Refuse a node, or one in its bodies, that draws random numbers."""
    for node, _ in all_nodes([proto]):
        if node.op_type in RANDOM:
            raise UnsupportedOp(
                f"node {node_label(node)} draws random numbers, but the same input must always give the same "
                "result; feed the numbers as an input."
            )
