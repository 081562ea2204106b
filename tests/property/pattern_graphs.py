"""Random graphs made of what passes look for: composed operators in their spellings, layers with what can be
folded into them, and things that do nothing. Intermediate values are outputs now and then, so that rewrites
must refuse."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, Value

OPSET = 18


class PatternMaker:
    """Builds one random graph of a given type; everything depends on the seed."""

    def __init__(self, seed: int, dtype: DType = DType.FLOAT64) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.graph = Graph("patterns")

    def flag(self) -> bool:
        return bool(self.rng.random() < 0.5)

    def pick(self, *options: Callable[[], Value]) -> Value:
        return options[int(self.rng.integers(len(options)))]()

    def constant(self, data: object) -> Value:
        return self.graph.constant(np.asarray(data, self.dtype.numpy))

    def random(self, *shape: int) -> Value:
        return self.constant(self.rng.standard_normal(shape) * 0.5)

    def positive(self, *shape: int) -> Value:
        return self.constant(self.rng.uniform(0.5, 2, shape))

    def ints(self, *numbers: int) -> Value:
        return self.graph.constant(np.array(numbers, np.int64))

    def op(
        self, op_type: str, *inputs: Value, shape: tuple[int, ...] | None = None, **attributes: Attribute
    ) -> Value:
        result = self.graph.value("v", self.dtype, inputs[0].shape if shape is None else shape)
        self.graph.append(Node(op_type, inputs, [result], attributes, opset=OPSET))
        return result

    def binary(self, op_type: str, a: Value, b: Value) -> Value:
        """Operands in either order where that means the same."""
        pair = (b, a) if op_type in ("Add", "Mul") and self.flag() else (a, b)
        return self.op(op_type, *pair, shape=np.broadcast_shapes(a.shape, b.shape))

    def times(self, x: Value, number: float) -> Value:
        if self.flag():
            return self.binary("Mul", x, self.constant(number))
        return self.binary("Div", x, self.constant(1 / number))

    def plus(self, x: Value, number: float) -> Value:
        if self.flag():
            return self.binary("Add", x, self.constant(number))
        return self.binary("Sub", x, self.constant(-number))

    def squared(self, x: Value) -> Value:
        return self.op("Mul", x, x) if self.flag() else self.binary("Pow", x, self.constant(2.0))

    # Composed operators.

    def gelu(self, x: Value) -> Value:
        gate = self.plus(self.op("Erf", self.times(x, math.sqrt(0.5))), 1.0)
        return self.halved_product(x, gate)

    def tanh_gelu(self, x: Value) -> Value:
        cube = self.pick(
            lambda: self.binary("Pow", x, self.constant(3.0)),
            lambda: self.op("Mul", self.op("Mul", x, x), x),
        )
        inner = self.times(self.binary("Add", x, self.times(cube, 0.044715)), math.sqrt(2 / math.pi))
        return self.halved_product(x, self.plus(self.op("Tanh", inner), 1.0))

    def halved_product(self, x: Value, gate: Value) -> Value:
        return self.pick(
            lambda: self.times(self.binary("Mul", x, gate), 0.5),
            lambda: self.binary("Mul", self.times(x, 0.5), gate),
            lambda: self.binary("Mul", x, self.times(gate, 0.5)),
        )

    def layer_norm(self, x: Value) -> Value:
        axes = self.ints(-1)
        narrow = (*x.shape[:-1], 1)
        centred = self.binary("Sub", x, self.op("ReduceMean", x, axes, shape=narrow))
        variance = self.op("ReduceMean", self.squared(centred), axes, shape=narrow)
        normal = self.over_root(centred, self.plus(variance, 1e-5))
        if self.flag():
            normal = self.binary("Mul", normal, self.random(x.shape[-1]))
            if self.flag():
                normal = self.binary("Add", normal, self.random(x.shape[-1]))
        return normal

    def rms_norm(self, x: Value) -> Value:
        mean = self.op("ReduceMean", self.squared(x), self.ints(-1), shape=(*x.shape[:-1], 1))
        return self.binary("Mul", self.over_root(x, self.plus(mean, 1e-5)), self.random(x.shape[-1]))

    def over_root(self, x: Value, square: Value) -> Value:
        return self.pick(
            lambda: self.binary("Div", x, self.op("Sqrt", square)),
            lambda: self.binary("Mul", x, self.op("Reciprocal", self.op("Sqrt", square))),
            lambda: self.binary("Mul", x, self.binary("Pow", square, self.constant(-0.5))),
        )

    def silu(self, x: Value) -> Value:
        inner = x if self.flag() else self.times(x, 1.75)
        return self.binary("Mul", x, self.op("Sigmoid", inner))

    def hard_swish(self, x: Value) -> Value:
        clipped = self.op("Clip", self.plus(x, 3.0), self.constant(0.0), self.constant(6.0))
        return self.pick(
            lambda: self.times(self.binary("Mul", x, clipped), 1 / 6),
            lambda: self.binary("Mul", x, self.times(clipped, 1 / 6)),
        )

    def mish(self, x: Value) -> Value:
        return self.binary("Mul", x, self.op("Tanh", self.op("Softplus", x)))

    def softmax(self, x: Value) -> Value:
        axis = int(self.rng.integers(len(x.shape)))
        narrow = tuple(1 if a == axis else d for a, d in enumerate(x.shape))
        top = self.op("ReduceMax", x, self.ints(axis), shape=narrow)
        powers = self.op("Exp", self.binary("Sub", x, top))
        return self.binary("Div", powers, self.op("ReduceSum", powers, self.ints(axis), shape=narrow))

    def attention(self, x: Value) -> Value:
        """Self-attention with the channels of an image as heads."""
        batch, heads, rows, columns = x.shape
        turned = self.op("Transpose", x, shape=(batch, heads, columns, rows), perm=(0, 1, 3, 2))
        scores = self.times(self.op("MatMul", x, turned, shape=(batch, heads, rows, rows)), 0.5)
        if self.flag():
            scores = self.binary("Add", scores, self.random(1, 1, 1, rows))
        elif self.flag():
            causal = self.graph.constant(np.tril(np.ones((1, 1, rows, rows), np.bool_)))
            scores = self.op("Where", causal, scores, self.constant(-3e38), shape=scores.shape)
        soft = self.op("Softmax", scores, axis=-1)
        return self.op("MatMul", soft, x, shape=x.shape)

    def cached_attention(self, x: Value) -> Value:
        """Attention over a cache and what is new; two heads of queries may share one of keys."""
        batch, groups, rows, size = x.shape
        repeats = 1 + int(groups <= 4 and self.flag())
        heads, length = groups * repeats, 2 + rows

        def whole() -> Value:
            past = self.random(batch, groups, 2, size)
            both = self.op("Concat", past, x, shape=(batch, groups, length, size), axis=2)
            if repeats == 1:
                return both
            apart, copies = (batch, groups, 1, length, size), (batch, groups, repeats, length, size)
            both = self.op("Reshape", both, self.ints(*apart), shape=apart)
            both = self.op("Expand", both, self.ints(*copies), shape=copies)
            shape = (batch, heads, length, size)
            return self.op("Reshape", both, self.ints(*shape), shape=shape)

        queries = x
        if repeats > 1:
            queries = self.op("Concat", *[x] * repeats, shape=(batch, heads, rows, size), axis=1)
        turned = self.op("Transpose", whole(), shape=(batch, heads, size, length), perm=(0, 1, 3, 2))
        scores = self.times(self.op("MatMul", queries, turned, shape=(batch, heads, rows, length)), 0.5)
        soft = self.op("Softmax", scores, axis=-1)
        return self.op("MatMul", soft, whole(), shape=(batch, heads, rows, size))

    # Layers and what goes into them.

    def layer(self, x: Value) -> Value:
        batch, channels, rows, columns = x.shape
        filters = int(self.rng.integers(1, 5))
        bias = [self.random(filters)] if self.flag() else []
        kind = int(self.rng.integers(3))
        if kind == 0:
            shape = (batch, filters, rows, columns)
            y = self.op(
                "Conv", x, self.random(filters, channels, 3, 3), *bias, shape=shape, pads=(1, 1, 1, 1)
            )
        elif kind == 1:
            shape = (batch, filters, rows, columns)
            y = self.op("ConvTranspose", x, self.random(channels, filters, 1, 1), *bias, shape=shape)
        else:
            # Rows of zeros go into the convolution's pads; a channel of zeros does not.
            axis = 1 + int(self.flag())
            widths = [0] * 8
            widths[axis + 4] = 1
            longer = tuple(d + (a == axis) for a, d in enumerate(x.shape))
            padded = self.op("Pad", x, self.ints(*widths), shape=longer)
            weight = self.random(filters, padded.shape[1], 1, 1)
            y = self.op("Conv", padded, weight, *bias, shape=(batch, filters, *padded.shape[2:]))
        return y

    def batch_norm(self, x: Value) -> Value:
        c = x.shape[1]
        statistics = (self.random(c), self.random(c), self.random(c), self.positive(c))
        return self.op("BatchNormalization", x, *statistics, epsilon=1e-3)

    def per_channel(self, x: Value) -> Value:
        shape = (x.shape[1], 1, 1) if self.flag() else ()
        c = self.positive(*shape)
        if self.flag():
            return self.binary(("Mul", "Div", "Add", "Sub")[int(self.rng.integers(4))], x, c)
        return self.binary("Sub", c, x)

    def dense(self, x: Value) -> Value:
        batch, columns = x.shape[0], int(np.prod(x.shape[1:]))
        width = int(self.rng.integers(1, 4))
        flat = self.op("Flatten", x, shape=(batch, columns))
        transposed = int(self.flag())
        weight = self.random(*((width, columns) if transposed else (columns, width)))
        y = self.op(
            "Gemm", flat, weight, self.random(width), shape=(batch, width), transB=transposed, alpha=0.75
        )
        y = self.binary("Mul", y, self.positive(width))
        y = self.binary("Add", y, self.random(1, width))
        return self.op("Unsqueeze", y, self.ints(2, 3), shape=(batch, width, 1, 1))

    def product(self, x: Value) -> Value:
        width = int(self.rng.integers(1, 4))
        y = self.op("MatMul", x, self.random(x.shape[-1], width), shape=(*x.shape[:-1], width))
        if self.flag():
            return self.binary("Mul", self.binary("Add", y, self.random(width)), self.positive(width))
        return self.binary("Add", self.binary("Mul", y, self.positive(width)), self.random(width))

    # Quantised layers. Scales are powers of two: every product and quotient of them is exact.

    def typed(self, op_type: str, inputs: list[Value], dtype: DType, shape: tuple[int, ...]) -> Value:
        result = self.graph.value("q", dtype, shape)
        attributes = {"to": dtype.value} if op_type == "Cast" else {}
        self.graph.append(Node(op_type, inputs, [result], attributes, opset=OPSET))
        return result

    def step(self, low: int, high: int) -> Value:
        return self.graph.constant(np.asarray(2.0 ** self.rng.integers(low, high), np.float32))

    def bytes_of(self, x: Value, parameters: list[Value] | None = None) -> tuple[Value, list[Value]]:
        if parameters is None:
            zero = np.asarray(self.rng.integers(0, 9), (np.uint8, np.int8)[int(self.flag())])
            parameters = [self.step(-5, -2), self.graph.constant(zero)]
        return self.typed("QuantizeLinear", [x, *parameters], parameters[1].dtype, x.shape), parameters

    def quantized(self, x: Value) -> Value:
        if self.dtype is not DType.FLOAT64:  # a value moved by a rounding error may become another byte
            return self.op("Identity", x)
        given, parameters = self.bytes_of(self.typed("Cast", [x], DType.FLOAT32, x.shape))
        y = self.typed("DequantizeLinear", [given, *parameters], DType.FLOAT32, x.shape)
        is_conv, width = self.flag(), int(self.rng.integers(1, 5))
        shape = (width, x.shape[1], 1, 1) if is_conv else (x.shape[-1], width)
        data = self.graph.constant(self.rng.integers(-9, 10, shape).astype(np.int8))
        weight = self.typed("DequantizeLinear", [data, self.step(-3, 0)], DType.FLOAT32, shape)
        out = (x.shape[0], width, *x.shape[2:]) if is_conv else (*x.shape[:-1], width)
        y = self.typed("Conv" if is_conv else "MatMul", [y, weight], DType.FLOAT32, out)
        if self.flag():
            y = self.typed("Relu", [y], DType.FLOAT32, out)
        if self.flag():
            made, parameters = self.bytes_of(y)
            y = self.typed("DequantizeLinear", [made, *parameters], DType.FLOAT32, out)
            y = self.typed("Reshape", [y, self.ints(*out)], DType.FLOAT32, out)
            made, parameters = self.bytes_of(y, parameters)
            y = self.typed("DequantizeLinear", [made, *parameters], DType.FLOAT32, out)
        return self.typed("Cast", [y], self.dtype, out)

    # Layers over time.

    def recurrent(self, x: Value) -> Value:
        """The last two axes as steps and inputs; the state they leave is made of x's shape again."""
        batch, size = x.num_elements // (x.shape[-2] * x.shape[-1]), x.shape[-2]
        given = self.op("Reshape", x, self.ints(batch, *x.shape[-2:]), shape=(batch, *x.shape[-2:]))
        by_time = self.op("Transpose", given, shape=(size, batch, x.shape[-1]), perm=(1, 0, 2))
        op_type = ("RNN", "GRU", "LSTM")[int(self.rng.integers(3))]
        gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
        rows = gates * size
        inputs = [by_time, self.random(1, rows, x.shape[-1]), self.random(1, rows, size)]
        if self.flag():
            inputs.append(self.random(1, 2 * rows))
        direction = "reverse" if self.flag() else "forward"
        every = self.op(op_type, *inputs, shape=(size, 1, batch, size), hidden_size=size, direction=direction)
        turned = self.op("Transpose", every, shape=(1, batch, size, size), perm=(1, 2, 0, 3))
        shape = (*x.shape[:-1], size)
        return self.op("Reshape", turned, self.ints(*shape), shape=shape)

    # What does nothing, or the same twice.

    def nothing(self, x: Value) -> Value:
        return self.pick(
            lambda: self.op("Identity", x),
            lambda: self.op("Dropout", x),
            lambda: self.binary("Add", x, self.constant(0.0)),
            lambda: self.binary("Mul", x, self.constant(np.ones(x.shape[-1]))),
            lambda: self.op("Concat", x, axis=0),
            lambda: self.op("Slice", x, self.ints(0), self.ints(100), self.ints(1)),
            lambda: self.op("Pad", x, self.ints(*[0] * (2 * len(x.shape)))),
        )

    def there_and_back(self, x: Value) -> Value:
        perm = tuple(int(a) for a in self.rng.permutation(len(x.shape)))
        turned = self.op("Transpose", x, shape=tuple(x.shape[a] for a in perm), perm=perm)
        back = tuple(int(a) for a in np.argsort(perm)) if self.flag() else perm
        return self.op("Transpose", turned, shape=tuple(turned.shape[a] for a in back), perm=back)

    def reshapes(self, x: Value) -> Value:
        flat = self.op("Reshape", x, self.ints(-1), shape=(x.num_elements,))
        return self.op("Reshape", flat, self.ints(*x.shape), shape=x.shape)

    def slices(self, x: Value) -> Value:
        for _ in range(2):
            axis, step = int(self.rng.integers(len(x.shape))), int(self.rng.integers(1, 3))
            kept = range(int(self.rng.integers(min(2, x.shape[axis]))), x.shape[axis], step)
            bounds = [self.ints(n) for n in (kept.start, 100, axis - len(x.shape), step)]
            x = self.op("Slice", x, *bounds, shape=(*x.shape[:axis], len(kept), *x.shape[axis + 1 :]))
        return x

    def transform(self, x: Value) -> Value:
        columns = self.op(
            "Reshape", x, self.ints(x.shape[0], -1, 1), shape=(x.shape[0], x.num_elements // x.shape[0], 1)
        )
        parts = self.op("DFT", columns, shape=(*columns.shape[:2], 2), axis=1)
        shape = (*x.shape[:-1], 2 * x.shape[-1])
        return self.op("Reshape", parts, self.ints(*shape), shape=shape)

    def twice(self, x: Value) -> Value:
        c = self.rng.standard_normal(x.shape[-1])
        a, b = (self.op("LeakyRelu", self.op("Add", x, self.constant(c)), alpha=0.5) for _ in range(2))
        return self.op("Mul", a, self.op("Sigmoid", b))

    def constants(self, x: Value) -> Value:
        c = self.op("Exp", self.op("Mul", self.random(x.shape[-1]), self.random(x.shape[-1])))
        self.op("Neg", x)  # dead
        return self.binary("Add", x, c)


STEPS: tuple[Callable[[PatternMaker, Value], Value], ...] = (
    PatternMaker.gelu,
    PatternMaker.tanh_gelu,
    PatternMaker.layer_norm,
    PatternMaker.rms_norm,
    PatternMaker.silu,
    PatternMaker.hard_swish,
    PatternMaker.mish,
    PatternMaker.softmax,
    PatternMaker.attention,
    PatternMaker.cached_attention,
    PatternMaker.layer,
    PatternMaker.layer,
    PatternMaker.batch_norm,
    PatternMaker.batch_norm,
    PatternMaker.per_channel,
    PatternMaker.per_channel,
    PatternMaker.dense,
    PatternMaker.product,
    PatternMaker.quantized,
    PatternMaker.recurrent,
    PatternMaker.nothing,
    PatternMaker.there_and_back,
    PatternMaker.reshapes,
    PatternMaker.slices,
    PatternMaker.transform,
    PatternMaker.twice,
    PatternMaker.constants,
)


def pattern_graph(seed: int, num_steps: int, dtype: DType = DType.FLOAT64) -> Graph:
    """A chain of patterns on images, its last value and a few others its outputs."""
    maker = PatternMaker(seed, dtype)
    rng = maker.rng
    shape = tuple(int(d) for d in rng.integers(2, 5, 4))
    x = maker.graph.add_input(Value("x", dtype, shape))
    for _ in range(num_steps):
        x = STEPS[int(rng.integers(len(STEPS)))](maker, x)
    results = [v for node in maker.graph.nodes for v in node.results() if v is not x]
    count = int(rng.integers(3))
    others = [results[i] for i in sorted(rng.permutation(len(results))[:count])]
    maker.graph.outputs = [x, *others]
    return maker.graph
