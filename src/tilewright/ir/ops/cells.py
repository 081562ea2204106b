"""One step of a recurrent layer: RNNCell, GRUCell, LSTMCell, in a domain of our own.

`expand-recurrent` makes them of RNN, GRU and LSTM. The product of a step's input with its weights, and the
biases that simply add to it, come in as `gates`; `hidden` None means zeros. `alive` says which sequences of
the batch this step belongs to: the others keep their state.

| operator | inputs | outputs |
|---|---|---|
| RNNCell | gates `[N, H]`, recurrence `[H, H]`, hidden, alive | hidden `[N, H]` |
| GRUCell | gates `[N, 3H]`, recurrence `[3H, H]`, hidden, alive `[1, N]`, bias `[H]` | hidden |
| LSTMCell | gates `[N, 4H]`, recurrence `[4H, H]`, hidden, alive, memory, peephole `[3H]`, scale `[4H]`, \
zero `[4H]` | hidden, memory |

A recurrence of bytes has a scale, and a zero point unless all are 0. Its product is one of integers: the
state is quantised by the range that it has in this step, over all sequences that the step belongs to.

Attributes are ONNX's, with an alpha and a beta for each activation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Const, Expr, call, cast, select
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Description, Dim, Nest, Operand, affine
from tilewright.ir.ops.build import (
    copy_nest,
    identity,
    input_operand,
    local,
    output_operand,
    read,
    require,
    require_result,
    require_shape,
)
from tilewright.ir.ops.elementwise import softplus
from tilewright.ir.ops.operands import optional, present
from tilewright.ir.ops.quantization import DynamicBytes, dynamically_quantized
from tilewright.ir.ops.registry import INTERNAL_DOMAIN, operator
from tilewright.records import dataclass

# Inputs of a cell whose recurrence is bytes.
_SCALE, _ZERO = 6, 7
# Temporaries: what makes the bytes of its state are the last ones, and these bytes come before them.
_FIRST_OF_BYTES = 3
Activation = Callable[[Any], Any]

# Activations -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ActivationKind:
    """An activation of the standard: on numpy arrays, as an expression, and its default alpha and beta."""

    numpy: Callable[[Array, float, float], Any]
    expr: Callable[[Expr, float, float], Expr]
    alpha: float | None = None
    beta: float | None = None


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0))).astype(x.dtype)


# By name in lower case.
ACTIVATIONS: dict[str, ActivationKind] = {
    "relu": ActivationKind(lambda x, a, b: np.maximum(x, 0), lambda x, a, b: call("max", x, 0)),
    "tanh": ActivationKind(lambda x, a, b: np.tanh(x), lambda x, a, b: call("tanh", x)),
    "sigmoid": ActivationKind(lambda x, a, b: _sigmoid(x), lambda x, a, b: call("sigmoid", x)),
    "affine": ActivationKind(lambda x, a, b: a * x + b, lambda x, a, b: x * a + b, 1.0, 0.0),
    "leakyrelu": ActivationKind(
        lambda x, a, b: np.where(x >= 0, x, a * x), lambda x, a, b: select(call("ge", x, 0), x, x * a), 0.01
    ),
    "thresholdedrelu": ActivationKind(
        lambda x, a, b: np.where(x >= a, x, 0), lambda x, a, b: select(call("ge", x, a), x, 0), 1.0
    ),
    "scaledtanh": ActivationKind(
        lambda x, a, b: a * np.tanh(b * x), lambda x, a, b: call("tanh", x * b) * a, 1.0, 1.0
    ),
    "hardsigmoid": ActivationKind(
        lambda x, a, b: np.clip(a * x + b, 0, 1),
        lambda x, a, b: call("max", call("min", x * a + b, 1), 0),
        0.2,
        0.5,
    ),
    "elu": ActivationKind(
        lambda x, a, b: _elu(x, a),
        lambda x, a, b: select(call("ge", x, 0), x, call("expm1", call("min", x, 0)) * a),
        1.0,
    ),
    "softsign": ActivationKind(lambda x, a, b: x / (1 + np.abs(x)), lambda x, a, b: x / (call("abs", x) + 1)),
    "softplus": ActivationKind(lambda x, a, b: _softplus(x), lambda x, a, b: softplus(x)),
}


def _floats(node: Node, name: str) -> tuple[float, ...]:
    values = node.attributes[name]
    assert isinstance(values, tuple)
    return tuple(float(v) for v in values)


def _activations(node: Node, of: Callable[[str, float, float], Activation]) -> list[Activation]:
    names = node.attributes["activations"]
    assert isinstance(names, tuple)
    alphas, betas = _floats(node, "activation_alpha"), _floats(node, "activation_beta")
    return [of(str(n), a, b) for n, a, b in zip(names, alphas, betas, strict=True)]


def numpy_activation(name: str, alpha: float, beta: float) -> Activation:
    """An activation on arrays, which keeps their type."""
    kind = ACTIVATIONS[name]
    return lambda x: np.asarray(kind.numpy(x, alpha, beta), dtype=x.dtype)


def _expr_activation(name: str, alpha: float, beta: float) -> Activation:
    kind = ACTIVATIONS[name]
    return lambda x: kind.expr(x, alpha, beta)


# References ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weights:
    """A matrix with a row for each result; bytes have a scale for each row, and perhaps a zero point."""

    data: Array
    scale: Array | None = None
    zero: Array | None = None

    @functools.cached_property
    def exact(self) -> Array:
        """Bytes less their zero points, in float64."""
        weights = self.data.astype(np.float64)
        return weights if self.zero is None else weights - self.zero.astype(np.float64)[:, None]

    def product(self, x: Array) -> Array:
        """`x @ data.T`; of bytes in integers, for which `x` is quantised by its own range."""
        if self.scale is None:
            return np.asarray(x @ self.data.T)
        given, scale, zero = dynamically_quantized(x)
        total = (given.astype(np.float64) - float(zero)) @ self.exact.T  # whole numbers, so exact
        return np.asarray(total.astype(x.dtype) * (scale * self.scale))


@dataclass(frozen=True, slots=True)
class Cell:
    """One direction of a layer without its input's part, for numpy."""

    recurrence: Weights
    bias: Array | None  # of GRU's candidate, where a reset scales it
    peephole: Array | None
    activations: Sequence[Activation]
    clip: float | None
    linear_before_reset: bool
    input_forget: bool

    def clipped(self, x: Array) -> Array:
        """Pre-activations within the cell's bounds."""
        return x if self.clip is None else np.clip(x, -self.clip, self.clip)


State = tuple[Array, Array]
Step = Callable[[Cell, Array, State], State]


def _rnn_step(cell: Cell, gates: Array, state: State) -> State:
    return cell.activations[0](cell.clipped(gates + cell.recurrence.product(state[0]))), state[1]


def _gru_step(cell: Cell, gates: Array, state: State) -> State:
    hidden = state[0]
    size = hidden.shape[-1]
    f, g = cell.activations
    recurrence = cell.recurrence.data
    both = gates[:, : 2 * size] + hidden @ recurrence[: 2 * size].T
    update, reset = np.split(f(cell.clipped(both)), 2, axis=-1)
    matrix = recurrence[2 * size :].T
    if cell.linear_before_reset:
        product = hidden @ matrix
        part = reset * (product if cell.bias is None else product + cell.bias)
    else:
        part = (reset * hidden) @ matrix
    candidate = g(cell.clipped(gates[:, 2 * size :] + part))
    return (1 - update) * candidate + update * hidden, state[1]


def _lstm_step(cell: Cell, gates: Array, state: State) -> State:
    hidden, memory = state
    f, g, h = cell.activations
    total = gates + cell.recurrence.product(hidden)
    enter, leave, forget, candidate = np.split(total, 4, axis=-1)
    peep = [np.zeros((), hidden.dtype)] * 3 if cell.peephole is None else np.split(cell.peephole, 3)
    enter = f(cell.clipped(enter + peep[0] * memory))
    forget = 1 - enter if cell.input_forget else f(cell.clipped(forget + peep[2] * memory))
    memory = forget * memory + enter * g(cell.clipped(candidate))
    leave = f(cell.clipped(leave + peep[1] * memory))
    return leave * h(memory), memory


STEPS: dict[str, Step] = {"RNN": _rnn_step, "GRU": _gru_step, "LSTM": _lstm_step}


def advance(step: Step, cell: Cell, gates: Array, before: State, alive: Array | None) -> State:
    """The state after a step, which sequences keep that it does not belong to; `alive` is `[N, 1]`."""
    if alive is None:
        return step(cell, gates, before)
    given = before
    if cell.recurrence.scale is not None:
        given = np.where(alive, before[0], np.zeros((), before[0].dtype)), before[1]
    after = step(cell, gates, given)
    return np.where(alive, after[0], before[0]), np.where(alive, after[1], before[1])


def _cell_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    gates, alive = present(inputs), optional(inputs, 3)
    zeros = np.zeros(node.output.shape, gates.dtype)
    recurrence, hidden = optional(inputs, 1), optional(inputs, 2)
    is_lstm = node.op_type == "LSTMCell"
    memory = optional(inputs, 4) if is_lstm else None
    before = (zeros if hidden is None else hidden, zeros if memory is None else memory)
    if recurrence is None:
        recurrence = np.zeros((gates.shape[1], zeros.shape[1]), gates.dtype)
    cell = Cell(
        Weights(recurrence, optional(inputs, _SCALE), optional(inputs, _ZERO)),
        None if is_lstm else optional(inputs, 4),
        optional(inputs, 5),
        _activations(node, numpy_activation),
        node.float_attr("clip", 0.0) if "clip" in node.attributes else None,
        bool(node.int_attr("linear_before_reset", 0)),
        bool(node.int_attr("input_forget", 0)),
    )
    step = STEPS[node.op_type.removesuffix("Cell")]
    after = advance(step, cell, gates, before, None if alive is None else alive.T)
    return after if is_lstm else after[:1]


# Nests -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Elements:
    """One nest over `[m, j]` under construction: each operand is read where it is asked for."""

    node: Node
    dims: tuple[Dim, Dim]
    reads: list[Access]

    @classmethod
    def of(cls, node: Node) -> _Elements:
        """Over the cell's state."""
        batch, size = node.output.shape
        return cls(node, (Dim("m", batch), Dim("j", size)), [])

    @property
    def dtype(self) -> DType:
        """What the cell computes in."""
        return self.node.output.dtype.compute

    def at(self, access: Access) -> Expr:
        """The value of an access."""
        self.reads.append(access)
        return read(len(self.reads) - 1, access)

    def block(self, operand: Operand, number: int) -> Expr:
        """Of an operand `[N, blocks * H]` the block of this number."""
        return self.at(Access(operand, (affine("m"), affine("j", number * self.dims[1].extent))))

    def state(self, position: int) -> Expr:
        """A part of the state before this step."""
        if self.node.input(position) is None:
            return Const(0.0, self.dtype)
        return self.at(Access(input_operand(self.node, position), identity(self.dims)))

    def clipped(self, value: Expr) -> Expr:
        """A pre-activation within the cell's bounds."""
        if "clip" not in self.node.attributes:
            return value
        bound = self.node.float_attr("clip", 0.0)
        return call("max", call("min", value, bound), -bound)

    def kept(self, after: Expr, before: Expr) -> Expr:
        """The new state of sequences that this step is part of, the old one of others."""
        if self.node.input(3) is None:
            return after
        alive = self.at(Access(input_operand(self.node, 3), (affine(), affine("m"))))
        return select(alive, after, before)

    def write(self, target: Operand, value: Expr) -> Nest:
        """The nest that stores a value."""
        body = cast(value, target.dtype.compute)
        return Nest(self.dims, tuple(self.reads), Access(target, identity(self.dims)), body)


def _require_cell(node: Node, blocks: int) -> None:
    """The operands of a cell whose gates come in so many blocks fit its state."""
    batch, size = node.output.shape
    require_shape(node, 0, (batch, blocks * size), f"{blocks} gates of a state {[batch, size]}")
    require_shape(node, 1, (blocks * size, size), f"{blocks} gates of a state {[batch, size]}")
    require_shape(node, 2, (batch, size), "the state before")
    require_shape(node, 3, (1, batch), "one flag for each sequence")
    if node.op_type == "GRUCell":
        require_shape(node, 4, (size,), "one for each element of the state")
    if node.op_type == "LSTMCell":
        require_shape(node, 4, (batch, size), "the memory before")
        require_shape(node, 5, (3 * size,), "three of each element of the state")
        for position in (_SCALE, _ZERO):
            require_shape(node, position, (blocks * size,), "one for each row of the recurrence")
        is_bytes = node.input(1) is not None and node.require(1).dtype in (DType.INT8, DType.UINT8)
        require(node, is_bytes == (node.input(_SCALE) is not None), "a recurrence of bytes has a scale")
    for position in range(len(node.outputs)):
        require_result(node, (batch, size), position)


def _product(
    node: Node, hidden: Operand, target: Operand, *, first: int = 0, gates: Operand | None = None
) -> Nest:
    """`target = hidden @ recurrence[first:].T`, plus `gates[:, first:]`."""
    batch, width = target.shape
    dims = (Dim("m", batch), Dim("n", width), Dim("k", node.output.shape[1], "reduce"))
    reads = [
        Access(hidden, (affine("m"), affine("k"))),
        Access(input_operand(node, 1), (affine("n", first), affine("k"))),
    ]
    body = cast(read(0, reads[0]), target.dtype) * cast(read(1, reads[1]), target.dtype)
    init: Expr | None = None
    if gates is not None:
        reads.append(Access(gates, (affine("m"), affine("n", first))))
        init = read(2, reads[2])
    return Nest(dims, tuple(reads), Access(target, identity(dims[:2])), body, "sum", init)


def _integer_product(node: Node, step: _Elements, target: Operand) -> list[Nest]:
    """`target = gates + hidden @ recurrence.T` for a recurrence of bytes."""
    batch, width = target.shape
    hidden = step.kept(step.state(2), Const(0.0, step.dtype))
    made = DynamicBytes(step.dims, tuple(step.reads), hidden, _FIRST_OF_BYTES)
    given = Access(local(_FIRST_OF_BYTES - 1, DType.UINT8, node.output.shape), identity(step.dims))
    dims = (Dim("m", batch), Dim("n", width), Dim("k", node.output.shape[1], "reduce"))
    reads = [
        Access(given.operand, (affine("m"), affine("k"))),
        made.zero,
        Access(input_operand(node, 1), (affine("n"), affine("k"))),
        made.scale,
        Access(input_operand(node, _SCALE), (affine("n"),)),
        Access(input_operand(node, 0), identity(dims[:2])),
    ]
    wide = DType.INT32
    weight = cast(read(2, reads[2]), wide)
    if node.input(_ZERO) is not None:
        reads.append(Access(input_operand(node, _ZERO), (affine("n"),)))
        weight = weight - cast(read(6, reads[6]), wide)
    body = (cast(read(0, reads[0]), wide) - cast(read(1, reads[1]), wide)) * weight
    finish = cast(Acc(wide), step.dtype) * (read(3, reads[3]) * read(4, reads[4])) + read(5, reads[5])
    nest = Nest(dims, tuple(reads), Access(target, identity(dims[:2])), body, "sum", None, finish)
    return [*made.nests(given), nest]


@operator("RNNCell", reference=_cell_reference, domain=INTERNAL_DOMAIN)
def rnn_cell(node: Node) -> Description:
    """`f(gates + hidden @ recurrence.T)`."""
    _require_cell(node, 1)
    (f,) = _activations(node, _expr_activation)
    total, nests = input_operand(node, 0), []
    step = _Elements.of(node)
    if node.input(2) is not None:
        total = local(0, step.dtype, total.shape)
        nests.append(_product(node, input_operand(node, 2), total, gates=input_operand(node, 0)))
    after = f(step.clipped(step.block(total, 0)))
    value = after if node.input(3) is None else step.kept(after, step.state(2))
    return (*nests, step.write(output_operand(node), value))


@operator("GRUCell", reference=_cell_reference, domain=INTERNAL_DOMAIN)
def gru_cell(node: Node) -> Description:
    """Update and reset from the state, a candidate from what the reset leaves of it, and their mixture."""
    _require_cell(node, 3)
    f, g = _activations(node, _expr_activation)
    gates = input_operand(node, 0)
    step = _Elements.of(node)
    batch, size = node.output.shape
    has_state = node.input(2) is not None
    nests: list[Nest] = []
    if node.int_attr("linear_before_reset", 0):
        bias = None if node.input(4) is None else Access(input_operand(node, 4), (affine("j"),))
        if has_state:
            product = local(0, step.dtype, gates.shape)
            nests.append(_product(node, input_operand(node, 2), product))

        def total(number: int) -> Expr:
            given = step.block(gates, number)
            return given + step.block(product, number) if has_state else given

        update, reset = f(step.clipped(total(0))), f(step.clipped(total(1)))
        parts = [step.block(product, 2)] if has_state else []
        parts += [] if bias is None else [step.at(bias)]
        candidate = step.block(gates, 2)
        if parts:
            candidate = candidate + reset * (parts[0] if len(parts) == 1 else parts[0] + parts[1])
    else:
        both, inner = gates, gates
        if has_state:
            hidden = input_operand(node, 2)
            both = local(0, step.dtype, (batch, 2 * size))
            left, inner = local(1, step.dtype, (batch, size)), local(2, step.dtype, (batch, size))
            nests.append(_product(node, hidden, both, gates=gates))
            remains = _Elements.of(node)
            reset = f(remains.clipped(remains.block(both, 1)))
            nests.append(remains.write(left, reset * remains.state(2)))
            nests.append(_product(node, left, inner, first=2 * size, gates=gates))
        update = f(step.clipped(step.block(both, 0)))
        candidate = step.block(inner, 0 if has_state else 2)
    after = (1 - update) * g(step.clipped(candidate))
    value = after
    if has_state:
        before = step.state(2)
        value = step.kept(after + update * before, before)
    elif node.input(3) is not None:
        value = step.kept(after, step.state(2))
    return (*nests, step.write(output_operand(node), value))


@operator("LSTMCell", reference=_cell_reference, domain=INTERNAL_DOMAIN)
def lstm_cell(node: Node) -> Description:
    """What enters, leaves and is forgotten; the new memory; what of it shows."""
    _require_cell(node, 4)
    f, g, h = _activations(node, _expr_activation)
    total, nests = input_operand(node, 0), []
    step, out = _Elements.of(node), _Elements.of(node)
    if node.input(2) is not None:
        total = local(0, step.dtype, total.shape)
        if node.input(_SCALE) is None:
            nests.append(_product(node, input_operand(node, 2), total, gates=input_operand(node, 0)))
        else:
            nests += _integer_product(node, _Elements.of(node), total)

    def peeped(elements: _Elements, number: int, which: int, memory: Expr) -> Expr:
        value = elements.block(total, number)
        if node.input(5) is not None and not isinstance(memory, Const):
            index = (affine("j", which * elements.dims[1].extent),)
            value = value + elements.at(Access(input_operand(node, 5), index)) * memory
        gate: Expr = f(elements.clipped(value))
        return gate

    before = step.state(4)
    enter = peeped(step, 0, 0, before)
    after = enter * g(step.clipped(step.block(total, 3)))
    if node.input(4) is not None:
        forget = 1 - enter if node.int_attr("input_forget", 0) else peeped(step, 2, 2, before)
        after = forget * before + after
    memory = local(1, step.dtype, node.output.shape)
    nests.append(step.write(memory, step.kept(after, before)))
    inside = out.at(Access(memory, identity(out.dims)))
    value = peeped(out, 1, 1, inside) * h(inside)
    if node.input(3) is not None:
        value = out.kept(value, out.state(2))
    nests.append(out.write(output_operand(node), value))
    stored = output_operand(node, 1)
    nests.append(copy_nest(out.dims, Access(memory, identity(out.dims)), Access(stored, identity(out.dims))))
    return tuple(nests)
