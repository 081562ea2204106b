"""The constant factor of an integer product, arranged at compile time, and its sums per column.

For each of B's outer positions and each panel, the packed array holds the panel's columns for every word of
the summed steps: four signed bytes, one per step, for each column. Missing steps and columns are zero.
"""

from __future__ import annotations

from math import prod

from tilewright.fields import Signed
from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import (
    STEPS_PER_WORD,
    ColumnSums,
    IntegerWords,
    SignedBytes,
    StepOnes,
    WidenedWords,
    window,
)
from tilewright.targets.cpu.kernel import Packed
from tilewright.targets.cpu.product.contraction.tiling import Panels
from tilewright.targets.cpu.product.integer.match import IntegerProblem
from tilewright.targets.cpu.product.loops import StridedLoop


@dataclass(frozen=True, slots=True, eq=False)
class PackedFactor:
    """Packed bytes, sums per column (times minus A's zero point where that is known), and their strides."""

    bytes: Packed
    sums: Packed
    ones: Packed  # per word a byte of one for each step that exists: multiplied with A they give its sums
    outer_strides: dict[str, int]  # bytes between outer positions
    outer_columns: dict[str, int]  # columns between outer positions in `sums`
    panel_stride: int  # bytes


def pack_factor(problem: IntegerProblem, panels: Panels, *, widened: bool = False) -> PackedFactor:
    """How B and what belongs to it are stored for these panels.

    `widened` words hold one step each, its zero point taken off, instead of four bytes.
    """
    contraction = problem.contraction
    outer: list[StridedLoop] = [x for x in contraction.outer if x.b]
    loops = (*outer, *problem.outer_steps, *problem.run, contraction.vector)
    shape, strides = tuple(x.extent for x in loops), tuple(x.b for x in loops)
    num_outer = prod(x.extent for x in outer)
    runs = prod(x.extent for x in problem.outer_steps)
    padded, width = panels.padded_extent, panels.width
    steps = runs * problem.run_words
    given = SignedBytes(
        window(shape, strides, contraction.b_offset), num_outer, runs, problem.run_length, problem.flips_b
    )
    packed_steps = tuple(map(Signed, problem.packed_steps))
    words = (
        WidenedWords(given, Signed(problem.b_zero), panels.lanes, width)
        if widened
        else IntegerWords(given, packed_steps, panels.lanes, width)
    )
    # Only where A's zero point is a number is it multiplied in now.
    if problem.a_zero_operand is not None:
        sums = ColumnSums(given, panels.lanes, Signed(1), Signed(0))
    else:
        constant = problem.num_steps * problem.a_zero * problem.b_zero
        sums = ColumnSums(given, panels.lanes, Signed(-problem.a_zero), Signed(constant))
    ones = StepOnes(runs, packed_steps)
    source = contraction.b.operand
    outer_strides: dict[str, int] = {}
    outer_columns: dict[str, int] = {}
    positions = 1
    for x in reversed(outer):
        outer_strides[x.name] = positions * steps * padded * STEPS_PER_WORD
        outer_columns[x.name] = positions * padded
        positions *= x.extent
    return PackedFactor(
        Packed(source, words, num_outer * steps * padded * STEPS_PER_WORD),
        Packed(source, sums, 4 * num_outer * padded),
        Packed(source, ones, steps * STEPS_PER_WORD),
        outer_strides,
        outer_columns,
        steps * width * STEPS_PER_WORD,
    )
