"""The small blocks that random graphs are made of, and how often each step is taken."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.elements import (
    arg_max,
    batch_norm,
    binary,
    cast,
    compare,
    cumulative,
    logic,
    normalisation,
    reduce_,
    top_k,
    unary,
)
from tests.fuzz.maker import Maker
from tests.fuzz.movements import (
    concat,
    depth_to_space,
    expand,
    flatten,
    gather,
    gather_computed,
    pad,
    reshape,
    resize,
    slice_,
    split,
    tile,
    transpose,
)
from tests.fuzz.pick import is_image, is_single
from tests.fuzz.windows import (
    conv,
    convolution,
    gemm,
    global_pool,
    matmul,
    pool,
    product,
    transposed_convolution,
)

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Value


def residual(m: Maker) -> None:
    x = m.pick(is_image)
    if x is not None:
        y = conv(m, x, x.shape[1])
        if y is not None and y.shape == x.shape:
            total = m.add("Add", [x, y] if m.flag() else [y, x])
            if total is not None:
                m.add("Relu", [total])


def dense_connection(m: Maker) -> None:
    """Each layer's result joins what all later layers read, as in DenseNet."""
    x = m.pick(is_image)
    for _ in range(m.number(2, 3)):
        if x is None:
            return
        y = conv(m, x, m.choice((4, 8, 12, 16)))
        if y is None or y.shape[2:] != x.shape[2:]:
            return
        x = m.add("Concat", [x, y], axis=1)


def branches(m: Maker) -> None:
    """Several ways from one tensor to one concatenation, as in Inception and Fire modules."""
    x = m.pick(is_image)
    if x is None:
        return
    parts = [y for y in (conv(m, x) for _ in range(m.number(2, 4))) if y is not None]
    if m.flag(0.3):
        parts.append(x)
    parts = [y for y in parts if y.shape[2:] == x.shape[2:]]
    if parts:
        m.add("Concat", parts, axis=1)


def channel_shuffle(m: Maker) -> None:
    x = m.pick(lambda v: is_image(v) and v.shape[1] % 2 == 0)
    if x is None:
        return
    batch, channels, *space = x.shape
    wide = m.add("Reshape", [x, m.integers(batch, 2, channels // 2, *space)])
    perm = (0, 2, 1, *range(3, 3 + len(space)))
    turned = None if wide is None else m.add("Transpose", [wide], perm=perm)
    if turned is not None:
        m.add("Reshape", [turned, m.integers(batch, channels, *space)])


def attention(m: Maker) -> None:
    x = m.pick(lambda v: is_single(v) and len(v.shape) == 3 and v.shape[-1] % 4 == 0 and v.shape[1] <= 40)
    if x is None or m.exact:
        return
    batch, steps, width = x.shape
    heads = m.choice((1, 2, 4))

    def projected(perm: tuple[int, ...]) -> Value | None:
        y = m.add("MatMul", [x, m.constant((width, width), scale=width**-0.5)])
        y = None if y is None else m.add("Add", [y, m.constant((width,))])
        y = None if y is None else m.add("Reshape", [y, m.integers(batch, steps, heads, width // heads)])
        return None if y is None else m.add("Transpose", [y], perm=perm)

    q, k, v = projected((0, 2, 1, 3)), projected((0, 2, 3, 1)), projected((0, 2, 1, 3))
    scores = None if q is None or k is None else m.add("MatMul", [q, k])
    weights = None if scores is None else m.add("Softmax", [scores], axis=-1)
    context = None if weights is None or v is None else m.add("MatMul", [weights, v])
    turned = None if context is None else m.add("Transpose", [context], perm=(0, 2, 1, 3))
    if turned is not None:
        m.add("Reshape", [turned, m.integers(batch, steps, width)])


def excite(m: Maker) -> None:
    x = m.pick(lambda v: is_single(v) and is_image(v))
    if x is None:
        return
    pooled = m.add("GlobalMaxPool" if m.exact else "GlobalAveragePool", [x])
    squeezed = None if pooled is None else conv(m, pooled, x.shape[1])
    if squeezed is not None:
        gate = m.add("Clip" if m.exact else "Sigmoid", [squeezed])
        if gate is not None:
            m.add("Mul", [x, gate] if m.flag() else [gate, x])


STEPS: tuple[tuple[Callable[[Maker], None], int], ...] = (
    (unary, 8),
    (binary, 10),
    (compare, 3),
    (logic, 1),
    (cast, 3),
    (arg_max, 1),
    (convolution, 12),
    (transposed_convolution, 2),
    (pool, 4),
    (global_pool, 1),
    (matmul, 5),
    (product, 3),
    (gemm, 4),
    (reshape, 5),
    (flatten, 1),
    (transpose, 5),
    (concat, 5),
    (split, 3),
    (slice_, 4),
    (gather, 2),
    (gather_computed, 1),
    (pad, 3),
    (expand, 1),
    (tile, 1),
    (resize, 1),
    (depth_to_space, 1),
    (batch_norm, 2),
    (normalisation, 5),
    (reduce_, 4),
    (cumulative, 1),
    (top_k, 1),
    (residual, 4),
    (dense_connection, 3),
    (branches, 4),
    (channel_shuffle, 2),
    (attention, 3),
    (excite, 2),
)


def random_maker(seed: int) -> Maker:
    """A random graph with its sample data: equal seeds give equal graphs."""
    m = Maker(seed, exact=seed % 2 == 0)
    dtype = DType.FLOAT32 if m.flag(0.85) else m.choice((DType.FLOAT64, DType.FLOAT16))
    shapes: list[tuple[int, ...]] = []
    if m.flag(0.75):
        size = m.number(1, 3) if m.flag(0.2) else m.number(4, 12)
        space = [size, m.number(1, 11)] if m.flag(0.75) else [m.number(1, 7) for _ in range(m.choice((1, 3)))]
        shapes.append((m.number(1, 2), m.choice((1, 2, 3, 4, 8, 12, 16, 17, 20)), *space))
        shapes += shapes[:1] if m.flag(0.3) else []
    if not shapes or m.flag(0.3):
        shapes.append((m.number(1, 2), m.number(1, 20), m.choice((1, 4, 8, 12, 16, 24))))
    if m.flag(0.25):
        shapes.append(m.choice([(), (m.number(1, 40),), (m.number(1, 9), m.number(1, 40))]))
    for shape in shapes:
        m.input(shape, dtype)
    steps = [step for step, weight in STEPS for _ in range(weight)]
    target = m.number(3, 12) if m.flag(0.7) else m.number(12, 30)
    for _ in range(4 * target):
        if len(m.graph.nodes) >= target:
            break
        m.choice(steps)(m)
    m.finish()
    return m
