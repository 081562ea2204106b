"""Recurrent layers: RNN, GRU, LSTM and DynamicQuantizeLSTM, one step of time after the other.

A step needs the state the step before it left, so no nest describes a layer: these operators are opaque.
`expand-recurrent` writes layers of few steps as their steps, which `cells.py` describes.

DynamicQuantizeLSTM is onnxruntime's: an LSTM whose weights are bytes `[D, I, 4H]` and `[D, H, 4H]`, and whose
inputs and states are quantised by the ranges that they have, all inputs by one and the states of each step by
another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.graph import Node, Shape
from tilewright.ir.nest import Description, Opaque
from tilewright.ir.ops.build import choice_attr, require, require_rank, require_result, require_shape
from tilewright.ir.ops.cells import ACTIVATIONS, STEPS, Cell, State, Step, Weights, advance, numpy_activation
from tilewright.ir.ops.registry import MICROSOFT_DOMAIN, operator

QUANTIZED_LSTM = "DynamicQuantizeLSTM"
DEFAULT_ACTIVATIONS = {
    "RNN": ("Tanh",),
    "GRU": ("Sigmoid", "Tanh"),
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    QUANTIZED_LSTM: ("Sigmoid", "Tanh", "Tanh"),
}
# Scales and zero points of a quantised layer's weights, and of its recurrence.
WEIGHT_SCALE, WEIGHT_ZERO, RECURRENCE_SCALE, RECURRENCE_ZERO = 8, 9, 10, 11


def is_layer(node: Node) -> bool:
    """Whether a node is a recurrent layer."""
    return node.op_type in DEFAULT_ACTIVATIONS and node.domain == (
        MICROSOFT_DOMAIN if node.op_type == QUANTIZED_LSTM else ""
    )


def is_quantized(node: Node) -> bool:
    """Whether a layer's weights are bytes."""
    return node.op_type == QUANTIZED_LSTM


def kind_of_layer(node: Node) -> str:
    """RNN, GRU or LSTM."""
    return "LSTM" if is_quantized(node) else node.op_type


def extents_of_layer(node: Node) -> tuple[int, int]:
    """Directions, and the size of the state."""
    directions, *sizes = node.require(2).shape
    return directions, sizes[0] if is_quantized(node) else sizes[1]


def layer_activations(node: Node, directions: int) -> list[list[tuple[str, float, float]]]:
    """Name, alpha and beta of the activations of each direction.

    The node's alphas and betas go to those activations that take them, in order.
    """
    names = node.attributes.get("activations", DEFAULT_ACTIVATIONS[node.op_type] * directions)
    assert isinstance(names, tuple)
    alphas, betas = (iter(_floats(node, f"activation_{which}")) for which in ("alpha", "beta"))
    found: list[tuple[str, float, float]] = []
    for name in (str(n).lower() for n in names):
        kind = ACTIVATIONS[name]
        alpha = 0.0 if kind.alpha is None else next(alphas, kind.alpha)
        beta = 0.0 if kind.beta is None else next(betas, kind.beta)
        found.append((name, alpha, beta))
    each = len(found) // directions
    return [found[d * each : (d + 1) * each] for d in range(directions)]


def _floats(node: Node, name: str) -> tuple[float, ...]:
    values = node.attributes.get(name, ())
    assert isinstance(values, tuple)
    return tuple(float(v) for v in values)


def split_bias(bias: Array, *, linear_before_reset: bool) -> tuple[Array, Array | None]:
    """Of a direction's two biases what simply adds to the gates, and what a reset scales (GRU)."""
    weight, recurrence = np.split(bias, 2)
    if not linear_before_reset:
        return weight + recurrence, None
    both = len(weight) // 3 * 2
    return np.concatenate([weight[:both] + recurrence[:both], weight[both:]]), recurrence[both:]


def _scan(step: Step, cell: Cell, gates: Array, state: State, lengths: Array) -> tuple[Array, State]:
    """All steps over `[T, N, gates]`; a sequence that has ended keeps its state and outputs zeros."""
    outputs = np.zeros((*gates.shape[:2], state[0].shape[-1]), gates.dtype)
    for t in range(gates.shape[0]):
        alive = (t < lengths)[:, None]
        state = advance(step, cell, gates[t], state, alive)
        outputs[t] = np.where(alive, state[0], 0)
    return outputs, state


def _reversed_times(length: int, lengths: Array) -> Array:
    """`[T, N]` times that turn each sequence around within its own length."""
    times = np.arange(length)[:, None]
    return np.where(times < lengths, lengths - 1 - times, times)


def _recurrent_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    optional = [*inputs, *[None] * (RECURRENCE_ZERO + 1 - len(inputs))]
    x, weight, recurrence = (np.asarray(a) for a in inputs[:3])
    if is_quantized(node):
        weight, recurrence = weight.swapaxes(1, 2), recurrence.swapaxes(1, 2)
    bias, lengths, hidden, memory, peephole = optional[3:8]
    by_batch = bool(node.int_attr("layout", 0))
    if by_batch:
        x = x.swapaxes(0, 1)
        hidden, memory = (None if a is None else a.swapaxes(0, 1) for a in (hidden, memory))
    directions, size = extents_of_layer(node)
    if bias is None:
        bias = np.zeros((directions, 2 * weight.shape[1]), x.dtype)
    if lengths is None:
        lengths = np.full(x.shape[1], x.shape[0])
    outside = _length_outside(lengths, x.shape[0])
    if outside is not None:
        raise ValueError(f"a sequence has the length {outside}, but there are {x.shape[0]} steps")
    if is_quantized(node):  # no step has what is behind the longest sequence
        x = np.where(np.arange(x.shape[0])[:, None, None] < lengths.max(initial=0), x, np.zeros((), x.dtype))
    start = np.zeros((directions, x.shape[1], size), x.dtype)
    hidden = start if hidden is None else hidden
    memory = start if memory is None else memory
    clip = node.attributes.get("clip")
    linear = bool(node.int_attr("linear_before_reset", 0))
    rows = weight.shape[:2]
    weights, recurrences = (
        [Weights(a, *(None if p is None else p[d] for p in parameters)) for d, a in enumerate(data)]
        for data, parameters in (
            (weight, [_of_rows(optional[i], rows) for i in (WEIGHT_SCALE, WEIGHT_ZERO)]),
            (recurrence, [_of_rows(optional[i], rows) for i in (RECURRENCE_SCALE, RECURRENCE_ZERO)]),
        )
    )
    activations = layer_activations(node, directions)
    turned = _reversed_times(x.shape[0], lengths)
    columns = np.arange(x.shape[1])
    outputs: list[Array] = []
    states: list[State] = []
    for d in range(directions):
        added, scaled = split_bias(bias[d], linear_before_reset=linear and node.op_type == "GRU")
        cell = Cell(
            recurrences[d],
            scaled,
            None if peephole is None else peephole[d],
            [numpy_activation(*a) for a in activations[d]],
            None if clip is None else node.float_attr("clip", 0.0),
            linear,
            bool(node.int_attr("input_forget", 0)),
        )
        backward = d == 1 or node.str_attr("direction", "forward") == "reverse"
        source = x[turned, columns] if backward else x
        gates = weights[d].product(source) + added
        output, state = _scan(STEPS[kind_of_layer(node)], cell, gates, (hidden[d], memory[d]), lengths)
        outputs.append(output[turned, columns] if backward else output)
        states.append(state)
    every = np.stack(outputs, axis=1)
    last = [np.stack([state[i] for state in states]) for i in (0, 1)]
    if by_batch:
        return every.transpose(2, 0, 1, 3), last[0].swapaxes(0, 1), last[1].swapaxes(0, 1)
    return every, *last


def _of_rows(parameter: Array | None, rows: Shape) -> Array | None:
    """A scale or zero point of each direction, or of each of its rows, as one for each row."""
    if parameter is None:
        return None
    return np.broadcast_to(parameter if parameter.ndim == 2 else parameter[:, None], rows)


_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DIRECTIONS = ("forward", "reverse", "bidirectional")


def _length_outside(lengths: Array, steps: int) -> int | None:
    """A length that no sequence of so many steps can have."""
    outside = lengths[(lengths < 0) | (lengths > steps)]
    return int(outside[0]) if outside.size else None


def _layer_shapes(node: Node) -> list[Shape | None]:
    """Of all outputs, of the last state and of the last memory."""
    directions = 2 if choice_attr(node, "direction", _DIRECTIONS, "forward") == "bidirectional" else 1
    first, second, _ = require_rank(node, 0, 3, 3)
    require_rank(node, 2, 3, 3)
    size = node.int_attr("hidden_size", extents_of_layer(node)[1])
    if node.int_attr("layout", 0):
        state = (first, directions, size)
        return [(first, second, directions, size), state, state]
    state = (directions, second, size)
    return [(first, directions, second, size), state, state]


def _require_layer(node: Node) -> None:
    """The operands of a layer fit each other and its results."""
    lengths = node.constant(4)
    direction = choice_attr(node, "direction", _DIRECTIONS, "forward")
    ways, gates = 2 if direction == "bidirectional" else 1, _GATES[kind_of_layer(node)]
    layout = node.int_attr("layout", 0)
    require(node, layout in (0, 1), f"layout is {layout}, not 0 or 1")
    by_batch = bool(layout)
    steps, batch, width = require_rank(node, 0, 3, 3)
    if by_batch:
        steps, batch = batch, steps
    require_rank(node, 2, 3, 3)
    size = extents_of_layer(node)[1]
    said = node.int_attr("hidden_size", size)
    require(node, said == size, f"hidden_size is {said}, but the recurrence has {size}")
    for position, terms, what in ((1, width, "the width of the input"), (2, size, "hidden size")):
        matrix = (terms, gates * size) if is_quantized(node) else (gates * size, terms)
        require_shape(node, position, (ways, *matrix), f"directions, gates, and {what}")
    if is_quantized(node):
        for position in (WEIGHT_SCALE, WEIGHT_ZERO, RECURRENCE_SCALE, RECURRENCE_ZERO):
            each = require_rank(node, position, 1, 2)
            require_shape(node, position, (ways, gates * size)[: len(each)], "one for each direction or row")
    require_shape(node, 3, (ways, 2 * gates * size), "two biases for each gate")
    require_shape(node, 4, (batch,), "one length for each sequence")
    state = (batch, ways, size) if by_batch else (ways, batch, size)
    outside = None if lengths is None else _length_outside(lengths, steps)
    require(node, outside is None, f"a sequence has the length {outside}, but there are {steps} steps")
    require_shape(node, 5, state, "the first state")
    require_shape(node, 6, state, "the first memory")
    require_shape(node, 7, (ways, 3 * size), "three of each element of the state")
    require_result(node, (batch, steps, ways, size) if by_batch else (steps, ways, batch, size))
    for position in range(1, len(node.outputs)):
        require_result(node, state, position)
    names = node.attributes.get("activations", DEFAULT_ACTIVATIONS[node.op_type] * ways)
    assert isinstance(names, tuple)
    wanted = len(DEFAULT_ACTIVATIONS[node.op_type]) * ways
    require(node, len(names) == wanted, f"it has {len(names)} activations, but takes {wanted}")
    for name in names:
        require(node, str(name).lower() in ACTIVATIONS, f"activation {name!r} is not known")


@operator(QUANTIZED_LSTM, reference=_recurrent_reference, shapes=_layer_shapes, domain=MICROSOFT_DOMAIN)
@operator("RNN", "GRU", "LSTM", reference=_recurrent_reference, shapes=_layer_shapes)
def recurrent(node: Node) -> Description:
    """Opaque: every step of time depends on the one before."""
    _require_layer(node)
    return Opaque(f"{node.op_type}: recurrence over time")
