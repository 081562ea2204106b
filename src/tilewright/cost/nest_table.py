"""The cost of many mappings at once: the rules of `nest_analysis.py` as loops over arrays, compiled by numba.

For searches that look at hundreds of thousands of mappings of one problem. The readable reference says what
the rules are; a property test holds both together. Transfers between neighbours are the reference's alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.arrays import Array
from tilewright.cost.bound import level_capacities
from tilewright.cost.options import TIMELOOP, CostOptions
from tilewright.errors import UsageError
from tilewright.hardware.machine import Machine, TensorKind
from tilewright.loops.mapping import Mapping
from tilewright.loops.problem import Problem
from tilewright.machine_code import compiled


@dataclass(frozen=True, slots=True)
class Encoded:
    """Mappings as arrays, levels from the innermost, dims in the problem's order.

    `temporal` and `spatial` are factors `[mapping, level, dim]`, `orders` lists the dims of each level's
    temporal loops from the innermost to the outermost, also `[mapping, level, place]`.
    """

    temporal: Array  # int64
    spatial: Array  # int64
    orders: Array  # int64


class Evaluator:
    """One problem on one machine: tables made once, for any number of mappings."""

    def __init__(self, problem: Problem, machine: Machine, cost_options: CostOptions = TIMELOOP) -> None:
        if not self.suits(problem, cost_options):
            raise UsageError(
                f"{problem.name}: transfers between neighbours, first fills left out, multicasts along one "
                "axis, and operands with a dim in two axes or three dims in one, are counted one mapping at "
                "a time; use evaluate."
            )
        self.problem, self.machine = problem, machine
        self.dims = tuple(problem.extents)
        levels = machine.levels
        operands = problem.operands
        shape = (len(operands), len(self.dims))
        # The axis along which a dim moves an operand (-1: it does not), how far, the other dim of that axis.
        self.axis_of, self.partners = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
        self.steps = np.zeros(shape, np.int64)
        for t, operand in enumerate(operands):
            for axis, terms in enumerate(operand.axes):
                indices = [self.dims.index(dim) for dim, _ in terms]
                for dim, (_, step) in zip(indices, terms, strict=True):
                    self.axis_of[t, dim], self.steps[t, dim] = axis, step
                    self.partners[t, dim] = next((other for other in indices if other != dim), -1)
        self.num_axes = max(1, *(len(o.axes) for o in operands))
        self.keeps = np.array([[o.kind in level.holds for level in levels] for o in operands])
        self.is_output = np.array([o.kind is TensorKind.OUTPUT for o in operands])
        self.capacities = _capacities(problem, machine, cost_options)
        self.fan_outs = np.array([machine.fan_out(n) for n in range(len(levels))], np.int64)
        self.energies = np.array([_energies(machine, n) for n in range(len(levels))], np.float64)
        self.rates = np.array([_rates(machine, n) for n in range(len(levels))], np.float64)
        self.shared_ports = np.array([level.has_shared_port for level in levels])
        self.extents = np.array([problem.extents[d] for d in self.dims], np.int64)
        self.mac_pj = machine.mac_pj
        self.skips_pixels = cost_options.skips_pixels

    @staticmethod
    def suits(problem: Problem, cost_options: CostOptions = TIMELOOP) -> bool:
        """Whether the tables can say what the reference says of this problem."""
        for operand in problem.operands:
            dims = [dim for axis in operand.axes for dim, _ in axis]
            if len(set(dims)) < len(dims) or any(len(axis) > 2 for axis in operand.axes):
                return False
        only_there = (
            cost_options.link_transfers,
            cost_options.elides_first_fills,
            cost_options.multicasts_per_axis,
        )
        return not any(only_there)

    def encode(self, mappings: Sequence[Mapping]) -> Encoded:
        """Mappings with at most one temporal loop of each dim at a level as arrays.

        Raises:
            UsageError: a level has two temporal loops of a dim, or there is no such level or dim.
        """
        shape = (len(mappings), len(self.machine.levels), len(self.dims))
        temporal, spatial = np.ones(shape, np.int64), np.ones(shape, np.int64)
        orders = np.empty(shape, np.int64)
        names = [level.name for level in self.machine.levels]
        for number, mapping in enumerate(mappings):
            seen: dict[int, list[int]] = {level: [] for level in range(len(names))}
            for loops, kind, loop in mapping.loops():
                if loops.level not in names or loop.dim not in self.dims:
                    raise UsageError(f"mapping of {self.problem.name}: no level {loops.level} or {loop.dim}.")
                level, dim = names.index(loops.level), self.dims.index(loop.dim)
                if kind == "spatial":
                    spatial[number, level, dim] *= loop.factor
                elif loop.factor > 1:
                    if dim in seen[level]:
                        raise UsageError(
                            f"mapping of {self.problem.name}: two loops of {loop.dim} at {loops.level}."
                        )
                    temporal[number, level, dim] = loop.factor
                    seen[level].insert(0, dim)
            for level, order in seen.items():
                orders[number, level] = [*order, *(d for d in range(len(self.dims)) if d not in order)]
        return Encoded(temporal, spatial, orders)

    def evaluate(self, encoded: Encoded) -> tuple[Array, Array]:
        """(Cycles, energy in pJ) of each mapping, float64 `[mapping]`; infinite where it is not legal."""
        cycles = np.empty(len(encoded.temporal))
        energy_pj = np.empty(len(encoded.temporal))
        _evaluate_all(
            encoded.temporal, encoded.spatial, encoded.orders, self.extents, self.axis_of, self.steps,
            self.partners, self.num_axes, self.keeps, self.is_output, self.capacities, self.fan_outs,
            self.energies, self.rates, self.shared_ports, self.mac_pj, self.skips_pixels, cycles, energy_pj,
        )  # fmt: skip
        return cycles, energy_pj


def _capacities(problem: Problem, machine: Machine, cost_options: CostOptions) -> Array:
    """Rows of level, words, then for each operand how often it is counted: what bounds the tiles of a
    level."""
    rows: list[list[int]] = []
    for number, level in enumerate(machine.levels):
        for kinds, words, _ in level_capacities(machine, level, cost_options):
            copies = (o.copies if number == 0 else 1 for o in problem.operands)
            counted = (c if o.kind in kinds else 0 for o, c in zip(problem.operands, copies, strict=True))
            rows.append([number, words, *counted])
    return np.array(rows, np.int64).reshape(-1, 2 + len(problem.operands))


def _energies(machine: Machine, number: int) -> tuple[float, ...]:
    """Energy of a read and of a write, words of an access, instances that accesses are charged for."""
    level = machine.levels[number]
    charged = machine.num_instances(level) / level.num_instances_per_access
    return level.read_access_pj, level.write_access_pj, float(level.words_per_access), charged


def _rates(machine: Machine, number: int) -> tuple[float, float]:
    """Words per cycle read and written; infinite without a limit."""
    level = machine.levels[number]
    rates = machine.read_bytes_per_cycle(level), machine.write_bytes_per_cycle(level)
    read, write = (np.inf if r is None else r * 8 / level.word_bits for r in rates)
    return read, write


@compiled
def distinct_positions(count_a: int, move_a: int, count_b: int, move_b: int) -> int:
    """Different sums of i * move_a and j * move_b, as `bound.num_touched` counts them."""
    if count_a == 1 or count_b == 1:
        return count_a * count_b
    common, rest = move_a, move_b
    while rest:
        common, rest = rest, common % rest
    again_a, again_b = count_a - move_b // common, count_b - move_a // common
    repeats = again_a * again_b if again_a > 0 and again_b > 0 else 0
    return count_a * count_b - repeats


@compiled
def new_positions(
    count_a: int, move_a: int, count_b: int, move_b: int, shift: int, skips_pixels: bool
) -> tuple[float, float]:
    """(Positions of a shifted tile that are not in the tile, positions of it) along an axis with two terms.

    Without `skips_pixels` all positions between the first and the last are the tile's.
    """
    if not skips_pixels:
        extent = 1.0 + move_a * (count_a - 1) + move_b * (count_b - 1)
        return min(float(shift), extent), extent
    if count_a < count_b:
        count_a, move_a, count_b, move_b = count_b, move_b, count_a, move_a
    # Rows of positions a step of the longer index apart, of either tile: remainder, place, and which tile in
    # one number. Inserted in order, as a sort is slow to compile.
    most = ((count_b - 1) * move_b + shift) // move_a + 1
    rows = np.empty(2 * count_b, np.int64)
    for index in range(count_b):
        for moved in range(2):
            offset = index * move_b + moved * shift
            row = 2 * ((offset % move_a) * most + offset // move_a) + moved
            at = 2 * index + moved
            while at > 0 and rows[at - 1] > row:
                rows[at] = rows[at - 1]
                at -= 1
            rows[at] = row
    new, together = 0.0, 0.0
    remainder, end_own, end_both = -1, 0, 0
    for at in range(rows.size):
        place, moved = rows[at] // 2, rows[at] % 2
        if place // most != remainder:
            remainder, end_own, end_both = place // most, -1, -1
        start = place % most
        stop = start + count_a
        together += stop - max(start, end_both)
        end_both = max(end_both, stop)
        if moved == 0:
            new += stop - max(start, end_own)
            end_own = max(end_own, stop)
    return together - new, new


@compiled
def _box(
    t: int,
    axis_of: Array,
    steps: Array,
    partners: Array,
    tiles: Array,
    row: int,
    skips_pixels: bool,
    box: Array,
) -> float:
    """Words of a tensor that the tile in a row of `tiles` touches; `box` receives its extents."""
    box[:] = 1
    for dim in range(tiles.shape[1]):
        axis, count = axis_of[t, dim], tiles[row, dim]
        if axis < 0 or count == 1:
            continue
        other = partners[t, dim]
        if not skips_pixels:
            box[axis] += steps[t, dim] * (count - 1)
        elif other < 0 or tiles[row, other] == 1:
            box[axis] = count
        elif dim < other:
            box[axis] = distinct_positions(count, steps[t, dim], tiles[row, other], steps[t, other])
    words = 1.0
    for axis in range(box.size):
        words *= box[axis]
    return words


@compiled
def _distinct(
    t: int, m: int, level: int, axis_of: Array, steps: Array, partners: Array, spatial: Array, tiles: Array
) -> float:
    """Different tiles among the instances that the spatial loops of a level tell apart."""
    num_touched = 1.0
    for dim in range(tiles.shape[1]):
        factor = spatial[m, level, dim]
        if factor == 1 or axis_of[t, dim] < 0:
            continue
        other = partners[t, dim]
        if other < 0 or spatial[m, level, other] == 1:
            num_touched *= factor
        elif dim < other:
            num_touched *= distinct_positions(
                factor,
                steps[t, dim] * tiles[level, dim],
                spatial[m, level, other],
                steps[t, other] * tiles[level, other],
            )
    return num_touched


@compiled
def _fills(
    t: int, level: int, factors: Array, axes: Array, moves: Array, dims: Array, first: int, num_loops: int,
    steps: Array, partners: Array, tiles: Array, skips_pixels: bool, words: float, end: Array,
) -> float:  # fmt: skip
    """Words that enter while the loops from `first` on run, each of which moves the tile along one axis.

    As in the reference every loop's second iteration stands for the following ones. Between two steps of
    outer loops the innermost one steps at least once, and always finds that the tile moved as before, or that
    no move is known. So what counts is whether an outer loop's step moves the tile as the innermost one does.
    """
    if first == num_loops:
        return words
    inner_axis, inner = axes[first], moves[first]
    num_tiles = float(factors[first])
    num_whole = 1.0
    end[:] = 0
    num_moved = 0  # axes along which the end is not the start
    if inner != 0:
        end[inner_axis] = inner
        num_moved = 1
    for loop in range(first + 1, num_loops):
        axis, move = axes[loop], moves[loop]
        # The way from the end of one iteration to the start of the next, and along how many axes.
        distance = move - end[axis] if move != 0 else 0
        along = num_moved - (1 if move != 0 and end[axis] != 0 else 0) + (1 if distance != 0 else 0)
        repeats = along == 0 if inner == 0 else along == 1 and axis == inner_axis and distance == inner
        num_whole = num_whole * factors[loop] - (factors[loop] - 1.0 if repeats else 0.0)
        num_tiles *= factors[loop]
        if move != 0:
            if end[axis] == 0:
                num_moved += 1
            end[axis] += move
    if inner == 0:
        return float(num_whole * words)
    dim = dims[first]
    other = partners[t, dim]
    count, step = (1, 1) if other < 0 else (tiles[level, other], steps[t, other])
    new, extent = new_positions(tiles[level, dim], steps[t, dim], count, step, inner, skips_pixels)
    return float(num_whole * words + (num_tiles - num_whole) * (words / extent * new))


@compiled
def _evaluate_all(
    temporal: Array, spatial: Array, orders: Array, extents: Array, axis_of: Array, steps: Array,
    partners: Array, num_axes: int, keeps: Array, is_output: Array, capacities: Array, fan_outs: Array,
    energies: Array, rates: Array, shared_ports: Array, mac_pj: float, skips_pixels: bool,
    cycles: Array, energy_pj: Array,
) -> None:  # fmt: skip
    num_mappings, num_levels, num_dims = temporal.shape
    num_operands = axis_of.shape[0]
    tiles = np.empty(
        (num_levels + 1, num_dims), np.int64
    )  # tiles[n]: of level n - 1; of a compute unit first
    shared_tile = np.empty((1, num_dims), np.int64)
    used = np.empty(num_levels + 1)  # used[n]: instances of level n - 1
    is_spread = np.empty(num_levels, np.bool_)
    words_of = np.empty((num_operands, num_levels + 1))
    box = np.empty(num_axes, np.int64)
    loop_dims = np.empty(num_levels * num_dims, np.int64)
    factors = np.empty(num_levels * num_dims, np.int64)
    distances = np.empty(num_levels * num_dims, np.int64)
    axes, moves = np.empty_like(factors), np.empty_like(factors)
    first_loop = np.empty(num_levels + 1, np.int64)  # first_loop[n]: the first one of level n
    end = np.empty(num_axes, np.int64)
    reads_of, writes_of = np.empty(num_levels), np.empty(num_levels)
    for m in range(num_mappings):
        cycles[m] = energy_pj[m] = np.inf
        tiles[0] = 1
        compute = macs = 1.0
        is_legal = True
        num_loops = 0
        for level in range(num_levels):
            asked = 1
            for dim in range(num_dims):
                side = spatial[m, level, dim]
                tiles[level + 1, dim] = tiles[level, dim] * side
                asked *= side
            is_spread[level] = asked > 1
            macs *= asked
            is_legal &= asked <= fan_outs[level]
            first_loop[level] = num_loops
            for place in range(num_dims):
                dim = orders[m, level, place]
                factor = temporal[m, level, dim]
                if factor == 1:
                    continue
                loop_dims[num_loops], factors[num_loops] = dim, factor
                distances[num_loops] = tiles[level + 1, dim]
                num_loops += 1
                tiles[level + 1, dim] *= factor
                compute *= factor
        first_loop[num_levels] = num_loops
        macs *= compute
        for dim in range(num_dims):
            is_legal &= tiles[num_levels, dim] >= extents[dim]
        if not is_legal:
            continue
        for t in range(num_operands):
            for level in range(num_levels):
                if keeps[t, level] or is_output[t]:
                    words_of[t, level + 1] = _box(
                        t, axis_of, steps, partners, tiles, level + 1, skips_pixels, box
                    )
        for row in range(capacities.shape[0]):
            needed = 0.0
            for t in range(num_operands):
                if capacities[row, 2 + t]:
                    needed += capacities[row, 2 + t] * words_of[t, capacities[row, 0] + 1]
            is_legal &= needed <= capacities[row, 1]
        if not is_legal:
            continue
        used[num_levels] = 1.0
        for level in range(num_levels - 1, -1, -1):
            used[level] = used[level + 1]
            if is_spread[level]:
                for dim in range(num_dims):
                    used[level] *= spatial[m, level, dim]
        total_pj = macs * mac_pj
        reads_of[:] = 0.0
        writes_of[:] = 0.0
        for t in range(num_operands):
            for loop in range(num_loops):
                axes[loop] = axis_of[t, loop_dims[loop]]
                moves[loop] = 0 if axes[loop] < 0 else steps[t, loop_dims[loop]] * distances[loop]
            # From the inside out: what each kept level gives to the one inside it.
            entering = compute
            between = 1.0
            for level in range(num_levels):
                if is_spread[level]:
                    between *= _distinct(t, m, level, axis_of, steps, partners, spatial, tiles)
                if not keeps[t, level]:
                    continue
                accesses = entering * between
                between = 1.0
                fills = 0.0
                if level < num_levels - 1:
                    fills = entering = _fills(
                        t, level + 1, factors, axes, moves, loop_dims, first_loop[level + 1], num_loops,
                        steps, partners, tiles, skips_pixels, words_of[t, level + 1], end,
                    )  # fmt: skip
                reads, updates = accesses, 0.0
                if is_output[t]:
                    updates = accesses
                    partition = words_of[t, num_levels]
                    for outer in range(num_levels - 1, level, -1):
                        if is_spread[outer]:
                            for dim in range(num_dims):
                                shared_tile[0, dim] = tiles[outer, dim] * spatial[m, outer, dim]
                            shared = _box(t, axis_of, steps, partners, shared_tile, 0, skips_pixels, box)
                            partition = np.floor(partition * words_of[t, outer] / shared)
                    reads = max(0.0, accesses - partition)
                reads_of[level] += reads / compute
                writes_of[level] += (fills + updates) / compute
                read_pj, write_pj, block, charged = energies[level]
                read = np.ceil(reads / block) * read_pj
                written = np.ceil(fills / block) * write_pj
                if is_output[t]:
                    written += np.ceil(updates / block) * write_pj
                total_pj += (read + written) * min(used[level + 1], charged)
        slowest = compute
        for level in range(num_levels):
            read_share = write_share = np.inf
            if rates[level, 0] < np.inf and reads_of[level] > 0:
                read_share = rates[level, 0] / reads_of[level]
            if rates[level, 1] < np.inf and writes_of[level] > 0:
                write_share = rates[level, 1] / writes_of[level]
            share = min(read_share, write_share)
            if shared_ports[level] and read_share < np.inf and write_share < np.inf:
                share = 1 / (1 / read_share + 1 / write_share)
            if share < 1.0:
                slowest = max(slowest, np.ceil(compute / share))
        cycles[m] = slowest
        energy_pj[m] = total_pj
