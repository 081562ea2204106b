"""What the parts of a matrix-unit kernel share while it is emitted: where positions, planes and sums lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from tilewright.records import dataclass
from tilewright.targets.cpu.product.amx import TILE_BYTES_PER_ROW
from tilewright.targets.cpu.product.frame import Frame, Panel
from tilewright.targets.cpu.product.loops import WindowLoop, digits
from tilewright.targets.cpu.product.matrix.match import MatrixLoops
from tilewright.targets.cpu.product.matrix.plan import Grid, MatrixPlan, plan_loops, sizes_of
from tilewright.targets.cpu.product.matrix.tiles import Block
from tilewright.targets.llvm.values import Int, Val


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one chunk covers: units [first, last), and the image they belong to.

    Without a window the positions of the last unit end at `end`.
    """

    batch: Int
    first: Int
    last: Int
    end: Int


@dataclass(frozen=True, slots=True)
class Columns:
    """One panel's columns: the first of them, its tiles, the lanes that exist."""

    first: Int
    block: Block
    panel: Panel


@dataclass(frozen=True, slots=True, eq=False)
class MatrixFrame(Frame):
    """The fixed facts of one kernel; `pointers` also are those of the areas of its scratch memory."""

    sizes: MatrixPlan = field(kw_only=True)
    loops: MatrixLoops = field(kw_only=True)

    @classmethod
    def of(cls, frame: Frame) -> MatrixFrame:
        """The frame with what its plan says of the matrix unit."""
        e, sizes, scratch = frame.emitter, sizes_of(frame.plan), frame.function.scratch
        areas = {
            "sums": scratch,
            "partial": e.gep(scratch, sizes.sums_bytes),
            "scales": e.gep(scratch, sizes.scales_offset),
            "planes": e.gep(scratch, sizes.planes_offset),
        }
        return cls(
            e,
            frame.plan,
            frame.type,
            frame.function,
            {**frame.pointers, **areas},
            frame.extra_pointers,
            sizes=sizes,
            loops=plan_loops(frame.plan),
        )

    @property
    def grid(self) -> Grid:
        """How positions lie in the planes."""
        return self.sizes.grid

    def plane(self, step: Int, phase: int, piece: Int) -> Int:
        """Bytes from the first plane to that of a step of the depth, a phase and a piece."""
        e, plan = self.emitter, self.sizes
        plane = e.mul(e.add(piece, phase * plan.num_pieces), plan.plane_bytes)
        return e.add(e.mul(step, plan.step_bytes), plane)

    def origin(self, position: Int) -> Int:
        """Bytes from the start of the planes to a position of the chunk, in the first of its planes.

        Without a window a block's planes follow one another, in the order in which its steps load them.
        """
        e, plan = self.emitter, self.sizes
        if self.grid.has_window:
            return e.mul(position, TILE_BYTES_PER_ROW)
        size = plan.block.num_positions
        block = e.mul(e.udiv(position, size), plan.planes_bytes)
        return e.add(block, e.mul(e.urem(position, size), TILE_BYTES_PER_ROW))

    def walk(self, position: Int, start: Int, step: Callable[[WindowLoop], int]) -> Int:
        """`start` plus the steps of every axis to a position counted over all of them."""
        return self._walk(self.loops.axes, position, start, step)

    def batch_offset(self, batch: Int, start: Int, step: Callable[[WindowLoop], int]) -> Int:
        """`start` plus the steps of the axes outside a chunk's image to one of all its images."""
        return self._walk(self.loops.axes[:-2], batch, start, step)

    def _walk(
        self, axes: Sequence[WindowLoop], number: Int, start: Int, step: Callable[[WindowLoop], int]
    ) -> Int:
        e, total = self.emitter, start
        for x, index in digits(e, number, axes):
            total = e.add(total, e.mul(index, step(x)))
        return total

    def block_sums(self, number: Int) -> Val:
        """Where the sums of a block of the chunk wait."""
        e, plan = self.emitter, self.sizes
        if plan.num_passes == 1:
            return self.pointers["sums"]
        return e.gep(self.pointers["sums"], e.mul(number, plan.block_sums_bytes))
