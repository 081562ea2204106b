"""Factors as digits of fixed-point numbers, and the sums of their products as float32.

A number of A is three balanced digits of base 256, of 24 bits with the scale of its row: the inputs of one
position, or of one line of an image, whose windows share them. Before that it is multiplied by what its place
in the depth has in the weights, a power of two (`arrangements.SliceTiles`), so that the largest product that
it takes part in, not the number, decides how exact it is. Sums of products of digits are exact; they are
rounded where the orders are added up, and scaled by row and column. A row with a number that is not finite is
NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.records import dataclass
from tilewright.targets.cpu.pieces import DIGIT_CARRIES, LARGEST_FIXED
from tilewright.targets.cpu.product.amx import TILE_BYTES_PER_ROW, TILE_ROWS
from tilewright.targets.cpu.product.lanes import load_lanes
from tilewright.targets.cpu.product.matrix import tiles
from tilewright.targets.cpu.product.matrix.frame import MatrixFrame
from tilewright.targets.cpu.product.matrix.tiles import TILE_BYTES, TILE_COLUMNS
from tilewright.targets.llvm.values import Bool, Int, Val, vec

# Of the rounded product by the reciprocal of the largest: it must stay within what three digits hold.
_MARGIN = 711
_INFINITY = 0x7F800000
# Rows whose largest number is smaller count as if it were this: its reciprocal is finite.
_LEAST = 2.0**-100
_VECTORS = 4


@dataclass(frozen=True, slots=True)
class Scale:
    """What the numbers of a row are multiplied by to be fixed-point numbers."""

    reciprocal: Val


@dataclass(frozen=True, slots=True)
class Slices:
    """Emits digits of a chunk's inputs, and float32 of its sums."""

    frame: MatrixFrame

    def largest(self, a: Int, peak: Val) -> Val:
        """Bits of the largest size in each lane, of `peak` and the depth of one position from A."""
        e = self.frame.emitter

        def group(number: Int, active: int, peak: Val) -> Val:
            for part in self._parts(a, number, active):
                bits = e.and_(e.bitcast(part, vec("i32", TILE_COLUMNS)), 0x7FFFFFFF)
                peak = e.smax(peak, bits)
            return peak

        num_full, rest = divmod(self.frame.loops.depth.extent, TILE_BYTES_PER_ROW)
        (peak,) = e.loop(
            0,
            num_full,
            1,
            lambda number, carried: [group(number, TILE_BYTES_PER_ROW, carried[0])],
            [(peak.type, peak)],
        )
        return group(num_full, rest, peak) if rest else peak

    def no_peak(self) -> Val:
        """The bits of zero in each lane."""
        return self.frame.emitter.zero(vec("i32", TILE_COLUMNS))

    def scale(self, peak: Val, place: Callable[[Val], None]) -> Scale:
        """The scale of a row with this peak; what its sums are multiplied by goes to `place`."""
        e = self.frame.emitter
        bits = e.reduce(peak, e.smax)
        is_finite = e.icmp("slt", bits, _INFINITY)
        size = e.maximum(e.bitcast(bits, vec("float")), _LEAST)
        reciprocal = e.fdiv(float(LARGEST_FIXED - _MARGIN), size)
        of_sums = e.fdiv(float(2**23), reciprocal)
        place(e.select(is_finite, of_sums, float("nan")))
        return Scale(e.splat(e.select(is_finite, reciprocal, 0.0), TILE_COLUMNS))

    def split(self, a: Int, target: Val, scale: Scale, phase: int) -> None:
        """The digits of the depth of one position, to its place in every plane of a phase."""
        e, plan = self.frame.emitter, self.frame.sizes

        def group(number: Int, active: int) -> None:
            words = [self._digits(part, scale) for part in self._parts(a, number, active)]
            first = e.gep(target, self.frame.plane(number, phase, 0))
            for piece in range(plan.num_pieces):
                place = e.gep(first, piece * plan.plane_bytes)
                e.store(self._gathered(words, plan.num_pieces - 1 - piece), place, align_bytes=64)

        num_full, rest = divmod(self.frame.loops.depth.extent, TILE_BYTES_PER_ROW)
        e.loop(0, num_full, 1, lambda number, _: group(number, TILE_BYTES_PER_ROW))
        if rest:
            group(num_full, rest)

    def _parts(self, a: Int, number: Int, active: int) -> list[Val]:
        """A tile's depth of one position in four vectors, each number times that of its place."""
        e, dtype = self.frame.emitter, self.frame.plan.a.operand.dtype
        source = self.frame.pointer("a", a, dtype.size_bytes)
        start = e.mul(number, TILE_BYTES_PER_ROW)
        found: list[Val] = []
        for vector in range(_VECTORS):
            lanes = min(TILE_COLUMNS, active - vector * TILE_COLUMNS)
            if lanes <= 0:
                found.append(e.zero(self.frame.type))
                continue
            at = e.add(start, vector * TILE_COLUMNS)
            factors = e.gep(self.frame.pointers["b"], e.mul(at, self.frame.type.element_bytes))
            values = load_lanes(
                e, dtype, e.gep(source, e.mul(at, dtype.size_bytes)), TILE_COLUMNS, active=lanes
            )
            found.append(e.fmul(values, e.load(self.frame.type, factors, align_bytes=64)))
        return found

    def _digits(self, values: Val, scale: Scale) -> Val:
        """Numbers as digits: the lowest in the lowest byte of each word, the largest in the third."""
        e = self.frame.emitter
        fixed = e.fptoint(e.roundeven(e.fmul(values, scale.reciprocal)), "i32")
        return e.xor(e.iadd(fixed, DIGIT_CARRIES), DIGIT_CARRIES)

    def _gathered(self, words: Sequence[Val], byte: int) -> Val:
        """One byte of every word: those of a lane of the four vectors side by side."""
        e = self.frame.emitter
        total: Val | None = None
        for number, word in enumerate(words):
            up = 8 * (number - byte)
            moved = e.shl(word, up) if up > 0 else e.lshr(word, -up) if up < 0 else word
            part = e.and_(moved, (0xFF << 8 * number) - (1 << 32 if number == 3 else 0))
            total = part if total is None else e.or_(total, part)
        assert total is not None
        return total

    def add_sums(self, first_position: Int, line_tap: int, columns: Val, sums: Val, is_first: Bool) -> None:
        """The sums in the tiles of a block, as float32, in place of those in memory or added to them.

        `columns` are the scales of its columns; positions are counted in the chunk.
        """
        e, plan, type = self.frame.emitter, self.frame.sizes, self.frame.type
        partial_sums = self.frame.pointers["partial"]
        tiles.store_orders(e, plan.terms, partial_sums)
        of_columns = e.load(type, columns, align_bytes=64)
        scales = self.scales(first_position, line_tap)

        def rows(is_first: bool) -> None:
            def one(row: Int, _: Sequence[Val]) -> None:
                at = e.mul(row, TILE_BYTES_PER_ROW)
                total = e.fmul(self._combined(e.gep(partial_sums, at)), of_columns)
                scale = e.broadcast_load(type, e.gep(scales, e.mul(row, type.element_bytes)))
                place = e.gep(sums, at)
                before = None if is_first else e.load(type, place, align_bytes=64)
                added = e.fmul(total, scale) if before is None else e.fma(total, scale, before)
                e.store(added, place, align_bytes=64)

            e.loop(0, TILE_ROWS, 1, one)

        if isinstance(is_first, bool):
            rows(is_first)
        else:
            e.if_(is_first, lambda: rows(True), lambda: rows(False))

    def scales(self, position: Int, line_tap: int) -> Val:
        """Where the scales of positions lie, as a tap along lines reads them."""
        e, grid = self.frame.emitter, self.frame.grid
        phase = 0
        if grid.has_window:
            step = grid.line.tap_step * line_tap
            phase = grid.line_phases.index(step % grid.line.step)
            position = e.add(position, step // grid.line.step * grid.pitch)
        return self.place(position, phase)

    def place(self, position: Int, line_phase: int) -> Val:
        """Where the scale of a position of a phase's plane is."""
        e, plan = self.frame.emitter, self.frame.sizes
        number = e.add(position, line_phase * plan.scales_per_phase)
        return e.gep(self.frame.pointers["scales"], e.mul(number, self.frame.type.element_bytes))

    def _combined(self, sums: Val) -> Val:
        """A row of the sums of all orders as float32, the smallest added first.

        Sums of one order are added as integers. In units in which the largest digit of a number of full size
        counts 2^-7.
        """
        e, terms = self.frame.emitter, self.frame.sizes.terms
        of_order: dict[int, Val] = {}
        for number, order in enumerate(terms.orders):
            words = e.load(vec("i32", TILE_COLUMNS), e.gep(sums, number * TILE_BYTES), align_bytes=64)
            of_order[order] = e.iadd(of_order[order], words) if order in of_order else words
        total: Val | None = None
        for order, words in sorted(of_order.items(), reverse=True):
            value = e.cast("sitofp", words, "float")
            unit = 2.0 ** -(14 + 8 * order)
            total = e.fmul(value, unit) if total is None else e.fma(value, unit, total)
        assert total is not None
        return total
