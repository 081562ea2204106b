"""The kernel of a depthwise convolution of bytes: channels in lanes, the window's positions in straight code.

Neighbouring outputs of a row share what their windows share: each input is widened once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.product.epilogue import store_tile
from tilewright.targets.cpu.product.frame import Frame, Panel, Position
from tilewright.targets.cpu.product.integer.dot import planned_dot
from tilewright.targets.cpu.product.integer.frame import ByteWalk, byte_kernel
from tilewright.targets.cpu.product.integer.pack import PackedBytes, flips_a
from tilewright.targets.cpu.product.lanes import load_lanes
from tilewright.targets.cpu.product.plan import KernelPlan
from tilewright.targets.cpu.product.walk import Range
from tilewright.targets.llvm.values import Int, Val

# Rows of a tile, by vector registers: beside the sums live the inputs of one row of the window, as many plus
# what the window is wider.
MAX_ROWS = {32: 8, 16: 4}


def generate_by_column(plan: KernelPlan, isa: Isa) -> Kernel:
    """The kernel of a plan in which each column has bytes of A of its own."""
    name = planned_dot(plan).name
    note = f"tile {plan.row_tiles[0].rows}x{plan.panels.width}"
    return byte_kernel(plan, isa, _ColumnTiles, f"integer-depthwise-{name}", note)


class _ColumnTiles(ByteWalk):
    """Lanes are channels; a tile is some neighbouring outputs of a row."""

    def __init__(self, frame: Frame, factor: PackedBytes, isa: Isa) -> None:
        super().__init__(frame, factor, isa)
        self.dot = planned_dot(self.plan)

    def units(self, index: Int, panel: Panel, panels: Range, units: Range) -> None:
        """One panel of channels for a chunk's rows."""
        e = self.emitter
        b, column = self.panel_start(index)

        def unit(number: Int, _: Sequence[Val]) -> None:
            position = self.at_outer(number, b, column)
            for tile in self.row_tiles:

                def one(i: Int, _: Sequence[Val], start: int = tile.start, rows: int = tile.rows) -> None:
                    self._tile(rows, self.at_row(position, e.add(e.mul(i, rows), start)), panel)

                e.loop(0, tile.count, 1, one)

        e.loop(*units, 1, unit)

    def _tile(self, num_rows: int, at: Position, panel: Panel) -> None:
        e, plan, lanes = self.emitter, self.plan, self.panels.lanes
        dtype, flips = plan.a.operand.dtype, flips_a(plan)
        at_a, at_b = e.gep(self.pointers["a"], at.a), e.gep(self.pointers["b"], at.b)
        sums = self.initial(num_rows, at, panel)
        loaded: dict[int, Val] = {}
        for number, taps in enumerate(product(*(range(x.extent) for x in plan.summed))):
            ahead = sum(t * x.a for t, x in zip(taps, plan.summed, strict=True))
            weight = e.load(self.type, e.gep(at_b, number * self.type.size_bytes))
            for r in range(num_rows):
                offset = ahead + r * plan.row.a
                if offset not in loaded:
                    value = load_lanes(e, dtype, e.gep(at_a, offset), lanes, active=panel.active)
                    loaded[offset] = e.cast("zext", e.xor(value, -128) if flips else value, "i32")
                sums[r] = self.dot.widened(e, loaded[offset], weight, sums[r])
        store_tile(self.frame, num_rows, at, panel, sums)
