"""Winograd's transforms, derived from their interpolation points by the construction of Cook and Toom.

F(m, 3) computes `m` outputs of a 3-tap correlation from `n = m + 2` inputs with `n` products:
`y = A^T [(G g) * (B^T d)]`. The points are 0, pairs ±p, and infinity. Even and odd parts of a pair are
shared, so that one transform of six values takes twelve operations.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction
from math import lcm

from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import NUM_TAPS
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Val

Matrix = tuple[tuple[Fraction, ...], ...]

# For tiles of four, ±21/32 and ±3/2 leave about a fifth of the error of the textbook's ±1 and ±2
# (`benchmarks/micro_winograd.py` measures it): among thirty pairs around them, those with which the worst of
# the sixteen outputs errs least. Every constant of the transforms is exact in float.
PAIRS = {2: (Fraction(1),), 4: (Fraction(21, 32), Fraction(3, 2))}


@dataclass(frozen=True, slots=True)
class Transform:
    """The matrices of F(tile, 3): `input` is B^T, `weight` is G, `output` is A^T."""

    tile: int
    pairs: tuple[Fraction, ...]
    input: Matrix
    weight: Matrix
    output: Matrix
    divisor: int = 1  # of results, by which `output` is larger where all factors are integers

    @property
    def size(self) -> int:
        """Inputs and products along one axis."""
        return self.tile + NUM_TAPS - 1


@functools.cache
def winograd_transform(tile: int) -> Transform:
    """F(tile, 3) with the points of `PAIRS`.

    >>> [str(x) for x in winograd_transform(2).input[0]]
    ['-1', '0', '1', '0']
    """
    return cook_toom(tile, PAIRS[tile])


def cook_toom(tile: int, pairs: Sequence[Fraction]) -> Transform:
    """The transform with the points 0, ±p for every p of `pairs`, and infinity.

    The transposed Toom-Cook multiplication: rows of B^T are `M(x) / (x - point)` for M the product over all
    finite points, infinity's row is M itself; G evaluates the taps, divided by `M'(point)`.
    """
    points = (Fraction(0), *(s * p for p in pairs for s in (1, -1)))
    if len(points) + 1 != tile + NUM_TAPS - 1:
        raise ValueError(f"F({tile}, {NUM_TAPS}) takes {tile // 2} pairs of points, got {len(pairs)}")
    rows: list[tuple[Fraction, ...]] = []
    weights: list[tuple[Fraction, ...]] = []
    for position, point in enumerate(points):
        others = [p for i, p in enumerate(points) if i != position]
        rows.append((*_polynomial(others), Fraction(0)))
        scale = Fraction(1)
        for other in others:
            scale *= point - other
        weights.append(tuple(point**k / scale for k in range(NUM_TAPS)))
    rows.append(_polynomial(points))
    weights.append((Fraction(0), Fraction(0), Fraction(1)))
    output = tuple((*(point**k for point in points), Fraction(int(k == tile - 1))) for k in range(tile))
    return Transform(tile, tuple(pairs), tuple(rows), tuple(weights), output)


@functools.cache
def integer_transform(tile: int) -> Transform:
    """F(tile, 3) in integers, with the points 0, ±1, ±2, ... and infinity.

    The divisions of `weight` move behind the sums: `output` is larger by their least common multiple along
    each axis, so that results are `divisor` times too large, and exact.

    >>> integer_transform(4).divisor, max(max(row) for row in integer_transform(4).weight)
    (576, Fraction(4, 1))
    """
    plain = cook_toom(tile, [Fraction(p) for p in range(1, tile // 2 + 1)])
    scales = [1 / next(x for x in row if x) for row in plain.weight]
    common = lcm(*(int(scale) for scale in scales))
    weight = tuple(tuple(x * scale for x in row) for row, scale in zip(plain.weight, scales, strict=True))
    output = tuple(
        tuple(x * common / scale for x, scale in zip(row, scales, strict=True)) for row in plain.output
    )
    return Transform(tile, plain.pairs, plain.input, weight, output, common**2)


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Coefficients of `prod(x - root)`, lowest power first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        for k, c in enumerate(coefficients):
            shifted[k] -= root * c
        coefficients = shifted
    return tuple(coefficients)


def emit_input(e: Emitter, transform: Transform, values: Sequence[Val]) -> list[Val]:
    """`B^T d` along one axis: the points' rows in pairs from their even and odd parts."""
    rows = transform.input
    result = [_combine(e, rows[0], values)]
    for number, point in enumerate(transform.pairs):
        plus, minus = rows[1 + 2 * number], rows[2 + 2 * number]
        even = _combine(e, [(p + m) / 2 for p, m in zip(plus, minus, strict=True)], values)
        odd = _combine(e, [(p - m) / 2 / point for p, m in zip(plus, minus, strict=True)], values)
        result.append(_multiply_add(e, point, odd, even))
        result.append(_multiply_add(e, -point, odd, even))
    result.append(_combine(e, rows[-1], values))
    return result


def emit_output(e: Emitter, transform: Transform, values: Sequence[Val]) -> list[Val]:
    """`A^T m` along one axis: sums and differences of the pairs, then their even and odd powers."""
    pairs = range(1, 1 + 2 * len(transform.pairs), 2)
    sums = [_multiply_add(e, Fraction(1), values[i + 1], values[i]) for i in pairs]
    differences = [_multiply_add(e, Fraction(-1), values[i + 1], values[i]) for i in pairs]
    result: list[Val] = []
    for row in transform.output:
        power = len(result)
        parts = differences if power % 2 else sums
        coefficients = [row[0], *(row[i] for i in pairs), row[-1]]
        result.append(_combine(e, coefficients, [values[0], *parts, values[-1]]))
    return result


def _combine(e: Emitter, coefficients: Sequence[Fraction], values: Sequence[Val]) -> Val:
    """The sum of products, begun with a value that needs no product where there is one."""
    terms = [(c, v) for c, v in zip(coefficients, values, strict=True) if c]
    start = next((i for i, (c, _) in enumerate(terms) if c == 1), None)
    if start is None:
        factor, value = terms.pop(0)
        total = e.fmul(value, float(factor)) if value.type.is_float else e.imul(value, int(factor))
    else:
        _, total = terms.pop(start)
    for factor, value in terms:
        total = _multiply_add(e, factor, value, total)
    return total


def _multiply_add(e: Emitter, factor: Fraction, value: Val, total: Val) -> Val:
    if not value.type.is_float:
        product = value if abs(factor) == 1 else e.imul(value, abs(int(factor)))
        return e.iadd(total, product) if factor > 0 else e.isub(total, product)
    if factor == 1:
        return e.fadd(total, value)
    if factor == -1:
        return e.fsub(total, value)
    return e.fma(value, float(factor), total)
