"""Padded extents: those that fan-outs divide, those without a large prime, and their lower bound.

Spatial factors need not divide an extent if the rest is padding: a dim of which `s` iterations run at the
same time takes the extent over `s`, rounded up, one after another. So the least cycles of computing over all
mappings, padded or not, follow from the spatial factors alone, and so does what ports must move (`ports.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import islice, product
from math import inf, prod

import numpy as np

from tilewright.cost.bound import energy_bound_pj, latency_bound_cycles
from tilewright.cost.objective import measure
from tilewright.loops.problem import Problem
from tilewright.mapping.base import MappingProblem
from tilewright.mapping.exact.ports import PortBound, least_port_cycles, limited_ports, spatial_factors
from tilewright.mapping.factors import smooth, useful_factors

_MOST_FOLLOWED = 40  # of what levels may leave to the others, for the least cycles of computing
_MOST_PADDING = 1.5
_MOST_PADDED = 24
_MOST_SPREAD = 8
_MOST_FED = 8
_WIDTH = 8  # ways that are followed, of those that leave equally many units
_MOST_FACTORS = 64  # of one dim at one level


def bound_padded(task: MappingProblem, enough: float = inf) -> float:
    """What no mapping beats, whatever it pads: cycles, pJ, or pJ * cycles.

    What takes long to say is left out where it is `enough` without.
    """
    energy_pj = energy_bound_pj(task.problem, task.machine, task.cost_options)
    cycles: float = latency_bound_cycles(task.problem, task.machine)
    for least in (_least_of_one_fan_out, least_compute_cycles, least_port_cycles):
        if task.objective == "energy" or measure(task.objective, cycles, energy_pj) >= enough:
            break
        cycles = max(cycles, least(task))
    return measure(task.objective, cycles, energy_pj)


def least_compute_cycles(task: MappingProblem) -> int:
    """Cycles of computing that no mapping beats, whatever it pads.

    Level by level, the largest fan-out first, what is left of each dim; the most promising is followed first.
    After a number of these the least of what is not followed yet is the answer, still a lower bound.
    """
    machine = task.machine
    numbers = sorted(range(len(machine.levels)), key=machine.fan_out, reverse=True)
    numbers = [number for number in numbers if machine.fan_out(number) > 1]
    units = [prod(map(machine.fan_out, numbers[place:])) for place in range(len(numbers) + 1)]
    extents = tuple(extent for _, extent in task.problem.dims)
    floor, best = _least_of_one_fan_out(task), prod(extents)
    # The least number of steps, levels that are spread (negative), steps without the others, what is left.
    queue = [(-(-best // units[0]), 0, best, extents)]
    seen = {extents}
    for _ in range(_MOST_FOLLOWED):
        if not queue or max(floor, queue[0][0]) >= best:
            return best
        _, minus_place, _, left = heappop(queue)
        place = 1 - minus_place
        ways = spatial_factors(task, range(numbers[place - 1], numbers[place - 1] + 1), np.array(left))
        if ways is None:
            return floor
        after = -(-np.array(left, np.int64) // ways)
        steps = after.prod(axis=1)
        best = min(best, int(steps.min()))  # the other levels may spread nothing
        least = np.maximum(floor, -(-steps // units[place]))
        for way in np.flatnonzero(least < best).tolist() if place < len(numbers) else ():
            following = tuple(after[way].tolist())
            if following not in seen:
                seen.add(following)
                heappush(queue, (int(least[way]), -place, int(steps[way]), following))
    return min(best, queue[0][0]) if queue else best


def _least_of_one_fan_out(task: MappingProblem) -> int:
    """The same if all units were one fan-out, so that what single levels cannot divide is divided."""
    units = prod(task.machine.fan_out(n) for n in range(len(task.machine.levels)))
    spread, left = np.ones(1, np.int64), np.ones(1, np.int64)
    for dim, extent in task.problem.dims:
        numbers = [n for n in range(len(task.machine.levels)) if task.may_spread(dim, n)]
        most = prod(task.most_spread(dim, n) for n in numbers)
        factors = useful_factors(extent, min(units, most)) if numbers else [1]
        steps = np.array([-(-extent // f) for f in factors], np.int64)
        spread = np.multiply.outer(spread, np.array(factors, np.int64)).reshape(-1)
        left = np.multiply.outer(left, steps).reshape(-1)
        # Of two ways, the one that takes fewer units and leaves less makes the other superfluous.
        order = np.lexsort((left, spread))
        spread, left = spread[order], left[order]
        is_better = np.r_[True, left[1:] < np.minimum.accumulate(left)[:-1]] & (spread <= units)
        spread, left = spread[is_better], left[is_better]
    return int(left[-1])


def padded_problems(task: MappingProblem, enough: float = inf) -> Iterator[MappingProblem]:
    """The problem with extents that divide better: what may move its words in less than `enough` cycles where
    bandwidth limits them, what computes fastest, then what is the least work."""
    seen = {task.problem.dims}
    for extents in (*_fed_evenly(task, enough), *_spread_evenly(task), *_rounded(task.problem)):
        dims = tuple(zip(task.problem.extents, extents, strict=True))
        if dims not in seen:
            seen.add(dims)
            yield replace(task, problem=replace(task.problem, dims=dims))


def _fed_evenly(task: MappingProblem, enough: float) -> list[tuple[int, ...]]:
    """Extents that factors divide with which the port that takes longest may take less than `enough`."""
    if task.objective != "latency" or enough == inf or task.cost_options.link_transfers:
        return []
    inside = [p for p in limited_ports(task.machine) if p.level < len(task.machine.levels) - 1]
    bounds = [PortBound(task, port) for port in inside]
    if not bounds:
        return []
    slowest = max(bounds, key=lambda bound: bound.least())
    most = _MOST_PADDING * task.problem.num_macs
    return [padded for _, padded in slowest.below(enough) if prod(padded) <= most][:_MOST_FED]


@dataclass(frozen=True, slots=True)
class _Spread:
    """What is left of every dim to run one after another, the factors spread so far, units that are free."""

    left: tuple[int, ...]
    spread: tuple[int, ...]
    free: int = 1


def _spread_evenly(task: MappingProblem) -> list[tuple[int, ...]]:
    """Extents whose factors use the fan-outs best; a few of many ways are followed."""
    extents = tuple(extent for _, extent in task.problem.dims)
    ways = [_Spread(extents, (1,) * len(extents))]
    for number in range(len(task.machine.levels)):
        fan_out = task.machine.fan_out(number)
        if fan_out == 1:
            continue
        ways = [replace(way, free=fan_out) for way in ways]
        for place, (dim, _) in enumerate(task.problem.dims):
            if task.may_spread(dim, number):
                along = task.most_spread(dim, number)
                ways = _best(after for way in ways for after in _after(way, place, along))
        ways = _best(replace(way, free=1) for way in ways)
    listed = dict.fromkeys(
        tuple(step * factor for step, factor in zip(way.left, way.spread, strict=True))
        for way in sorted(ways, key=_work)
    )
    most = _MOST_PADDING * task.problem.num_macs
    return [padded for padded in listed if prod(padded) <= most][:_MOST_SPREAD]


def _after(way: _Spread, place: int, most: int) -> Iterator[_Spread]:
    for factor in useful_factors(way.left[place], min(way.free, most))[:_MOST_FACTORS]:
        left = (*way.left[:place], -(-way.left[place] // factor), *way.left[place + 1 :])
        spread = (*way.spread[:place], way.spread[place] * factor, *way.spread[place + 1 :])
        yield _Spread(left, spread, way.free // factor)


def _best(ways: Iterable[_Spread]) -> list[_Spread]:
    """For every number of free units those that leave the least to do; of equal ones that pad the least."""
    listed: dict[int, list[_Spread]] = {}
    for way in sorted(dict.fromkeys(ways), key=_work):
        alike = listed.setdefault(way.free, [])
        if len(alike) < _WIDTH:
            alike.append(way)
    return [way for alike in listed.values() for way in alike]


def _work(way: _Spread) -> tuple[int, int]:
    """Steps one after another, and iterations with their padding."""
    left = prod(way.left)
    return left, left * prod(way.spread)


def _rounded(problem: Problem) -> Iterator[tuple[int, ...]]:
    """The least work first: each extent stays, or goes to the next number without a large prime, or to the
    next multiple of 4 or 16, as fan-outs are mostly powers of two."""
    listed = sorted(product(*(_rounded_up(extent) for _, extent in problem.dims)), key=prod)
    most = _MOST_PADDING * problem.num_macs
    yield from islice(
        (extents for extents in listed if problem.num_macs < prod(extents) <= most), _MOST_PADDED
    )


def _rounded_up(extent: int) -> list[int]:
    if extent == 1:
        return [1]
    return sorted({extent, smooth(extent), -(-extent // 4) * 4, -(-extent // 16) * 16})
