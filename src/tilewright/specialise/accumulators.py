"""States of a Loop to which steps only append: what is appended is stacked instead, and joined at the end.

Such a state grows from step to step, so that no code of a fixed shape could hand it on. Where nothing else
reads it, the rest of the body keeps its shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from onnx import GraphProto, NodeProto, helper

from tilewright.arrays import Array
from tilewright.errors import InputError
from tilewright.frontend.onnx.scope import unused
from tilewright.ir.bodies import body_graphs, free_names, own_names
from tilewright.ir.graph import Node, SubgraphAttribute, Value
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A state, by its number, and the axis along which a step appends to it."""

    state: int
    axis: int


@dataclass(frozen=True, slots=True, eq=False)
class Unaccumulated:
    """A Loop without some of its states, for each of which it stacks what a step appends, last in order."""

    node: Node
    accumulators: tuple[Accumulator, ...]
    num_states: int

    def operands(self, operands: Sequence[Array | None]) -> list[Array | None]:
        """Those of the Loop without these states."""
        gone = {2 + a.state for a in self.accumulators}
        return [array for i, array in enumerate(operands) if i not in gone]

    def results(
        self, operands: Sequence[Array | None], found: Sequence[Array | None]
    ) -> tuple[Array | None, ...]:
        """Results of the whole Loop.

        Raises:
            InputError: what is appended does not fit the state at the begin.
        """
        num_kept = self.num_states - len(self.accumulators)
        kept, stacks = iter(found[:num_kept]), found[num_kept : len(found) - len(self.accumulators)]
        pieces = dict(zip(self.accumulators, found[len(found) - len(self.accumulators) :], strict=True))
        joined = {a.state: self._joined(a, operands[2 + a.state], p) for a, p in pieces.items()}
        return (*(joined[k] if k in joined else next(kept) for k in range(self.num_states)), *stacks)

    def _joined(self, accumulator: Accumulator, first: Array | None, pieces: Array | None) -> Array:
        assert first is not None
        assert pieces is not None
        try:
            axis = accumulator.axis % first.ndim
            row = pieces.shape[1:]
            whole = (*row[:axis], len(pieces) * row[axis], *row[axis + 1 :])
            return np.concatenate([first, np.moveaxis(pieces, 0, axis).reshape(whole)], axis)
        except (ValueError, ZeroDivisionError, IndexError) as error:
            raise InputError(
                f"{self.node.op_type} {self.node.name!r}: what a step appends to state {accumulator.state}, "
                f"{list(pieces.shape[1:])}, does not fit {list(first.shape)}."
            ) from error


def without_accumulators(node: Node) -> Unaccumulated | None:
    """A Loop without the states that its steps only append to; None where there are none."""
    held = node.attributes.get("body")
    if node.op_type != "Loop" or not isinstance(held, SubgraphAttribute):
        return None
    body = GraphProto.FromString(held.serialized)
    num_states = len(node.inputs) - 2
    if len(body.input) != 2 + num_states or any(value is None for value in node.inputs[2:]):
        return None
    reads = Counter(name for proto in body.node for name in _reads(proto))
    reads.update(value.name for value in body.output)
    makers = {name: proto for proto in body.node for name in proto.output}
    found: list[Accumulator] = []
    appended: list[NodeProto] = []
    for state in range(num_states):
        before, after = body.input[2 + state].name, body.output[1 + state].name
        maker = makers.get(after)
        if (
            maker is not None
            and maker.op_type == "Concat"
            and len(maker.input) > 1
            and maker.input[0] == before
            and reads[before] == 1
            and reads[after] == 1
        ):
            found.append(Accumulator(state, next((a.i for a in maker.attribute if a.name == "axis"), 0)))
            appended.append(maker)
    return _rewritten(node, body, found, appended) if found else None


def _rewritten(
    node: Node, body: GraphProto, found: Sequence[Accumulator], appended: Sequence[NodeProto]
) -> Unaccumulated:
    num_states, gone = len(node.inputs) - 2, {a.state for a in found}
    names = dict.fromkeys([*own_names(body), *free_names(body)], 1)
    made = GraphProto(name=body.name, initializer=body.initializer)
    made.node.extend(proto for proto in body.node if proto not in appended)
    made.input.extend(v for i, v in enumerate(body.input) if i - 2 not in gone)
    made.output.extend(v for i, v in enumerate(body.output) if not (i and i - 1 in gone))
    for maker, accumulator in zip(appended, found, strict=True):
        piece = unused(f"{maker.output[0]}/appended", names)
        made.node.append(helper.make_node("Concat", maker.input[1:], [piece], axis=accumulator.axis))
        made.output.append(helper.make_empty_tensor_value_info(piece))
    outputs = [value for i, value in enumerate(node.outputs) if i not in gone]
    for number, accumulator in enumerate(found):
        state = node.require(2 + accumulator.state)
        outputs.append(Value(f"{node.name}/appended_{number}", state.dtype, ()))
    attributes = {**node.attributes, "body": SubgraphAttribute(made.SerializeToString(deterministic=True))}
    inputs = [value for i, value in enumerate(node.inputs) if i - 2 not in gone]
    rest = Node("Loop", inputs, outputs, attributes, name=node.name, opset=node.opset, captures=node.captures)
    return Unaccumulated(rest, tuple(found), num_states)


def _reads(proto: NodeProto) -> Iterator[str]:
    yield from proto.input
    for inner in body_graphs(proto):
        yield from free_names(inner)
