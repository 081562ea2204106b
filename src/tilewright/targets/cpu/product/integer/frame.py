"""What kernels of byte products share: arguments, where sums begin, and the kernel around the tiles."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.targets.cpu.arrangements import STEPS_PER_WORD
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel, KernelArg
from tilewright.targets.cpu.product.epilogue import elementwise
from tilewright.targets.cpu.product.frame import Frame, Panel, Position, product_function
from tilewright.targets.cpu.product.integer.match import signed_zero
from tilewright.targets.cpu.product.integer.pack import PackedBytes, pack_factor, unsigned_zero
from tilewright.targets.cpu.product.integer.words import words_of
from tilewright.targets.cpu.product.plan import KernelPlan
from tilewright.targets.cpu.product.walk import TileWalk
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Val, vec


class ByteWalk(TileWalk):
    """Emits the tiles of one kernel of byte products."""

    def __init__(self, frame: Frame, factor: PackedBytes, isa: Isa) -> None:
        super().__init__(frame, factor)
        assert self.plan.zeros is not None
        self.packed, self.isa, self.zeros, self.type = factor, isa, self.plan.zeros, frame.type
        self.words = words_of(self.plan.summed, self.plan.dot)
        self.b_zero = signed_zero(self.zeros, self.plan.b.operand)
        self.pointers = frame.pointers
        self.num_tiles = sum(t.count for t in self.row_tiles)

    def word_bytes(self, panel: Panel) -> int:
        """Bytes of a word of all of a panel's columns."""
        whole = self.plan.packing == "in panels"
        return STEPS_PER_WORD * (self.panels.width if whole else panel.num_vectors * self.panels.lanes)

    def columns_between(self, loop: str) -> int:
        """Columns that a step of an outer loop moves in the sums of B's columns."""
        return self.packed.outer_columns.get(loop, 0)

    def initial(self, num_rows: int, at: Position, panel: Panel) -> list[Val]:
        """The correction for A's zero point, and the nest's own initial value."""
        e, plan, lanes = self.emitter, self.plan, self.panels.lanes
        base = e.gep(self.pointers["sums"], at.sums, "i32")
        start = [e.load(self.type, e.gep(base, 4 * lanes * j)) for j in range(panel.num_vectors)]
        if self.zeros.a_operand is not None:
            value = e.load(vec("i8"), self.pointers["zero"])
            value = e.cast("sext" if self.zeros.a_operand.dtype.is_signed else "zext", value, "i32")
            zero = e.isub(-unsigned_zero(plan), value)
            constant = e.imul(zero, -self.words.num_steps * self.b_zero)
            factor = e.splat(zero, lanes)
            start = [e.iadd(e.imul(s, factor), e.splat(constant, lanes)) for s in start]
        if plan.init is None:
            return start * num_rows
        inits = elementwise(self.frame, plan.init, num_rows, at, panel)
        return [e.iadd(value, start[n % panel.num_vectors]) for n, value in enumerate(inits)]


def byte_kernel(
    plan: KernelPlan,
    isa: Isa,
    walk: Callable[[Frame, PackedBytes, Isa], ByteWalk],
    template: str,
    tile_note: str,
    *,
    scratch_bytes: int = 0,
) -> Kernel:
    """The kernel of a plan whose tiles `walk` emits."""
    assert plan.zeros is not None
    e, factor = Emitter(attributes=isa.function_attributes), pack_factor(plan)
    named: dict[str, KernelArg] = {"sums": factor.sums}
    if plan.zeros.a_operand is not None:
        named["zero"] = plan.zeros.a_operand
    if sums_rows(plan) and factor.ones is not None:
        named["ones"] = factor.ones
    type, has_rows = vec("i32", plan.panels.lanes), plan.row_loop is not None
    with product_function(e, plan, type, factor.arg, named, has_rows=has_rows) as frame:
        num_rows = frame.function.num_rows()
        walk(frame, factor, isa).chunk(frame.function.chunk, num_rows)
    return frame.function.kernel(
        "integer",
        num_chunks=plan.cut.num_chunks,
        scratch_bytes=scratch_bytes,
        template=template,
        macs=plan.num_macs,
        notes=(
            tile_note,
            f"{plan.cut.num_row_parts}x{plan.cut.num_panel_parts} chunks",
            "A in place" if plan.staging == "in place" else "A copied with its padding",
        ),
        plan=plan,
    )


def sums_rows(plan: KernelPlan) -> bool:
    """Whether the sums of A's rows are needed, for B's zero point: by column that is taken off before."""
    assert plan.zeros is not None
    return not plan.dot.endswith("by column") and signed_zero(plan.zeros, plan.b.operand) != 0
