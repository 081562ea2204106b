"""The inputs of a chunk in planes: split into bfloat16 pieces, zeros around an image that has a window."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.records import dataclass
from tilewright.targets.cpu.product.amx import TILE_BYTES_PER_ROW
from tilewright.targets.cpu.product.lanes import load_lanes
from tilewright.targets.cpu.product.loops import WindowLoop
from tilewright.targets.cpu.product.matrix import tiles
from tilewright.targets.cpu.product.matrix.frame import Chunk, MatrixFrame
from tilewright.targets.cpu.product.matrix.tiles import TILE_DEPTH
from tilewright.targets.llvm.values import Int, Val, vec


@dataclass(frozen=True, slots=True)
class Planes:
    """Emits what fills the planes."""

    frame: MatrixFrame

    def fill(self, work: Chunk) -> None:
        """All that the products of a chunk read."""
        if self.frame.grid.has_window:
            self._split_lines(work)
        else:
            self._split_positions(work)

    def _split_positions(self, work: Chunk) -> None:
        """The chunk's positions one after the other."""
        e, block = self.frame.emitter, self.frame.sizes.block
        first = e.mul(work.first, block.num_positions)
        last = e.min(e.mul(work.last, block.num_positions), work.end)

        def one(position: Int, _: Sequence[Val]) -> None:
            a = self.frame.loops.a_offset
            start = self.frame.walk(position, a, lambda x: x.step * x.a)
            self._split(start, self.frame.origin(e.sub(position, first)), 0)

        e.loop(first, last, 1, one, nonempty=True)

    def _split_lines(self, work: Chunk) -> None:
        """The lines that the chunk's positions read, phase by phase, zeros where there is no input."""
        grid = self.frame.grid
        start = self.frame.batch_offset(work.batch, self.frame.loops.a_offset, lambda x: x.step * x.a)
        for row_number, row_phase in enumerate(grid.row_phases):
            for line_number, line_phase in enumerate(grid.line_phases):
                phase = line_number * len(grid.row_phases) + row_number
                self._split_phase(work, start, phase, line_phase, row_phase)

    def _split_phase(self, work: Chunk, start: Int, phase: int, line_phase: int, row_phase: int) -> None:
        e, grid = self.frame.emitter, self.frame.grid
        line, row = grid.line, grid.row
        lead, num_inputs, _ = grid.columns(row_phase)
        num_lines = e.add(e.sub(work.last, work.first), grid.num_lines_read(1) - 1)

        def one(number: Int, _: Sequence[Val]) -> None:
            index = e.add(e.mul(e.add(work.first, number), line.step), line_phase + line.offset)
            at = e.mul(number, grid.pitch)

            def inside() -> None:
                first_input = row.step * lead + row_phase + row.offset if row.is_window else 0
                a = e.add(e.add(start, e.mul(index, line.a)), first_input * row.a)
                self._zeros(at, 0, lead, phase)

                def column(position: Int, _: Sequence[Val]) -> None:
                    here = e.add(a, e.mul(position, row.step * row.a))
                    self._split(here, self.frame.origin(e.add(e.add(at, lead), position)), phase)

                e.loop(0, num_inputs, 1, column)
                self._zeros(at, lead + num_inputs, grid.pitch, phase)

            if self._leaves(line):
                unsigned = self._is_index(index, line.size)
                e.if_(unsigned, inside, lambda: self._zeros(at, 0, grid.pitch, phase))
            else:
                inside()

        e.loop(0, num_lines, 1, one, nonempty=True)
        self._zeros(e.mul(num_lines, grid.pitch), 0, grid.width - grid.pitch, phase)

    def _leaves(self, axis: WindowLoop) -> bool:
        """Whether lines may be read that are not in the image."""
        if not axis.is_window:
            return False
        last = axis.step * (self.frame.grid.num_lines_read(axis.extent) - 1) + axis.step - 1 + axis.offset
        return axis.offset < 0 or last >= axis.size

    def _is_index(self, index: Int, size: int) -> Val | bool:
        e = self.frame.emitter
        if isinstance(index, int):
            return 0 <= index < size
        return e.icmp("ult", index, size)

    def _zeros(self, at: Int, first: int, last: int, phase: int) -> None:
        """Zeros to positions `at + [first, last)` of every plane of a phase."""
        e, plan = self.frame.emitter, self.frame.sizes
        if last <= first:
            return
        zero = e.zero(vec("i16", TILE_DEPTH))

        def step(number: Int, _: Sequence[Val]) -> None:
            for piece in range(plan.num_pieces):
                plane = e.gep(self.frame.pointers["planes"], self.frame.plane(number, phase, piece))
                where = e.gep(plane, e.mul(at, TILE_BYTES_PER_ROW))

                def one(position: Int, _: Sequence[Val], where: Val = where) -> None:
                    e.store(zero, e.gep(where, e.mul(position, TILE_BYTES_PER_ROW)), align_bytes=64)

                e.loop(first, last, 1, one)

        e.loop(0, plan.num_steps, 1, step)

    def _split(self, a: Int, origin: Int, phase: int) -> None:
        """The depth of one position, from A to `origin` in every plane of a phase."""
        e, plan = self.frame.emitter, self.frame.sizes
        dtype = self.frame.plan.a.operand.dtype
        source = self.frame.pointer("a", a, dtype.size_bytes)
        target = e.gep(self.frame.pointers["planes"], origin)
        num_full, rest = divmod(self.frame.loops.depth.extent, TILE_DEPTH)

        def step(number: Int, active: int) -> None:
            half = TILE_DEPTH // 2
            at = e.gep(source, e.mul(number, TILE_DEPTH * dtype.size_bytes))
            low = load_lanes(e, dtype, at, half, active=min(active, half))
            high = e.zero(self.frame.type)
            if active > half:
                behind = e.gep(at, half * dtype.size_bytes)
                high = load_lanes(e, dtype, behind, half, active=active - half)
            pieces = tiles.split(e, low, high, plan.num_pieces)
            tiles.store_pieces(e, pieces, e.gep(target, self.frame.plane(number, phase, 0)), plan.plane_bytes)

        if num_full:
            e.loop(0, num_full, 1, lambda number, _: step(number, TILE_DEPTH))
        if rest:
            step(num_full, rest)
