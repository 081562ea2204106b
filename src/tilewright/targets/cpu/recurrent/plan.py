"""The plan of a recurrent layer's kernel as text: its steps, the products of each, and what follows them."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Expr, Read
from tilewright.ir.nest import Access, Nest
from tilewright.records import dataclass
from tilewright.targets.cpu.cut import Cut
from tilewright.targets.cpu.kernel import Layout
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.cpu.product.plan import KernelPlan, Strided
from tilewright.targets.cpu.recurrent.match import Before, Phase, StepsProblem
from tilewright.targets.cpu.recurrent.tiling import Tiling
from tilewright.targets.llvm.addresses import Walk, walk

_UNIT, _BLOCK = "unit", "block"


@dataclass(frozen=True, slots=True, eq=False)
class StepsPlan:
    """What a recurrent layer's kernel is generated from. Printed alone: nests say what follows the products.

    In each step the phases of a direction follow one another; the chunks are shares of the units of all
    directions. The first step reads what lies before all others.
    """

    problem: StepsProblem
    tiling: Tiling

    def __str__(self) -> str:
        return "\n  ".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        problem = self.problem
        yield f"{problem.steps} steps along {problem.dim}"
        for number, cell in enumerate(problem.cells):
            for place, phase in enumerate(cell):
                if len(problem.cells) * len(cell) > 1:
                    yield f"direction {number}, phase {place}"
                if phase.state_bytes is not None:
                    nests = phase.state_bytes
                    yield from _bodies((*nests.ranges, *nests.numbers, nests.bytes))
                yield from str(self.product(number, phase)).splitlines()
                if isinstance(phase.state, Before):
                    first = phase.state.first
                    yield "first " + ("zero" if first is None else str(self._strided(first)))
                yield from _bodies(phase.rest)

    def product(self, direction: int, phase: Phase) -> KernelPlan:
        """The product of a phase: sequences by the units of all blocks, in every step."""
        problem, tiling, size = self.problem, self.tiling, self.problem.size
        rows, columns, summed = phase.dims
        bytes_of = phase.state_bytes
        state = phase.state.access if isinstance(phase.state, Before) else problem.place(phase.state)
        a, start = self._walk(state if bytes_of is None else bytes_of.bytes.write)
        weight, layers = phase.weight, phase.weight.operand.shape[1]
        given = () if phase.given is None else (phase.given,)
        begun = [self._walk(access) for access in given]
        units = phase.blocks * size

        def loop(name: str, extent: int, dim: str, times: int = 1, b: int = 0, c: int = 0) -> StridedLoop:
            extras = tuple(steps.get(dim, 0) * times for steps, _ in begun)
            step = 0 if dim == columns else a.get(dim, 0) * times
            return StridedLoop(extent, step, b, c, extras, name)

        init: Expr | None = Read(0, given[0].operand.dtype.compute) if given else None
        is_compact = " of 24 bits" if tiling.is_compact else ""
        return KernelPlan(
            dtype=DType.FLOAT32 if bytes_of is None else DType.INT32,
            dot="fma" if bytes_of is None else tiling.dot.name,
            a=Strided((state if bytes_of is None else bytes_of.bytes.write).operand, start),
            b=Strided(weight.operand, (direction * layers + phase.first_block * size) * size),
            c=Strided(phase.total),
            extras=tuple(
                Strided(access.operand, start) for access, (_, start) in zip(given, begun, strict=True)
            ),
            staging="in place",
            packing="in constant panels of 24 bits" if is_compact else "in constant panels",
            zeros=None,
            vector=loop(_UNIT, size, columns, b=size, c=1),
            row=loop(rows, problem.batch, rows, c=units),
            outer=(
                loop(problem.dim, problem.steps, problem.dim, c=units * problem.batch),
                loop(_BLOCK, phase.blocks, columns, size, size * size, size),
            ),
            summed=(loop(summed, size, summed, b=1),),
            windows=(),
            spread=None,
            max_rows=tiling.rows,
            panels=tiling.panels,
            cut=Cut(len(problem.cells), tiling.num_shares),
            units="directions",
            block_parts=None,
            fetches_ahead=False,
            init=init,
            finish=None if bytes_of is None else bytes_of.product.finish or Acc(DType.INT32),
        )

    def _strided(self, access: Access) -> Strided:
        return Strided(access.operand, self._walk(access)[1])

    def _walk(self, access: Access) -> Walk:
        strides = Layout.row_major(len(access.operand.shape)).strides(access.operand.shape)
        found = walk(access.index, strides)
        assert found is not None
        return found


def _bodies(nests: tuple[Nest, ...]) -> Iterator[str]:
    for nest in nests:
        yield f"then {nest}".replace("\n", " ")
