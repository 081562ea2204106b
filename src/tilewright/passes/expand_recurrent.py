"""RNN, GRU and LSTM over a known number of steps are written as their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attributes, Graph, Node, Value
from tilewright.ir.ops.cells import ACTIVATIONS
from tilewright.ir.ops.recurrent import DEFAULT_ACTIVATIONS, layer_activations, split_bias
from tilewright.ir.ops.registry import INTERNAL_DOMAIN
from tilewright.passes.base import PassResult
from tilewright.passes.edit import Editor
from tilewright.passes.rules import Kept, Rule, apply_rules
from tilewright.planning import option

Array = np.ndarray[Any, Any]

# Split with sizes as an input, and Where of every type.
_OPSET = 16


@dataclass(frozen=True, slots=True)
class ExpandRecurrent:
    """A layer becomes one product for all steps of a direction and then a cell per step.

    The products of inputs and weights do not wait for a state, so that one Gemm makes them for all steps; a
    cell (`ir/ops/cells.py`) adds the state's. Sequences that have ended keep their state. Layers of more than
    `max_steps` steps stay whole.
    """

    max_steps: int = option(4096, "Most steps of a layer that is written out.")
    name: ClassVar[str] = "expand-recurrent"

    def run(self, graph: Graph) -> PassResult:
        """Edit the graph in place."""
        return apply_rules(graph, [Rule(("RNN", "GRU", "LSTM"), partial(_match, self.max_steps), _build)])


def num_steps_of(graph: Graph, node: Node) -> int | None:
    """As how many steps a layer is written; None for what stays whole or is no such layer."""
    if node.op_type not in DEFAULT_ACTIVATIONS or node.domain:
        return None
    found = _match(ExpandRecurrent().max_steps, Editor(graph), node)
    return found.steps if isinstance(found, _Layer) else None


@dataclass(frozen=True, slots=True)
class _Layer:
    """Extents of a layer, and what its cells have in common."""

    steps: int
    batch: int
    width: int
    size: int
    directions: int
    activations: list[list[tuple[str, float, float]]]
    attributes: Attributes


def _match(max_steps: int, editor: Editor, node: Node) -> _Layer | Kept | None:
    x, weight, recurrence = (node.require(i) for i in range(3))
    by_batch = node.int_attr("layout", 0)
    steps, batch = (x.shape[1], x.shape[0]) if by_batch else x.shape[:2]
    directions, size = weight.shape[0], recurrence.shape[-1]
    if 0 in (steps, batch, x.shape[2], size):
        return None
    if steps > max_steps:
        return Kept(f"{steps} steps of time are more than {max_steps}")
    if any(value in user.captures for value in node.results() for user in value.users):
        return Kept("its result is read by name")
    names = node.attributes.get("activations", ())
    assert isinstance(names, tuple)
    unknown = [str(n) for n in names if str(n).lower() not in ACTIVATIONS]
    if unknown or (names and len(names) != directions * len(DEFAULT_ACTIVATIONS[node.op_type])):
        return Kept(f"its activations are {', '.join(map(str, names))}")
    kept = ("clip", "linear_before_reset", "input_forget")
    attributes = {name: node.attributes[name] for name in kept if name in node.attributes}
    activations = layer_activations(node, directions)
    return _Layer(steps, batch, x.shape[2], size, directions, activations, attributes)


@dataclass(frozen=True, slots=True)
class _Emitter:
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
        """The results (a stem, a type and a shape each) of a new node."""
        graph = self.editor.graph
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


def _build(editor: Editor, node: Node, layer: _Layer) -> str:
    emit = _Emitter(editor, node)
    x = node.require(0)
    if node.int_attr("layout", 0):
        x = emit.transpose(x, "by_time", (1, 0, 2))
    flat = emit.reshape(x, "flat", (layer.steps * layer.batch, layer.width))
    alive, mask = _alive(emit, layer)
    hidden: list[list[Value]] = [[] for _ in range(layer.steps)]
    last: list[list[Value]] = []
    for direction in range(layer.directions):
        backward = direction == 1 or node.str_attr("direction", "forward") == "reverse"
        times = range(layer.steps - 1, -1, -1) if backward else range(layer.steps)
        last.append(_direction(emit, layer, direction, flat, times, alive, hidden))
    outputs: list[Value | None] = [_every(emit, layer, hidden, mask)] if _wanted(editor, node, 0) else [None]
    for number, stem in ((1, "last_hidden"), (2, "last_memory")):
        outputs.append(
            _last(emit, layer, [state[number - 1] for state in last], stem)
            if _wanted(editor, node, number)
            else None
        )
    for old, new in zip(node.outputs, outputs, strict=False):
        if old is not None and new is not None:
            editor.replace(old, new)
    editor.discard([node])
    return f"{layer.steps} steps of {node.op_type}"


def _wanted(editor: Editor, node: Node, position: int) -> bool:
    value = node.outputs[position] if position < len(node.outputs) else None
    return value is not None and (bool(value.users) or editor.is_output(value))


def _alive(emit: _Emitter, layer: _Layer) -> tuple[list[Value | None], Value | None]:
    """For each step, which sequences have not ended (`[1, N]`; None for all); and for all, `[T, 1, N, 1]`."""
    lengths = emit.node.input(4)
    everyone: list[Value | None] = [None] * layer.steps
    if lengths is None:
        return everyone, None
    times = np.arange(layer.steps, dtype=np.int32)[:, None]
    data = emit.editor.data(lengths)
    if data is not None:
        known = times < data
        if known.all():
            return everyone, None
        steps = [None if row.all() else emit.constant(row[None], f"alive_{t}") for t, row in enumerate(known)]
        return steps, emit.constant(known.reshape(layer.steps, 1, layer.batch, 1), "alive")
    shape = (layer.steps, layer.batch)
    lengths = _checked_lengths(emit, layer, lengths)
    mask = emit.one("Less", [emit.constant(times, "times"), lengths], "alive", shape, dtype=DType.BOOL)
    pieces = emit.split(mask, "alive", [1] * layer.steps)
    return [*pieces], emit.reshape(mask, "alive_every", (layer.steps, 1, layer.batch, 1))


def _checked_lengths(emit: _Emitter, layer: _Layer, lengths: Value) -> Value:
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


def _direction(
    emit: _Emitter,
    layer: _Layer,
    direction: int,
    flat: Value,
    times: Sequence[int],
    alive: Sequence[Value | None],
    hidden: Sequence[list[Value]],
) -> list[Value]:
    """The cells of one direction: appends each step's hidden state to `hidden`, and gives the last state."""
    node = emit.node
    dtype = flat.dtype
    weight, recurrence = emit.part(1, direction, "weight"), emit.part(2, direction, "recurrence")
    assert weight is not None
    bias, scaled_bias = _biases(emit, direction)
    rows, columns = flat.shape[0], weight.shape[0]
    inputs = [flat, weight] if bias is None else [flat, weight, bias]
    gates = emit.one("Gemm", inputs, f"gates_{direction}", (rows, columns), {"transB": 1})
    pieces = emit.split(gates, f"gates_{direction}", [layer.batch] * layer.steps)
    is_lstm = node.op_type == "LSTM"
    state = [emit.state(5, direction, "hidden")]
    extra: list[Value | None] = [scaled_bias] if node.op_type == "GRU" else []
    if is_lstm:
        state.append(emit.state(6, direction, "memory"))
        extra = [emit.part(7, direction, "peephole")]
    names, alphas, betas = zip(*layer.activations[direction], strict=True)
    attributes = {
        **layer.attributes,
        "activations": names,
        "activation_alpha": alphas,
        "activation_beta": betas,
    }
    shape = (layer.batch, layer.size)
    now: list[Value] = []
    for t in times:
        matrix = None if state[0] is None and node.op_type == "RNN" else recurrence
        operands = [pieces[t], matrix, state[0], alive[t], *state[1:], *extra]
        while operands[-1] is None:
            operands.pop()
        results = [(f"hidden_{direction}_{t}", dtype, shape)]
        if is_lstm:
            results.append((f"memory_{direction}_{t}", dtype, shape))
        now = emit.several(f"{node.op_type}Cell", operands, results, attributes, domain=INTERNAL_DOMAIN)
        hidden[t].append(now[0])
        state = [*now]
    return now


def _biases(emit: _Emitter, direction: int) -> tuple[Value | None, Value | None]:
    """What simply adds to the gates, and what a reset scales."""
    bias = emit.part(3, direction, "bias")
    if bias is None:
        return None, None
    scales = emit.node.op_type == "GRU" and bool(emit.node.int_attr("linear_before_reset", 0))
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


def _every(emit: _Emitter, layer: _Layer, hidden: Sequence[Sequence[Value]], mask: Value | None) -> Value:
    """The hidden states of all steps; zeros where a sequence has ended."""
    shape = (layer.steps, layer.directions, layer.batch, layer.size)
    joined = emit.concat([value for step in hidden for value in step], "hidden")
    every = emit.reshape(joined, "every", shape)
    if mask is not None:
        zero = emit.constant(np.zeros(()), "zero", every.dtype)
        every = emit.one("Where", [mask, every, zero], "shown", shape)
    return emit.transpose(every, "by_batch", (2, 0, 1, 3)) if emit.node.int_attr("layout", 0) else every


def _last(emit: _Emitter, layer: _Layer, states: Sequence[Value], stem: str) -> Value:
    """The states that the directions end with."""
    joined = emit.concat(states, f"{stem}_joined")
    value = emit.reshape(joined, stem, (layer.directions, layer.batch, layer.size))
    return emit.transpose(value, f"{stem}_by_batch", (1, 0, 2)) if emit.node.int_attr("layout", 0) else value
