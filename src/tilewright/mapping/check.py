"""Independent check of a mapping. Shares no code with any mapper or cost model."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilewright.cost.base import Objective
from tilewright.hardware.machine import TensorKind
from tilewright.loops.mapping import LevelLoops, Mapping
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.constraints import (
    FixedSpatial,
    FixedTile,
    LoopOrder,
    NoLoop,
    SpatialAxes,
    SpatialDims,
    Stationary,
)
from tilewright.planning import Violation


def check_mapping(task: MappingProblem, mapping: Mapping) -> tuple[Violation, ...]:
    """Everything that makes a mapping wrong or impossible: nothing, if it is valid.

    Checked: levels of the machine, outermost first, each at most once; loops over the problem's dims that
    together cover every iteration; no more spatial instances than there are; the words that the tiles of
    every level touch, found from a tile's corners, against what the level holds of each kind; constraints.
    """
    names = [level.name for level in reversed(task.machine.levels)]
    given = [loops.level for loops in mapping.levels]
    unknown = [name for name in given if name not in names]
    if unknown:
        return tuple(Violation("level", f"there is no level {name!r}") for name in unknown)
    if given != [name for name in names if name in given]:
        return (Violation("level", f"the levels are {', '.join(given)}, not each once from the outside in"),)
    return (
        *_check_cover(task, mapping),
        *_check_instances(task, mapping),
        *_check_words(task, mapping),
        *_check_constraints(task, mapping),
    )


def check_solution(task: MappingProblem, solution: MappingSolution) -> tuple[Violation, ...]:
    """The mapping's violations, and those of what the mapper says of it: its work, and `check_figures`."""
    found = [*check_mapping(task, solution.mapping), *check_figures(task.objective, solution)]
    cost = solution.cost
    macs = prod(loop.factor for _, _, loop in solution.mapping.loops())
    if cost.compute_cycles * cost.num_units_used != macs:
        found.append(
            Violation(
                "work", f"{cost.compute_cycles} cycles of {cost.num_units_used} units, {macs} iterations"
            )
        )
    return tuple(found)


def check_figures(objective: Objective, solution: MappingSolution) -> Iterator[Violation]:
    """What a mapper says that cannot be: a cost below its own bounds, or one that is not the objective's."""
    cost, quality = solution.cost, solution.quality
    if cost.cycles < solution.bound_cycles:
        yield Violation("bound", f"{cost.cycles} cycles, but at least {solution.bound_cycles}")
    if cost.energy_pj < solution.bound_energy_pj * (1 - _SUMMED):
        yield Violation("bound", f"{cost.energy_pj} pJ, but at least {solution.bound_energy_pj}")
    value = {"latency": cost.cycles, "energy": cost.energy_pj, "edp": cost.cycles * cost.energy_pj}[objective]
    if abs(quality.cost - value) > _ROUNDING * abs(value):
        yield Violation("cost", f"{quality.cost:g} {quality.unit} stated, {value:g} of its cost")
    for bound in quality.bounds:
        if bound.is_proven and bound.value > quality.cost * (1 + _ROUNDING):
            yield Violation(
                "bound", f"bound {bound.value:g} of {bound.space} lies above the cost {quality.cost:g}"
            )


_SUMMED = 1e-12
"""By what share a sum of energies may differ from the same one added up in another order."""
_ROUNDING = 1e-9
"""By what share a value may differ from the same one worked out in another order."""


def _check_cover(task: MappingProblem, mapping: Mapping) -> Iterator[Violation]:
    extents = dict(task.problem.dims)
    covered = dict.fromkeys(extents, 1)
    for loops, kind, loop in mapping.loops():
        if loop.dim not in extents:
            yield Violation("dim", f"{kind} loop over {loop.dim!r} at {loops.level}: there is no such dim")
        elif loop.factor < 1:
            yield Violation(
                "factor", f"{kind} loop over {loop.dim} at {loops.level} runs {loop.factor} times"
            )
        else:
            covered[loop.dim] *= loop.factor
    for dim, extent in extents.items():
        if covered[dim] < extent:
            yield Violation("cover", f"{dim} runs {covered[dim]} of {extent} times")


def _check_instances(task: MappingProblem, mapping: Mapping) -> Iterator[Violation]:
    inside_of = {
        outer.name: inner.num_instances_per_parent
        for outer, inner in zip(task.machine.levels[1:], task.machine.levels, strict=False)
    }
    units = [unit for unit in task.machine.units if unit.kind in ("mac", "matrix")]
    inside_of[task.machine.levels[0].name] = sum(u.num_per_instance for u in units) if units else 1
    for loops in mapping.levels:
        asked = prod(loop.factor for loop in loops.spatial)
        if asked > inside_of[loops.level]:
            there = inside_of[loops.level]
            yield Violation("instances", f"{loops.level} feeds {there}, its spatial loops ask for {asked}")


def _check_words(task: MappingProblem, mapping: Mapping) -> Iterator[Violation]:
    names = [level.name for level in task.machine.levels]
    inside: dict[str, int] = {}
    by_level = {loops.level: loops for loops in mapping.levels}
    for number, name in enumerate(names):
        for loop in (*by_level[name].temporal, *by_level[name].spatial) if name in by_level else ():
            inside[loop.dim] = inside.get(loop.dim, 1) * loop.factor
        level = task.machine.levels[number]
        halves = 2 if task.cost_options.double_buffered and number < len(names) - 1 else 1
        for kinds, num_bytes in _stores(task, number):
            there = num_bytes * 8 // level.word_bits
            words = sum(_touched(task, kind, inside, is_innermost=number == 0) for kind in kinds)
            if words > (there if there == 1 else there // halves):
                held = " and ".join(str(kind) for kind in kinds)
                yield Violation("capacity", f"{name} has {there} words for {held}, a tile has {words}")


def _stores(task: MappingProblem, number: int) -> Iterator[tuple[tuple[TensorKind, ...], int]]:
    """Parts of a level's capacity, and the kinds of tensor that may use them."""
    level = task.machine.levels[number]
    if level.capacity_bytes is None:
        return
    apart = [kind for share in level.shares for kind in share.holds]
    for share in level.shares:
        yield share.holds, share.capacity_bytes
    together = tuple(kind for kind in level.holds if kind not in apart)
    if together:
        yield together, level.capacity_bytes - sum(share.capacity_bytes for share in level.shares)


def _touched(task: MappingProblem, kind: TensorKind, tile: dict[str, int], *, is_innermost: bool) -> int:
    """Words of the tensors of a kind: between the first and the last element of a tile along each axis; in
    the innermost level in as many copies as there are."""
    total = 0
    for operand in task.problem.operands:
        if operand.kind is not kind:
            continue
        words = operand.copies if is_innermost else 1
        for axis in operand.axes:
            if task.cost_options.skips_pixels:
                positions = {0}
                for dim, step in axis:
                    positions = {p + step * i for p in positions for i in range(tile.get(dim, 1))}
                words *= len(positions)
            else:
                words *= sum(step * (tile.get(dim, 1) - 1) for dim, step in axis) + 1
        total += words
    return total


def _check_constraints(task: MappingProblem, mapping: Mapping) -> Iterator[Violation]:
    """Each constraint by what its class says."""
    levels = {loops.level: loops for loops in mapping.levels}
    for constraint in task.constraints.listed():
        loops = levels.get(constraint.level, LevelLoops(constraint.level))
        spatial: dict[str, int] = {}
        for loop in loops.spatial:
            if loop.factor > 1:
                spatial[loop.dim] = spatial.get(loop.dim, 1) * loop.factor
        temporal = [loop.dim for loop in loops.temporal if loop.factor > 1]
        match constraint:
            case FixedSpatial(_, dim, factor):
                all_of_it = mapping.factors().get(dim, 1)
                is_kept = spatial.get(dim, 1) == min(factor or all_of_it, all_of_it)
            case SpatialDims(_, allowed):
                is_kept = set(spatial) <= set(allowed)
            case SpatialAxes():
                along: dict[int | None, int] = {}
                for dim, factor in spatial.items():
                    axis = constraint.axis_of(dim, task.problem)
                    along[axis] = along.get(axis, 1) * factor
                is_kept = all(
                    axis is not None and factor <= constraint.axes[axis][1] for axis, factor in along.items()
                )
            case FixedTile(level, dim, extent):
                all_of_it = mapping.factors().get(dim, 1)
                is_kept = _tile(task, levels, level, dim) == min(extent or all_of_it, all_of_it)
            case LoopOrder(_, order):
                others = order.index("*") if "*" in order else None
                places = [order.index(dim) if dim in order else others for dim in temporal]
                is_kept = places == sorted(place or 0 for place in places)
            case NoLoop(_, dim):
                is_kept = dim not in temporal
            case Stationary(_, kind):
                moving = [
                    any(dim in o.dims() for o in task.problem.operands if o.kind is kind) for dim in temporal
                ]
                is_kept = moving == sorted(moving, reverse=True)
        if not is_kept:
            yield Violation("constraint", f"{constraint} is not kept")


def _tile(task: MappingProblem, levels: dict[str, LevelLoops], level: str, dim: str) -> int:
    """What a level's tile has of a dim: the factors of its loops and of all inside."""
    names = [each.name for each in task.machine.levels]
    inside = [levels[name] for name in names[: names.index(level) + 1] if name in levels]
    return prod(loop.factor for x in inside for loop in (*x.temporal, *x.spatial) if loop.dim == dim)
