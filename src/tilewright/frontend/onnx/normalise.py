"""Forms that runtimes accept beside ONNX's own, rewritten: the rest of the frontend sees one form only.

What is accepted is what both onnxruntime and OpenVINO run with the same result (`docs/wild.md` has the
table); whatever they disagree on stays an error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    defs,
    helper,
)

from tilewright.arrays import Array
from tilewright.errors import ModelRejected
from tilewright.frontend.onnx.limits import MAX_FOLDED_BYTES, MAX_VALUE_BYTES
from tilewright.frontend.onnx.protos import all_nodes, model_nodes, node_label
from tilewright.frontend.onnx.tensors import checked_shape, embedded_array, supported_dtype
from tilewright.ir.bodies import body_graphs, own_names, rename_free

Key = tuple[str, str, str]

# Initializers need not be inputs from this version on, and every operator set is named from an earlier one.
_OLDEST_IR_VERSION = 4
# Texts that exporters write for a dim that has no name: two of them are two dims.
_NAMELESS_DIMS = frozenset({"?", "-1", "None"})
# Domains that a runtime knows, whether a model names their version or not, and the version it takes then.
_KNOWN_DOMAINS = {"com.microsoft": 1, "ai.onnx.ml": 5}


def normalise_model(model: ModelProto, data: Mapping[int, Array]) -> dict[int, Array]:
    """Rewrite a model in place, and give the data of its initializers by their numbers from now on.

    Raises:
        ModelRejected: forms that contradict each other, or sparse tensors too large to be dense.
    """
    if model.ir_version:
        model.ir_version = max(model.ir_version, _OLDEST_IR_VERSION)
    _one_name_of_onnx(model)
    _import_each_domain_once(model)
    _drop_shadowed_functions(model)
    _fill_defaults_of_functions(model)
    graphs = [model.graph, *(g for node in model_nodes(model) for g in body_graphs(node))]
    for graph in graphs:
        _open_nameless_dims(graph)
    _make_dense(model, graphs)
    for graph in graphs[1:]:
        _keep_last(graph, {})
    _copy_repeated_outputs(model.graph)
    return widen_initializers(model, _keep_last(model.graph, data))


def _one_name_of_onnx(model: ModelProto) -> None:
    """`ai.onnx` is the domain whose name is empty."""
    for item in (*model_nodes(model), *model.opset_import, *model.functions, *_imports_of_functions(model)):
        if item.domain == "ai.onnx":
            item.domain = ""


def _imports_of_functions(model: ModelProto) -> Iterator[Any]:
    for function in model.functions:
        yield from function.opset_import


def _import_each_domain_once(model: ModelProto) -> None:
    """Of domains that nodes use, one version each; of others none."""
    used = {"", *(node.domain for node in model_nodes(model))}
    versions: dict[str, int] = {}
    for entry in model.opset_import:
        known = versions.setdefault(entry.domain, entry.version)
        if known != entry.version and entry.domain in used:
            raise ModelRejected(
                f"opset_import names the domain {entry.domain or 'ai.onnx'!r} twice, with versions {known} "
                f"and {entry.version}, and runtimes differ in which counts; keep one."
            )
    for domain, version in _KNOWN_DOMAINS.items():
        if domain in used:
            versions.setdefault(domain, version)
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(d, v) for d, v in versions.items() if d in used)


def _function_key(node: NodeProto | FunctionProto, name: str) -> Key:
    return node.domain, name, getattr(node, "overload", "")


def _drop_shadowed_functions(model: ModelProto) -> None:
    """Operators of ai.onnx are themselves, whatever local functions are called."""
    opset = next((entry.version for entry in model.opset_import if not entry.domain), 0)
    kept = [f for f in model.functions if f.domain or not _is_standard(f.name, opset)]
    if len(kept) < len(model.functions):
        copies = [FunctionProto.FromString(function.SerializeToString()) for function in kept]
        del model.functions[:]
        model.functions.extend(copies)


def _is_standard(op_type: str, opset: int) -> bool:
    try:
        defs.get_schema(op_type, opset, "")
    except defs.SchemaError:
        return False
    return True


def _fill_defaults_of_functions(model: ModelProto) -> None:
    """Calls that leave out an attribute for which a local function has a default get it."""
    defaults = {
        _function_key(f, f.name): list(f.attribute_proto) for f in model.functions if f.attribute_proto
    }
    if not defaults:
        return
    for node in model_nodes(model):
        given = {attribute.name for attribute in node.attribute}
        missing = defaults.get(_function_key(node, node.op_type), ())
        node.attribute.extend(attribute for attribute in missing if attribute.name not in given)


def _open_nameless_dims(graph: GraphProto) -> None:
    """Dims of -1, and those whose name says that they have none, are open and nameless."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value == -1 or dim.dim_param in _NAMELESS_DIMS:
                dim.Clear()


def _make_dense(model: ModelProto, graphs: list[GraphProto]) -> None:
    """Sparse constants become dense ones, all together of a bounded size."""
    sparse = [(graph, tensor) for graph in graphs for tensor in graph.sparse_initializer]
    constants = [
        attribute
        for node in model_nodes(model)
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.type == AttributeProto.SPARSE_TENSOR
    ]
    total_bytes = 0
    for found in (*(tensor for _, tensor in sparse), *(a.sparse_tensor for a in constants)):
        dtype = supported_dtype(found.values.data_type, f"sparse tensor {found.values.name!r}")
        shape = checked_shape(found.dims, dtype, f"sparse tensor {found.values.name!r}")
        total_bytes += math.prod(shape) * dtype.size_bytes
        if total_bytes > MAX_FOLDED_BYTES:
            raise ModelRejected(
                f"sparse tensors take more than {MAX_FOLDED_BYTES >> 20} MiB when they are dense; save them "
                "as dense tensors."
            )
    for graph, tensor in sparse:
        graph.initializer.append(_dense(tensor))
    for graph in graphs:
        del graph.sparse_initializer[:]
    for attribute in constants:
        dense = _dense(attribute.sparse_tensor)
        attribute.Clear()
        attribute.name, attribute.type = "value", AttributeProto.TENSOR
        attribute.t.CopyFrom(dense)


def _dense(sparse: SparseTensorProto) -> Any:
    """A sparse tensor's values at their places among zeros.

    Raises:
        ModelRejected: indices that are no places of it, or as many as there are values.
    """
    what = f"sparse tensor {sparse.values.name!r}"
    if sparse.values.data_location or sparse.indices.data_location:
        raise ModelRejected(f"{what} has its data in another file; save it as a dense tensor.")
    values, indices = embedded_array(sparse.values).reshape(-1), embedded_array(sparse.indices)
    shape = tuple(sparse.dims)
    rank, count = len(shape), math.prod(shape)
    if indices.dtype != np.int64 or indices.shape not in ((len(values),), (len(values), rank)):
        raise ModelRejected(f"{what} has {len(values)} values, but not as many indices; save it anew.")
    if indices.ndim == 2:
        if (indices < 0).any() or (indices >= np.array(shape)).any():
            raise ModelRejected(f"{what} has an index outside of {list(shape)}; save it anew.")
        indices = np.ravel_multi_index(tuple(indices.T), shape)
    elif (indices < 0).any() or (indices >= count).any():
        raise ModelRejected(f"{what} has an index outside of its {count} elements; save it anew.")
    if values.dtype == object:
        raise ModelRejected(f"{what} holds text; save it as a dense tensor.")
    dense = np.zeros(count, values.dtype)
    dense[indices] = values
    return helper.make_tensor(sparse.values.name, sparse.values.data_type, shape, dense.tobytes(), raw=True)


def _keep_last(graph: GraphProto, data: Mapping[int, Array]) -> dict[int, Array]:
    """Of initializers with one name the last counts; one without a name is nothing that a node could read."""
    last = {tensor.name: number for number, tensor in enumerate(graph.initializer)}
    last.pop("", None)
    if len(last) == len(graph.initializer):
        return dict(data)
    kept = sorted(last.values())
    for number in sorted(set(range(len(graph.initializer))) - set(kept), reverse=True):
        del graph.initializer[number]
    return {place: data[number] for place, number in enumerate(kept) if number in data}


def _copy_repeated_outputs(graph: GraphProto) -> None:
    """An output that is listed again is given again, under a name of its own."""
    copies: dict[str, Iterator[str]] = {}
    taken = own_names(graph)
    for value in graph.output:
        if value.name in copies and value.name:
            name = next(copies[value.name])
            graph.node.append(helper.make_node("Identity", [value.name], [name]))
            value.name = name
        else:
            copies[value.name] = _free_names(value.name, taken)


def unshadow(body: GraphProto, outer: Mapping[str, None]) -> None:
    """Give inputs and initializers of a body names of their own where outer values have these."""
    shadows = [v.name for v in (*body.input, *body.initializer) if v.name in outer]
    if not shadows:
        return
    taken = {*outer, *own_names(body)}
    for node, _ in all_nodes(body.node):
        taken.update((*node.input, *node.output))
        for graph in body_graphs(node):
            taken |= own_names(graph)
    names = {name: next(_free_names(name, taken)) for name in dict.fromkeys(shadows)}
    for value in (*body.input, *body.initializer, *body.output, *body.value_info):
        value.name = names.get(value.name, value.name)
    for node in body.node:
        if any(name in names for name in node.output):
            raise ModelRejected(
                f"node {node_label(node)} writes a value that exists already; names must be unique."
            )
        node.input[:] = [names.get(name, name) for name in node.input]
        for graph in body_graphs(node):
            rename_free(graph, names)


def _free_names(stem: str, taken: set[str]) -> Iterator[str]:
    for number in itertools.count(1):
        name = f"{stem}_{number}"
        if name not in taken:
            taken.add(name)
            yield name


_FOUR_BITS = (TensorProto.INT4, TensorProto.UINT4)
_BY_VALUE = frozenset({"DequantizeLinear", "GatherBlockQuantized"})


def widen_initializers(model: ModelProto, data: dict[int, Array]) -> dict[int, Array]:
    """Make bytes of initializers of four bits that are only dequantised; gives the data that lie apart.

    There is no element type of four bits here; bytes are the same to what dequantises them, signed also where
    the numbers are not, as unsigned ones may hold two numbers each. Others stay, and are refused.
    """
    numbers = [i for i, t in enumerate(model.graph.initializer) if t.data_type in _FOUR_BITS]
    if not numbers:
        return data
    kept = _otherwise_used(model)
    remaining = dict(data)
    for number in numbers:
        tensor = model.graph.initializer[number]
        packed = None if tensor.name in kept else _packed(tensor, data.get(number))
        count = math.prod(tensor.dims) if packed is not None and min(tensor.dims, default=1) >= 0 else -1
        if packed is None or not 0 <= count <= MAX_VALUE_BYTES or len(packed) != (count + 1) // 2:
            continue
        values = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)[:count]
        if tensor.data_type == TensorProto.INT4:
            values = values.astype(np.int8)
            values -= (values > 7) * np.int8(16)
        remaining.pop(number, None)
        tensor.ClearField("int32_data")
        tensor.data_type, tensor.raw_data = TensorProto.INT8, values.astype(np.int8).tobytes()
    return remaining


def _packed(tensor: TensorProto, apart: Array | None) -> Array | None:
    """The bytes that hold two numbers each."""
    if tensor.data_location == TensorProto.EXTERNAL or tensor.HasField("segment"):
        return None
    if apart is not None:
        return apart.view(np.uint8)
    if tensor.HasField("raw_data"):
        return np.frombuffer(tensor.raw_data, np.uint8)
    return (np.array(tensor.int32_data, np.int64) & 255).astype(np.uint8)


def _otherwise_used(model: ModelProto) -> set[str]:
    """Names that something reads for more than their values."""
    names = {value.name for value in (*model.graph.output, *model.graph.input)}
    graphs: list[GraphProto] = [g for node in model_nodes(model) for g in body_graphs(node)]
    names.update(value.name for graph in graphs for value in graph.output)
    for node in model_nodes(model):
        if node.op_type not in _BY_VALUE:
            names.update(node.input)
    return names
