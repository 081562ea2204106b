"""What a block does with two tiles in shared memory: each thread's part of their product.

Tiles have rows of 64 bytes along the depth. Tensor cores take 16 rows and 8 columns by 32 bytes of it at a
time, whose registers `ldmatrix` fills; other threads take four steps, or sixteen bytes, at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tilewright.ir.dtype import DType
from tilewright.targets.cuda.emitter import WARP, CudaEmitter
from tilewright.targets.cuda.products.tiles import (
    CHUNK_BYTES,
    PITCH_BYTES,
    ROW_BYTES,
    ProductPlan,
    element_of,
    num_down,
)
from tilewright.targets.cuda.rates import BYTE_KINDS
from tilewright.targets.llvm.values import FLOAT, I16, I32, Int, Type, Val, vec

_MMA_BYTES = 32


class Multiplier(ABC):
    """`element` is how factors lie in shared memory, `sums` are the types of a thread's totals."""

    element: Type
    sums: list[Type]
    row_lanes: int
    """Neighbouring lanes of a warp that have the totals of a row, where no other warp has any."""

    def __init__(self, e: CudaEmitter, plan: ProductPlan, dtype: DType) -> None:
        self.e, self.plan = e, plan
        self.element = element_of(plan.kind, dtype)

    @abstractmethod
    def as_element(self, value: Val) -> Val:
        """A factor, in the type it is computed in, as it is multiplied."""

    def as_chunk(self, values: Sequence[Val]) -> Val:
        """Sixteen bytes of factors, in the type they are computed or multiplied in, as words."""
        e = self.e
        chunk = e.zero(self.element.with_lanes(len(values)))
        for lane, value in enumerate(values):
            is_element = value.type.element == self.element.element
            chunk = e.insert(chunk, value if is_element else self.as_element(value), lane)
        return e.bitcast(chunk, vec("i32", CHUNK_BYTES // 4))

    @abstractmethod
    def tile(self, rows: Val, columns: Val, thread: Int, sums: Sequence[Val]) -> list[Val]:
        """The sums with the product of two tiles added."""

    @abstractmethod
    def places(self, thread: Int) -> list[tuple[int, Int, Int]]:
        """Of each total: a number that totals of one row share, its row and its column in the tile."""


class _Cores(Multiplier):
    """Fused multiply-adds of float32 or float64: threads in a grid, each with rows and columns far apart."""

    def __init__(self, e: CudaEmitter, plan: ProductPlan, dtype: DType) -> None:
        super().__init__(e, plan, dtype)
        tile = plan.tile
        self.down = num_down(tile)
        self.across = tile.num_threads // self.down
        self.row_lanes = self.across
        self.num_rows, self.num_columns = tile.rows // self.down, tile.columns // self.across
        self.sums = [self.element] * (self.num_rows * self.num_columns)

    def as_element(self, value: Val) -> Val:
        return value

    def places(self, thread: Int) -> list[tuple[int, Int, Int]]:
        e = self.e
        row, column = e.udiv(thread, self.across), e.urem(thread, self.across)
        return [
            (i, e.add(row, i * self.down), e.add(column, j * self.across))
            for i in range(self.num_rows)
            for j in range(self.num_columns)
        ]

    def tile(self, rows: Val, columns: Val, thread: Int, sums: Sequence[Val]) -> list[Val]:
        e = self.e
        row, column = e.udiv(thread, self.across), e.urem(thread, self.across)
        rows = e.shared_gep(rows, e.mul(row, PITCH_BYTES))
        columns = e.shared_gep(columns, e.mul(column, PITCH_BYTES))
        lanes = CHUNK_BYTES // self.element.element_bytes
        chunk = self.element.with_lanes(lanes)
        made = list(sums)
        for offset in range(0, ROW_BYTES, CHUNK_BYTES):

            def loaded(base: Val, number: int, apart: int, offset: int = offset) -> list[Val]:
                at = e.shared_gep(base, number * apart * PITCH_BYTES + offset)
                value = e.shared_load(chunk, at, align_bytes=CHUNK_BYTES)
                return [e.extract(value, lane) for lane in range(lanes)]

            left = [loaded(rows, i, self.down) for i in range(self.num_rows)]
            right = [loaded(columns, j, self.across) for j in range(self.num_columns)]
            for lane in range(lanes):
                for i in range(self.num_rows):
                    for j in range(self.num_columns):
                        at = i * self.num_columns + j
                        made[at] = e.fma(left[i][lane], right[j][lane], made[at])
        return made


class _TensorCores(Multiplier):
    """`mma.sync` of 16 rows and 8 columns; a warp has several of both."""

    def __init__(self, e: CudaEmitter, plan: ProductPlan, dtype: DType) -> None:
        super().__init__(e, plan, dtype)
        is_bytes = plan.kind in BYTE_KINDS
        tile = plan.tile
        self.warp_rows, self.warp_columns = tile.rows // tile.warps[0], tile.columns // tile.warps[1]
        self.row_lanes = 4
        self.num_down, self.num_across = self.warp_rows // 16, self.warp_columns // 8
        self.sums = [I32 if is_bytes else FLOAT] * (4 * self.num_down * self.num_across)

    def as_element(self, value: Val) -> Val:
        if self.plan.kind == "tf32" or self.plan.kind in BYTE_KINDS:
            return value
        half = "half" if self.plan.kind == "f16" else "bfloat"
        return self.e.bitcast(self.e.from_float(value, half), I16)

    def as_chunk(self, values: Sequence[Val]) -> Val:
        e = self.e
        if self.plan.kind != "bf16" or values[0].type != FLOAT:
            return super().as_chunk(values)
        chunk = e.zero(vec("i32", CHUNK_BYTES // 4))
        for place in range(0, len(values), 2):  # one instruction rounds two
            pair = e.insert(e.insert(e.zero(vec("float", 2)), values[place], 0), values[place + 1], 1)
            chunk = e.insert(chunk, e.bitcast(e.from_float(pair, "bfloat"), I32), place // 2)
        return chunk

    def _warp(self, thread: Int) -> tuple[Int, Int, Int]:
        """First row and column of a warp, and the lane."""
        e, tile = self.e, self.plan.tile
        warp = e.udiv(thread, WARP)
        return (
            e.mul(e.udiv(warp, tile.warps[1]), self.warp_rows),
            e.mul(e.urem(warp, tile.warps[1]), self.warp_columns),
            e.urem(thread, WARP),
        )

    def places(self, thread: Int) -> list[tuple[int, Int, Int]]:
        e = self.e
        row, column, lane = self._warp(thread)
        row, column = e.add(row, e.udiv(lane, 4)), e.add(column, e.mul(e.urem(lane, 4), 2))
        return [
            (2 * i + half, e.add(row, 16 * i + 8 * half), e.add(column, 8 * j + odd))
            for i in range(self.num_down)
            for j in range(self.num_across)
            for half in (0, 1)
            for odd in (0, 1)
        ]

    def tile(self, rows: Val, columns: Val, thread: Int, sums: Sequence[Val]) -> list[Val]:
        e = self.e
        row, column, lane = self._warp(thread)
        # Lanes give addresses of rows: of the left factor 16, twice; of the right 8, twice, then the next 8.
        row = e.add(row, e.urem(lane, 16))
        chunk = e.udiv(lane, 16)
        rows = e.shared_gep(rows, e.add(e.mul(row, PITCH_BYTES), e.mul(chunk, CHUNK_BYTES)))
        column = e.add(column, e.add(e.urem(lane, 8), e.mul(e.udiv(lane, 16), 8)))
        chunk = e.urem(e.udiv(lane, 8), 2)
        columns = e.shared_gep(columns, e.add(e.mul(column, PITCH_BYTES), e.mul(chunk, CHUNK_BYTES)))
        made = list(sums)
        for offset in range(0, ROW_BYTES, _MMA_BYTES):
            left = [
                e.load_matrix(e.shared_gep(rows, 16 * i * PITCH_BYTES + offset)) for i in range(self.num_down)
            ]
            right: list[Sequence[Val]] = []
            for j in range(self.num_across // 2):
                four = e.load_matrix(e.shared_gep(columns, 16 * j * PITCH_BYTES + offset))
                right += [four[:2], four[2:]]
            for i in range(self.num_down):
                for j in range(self.num_across):
                    at = 4 * (i * self.num_across + j)
                    made[at : at + 4] = e.multiply_matrix(
                        self.plan.kind, left[i], right[j], made[at : at + 4]
                    )
        return made


def multiplier(e: CudaEmitter, plan: ProductPlan, dtype: DType) -> Multiplier:
    """What multiplies in a plan."""
    return _Cores(e, plan, dtype) if plan.kind == "fma" else _TensorCores(e, plan, dtype)
