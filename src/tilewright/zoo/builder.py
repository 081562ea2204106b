"""Builds an ONNX model node by node, with readable names and the shape of every value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper

from tilewright.zoo.weights import uniform_weights

OPSET = 17
IR_VERSION = 8

_DTYPES: dict[str, int] = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}

Extents = int | tuple[int, ...]  # one number stands for every spatial axis


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the graph under construction.

    `power` is a rough estimate of its mean square for inputs of mean square 1. It decides nothing but the
    scale of the weights behind it, so that values neither grow nor fade with depth.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    power: float = 1.0

    @property
    def channels(self) -> int:
        """Extent of axis 1."""
        return self.shape[1]


class Builder:
    """One model under construction. Values are named after the node that makes them.

    >>> b = Builder("tiny", seed=0)
    >>> x = b.input("x", (1, 3, 8, 8))
    >>> with b.scope("layer1.0"):
    ...     y = b.conv(x, 4, 3, padding=1, name="conv1")
    >>> y.name, y.shape
    ('layer1.0.conv1', (1, 4, 8, 8))
    """

    def __init__(self, network: str, *, seed: int) -> None:
        self._network = network
        self._seed = seed
        self._model = ModelProto()
        self._model.ir_version = IR_VERSION
        self._model.producer_name = "tilewright.zoo"
        self._model.opset_import.add().version = OPSET
        self._graph = self._model.graph
        self._graph.name = network
        self._prefix = ""
        self._names: set[str] = set()
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Tensor] = {}
        self._values: dict[str, Tensor] = {}

    # The model around the nodes

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names made inside with `name` and a dot. Scopes nest."""
        outer = self._prefix
        self._prefix = f"{outer}{name}."
        try:
            yield
        finally:
            self._prefix = outer

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Tensor:
        """A graph input."""
        tensor = Tensor(name, tuple(shape), dtype)
        self._names.add(name)
        self._graph.input.append(helper.make_tensor_value_info(name, _DTYPES[dtype], tensor.shape))
        return tensor

    def output(self, tensor: Tensor, name: str) -> None:
        """Make `tensor` the graph output `name`."""
        for node in reversed(self._graph.node):
            if tensor.name in node.output:
                node.output[list(node.output).index(tensor.name)] = name
                break
        for node in self._graph.node:
            for index, used in enumerate(node.input):
                if used == tensor.name:
                    node.input[index] = name
        del self._values[tensor.name]
        self._graph.output.append(helper.make_tensor_value_info(name, _DTYPES[tensor.dtype], tensor.shape))

    def note(self, key: str, value: str) -> None:
        """Record a fact about the model in its metadata."""
        entry = self._model.metadata_props.add()
        entry.key, entry.value = key, value

    @property
    def num_nodes(self) -> int:
        """Nodes so far."""
        return len(self._graph.node)

    def finish(self) -> ModelProto:
        """The model, with the shape of every intermediate value."""
        for tensor in self._values.values():
            self._graph.value_info.append(
                helper.make_tensor_value_info(tensor.name, _DTYPES[tensor.dtype], tensor.shape)
            )
        return self._model

    def _unique(self, name: str) -> str:
        full = candidate = self._prefix + name
        repeat = 0
        while candidate in self._names:
            repeat += 1
            candidate = f"{full}_{repeat}"
        self._names.add(candidate)
        return candidate

    # Data

    def parameter(self, name: str, shape: Sequence[int], *, deviation: float, mean: float = 0.0) -> Tensor:
        """A trained tensor: seeded values under the scoped `name`, used once or shared by its caller."""
        tensor = Tensor(self._unique(name), tuple(shape), power=mean**2 + deviation**2)
        key = f"{self._network}/{self._seed}/{tensor.name}"
        data = _little_endian(uniform_weights(key, tensor.shape, mean=mean, deviation=deviation))
        self._store(tensor, data)
        return tensor

    def buffer(self, name: str, values: npt.NDArray[np.generic]) -> Tensor:
        """A fixed tensor that training would not change, such as positions or anchors."""
        tensor = Tensor(self._unique(name), values.shape, values.dtype.name)
        self._store(tensor, _little_endian(values))
        return tensor

    def _store(self, tensor: Tensor, data: bytes) -> None:
        initializer = self._graph.initializer.add()
        initializer.name = tensor.name
        initializer.data_type = _DTYPES[tensor.dtype]
        initializer.dims.extend(tensor.shape)
        initializer.raw_data = data

    def constant(self, value: float | Sequence[int] | npt.NDArray[np.generic]) -> Tensor:
        """A Constant node, float32 or int64 as the value is. Equal ones are shared."""
        array = np.asarray(value)
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key in self._constants:
            return self._constants[key]
        node = self._graph.node.add()
        node.op_type = "Constant"
        node.name = f"constant_{len(self._constants)}"
        node.output.append(node.name)
        attribute = node.attribute.add()
        attribute.name = "value"
        attribute.type = 4  # AttributeProto.TENSOR
        attribute.t.data_type = _DTYPES[array.dtype.name]
        attribute.t.dims.extend(array.shape)
        attribute.t.raw_data = _little_endian(array)
        tensor = Tensor(node.name, array.shape, array.dtype.name)
        self._values[tensor.name] = tensor
        self._constants[key] = tensor
        return tensor

    # Nodes

    def nodes(
        self,
        op_type: str,
        inputs: Sequence[Tensor | None],
        shapes: Sequence[tuple[int, ...]],
        *,
        name: str | None = None,
        dtype: str | None = None,
        power: float | None = None,
        **attributes: Any,
    ) -> tuple[Tensor, ...]:
        """Add a node with one output per shape; type and power are those of the first input unless given.

        None among the inputs stands for an optional one that is left out.
        """
        first = inputs[0]
        if first is None:
            raise ValueError(f"{self._prefix}{op_type}: the first input cannot be left out")
        dtype = first.dtype if dtype is None else dtype
        power = first.power if power is None else power
        node = self._graph.node.add()
        node.op_type = op_type
        node.name = self._unique(name or op_type.lower())
        node.input.extend("" if tensor is None else tensor.name for tensor in inputs)
        for key in sorted(attributes):
            node.attribute.append(helper.make_attribute(key, attributes[key]))
        names = [node.name] if len(shapes) == 1 else [f"{node.name}.{i}" for i in range(len(shapes))]
        node.output.extend(names)
        outputs = tuple(
            Tensor(output, tuple(shape), dtype, power) for output, shape in zip(names, shapes, strict=True)
        )
        self._values.update((tensor.name, tensor) for tensor in outputs)
        return outputs

    def node(
        self,
        op_type: str,
        inputs: Sequence[Tensor | None],
        shape: tuple[int, ...],
        *,
        name: str | None = None,
        dtype: str | None = None,
        power: float | None = None,
        **attributes: Any,
    ) -> Tensor:
        """Add a node with one output."""
        return self.nodes(op_type, inputs, [shape], name=name, dtype=dtype, power=power, **attributes)[0]

    # Convolutions, pools and what stands next to them

    def conv(
        self,
        x: Tensor,
        out_channels: int,
        kernel: Extents,
        *,
        stride: Extents = 1,
        padding: Extents = 0,
        groups: int = 1,
        bias: bool = False,
        name: str = "conv",
    ) -> Tensor:
        """A convolution whose weights bring the output to power 1."""
        rank = len(x.shape) - 2
        window, steps, pads = (_spread(value, rank) for value in (kernel, stride, padding))
        in_channels = x.channels // groups
        fan_in = in_channels * math.prod(window)
        weight = self.parameter(
            f"{name}.weight",
            (out_channels, in_channels, *window),
            deviation=1.0 / math.sqrt(fan_in * x.power),
        )
        inputs = [x, weight]
        if bias:
            inputs.append(self.parameter(f"{name}.bias", (out_channels,), deviation=0.05))
        return self.node(
            "Conv",
            inputs,
            (x.shape[0], out_channels, *_window_output(x, window, steps, pads, ceil=False)),
            name=name,
            power=1.0,
            dilations=(1,) * rank,
            group=groups,
            kernel_shape=window,
            pads=(*pads, *pads),
            strides=steps,
        )

    def conv_transpose(self, x: Tensor, out_channels: int, factor: int, *, name: str = "up") -> Tensor:
        """A biased transposed convolution that enlarges both sides `factor` times without overlap."""
        batch, channels, height, width = x.shape
        weight = self.parameter(
            f"{name}.weight",
            (channels, out_channels, factor, factor),
            deviation=1.0 / math.sqrt(channels * x.power),
        )
        return self.node(
            "ConvTranspose",
            [x, weight, self.parameter(f"{name}.bias", (out_channels,), deviation=0.05)],
            (batch, out_channels, factor * height, factor * width),
            name=name,
            power=1.0,
            dilations=(1, 1),
            group=1,
            kernel_shape=(factor, factor),
            pads=(0, 0, 0, 0),
            strides=(factor, factor),
        )

    def batch_norm(self, x: Tensor, *, scale: float = 1.0, eps: float = 1e-5, name: str = "bn") -> Tensor:
        """Inference batch normalisation: statistics near those of a unit input, gamma near `scale`."""
        shape = (x.channels,)
        parameters = (
            self.parameter(f"{name}.weight", shape, mean=scale, deviation=0.1 * scale),
            self.parameter(f"{name}.bias", shape, deviation=0.1),
            self.parameter(f"{name}.running_mean", shape, deviation=0.1),
            self.parameter(f"{name}.running_var", shape, mean=1.0, deviation=0.1),
        )
        power = x.power * scale**2
        return self.node("BatchNormalization", (x, *parameters), x.shape, name=name, power=power, epsilon=eps)

    def max_pool(
        self,
        x: Tensor,
        kernel: Extents,
        *,
        stride: Extents,
        padding: Extents = 0,
        ceil: bool = False,
        name: str = "maxpool",
    ) -> Tensor:
        """Max pooling; `ceil` rounds the output extent up instead of down."""
        return self._pool("MaxPool", x, (kernel, stride, padding), ceil=ceil, name=name)

    def avg_pool(
        self, x: Tensor, kernel: Extents, *, stride: Extents, padding: Extents = 0, name: str = "avgpool"
    ) -> Tensor:
        """Average pooling that counts the padding, PyTorch's default."""
        return self._pool(
            "AveragePool", x, (kernel, stride, padding), ceil=False, name=name, count_include_pad=1
        )

    def _pool(
        self,
        op_type: str,
        x: Tensor,
        geometry: tuple[Extents, Extents, Extents],
        *,
        ceil: bool,
        name: str,
        **attributes: Any,
    ) -> Tensor:
        window, steps, pads = (_spread(value, len(x.shape) - 2) for value in geometry)
        return self.node(
            op_type,
            [x],
            (*x.shape[:2], *_window_output(x, window, steps, pads, ceil=ceil)),
            name=name,
            ceil_mode=int(ceil),
            kernel_shape=window,
            pads=(*pads, *pads),
            strides=steps,
            **attributes,
        )

    def global_avg_pool(self, x: Tensor, *, name: str = "avgpool") -> Tensor:
        """Mean over the spatial axes, kept as 1 x 1."""
        return self.node("GlobalAveragePool", [x], (*x.shape[:2], 1, 1), name=name)

    def upsample(self, x: Tensor, factor: int = 2, *, name: str = "upsample") -> Tensor:
        """Nearest-neighbour enlargement of an NCHW value by an integer factor."""
        n, c, h, w = x.shape
        scales = self.constant(np.array([1, 1, factor, factor], dtype=np.float32))
        return self.node(
            "Resize",
            [x, None, scales],
            (n, c, h * factor, w * factor),
            name=name,
            coordinate_transformation_mode="asymmetric",
            mode="nearest",
            nearest_mode="floor",
        )

    def resize_bilinear(self, x: Tensor, height: int, width: int, *, name: str = "interpolate") -> Tensor:
        """Bilinear resampling with corners not aligned."""
        shape = (*x.shape[:2], height, width)
        return self.node(
            "Resize",
            [x, None, None, self.constant(shape)],
            shape,
            name=name,
            coordinate_transformation_mode="pytorch_half_pixel",
            cubic_coeff_a=-0.75,
            mode="linear",
            nearest_mode="floor",
        )

    # Products

    def gemm(self, x: Tensor, out_features: int, *, name: str = "fc") -> Tensor:
        """A biased linear layer on a matrix; its weights bring the output to power 1."""
        rows, in_features = x.shape
        weight = self.parameter(
            f"{name}.weight", (out_features, in_features), deviation=1.0 / math.sqrt(in_features * x.power)
        )
        bias = self.parameter(f"{name}.bias", (out_features,), deviation=0.05)
        return self.node(
            "Gemm",
            [x, weight, bias],
            (rows, out_features),
            name=name,
            power=1.0,
            alpha=1.0,
            beta=1.0,
            transB=1,
        )

    def matmul(self, a: Tensor, b: Tensor, *, name: str = "matmul") -> Tensor:
        """A product of (stacks of) matrices; the leading axes broadcast."""
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return self.node("MatMul", [a, b], (*batch, a.shape[-2], b.shape[-1]), name=name, power=1.0)

    # Element by element

    def unary(self, op_type: str, x: Tensor, *, name: str | None = None, **attributes: Any) -> Tensor:
        """A node whose output has its input's shape."""
        return self.node(op_type, [x], x.shape, name=name, **attributes)

    def binary(self, op_type: str, a: Tensor, b: Tensor | float, *, name: str | None = None) -> Tensor:
        """A broadcasting node of two operands; a number becomes a constant."""
        other = b if isinstance(b, Tensor) else self.constant(float(b))
        return self.node(op_type, [a, other], np.broadcast_shapes(a.shape, other.shape), name=name)

    def relu(self, x: Tensor, *, name: str = "relu") -> Tensor:
        """max(x, 0)."""
        return self.node("Relu", [x], x.shape, name=name, power=0.5 * x.power)

    def clip(self, x: Tensor, low: float, high: float, *, name: str = "clip") -> Tensor:
        """min(max(x, low), high), for bounds that cut like a ReLU."""
        bounds = self.constant(float(low)), self.constant(float(high))
        return self.node("Clip", [x, *bounds], x.shape, name=name, power=0.5 * x.power)

    def add(self, a: Tensor, b: Tensor | float, *, name: str = "add") -> Tensor:
        """a + b."""
        total = self.binary("Add", a, b, name=name)
        return replace(total, power=a.power + b.power) if isinstance(b, Tensor) else total

    def mul(self, a: Tensor, b: Tensor | float, *, name: str = "mul") -> Tensor:
        """a * b."""
        return self.binary("Mul", a, b, name=name)

    def softmax(self, x: Tensor, *, name: str = "softmax") -> Tensor:
        """Softmax over the last axis."""
        return self.unary("Softmax", x, name=name, axis=-1)

    # Reductions

    def reduce_mean(self, x: Tensor, axes: Sequence[int], *, keepdims: bool, name: str = "mean") -> Tensor:
        """Mean over `axes` (negative ones count from the end)."""
        reduced = {axis % len(x.shape) for axis in axes}
        shape = [1 if axis in reduced else extent for axis, extent in enumerate(x.shape)]
        if not keepdims:
            shape = [extent for axis, extent in enumerate(x.shape) if axis not in reduced]
        return self.node("ReduceMean", [x], tuple(shape), name=name, axes=tuple(axes), keepdims=int(keepdims))

    # Moving data

    def reshape(self, x: Tensor, shape: Sequence[int], *, name: str = "reshape") -> Tensor:
        """Reshape to a fully known `shape`."""
        if math.prod(shape) != math.prod(x.shape):
            raise ValueError(f"{self._prefix}{name}: {x.shape} does not reshape to {tuple(shape)}")
        return self.node("Reshape", [x, self.constant(tuple(shape))], tuple(shape), name=name)

    def flatten(self, x: Tensor, *, name: str = "flatten") -> Tensor:
        """Keep axis 0, join the others."""
        return self.node("Flatten", [x], (x.shape[0], math.prod(x.shape[1:])), name=name, axis=1)

    def transpose(self, x: Tensor, order: Sequence[int], *, name: str = "transpose") -> Tensor:
        """Reorder the axes."""
        shape = tuple(x.shape[axis] for axis in order)
        return self.node("Transpose", [x], shape, name=name, perm=tuple(order))

    def concat(self, parts: Sequence[Tensor], *, axis: int = 1, name: str = "concat") -> Tensor:
        """Join along `axis`."""
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        power = sum(part.shape[axis] * part.power for part in parts) / shape[axis]
        return self.node("Concat", parts, tuple(shape), name=name, power=power, axis=axis)

    def split(
        self, x: Tensor, sizes: Sequence[int], *, axis: int = 1, name: str = "split"
    ) -> tuple[Tensor, ...]:
        """Cut along `axis` into pieces of the given sizes."""
        shapes = [
            tuple(size if a == axis % len(x.shape) else e for a, e in enumerate(x.shape)) for size in sizes
        ]
        return self.nodes("Split", [x, self.constant(tuple(sizes))], shapes, name=name, axis=axis)

    def slice(
        self, x: Tensor, axis: int, start: int, end: int, *, step: int = 1, name: str = "slice"
    ) -> Tensor:
        """Elements [start, end) of `axis`, every `step`-th."""
        extent = len(range(x.shape[axis])[start:end:step])
        shape = tuple(extent if a == axis % len(x.shape) else e for a, e in enumerate(x.shape))
        bounds = [self.constant([value]) for value in (start, end, axis, step)]
        return self.node("Slice", [x, *bounds], shape, name=name)

    def pad(self, x: Tensor, pads: Sequence[int], *, name: str = "pad") -> Tensor:
        """Zeros around: how many before each axis, then how many behind each."""
        rank = len(x.shape)
        shape = tuple(e + pads[a] + pads[a + rank] for a, e in enumerate(x.shape))
        return self.node("Pad", [x, self.constant(tuple(pads))], shape, name=name, mode="constant")

    def gather(self, table: Tensor, indices: Tensor, *, axis: int = 0, name: str = "gather") -> Tensor:
        """Entries of `table` along `axis`."""
        shape = (*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :])
        return self.node("Gather", [table, indices], shape, name=name, axis=axis)

    def unsqueeze(self, x: Tensor, axis: int, *, name: str = "unsqueeze") -> Tensor:
        """Insert an axis of extent 1."""
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        return self.node("Unsqueeze", [x, self.constant([axis])], shape, name=name)

    def squeeze(self, x: Tensor, axis: int, *, name: str = "squeeze") -> Tensor:
        """Drop an axis of extent 1."""
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        return self.node("Squeeze", [x, self.constant([axis])], shape, name=name)


def _spread(value: Extents, rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else value


def _window_output(
    x: Tensor, window: tuple[int, ...], steps: tuple[int, ...], pads: tuple[int, ...], *, ceil: bool
) -> tuple[int, ...]:
    """Spatial output extents; with `ceil`, no window starts in the padding at the end (PyTorch's rule)."""
    extents = []
    for extent, size, step, pad in zip(x.shape[2:], window, steps, pads, strict=True):
        room = extent + 2 * pad - size
        if room < 0:
            raise ValueError(f"{x.name} {x.shape}: a window of {window} does not fit; take a larger image.")
        count = (-(-room // step) if ceil else room // step) + 1
        if ceil and (count - 1) * step >= extent + pad:
            count -= 1
        extents.append(count)
    return tuple(extents)


def _little_endian(values: npt.NDArray[np.generic]) -> bytes:
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
