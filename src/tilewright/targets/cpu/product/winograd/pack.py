"""Weights transformed and arranged for Winograd's products: see `WinogradPanels`."""

from __future__ import annotations

import numpy as np

from tilewright.targets.cpu.arrangements import NUM_TAPS, WinogradPanels, window
from tilewright.targets.cpu.kernel import Packed
from tilewright.targets.cpu.product.contraction.tiling import Panels
from tilewright.targets.cpu.product.winograd.match import WinogradProblem
from tilewright.targets.cpu.product.winograd.transform import Transform


def pack_weights(problem: WinogradProblem, transform: Transform, panels: Panels) -> Packed:
    """The constant factor as the kernel reads it, panels of all groups one behind the other."""
    num_outputs = problem.num_groups * problem.outputs.extent
    shape = (NUM_TAPS, NUM_TAPS, problem.inputs.extent, num_outputs)
    strides = (
        problem.rows.tap_b,
        problem.columns.tap_b,
        problem.inputs.b,
        problem.outputs.b,
    )
    weight = np.array(transform.weight, np.float64).tolist()
    arrangement = WinogradPanels(
        window(shape, strides, problem.b_offset), panels.lanes, panels.width, tuple(map(tuple, weight))
    )
    size_bytes = 4 * transform.size**2 * problem.inputs.extent * panels.padded_extent * problem.num_groups
    return Packed(problem.contraction.b.operand, arrangement, size_bytes)
