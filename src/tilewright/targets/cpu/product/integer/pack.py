"""The constant factor of an integer product, arranged at compile time, and its sums per column.

For each of B's outer positions and each panel, the packed array holds the panel's columns for every word of
the summed steps: four signed bytes, one per step, for each column. Missing steps and columns are zero.
"""

from __future__ import annotations

from dataclasses import field
from math import prod

from tilewright.fields import Signed
from tilewright.ir.dtype import DType
from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import STEPS_PER_WORD, window
from tilewright.targets.cpu.integer_arrangements import (
    ColumnSums,
    IntegerWords,
    SignedBytes,
    StepOnes,
    WidenedWords,
)
from tilewright.targets.cpu.kernel import KernelArg, Packed
from tilewright.targets.cpu.product.frame import Factor
from tilewright.targets.cpu.product.integer.match import signed_zero
from tilewright.targets.cpu.product.integer.words import words_of
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.cpu.product.plan import KernelPlan


@dataclass(frozen=True, slots=True, eq=False)
class PackedBytes(Factor):
    """B packed, and its sums per column, times minus A's zero point where that is known; strides in bytes."""

    sums: KernelArg = field(kw_only=True)
    ones: KernelArg | None = field(
        kw_only=True
    )  # per word a byte of one for each step: times A they give its sums
    outer_columns: dict[str, int] = field(kw_only=True)  # columns between outer positions in `sums`


def packed_bytes(plan: KernelPlan) -> int:
    """Of B, packed."""
    words, panels = words_of(plan.summed, plan.dot), plan.panels
    padded = panels.num_panels * panels.width if plan.packing == "in panels" else panels.padded_extent
    return prod(x.extent for x in plan.outer if x.b) * words.num_words * padded * STEPS_PER_WORD


def pack_factor(plan: KernelPlan) -> PackedBytes:
    """How B and what belongs to it are stored for a plan."""
    assert plan.zeros is not None
    panels, words, source = plan.panels, words_of(plan.summed, plan.dot), plan.b.operand
    outer: list[StridedLoop] = [x for x in plan.outer if x.b]
    loops = (*outer, *plan.summed, plan.vector)
    shape, strides = tuple(x.extent for x in loops), tuple(x.b for x in loops)
    num_outer = prod(x.extent for x in outer)
    in_panels = plan.packing == "in panels"
    padded, width = panels.num_panels * panels.width if in_panels else panels.padded_extent, panels.width
    steps = words.num_words
    outer_strides: dict[str, int] = {}
    outer_columns: dict[str, int] = {}
    positions = 1
    for x in reversed(outer):
        outer_strides[x.name] = positions * steps * padded * STEPS_PER_WORD
        outer_columns[x.name] = positions * padded
        positions *= x.extent
    panel_stride = steps * width * STEPS_PER_WORD
    if in_panels:
        assert plan.zeros.b_sums is not None
        sums = plan.zeros.b_sums
        return PackedBytes(
            source, outer_strides, panel_stride, sums=sums, ones=None, outer_columns=outer_columns
        )
    b_zero = signed_zero(plan.zeros, source)
    flips = source.dtype is DType.UINT8
    given = SignedBytes(
        window(shape, strides, plan.b.offset), num_outer, words.num_runs, words.run_length, flips
    )
    packed_steps = tuple(map(Signed, words.packed_steps))
    # Words by column hold one step each, its zero point taken off, instead of four bytes.
    packed = (
        WidenedWords(given, Signed(b_zero), panels.lanes, width)
        if plan.dot.endswith("by column")
        else IntegerWords(given, packed_steps, panels.lanes, width)
    )
    # Only where A's zero point is a number is it multiplied in now.
    if plan.zeros.a_operand is not None:
        column_sums = ColumnSums(given, panels.lanes, Signed(1), Signed(0))
    else:
        a_zero = unsigned_zero(plan)
        constant = words.num_steps * a_zero * b_zero
        column_sums = ColumnSums(given, panels.lanes, Signed(-a_zero), Signed(constant))
    ones = StepOnes(words.num_runs, packed_steps)
    return PackedBytes(
        Packed(source, packed, packed_bytes(plan)),
        outer_strides,
        panel_stride,
        sums=Packed(source, column_sums, 4 * num_outer * padded),
        ones=Packed(source, ones, steps * STEPS_PER_WORD),
        outer_columns=outer_columns,
    )


def flips_a(plan: KernelPlan) -> bool:
    """Whether A's bytes are signed where the dot takes unsigned ones: their top bit is flipped."""
    return plan.a.operand.dtype is DType.INT8 and plan.dot != "byte tiles"


def unsigned_zero(plan: KernelPlan) -> int:
    """A's zero point as the dot sees its bytes."""
    assert plan.zeros is not None
    return plan.zeros.a + 128 * flips_a(plan)
