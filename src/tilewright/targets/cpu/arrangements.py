"""How constants are rearranged for the kernels that read them, as data: a file can say it, and does.

An arrangement maps a constant as the graph has it to the bytes that a kernel wants. It is a record of plain
numbers, from which the bytes are made when code is loaded: an artifact holds each constant once, whatever
kernels of whatever instruction sets read of it. Nothing here knows of graphs, operators or code.
"""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from tilewright.arrays import Array
from tilewright.fields import FieldError, Signed
from tilewright.ir.block_weights import BlockWeights
from tilewright.ir.dtype import DType
from tilewright.records import dataclass
from tilewright.targets.cpu.few_bits import BLOCKS, FewBits, numbers_of, scales_of
from tilewright.targets.cpu.pieces import (
    LARGEST_FIXED,
    NUM_DIGITS,
    power_of_two,
    split_bfloat16,
    split_digits,
)

# Of a compact element: 16 bits of float32's significand are left, which errs by 2^-17 at most.
COMPACT_BYTES = 3
COMPACT_BEHIND_BYTES = 16
# Of a tile of the matrix unit: float32 sums in a row, bfloat16 elements in a row, 16 rows of 64 bytes.
TILE_COLUMNS, TILE_DEPTH, TILE_ROW_BYTES, TILE_BYTES = 16, 32, 64, 16 * 64
STEPS_PER_WORD = 4
NUM_TAPS = 3

# Elements that are made compact at a time: what they need stays in the caches.
_SLICE = 1 << 16
_CHANNELS = 128
# Elements of a window, where a constant is small: loops that do not move read an element several times.
MIN_LIMIT = 1 << 24
_WIDEST_PANEL = 1 << 16


class Arrangement(Protocol):
    """A frozen record; equal arrangements of one constant are stored once."""

    kind: ClassVar[str]

    def arrange(self, array: Any, into: Array | None = None) -> Array:
        """The constant, an array or `BlockWeights`, as kernels want it, of any shape; in `into`, zero bytes,
        where that is of its size and saves a copy.

        Raises:
            FieldError: the constant is not one that can be arranged so.
        """
        ...


def arrange_into(arrangement: Arrangement | None, array: Any, target: Array) -> None:
    """Write a constant into `target`, zero bytes, as an arrangement has it, or as it is.

    Raises:
        FieldError: it takes another number of bytes, or the arrangement has numbers that make no sense.
    """
    try:
        made = np.ascontiguousarray(array if arrangement is None else arrangement.arrange(array, target))
    except (IndexError, OverflowError) as error:
        raise FieldError(str(error)) from None
    if made.nbytes != target.nbytes:
        raise FieldError(f"{made.nbytes} bytes instead of {target.nbytes}")
    if not np.may_share_memory(made, target):
        target[...] = made.reshape(-1).view(np.uint8)


@dataclass(frozen=True, slots=True)
class Window:
    """Elements of a constant by loops: how often each runs, and by how many elements it moves."""

    shape: tuple[int, ...]
    strides: tuple[Signed, ...]
    offset: int = 0

    def of(self, array: Array) -> Array:
        """A view with an axis for each loop.

        Raises:
            FieldError: the window reaches beyond the constant.
        """
        if len(self.shape) != len(self.strides):
            raise FieldError(f"{len(self.strides)} strides of {len(self.shape)} loops", ".window")
        if prod(self.shape) > max(MIN_LIMIT, 4 * array.size):
            raise FieldError(f"{prod(self.shape)} elements of {array.size}", ".window.shape")
        reach = [(extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True)]
        first, last = self.offset + sum(min(r, 0) for r in reach), self.offset + sum(max(r, 0) for r in reach)
        if prod(self.shape) > 0 and not 0 <= first <= last < array.size:
            raise FieldError(f"elements {first} to {last} of {array.size}", ".window")
        if not array.flags.c_contiguous:
            within = self._of_axes(array)
            if within is not None:
                return within
        flat = np.ascontiguousarray(array).reshape(-1)
        return np.lib.stride_tricks.as_strided(
            flat[self.offset :], self.shape, [stride * flat.itemsize for stride in self.strides]
        )

    def _of_axes(self, array: Array) -> Array | None:
        """The view of a constant in another order than its axes', as one that is transposed, without a copy.

        None where a loop goes on from one line of an axis to the next.
        """
        if array.size == 0 or 0 in self.shape:
            return None
        sizes = [prod(array.shape[axis + 1 :]) for axis in range(array.ndim)]
        first = [int(i) for i in np.unravel_index(self.offset, array.shape)]
        low, high, strides = list(first), list(first), list[int]()
        for extent, stride in zip(self.shape, self.strides, strict=True):
            axis = next((a for a, size in enumerate(sizes) if stride % size == 0), array.ndim - 1)
            step = stride // sizes[axis]
            low[axis] += min(0, (extent - 1) * step)
            high[axis] += max(0, (extent - 1) * step)
            strides.append(step * array.strides[axis])
        if min(low) < 0 or any(last >= extent for last, extent in zip(high, array.shape, strict=True)):
            return None
        corner = array[tuple(slice(index, None) for index in first)]
        return np.lib.stride_tricks.as_strided(corner, self.shape, strides)

    def visits_all(self, num_elements: int) -> bool:
        """Whether its loops come to each of so many elements once."""
        loops = zip(map(abs, self.strides), self.shape, strict=True)
        size = 1
        for stride, extent in sorted(loop for loop in loops if loop[1] != 1):
            if stride != size:
                return False
            size *= extent
        return size == num_elements


def window(shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Window:
    """The window of these loops."""
    return Window(shape, tuple(map(Signed, strides)), offset)


def _zeros(count: int, dtype: np.dtype[Any], into: Array | None) -> Array:
    """So many elements: those of `into`, or new ones."""
    if into is not None and into.nbytes == count * dtype.itemsize:
        return into.reshape(-1).view(dtype)
    return np.zeros(count, dtype)


def padded_extent(extent: int, lanes: int) -> int:
    """An extent in whole vectors."""
    return -(-extent // lanes) * lanes


def require_panels(lanes: int, width: int) -> None:
    """That panels are whole vectors, of some that a machine may have."""
    if not 0 < lanes <= width <= _WIDEST_PANEL or width % lanes:
        raise FieldError(f"{width} in vectors of {lanes}", ".width")


def panel_by_panel(columns: Array, width: int) -> Array:
    """What is `[outer, steps, columns, ...]`, panel after panel for each outer position.

    A panel holds its columns for each step; the last one may be narrower.
    """
    num_outer, num_steps, extent, *inner = columns.shape
    full = extent // width * width
    whole = columns[:, :, :full].reshape(num_outer, num_steps, -1, width, *inner).swapaxes(1, 2)
    rest = columns[:, :, full:]
    return np.concatenate([whole.reshape(num_outer, -1), rest.reshape(num_outer, -1)], axis=1).reshape(-1)


@runtime_checkable
class Reversible(Protocol):
    """An arrangement that may hold a constant whole, so that it need not be kept besides."""

    def holds(self, array: Array) -> bool:
        """Whether every element of the constant is in the arrangement, bit by bit."""
        ...

    def restore(self, arranged: Array, into: Array) -> None:
        """Write the constant into an array of its shape and type, which the arrangement `holds`."""
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """Axes in another order, the last one contiguous."""

    kind: ClassVar[str] = "order"
    order: tuple[int, ...]

    def arrange(self, array: Array, into: Array | None = None) -> Array:
        """The array transposed."""
        if sorted(self.order) != list(range(array.ndim)):
            raise FieldError(f"{list(self.order)} is no order of {array.ndim} axes", ".order")
        return np.transpose(array, self.order)

    def holds(self, array: Array) -> bool:
        """Always."""
        return True

    def restore(self, arranged: Array, into: Array) -> None:
        """The array as it was."""
        moved = np.transpose(into, self.order)
        moved[...] = arranged.view(into.dtype).reshape(moved.shape)


@dataclass(frozen=True, slots=True)
class PanelOrder:
    """Panel after panel of the last loop's elements, as wide as a register tile, for each outer position.

    A panel holds its whole width for each step of the loops between. Behind the last element of the last
    vector are zeros. `is_compact` keeps the upper three bytes of each float32, rounded, with room behind them
    for whole vectors of bytes.
    """

    kind: ClassVar[str] = "panels"
    window: Window
    num_outer: int
    lanes: int
    width: int
    dtype: DType
    is_compact: bool = False

    def arrange(self, array: Array, into: Array | None = None) -> Array:
        """The panels, one after the other."""
        require_panels(self.lanes, self.width)
        view = self.window.of(array)
        extent = view.shape[-1]
        steps = prod(view.shape[:-1]) // max(1, self.num_outer)
        per_element = COMPACT_BYTES if self.is_compact else 1
        behind = COMPACT_BEHIND_BYTES if self.is_compact else 0
        whole = self.num_outer * steps * padded_extent(extent, self.lanes) * per_element
        dtype = np.dtype(np.uint8 if self.is_compact else self.dtype.numpy)
        packed = _zeros(whole + behind, dtype, into)
        by_outer = packed[:whole].reshape(self.num_outer, -1)
        done = 0
        # Panel by panel: what one needs stays in the caches.
        for first in range(0, extent, self.width):
            columns = view[..., first : first + self.width]
            if self.num_outer == 1 and not self.is_compact:
                panel = (*columns.shape[:-1], padded_extent(columns.shape[-1], self.lanes))
                end = done + prod(panel)
                packed[done:end].reshape(panel)[..., : columns.shape[-1]] = columns
                done = end
                continue
            columns = columns.reshape(self.num_outer, steps, -1)
            missing = -columns.shape[-1] % self.lanes
            if missing:
                columns = np.pad(columns, ((0, 0), (0, 0), (0, missing)))
            stored = (compact(columns) if self.is_compact else columns).reshape(self.num_outer, -1)
            by_outer[:, done : done + stored.shape[1]] = stored
            done += stored.shape[1]
        return packed

    def holds(self, array: Array) -> bool:
        """Unless they are rounded, or the window leaves some out."""
        is_same_type = array.dtype == self.dtype.numpy
        return is_same_type and not self.is_compact and self.window.visits_all(array.size)

    def restore(self, arranged: Array, into: Array) -> None:
        """The elements of the panels, where they were."""
        view = self.window.of(into)
        by_outer = arranged.view(into.dtype).reshape(self.num_outer, -1)
        steps = prod(view.shape[:-1]) // max(1, self.num_outer)
        done = 0
        for first in range(0, view.shape[-1], self.width):
            columns = view[..., first : first + self.width]
            width = columns.shape[-1]
            end = done + steps * padded_extent(width, self.lanes)
            panel = by_outer[:, done:end].reshape(self.num_outer, steps, -1)
            columns[...] = panel[..., :width].reshape(columns.shape)
            done = end


def compact(values: Array) -> Array:
    """The upper three bytes of every float32, rounded to nearest even, lowest byte first.

    >>> compact(np.array([1.0, -2.0], np.float32)).tolist()
    [0, 128, 63, 0, 0, 192]
    """
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    stored = np.empty((flat.size, COMPACT_BYTES), np.uint8)
    for start in range(0, flat.size, _SLICE):
        part = flat[start : start + _SLICE]
        bits = part.view(np.uint32)
        rounded = bits >> 8
        rounded &= 1
        rounded += 0x7F
        rounded += bits
        rounded[np.isnan(part)] = 0x7FC00000
        stored[start : start + _SLICE] = (
            rounded.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4)[:, 1:]
        )
    return stored.reshape(*values.shape[:-1], COMPACT_BYTES * values.shape[-1])


@dataclass(frozen=True, slots=True)
class FewBitPanels:
    """Panels of weights that are integers of few bits times a scale for each block of `block` steps.

    The window's loops are steps and columns. A panel has for each block the scales of its columns, float32,
    with `has_zeros` what is taken off their numbers, float32 too, then words of 32 bits a column: signed
    numbers of as many steps as a word holds, the first step in the lowest bits.
    """

    kind: ClassVar[str] = "panels of few bits"
    window: Window
    lanes: int
    width: int
    block: int
    bits: int = 4
    has_zeros: bool = False

    def arrange(self, array: Array | BlockWeights, into: Array | None = None) -> Array:
        """The panels, one after the other; of floats, those of four bits without zero points are found."""
        require_panels(self.lanes, self.width)
        stored = array if isinstance(array, BlockWeights) else self._found(array)
        factor = stored.block // self.block
        if self.block not in BLOCKS or FewBits(self.bits, self.block, self.has_zeros) != FewBits.of(stored):
            raise FieldError(f"weights of {stored.bits} bits by {stored.block}", ".block")
        few, half = FewBits(self.bits, self.block, self.has_zeros), 1 << self.bits - 1
        extent = len(stored.scales)
        shape = stored.scales.shape[1] * factor, few.words_per_block, padded_extent(extent, self.lanes)
        laid = np.zeros(shape, np.uint32)
        of_blocks = laid[..., :extent].view(np.float32)
        of_blocks[:, 0] = np.repeat(stored.scales, factor, axis=1).T
        if stored.zeros is not None:
            of_blocks[:, 1] = np.repeat(stored.zeros.astype(np.float32) - half, factor, axis=1).T
        words = np.ascontiguousarray(stored.numbers).view("<u4").reshape(extent, len(laid), -1)
        laid[:, few.first_word :, :extent] = words.transpose(1, 2, 0)
        halves = sum(half << self.bits * i for i in range(few.per_word))
        laid[:, few.first_word :, :extent] ^= np.uint32(halves)
        return panel_by_panel(laid.reshape(1, -1, laid.shape[2]), self.width)

    def _found(self, array: Array) -> BlockWeights:
        """The numbers behind floats."""
        view = self.window.of(array)
        if view.ndim != 2 or self.block not in BLOCKS or view.shape[0] % self.block:
            raise FieldError(f"{view.shape} in blocks of {self.block}", ".block")
        scales = scales_of(view, self.block)
        if scales is None:
            raise FieldError(f"the constant is not of four bits in blocks of {self.block}", ".block")
        numbers = (numbers_of(view, scales) + np.int8(8)).view(np.uint8).T
        packed = numbers[:, ::2] | numbers[:, 1::2] << np.uint8(4)
        return BlockWeights(packed.reshape(len(packed), len(scales), -1), scales.T, None, 4)


@dataclass(frozen=True, slots=True)
class WinogradPanels:
    """Filters of 3 x 3 taps transformed, `G g G^T` in float64 and rounded once, in panels.

    For each panel of output channels there is one matrix [input channels][panel width] for each of the
    products, in the order in which the kernel multiplies them. The window's loops are the two axes of taps,
    input channels and output channels; `weight` is G. Columns behind the last channel are zero.
    """

    kind: ClassVar[str] = "winograd"
    window: Window
    lanes: int
    width: int
    weight: tuple[tuple[float, ...], ...]

    def arrange(self, array: Array, into: Array | None = None) -> Array:
        """The factors of all products."""
        require_panels(self.lanes, self.width)
        view = self.window.of(array)
        g = np.array(self.weight, np.float64)
        require_filter(view, g)
        size, (num_inputs, num_outputs) = len(g), view.shape[2:]
        count = size**2 * num_inputs * padded_extent(num_outputs, self.lanes)
        packed = _zeros(count, np.dtype(np.float32), into)
        done = 0
        for start in range(0, num_outputs, self.width):
            columns = view[..., start : start + self.width]
            width = padded_extent(columns.shape[-1], self.lanes)
            panel = packed[done : done + size**2 * num_inputs * width].reshape(size, size, num_inputs, width)
            done += panel.size
            # A few channels at a time: what they need stays in the caches.
            for first in range(0, num_inputs, _CHANNELS):
                taps = columns[:, :, first : first + _CHANNELS].astype(np.float64)
                target = panel[:, :, first : first + _CHANNELS, : columns.shape[-1]]
                transform_filter(taps, g, target)
        return packed


def require_filter(view: Array, g: Array) -> None:
    """That a window is of a filter that Winograd's matrix transforms."""
    if view.ndim != 4 or view.shape[:2] != (NUM_TAPS, NUM_TAPS) or g.shape[1:] != (NUM_TAPS,):
        raise FieldError(f"{view.shape} is no filter of {NUM_TAPS} x {NUM_TAPS} taps", ".window")


def transform_filter(taps: Array, g: Array, into: Array) -> None:
    """G taps G^T of the first two axes."""
    for products, row in zip(into, g, strict=True):
        inner = _weighted(row, taps)
        for product, column in zip(products, g, strict=True):
            product[...] = _weighted(column, inner)


def _weighted(factors: Array, parts: Array) -> Array:
    """The sum of the parts times their factors, one after another: the same bits on every machine, as a
    product of matrices does not promise."""
    total: Array | None = None
    for factor, part in zip(factors.tolist(), parts, strict=True):
        if factor:
            total = part * factor if total is None else np.add(total, part * factor, out=total)
    return np.zeros_like(parts[0]) if total is None else total


@dataclass(frozen=True, slots=True)
class MatrixTiles:
    """Sums of bfloat16 pieces, tile after tile in the order in which the matrix unit loads them.

    For each panel of output columns, tap along lines, step of the depth and tap along the row there are,
    piece by piece, the tiles of the panel's columns. A tile holds 16 rows; a row holds two neighbouring
    summed elements of each of 16 columns. The window's loops are the taps along lines and rows, depth and
    columns; what lies behind the last column or the depth's end is zero.
    """

    kind: ClassVar[str] = "tiles"
    window: Window
    num_pieces: int
    panel_tiles: int

    def arrange(self, array: Array, into: Array | None = None) -> Array:
        """All tiles."""
        if not 0 < self.num_pieces <= 3 or not 0 < self.panel_tiles <= _WIDEST_PANEL:
            raise FieldError(f"{self.num_pieces} pieces, panels of {self.panel_tiles} tiles", ".num_pieces")
        view = self.window.of(np.ascontiguousarray(array, dtype=np.float32))
        *taps, depth, num_columns = view.shape
        steps, num_tiles = -(-depth // TILE_DEPTH), -(-num_columns // TILE_COLUMNS)
        size_bytes = self.num_pieces * prod(taps) * steps * num_tiles * TILE_BYTES
        packed = np.empty(size_bytes // 2, np.uint16)
        done = 0
        # Panel by panel: what one needs stays in the caches.
        for first in range(0, num_tiles, self.panel_tiles):
            count = min(self.panel_tiles, num_tiles - first)
            columns = view[..., TILE_COLUMNS * first : TILE_COLUMNS * (first + count)]
            padded = np.zeros((*taps, steps * TILE_DEPTH, count * TILE_COLUMNS), np.float32)
            padded[:, :, :depth, : columns.shape[-1]] = columns
            split = split_bfloat16(padded, self.num_pieces).reshape(
                self.num_pieces, *taps, steps, TILE_DEPTH // 2, 2, count, TILE_COLUMNS
            )
            # line tap, step, row tap, piece, tile, pair of rows, column, row
            tiles = split.transpose(1, 3, 2, 0, 6, 4, 7, 5)
            packed[done : done + tiles.size].reshape(tiles.shape)[...] = tiles
            done += tiles.size
        return packed


@dataclass(frozen=True, slots=True)
class SliceTiles:
    """Digits of fixed-point numbers, tile after tile as in `MatrixTiles`, with what scales them.

    First comes what A is multiplied by at each place of the depth, float32: the power of two below the
    largest weight there, by which the weights are divided. Behind the tiles of each panel, a row of which
    holds four elements of each of 16 columns, a quarter of the tile's depth apart, come the scales of its
    columns. A column with a weight that is not finite is NaN.
    """

    kind: ClassVar[str] = "slices"
    window: Window
    panel_tiles: int

    def arrange(self, array: Array, into: Array | None = None) -> Array:
        """Factors, tiles and scales."""
        if not 0 < self.panel_tiles <= _WIDEST_PANEL:
            raise FieldError(f"panels of {self.panel_tiles} tiles", ".panel_tiles")
        view = self.window.of(np.ascontiguousarray(array, dtype=np.float32))
        *taps, depth, num_columns = view.shape
        steps, num_tiles = -(-depth // TILE_ROW_BYTES), -(-num_columns // TILE_COLUMNS)
        finite = np.isfinite(view)
        weights = view if finite.all() else np.where(finite, view, np.float32(0))
        sizes = np.abs(weights)
        factors = np.zeros(steps * TILE_ROW_BYTES, np.float32)
        factors[:depth] = power_of_two(sizes.max(axis=(*range(len(taps)), -1), initial=0))
        divisors = np.where(factors > 0, factors, 1)[:depth, None].astype(np.float64)
        peaks = np.zeros(num_tiles * TILE_COLUMNS, np.float32)
        peaks[:num_columns] = (sizes / divisors).max(axis=tuple(range(len(taps) + 1)), initial=0)
        scales = np.where(peaks > 0, peaks, 1).astype(np.float64) / LARGEST_FIXED
        of_sums = (scales * 2**23).astype(np.float32)
        of_sums[:num_columns][~finite.all(axis=tuple(range(len(taps) + 1)))] = np.nan
        parts = [factors.view(np.uint8)]
        # Panel by panel: what one needs stays in the caches.
        for first in range(0, num_tiles, self.panel_tiles):
            count = min(self.panel_tiles, num_tiles - first)
            here = slice(TILE_COLUMNS * first, TILE_COLUMNS * (first + count))
            columns = weights[..., here]
            padded = np.zeros((*taps, steps * TILE_ROW_BYTES, count * TILE_COLUMNS))
            np.divide(columns, divisors, out=padded[:, :, :depth, : columns.shape[-1]])
            split = split_digits(padded, scales[here]).reshape(
                NUM_DIGITS,
                *taps,
                steps,
                STEPS_PER_WORD,
                TILE_ROW_BYTES // STEPS_PER_WORD,
                count,
                TILE_COLUMNS,
            )
            # line tap, step, row tap, digit, tile, row of the tile, column, byte
            tiles = split.transpose(1, 3, 2, 0, 6, 5, 7, 4)
            parts += [tiles.reshape(-1).view(np.uint8), of_sums[here].view(np.uint8)]
        return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class Stacked:
    """Parts of a constant one after another, each arranged by itself (or as it is) at a multiple of `stride`
    bytes; a part is an interval of each axis."""

    kind: ClassVar[str] = "parts"
    inner: Arrangement | None
    parts: tuple[tuple[tuple[int, int], ...], ...]
    stride: int

    def arrange(self, array: Array, into: Array | None = None) -> Array:
        """The parts' bytes, zeros between them."""
        result = np.zeros((len(self.parts), self.stride), np.uint8)
        for row, part in zip(result, self.parts, strict=True):
            given = array[tuple(slice(*interval) for interval in part)]
            made = np.ascontiguousarray(given if self.inner is None else self.inner.arrange(given))
            if made.nbytes > self.stride:
                raise FieldError(f"a part of {made.nbytes} bytes", ".stride")
            row[: made.nbytes] = made.reshape(-1).view(np.uint8)
        return result
