"""RNN, GRU and LSTM become one product for all steps and directions, and one operator that runs the steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, Value
from tilewright.ir.ops.recurrent import is_layer, is_quantized, kind_of_layer
from tilewright.ir.ops.registry import INTERNAL_DOMAIN
from tilewright.ir.ops.steps import GATES
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
from tilewright.passes.rules import Kept, RulePass
from tilewright.text.formatting import counted

_MAX_BATCH = 128
"""Sequences of a layer; the products of more are worth kernels of their own at each step."""


def loops_over(graph: Graph, node: Node) -> int | None:
    """Over how many steps a layer becomes a loop; None for what does not, or is no such layer."""
    if not is_layer(node):
        return None
    found = _match(Editor(graph), node)
    return found.steps if isinstance(found, RecurrentLayer) else None


def _match(editor: Editor, node: Node) -> RecurrentLayer | Kept | None:
    layer = match_layer(None, editor, node)
    if not isinstance(layer, RecurrentLayer):
        return layer
    if node.require(0).dtype is not DType.FLOAT32:
        return Kept(f"it computes in {node.require(0).dtype}")
    if layer.batch > _MAX_BATCH:
        return Kept(f"{layer.batch} sequences are more than {_MAX_BATCH}")
    constants = (node.require(2), node.input(3))
    if any(value is not None and editor.data(value) is None for value in constants):
        return Kept("its weights are no constants")
    return layer


def _build(editor: Editor, node: Node, layer: RecurrentLayer) -> str:
    emit = LayerNodes(editor, node)
    directions, state = layer.directions, (layer.directions, layer.batch, layer.size)
    given = emit.alive(layer)
    alive = emit.constant(given, "alive") if isinstance(given, np.ndarray) else given
    added, scaled = zip(*(biases(emit, direction) for direction in range(directions)), strict=True)
    operands = [_gates(emit, layer, added), node.require(2), _state(emit, 5, "hidden"), alive]
    kind, recurrence = kind_of_layer(node), ByteWeights.of_states(emit) if is_quantized(node) else None
    if recurrence is not None:
        operands[1] = emit.constant(recurrence.data, "recurrence")
    dtype = node.require(0).dtype
    results: list[tuple[str, DType, tuple[int, ...]]] = [
        ("every", dtype, (layer.steps, layer.batch, directions, layer.size))
    ]
    if kind == "LSTM":
        operands += [_state(emit, 6, "memory"), node.input(7)]
        results.append(("memory", dtype, state))
    if all(value is not None and value.data is not None for value in scaled):
        operands.append(emit.constant(np.stack([v.data for v in scaled if v is not None]), "bias_scaled"))
    if recurrence is not None:
        zero = recurrence.zero
        operands.append(emit.constant(recurrence.scale, "recurrence_scale"))
        operands.append(None if zero is None else emit.constant(zero, "recurrence_zero"))
    steps = emit.several(f"{kind}Steps", operands, results, _attributes(node, layer), domain=INTERNAL_DOMAIN)
    emit.replace(
        (
            lambda: _every(emit, layer, steps[0], alive),
            lambda: emit.by_batch(_last(emit, layer, steps[0]), "last", (1, 0, 2)),
            lambda: emit.by_batch(steps[1], "memory", (1, 0, 2)),
        )
    )
    return f"a loop over {counted(layer.steps, 'step')} of {node.op_type}"


def _ways(node: Node, layer: RecurrentLayer) -> tuple[int, ...]:
    """Of each direction whether it goes from the last step to the first."""
    return (0, 1) if layer.directions == 2 else (int(node.str_attr("direction", "forward") == "reverse"),)


def _attributes(node: Node, layer: RecurrentLayer) -> dict[str, Attribute]:
    names, alphas, betas = zip(*(a for of in layer.activations for a in of), strict=True)
    listed: dict[str, Attribute] = {
        "activations": names,
        "activation_alpha": alphas,
        "activation_beta": betas,
        "reverse": _ways(node, layer),
    }
    return {**layer.attributes, **listed}  # type: ignore[dict-item]


def _gates(emit: LayerNodes, layer: RecurrentLayer, added: Sequence[Value | None]) -> Value:
    """The product of all inputs and the weights of all directions, and what adds to it."""
    node = emit.node
    x, weight = node.require(0), node.require(1)
    if node.int_attr("layout", 0):
        x = emit.transpose(x, "by_time", (1, 0, 2))
    rows, columns = (
        layer.steps * layer.batch,
        layer.directions * GATES[f"{kind_of_layer(node)}Steps"] * layer.size,
    )
    bias = None
    if all(value is not None and value.data is not None for value in added):
        bias = emit.constant(np.concatenate([v.data for v in added if v is not None]), "bias")
    if is_quantized(node):
        weights = ByteWeights.of_inputs(emit)
        gates = quantized_gates(emit, quantized_inputs(emit, layer, x), weights, bias, "gates")
        return emit.reshape(gates, "gates_by_time", (layer.steps, layer.batch, columns))
    flat = emit.reshape(x, "flat", (rows, layer.width))
    data = emit.editor.data(weight)
    if data is None:
        matrix = emit.reshape(weight, "weight", (columns, layer.width))
    else:
        matrix = emit.constant(data.reshape(columns, layer.width), "weight", weight.dtype)
    inputs = [flat, matrix, *([] if bias is None else [bias])]
    gates = emit.one("Gemm", inputs, "gates", (rows, columns), {"transB": 1})
    return emit.reshape(gates, "gates_by_time", (layer.steps, layer.batch, columns))


def _state(emit: LayerNodes, position: int, stem: str) -> Value | None:
    """What all directions start with, `[D, N, H]`; None for zeros."""
    value = emit.node.input(position)
    data = emit.editor.data(value)
    if value is None or (data is not None and not data.any()):
        return None
    if not emit.node.int_attr("layout", 0):
        return value
    if data is not None:
        return emit.constant(np.ascontiguousarray(data.swapaxes(0, 1)), f"{stem}_first", value.dtype)
    return emit.transpose(value, f"{stem}_first", (1, 0, 2))


def _every(emit: LayerNodes, layer: RecurrentLayer, every: Value, alive: Value | None) -> Value:
    """The hidden states of all steps; zeros where a sequence has ended."""
    if alive is not None:
        mask = emit.reshape(alive, "alive_every", (layer.steps, layer.batch, 1, 1))
        every = emit.shown(every, mask)
    by_batch = bool(emit.node.int_attr("layout", 0))
    return emit.transpose(every, "every_shown", (1, 0, 2, 3) if by_batch else (0, 2, 1, 3))


def _last(emit: LayerNodes, layer: RecurrentLayer, every: Value) -> Value:
    """The hidden states that the directions end with."""
    parts: list[Value] = []
    shape = (1, layer.batch, 1, layer.size)
    for direction, is_reverse in enumerate(_ways(emit.node, layer)):
        time = 0 if is_reverse else layer.steps - 1
        stem = f"last_{direction}"
        bounds = [
            emit.constant(np.array(values, np.int64), f"{stem}_{what}")
            for what, values in (
                ("starts", (time, direction)),
                ("ends", (time + 1, direction + 1)),
                ("axes", (0, 2)),
            )
        ]
        part = emit.one("Slice", [every, *bounds], stem, shape)
        parts.append(emit.reshape(part, f"{stem}_state", (1, layer.batch, layer.size)))
    return emit.concat(parts, "last")


class LoopRecurrent(RulePass):
    """A layer of any number of steps becomes a Gemm and a loop (`ir/ops/steps.py`).

    For targets that run such loops: others get the steps written out by `expand-recurrent`, as do layers that
    a loop has no kernel for.
    """

    name = "loop-recurrent"
    rules = rules_of_layers(_match, _build)
