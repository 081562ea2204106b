"""The places of a model where values become bytes: inputs of layers, and of what passes their bytes on."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from onnx import ModelProto

from tilewright.quantization.layers import quantizable_layers

_PASSING = ("Add", "AveragePool", "Concat", "GlobalAveragePool", "MaxPool")
# Bounds on bytes: a layer's result is quantised behind them.
_BOUNDS = ("Clip", "Relu")


def points(model: ModelProto, layers: Collection[int]) -> Iterator[int]:
    """Positions of the nodes that read bytes where the layers at these positions are quantised, rising.

    Besides the layers these are sums, pools and concatenations of what quantised convolutions make. Sums of
    other values, such as the residual stream of a transformer, keep their float inputs: their ranges are
    wide, and no integer product waits for them.
    """
    made: set[str] = set()
    for number, node in enumerate(model.graph.node):
        passes = not node.domain and node.op_type in _PASSING and any(name in made for name in node.input)
        if number in layers or passes:
            yield number
            if passes or node.op_type == "Conv":
                made.add(node.output[0])
        elif node.op_type in _BOUNDS and node.input[0] in made:
            made.add(node.output[0])


def activations_of(model: ModelProto) -> dict[str, None]:
    """Names of all that may become bytes, in the model's order."""
    constants = {tensor.name for tensor in model.graph.initializer}
    layers = {layer.number for layer in quantizable_layers(model)}
    names: dict[str, None] = {}
    for number in points(model, layers):
        node = model.graph.node[number]
        read = node.input[:1] if number in layers else node.input
        names |= dict.fromkeys(name for name in read if name and name not in constants)
    return names
