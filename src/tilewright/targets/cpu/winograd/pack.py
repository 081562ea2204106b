"""Weights transformed and arranged at compile time.

The packed array holds, for each panel of output channels, one matrix [input channels][panel width] for each
of the size x size products, in the order in which the kernel multiplies them. Columns behind the last
channel are zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.targets.cpu.contraction.tiling import Panels
from tilewright.targets.cpu.kernel import Packed
from tilewright.targets.cpu.winograd.match import WinogradProblem
from tilewright.targets.cpu.winograd.transform import NUM_TAPS, Transform

Array = np.ndarray[Any, Any]


def pack_weights(problem: WinogradProblem, transform: Transform, panels: Panels) -> Packed:
    """`G g G^T` in float64, rounded once, in panels."""
    shape = (NUM_TAPS, NUM_TAPS, problem.inputs.extent, problem.outputs.extent)
    strides = (
        problem.rows.tap_b,
        problem.columns.tap_b,
        problem.inputs.step.b,
        problem.outputs.step.b,
    )
    offset, lanes, width, extent = problem.b_offset, panels.lanes, panels.width, panels.extent
    factors = transform.weight_2d

    def pack(array: Array) -> Array:
        flat = np.ascontiguousarray(array).reshape(-1)
        view = np.lib.stride_tricks.as_strided(
            flat[offset:], shape, tuple(s * flat.itemsize for s in strides)
        )
        pieces: list[Array] = []
        for start in range(0, extent, width):
            columns = view[..., start : start + width].astype(np.float64)
            missing = -columns.shape[-1] % lanes
            columns = np.pad(columns, ((0, 0), (0, 0), (0, 0), (0, missing)))
            made = factors @ columns.reshape(NUM_TAPS * NUM_TAPS, -1)
            pieces.append(made.astype(np.float32).reshape(-1))
        return np.concatenate(pieces)

    points = ",".join(str(p) for p in transform.pairs)
    signature = (
        f"winograd tile={transform.tile} points={points} lanes={lanes} width={width} "
        f"shape={shape} strides={strides} offset={offset}"
    )
    size_bytes = 4 * transform.size**2 * problem.inputs.extent * panels.padded_extent
    return Packed(problem.contraction.b.operand, pack, signature, size_bytes)
