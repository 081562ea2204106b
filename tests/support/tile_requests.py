"""Requests for tiles of sums of products, made without a network."""

from __future__ import annotations

from math import prod

from tilewright.loops.problem import Problem, convolution
from tilewright.targets.npu.tiles import Moved, TileRequest

ELEMENT_BYTES = 2
AXES = ("N", "K", "P", "Q")


def request(
    dims: dict[str, int],
    *,
    local_bytes: int,
    shared_bytes: int = 0,
    homes: str = "MMM",
    cores: tuple[int, int, int, int] = (1, 1, 1, 1),
    stride: int = 1,
) -> TileRequest:
    """A convolution whose weights, input and output live in the cores (L), the shared buffer (S) or main
    memory (M); `cores` share the axes of the output."""
    problem = convolution(dims, stride=(stride, stride), name="")
    extents = problem.extents
    shape = tuple(extents[axis] for axis in AXES)
    moved = {
        operand.name: _moved(problem, operand.name, home, shape, cores)
        for operand, home in zip(problem.operands, homes, strict=True)
    }
    return TileRequest(
        (moved["Weights"],),
        (moved["Inputs"],),
        (moved["Outputs"],),
        shape,
        local_bytes,
        shared_bytes,
        problem=problem,
        result_axes=tuple((axis, place) for place, axis in enumerate(AXES)),
        layer="conv",
    )


def _moved(
    problem: Problem, name: str, home: str, shape: tuple[int, ...], cores: tuple[int, int, int, int]
) -> Moved:
    operand = next(o for o in problem.operands if o.name == name)
    size = operand.num_words(problem.extents) * ELEMENT_BYTES
    of_one = tuple(operand.num_words(problem.extents | {axis: 1}) * ELEMENT_BYTES for axis in AXES)
    copies = prod(
        count for count, one, extent in zip(cores, of_one, shape, strict=True) if one == size and extent > 1
    )
    return Moved(size, home == "L", home == "M", copies, of_one, ELEMENT_BYTES, name)
