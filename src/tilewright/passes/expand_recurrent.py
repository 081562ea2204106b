"""RNN, GRU and LSTM over a known number of steps are written as their steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.ops.recurrent import is_layer, is_quantized, kind_of_layer
from tilewright.ir.ops.registry import INTERNAL_DOMAIN
from tilewright.passes.base import PassResult
from tilewright.passes.edit import Editor
from tilewright.passes.recurrent_layer import (
    ByteWeights,
    LayerNodes,
    RecurrentLayer,
    biases,
    match_layer,
    quantized_gates,
    quantized_inputs,
    rules_of_layers,
)
from tilewright.passes.rules import apply_rules
from tilewright.planning import option
from tilewright.records import dataclass
from tilewright.text.formatting import counted


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
        return apply_rules(graph, rules_of_layers(partial(match_layer, self.max_steps), _build))


def num_steps_of(graph: Graph, node: Node) -> int | None:
    """As how many steps a layer is written; None for what stays whole or is no such layer."""
    if not is_layer(node):
        return None
    found = match_layer(ExpandRecurrent().max_steps, Editor(graph), node)
    return found.steps if isinstance(found, RecurrentLayer) else None


def _build(editor: Editor, node: Node, layer: RecurrentLayer) -> str:
    emit = LayerNodes(editor, node)
    x = node.require(0)
    if node.int_attr("layout", 0):
        x = emit.transpose(x, "by_time", (1, 0, 2))
    given = (
        quantized_inputs(emit, layer, x)
        if is_quantized(node)
        else [emit.reshape(x, "flat", (layer.steps * layer.batch, layer.width))]
    )
    alive, mask = _alive(emit, layer)
    hidden: list[list[Value]] = [[] for _ in range(layer.steps)]
    last: list[list[Value]] = []
    for direction in range(layer.directions):
        backward = direction == 1 or node.str_attr("direction", "forward") == "reverse"
        times = range(layer.steps - 1, -1, -1) if backward else range(layer.steps)
        last.append(_direction(emit, layer, direction, given, times, alive, hidden))
    emit.replace(
        (
            lambda: _every(emit, layer, hidden, mask),
            lambda: _last(emit, layer, [state[0] for state in last], "last_hidden"),
            lambda: _last(emit, layer, [state[1] for state in last], "last_memory"),
        )
    )
    return f"{counted(layer.steps, 'step')} of {node.op_type}"


def _alive(emit: LayerNodes, layer: RecurrentLayer) -> tuple[list[Value | None], Value | None]:
    """For each step, which sequences have not ended (`[1, N]`; None for all); and for all, `[T, 1, N, 1]`."""
    alive, shape = emit.alive(layer), (layer.steps, 1, layer.batch, 1)
    if alive is None:
        return [None] * layer.steps, None
    if isinstance(alive, Value):
        return [*emit.split(alive, "alive", [1] * layer.steps)], emit.reshape(alive, "alive_every", shape)
    steps = [None if row.all() else emit.constant(row[None], f"alive_{t}") for t, row in enumerate(alive)]
    return steps, emit.constant(alive.reshape(shape), "alive")


def _direction(
    emit: LayerNodes,
    layer: RecurrentLayer,
    direction: int,
    given: Sequence[Value],
    times: Sequence[int],
    alive: Sequence[Value | None],
    hidden: Sequence[list[Value]],
) -> list[Value]:
    """The cells of one direction: appends each step's hidden state to `hidden`, and gives the last state."""
    node = emit.node
    kind, dtype = kind_of_layer(node), node.require(0).dtype
    recurrence: Value | None
    parameters: list[Value | None] = []
    if is_quantized(node):
        weights = ByteWeights.of_inputs(emit).direction(direction)
        of_states = ByteWeights.of_states(emit).direction(direction)
        stem = f"recurrence_{direction}"
        recurrence = emit.constant(of_states.data[0], stem)
        parameters = [
            None if data is None else emit.constant(data[0], f"{stem}_{what}")
            for what, data in (("scale", of_states.scale), ("zero", of_states.zero))
        ]
        bias, scaled_bias = biases(emit, direction)
        gates = quantized_gates(emit, given, weights, bias, f"gates_{direction}")
    else:
        (flat,) = given
        weight, recurrence = emit.part(1, direction, "weight"), emit.part(2, direction, "recurrence")
        assert weight is not None
        bias, scaled_bias = biases(emit, direction)
        rows, columns = flat.shape[0], weight.shape[0]
        inputs = [flat, weight] if bias is None else [flat, weight, bias]
        gates = emit.one("Gemm", inputs, f"gates_{direction}", (rows, columns), {"transB": 1})
    pieces = emit.split(gates, f"gates_{direction}", [layer.batch] * layer.steps)
    is_lstm = kind == "LSTM"
    state = [emit.state(5, direction, "hidden")]
    extra: list[Value | None] = [scaled_bias] if kind == "GRU" else []
    if is_lstm:
        state.append(emit.state(6, direction, "memory"))
        extra = [emit.part(7, direction, "peephole"), *parameters]
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
        matrix = None if state[0] is None and kind == "RNN" else recurrence
        operands = [pieces[t], matrix, state[0], alive[t], *state[1:], *extra]
        results = [(f"hidden_{direction}_{t}", dtype, shape)]
        if is_lstm:
            results.append((f"memory_{direction}_{t}", dtype, shape))
        now = emit.several(f"{kind}Cell", operands, results, attributes, domain=INTERNAL_DOMAIN)
        hidden[t].append(now[0])
        state = [*now]
    return now


def _every(
    emit: LayerNodes, layer: RecurrentLayer, hidden: Sequence[Sequence[Value]], mask: Value | None
) -> Value:
    """The hidden states of all steps; zeros where a sequence has ended."""
    shape = (layer.steps, layer.directions, layer.batch, layer.size)
    joined = emit.concat([value for step in hidden for value in step], "hidden")
    every = emit.reshape(joined, "every", shape)
    if mask is not None:
        every = emit.shown(every, mask)
    return emit.by_batch(every, "every", (2, 0, 1, 3))


def _last(emit: LayerNodes, layer: RecurrentLayer, states: Sequence[Value], stem: str) -> Value:
    """The states that the directions end with."""
    joined = emit.concat(states, f"{stem}_joined")
    value = emit.reshape(joined, stem, (layer.directions, layer.batch, layer.size))
    return emit.by_batch(value, stem, (1, 0, 2))
