"""Counts that the tests of the zoo take from a model, independent of the builder."""

from __future__ import annotations

from math import prod

import onnx

_NOT_TRAINED = (".running_mean", ".running_var", ".relative_position_index")
_BUFFERS = ("pos_enc.pe", "model.24.grid.", "model.24.anchor_grid.")


def num_parameters(model: onnx.ModelProto) -> int:
    """Trained numbers: every initializer but statistics of batch normalisation and fixed tables."""
    return sum(
        prod(initializer.dims)
        for initializer in model.graph.initializer
        if not initializer.name.endswith(_NOT_TRAINED) and not initializer.name.startswith(_BUFFERS)
    )


def shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shape of every value, as the model declares it."""
    graph = model.graph
    known = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.output, *graph.value_info)
    }
    known.update((initializer.name, tuple(initializer.dims)) for initializer in graph.initializer)
    return known


def node_macs(node: onnx.NodeProto, known: dict[str, tuple[int, ...]]) -> int:
    """Multiply-accumulates of one convolution or product, 0 for anything else."""
    match node.op_type:
        case "Conv":
            return prod(known[node.output[0]]) * prod(known[node.input[1]][1:])
        case "Gemm" | "MatMul":
            return prod(known[node.output[0]]) * known[node.input[0]][-1]
    return 0


def num_macs(model: onnx.ModelProto) -> int:
    known = shapes(model)
    return sum(node_macs(node, known) for node in model.graph.node)
