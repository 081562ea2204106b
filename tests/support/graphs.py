"""Small graphs for tests of planners: a builder, and random graphs that the interpreter can run."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, Value

SIDE = 4


class GraphBuilder:
    """Builds a graph of float32 values; an operator's result has its first operand's shape unless told."""

    def __init__(self, name: str = "test") -> None:
        self.graph = Graph(name)

    def input(self, *shape: int, name: str = "x") -> Value:
        return self.graph.add_input(Value(self.graph.fresh_name(name), DType.FLOAT32, shape))

    def constant(self, *shape: int, name: str = "w", value: float = 0.5) -> Value:
        return self.graph.constant(np.full(shape, value, np.float32), name)

    def integers(self, *values: int) -> Value:
        return self.graph.constant(np.array(values, np.int64), "n")

    def op(
        self,
        op_type: str,
        *operands: Value,
        shape: Sequence[int] | None = None,
        name: str | None = None,
        **attributes: Attribute,
    ) -> Value:
        shape = operands[0].shape if shape is None else shape
        result = self.graph.value(name or op_type.lower(), DType.FLOAT32, shape)
        return self.graph.append(Node(op_type, operands, [result], attributes)).output

    def ops(
        self,
        op_type: str,
        operands: Sequence[Value],
        shapes: Sequence[Sequence[int]],
        **attributes: Attribute,
    ) -> list[Value]:
        results = [self.graph.value(op_type.lower(), DType.FLOAT32, s) for s in shapes]
        self.graph.append(Node(op_type, operands, results, attributes))
        return results

    def conv(self, x: Value, channels: int, *, name: str | None = None) -> Value:
        weight = self.constant(channels, x.shape[1], 1, 1)
        return self.op("Conv", x, weight, shape=(x.shape[0], channels, *x.shape[2:]), name=name)

    def finish(self, *outputs: Value) -> Graph:
        self.graph.outputs = list(outputs)
        return self.graph

    def node(self, value: Value) -> Node:
        assert value.producer is not None
        return value.producer


_UNARY = ("Relu", "Sigmoid", "Softmax", "Transpose")
_BINARY = ("Add", "Mul", "MatMul")


def node(
    op_type: str,
    inputs: Sequence[tuple[int, ...] | np.ndarray],
    outputs: Sequence[tuple[int, ...]],
    attributes: Mapping[str, Attribute] | None = None,
) -> Node:
    """A node of float32 variables; arrays among the inputs are constants."""
    values = [
        Value(f"x{i}", DType.from_numpy(x.dtype), x.shape, x)
        if isinstance(x, np.ndarray)
        else Value(f"x{i}", DType.FLOAT32, x)
        for i, x in enumerate(inputs)
    ]
    results = [Value(f"y{i}", DType.FLOAT32, shape) for i, shape in enumerate(outputs)]
    return Node(op_type, values, results, attributes)


def random_graph(seed: int, num_nodes: int, *, num_inputs: int = 2, side: int = SIDE) -> Graph:
    """A graph of square matrices in which every result is read or an output."""
    rng = random.Random(seed)
    builder = GraphBuilder(f"random{seed}")
    values = [builder.input(side, side) for _ in range(num_inputs)]
    values.append(builder.constant(side, side, value=0.25))
    for _ in range(num_nodes):
        if rng.random() < 0.5:
            values.append(builder.op(rng.choice(_UNARY), rng.choice(values[-6:])))
        else:
            values.append(builder.op(rng.choice(_BINARY), rng.choice(values[-6:]), rng.choice(values)))
    made = [v for v in values if v.producer is not None]
    outputs = [v for v in made if not v.users or rng.random() < 0.1]
    return builder.finish(*outputs)


def feed_of(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Values for the inputs of a graph."""
    rng = np.random.default_rng(seed)
    return {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
