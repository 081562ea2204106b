"""The least that a subgraph can cost at any granularity and order, from counts of tiles and steps."""

from __future__ import annotations

from collections.abc import Set

from tilewright.contest.problem import ContestProblem
from tilewright.contest.subgraph import FULL, SUM, TILE, Load, Subgraph


def least_steps(problem: ContestProblem, subgraph: Subgraph, depth: int) -> int:
    """The fewest steps of a sum."""
    longest = min(problem.native[2], subgraph.least_depth or problem.native[2])
    return -(-depth // longest)


def least_traffic(
    problem: ContestProblem, subgraph: Subgraph, without: Set[int] = frozenset()
) -> tuple[float, dict[int, float]]:
    """Elements that come in at least, with the largest tiles; also of each tensor that is made elsewhere.

    A slice of a sum of several steps is gone when the next tile begins, so every tile asks for it again; any
    other slice stays as long as tiles of its row or column follow each other. A tensor with several kinds of
    slices counts with the largest kind, or once where it fits the memory: whole, it contains all of them.
    """
    rows = -(-subgraph.height // problem.native[1])
    columns = -(-subgraph.width // problem.native[0])
    by_tensor: dict[int, float] = {}
    by_row = by_column = 0.0
    loads: dict[int, list[Load]] = {}
    for load in subgraph.loads:
        if load.tensor not in without:
            loads.setdefault(load.tensor, []).append(load)
    for tensor, kinds in loads.items():
        size = problem.size(tensor)
        most = size
        is_single = len(kinds) == 1
        if is_single or size > problem.capacity:
            for load in kinds:
                times = 1
                if least_steps(problem, subgraph, load.depth) > 1:
                    times *= columns if load.rows == TILE and load.columns == SUM else 1
                    times *= rows if load.rows == SUM and load.columns == TILE else 1
                    times *= rows * columns if {load.rows, load.columns} == {SUM, FULL} else 1
                elif is_single:
                    by_row += size if load.rows == TILE and load.columns != TILE else 0
                    by_column += size if load.columns == TILE and load.rows != TILE else 0
                most = max(most, times * size)
        by_tensor[tensor] = most
    again = max(0, (rows - 2) * (columns - 2) - 1) * min(by_row / rows, by_column / columns)
    return sum(by_tensor.values()) + again, by_tensor


def least_compute(problem: ContestProblem, subgraph: Subgraph) -> float:
    """Compute time with the fewest tiles and steps."""
    native_w, native_h, _ = problem.native
    num_tiles = -(-subgraph.width // native_w) * -(-subgraph.height // native_h)
    time = 0.0
    for operator, rows, columns, is_root, depth in subgraph.works:
        made = problem.operators[operator]
        times = made.cost
        times *= problem.heights[made.output] / native_h if rows != TILE else 1
        times *= problem.widths[made.output] / native_w if columns != TILE else 1
        is_sliced = SUM in (rows, columns) or (is_root and made.is_product)
        if depth and not is_sliced:
            times *= least_steps(problem, subgraph, depth)
        time += times
    return num_tiles * time


def least_time_of_set(problem: ContestProblem, subgraph: Subgraph) -> float:
    """The least time whatever is resident and retained, as far as the memory holds it."""
    moved, by_tensor = least_traffic(problem, subgraph)
    near: list[tuple[float, int]] = []
    for tensor, elements in by_tensor.items():
        size = problem.size(tensor)
        if tensor in problem.maker and size < problem.capacity:
            near.append((elements, size))
    for tensor in subgraph.sinks:
        size = problem.size(tensor)
        moved += size
        if size < problem.capacity and tensor in problem.users:
            near.append((size, size))
    compute = least_compute(problem, subgraph)
    return max(compute, (moved - _most_saved(near, problem.capacity)) / problem.bandwidth)


def _most_saved(near: list[tuple[float, int]], capacity: int) -> float:
    """Elements saved by what fits, the last one in part: at least what any choice saves."""
    saved, room = 0.0, float(capacity)
    for elements, size in sorted(near, key=lambda x: -x[0] / x[1]):
        part = min(1.0, room / size)
        saved += part * elements
        room -= part * size
        if room <= 0:
            break
    return saved
