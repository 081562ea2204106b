"""Random graphs in which layouts, aliases, fusion and shared results meet: image-shaped and flat values,
several inputs and outputs, outputs that are also read, inputs and constants that are outputs."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Draw

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, Value


class _Maker:
    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.graph = Graph("mixed")
        self.rng = np.random.default_rng(draw(st.integers(0, 2**31)))
        self.values: list[Value] = []
        self.count = 0

    def pick(self, of: Callable[[Value], bool] = lambda v: True) -> Value | None:
        fitting = [v for v in self.values if of(v)]
        return self.draw(st.sampled_from(fitting)) if fitting else None

    def flag(self) -> bool:
        return bool(self.draw(st.booleans()))

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def constant(self, *shape: int, scale: float = 0.5) -> Value:
        data = np.asarray(self.rng.standard_normal(shape) * scale, np.float32)
        return self.graph.constant(data, f"c{self.count}")

    def integers(self, *numbers: int) -> Value:
        return self.graph.constant(np.array(numbers, np.int64), f"i{self.count}")

    def add(
        self, op_type: str, inputs: list[Value], *shapes: tuple[int, ...], **attributes: Attribute
    ) -> None:
        self.count += 1
        outputs = [self.graph.value(f"v{self.count}_{i}", DType.FLOAT32, s) for i, s in enumerate(shapes)]
        self.graph.append(Node(op_type, inputs, outputs, attributes, name=f"{op_type}_{self.count}"))
        self.values += outputs


def _image(value: Value) -> bool:
    return len(value.shape) == 4 and value.shape[2] >= 3 and value.shape[3] >= 3


def _unary(m: _Maker) -> None:
    x = m.pick()
    op_type = m.draw(
        st.sampled_from(("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "HardSwish", "Erf", "Identity"))
    )
    assert x is not None
    m.add(op_type, [x], x.shape)


def _binary(m: _Maker) -> None:
    x = m.pick()
    assert x is not None
    y = m.pick(lambda v: v.shape == x.shape)
    kind = m.number(0, 3)
    if kind == 0:
        y = m.constant(*x.shape)
    elif kind == 1 and len(x.shape) >= 2:
        y = m.constant(*(d if a == 1 else 1 for a, d in enumerate(x.shape)))
    elif kind == 2:
        y = m.constant()
    assert y is not None
    operands = [x, y] if m.flag() else [y, x]
    m.add(m.draw(st.sampled_from(("Add", "Mul", "Sub", "Max", "Min"))), operands, x.shape)


def _broadcast(m: _Maker) -> None:
    x = m.pick(lambda v: len(v.shape) >= 2)
    assert x is not None
    y = m.pick(lambda v: len(v.shape) == len(x.shape) and all(b in (1, a) for a, b in zip(x.shape, v.shape)))  # noqa: B905
    if y is not None:
        m.add("Add", [x, y], x.shape)


def _conv(m: _Maker) -> None:
    x = m.pick(_image)
    if x is None:
        return
    batch, channels, height, width = x.shape
    kernel, stride, dilation = m.draw(st.sampled_from((1, 2, 3))), m.number(1, 2), m.number(1, 2)
    pad = m.number(0, 1) if kernel < 3 else m.number(1, 2)
    group = channels if m.flag() else 1
    filters = group * m.number(1, 20 if group == 1 else 2)
    reach = (kernel - 1) * dilation + 1
    rows, columns = ((d + 2 * pad - reach) // stride + 1 for d in (height, width))
    if rows < 1 or columns < 1:
        return
    inputs = [x, m.constant(filters, channels // group, kernel, kernel, scale=0.3)]
    if m.flag():
        inputs.append(m.constant(filters))
    m.add(
        "Conv",
        inputs,
        (batch, filters, rows, columns),
        kernel_shape=(kernel, kernel),
        strides=(stride, stride),
        dilations=(dilation, dilation),
        pads=(pad,) * 4,
        group=group,
    )


def _pool(m: _Maker) -> None:
    x = m.pick(_image)
    if x is None:
        return
    stride = m.number(1, 2)
    rows, columns = ((d + 2 - 3) // stride + 1 for d in x.shape[2:])
    op_type = m.draw(st.sampled_from(("MaxPool", "AveragePool")))
    shape = (*x.shape[:2], rows, columns)
    m.add(op_type, [x], shape, kernel_shape=(3, 3), strides=(stride, stride), pads=(1, 1, 1, 1))


def _global_pool(m: _Maker) -> None:
    x = m.pick(lambda v: len(v.shape) == 4)
    if x is not None:
        m.add("GlobalAveragePool", [x], (*x.shape[:2], 1, 1))


def _batch_norm(m: _Maker) -> None:
    x = m.pick(lambda v: len(v.shape) == 4)
    if x is not None:
        c = x.shape[1]
        variance = m.graph.constant(np.asarray(m.rng.uniform(0.5, 2, c), np.float32), "var")
        m.add("BatchNormalization", [x, m.constant(c), m.constant(c), m.constant(c), variance], x.shape)


def _matmul(m: _Maker) -> None:
    x = m.pick(lambda v: len(v.shape) >= 2)
    assert x is not None
    columns = m.number(1, 40)
    m.add("MatMul", [x, m.constant(x.shape[-1], columns, scale=0.3)], (*x.shape[:-1], columns))


def _product(m: _Maker) -> None:
    x = m.pick(lambda v: len(v.shape) >= 2)
    assert x is not None
    y = m.pick(lambda v: v.shape[:-2] == x.shape[:-2] and len(v.shape) >= 2 and v.shape[-2] == x.shape[-1])
    if y is not None:
        m.add("MatMul", [x, y], (*x.shape[:-1], y.shape[-1]))


def _gemm(m: _Maker) -> None:
    x = m.pick(lambda v: len(v.shape) == 2)
    if x is None:
        return
    columns, transposed = m.number(1, 40), int(m.flag())
    weight = m.constant(*((columns, x.shape[1]) if transposed else (x.shape[1], columns)), scale=0.3)
    m.add("Gemm", [x, weight, m.constant(columns)], (x.shape[0], columns), transB=transposed, alpha=0.5)


def _flatten(m: _Maker) -> None:
    x = m.pick(lambda v: len(v.shape) > 2)
    if x is not None:
        m.add("Flatten", [x], (x.shape[0], int(np.prod(x.shape[1:]))))


def _reshape(m: _Maker) -> None:
    x = m.pick()
    assert x is not None
    size = int(np.prod(x.shape))
    first = m.draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
    shape = (first, size // first)
    m.add("Reshape", [x, m.integers(*shape)], shape)


def _transpose(m: _Maker) -> None:
    x = m.pick()
    assert x is not None
    perm = tuple(m.draw(st.permutations(range(len(x.shape)))))
    m.add("Transpose", [x], tuple(x.shape[a] for a in perm), perm=perm)


def _concat(m: _Maker) -> None:
    x = m.pick(lambda v: len(v.shape) >= 2)
    assert x is not None
    axis = m.number(0, len(x.shape) - 1)
    fits = [
        v
        for v in m.values
        if len(v.shape) == len(x.shape)
        and all(a == axis or d == e for a, (d, e) in enumerate(zip(v.shape, x.shape, strict=True)))
    ]
    parts = [x, *m.draw(st.lists(st.sampled_from(fits), min_size=1, max_size=2))]
    extent = sum(v.shape[axis] for v in parts)
    if extent <= 64:
        m.add("Concat", parts, (*x.shape[:axis], extent, *x.shape[axis + 1 :]), axis=axis)


def _split(m: _Maker) -> None:
    x = m.pick(lambda v: len(v.shape) >= 2 and v.shape[1] >= 2)
    if x is not None:
        left = m.number(1, x.shape[1] - 1)
        shapes = [(x.shape[0], extent, *x.shape[2:]) for extent in (left, x.shape[1] - left)]
        m.add("Split", [x, m.integers(left, x.shape[1] - left)], *shapes, axis=1)


def _slice(m: _Maker) -> None:
    x = m.pick()
    assert x is not None
    axis = m.number(0, len(x.shape) - 1)
    start, step = m.number(0, x.shape[axis] - 1), m.number(1, 2)
    extent = -(-(x.shape[axis] - start) // step)
    bounds = [m.integers(n) for n in (start, x.shape[axis], axis, step)]
    m.add("Slice", [x, *bounds], (*x.shape[:axis], extent, *x.shape[axis + 1 :]))


def _pad(m: _Maker) -> None:
    x = m.pick(lambda v: len(v.shape) == 4 and max(v.shape) < 24)
    if x is not None:
        batch, channels, rows, columns = x.shape
        m.add("Pad", [x, m.integers(0, 0, 1, 0, 0, 0, 0, 2)], (batch, channels, rows + 1, columns + 2))


def _resize(m: _Maker) -> None:
    x = m.pick(lambda v: len(v.shape) == 4 and max(v.shape[2:]) <= 10)
    if x is None:
        return
    empty = m.graph.constant(np.zeros(0, np.float32), "empty")
    scales = m.graph.constant(np.array([1, 1, 2, 2], np.float32), "scales")
    shape = (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])
    mode = m.draw(st.sampled_from(("nearest", "linear")))
    m.add("Resize", [x, empty, scales], shape, mode=mode)


def _softmax(m: _Maker) -> None:
    x = m.pick()
    assert x is not None
    m.add("Softmax", [x], x.shape, axis=m.number(0, len(x.shape) - 1))


def _layer_norm(m: _Maker) -> None:
    x = m.pick(lambda v: len(v.shape) >= 2 and v.shape[-1] > 1)
    if x is not None:
        m.add("LayerNormalization", [x, m.constant(x.shape[-1]), m.constant(x.shape[-1])], x.shape, axis=-1)


def _reduce(m: _Maker) -> None:
    x = m.pick(lambda v: len(v.shape) >= 2)
    assert x is not None
    axis, keep = m.number(0, len(x.shape) - 1), int(m.flag())
    shape = (*x.shape[:axis], *((1,) if keep else ()), *x.shape[axis + 1 :])
    op_type = m.draw(st.sampled_from(("ReduceMean", "ReduceMax", "ReduceSum")))
    m.add(op_type, [x, m.integers(axis)], shape, keepdims=keep)


def _gather(m: _Maker) -> None:
    x = m.pick()
    assert x is not None
    axis = m.number(0, len(x.shape) - 1)
    chosen = [m.number(-x.shape[axis], x.shape[axis] - 1) for _ in range(m.number(1, 3))]
    m.add("Gather", [x, m.integers(*chosen)], (*x.shape[:axis], len(chosen), *x.shape[axis + 1 :]), axis=axis)


def _cumulative(m: _Maker) -> None:
    x = m.pick()
    assert x is not None
    axis = m.graph.constant(np.array(m.number(0, len(x.shape) - 1), np.int64), "axis")
    m.add("CumSum", [x, axis], x.shape)


_STEPS = (
    _unary,
    _unary,
    _binary,
    _binary,
    _broadcast,
    _conv,
    _conv,
    _conv,
    _pool,
    _global_pool,
    _batch_norm,
    _matmul,
    _product,
    _gemm,
    _flatten,
    _reshape,
    _transpose,
    _concat,
    _split,
    _slice,
    _pad,
    _resize,
    _softmax,
    _layer_norm,
    _reduce,
    _gather,
    _cumulative,
)


@st.composite
def mixed_graphs(draw: Draw, max_nodes: int = 10) -> Graph:
    """A random graph of float32 values: every result that nobody reads is an output, some others too."""
    m = _Maker(draw)
    size = m.number(3, 10)
    shapes = [(m.number(1, 2), m.number(1, 17), size, m.number(3, 10))]
    if m.flag():
        shapes.append(shapes[0])
    if m.flag():
        shapes.append((m.number(1, 5), m.number(1, 40)))
    m.values = [m.graph.add_input(Value(f"x{i}", DType.FLOAT32, s)) for i, s in enumerate(shapes)]
    inputs = list(m.values)
    for _ in range(m.number(1, max_nodes)):
        before = len(m.values)
        draw(st.sampled_from(_STEPS))(m)
        for value in m.values[before:]:
            if not 1 <= value.num_elements <= 40_000:
                m.values.remove(value)
    made = [v for v in m.values if v.producer is not None]
    outputs = [v for v in made if not v.users or m.number(0, 5) == 0]
    outputs += [v for node in m.graph.nodes for v in node.results() if v not in m.values and not v.users]
    if not outputs or m.number(0, 9) == 0:
        outputs.append(inputs[0])
    if m.number(0, 9) == 0:
        outputs.append(m.constant(2, 3))
    m.graph.outputs = outputs
    return m.graph
