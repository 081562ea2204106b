"""The kernel of a depthwise convolution of bytes: channels in lanes, the window's positions in straight code.

Neighbouring outputs of a row share what their windows share: each input is widened once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.product.contraction.frame import Panel
from tilewright.targets.cpu.product.contraction.lanes import load_lanes
from tilewright.targets.cpu.product.contraction.row_units import row_loop
from tilewright.targets.cpu.product.contraction.tiling import Panels, split_rows
from tilewright.targets.cpu.product.integer.dot import dot_of
from tilewright.targets.cpu.product.integer.frame import IntegerGenerator, Position
from tilewright.targets.cpu.product.integer.match import IntegerProblem
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.llvm.values import Int, Val

# Beside the sums live the inputs of one row of the window, as many plus what the window is wider.
_MAX_ROWS = {32: 8, 16: 4}


class DepthwiseGenerator(IntegerGenerator):
    """Lanes are channels; a tile is some neighbouring outputs of a row."""

    products_per_operation = 1

    def __init__(self, problem: IntegerProblem, isa: Isa) -> None:
        columns = problem.contraction.vector.extent
        lanes = next((n for n in reversed(isa.lane_choices("i32")) if n >= columns), isa.lanes("i32"))
        super().__init__(problem, Panels(lanes, 1, columns), isa, widened=True)
        self.dot = dot_of(isa, lanes)
        self.template = f"integer-depthwise-{self.dot.name}"
        self.row_tiles = split_rows(self.contraction.row.extent, _MAX_ROWS[isa.num_vector_registers])
        self.num_tiles = sum(t.count for t in self.row_tiles)

    @property
    def num_units(self) -> int:
        """Rows of the result."""
        return prod(x.extent for x in self.contraction.outer)

    @property
    def row_loop(self) -> StridedLoop | None:
        """The outermost of the loops around rows of the result."""
        return row_loop(self.contraction.outer, None)

    @property
    def tile_note(self) -> str:
        """What a tile holds."""
        return f"tile {self.row_tiles[0].rows}x{self.panels.width}"

    def units(self, index: Int, panel: Panel, first: Int, last: Int) -> None:
        """One panel of channels for the rows in `[first, last)`."""
        e = self.emitter
        b, column = e.mul(index, self.factor.panel_stride), e.mul(index, self.panels.width)

        def unit(number: Int, _: Sequence[Val]) -> None:
            position = self.at_outer(number, b, column)
            position = position.moved(e.add(position.a, column))
            for tile in self.row_tiles:

                def one(i: Int, _: Sequence[Val], start: int = tile.start, rows: int = tile.rows) -> None:
                    self._tile(rows, self.at_row(position, e.add(e.mul(i, rows), start)), panel)

                e.loop(0, tile.count, 1, one)

        e.loop(first, last, 1, unit)

    def _tile(self, num_rows: int, at: Position, panel: Panel) -> None:
        e, contraction, lanes = self.emitter, self.contraction, self.panels.lanes
        dtype, row_step = contraction.a.operand.dtype, contraction.row.a
        at_a, at_b = e.gep(self.pointers["a"], at.a), e.gep(self.pointers["b"], at.b)
        sums = self.initial(num_rows, at, panel)
        loaded: dict[int, Val] = {}
        steps = self.problem.outer_steps
        for number, taps in enumerate(product(*(range(x.extent) for x in steps))):
            ahead = sum(t * x.a for t, x in zip(taps, steps, strict=True))
            weight = e.load(self.type, e.gep(at_b, number * self.type.size_bytes))
            for r in range(num_rows):
                offset = ahead + r * row_step
                if offset not in loaded:
                    value = load_lanes(e, dtype, e.gep(at_a, offset), lanes, active=panel.active)
                    if self.problem.flips_a:
                        value = e.xor(value, -128)
                    loaded[offset] = e.cast("zext", value, "i32")
                sums[r] = self.dot.widened(e, loaded[offset], weight, sums[r])
        self.finish(num_rows, at, panel, sums)
