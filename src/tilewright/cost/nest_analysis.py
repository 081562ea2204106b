"""What a mapping costs on a described machine, counted by Timeloop's rules: the readable reference.

Loops run from the outermost level's temporal loops inwards; the spatial loops of a level spread over
instances of the next inner one. The rules are those of Timeloop's nest analysis (commit 019f107), which CoSA
is judged by; the comments number them as `docs/mapping.md` does. What users may want otherwise is in
`CostOptions`.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from itertools import product as cartesian
from math import ceil, prod

from tilewright.cost.bound import level_capacities, listed, num_mac_units, num_touched, relaxation
from tilewright.cost.count import Cost, LevelCount, TensorCount
from tilewright.cost.link_transfers import Linked, linked
from tilewright.cost.options import TIMELOOP, CostOptions
from tilewright.errors import InfeasibleMapping, MachineError, UsageError
from tilewright.hardware.machine import Level, Machine, TensorKind
from tilewright.loops.mapping import Loop, Mapping, joined
from tilewright.loops.problem import Operand, Problem

Shift = tuple[int, ...]  # elements along each axis of a tensor


def evaluate(
    problem: Problem, machine: Machine, mapping: Mapping, cost_options: CostOptions = TIMELOOP
) -> Cost:
    """The estimated cost of a mapping.

    Raises:
        UsageError: loops of unknown dims or levels, or factors that do not cover the problem.
        InfeasibleMapping: tiles that do not fit a level, or more instances than there are; says by how much.
    """
    nest = _Nest.of(problem, machine, mapping)
    nest.check(cost_options)
    compute = prod(loop.factor for level in nest.levels for loop in level.temporal)
    used = nest.num_used(len(nest.levels))
    counts = {o.name: _count(o, nest, cost_options) for o in problem.operands}
    levels: list[LevelCount] = []
    for number, level in enumerate(nest.levels):
        tensors = {name: by_level[number] for name, by_level in counts.items() if number in by_level}
        throttling = _throttling(level.level, machine, tensors, compute)
        levels.append(
            LevelCount(
                level.level.name, tensors, ceil(compute / throttling), throttling, level.level.read_access_pj
            )
        )
    mac_pj = machine.mac_pj
    macs = prod(loop.factor for level in nest.levels for loop in (*level.temporal, *level.spatial))
    energy = macs * mac_pj + sum(t.energy_pj for level in levels for t in level.tensors.values())
    cycles = max([compute, *(level.cycles for level in levels)])
    return Cost(
        cycles=cycles,
        compute_cycles=compute,
        energy_pj=energy,
        mac_energy_pj=macs * mac_pj,
        num_units_used=used,
        utilization=problem.num_macs / (num_mac_units(machine) * cycles),
        levels=tuple(levels),
    )


@dataclass(frozen=True, slots=True)
class _Level:
    """A level with its loops, each list from the outermost to the innermost."""

    level: Level
    temporal: tuple[Loop, ...]
    spatial: tuple[Loop, ...]
    num_charged: float  # instances that an access is charged for at most


@dataclass(frozen=True, slots=True)
class _Nest:
    """A mapping laid onto a machine: levels outermost first, and the tile of each by dim."""

    problem: Problem
    machine: Machine
    levels: tuple[_Level, ...]
    tiles: tuple[MappingOf[str, int], ...]
    _boxes: dict[tuple[str, int], Shift] = field(init=False, default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, machine: Machine, mapping: Mapping) -> _Nest:
        """The nest; factors of 1 are left out, neighbouring temporal loops of a dim at a level are one."""
        given = {loops.level: loops for loops in mapping.levels}
        known = [level.name for level in machine.levels]
        for name in given:
            if name not in known:
                machine.level(name)
        for _, _, loop in mapping.loops():
            if loop.dim not in problem.extents:
                dims = ", ".join(problem.extents)
                raise UsageError(f"mapping of {problem.name}: there is no dim {loop.dim!r}; it has {dims}.")
            if loop.factor < 1:
                raise UsageError(f"mapping of {problem.name}: a factor of {loop.factor} for {loop.dim}.")
        levels = []
        for level in reversed(machine.levels):
            loops = given.get(level.name)
            temporal, spatial = ((), ()) if loops is None else (loops.temporal, loops.spatial)
            charged = machine.num_instances(level) / level.num_instances_per_access
            levels.append(_Level(level, joined(temporal), tuple(x for x in spatial if x.factor > 1), charged))
        tiles: list[dict[str, int]] = []
        tile = dict.fromkeys(problem.extents, 1)
        for laid in reversed(levels):
            for loop in (*laid.temporal, *laid.spatial):
                tile[loop.dim] *= loop.factor
            tiles.append(dict(tile))
        return cls(problem, machine, tuple(levels), tuple(reversed(tiles)))

    def num_used(self, number: int) -> int:
        """Instances of a level that work: those that the spatial loops of all outer levels name.

        With the number of levels, compute units.
        """
        return prod(loop.factor for level in self.levels[:number] for loop in level.spatial)

    def check(self, cost_options: CostOptions) -> None:
        """Raise what makes the mapping impossible: first of all the innermost level that does."""
        extents = self.problem.extents
        for dim, extent in extents.items():
            if self.tiles[0][dim] < extent:
                raise UsageError(
                    f"mapping of {self.problem.name}: factors of {dim} give {self.tiles[0][dim]} "
                    f"of {extent}; multiply one by {-(-extent // self.tiles[0][dim])}."
                )
        for number in reversed(range(len(self.levels))):
            level = self.levels[number].level
            fan_out = self.fan_out(number)
            asked = prod(loop.factor for loop in self.levels[number].spatial)
            if asked > fan_out:
                raise InfeasibleMapping(
                    f"level {level.name}: spatial loops ask for {asked} instances, there are {fan_out}."
                )
            self._check_capacity(number, cost_options)

    def fan_out(self, number: int) -> int:
        """Instances of the next inner level, or compute units, that one instance feeds."""
        return self.machine.fan_out(len(self.levels) - 1 - number)

    def _check_capacity(self, number: int, cost_options: CostOptions) -> None:
        level = self.levels[number].level
        held = [o for o in self.problem.operands if o.kind in level.holds]
        words = {o: self.tile_words(o, number, cost_options) for o in held}
        for kinds, available, halves in level_capacities(self.machine, level, cost_options):
            inside = [o for o in held if o.kind in kinds]
            needed = sum(words[o] for o in inside)
            if needed > available:
                largest = max(inside, key=lambda o: words[o])
                names = listed(o.name for o in inside)
                need_bytes = -(-needed * halves * level.word_bits // 8)
                other = "take a smaller tile" if number else "leave capacity_bytes out"
                raise InfeasibleMapping(
                    f"level {level.name}: {names} need {needed} words, there are {available}; most is "
                    f"{largest.name} with {words[largest]}. Give {relaxation(level, kinds, need_bytes)}, "
                    f"or {other}."
                )

    def tile_words(self, operand: Operand, number: int, cost_options: CostOptions) -> int:
        """Words of a tensor that one instance of a level holds at a time (rule 1)."""
        copies = operand.copies if number == len(self.levels) - 1 else 1
        return copies * prod(self.box_at(operand, number, cost_options))

    def box(self, operand: Operand, tile: MappingOf[str, int], cost_options: CostOptions) -> Shift:
        """Extents of a tile of a tensor; with `skips_pixels` without what a stride jumps over."""
        if not cost_options.skips_pixels:
            return operand.box(tile)
        return tuple(num_touched(axis, tile) for axis in operand.axes)

    def box_at(self, operand: Operand, number: int, cost_options: CostOptions) -> Shift:
        """Extents of the tile of a tensor at a level, of whichever kind of the two all calls count."""
        key = operand.name, number
        if key not in self._boxes:
            self._boxes[key] = self.box(operand, self.tiles[number], cost_options)
        return self._boxes[key]

    def new_words(self, operand: Operand, number: int, move: Shift, cost_options: CostOptions) -> int:
        """Words of a tile that were not in the tile it moved from."""
        box = self.box_at(operand, number, cost_options)
        moved = [axis for axis, distance in enumerate(move) if distance]
        if not moved:
            return 0
        if len(moved) > 1:
            return prod(box)
        (axis,) = moved
        new = min(abs(move[axis]), box[axis])
        if cost_options.skips_pixels:
            both = (*operand.axes[axis], ("", abs(move[axis])))  # as a dim without a name, of two
            new = num_touched(both, {**self.tiles[number], "": 2}) - box[axis]
        return prod(box) // box[axis] * new

    def temporal_above(self, operand: Operand, number: int) -> list[tuple[int, Shift]]:
        """Temporal loops outside a level, innermost first: iterations, and how far one moves the tile."""
        shifts: list[tuple[int, Shift]] = []
        inner = dict(self.tiles[number])
        for outer in reversed(range(number)):
            for loop in reversed(self.levels[outer].spatial):
                inner[loop.dim] *= loop.factor
            for loop in reversed(self.levels[outer].temporal):
                shifts.append((loop.factor, _shift(operand, loop.dim, inner[loop.dim])))
                inner[loop.dim] *= loop.factor
        return shifts

    def distinct_boxes(self, operand: Operand, number: int, cost_options: CostOptions) -> int:
        """Different tiles of the next inner level among the instances that one instance feeds (rule 3).

        With `multicasts_per_axis` tiles that are equal across two dims, as those of a diagonal, count apart.
        """
        if not self.levels[number].spatial:
            return 1
        below = self.tiles[number + 1] if number + 1 < len(self.tiles) else dict.fromkeys(self.tiles[0], 1)
        factors: dict[str, int] = {}
        for loop in self.levels[number].spatial:
            factors[loop.dim] = factors.get(loop.dim, 1) * loop.factor
        total = 1
        for axis in operand.axes:
            spread = [(factors[dim], step * below[dim]) for dim, step in axis if dim in factors]
            if len(spread) < 2 or cost_options.multicasts_per_axis:
                total *= prod(factor for factor, _ in spread)
            else:
                offsets = (range(0, factor * move, move) for factor, move in spread)
                total *= len({sum(positions) for positions in cartesian(*offsets)})
        return total

    def positions(self, operand: Operand, number: int) -> list[Shift]:
        """Where the tiles lie of the instances that one instance feeds, in the order in which they stand."""
        reached: list[Shift] = [(0,) * len(operand.axes)]
        inner = dict(self.tiles[number + 1])
        for loop in reversed(self.levels[number].spatial):
            move = _shift(operand, loop.dim, inner[loop.dim])
            reached = [
                tuple(p + i * m for p, m in zip(position, move, strict=True))
                for i in range(loop.factor)
                for position in reached
            ]
            inner[loop.dim] *= loop.factor
        return reached

    def partitions(self, operand: Operand, cost_options: CostOptions) -> list[int]:
        """Words of a tensor that are one instance's own, of every level (rule 5)."""
        words = [prod(self.box_at(operand, 0, cost_options))]
        for outer, laid in enumerate(self.levels[:-1]):
            own = words[-1]
            if laid.spatial:
                spread = dict(self.tiles[outer + 1])
                for loop in laid.spatial:
                    spread[loop.dim] *= loop.factor
                own *= prod(self.box_at(operand, outer + 1, cost_options))
                own //= prod(self.box(operand, spread, cost_options))
            words.append(own)
        return words


def _shift(operand: Operand, dim: str, distance: int) -> Shift:
    return tuple(sum(step * distance for d, step in axis if d == dim) for axis in operand.axes)


def _count(operand: Operand, nest: _Nest, cost_options: CostOptions) -> dict[int, TensorCount]:
    """Counts of one tensor at every level that holds it, by the level's number."""
    kept = [n for n, level in enumerate(nest.levels) if operand.kind in level.level.holds]
    if not kept or kept[0] != 0:
        outermost = nest.levels[0].level.name
        raise MachineError(f"level {outermost}: the outermost level must hold {operand.kind}.")
    # Words that enter one instance; of compute units, one for every iteration (rule 2).
    entering = {n: _fills(operand, nest, n, cost_options) for n in kept}
    num_levels = len(nest.levels)
    entering[num_levels] = prod(loop.factor for level in nest.levels for loop in level.temporal)
    counts: dict[int, TensorCount] = {}
    from_peers = dict.fromkeys(kept, 0)
    partitions = nest.partitions(operand, cost_options)
    for place, number in enumerate(kept):
        child = kept[place + 1] if place + 1 < len(kept) else num_levels
        accesses = entering[child]
        for between in range(number, child):
            accesses *= nest.distinct_boxes(operand, between, cost_options)
        if cost_options.link_transfers and child < num_levels and nest.levels[child - 1].spatial:
            linked = _linked(operand, nest, child, cost_options)
            if linked.sent:
                # Averages over the instances, as Timeloop rounds them.
                per_parent = prod(loop.factor for loop in nest.levels[child - 1].spatial)
                used = nest.num_used(child)
                from_peers[child] = (2 * linked.sent + used) // (2 * used)
                entering[child] = (linked.sent + linked.received) // per_parent
                accesses = linked.accesses
                for between in range(number, child - 1):
                    accesses *= nest.distinct_boxes(operand, between, cost_options)
        is_output = operand.kind is TensorKind.OUTPUT
        partition = partitions[number]
        reductions = max(0, accesses - partition) if is_output else 0
        reads = (reductions if is_output else accesses) + from_peers[number]
        updates = accesses if is_output else 0
        fills = 0 if number == 0 else entering[number]
        if is_output and cost_options.elides_first_fills:
            fills = max(0, fills - partition)
        used = nest.num_used(number)
        counts[number] = TensorCount(
            tile_words=nest.tile_words(operand, number, cost_options),
            partition_words=partition,
            num_instances=used,
            reads=reads,
            updates=updates,
            fills=fills,
            temporal_reductions=reductions,
            energy_pj=_energy_pj(nest.levels[number], reads, updates, fills, used),
            fill_energy_pj=_energy_pj(nest.levels[number], 0, 0, fills, used),
        )
    return counts


def _linked(operand: Operand, nest: _Nest, number: int, cost_options: CostOptions) -> Linked:
    """What one instance of the level around a level gives to those that it feeds, with links."""
    return linked(
        nest.box_at(operand, number, cost_options),
        nest.temporal_above(operand, number),
        nest.positions(operand, number - 1),
    )


def _fills(operand: Operand, nest: _Nest, number: int, cost_options: CostOptions) -> int:
    """Words that enter one instance of a level while the loops outside it run (rule 2).

    The first tile enters whole. Of a later one only what the last tile lacks, if the tile has moved as it
    moved before, or has not moved before; otherwise all of it, and the move is forgotten. Tiles that moved
    along several axes share nothing. Every loop's second iteration stands for the following ones.
    """
    box = nest.box_at(operand, number, cost_options)
    whole = prod(box)
    loops = nest.temporal_above(operand, number)
    zero: Shift = (0,) * len(box)
    memory: dict[tuple[int, Shift | None, Shift | None], tuple[int, Shift | None]] = {}

    def ends() -> list[Shift]:
        positions = [zero]
        for _, move in loops:
            positions.append(_added(positions[-1], move))
        return positions

    end = ends()

    def visit(depth: int, arrival: Shift | None, before: Shift | None) -> tuple[int, Shift | None]:
        """Words of the `depth` innermost loops, and the last move: `arrival` is the move to their start."""
        key = (depth, arrival, before)
        if key not in memory:
            memory[key] = _visit(depth, arrival, before)
        return memory[key]

    def _visit(depth: int, arrival: Shift | None, before: Shift | None) -> tuple[int, Shift | None]:
        if depth == 0:
            if arrival is None:
                return whole, None
            if before is None or before == arrival:
                return nest.new_words(operand, number, arrival, cost_options), arrival
            return whole, None
        factor, move = loops[depth - 1]
        words, last = visit(depth - 1, arrival, before)
        again, last = visit(depth - 1, _added(move, end[depth - 1], -1), last)
        return words + (factor - 1) * again, last

    return visit(len(loops), None, None)[0]


def _added(a: Shift, b: Shift, sign: int = 1) -> Shift:
    return tuple(x + sign * y for x, y in zip(a, b, strict=True))


def _throttling(level: Level, machine: Machine, tensors: MappingOf[str, TensorCount], compute: int) -> float:
    """The share of the full rate that a level's bandwidth allows (rule 6); a shared port takes turns.

    Timeloop divides for each tensor and adds up then; in another order one cycle may come or go.
    """
    reads = sum(t.reads / compute for t in tensors.values())
    writes = sum((t.fills + t.updates) / compute for t in tensors.values())
    allowed = [
        bytes_per_cycle * 8 / level.word_bits / needed
        for needed, bytes_per_cycle in (
            (reads, machine.read_bytes_per_cycle(level)),
            (writes, machine.write_bytes_per_cycle(level)),
        )
        if bytes_per_cycle is not None and needed > 0
    ]
    if level.has_shared_port and len(allowed) > 1:
        allowed = [1 / sum(1 / share for share in allowed)]
    return min([1.0, *allowed])


def _energy_pj(laid: _Level, reads: int, updates: int, fills: int, used: int) -> float:
    """Of all instances of a level: whole accesses, charged for a bank however few of its instances work
    (rule 7)."""
    level = laid.level
    block = level.words_per_access
    instances = min(used, laid.num_charged)
    read = -(-reads // block) * level.read_access_pj
    written = (-(-updates // block) + -(-fills // block)) * level.write_access_pj
    return (read + written) * instances
