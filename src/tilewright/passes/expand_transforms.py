"""Fourier transforms of known length are written as products with constants, computed in float64."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, inf, prod
from typing import Any, ClassVar

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attributes, Graph, Node, Shape, Value
from tilewright.ir.ops.transforms import Transform
from tilewright.passes.base import PassResult
from tilewright.passes.edit import Editor
from tilewright.passes.rules import Kept, Rule, apply_rules
from tilewright.planning import option
from tilewright.records import dataclass

# A frame that overlaps others is copied from so many pieces of the signal at the most.
_MAX_PIECES = 64
# Cosines of quarter turns are zero but for rounding; no other of a length that is taken is as small.
_ZERO = 1e-12


@dataclass(frozen=True, slots=True)
class ExpandTransforms:
    """DFT and STFT become products: one for short lengths, for longer ones a product for each factor.

    A length of up to `max_direct` points is one product with a constant matrix; in an STFT, up to twice that
    length, it is a convolution of the signal, so that frames are never copied. A longer one is cut into
    factors (Cooley and Tukey): each is a product along one axis, and constants multiply what passes between
    two of them, so that work grows with the sum of the factors. Lengths above `max_length`, or with a prime
    factor above `max_factor`, stay.
    """

    max_direct: int = option(256, "Most points of a transform that is one product; twice in an STFT.")
    max_factor: int = option(512, "Largest prime factor of the length of a longer transform.")
    max_length: int = option(1 << 20, "Most points of a transform: constants take 16 bytes for each.")
    name: ClassVar[str] = "expand-transforms"

    def run(self, graph: Graph) -> PassResult:
        """Edit the graph in place."""
        return apply_rules(
            graph,
            [Rule(("DFT",), self._match_dft, _build_dft), Rule(("STFT",), self._match_stft, _build_stft)],
        )

    def _factors(self, length: int, max_direct: int) -> tuple[int, ...] | Kept:
        """The length as one factor, or as few as there can be of a size that registers take."""
        if length <= max_direct:
            return (length,)
        if length > self.max_length:
            return Kept(f"its length {length} is more than {self.max_length}")
        factors = balanced_factors(length)
        if max(factors) > self.max_factor:
            return Kept(f"its length {length} has the factor {max(factors)}, more than {self.max_factor}")
        return factors

    def _match_dft(self, editor: Editor, node: Node) -> _Dft | Kept | None:
        x = node.require(0)
        if not _is_plain(node, x):
            return None
        given = [editor.data(node.input(i)) for i in (1, 2)]
        if any(node.input(i) is not None and given[i - 1] is None for i in (1, 2)):
            return Kept("its length or its axis is data")
        transform = Transform.of(node, given[0], given[1], x.shape)
        factors = self._factors(transform.length, self.max_direct)
        return factors if isinstance(factors, Kept) else _Dft(transform, factors)

    def _match_stft(self, editor: Editor, node: Node) -> _Stft | Kept | None:
        x = node.require(0)
        if not _is_plain(node, x):
            return None
        step, size = (editor.data(node.input(i)) for i in (1, 3))
        window = node.input(2)
        if step is None or (node.input(3) is not None and size is None):
            return Kept("its step or its length is data")
        length = int(size.reshape(())) if size is not None else 0 if window is None else window.shape[0]
        # A product spares the copies of frames that overlap: it pays up to twice the length.
        factors = self._factors(length, 2 * self.max_direct)
        return factors if isinstance(factors, Kept) else _Stft(int(step.reshape(())), length, factors)


def _is_plain(node: Node, x: Value) -> bool:
    is_wide = x.dtype in (DType.FLOAT32, DType.FLOAT64)
    return not node.domain and is_wide and x.num_elements > 0 and node.output.num_elements > 0


@dataclass(frozen=True, slots=True)
class _Dft:
    transform: Transform
    factors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Stft:
    step: int
    length: int
    factors: tuple[int, ...]


def balanced_factors(length: int) -> tuple[int, ...]:
    """Factors of about equal size, the largest first: as many as make the least work.

    >>> balanced_factors(4096), balanced_factors(480_000), balanced_factors(2 * 1009)
    ((16, 16, 16), (40, 30, 20, 20), (1009, 2))
    """
    primes: list[int] = []
    rest, divisor = length, 2
    while divisor * divisor <= rest:
        while rest % divisor == 0:
            primes.append(divisor)
            rest //= divisor
        divisor += 1
    primes += [rest] if rest > 1 else []
    best: tuple[float, list[int]] = (inf, [length])
    for count in range(2, max(3, length.bit_length() // 4 + 1)):
        made = [1] * count
        for prime in reversed(primes):
            made[made.index(min(made))] *= prime
        # The sum of the factors is the work, and each takes a pass over the data.
        cost = sum(made) + 24 * count
        if cost < best[0]:
            best = (cost, made)
    return tuple(sorted((f for f in best[1] if f > 1), reverse=True)) or (length,)


# Constants -------------------------------------------------------------------------------------------


def _turns(rows: Array, columns: Array, length: int, sign: int) -> Array:
    """`exp(sign * 2 pi i * rows * columns / length)`; the product is reduced before it is rounded."""
    whole = rows[:, None].astype(np.int64) * columns[None, :] % length
    turns = 2 * np.pi * whole / length
    cosines, sines = (np.where(np.abs(f) < _ZERO, 0.0, f) for f in (np.cos(turns), np.sin(turns)))
    result: Array = cosines + sign * 1j * sines
    return result


def _planes(z: Array) -> Array:
    """`[part of the input, part of the result, *z.shape]`: multiplication by z, of real numbers."""
    return np.stack([np.stack([z.real, z.imag]), np.stack([-z.imag, z.real])])


# Builders --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Makes nodes before one that they replace, of its type and under its name."""

    editor: Editor
    anchor: Node
    dtype: DType

    def make(self, op_type: str, inputs: Sequence[Value | None], shape: Shape, **attributes: Any) -> Value:
        result = (f"{self.anchor.output.name}.{op_type.lower()}", self.dtype, tuple(shape))
        return self.editor.insert(self.anchor, op_type, inputs, result, attributes, since=13)

    def floats(self, data: Array) -> Value:
        return self.editor.constant(data, self.dtype, f"{self.anchor.output.name}.factors")

    def integers(self, *data: int) -> Value:
        return self.editor.constant(np.array(data, np.int64), DType.INT64, f"{self.anchor.output.name}.sizes")

    def reshape(self, x: Value, *shape: int) -> Value:
        return x if x.shape == shape else self.make("Reshape", [x, self.integers(*shape)], shape)

    def transpose(self, x: Value, *perm: int) -> Value:
        if perm == tuple(range(len(perm))):
            return x
        return self.make("Transpose", [x], tuple(x.shape[p] for p in perm), perm=perm)

    def part(self, x: Value, axis: int, start: int, count: int, step: int = 1) -> Value:
        """`count` elements along an axis, `step` apart."""
        if (start, count, step) == (0, x.shape[axis], 1):
            return x
        end = min(start + count * step, x.shape[axis]) if step > 0 else -(2**31)
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        sizes = [self.integers(n) for n in (start, end, axis, step)]
        return self.make("Slice", [x, *sizes], shape)

    def padded(self, x: Value, axis: int, extent: int) -> Value:
        """The first elements along an axis, with zeros behind them."""
        x = self.part(x, axis, 0, min(extent, x.shape[axis]))
        missing = extent - x.shape[axis]
        if not missing:
            return x
        pads = [0] * 2 * len(x.shape)
        pads[len(x.shape) + axis] = missing
        shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
        return self.make("Pad", [x, self.integers(*pads)], shape)

    def finish(self, x: Value) -> None:
        """Let the replaced node be a reshape of `x`."""
        shape = self.integers(*self.anchor.output.shape)
        attributes: Attributes = {}
        self.editor.become(self.anchor, "Reshape", [x, shape], attributes, since=13)

    # Transforms of `[P, N, C]`: P signals of N points of one or two parts.

    def spectrum(self, x: Value, factors: tuple[int, ...], bins: int, sign: int, scale: float) -> Value:
        """`[P, bins, 2]`, of `exp(sign * ...)`, times a factor."""
        if len(factors) == 1:
            return self._direct(x, bins, sign, scale)
        num, length = x.shape[:2]
        planes = self._first_factor(x, factors[0], sign, scale)
        for factor in factors[1:]:
            planes = self._next_factor(planes, factor, sign)
        planes = self.part(self.reshape(planes, num, 2, length), 2, 0, bins)
        return self.transpose(planes, 0, 2, 1)

    def _direct(self, x: Value, bins: int, sign: int, scale: float) -> Value:
        num, length, parts = x.shape
        z = scale * _turns(np.arange(length), np.arange(bins), length, sign)
        matrix = _planes(z)[:parts].transpose(2, 0, 3, 1).reshape(length * parts, bins * 2)
        product = self.make(
            "MatMul", [self.reshape(x, num, length * parts), self.floats(matrix)], (num, bins * 2)
        )
        return self.reshape(product, num, bins, 2)

    def _first_factor(self, x: Value, factor: int, sign: int, scale: float) -> Value:
        """`[P, M, 2, factor]` for the M points left of each residue, times their twiddle factors."""
        num, length, parts = x.shape
        left = length // factor
        x = self.transpose(self.reshape(x, num, factor, left, parts), 0, 2, 1, 3)
        z = scale * _turns(np.arange(factor), np.arange(factor), factor, sign)
        matrix = _planes(z)[:parts].transpose(2, 0, 1, 3).reshape(factor * parts, 2 * factor)
        rows = self.reshape(x, num * left, factor * parts)
        made = self.make("MatMul", [rows, self.floats(matrix)], (num * left, 2 * factor))
        return self._twiddled(self.reshape(made, num, left, 2, factor, 1), left, factor, sign)

    def _next_factor(self, planes: Value, factor: int, sign: int) -> Value:
        """The same of `[P, M, 2, V]`, whose V frequencies are known of each residue: M becomes M / factor."""
        num, points, _, known = planes.shape
        left = points // factor
        x = self.reshape(planes, num, factor, left, 2, known)
        x = self.reshape(self.transpose(x, 0, 2, 1, 3, 4), num, left, factor * 2, known)
        z = _turns(np.arange(factor), np.arange(factor), factor, sign)
        matrix = _planes(z).transpose(1, 3, 2, 0).reshape(2 * factor, factor * 2)
        made = self.make("MatMul", [self.floats(matrix), x], (num, left, 2 * factor, known))
        made = self.reshape(made, num, left, 2, factor, known)
        return self._twiddled(made, left, factor, sign)

    def _twiddled(self, made: Value, left: int, factor: int, sign: int) -> Value:
        """`[P, left, 2, factor, V]` times a constant for each of the first and of the fourth axis."""
        num, _, _, _, known = made.shape
        if left > 1:
            z = _turns(np.arange(left), np.arange(factor), left * factor, sign)
            own = np.stack([z.real, z.real], axis=1)[..., None]
            other = np.stack([-z.imag, z.imag], axis=1)[..., None]
            swapped = self.part(made, 2, 1, 2, -1)
            terms = [
                self.make("Mul", [value, self.floats(constant)], made.shape)
                for value, constant in ((made, own), (swapped, other))
            ]
            made = self.make("Add", terms, made.shape)
        return self.reshape(made, num, left, 2, factor * known)

    def real_signal(self, x: Value, factors: tuple[int, ...]) -> Value:
        """`[P, N, 1]` from the half `[P, N // 2 + 1, 2]` of its spectrum."""
        num, bins, _ = x.shape
        length = prod(factors)
        if len(factors) == 1:
            z = _turns(np.arange(bins), np.arange(length), length, 1) / length
            weights = np.where((np.arange(bins) == 0) | (2 * np.arange(bins) == length), 1.0, 2.0)
            matrix = _planes(z * weights[:, None])[:, 0].transpose(1, 0, 2).reshape(bins * 2, length)
            rows = self.reshape(x, num, bins * 2)
            made = self.make("MatMul", [rows, self.floats(matrix)], (num, length))
            return self.reshape(made, num, length, 1)
        # The first point, and the middle one of an even length, are real: imaginary parts count for nothing.
        keep = np.ones((bins, 2))
        keep[0, 1] = 0
        keep[-1, 1] = length % 2
        x = self.make("Mul", [x, self.floats(keep)], x.shape)
        behind = self.part(self.part(x, 1, 1, (length - 1) // 2), 1, -1, (length - 1) // 2, -1)
        behind = self.make("Mul", [behind, self.floats(np.array([1.0, -1.0]))], behind.shape)
        whole = self.make("Concat", [x, behind], (num, length, 2), axis=1)
        return self.part(self.spectrum(whole, factors, length, 1, 1 / length), 2, 0, 1)


def _build_dft(editor: Editor, node: Node, found: _Dft) -> str:
    t, factors, x = found.transform, found.factors, node.require(0)
    emit = _Nodes(editor, node, x.dtype)
    before, behind = x.shape[: t.axis], x.shape[t.axis + 1 : -1]
    num, num_behind, parts = prod(before), prod(behind), x.shape[-1]
    value = emit.reshape(x, num, x.shape[t.axis], num_behind, parts)
    value = emit.transpose(value, 0, 2, 1, 3) if num_behind > 1 else value
    value = emit.reshape(value, num * num_behind, x.shape[t.axis], parts)
    is_real = t.inverse and t.onesided
    value = emit.padded(value, 1, t.length // 2 + 1 if is_real else t.length)
    if is_real:
        if parts == 1:
            value = emit.padded(value, 2, 2)
        value = emit.real_signal(value, factors)
    else:
        scale = 1 / t.length if t.inverse else 1.0
        value = emit.spectrum(value, factors, t.bins, 1 if t.inverse else -1, scale)
    if num_behind > 1:
        value = emit.reshape(value, num, num_behind, t.bins, value.shape[2])
        value = emit.transpose(value, 0, 2, 1, 3)
    emit.finish(value)
    return f"{t.length} points as products of {' x '.join(map(str, factors))}"


def _build_stft(editor: Editor, node: Node, found: _Stft) -> str:
    x, window, length = node.require(0), node.input(2), found.length
    emit = _Nodes(editor, node, x.dtype)
    num, extent = x.shape[:2]
    parts = x.shape[2] if len(x.shape) == 3 else 1
    bins = node.output.shape[2]
    num_frames = (extent - length) // found.step + 1
    signal = emit.reshape(x, num, extent, parts)
    if len(found.factors) == 1:
        emit.finish(_convolved(emit, signal, window, found, (num_frames, bins)))
        return f"frames of {length} points as a convolution"
    frames = _frames(emit, signal, found, num_frames)
    if window is not None:
        frames = emit.make("Mul", [frames, emit.reshape(window, length, 1)], frames.shape)
    frames = emit.reshape(frames, num * num_frames, length, parts)
    emit.finish(emit.spectrum(frames, found.factors, bins, -1, 1.0))
    return f"frames of {length} points as products of {' x '.join(map(str, found.factors))}"


def _convolved(
    emit: _Nodes, signal: Value, window: Value | None, found: _Stft, result: tuple[int, int]
) -> Value:
    """`[P, frames, bins, 2]`: the signal by one filter for each part of each bin."""
    num, extent, parts = signal.shape
    num_frames, bins = result
    z = _turns(np.arange(bins), np.arange(found.length), found.length, -1)
    filters = _planes(z)[:parts].transpose(2, 1, 0, 3).reshape(bins * 2, parts, 1, found.length)
    known = emit.editor.data(window)
    if known is not None:
        weights = emit.floats(filters * known.astype(np.float64))
    else:
        weights = emit.floats(filters)
        if window is not None:
            weights = emit.make("Mul", [weights, window], weights.shape)
    image = emit.reshape(emit.transpose(signal, 0, 2, 1), num, parts, 1, extent)
    shape = (num, bins * 2, 1, num_frames)
    strides = (1, found.step)
    made = emit.make("Conv", [image, weights], shape, strides=strides, kernel_shape=(1, found.length))
    return emit.transpose(made, 0, 2, 3, 1)


def _frames(emit: _Nodes, signal: Value, found: _Stft, num_frames: int) -> Value:
    """`[P, frames, N, C]`, of pieces that no frame begins or ends within, or by their positions."""
    num, extent, parts = signal.shape
    size, step = gcd(found.length, found.step), found.step
    if found.length // size <= _MAX_PIECES:
        pieces = emit.reshape(
            emit.padded(signal, 1, extent // size * size), num, extent // size, size * parts
        )
        rows = [emit.part(pieces, 1, i, num_frames, step // size) for i in range(found.length // size)]
        shape = (num, num_frames, found.length * parts)
        joined = emit.make("Concat", rows, shape, axis=2)
        return emit.reshape(joined, num, num_frames, found.length, parts)
    at = np.arange(num_frames)[:, None] * step + np.arange(found.length)
    return emit.make(
        "Gather",
        [signal, emit.editor.constant(at, DType.INT64, f"{emit.anchor.output.name}.positions")],
        (num, num_frames, found.length, parts),
        axis=1,
    )
