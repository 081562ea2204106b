"""Ways to quantise a model, each a rewriting of it in ONNX that other engines run too."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tilewright.arrays import Array
from tilewright.quantization.layers import (
    QuantizableLayer,
    constants_of,
    drop_unread,
    label_of,
    quantizable_layers,
    transposes_weights,
)
from tilewright.quantization.points import points
from tilewright.records import dataclass

Bounds = Mapping[str, tuple[float, float]]

MICROSOFT = "com.microsoft"
# Steps of a byte; a range of zeros has some step, too.
_NUM_STEPS = 255
_LEAST_RANGE = 1e-6
_LEAST_SCALE = 1e-8
_MOST_STEPS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Method:
    """A way to quantise: what it does, which operators it knows, and whether it needs ranges of values."""

    name: str
    text: str
    op_types: tuple[str, ...]
    needs_ranges: bool

    def layers(self, model: ModelProto) -> tuple[QuantizableLayer, ...]:
        """The layers of a model that it can quantise."""
        return tuple(layer for layer in quantizable_layers(model) if layer.op_type in self.op_types)


METHODS = {
    method.name: method
    for method in (
        Method(
            "static",
            "bytes between layers, scales from samples: QuantizeLinear and DequantizeLinear",
            ("Conv", "Gemm", "MatMul"),
            True,
        ),
        Method(
            "dynamic",
            "weights are bytes, inputs become bytes as they arrive: DynamicQuantizeLinear, MatMulInteger",
            ("Gemm", "MatMul"),
            False,
        ),
        Method(
            "weights",
            "weights of few bits in blocks, products in float: MatMulNBits",
            ("Gemm", "MatMul"),
            False,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Choices:
    """What a rewriting is told: scales for each channel or one, bits and block of `weights`."""

    per_channel: bool = True
    bits: int = 8
    block: int = 32


def quantized(
    model: ModelProto, method: str, layers: Collection[int], bounds: Bounds, choices: Choices
) -> ModelProto:
    """The model with the layers at these positions quantised.

    `bounds` are the least and the largest of values by name, for `static`; what has none stays float.
    """
    known = {layer.number: layer for layer in METHODS[method].layers(model) if layer.number in layers}
    writer = _Writer(model, choices)
    readers = set(points(model, known)) if method == "static" else known.keys()
    for number, node in enumerate(model.graph.node):
        if number not in readers:
            writer.keep(node)
        elif method == "static":
            writer.static(node, known.get(number), bounds)
        elif method == "dynamic":
            writer.dynamic(node, known[number])
        else:
            writer.blocks(node, known[number])
    return writer.model()


class _Writer:
    """Nodes and constants of the quantised model, in the order of the float one."""

    def __init__(self, model: ModelProto, choices: Choices) -> None:
        self._source = model
        self._choices = choices
        self._constants = constants_of(model)
        self._nodes: list[NodeProto] = []
        self._new: dict[str, Array] = {}
        self._stored: dict[Hashable, str] = {}
        self._scales: dict[str, np.float32] = {}
        self._dequantized: dict[str, str] = {}
        self._taken = {name for node in model.graph.node for name in (*node.input, *node.output)}
        self._uses_blocks = False

    def keep(self, node: NodeProto) -> None:
        """A node as it is."""
        self._nodes.append(node)

    def static(self, node: NodeProto, layer: QuantizableLayer | None, bounds: Bounds) -> None:
        """A layer on bytes, or a node that passes bytes on; float where a range is missing."""
        read = node.input[:1] if layer is not None else node.input
        if any(name not in bounds for name in read if name not in self._constants):
            self._nodes.append(node)
            return
        inputs = list(node.input)
        for position, name in enumerate(read):
            if name in bounds:
                inputs[position] = self._activation(name, bounds[name])
        if layer is not None:
            bias = self._constants.get(inputs[2]) if len(inputs) > 2 else None
            if bias is None or bias.ndim != 1:
                inputs[1], _ = self._weight(layer)
            else:
                step = self._scales[node.input[0]]
                bias = np.broadcast_to(bias, self._constants[layer.weight].shape[layer.axis])
                inputs[1], scale = self._weight(layer, np.abs(bias) / (step * np.float32(_MOST_STEPS)))
                inputs[2] = self._bias(bias, scale * step, inputs[2])
        self._add(node, inputs)

    def dynamic(self, node: NodeProto, layer: QuantizableLayer) -> None:
        """A product of bytes: the input's range is found as it arrives."""
        data = self._constants[layer.weight]
        data = data.T if transposes_weights(node) else data
        whole, scale = self._whole_numbers(data, 1)
        stem = layer.name
        x, x_scale, x_zero = (self._name(f"{stem}_{part}") for part in ("bytes", "scale", "zero"))
        weight, weight_scale = self._constant(f"{stem}_weight", whole), self._constant(f"{stem}_steps", scale)
        weight_zero = self._constant(f"{stem}_weight_zero", np.zeros((), np.int8))
        self._make("DynamicQuantizeLinear", [node.input[0]], [x, x_scale, x_zero])
        total = self._make("MatMulInteger", [x, weight, x_zero, weight_zero], [self._name(f"{stem}_sum")])
        real = self._make("Cast", [total], [self._name(f"{stem}_float")], to=TensorProto.FLOAT)
        both = self._make("Mul", [x_scale, weight_scale], [self._name(f"{stem}_step")])
        self._finish(node, "Mul", [real, both])

    def blocks(self, node: NodeProto, layer: QuantizableLayer) -> None:
        """A product of float with weights of few bits, a scale for each block of a column."""
        data = self._constants[layer.weight]
        columns = data if transposes_weights(node) else data.T  # (outputs, inputs)
        packed, scales = packed_blocks(columns, self._choices.bits, self._choices.block)
        stem = layer.name
        operands = [
            node.input[0],
            self._constant(f"{stem}_weight", packed),
            self._constant(f"{stem}_scales", scales),
        ]
        self._uses_blocks = True
        attributes = {
            "K": columns.shape[1],
            "N": columns.shape[0],
            "bits": self._choices.bits,
            "block_size": self._choices.block,
            "domain": MICROSOFT,
        }
        self._finish(node, "MatMulNBits", operands, **attributes)

    def _finish(self, node: NodeProto, op_type: str, operands: Sequence[str], **attributes: Any) -> None:
        """The last node of a product and its bias, where it has one: they make the layer's result."""
        label = label_of(node)
        if len(node.input) < 3 or not node.input[2]:
            self._make(op_type, operands, [node.output[0]], name=label, **attributes)
            return
        product = self._make(op_type, operands, [self._name(f"{label}_product")], name=label, **attributes)
        self._make("Add", [product, node.input[2]], [node.output[0]])

    def model(self) -> ModelProto:
        """The quantised model, without constants that nothing reads any more."""
        source = self._source.graph
        new = [numpy_helper.from_array(np.asarray(data), name) for name, data in self._new.items()]
        graph = helper.make_graph(
            self._nodes, source.name or "quantized", source.input, source.output, [*source.initializer, *new]
        )
        imports = {known.domain: known.version for known in self._source.opset_import}
        if self._uses_blocks:
            imports.setdefault(MICROSOFT, 1)
        made = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(domain, version) for domain, version in imports.items()],
            ir_version=max(self._source.ir_version, 7),
            functions=self._source.functions,
            producer_name="tilewright",
        )
        drop_unread(made)
        return made

    def _activation(self, name: str, bounds: tuple[float, float]) -> str:
        """A value as bytes and back, once for all that read it: unsigned, asymmetric, zero exact."""
        if name not in self._scales:
            low, high = min(bounds[0], 0.0), max(bounds[1], 0.0)
            scale = np.float32(max(high - low, _LEAST_RANGE) / _NUM_STEPS)
            zero = np.uint8(np.clip(np.rint(-low / scale), 0, _NUM_STEPS))
            self._scales[name] = scale
            parameters = [
                self._constant(f"{name}_scale", np.asarray(scale)),
                self._constant(f"{name}_zero", np.asarray(zero)),
            ]
            whole = self._make("QuantizeLinear", [name, *parameters], [self._name(f"{name}_bytes")])
            result = self._name(f"{name}_dequantized")
            self._dequantized[name] = self._make("DequantizeLinear", [whole, *parameters], [result])
        return self._dequantized[name]

    def _weight(self, layer: QuantizableLayer, least: Array | float = 0.0) -> tuple[str, Array]:
        """Weights as signed bytes, symmetric, and their scales, of channels `least` or more."""
        stem = layer.name
        whole, scale = self._whole_numbers(self._constants[layer.weight], layer.axis, least)
        parameters = [
            self._constant(f"{stem}_weight", whole),
            self._constant(f"{stem}_weight_scale", scale),
            self._constant(f"{stem}_weight_zero", np.zeros(scale.shape, np.int8)),
        ]
        result = self._name(f"{stem}_weight_dequantized")
        attributes = {"axis": layer.axis} if scale.ndim else {}
        return self._make("DequantizeLinear", parameters, [result], **attributes), scale

    def _whole_numbers(self, data: Array, axis: int, least: Array | float = 0.0) -> tuple[Array, Array]:
        others = tuple(a for a in range(data.ndim) if a != axis)
        scale = np.maximum(np.maximum(np.abs(data).max(axis=others) / 127, least), _LEAST_SCALE)
        scale = (scale if self._choices.per_channel else scale.max()).astype(np.float32)
        shape = [-1 if a == axis else 1 for a in range(data.ndim)]
        spread = scale.reshape(shape) if self._choices.per_channel else scale
        return np.clip(np.rint(data / spread), -127, 127).astype(np.int8), scale

    def _bias(self, bias: Array, scale: Array, name: str) -> str:
        """A bias in steps of the sums, 32 bits, which scales are large enough for."""
        steps = np.broadcast_to(scale, bias.shape).astype(np.float32)
        whole = np.clip(np.rint(bias.astype(np.float64) / steps), -_MOST_STEPS, _MOST_STEPS).astype(np.int32)
        operands = [self._constant(f"{name}_whole", whole), self._constant(f"{name}_steps", steps)]
        return self._make("DequantizeLinear", operands, [self._name(f"{name}_dequantized")], axis=0)

    def _add(self, node: NodeProto, inputs: Sequence[str]) -> None:
        copy = NodeProto()
        copy.CopyFrom(node)
        del copy.input[:]
        copy.input.extend(inputs)
        self._nodes.append(copy)

    def _make(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> str:
        self._nodes.append(helper.make_node(op_type, inputs, outputs, **attributes))
        return outputs[0]

    def _constant(self, stem: str, data: Array) -> str:
        """The name of a constant; equal ones, as of a weight that several layers read, are stored once."""
        digest = hashlib.sha256(data.tobytes()).digest()
        key = (data.dtype.str, data.shape, digest)
        if key not in self._stored:
            self._stored[key] = self._name(stem)
            self._new[self._stored[key]] = data
        return self._stored[key]

    def _name(self, stem: str) -> str:
        """A name that nothing in the model has, the stem where it is free."""
        name, number = stem, 1
        while name in self._taken:
            name, number = f"{stem}_{number}", number + 1
        self._taken.add(name)
        return name


def packed_blocks(columns: Array, bits: int, block: int) -> tuple[Array, Array]:
    """Weights (outputs, inputs) as whole numbers of so many bits, and the scale of each block of inputs.

    Numbers lie around half of their range, two of 4 bits in a byte, the lower first; shapes are (outputs,
    blocks, bytes of a block) and (outputs * blocks,), as MatMulNBits reads them. The largest of a block by
    size stands at the end of the range that has one step more, so its sign is kept exactly.
    """
    num_outputs, num_inputs = columns.shape
    num_blocks = -(-num_inputs // block)
    padded = np.zeros((num_outputs, num_blocks * block), np.float32)
    padded[:, :num_inputs] = columns
    parts = padded.reshape(num_outputs, num_blocks, block)
    middle = 1 << (bits - 1)
    at = np.abs(parts).argmax(axis=-1)[..., None]
    extreme = np.take_along_axis(parts, at, axis=-1)
    scale = np.where(extreme == 0, np.float32(1), extreme / np.float32(-middle)).astype(np.float32)
    whole = np.clip(np.rint(parts / scale) + middle, 0, 2 * middle - 1).astype(np.uint8)
    if bits == 4:
        whole = whole[..., 0::2] | (whole[..., 1::2] << 4)
    return whole, scale.reshape(-1)
