"""Random networks of integers on tall images, whose windows reach over the borders of slices in every way."""

from __future__ import annotations

import random

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, Value


class WindowNetwork:
    """Windows of several sizes, strides and dilations, and pads that differ at the two ends.

    Large images are made of small ones, and several windows read a value and meet again.
    """

    def __init__(self, seed: int, num_blocks: int) -> None:
        self.rng = random.Random(seed)
        self.graph = Graph(f"windows{seed}")
        shape = (self.rng.choice((1, 1, 2)), 2, self.rng.choice((16, 17, 24)), 3)
        x = self.graph.add_input(Value("x", DType.FLOAT32, shape))
        for _ in range(num_blocks):
            x = self.rng.choice((self.window, self.window, self.pool, self.larger, self.residual, self.pair))(
                x
            )
        self.graph.outputs = [self.window(x, rows=x.shape[2])]

    def add(self, op_type: str, *inputs: Value, shape: tuple[int, ...], **attributes: Attribute) -> Value:
        result = self.graph.value(op_type.lower(), DType.FLOAT32, shape)
        self.graph.append(Node(op_type, inputs, [result], attributes))
        return result

    def bounded(self, value: Value) -> Value:
        """Numbers stay small, so that sums of products are exact in float32."""
        low, high = (self.graph.constant(np.array(b, np.float32), "bound") for b in (-50.0, 50.0))
        return self.add("Clip", value, low, high, shape=value.shape)

    def window(self, x: Value, rows: int | None = None) -> Value:
        """A convolution of a random kind, with so many rows if that is said."""
        n, c, h, w = x.shape
        size, dilation = self.rng.choice(((1, 1), (2, 1), (3, 1), (3, 1), (3, 2), (5, 1)))
        stride = 1 if rows else self.rng.choice((1, 1, 2, 3))
        reach = dilation * (size - 1) + 1
        top = self.rng.randrange(reach)
        bottom = reach - 1 - top if rows else self.rng.randrange(reach)
        made = (h + top + bottom - reach) // stride + 1
        if made < 6 and not rows:
            return self.window(x, h)
        weight = np.array([self.rng.randint(-2, 2) for _ in range(2 * c * size * 3)], np.float32)
        y = self.add(
            "Conv",
            x,
            self.graph.constant(weight.reshape(2, c, size, 3), "w"),
            shape=(n, 2, made, w),
            pads=(top, 1, bottom, 1),
            strides=(stride, 1),
            dilations=(dilation, 1),
        )
        return self.bounded(y)

    def pool(self, x: Value) -> Value:
        n, c, h, w = x.shape
        if h < 14:
            return self.window(x)
        shape = (n, c, (h - 3) // 2 + 1, w)
        return self.add("MaxPool", x, shape=shape, kernel_shape=(3, 3), strides=(2, 1), pads=(0, 1, 0, 1))

    def larger(self, x: Value) -> Value:
        """Every row twice."""
        n, c, h, w = x.shape
        if h > 14:
            return self.window(x)
        scales = self.graph.constant(np.array([1, 1, 2, 1], np.float32), "scales")
        empty = self.graph.constant(np.zeros(0, np.float32), "roi")
        return self.add(
            "Resize",
            x,
            empty,
            scales,
            shape=(n, c, 2 * h, w),
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )

    def residual(self, x: Value) -> Value:
        """A value that windows read, and what comes of them again."""
        x = self.window(x, x.shape[2])
        y = x
        for _ in range(self.rng.choice((1, 2, 3))):
            y = self.window(y, y.shape[2])
        return self.bounded(self.add("Add", x, y, shape=x.shape))

    def pair(self, x: Value) -> Value:
        """Two different windows on the same value, beside each other."""
        a, b = self.window(x, x.shape[2]), self.window(x, x.shape[2])
        n, c, h, w = a.shape
        return self.add("Concat", a, b, shape=(n, 2 * c, h, w), axis=1)


def window_network(seed: int, num_blocks: int = 5) -> Graph:
    """One network with one output."""
    return WindowNetwork(seed, num_blocks).graph
