"""The constant factor of an integer product, arranged at compile time, and its sums per column.

For each of B's outer positions and each panel, the packed array holds the panel's columns for every word of
the summed steps: four signed bytes, one per step, for each column. Missing steps and columns are zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.targets.cpu.contraction.match import Loop
from tilewright.targets.cpu.contraction.tiling import Panels
from tilewright.targets.cpu.integer.match import STEPS_PER_WORD, IntegerProblem
from tilewright.targets.cpu.kernel import Packed

Array = np.ndarray[Any, Any]


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
    outer: list[Loop] = [x for x in contraction.outer if x.b]
    loops = (*outer, *problem.outer_steps, *problem.run, contraction.vector)
    shape, strides = tuple(x.extent for x in loops), tuple(x.b for x in loops)
    offset, num_outer = contraction.b_offset, prod(x.extent for x in outer)
    runs, length, words = prod(x.extent for x in problem.outer_steps), problem.run_length, problem.run_words
    extent, padded, width = panels.extent, panels.padded_extent, panels.width
    flips, steps = problem.flips_b, runs * words
    # Where the steps of a run lie among the packed bytes of a column.
    packed = np.array(problem.packed_steps)
    here, there = np.flatnonzero(packed >= 0), packed[packed >= 0]

    def signed(array: Array) -> Array:
        """`[outer, runs, run, columns]` as signed bytes."""
        flat = np.ascontiguousarray(array).reshape(-1)
        view = np.lib.stride_tricks.as_strided(flat[offset:], shape, strides)
        given = view.reshape(num_outer, runs, length, extent)
        return (given ^ 0x80).view(np.int8) if flips else given.view(np.int8)

    def widen(array: Array) -> Array:
        words = np.zeros((num_outer, runs, padded), np.int32)
        words[:, :, :extent] = signed(array)[:, :, 0].astype(np.int32) - problem.b_zero
        panels_first = words.reshape(num_outer, runs, -1, width).swapaxes(1, 2)
        return np.ascontiguousarray(panels_first).reshape(-1).view(np.int8)

    def pack(array: Array) -> Array:
        columns = np.zeros((num_outer, runs, words * STEPS_PER_WORD, padded), np.int8)
        columns[:, :, here, :extent] = signed(array)[:, :, there]
        by_word = columns.reshape(num_outer, steps, STEPS_PER_WORD, padded).swapaxes(2, 3)
        full = panels.num_full * width
        whole = by_word[:, :, :full].reshape(num_outer, steps, -1, width, STEPS_PER_WORD).swapaxes(1, 2)
        pieces = [whole.reshape(num_outer, -1), by_word[:, :, full:].reshape(num_outer, -1)]
        return np.concatenate(pieces, axis=1).reshape(-1)

    # Only where A's zero point is a number is it multiplied in now.
    factor = 1 if problem.a_zero_operand is not None else -problem.a_zero
    constant = problem.num_steps * problem.a_zero * problem.b_zero

    def sums(array: Array) -> Array:
        result = np.zeros((num_outer, padded), np.int64)
        result[:, :extent] = signed(array).sum(axis=(1, 2), dtype=np.int64) * factor
        return (result + (constant if problem.a_zero_operand is None else 0)).astype(np.int32).reshape(-1)

    def ones(array: Array) -> Array:
        result = np.zeros((runs, words * STEPS_PER_WORD), np.int8)
        result[:, here] = 1
        return result.reshape(-1)

    what = f"lanes={panels.lanes} width={width} shape={shape} strides={strides} offset={offset} flip={flips}"
    what += f" zero={problem.b_zero} run={length} steps of {problem.step_bytes}"
    source = contraction.b.operand
    outer_strides: dict[str, int] = {}
    outer_columns: dict[str, int] = {}
    positions = 1
    for x in reversed(outer):
        outer_strides[x.name] = positions * steps * padded * STEPS_PER_WORD
        outer_columns[x.name] = positions * padded
        positions *= x.extent
    return PackedFactor(
        Packed(
            source,
            widen if widened else pack,
            f"{'widened' if widened else 'words'} {what}",
            num_outer * steps * padded * STEPS_PER_WORD,
        ),
        Packed(source, sums, f"sums times {factor} plus {constant} {what}", 4 * num_outer * padded),
        Packed(source, ones, f"ones {what}", steps * STEPS_PER_WORD),
        outer_strides,
        outer_columns,
        steps * width * STEPS_PER_WORD,
    )
