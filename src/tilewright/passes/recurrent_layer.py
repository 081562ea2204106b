"""What passes that write recurrent layers in other operators share: a layer's facts, its parts, new nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attributes, Node, Value
from tilewright.ir.ops.cells import ACTIVATIONS
from tilewright.ir.ops.recurrent import (
    DEFAULT_ACTIVATIONS,
    QUANTIZED_LSTM,
    RECURRENCE_SCALE,
    RECURRENCE_ZERO,
    WEIGHT_SCALE,
    WEIGHT_ZERO,
    extents_of_layer,
    is_layer,
    is_quantized,
    kind_of_layer,
    layer_activations,
    split_bias,
)
from tilewright.ir.ops.registry import MICROSOFT_DOMAIN
from tilewright.passes.edit import Editor
from tilewright.passes.rules import Kept, Rule
from tilewright.records import dataclass

# Split with sizes as an input, and Where of every type.
_OPSET = 16


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """Extents of a layer, and what its cells have in common."""

    steps: int
    batch: int
    width: int
    size: int
    directions: int
    activations: list[list[tuple[str, float, float]]]
    attributes: Attributes


def match_layer(max_steps: int | None, editor: Editor, node: Node) -> RecurrentLayer | Kept | None:
    """The facts of a layer, or why it stays as it is; one of more than `max_steps` steps does."""
    if not is_layer(node):
        return None
    x = node.require(0)
    by_batch = node.int_attr("layout", 0)
    steps, batch = (x.shape[1], x.shape[0]) if by_batch else x.shape[:2]
    directions, size = extents_of_layer(node)
    if 0 in (steps, batch, x.shape[2], size):
        return None
    if max_steps is not None and steps > max_steps:
        return Kept(f"{steps} steps of time are more than {max_steps}")
    if any(value in user.captures for value in node.results() for user in value.users):
        return Kept("its result is read by name")
    names = node.attributes.get("activations", ())
    assert isinstance(names, tuple)
    unknown = [str(n) for n in names if str(n).lower() not in ACTIVATIONS]
    if unknown or (names and len(names) != directions * len(DEFAULT_ACTIVATIONS[node.op_type])):
        return Kept(f"its activations are {', '.join(map(str, names))}")
    if is_quantized(node):
        if any(
            editor.data(node.require(i)) is None for i in (1, 2, *range(WEIGHT_SCALE, RECURRENCE_ZERO + 1))
        ):
            return Kept("its weights are no constants")
        if node.input(4) is not None and batch > 1 and node.str_attr("direction", "forward") != "forward":
            return Kept("steps of sequences of different lengths go together by their number from the end")
    kept = ("clip", "linear_before_reset", "input_forget")
    attributes = {name: node.attributes[name] for name in kept if name in node.attributes}
    activations = layer_activations(node, directions)
    return RecurrentLayer(steps, batch, x.shape[2], size, directions, activations, attributes)


@dataclass(frozen=True, slots=True)
class LayerNodes:
    """New nodes before the layer, named after it."""

    editor: Editor
    node: Node

    def several(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        results: Sequence[tuple[str, DType, tuple[int, ...]]],
        attributes: Attributes | None = None,
        *,
        domain: str = "",
    ) -> list[Value]:
        """The results (a stem, a type and a shape each) of a new node; inputs at its end that are None go."""
        graph = self.editor.graph
        inputs = list(inputs)
        while inputs[-1] is None:
            inputs.pop()
        values = [graph.value(f"{self.node.name}_{stem}", dtype, shape) for stem, dtype, shape in results]
        opset = 1 if domain else max(self.node.opset, _OPSET)
        graph.insert_before(self.node, Node(op_type, inputs, values, attributes, opset=opset, domain=domain))
        return values

    def one(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        stem: str,
        shape: tuple[int, ...],
        attributes: Attributes | None = None,
        *,
        dtype: DType | None = None,
    ) -> Value:
        """The result of a new node, of the layer's type unless `dtype` says another."""
        dtype = self.node.require(0).dtype if dtype is None else dtype
        return self.several(op_type, inputs, [(stem, dtype, shape)], attributes)[0]

    def constant(self, data: Array, stem: str, dtype: DType | None = None) -> Value:
        """A new initializer."""
        dtype = DType.from_numpy(data.dtype) if dtype is None else dtype
        return self.editor.constant(data, dtype, f"{self.node.name}_{stem}")

    def reshape(self, value: Value, stem: str, shape: tuple[int, ...]) -> Value:
        """The same elements under another shape."""
        target = self.constant(np.array(shape, np.int64), f"{stem}_shape")
        return self.one("Reshape", [value, target], stem, shape, dtype=value.dtype)

    def transpose(self, value: Value, stem: str, perm: tuple[int, ...]) -> Value:
        """The axes of a value in another order."""
        shape = tuple(value.shape[p] for p in perm)
        return self.one("Transpose", [value], stem, shape, {"perm": perm})

    def by_batch(self, value: Value, stem: str, perm: tuple[int, ...]) -> Value:
        """A result as the layer's layout has it."""
        return self.transpose(value, f"{stem}_by_batch", perm) if self.node.int_attr("layout", 0) else value

    def split(self, value: Value, stem: str, sizes: Sequence[int]) -> list[Value]:
        """Pieces along the first axis."""
        if len(sizes) == 1:
            return [value]
        lengths = self.constant(np.array(sizes, np.int64), f"{stem}_sizes")
        pieces = [
            (f"{stem}_{number}", value.dtype, (size, *value.shape[1:])) for number, size in enumerate(sizes)
        ]
        return self.several("Split", [value, lengths], pieces, {"axis": 0})

    def concat(self, values: Sequence[Value], stem: str) -> Value:
        """Values one after the other along the first axis."""
        if len(values) == 1:
            return values[0]
        shape = (sum(v.shape[0] for v in values), *values[0].shape[1:])
        return self.one("Concat", values, stem, shape, {"axis": 0})

    def alive(self, layer: RecurrentLayer) -> Value | Array | None:
        """Which sequences have not ended at each step, `[T, N]`, an array if it is known; None for all."""
        lengths = self.node.input(4)
        if lengths is None:
            return None
        times = np.arange(layer.steps, dtype=np.int32)[:, None]
        data = self.editor.data(lengths)
        if data is not None:
            known = times < data
            return None if known.all() else known
        lengths = checked_lengths(self, layer, lengths)
        shape = (layer.steps, layer.batch)
        return self.one("Less", [self.constant(times, "times"), lengths], "alive", shape, dtype=DType.BOOL)

    def shown(self, every: Value, mask: Value) -> Value:
        """The hidden states of all steps, with zeros where a sequence has ended."""
        zero = self.constant(np.zeros(()), "zero", every.dtype)
        return self.one("Where", [mask, every, zero], "shown", every.shape)

    def replace(self, results: Sequence[Callable[[], Value]]) -> None:
        """Put results, each made where anything reads it, in the place of the layer's."""
        pairs = [
            (old, made())
            for old, made in zip(self.node.outputs, results, strict=False)
            if old is not None and (old.users or self.editor.is_output(old))
        ]
        for old, new in pairs:
            self.editor.replace(old, new)
        self.editor.discard([self.node])

    def part(self, position: int, direction: int, stem: str) -> Value | None:
        """Of an input of the layer what belongs to a direction; None for an omitted one."""
        value = self.node.input(position)
        if value is None:
            return None
        data = self.editor.data(value)
        stem = f"{stem}_{direction}"
        if data is not None:
            return self.constant(np.ascontiguousarray(data[direction]), stem, value.dtype)
        index = self.constant(np.array(direction, np.int64), f"{stem}_index")
        return self.one("Gather", [value, index], stem, value.shape[1:], {"axis": 0})

    def state(self, position: int, direction: int, stem: str) -> Value | None:
        """The state a direction starts with; None for zeros."""
        value = self.node.input(position)
        data = self.editor.data(value)
        if value is None or (data is not None and not data.any()):
            return None
        if not self.node.int_attr("layout", 0):
            return self.part(position, direction, stem)
        stem = f"{stem}_{direction}"
        if data is not None:
            return self.constant(np.ascontiguousarray(data[:, direction]), stem, value.dtype)
        index = self.constant(np.array(direction, np.int64), f"{stem}_index")
        shape = (value.shape[0], value.shape[2])
        return self.one("Gather", [value, index], stem, shape, {"axis": 1})


@dataclass(frozen=True, slots=True)
class ByteWeights:
    """Weights of a quantised layer, `[directions, rows, terms]`, and what each row counts in.

    A zero point of all rows is None.
    """

    data: Array
    scale: Array
    zero: Array | None

    @classmethod
    def of_inputs(cls, emit: LayerNodes) -> ByteWeights:
        """Those of the product of all inputs."""
        return cls._at(emit, 1, WEIGHT_SCALE, WEIGHT_ZERO)

    @classmethod
    def of_states(cls, emit: LayerNodes) -> ByteWeights:
        """Those of the recurrence, as signed bytes."""
        found = cls._at(emit, 2, RECURRENCE_SCALE, RECURRENCE_ZERO)
        if found.data.dtype == np.int8:
            return found
        zero = np.zeros(found.scale.shape, np.uint8) if found.zero is None else found.zero
        return cls((found.data ^ 0x80).view(np.int8), found.scale, _unless_zeros((zero ^ 0x80).view(np.int8)))

    @classmethod
    def _at(cls, emit: LayerNodes, position: int, scale: int, zero: int) -> ByteWeights:
        data, scales, zeros = (emit.editor.data(emit.node.require(i)) for i in (position, scale, zero))
        assert data is not None
        assert scales is not None
        assert zeros is not None
        turned = np.ascontiguousarray(data.swapaxes(1, 2))
        return cls(turned, _of_rows(scales, turned), _unless_zeros(_of_rows(zeros, turned)))

    def direction(self, number: int) -> ByteWeights:
        """Those of one direction, which stays an axis."""
        part = slice(number, number + 1)
        return ByteWeights(self.data[part], self.scale[part], None if self.zero is None else self.zero[part])


def _of_rows(parameter: Array, weights: Array) -> Array:
    """A scale or zero point for each row."""
    shown = parameter if parameter.ndim == 2 else parameter[:, None]
    return np.ascontiguousarray(np.broadcast_to(shown, weights.shape[:2]))


def _unless_zeros(zero: Array) -> Array | None:
    return zero if zero.any() else None


def quantized_inputs(emit: LayerNodes, layer: RecurrentLayer, x: Value) -> list[Value]:
    """All inputs as bytes `[T * N, I]`, with their scale and zero point.

    The range of those behind the longest sequence, which no step has, does not count.
    """
    lengths = emit.node.input(4)
    if lengths is not None:
        times = emit.constant(np.arange(layer.steps, dtype=np.int32).reshape(-1, 1, 1), "all_times")
        longest = emit.one("ReduceMax", [lengths], "longest", (), {"keepdims": 0}, dtype=lengths.dtype)
        shape = (layer.steps, 1, 1)
        is_read = emit.one("Less", [times, longest], "is_read", shape, dtype=DType.BOOL)
        nothing = emit.constant(np.zeros(()), "nothing", x.dtype)
        x = emit.one("Where", [is_read, x, nothing], "read", x.shape)
    rows = (layer.steps * layer.batch, layer.width)
    flat = emit.reshape(x, "flat", rows)
    results: list[tuple[str, DType, tuple[int, ...]]] = [
        ("bytes", DType.UINT8, rows),
        ("bytes_scale", x.dtype, ()),
        ("bytes_zero", DType.UINT8, ()),
    ]
    return emit.several("DynamicQuantizeLinear", [flat], results)


def quantized_gates(
    emit: LayerNodes, given: Sequence[Value], weights: ByteWeights, bias: Value | None, stem: str
) -> Value:
    """The product of quantised inputs and the weights of all their directions, and what adds to it."""
    bytes_, scale, zero = given
    columns, terms = weights.scale.size, weights.data.shape[2]
    shape = (bytes_.shape[0], columns)
    matrix = np.ascontiguousarray(weights.data.reshape(columns, terms).T)
    inputs = [bytes_, emit.constant(matrix, f"{stem}_weight"), zero]
    if weights.zero is not None:
        inputs.append(emit.constant(weights.zero.reshape(columns), f"{stem}_zero"))
    total = emit.one("MatMulInteger", inputs, f"{stem}_total", shape, dtype=DType.INT32)
    each = emit.constant(weights.scale.reshape(columns), f"{stem}_scale")
    unit = emit.one("Mul", [scale, each], f"{stem}_unit", (columns,))
    real = emit.one("Cast", [total], f"{stem}_real", shape, {"to": scale.dtype.value})
    scaled = emit.one("Mul", [real, unit], f"{stem}_scaled", shape)
    return scaled if bias is None else emit.one("Add", [scaled, bias], stem, shape)


def rules_of_layers(
    match: Callable[[Editor, Node], RecurrentLayer | Kept | None],
    build: Callable[[Editor, Node, RecurrentLayer], str | None],
) -> list[Rule[RecurrentLayer]]:
    """Rules for all operators that are recurrent layers."""
    of_onnx = tuple(name for name in DEFAULT_ACTIVATIONS if name != QUANTIZED_LSTM)
    return [Rule(of_onnx, match, build), Rule((QUANTIZED_LSTM,), match, build, MICROSOFT_DOMAIN)]


def checked_lengths(emit: LayerNodes, layer: RecurrentLayer, lengths: Value) -> Value:
    """The lengths, taken from a table of all that can be, so that every target refuses others.

    Negative ones, which would count from the table's end, are moved before its start.
    """
    num_lengths = layer.steps + 1
    type_, shape = lengths.dtype, lengths.shape
    table = emit.constant(np.arange(num_lengths, dtype=np.int32), "lengths")
    zero, count = (emit.constant(np.array(n, np.int32), "length") for n in (0, num_lengths))
    is_negative = emit.one("Less", [lengths, zero], "length_negative", shape, dtype=DType.BOOL)
    before = emit.one("Sub", [lengths, count], "length_before", shape, dtype=type_)
    places = emit.one("Where", [is_negative, before, lengths], "length_place", shape, dtype=type_)
    return emit.one("Gather", [table, places], "sequence_lens", shape, {"axis": 0}, dtype=type_)


def biases(emit: LayerNodes, direction: int) -> tuple[Value | None, Value | None]:
    """What simply adds to the gates, and what a reset scales."""
    bias = emit.part(3, direction, "bias")
    if bias is None:
        return None, None
    scales = kind_of_layer(emit.node) == "GRU" and bool(emit.node.int_attr("linear_before_reset", 0))
    data = emit.editor.data(bias)
    stem = f"bias_{direction}"
    if data is not None:
        wide = data.astype(np.float64) if bias.dtype.is_float else data
        added, scaled = split_bias(wide, linear_before_reset=scales)
        sums = emit.constant(added, f"{stem}_sum", bias.dtype)
        return sums, None if scaled is None else emit.constant(scaled, f"{stem}_scaled", bias.dtype)
    half = bias.num_elements // 2
    if not scales:
        first, second = emit.split(bias, stem, [half, half])
        return emit.one("Add", [first, second], f"{stem}_sum", (half,)), None
    third = half // 3
    first, candidate, second, scaled_part = emit.split(bias, stem, [2 * third, third, 2 * third, third])
    both = emit.one("Add", [first, second], f"{stem}_both", (2 * third,))
    return emit.concat([both, candidate], f"{stem}_sum"), scaled_part
