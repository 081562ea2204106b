"""Random small networks of integers: what is computed in parts must equal the whole bit for bit."""

from __future__ import annotations

import random

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, Value


class IntegerNetwork:
    """Small images, odd ones too, through windows, strides, joins, slices and changes of layout."""

    def __init__(self, seed: int, num_nodes: int, *, batch: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.graph = Graph(f"integers{seed}")
        self.batch = batch or self.rng.choice((1, 2, 4, 5, 8))
        side = self.rng.choice((4, 5, 7, 8))
        self.values = [
            self.graph.add_input(Value(f"x{i}", DType.FLOAT32, (self.batch, 2, side, side))) for i in range(2)
        ]
        while len(self.graph.nodes) < num_nodes:
            self.rng.choice(
                (self.unary, self.convolution, self.pool, self.join, self.concat, self.slice, self.product)
            )()
        made = [v for n in self.graph.nodes for v in n.results()]
        self.graph.outputs = [v for v in made if not v.users or self.rng.random() < 0.1]

    def pick(self) -> Value:
        return self.rng.choice(self.values[-5:])

    def add(self, op_type: str, *inputs: Value, shape: tuple[int, ...], **attributes: Attribute) -> Value:
        result = self.graph.value(op_type.lower(), DType.FLOAT32, shape)
        self.graph.append(Node(op_type, inputs, [result], attributes))
        return result

    def keep(self, value: Value) -> None:
        self.values.append(value)

    def weight(self, *shape: int) -> Value:
        size = int(np.prod(shape))
        data = np.array([self.rng.randint(-2, 2) for _ in range(size)], np.float32).reshape(shape)
        return self.graph.constant(data, "w")

    def integers(self, *numbers: int) -> Value:
        return self.graph.constant(np.array(numbers, np.int64), "n")

    def unary(self) -> None:
        x = self.pick()
        self.keep(self.add(self.rng.choice(("Relu", "Neg", "Abs")), x, shape=x.shape))

    def convolution(self) -> None:
        x = self.pick()
        n, c, h, w = x.shape
        size = self.rng.choice((1, 3))
        stride = self.rng.choice((1, 1, 2)) if min(h, w) > 2 else 1
        pad = size // 2
        shape = (
            n,
            self.rng.choice((2, 3)),
            (h + 2 * pad - size) // stride + 1,
            (w + 2 * pad - size) // stride + 1,
        )
        weight = self.weight(shape[1], c, size, size)
        y = self.add("Conv", x, weight, shape=shape, pads=(pad,) * 4, strides=(stride,) * 2)
        # Products grow: what is small stays exact in float32.
        self.keep(self.add("Clip", y, self.bound(-50.0), self.bound(50.0), shape=shape))

    def bound(self, value: float) -> Value:
        return self.graph.constant(np.array(value, np.float32), "bound")

    def pool(self) -> None:
        x = self.pick()
        n, c, h, w = x.shape
        if min(h, w) < 3:
            return self.unary()
        shape = (n, c, (h - 3) // 2 + 1, (w - 3) // 2 + 1)
        return self.keep(
            self.add("MaxPool", x, shape=shape, kernel_shape=(3, 3), strides=(2, 2), pads=(0,) * 4)
        )

    def join(self) -> None:
        x = self.pick()
        others = [v for v in self.values if v.shape == x.shape]
        y = self.add(self.rng.choice(("Add", "Sub", "Max")), x, self.rng.choice(others), shape=x.shape)
        self.keep(self.add("Clip", y, self.bound(-200.0), self.bound(200.0), shape=y.shape))

    def concat(self) -> None:
        x = self.pick()
        y = self.rng.choice([v for v in self.values if v.shape[2:] == x.shape[2:]])
        if x.shape[1] + y.shape[1] > 8:
            return self.unary()
        shape = (x.shape[0], x.shape[1] + y.shape[1], *x.shape[2:])
        return self.keep(self.add("Concat", x, y, shape=shape, axis=1))

    def slice(self) -> None:
        x = self.pick()
        axis = self.rng.choice((1, 2, 3))
        if x.shape[axis] < 3:
            return self.unary()
        shape = tuple(e - (1 if a == axis else 0) for a, e in enumerate(x.shape))
        ends = (self.integers(1), self.integers(x.shape[axis]), self.integers(axis))
        return self.keep(self.add("Slice", x, *ends, shape=shape))

    def product(self) -> None:
        """The rows of an image as a matrix, through a change of layout there and back."""
        x = self.pick()
        n, c, h, w = x.shape
        turned = self.add("Transpose", x, shape=(n, h, w, c), perm=(0, 2, 3, 1))
        rows = self.add("Reshape", turned, self.integers(n * h * w, c), shape=(n * h * w, c))
        y = self.add("MatMul", rows, self.weight(c, 3), shape=(n * h * w, 3))
        y = self.add("Clip", y, self.bound(-50.0), self.bound(50.0), shape=y.shape)
        back = self.add("Reshape", y, self.integers(n, h, w, 3), shape=(n, h, w, 3))
        self.keep(self.add("Transpose", back, shape=(n, 3, h, w), perm=(0, 3, 1, 2)))


def integer_network(seed: int, num_nodes: int = 14, *, batch: int | None = None) -> Graph:
    """One network; every result is read or an output."""
    return IntegerNetwork(seed, num_nodes, batch=batch).graph


def integer_feed(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Small integers for the inputs of a graph."""
    rng = np.random.default_rng(seed)
    return {v.name: rng.integers(-9, 10, v.shape).astype(np.float32) for v in graph.inputs}
