"""The inputs of a chunk in planes: split into pieces, zeros around an image that has a window."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.records import dataclass
from tilewright.targets.cpu.product.amx import TILE_BYTES_PER_ROW
from tilewright.targets.cpu.product.loops import WindowLoop
from tilewright.targets.cpu.product.matrix import tiles
from tilewright.targets.cpu.product.matrix.frame import Chunk, MatrixFrame
from tilewright.targets.cpu.product.matrix.slices import Scale, Slices
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
            here, scale = e.sub(position, first), None
            if self.slices is not None:
                peak = self.slices.largest(start, self.slices.no_peak())
                place = self.slices.place(here, 0)
                scale = self.slices.scale(peak, lambda value: e.store(value, place))
            self._split(start, self.frame.origin(here), 0, scale)

        e.loop(first, last, 1, one, nonempty=True)

    @property
    def slices(self) -> Slices | None:
        """What splits into digits, where pieces are such."""
        return Slices(self.frame) if self.frame.sizes.terms.is_bytes else None

    def _split_lines(self, work: Chunk) -> None:
        """The lines that the chunk's positions read, phase by phase, zeros where there is no input."""
        grid = self.frame.grid
        start = self.frame.batch_offset(work.batch, self.frame.loops.a_offset, lambda x: x.step * x.a)
        for line_number, line_phase in enumerate(grid.line_phases):
            self._split_phase(work, start, line_number, line_phase)

    def _split_phase(self, work: Chunk, start: Int, line_number: int, line_phase: int) -> None:
        e, grid = self.frame.emitter, self.frame.grid
        line = grid.line
        first_phase = line_number * len(grid.row_phases)
        all_phases = range(first_phase, first_phase + len(grid.row_phases))
        num_lines = e.add(e.sub(work.last, work.first), grid.num_lines_read(1) - 1)

        def one(number: Int, _: Sequence[Val]) -> None:
            index = e.add(e.mul(e.add(work.first, number), line.step), line_phase + line.offset)
            at = e.mul(number, grid.pitch)

            def inside() -> None:
                self._split_line(e.add(start, e.mul(index, line.a)), at, line_number)

            def outside() -> None:
                for phase in all_phases:
                    self._zeros(at, 0, grid.pitch, phase)
                self._store_scale(e.constant(vec("float"), 0.0), at, line_number)

            if self._leaves(line):
                e.if_(self._is_index(index, line.size), inside, outside)
            else:
                inside()

        e.loop(0, num_lines, 1, one, nonempty=True)
        for phase in all_phases:
            self._zeros(e.mul(num_lines, grid.pitch), 0, grid.width - grid.pitch, phase)

    def _split_line(self, start: Int, at: Int, line_number: int) -> None:
        """The inputs of a line, for every phase along it; of digits with one scale."""
        e, grid = self.frame.emitter, self.frame.grid
        row = grid.row
        scale = None
        if self.slices is not None:
            slices, peak = self.slices, self.slices.no_peak()
            for row_phase in grid.row_phases:
                lead, num_inputs, _ = grid.columns(row_phase)
                a = self._first_input(start, lead, row_phase)

                def largest(position: Int, carried: list[Val], a: Int = a) -> list[Val]:
                    return [slices.largest(e.add(a, e.mul(position, row.step * row.a)), carried[0])]

                (peak,) = e.loop(0, num_inputs, 1, largest, [(peak.type, peak)])
            scale = slices.scale(peak, lambda value: self._store_scale(value, at, line_number))
        for row_number, row_phase in enumerate(grid.row_phases):
            phase = line_number * len(grid.row_phases) + row_number
            lead, num_inputs, _ = grid.columns(row_phase)
            a = self._first_input(start, lead, row_phase)
            self._zeros(at, 0, lead, phase)

            def column(
                position: Int, _: Sequence[Val], a: Int = a, lead: int = lead, phase: int = phase
            ) -> None:
                here = e.add(a, e.mul(position, row.step * row.a))
                self._split(here, self.frame.origin(e.add(e.add(at, lead), position)), phase, scale)

            e.loop(0, num_inputs, 1, column)
            self._zeros(at, lead + num_inputs, grid.pitch, phase)

    def _first_input(self, start: Int, lead: int, row_phase: int) -> Int:
        """The first input of a phase along a line that starts there, behind so many zeros."""
        row = self.frame.grid.row
        first = row.step * lead + row_phase + row.offset if row.is_window else 0
        return self.frame.emitter.add(start, first * row.a)

    def _store_scale(self, value: Val, at: Int, line_number: int) -> None:
        """The scale of a line for each of its positions."""
        e = self.frame.emitter
        if self.slices is not None:
            place = self.slices.place(at, line_number)

            def one(position: Int, _: Sequence[Val]) -> None:
                e.store(value, e.gep(place, e.mul(position, value.type.element_bytes)))

            e.loop(0, self.frame.grid.pitch, 1, one)

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
        zero = e.zero(vec("i8", TILE_BYTES_PER_ROW))

        def step(number: Int, _: Sequence[Val]) -> None:
            for piece in range(plan.num_pieces):
                plane = e.gep(self.frame.pointers["planes"], self.frame.plane(number, phase, piece))
                where = e.gep(plane, e.mul(at, TILE_BYTES_PER_ROW))

                def one(position: Int, _: Sequence[Val], where: Val = where) -> None:
                    e.store(zero, e.gep(where, e.mul(position, TILE_BYTES_PER_ROW)), align_bytes=64)

                e.loop(first, last, 1, one)

        e.loop(0, plan.num_steps, 1, step)

    def _split(self, a: Int, origin: Int, phase: int, scale: Scale | None) -> None:
        """The depth of one position, from A to `origin` in every plane of a phase; digits by their scale."""
        e, plan = self.frame.emitter, self.frame.sizes
        dtype = self.frame.plan.a.operand.dtype
        source = self.frame.pointer("a", a, dtype.size_bytes)
        target = e.gep(self.frame.pointers["planes"], origin)
        if scale is not None:
            Slices(self.frame).split(a, target, scale, phase)
            return
        num_full, rest = divmod(self.frame.loops.depth.extent, TILE_DEPTH)

        def step(number: Int, active: int) -> None:
            at = e.gep(source, e.mul(number, TILE_DEPTH * dtype.size_bytes))
            pieces = tiles.split_row(e, at, dtype, active, plan.num_pieces)
            tiles.store_pieces(e, pieces, e.gep(target, self.frame.plane(number, phase, 0)), plan.plane_bytes)

        if num_full:
            e.loop(0, num_full, 1, lambda number, _: step(number, TILE_DEPTH))
        if rest:
            step(num_full, rest)
