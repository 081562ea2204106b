"""Copies of A with its padding, line by line, in vectors of bytes.

A line is what lies side by side in both the tensor and the copy: the innermost axis that is padded, or cut,
with everything inside it. Of a loop `a` are the bytes that a step moves in the tensor, `c` those in the copy.
Other copies, which also reorder axes, are left to the generic loops.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.nest import Affine, Nest
from tilewright.targets.cpu.cut import choose_num_chunks
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel, Layout, Layouts
from tilewright.targets.cpu.kernel_function import kernel_function
from tilewright.targets.cpu.product.loops import WindowLoop, digits
from tilewright.targets.cpu.template import operand_bytes, overlapped, transfer_cycles
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Int, Val, vec

_FLIP = -128  # the top bit of a byte
_BYTES_PER_OPERATION = 4
# Of a line, whose place is divided and tested; of a vector that is loaded and stored.
_LINE_CYCLES = 20.0
_VECTOR_CYCLES = 1.0


def lower_staging(nest: Nest, layouts: Layouts, isa: Isa) -> tuple[Kernel, ...]:
    """The kernel of a copy that `match_integer` asks for."""
    axes = _axes(nest, layouts)
    if axes is None:
        from tilewright.targets.cpu.loopnest import lower_nests

        layouts = {**layouts, nest.write.operand.key: Layout.row_major(1)}
        return lower_nests((nest,), layouts, isa)
    return (_LineCopy(nest, axes, isa).kernel(),)


def _axes(nest: Nest, layouts: Layouts) -> tuple[WindowLoop, ...] | None:
    """The axes from outermost to innermost, if the copy keeps the order in which they lie."""
    access = nest.reads[0]
    (written,) = nest.write.index
    assert isinstance(written, Affine)
    strides = layouts[access.operand.key].strides(access.shape)
    extents = nest.extents
    axes: list[WindowLoop] = []
    for stride, size, index in zip(strides, access.shape, access.index, strict=True):
        assert isinstance(index, Affine)
        dims = index.dims()
        extent = extents[dims[0]] if dims else 1
        target = written.coefficient(dims[0]) if dims else 0
        axes.append(WindowLoop(extent, stride, c=target, offset=index.offset, size=size))
    ordered = sorted(axes, key=lambda x: (-x.c, -x.a))
    if any(outer.a < inner.a for outer, inner in itertools.pairwise(ordered)):
        return None
    return tuple(ordered) if ordered and ordered[-1].a == 1 == ordered[-1].c else None


class _LineCopy:
    """Emits one copy."""

    def __init__(self, nest: Nest, axes: Sequence[WindowLoop], isa: Isa) -> None:
        self.nest = nest
        self.outer = list(axes)
        line = self.outer.pop()
        # Axes inside the line are taken whole.
        while (
            self.outer
            and not line.leaves
            and line.extent == line.size
            and line.collapses_into(self.outer[-1])
        ):
            above = self.outer.pop()
            unit = line.extent
            extent, offset, size = (unit * x for x in (above.extent, above.offset, above.size))
            line = WindowLoop(extent, 1, c=1, offset=offset, size=size)
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

    def kernel(self) -> Kernel:
        """The whole kernel."""
        e = self.emitter
        total = self.num_lines * self.line.extent
        num_chunks = choose_num_chunks(self.num_lines, total // _BYTES_PER_OPERATION)
        read, *others = (access.operand for access in self.nest.reads)
        with kernel_function(e, (read, self.nest.write.operand, *others)) as function:
            source, target, *zeros = function.pointers
            if zeros:
                self.zero = e.load(vec("i8"), zeros[0])
            low, high = e.piece(function.chunk, num_chunks, self.num_lines)
            e.loop(low, high, 1, lambda number, _: self._line(number, source, target))
        return function.kernel(
            "stage",
            num_chunks=num_chunks,
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
        to: Int = 0
        at: Int = 0
        inside: list[Val] = []
        for x, index in digits(e, number, self.outer):
            to = e.add(to, e.mul(index, x.c))
            place = e.add(index, x.offset)
            at = e.add(at, e.mul(place, x.a))
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
        first, last = max(0, -line.offset), min(line.extent, line.size - line.offset)
        self._fill(target, 0, first)

        def move(offset: Int, size: int) -> None:
            kind = vec("i8", size)
            value = e.load(kind, e.gep(source, e.add(offset, line.offset)))
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
