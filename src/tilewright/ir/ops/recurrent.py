"""Recurrent layers: RNN, GRU and LSTM, one step of time after the other.

A step needs the state the step before it left, so no nest describes a layer: these operators are opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.graph import Node
from tilewright.ir.nest import Description, Opaque
from tilewright.ir.ops.registry import operator

Array = np.ndarray[Any, Any]
Activation = Callable[[Array], Array]


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0))).astype(x.dtype)


# Name: the function of x, alpha and beta; the standard's default alpha and beta.
_ACTIVATIONS: dict[str, tuple[Callable[[Array, float, float], Any], float, float]] = {
    "relu": (lambda x, a, b: np.maximum(x, 0), 0.0, 0.0),
    "tanh": (lambda x, a, b: np.tanh(x), 0.0, 0.0),
    "sigmoid": (lambda x, a, b: _sigmoid(x), 0.0, 0.0),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: np.where(x >= 0, x, a * x), 0.01, 0.0),
    "thresholdedrelu": (lambda x, a, b: np.where(x >= a, x, 0), 1.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "elu": (lambda x, a, b: _elu(x, a), 1.0, 0.0),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), 0.0, 0.0),
    "softplus": (lambda x, a, b: _softplus(x), 0.0, 0.0),
}
_TAKES_ALPHA = ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu")
_TAKES_BETA = ("affine", "scaledtanh", "hardsigmoid")
_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}


def _activations(node: Node, directions: int) -> list[list[Activation]]:
    """The activations of each direction; alphas and betas go to those that take them, in order."""
    names = node.attributes.get("activations", _DEFAULTS[node.op_type] * directions)
    assert isinstance(names, tuple)
    alphas, betas = (iter(_floats(node, f"activation_{which}")) for which in ("alpha", "beta"))
    functions: list[Activation] = []
    for name in (str(n).lower() for n in names):
        function, alpha, beta = _ACTIVATIONS[name]
        alpha = next(alphas, alpha) if name in _TAKES_ALPHA else alpha
        beta = next(betas, beta) if name in _TAKES_BETA else beta
        functions.append(_bound(function, alpha, beta))
    each = len(functions) // directions
    return [functions[d * each : (d + 1) * each] for d in range(directions)]


def _bound(function: Callable[[Array, float, float], Any], alpha: float, beta: float) -> Activation:
    return lambda x: np.asarray(function(x, alpha, beta), dtype=x.dtype)


def _floats(node: Node, name: str) -> tuple[float, ...]:
    values = node.attributes.get(name, ())
    assert isinstance(values, tuple)
    return tuple(float(v) for v in values)


@dataclass(frozen=True, slots=True)
class _Cell:
    """One direction of a layer: its parameters, without their direction axis."""

    weight: Array
    recurrence: Array
    bias: Array
    peephole: Array | None
    activations: list[Activation]
    clip: float | None
    linear_before_reset: bool
    input_forget: bool

    def clipped(self, x: Array) -> Array:
        """Pre-activations within the cell's bounds."""
        return x if self.clip is None else np.clip(x, -self.clip, self.clip)

    def gates(self, x: Array) -> Array:
        """The input's part of all gates of all steps, both biases included where they simply add."""
        return x @ self.weight.T + self.bias[: len(self.weight)]

    @property
    def recurrent_bias(self) -> Array:
        """The second half of the bias."""
        return self.bias[len(self.weight) :]


State = tuple[Array, Array]
Step = Callable[[_Cell, Array, State], State]


def _rnn_step(cell: _Cell, gates: Array, state: State) -> State:
    total = gates + state[0] @ cell.recurrence.T + cell.recurrent_bias
    return cell.activations[0](cell.clipped(total)), state[1]


def _gru_step(cell: _Cell, gates: Array, state: State) -> State:
    hidden = state[0]
    size = hidden.shape[-1]
    f, g = cell.activations
    both = gates[:, : 2 * size] + hidden @ cell.recurrence[: 2 * size].T + cell.recurrent_bias[: 2 * size]
    update, reset = np.split(f(cell.clipped(both)), 2, axis=-1)
    matrix, bias = cell.recurrence[2 * size :].T, cell.recurrent_bias[2 * size :]
    before, after = (1, reset) if cell.linear_before_reset else (reset, 1)
    # The bias goes with the matrix product: a reset after it scales both.
    memory = after * ((before * hidden) @ matrix + bias)
    candidate = g(cell.clipped(gates[:, 2 * size :] + memory))
    return (1 - update) * candidate + update * hidden, state[1]


def _lstm_step(cell: _Cell, gates: Array, state: State) -> State:
    hidden, memory = state
    f, g, h = cell.activations
    total = gates + hidden @ cell.recurrence.T + cell.recurrent_bias
    enter, leave, forget, candidate = np.split(total, 4, axis=-1)
    peep = [np.zeros((), hidden.dtype)] * 3 if cell.peephole is None else np.split(cell.peephole, 3)
    enter = f(cell.clipped(enter + peep[0] * memory))
    forget = 1 - enter if cell.input_forget else f(cell.clipped(forget + peep[2] * memory))
    memory = forget * memory + enter * g(cell.clipped(candidate))
    leave = f(cell.clipped(leave + peep[1] * memory))
    return leave * h(memory), memory


_STEPS: dict[str, Step] = {"RNN": _rnn_step, "GRU": _gru_step, "LSTM": _lstm_step}


def _scan(step: Step, cell: _Cell, x: Array, state: State, lengths: Array) -> tuple[Array, State]:
    """All steps over `[T, N, I]`; a sequence that has ended keeps its state and outputs zeros."""
    gates = cell.gates(x)
    outputs = np.zeros((*x.shape[:2], state[0].shape[-1]), x.dtype)
    for t in range(x.shape[0]):
        alive = (t < lengths)[:, None]
        after = step(cell, gates[t], state)
        state = np.where(alive, after[0], state[0]), np.where(alive, after[1], state[1])
        outputs[t] = np.where(alive, state[0], 0)
    return outputs, state


def _reversed_times(length: int, lengths: Array) -> Array:
    """`[T, N]` times that turn each sequence around within its own length."""
    times = np.arange(length)[:, None]
    return np.where(times < lengths, lengths - 1 - times, times)


def _recurrent_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    optional = [*inputs, *[None] * (8 - len(inputs))]
    x, weight, recurrence = (np.asarray(a) for a in inputs[:3])
    bias, lengths, hidden, memory, peephole = optional[3:8]
    by_batch = bool(node.int_attr("layout", 0))
    if by_batch:
        x = x.swapaxes(0, 1)
        hidden, memory = (None if a is None else a.swapaxes(0, 1) for a in (hidden, memory))
    directions, size = weight.shape[0], recurrence.shape[-1]
    if bias is None:
        bias = np.zeros((directions, 2 * weight.shape[1]), x.dtype)
    if lengths is None:
        lengths = np.full(x.shape[1], x.shape[0])
    start = np.zeros((directions, x.shape[1], size), x.dtype)
    hidden = start if hidden is None else hidden
    memory = start if memory is None else memory
    clip = node.attributes.get("clip")
    activations = _activations(node, directions)
    turned = _reversed_times(x.shape[0], lengths)
    columns = np.arange(x.shape[1])
    outputs: list[Array] = []
    states: list[State] = []
    for d in range(directions):
        cell = _Cell(
            weight[d],
            recurrence[d],
            bias[d],
            None if peephole is None else peephole[d],
            activations[d],
            None if clip is None else node.float_attr("clip", 0.0),
            bool(node.int_attr("linear_before_reset", 0)),
            bool(node.int_attr("input_forget", 0)),
        )
        backward = d == 1 or node.str_attr("direction", "forward") == "reverse"
        source = x[turned, columns] if backward else x
        output, state = _scan(_STEPS[node.op_type], cell, source, (hidden[d], memory[d]), lengths)
        outputs.append(output[turned, columns] if backward else output)
        states.append(state)
    every = np.stack(outputs, axis=1)
    last = [np.stack([state[i] for state in states]) for i in (0, 1)]
    if by_batch:
        return every.transpose(2, 0, 1, 3), last[0].swapaxes(0, 1), last[1].swapaxes(0, 1)
    return every, *last


@operator("RNN", "GRU", "LSTM", reference=_recurrent_reference)
def recurrent(node: Node) -> Description:
    """Opaque: every step of time depends on the one before."""
    return Opaque(f"{node.op_type}: recurrence over time")
