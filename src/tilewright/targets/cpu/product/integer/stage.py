"""Copies of A with its padding, line by line, in vectors of bytes.

A line is what lies side by side in both the tensor and the copy: the innermost axis that is padded, or cut,
with everything inside it. Other copies, which also reorder axes, are left to the generic loops.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.nest import Affine, Nest
from tilewright.records import dataclass
from tilewright.targets.cpu.emit.emitter import Emitter, Param
from tilewright.targets.cpu.emit.values import I64, PTR, Int, Val, vec
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import (
    SYMBOL_PLACEHOLDER,
    Kernel,
    Layout,
    Layouts,
    choose_num_chunks,
    name_by_content,
)
from tilewright.targets.cpu.template import operand_bytes, overlapped, transfer_cycles

_FLIP = -128  # the top bit of a byte
_BYTES_PER_OPERATION = 4
# Of a line, whose place is divided and tested; of a vector that is loaded and stored.
_LINE_CYCLES = 20.0
_VECTOR_CYCLES = 1.0


@dataclass(frozen=True, slots=True)
class _Axis:
    """Positions `[low, low + extent)` of an axis of `size` elements; strides in bytes."""

    extent: int
    low: int
    size: int
    source: int
    target: int

    @property
    def leaves(self) -> bool:
        """Whether some positions are padding."""
        return self.low < 0 or self.low + self.extent > self.size


def lower_staging(nest: Nest, layouts: Layouts, isa: Isa) -> tuple[Kernel, ...]:
    """The kernel of a copy that `match_integer` asks for."""
    axes = _axes(nest, layouts)
    if axes is None:
        from tilewright.targets.cpu.loopnest import lower_nests

        layouts = {**layouts, nest.write.operand.key: Layout.row_major(1)}
        return lower_nests((nest,), layouts, isa)
    return (_LineCopy(nest, axes, isa).kernel(),)


def _axes(nest: Nest, layouts: Layouts) -> tuple[_Axis, ...] | None:
    """The axes from outermost to innermost, if the copy keeps the order in which they lie."""
    access = nest.reads[0]
    (written,) = nest.write.index
    assert isinstance(written, Affine)
    strides = layouts[access.operand.key].strides(access.shape)
    extents = nest.extents
    axes: list[_Axis] = []
    for stride, size, index in zip(strides, access.shape, access.index, strict=True):
        assert isinstance(index, Affine)
        dims = index.dims()
        extent = extents[dims[0]] if dims else 1
        axes.append(_Axis(extent, index.offset, size, stride, written.coefficient(dims[0]) if dims else 0))
    ordered = sorted(axes, key=lambda x: (-x.target, -x.source))
    if any(a.source < b.source for a, b in itertools.pairwise(ordered)):
        return None
    return tuple(ordered) if ordered and ordered[-1].source == 1 == ordered[-1].target else None


class _LineCopy:
    """Emits one copy."""

    def __init__(self, nest: Nest, axes: Sequence[_Axis], isa: Isa) -> None:
        self.nest = nest
        self.outer = list(axes)
        line = self.outer.pop()
        # Axes inside the line are taken whole.
        while self.outer and not line.leaves and line.extent == line.size and self._follows(line):
            above = self.outer.pop()
            unit = line.extent
            line = _Axis(above.extent * unit, above.low * unit, above.size * unit, 1, 1)
        self.line = line
        self.num_lines = prod(x.extent for x in self.outer)
        self.emitter = Emitter(attributes=isa.function_attributes)
        self.zero: Val | None = None  # what padding reads as, where that is data
        self.isa = isa
        self.vector_bytes = isa.vector_bytes[0]
        operand = nest.reads[0].operand
        self.flips = operand.dtype is DType.INT8
        fill = nest.reads[0].fill
        self.fill = (int(fill) if fill is not None else 0) + (128 if self.flips else 0)

    def _follows(self, line: _Axis) -> bool:
        above = self.outer[-1]
        return above.source == line.extent * line.source and above.target == line.extent * line.target

    def kernel(self) -> Kernel:
        """The whole kernel."""
        e = self.emitter
        total = self.num_lines * self.line.extent
        num_chunks = choose_num_chunks(self.num_lines, total // _BYTES_PER_OPERATION)
        params = (Param("args", PTR), Param("chunk", I64), Param("scratch", PTR))
        with e.function(SYMBOL_PLACEHOLDER.removeprefix("@"), params) as (block, chunk, _):
            source, target = (e.load(PTR, e.gep(block, 8 * i)) for i in range(2))
            if len(self.nest.reads) > 1:
                self.zero = e.load(vec("i8"), e.load(PTR, e.gep(block, 16)))
            low = e.udiv(e.mul(chunk, self.num_lines), num_chunks)
            high = e.udiv(e.mul(e.add(chunk, 1), self.num_lines), num_chunks)
            e.loop(low, high, 1, lambda number, _: self._line(number, source, target))
        symbol, text = name_by_content(e.text(), "stage")
        return Kernel(
            symbol=symbol,
            text=text,
            num_chunks=num_chunks,
            args=(
                self.nest.reads[0].operand,
                self.nest.write.operand,
                *(r.operand for r in self.nest.reads[1:]),
            ),
            template="integer-stage",
            notes=(f"{self.num_lines} lines of {self.line.extent} bytes",),
            estimate_cycles=self._cycles(),
        )

    def _cycles(self) -> float:
        vectors = -(-self.line.extent // self.vector_bytes)
        copied = self.num_lines * (_LINE_CYCLES + _VECTOR_CYCLES * vectors)
        moved = (operand_bytes(self.nest.reads[0].operand), operand_bytes(self.nest.write.operand))
        return overlapped(copied, transfer_cycles(moved, self.isa))

    def _line(self, number: Int, source: Val, target: Val) -> None:
        e = self.emitter
        rest: Int = number
        to: Int = 0
        at: Int = 0
        inside: list[Val] = []
        for position, x in enumerate(reversed(self.outer)):
            is_outermost = position == len(self.outer) - 1
            index = rest if is_outermost else e.urem(rest, x.extent)
            rest = rest if is_outermost else e.udiv(rest, x.extent)
            to = e.add(to, e.mul(index, x.target))
            place = e.add(index, x.low)
            at = e.add(at, e.mul(place, x.source))
            if x.leaves:
                inside.append(e.icmp("ult", e.index(place), x.size))
        start = e.gep(target, to)
        if not inside:
            self._copy_line(e.gep(source, at), start)
            return
        condition = inside[0]
        for other in inside[1:]:
            condition = e.and_(condition, other)
        e.if_(
            condition,
            lambda: self._copy_line(e.gep(source, at), start),
            lambda: self._fill(start, 0, self.line.extent),
        )

    def _copy_line(self, source: Val, target: Val) -> None:
        """The padding before, what is there, the padding behind."""
        e, line = self.emitter, self.line
        first, last = max(0, -line.low), min(line.extent, line.size - line.low)
        self._fill(target, 0, first)

        def move(offset: Int, size: int) -> None:
            kind = vec("i8", size)
            value = e.load(kind, e.gep(source, e.add(offset, line.low)))
            value = e.xor(value, _FLIP) if self.flips else value
            e.store(value, e.gep(target, offset))

        self._pieces(first, last, move)
        self._fill(target, last, line.extent)

    def _fill(self, target: Val, first: int, last: int) -> None:
        e = self.emitter
        signed = self.fill - 256 if self.fill > 127 else self.fill

        def put(offset: Int, size: int) -> None:
            value = e.constant(vec("i8", size), signed)
            if self.zero is not None:
                value = e.splat(self.zero, size)
                value = e.xor(value, _FLIP) if self.flips else value
            e.store(value, e.gep(target, offset))

        self._pieces(first, last, put)

    def _pieces(self, first: int, last: int, one: Callable[[Int, int], None]) -> None:
        """Cover `[first, last)` with whole vectors, the last of which may overlap, or with small ones."""
        size = self.vector_bytes
        whole, rest = divmod(last - first, size)
        if whole:
            self.emitter.loop(
                0, whole, 1, lambda i, _: one(self.emitter.add(self.emitter.mul(i, size), first), size)
            )
            if rest:
                one(last - size, size)
            return
        while first < last:
            while size > last - first:
                size //= 2
            one(first, size)
            first += size
